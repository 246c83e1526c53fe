//! The Debian package and the archive in a clean root: installed, started, used, removed. And the image, if it can be
//! built.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::cannot;
use crate::clients::{quietly, read};
use crate::install::{apt_install, had, output, path_folders, program_in};

/// The steps of a person after downloading, from the page docs/install.md. systemd does not run in the root: it
/// verifies the unit, and the command of the unit is run as the user of the unit.
const STORY: &str = r#"
set -e
ip link set lo up
now() { date +%s%N; }
seconds() { echo "$1" | awk '{ printf "%.1f s", $1 / 1e9 }'; }
begun=$(now)
dpkg --install /forebay.deb
id forebay
stat -c '%U %a' /var/lib/forebay | grep -x 'forebay 700'
systemd-analyze verify --man=no /lib/systemd/system/forebay.service
command_of() { sed -n "s/^$1=//p" /lib/systemd/system/forebay.service; }
su -s /bin/sh forebay -c "$(command_of ExecStartPre)"
su -s /bin/sh forebay -c "exec $(command_of ExecStart)" >/log 2>&1 &
wait_for() {
    i=0
    until "$@" >/dev/null 2>&1; do
        i=$((i + 1))
        if [ $i -gt 100 ]; then cat /log; exit 1; fi
        sleep 0.1
    done
}
wait_for forebay ping
forebay pub emails 'hello'
forebay sub emails/senders --create --ack --max 1 | grep hello
echo "TIMED package: $(seconds $(($(now) - begun))) from dpkg to the first message"
(cd /tmp && forebay demo --quick | grep -x 'Nothing was lost.')
test -f /usr/share/man/man1/forebay-serve.1
bash -n /usr/share/bash-completion/completions/forebay
pkill -TERM -x forebay
wait
dpkg --remove forebay
test ! -e /usr/bin/forebay
test -f /etc/forebay/forebay.toml
dpkg --purge forebay
test ! -e /etc/forebay/forebay.toml
test -d /var/lib/forebay/data

begun=$(now)
mkdir /unpacked
tar -xzf /forebay.tar.gz -C /unpacked --strip-components=1
cd /unpacked
./forebay serve >/log 2>&1 &
wait_for ./forebay ping
./forebay pub emails 'hello'
./forebay sub emails/senders --create --ack --max 1 | grep hello
echo "TIMED archive: $(seconds $(($(now) - begun))) from tar to the first message"
pkill -TERM -x forebay
wait
"#;

pub(super) fn run(package: &Path, archive: &Path) -> Result<(), String> {
    find("debootstrap")?;
    let root = std::env::temp_dir().join(format!("forebay-root-{}", std::process::id()));
    let tried = in_root(&root, package, archive);
    let removed = std::fs::remove_dir_all(&root).map_err(|error| cannot("remove", &root, &error));
    tried.and(removed)
}

/// A program, which is installed if it is not here.
fn find(program: &'static str) -> Result<PathBuf, String> {
    let found = || program_in(program, path_folders().iter().map(PathBuf::as_path));
    had(program, found, || apt_install(&[program])).map_err(|missing| missing.to_string())
}

fn in_root(root: &Path, package: &Path, archive: &Path) -> Result<(), String> {
    eprintln!("xtask: making a clean root in {}", root.display());
    let release = output("sh", &["-c", ". /etc/os-release; echo ${VERSION_CODENAME:-stable}"])?;
    let mut make = Command::new("debootstrap");
    make.args(["--variant=minbase", "--include=procps,iproute2,systemd", release.trim()]).arg(root);
    if let Some(mirror) = mirror() {
        make.arg(mirror);
    }
    quietly(make)?;
    for (from, name) in [(package, "forebay.deb"), (archive, "forebay.tar.gz")] {
        std::fs::copy(from, root.join(name)).map_err(|error| cannot("copy", from, &error))?;
    }
    std::fs::write(root.join("story.sh"), STORY).map_err(|error| cannot("write in", root, &error))?;
    let root = root.to_string_lossy();
    let proc = format!("--mount-proc={root}/proc");
    // Processes of the story end with it, whatever becomes of it. It has a network of its own, because this machine may
    // have a server on the same ports.
    let words = [&proc, "--fork", "--pid", "--net", "--kill-child", "chroot", &root, "bash", "/story.sh"];
    let told = output("unshare", &words)?;
    for line in told.lines().filter_map(|line| line.strip_prefix("TIMED ")) {
        println!("{line}");
    }
    println!("the package was installed, used, removed and purged, and the archive unpacked and used");
    Ok(())
}

/// The mirror that this machine installs its own packages from.
fn mirror() -> Option<String> {
    let lists = ["/etc/apt/sources.list", "/etc/apt/sources.list.d/debian.sources"];
    lists.iter().filter_map(|list| read(Path::new(list)).ok()).find_map(|text| mirror_in(&text))
}

fn mirror_in(list: &str) -> Option<String> {
    let lines = list.lines().filter(|line| line.starts_with("deb ") || line.starts_with("URIs:"));
    let mut words = lines.flat_map(str::split_whitespace);
    words.find(|word| word.contains("://") && !word.contains("security")).map(str::to_owned)
}

/// The limit of the image.
const IMAGE_BYTES_MAX: u64 = 25_000_000;

/// Builds the image, if a builder can be had, and says how large it is.
pub(super) fn image(folder: &Path) -> Result<(), String> {
    let bytes = std::fs::metadata(folder.join("forebay"))
        .map_err(|error| cannot("read", &folder.join("forebay"), &error))?
        .len();
    if bytes > IMAGE_BYTES_MAX {
        return Err(format!("the image is too large. max=`{IMAGE_BYTES_MAX}` bytes=`{bytes}`"));
    }
    let builder = match find("buildah") {
        Ok(builder) => builder,
        Err(why) => {
            println!("NOT BUILT: the container image, whose contents are in {}: {why}", folder.display());
            return Ok(());
        }
    };
    let builder = builder.to_string_lossy();
    let storage = folder.with_extension("storage");
    let place = storage.to_string_lossy().into_owned();
    let state = format!("{place}/run");
    let global = ["--storage-driver", "vfs", "--root", &place, "--runroot", &state];
    let call = |words: &[&str]| output(&builder, &[&global[..], words].concat());
    let built = call(&[
        "build",
        "--isolation",
        "chroot",
        "--format",
        "docker",
        "--tag",
        "forebay",
        &folder.to_string_lossy(),
    ]);
    let checked = built.and_then(|_| {
        let form = "{{.OCIv1.Config.User}} {{.Docker.Config.Healthcheck.Test}} {{.Docker.Config.Volumes}}";
        let config = call(&["inspect", "--type", "image", "--format", form, "forebay"])?;
        for part in ["65532:65532", "/forebay ping", "/data"] {
            if !config.contains(part) {
                return Err(format!("the image says something else. expected=`{part}` said=`{config}`"));
            }
        }
        Ok(())
    });
    let removed = std::fs::remove_dir_all(&storage).map_err(|error| cannot("remove", &storage, &error));
    checked.and(removed)?;
    println!("the container image was built; its one layer has {:.1} MB", bytes as f64 / 1e6);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_the_first_that_is_not_for_security() {
        let list = "deb http://security.debian.org/debian-security bookworm-security main\n\
                    deb http://mirror/debian bookworm main\n";
        assert_eq!(mirror_in(list).as_deref(), Some("http://mirror/debian"));
        let sources = "Types: deb\nURIs: http://mirror/debian\nSuites: bookworm\n";
        assert_eq!(mirror_in(sources).as_deref(), Some("http://mirror/debian"));
        assert_eq!(mirror_in("# nothing"), None);
    }
}
