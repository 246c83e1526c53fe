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
pub(super) fn texts(dist: &Path, runnable: Option<PathBuf>) -> Result<PathBuf, String> {
    let folder = dist.join("texts");
    make_folder(&folder.join("completions"))?;
    let program = match runnable {
        Some(program) => program,
        None => {
            // Nothing that was built runs here.
            crate::cargo(&["build", "--package", "forebay"])?;
            crate::target()?.join("debug").join("forebay")
        }
    };
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
pub(super) fn fill(folder: &Path, binary: &Path, texts: &Path) -> Result<(), String> {
    copy(binary, &folder.join("forebay"), 0o755)?;
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

/// An archive of the folder, beside it.
pub(super) fn archive(folder: &Path) -> Result<(), String> {
    let parent = folder.parent().ok_or("the folder of an archive is in another folder")?;
    let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    pack(parent, &[&name], &parent.join(format!("{name}.tar.gz")))
}

/// An archive of some entries of a folder.
pub(super) fn pack(folder: &Path, entries: &[&str], archive: &Path) -> Result<(), String> {
    let mut tar = Command::new("tar");
    tar.args(TAR).arg("--create").arg("--file").arg(archive).arg("--directory").arg(folder).args(entries);
    quietly(tar)
}

/// The folder that the container image is built from.
pub(super) fn image(folder: &Path, from: &Path) -> Result<(), String> {
    copy(&from.join("forebay"), &folder.join("forebay"), 0o755)?;
    copy(&crate::root().join("packaging").join("Containerfile"), &folder.join("Containerfile"), 0o644)?;
    // An image without a shell cannot make a folder for its own user.
    make_folder(&folder.join("data"))
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
        "--target",
        "x86_64-unknown-linux-musl",
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
    write(file, &cyclonedx(&String::from_utf8_lossy(&ran.stdout), version))?;
    let mut parse = Command::new("python3");
    parse.args(["-m", "json.tool"]).arg(file);
    quietly(parse)
}

fn cyclonedx(tree: &str, version: &str) -> String {
    let packages: BTreeSet<_> = tree.lines().filter_map(crate::deny::package).collect();
    let components: Vec<String> = packages
        .iter()
        .filter(|(name, ..)| name != "forebay")
        .map(|(name, version, licence)| {
            let licence = licence.replace('/', " OR ");
            format!(
                "    {{ \"type\": \"library\", \"name\": \"{name}\", \"version\": \"{version}\", \"purl\": \
                 \"pkg:cargo/{name}@{version}\", \"licenses\": [ {{ \"expression\": \"{licence}\" }} ] }}"
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

/// The Homebrew formula for the archives that were built.
pub(super) fn formula(dist: &Path, version: &str) -> Result<(), String> {
    let mut text = read(&crate::root().join("packaging").join("forebay.rb"))?;
    for (architecture, block) in [("x86_64", "on_intel"), ("aarch64", "on_arm")] {
        let archive = dist.join(format!("forebay-{version}-{architecture}-linux.tar.gz"));
        let place = format!("SHA256_{}", architecture.to_uppercase());
        text = match archive.is_file() {
            true => filled(&text, &[(&place, &sum(&archive)?)]),
            false => without_block(&text, block),
        };
    }
    let text = filled(&text, &[("VERSION", version), ("FOLDER", &dist.to_string_lossy())]);
    write(&dist.join("forebay.rb"), &text)
}

/// The text without a block of Ruby: from its first line to the `end` with the same indent.
fn without_block(text: &str, name: &str) -> String {
    let mut left = String::new();
    let mut end: Option<String> = None;
    for line in text.lines() {
        match &end {
            Some(last) if line == last => end = None,
            Some(_) => {}
            None if line.trim_start() == format!("{name} do") => {
                end = Some(format!("{}end", &line[..line.len() - line.trim_start().len()]));
            }
            None => {
                left.push_str(line);
                left.push('\n');
            }
        }
    }
    left
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
pub(super) fn filled(template: &str, places: &[(&str, &str)]) -> String {
    places.iter().fold(template.to_owned(), |text, (name, value)| text.replace(&format!("@{name}@"), value))
}

pub(super) fn write(file: &Path, text: &str) -> Result<(), String> {
    std::fs::write(file, text).map_err(|error| cannot("write", file, &error))
}

pub(super) fn copy(from: &Path, to: &Path, mode: u32) -> Result<(), String> {
    if let Some(folder) = to.parent() {
        make_folder(folder)?;
    }
    std::fs::copy(from, to).map_err(|error| cannot("copy", from, &error))?;
    set_mode(to, mode)
}

pub(super) fn copy_folder(from: &Path, to: &Path) -> Result<(), String> {
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
    fn the_formula_names_only_archives_that_were_built() {
        let formula = read(&crate::root().join("packaging").join("forebay.rb")).expect("a file");
        let left = without_block(&formula, "on_arm");
        assert!(left.contains("SHA256_X86_64") && !left.contains("SHA256_AARCH64"), "{left}");
        let lines = |text: &str| text.lines().filter(|line| line.trim() == "end").count();
        assert_eq!(lines(&left), lines(&formula) - 1);
        let places = [("VERSION", "1"), ("FOLDER", "f"), ("SHA256_X86_64", "a"), ("SHA256_AARCH64", "b")];
        assert!(!filled(&formula, &places).contains('@'));
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
