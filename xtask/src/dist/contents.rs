//! The files of a release: folders, archives, packages, lists.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{cannot, make_folder};
use crate::clients::{quietly, read};
use crate::install::output;

pub(super) const SUMS: &str = "SHA256SUMS";
/// Archives are the same for the same sources.
const TAR: [&str; 6] = [
    "--sort=name",
    "--owner=0",
    "--group=0",
    "--numeric-owner",
    "--mtime=@0",
    "--use-compress-program=gzip -n -9",
];

/// Manual pages and completions, which are the same for every architecture. They come from the binary itself.
pub(super) fn texts(dist: &Path) -> Result<PathBuf, String> {
    let folder = dist.join("texts");
    make_folder(&folder.join("completions"))?;
    // The program of the tests' build will do, so that nothing is compiled a third time.
    crate::cargo(&["build", "--package", "forebay"])?;
    let program = crate::target()?.join("debug").join("forebay");
    let mut man = Command::new(&program);
    man.args(["man", "--to"]).arg(folder.join("man"));
    quietly(man)?;
    for (shell, name) in [("bash", "forebay.bash"), ("zsh", "_forebay"), ("fish", "forebay.fish")] {
        let script = output(&program.to_string_lossy(), &["completions", shell])?;
        write(&folder.join("completions").join(name), &script)?;
    }
    Ok(folder)
}

/// The folder that the archive has, and that the image is built from.
pub(super) fn fill(folder: &Path, binary: &Path, texts: &Path, zig: &Path) -> Result<(), String> {
    make_folder(folder)?;
    let stripped = folder.join("forebay");
    let mut strip = Command::new(zig.join("python"));
    // Knows both architectures, which the strip of this machine does not.
    strip.args(["-m", "ziglang", "objcopy", "--strip-all"]).arg(binary).arg(&stripped);
    quietly(strip)?;
    set_mode(&stripped, 0o755)?;
    let root = crate::root();
    for name in ["LICENSE", "README.md", "CHANGELOG.md"] {
        copy(&root.join(name), &folder.join(name), 0o644)?;
    }
    for name in ["forebay.service", "forebay.toml"] {
        copy(&root.join("packaging").join(name), &folder.join(name), 0o644)?;
    }
    for name in ["man", "completions"] {
        copy_folder(&texts.join(name), &folder.join(name))?;
    }
    Ok(())
}

pub(super) fn archive(dist: &Path, folder: &Path, name: &str) -> Result<(), String> {
    let parent = folder.parent().unwrap_or(dist);
    let inner = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut tar = Command::new("tar");
    tar.args(TAR).arg(format!("--transform=s/^{inner}/{name}/")).arg("--create").arg("--file");
    tar.arg(dist.join(format!("{name}.tar.gz"))).arg("--directory").arg(parent).arg(&inner);
    quietly(tar)
}

pub(super) fn package_name(version: &str, architecture: &str) -> String {
    format!("forebay_{version}_{architecture}.deb")
}

pub(super) fn debian(dist: &Path, folder: &Path, version: &str, architecture: &str) -> Result<(), String> {
    let root = dist.join(format!("debian-{architecture}"));
    let places = [
        ("forebay", "usr/bin/forebay", 0o755),
        ("forebay.service", "lib/systemd/system/forebay.service", 0o644),
        ("forebay.toml", "etc/forebay/forebay.toml", 0o644),
        ("LICENSE", "usr/share/doc/forebay/copyright", 0o644),
        ("completions/forebay.bash", "usr/share/bash-completion/completions/forebay", 0o644),
        ("completions/_forebay", "usr/share/zsh/vendor-completions/_forebay", 0o644),
        ("completions/forebay.fish", "usr/share/fish/vendor_completions.d/forebay.fish", 0o644),
    ];
    for (from, to, mode) in places {
        copy(&folder.join(from), &root.join(to), mode)?;
    }
    copy_folder(&folder.join("man"), &root.join("usr/share/man/man1"))?;
    let size = output("du", &["--summarize", "--block-size=1024", &root.to_string_lossy()])?;
    let size = size.split_whitespace().next().unwrap_or("0").to_owned();
    let scripts = crate::root().join("packaging").join("debian");
    let control = filled(
        &read(&scripts.join("control"))?,
        &[("VERSION", version), ("ARCHITECTURE", architecture), ("SIZE", &size)],
    );
    make_folder(&root.join("DEBIAN"))?;
    write(&root.join("DEBIAN").join("control"), &control)?;
    write(&root.join("DEBIAN").join("conffiles"), "/etc/forebay/forebay.toml\n")?;
    for script in ["postinst", "prerm", "postrm"] {
        copy(&scripts.join(script), &root.join("DEBIAN").join(script), 0o755)?;
    }
    let mut build = Command::new("dpkg-deb");
    build
        .args(["--root-owner-group", "--build"])
        .arg(&root)
        .arg(dist.join(package_name(version, architecture)));
    build.env("SOURCE_DATE_EPOCH", "0");
    quietly(build)?;
    std::fs::remove_dir_all(&root).map_err(|error| cannot("remove", &root, &error))
}

/// Everything that is compiled into the binary, with versions and licences, in the form of CycloneDX 1.5.
pub(super) fn sbom(file: &Path, version: &str) -> Result<(), String> {
    let words = [
        "tree",
        "--package",
        "forebay",
        "--locked",
        "--edges",
        "normal",
        "--prefix",
        "none",
        "--format",
        "{p}|{l}",
    ];
    let ran = crate::cargo_command(&words).output();
    let ran = ran.map_err(|error| format!("cannot run `cargo tree`: {error}"))?;
    if !ran.status.success() {
        return Err(format!("`cargo tree` failed: {}", String::from_utf8_lossy(&ran.stderr).trim()));
    }
    write(file, &cyclonedx(&String::from_utf8_lossy(&ran.stdout), version))
}

fn cyclonedx(tree: &str, version: &str) -> String {
    let packages: BTreeSet<_> = tree.lines().filter_map(crate::deny::package).collect();
    let components: Vec<String> = packages
        .iter()
        .filter(|(name, ..)| name != "forebay")
        .map(|(name, version, licence)| {
            format!(
                "    {{ \"type\": \"library\", \"name\": \"{name}\", \"version\": \"{version}\", \"purl\": \
                 \"pkg:cargo/{name}@{version}\", \"licenses\": [ {{ \"expression\": \"{}\" }} ] }}",
                licence.replace('/', " OR ")
            )
        })
        .collect();
    format!(
        "{{\n  \"bomFormat\": \"CycloneDX\",\n  \"specVersion\": \"1.5\",\n  \"version\": 1,\n  \"metadata\": {{ \
         \"component\": {{ \"type\": \"application\", \"name\": \"forebay\", \"version\": \"{version}\" }} }},\n  \
         \"components\": [\n{}\n  ]\n}}\n",
        components.join(",\n")
    )
}

pub(super) fn formula(dist: &Path, version: &str) -> Result<(), String> {
    let sum_of = |architecture: &str| {
        let file = dist.join(format!("forebay-{version}-{architecture}-linux.tar.gz"));
        if file.is_file() { sum(&file) } else { Ok("not built".to_owned()) }
    };
    let text = read(&crate::root().join("packaging").join("forebay.rb"))?;
    let text = filled(
        &text,
        &[
            ("VERSION", version),
            ("FOLDER", &dist.to_string_lossy()),
            ("SHA256_X86_64", &sum_of("x86_64")?),
            ("SHA256_AARCH64", &sum_of("aarch64")?),
        ],
    );
    write(&dist.join("forebay.rb"), &text)
}

pub(super) fn checksums(dist: &Path) -> Result<(), String> {
    let entries = std::fs::read_dir(dist).map_err(|error| cannot("read", dist, &error))?;
    let mut files: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file()).collect();
    files.sort();
    let mut sums = String::new();
    for file in files {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let _ = writeln!(sums, "{}  {name}", sum(&file)?);
    }
    write(&dist.join(SUMS), &sums)
}

fn sum(file: &Path) -> Result<String, String> {
    let said = output("sha256sum", &[&file.to_string_lossy()])?;
    said.split_whitespace().next().map(str::to_owned).ok_or_else(|| "sha256sum said nothing".to_owned())
}

/// A template with its places filled.
fn filled(template: &str, places: &[(&str, &str)]) -> String {
    places.iter().fold(template.to_owned(), |text, (name, value)| text.replace(&format!("@{name}@"), value))
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    std::fs::write(file, text).map_err(|error| cannot("write", file, &error))
}

fn copy(from: &Path, to: &Path, mode: u32) -> Result<(), String> {
    if let Some(folder) = to.parent() {
        make_folder(folder)?;
    }
    std::fs::copy(from, to).map_err(|error| cannot("copy", from, &error))?;
    set_mode(to, mode)
}

fn copy_folder(from: &Path, to: &Path) -> Result<(), String> {
    let entries = std::fs::read_dir(from).map_err(|error| cannot("read", from, &error))?;
    for entry in entries.flatten() {
        copy(&entry.path(), &to.join(entry.file_name()), 0o644)?;
    }
    Ok(())
}

fn set_mode(file: &Path, mode: u32) -> Result<(), String> {
    let mode = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(file, mode).map_err(|error| cannot("set the mode of", file, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_have_no_place_that_is_not_filled() {
        let folder = crate::root().join("packaging");
        let control = read(&folder.join("debian").join("control")).expect("a file");
        let filled = filled(&control, &[("VERSION", "1.2.3"), ("ARCHITECTURE", "amd64"), ("SIZE", "9")]);
        assert!(!filled.contains('@') || filled.matches('@').count() == 1, "{filled}");
        assert!(filled.contains("Version: 1.2.3\n") && filled.contains("Architecture: amd64\n"));
    }

    #[test]
    fn the_list_of_packages_is_json_with_each_package_once() {
        let tree = "forebay v0.1.0 (/x)|Apache-2.0\nsyn v2.0.1|MIT OR Apache-2.0\nsyn v2.0.1|MIT OR Apache-2.0 (*)\n";
        let bom = cyclonedx(tree, "0.1.0");
        assert_eq!(bom.matches("pkg:cargo/syn@2.0.1").count(), 1);
        assert!(!bom.contains("pkg:cargo/forebay@"));
        assert_eq!(bom.matches('{').count(), bom.matches('}').count());
    }
}
