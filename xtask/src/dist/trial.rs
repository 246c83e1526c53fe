//! The Debian package in a clean root: installed, started, used, removed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use super::cannot;
use crate::clients::quietly;
use crate::install::{apt_install, had, output, path_folders, program_in};

/// What a person does after `dpkg -i`, by the README.
const STORY: &str = r#"
set -e
dpkg --install /forebay.deb
id forebay
stat -c '%U %a' /var/lib/forebay | grep -x 'forebay 700'
su -s /bin/sh forebay -c 'forebay serve --config /etc/forebay/forebay.toml' >/log 2>&1 &
i=0
until forebay stream list >/dev/null 2>&1; do
    i=$((i + 1))
    if [ $i -gt 100 ]; then cat /log; exit 1; fi
    sleep 0.1
done
forebay pub emails 'hello' --output json
forebay sub emails/senders --create --ack --count 1 | grep hello
pkill -TERM -x forebay
wait
test -f /usr/share/man/man1/forebay-serve.1
dpkg --remove forebay
test ! -e /usr/bin/forebay
test -d /var/lib/forebay
dpkg --purge forebay
"#;

pub(super) fn run(package: &Path) -> Result<(), String> {
    let find = || program_in("debootstrap", path_folders().iter().map(PathBuf::as_path));
    had("debootstrap", find, || apt_install(&["debootstrap"])).map_err(|missing| missing.to_string())?;
    let root = std::env::temp_dir().join(format!("forebay-root-{}", std::process::id()));
    let tried = in_root(&root, package);
    let removed = std::fs::remove_dir_all(&root).map_err(|error| cannot("remove", &root, &error));
    tried.and(removed)
}

fn in_root(root: &Path, package: &Path) -> Result<(), String> {
    eprintln!("xtask: making a clean root in {}", root.display());
    let release = output("sh", &["-c", ". /etc/os-release; echo ${VERSION_CODENAME:-stable}"])?;
    let mut make = Command::new("debootstrap");
    make.args(["--variant=minbase", "--include=procps", release.trim()]).arg(root);
    quietly(make)?;
    std::fs::copy(package, root.join("forebay.deb")).map_err(|error| cannot("copy", package, &error))?;
    std::fs::write(root.join("story.sh"), STORY).map_err(|error| cannot("write in", root, &error))?;
    let since = Instant::now();
    let mut story = Command::new("unshare");
    story
        .args(["--mount-proc", "--fork", "--pid", "--kill-child", "chroot"])
        .arg(root)
        .args(["sh", "/story.sh"]);
    quietly(story)?;
    println!("the package was installed, used and removed in {:.1} s", since.elapsed().as_secs_f64());
    Ok(())
}
