//! `cargo xtask dist`: everything that is released, in `target/dist`.
//!
//! The binaries are static, so one runs on every Linux of its architecture. A C compiler for both architectures comes
//! from two packages of PyPI, which are kept in the user's cache.

mod contents;
mod debian;
mod trial;

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::clients::cache::Cache;
use crate::clients::tools::{self, Language};
use crate::clients::{quietly, read};
use crate::install::output;

pub(crate) const HELP: &str = "\
Usage: cargo xtask dist [x86_64|aarch64] ... [--try]

Builds static binaries and puts into target/dist: an archive of each with manual pages and completions, a Debian
package of each, the list of everything that is compiled in (SBOM, CycloneDX), the Homebrew formula, and SHA256SUMS.
target/dist/image-ARCHITECTURE is the folder that the container image is built from.

If no architecture is named, both are built; one whose target cannot be had is left out, and the output says so.
The targets are added with rustup. The C compiler comes from PyPI, the linker from the Rust toolchain.

With --try the Debian package and the archive of this machine's architecture are tried out in a clean root, which
needs root, debootstrap and unshare: installed, started as the unit starts it, a message published and consumed, and
removed. The image is built if buildah can be had.
";

/// The tools that compile for both architectures.
const PACKAGES: [&str; 2] = ["cargo-zigbuild==0.24.0", "ziglang==0.17.0"];
/// How the binaries are linked: functions whose code is the same are there once, and the places that depend on where
/// the program is loaded are listed in a short form.
const LINKING: [&str; 4] = [
    "-Clinker-flavor=ld.lld",
    "-Clink-arg=--strip-all",
    "-Clink-arg=--icf=all",
    "-Clink-arg=--pack-dyn-relocs=relr",
];
/// In `Cargo.toml`.
const PROFILE: &str = "shipped";

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Architecture {
    X86,
    Arm,
}

impl Architecture {
    const ALL: [Architecture; 2] = [Architecture::X86, Architecture::Arm];

    fn name(self) -> &'static str {
        match self {
            Architecture::X86 => "x86_64",
            Architecture::Arm => "aarch64",
        }
    }

    /// In Debian's words.
    fn debian(self) -> &'static str {
        match self {
            Architecture::X86 => "amd64",
            Architecture::Arm => "arm64",
        }
    }

    fn target(self) -> String {
        format!("{}-unknown-linux-musl", self.name())
    }

    /// The name of the archive, and of the folder in it.
    fn archive(self, version: &str) -> String {
        format!("forebay-{version}-{}-linux", self.name())
    }

    /// The program that was built for it.
    fn binary(self) -> Result<PathBuf, String> {
        Ok(crate::target()?.join(self.target()).join(PROFILE).join("forebay"))
    }

    fn named(name: &str) -> Option<Architecture> {
        Architecture::ALL.into_iter().find(|one| one.name() == name)
    }

    fn of_this_machine() -> Option<Architecture> {
        Architecture::named(std::env::consts::ARCH)
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// None: all that can be had.
    architectures: Vec<Architecture>,
    is_tried: bool,
}

impl Plan {
    pub(crate) fn parse(arguments: &[String]) -> Result<Plan, String> {
        let mut plan = Plan { architectures: Vec::new(), is_tried: false };
        for argument in arguments {
            match (argument.as_str(), Architecture::named(argument)) {
                (_, Some(one)) => plan.architectures.push(one),
                ("--try", _) => plan.is_tried = true,
                _ => return Err(format!("`dist` does not take this. argument=`{argument}`")),
            }
        }
        plan.architectures.sort_unstable();
        plan.architectures.dedup();
        Ok(plan)
    }
}

pub(crate) fn run(plan: &Plan) -> Result<(), String> {
    let dist = crate::target()?.join("dist");
    if dist.exists() {
        std::fs::remove_dir_all(&dist).map_err(|error| cannot("remove", &dist, &error))?;
    }
    make_folder(&dist)?;
    let version = version()?;
    let zig = zig()?;
    let (architectures, left_out) = add_targets(&plan.architectures)?;
    for one in &architectures {
        build(*one, &zig)?;
        check(&one.binary()?)?;
    }
    let here = Architecture::of_this_machine().filter(|one| architectures.contains(one));
    let texts = contents::texts(&dist, here.map(Architecture::binary).transpose()?)?;
    for one in &architectures {
        let folder = dist.join(one.archive(&version));
        contents::fill(&folder, &one.binary()?, &texts)?;
        contents::archive(&folder)?;
        debian::build(&dist, &folder, &version, one.debian())?;
        contents::image(&dist.join(format!("image-{}", one.name())), &folder)?;
    }
    contents::sbom(&dist.join(format!("forebay-{version}.cdx.json")), &version)?;
    contents::formula(&dist, &version)?;
    contents::checksums(&dist)?;
    print!("{}", read(&dist.join(contents::SUMS))?);
    if plan.is_tried {
        let here =
            here.ok_or("no package of this machine's architecture was built, so there is none to try")?;
        let archive = dist.join(format!("{}.tar.gz", here.archive(&version)));
        trial::run(&dist.join(debian::package_name(&version, here.debian())), &archive)?;
        trial::image(&dist.join(format!("image-{}", here.name())))?;
    }
    for missing in left_out {
        println!("NOT BUILT: {missing}");
    }
    println!("xtask dist: everything else is in {}", dist.display());
    Ok(())
}

/// Adds the targets. Returns the architectures that can be built, and the missing ones with the reason.
fn add_targets(wanted: &[Architecture]) -> Result<(Vec<Architecture>, Vec<String>), String> {
    let add = |one: Architecture| output("rustup", &["target", "add", &one.target()]).map(drop);
    if !wanted.is_empty() {
        wanted.iter().try_for_each(|one| add(*one))?;
        return Ok((wanted.to_vec(), Vec::new()));
    }
    let (mut can, mut cannot) = (Vec::new(), Vec::new());
    for one in Architecture::ALL {
        match add(one) {
            Ok(()) => can.push(one),
            Err(why) => cannot.push(format!("{}, because its target cannot be had: {why}", one.name())),
        }
    }
    if can.is_empty() { Err(cannot.join("; ")) } else { Ok((can, cannot)) }
}

fn version() -> Result<String, String> {
    let manifest = read(&crate::root().join("Cargo.toml"))?;
    let line = manifest.lines().find_map(|line| line.strip_prefix("version = \""));
    let version = line.and_then(|rest| rest.strip_suffix('"'));
    version.map(str::to_owned).ok_or_else(|| "Cargo.toml has no version of the workspace".to_owned())
}

/// The folder with the programs of `PACKAGES`.
fn zig() -> Result<PathBuf, String> {
    let python = tools::find(Language::Python).map_err(|missing| missing.to_string())?;
    let cache = Cache::open("dist")?;
    let folder = cache.made_from("zig", &[&PACKAGES[..], &[&python.version]].concat(), |folder| {
        let mut venv = Command::new(&python.first);
        venv.args(["-m", "venv"]).arg(folder);
        quietly(venv)?;
        let mut pip = Command::new(folder.join("bin").join("python"));
        pip.args(["-m", "pip", "install", "--quiet", "--no-input", "--no-deps"]).args(PACKAGES);
        quietly(pip)
    })?;
    Ok(folder.join("bin"))
}

fn build(one: Architecture, zig: &Path) -> Result<(), String> {
    let target = one.target();
    let words = ["zigbuild", "--profile", PROFILE, "--locked", "--package", "forebay", "--target", &target];
    let mut command = Command::new(zig.join("cargo-zigbuild"));
    command.args(words).current_dir(crate::root()).env("PATH", path_with(zig)?);
    // Only C is compiled by the package. The linker is the one of the Rust toolchain, which can do both of these.
    let of_target = format!("CARGO_TARGET_{}", target.to_uppercase().replace('-', "_"));
    command.env(format!("{of_target}_LINKER"), "rust-lld");
    command.env(format!("{of_target}_RUSTFLAGS"), LINKING.join(" "));
    crate::finish(command, &words)
}

/// Says how large a binary is, and refuses one that needs libraries.
fn check(binary: &Path) -> Result<(), String> {
    let bytes = std::fs::read(binary).map_err(|error| cannot("read", binary, &error))?;
    if !is_static(&bytes) {
        return Err(format!("the binary is not static. file=`{}`", binary.display()));
    }
    println!("{}: static, {:.1} MB", binary.display(), bytes.len() as f64 / 1e6);
    Ok(())
}

/// Whether a program of 64 bits, little endian, asks for no interpreter, which would load libraries.
fn is_static(elf: &[u8]) -> bool {
    const INTERPRETER: u32 = 3;
    let number = |at: usize, bytes: usize| {
        let field = elf.get(at..at.saturating_add(bytes))?;
        Some(field.iter().rev().fold(0_u64, |number, byte| (number << 8) | u64::from(*byte)))
    };
    let kinds = || {
        let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
        (0..count).map(|nth| number((table + nth * size) as usize, 4)).collect::<Option<Vec<u64>>>()
    };
    elf.starts_with(b"\x7fELF\x02\x01") && kinds().is_some_and(|kinds| !kinds.contains(&INTERPRETER.into()))
}

fn path_with(first: &Path) -> Result<std::ffi::OsString, String> {
    let folders = [vec![first.to_owned()], crate::install::path_folders()].concat();
    std::env::join_paths(folders).map_err(|error| format!("the PATH cannot be extended: {error}"))
}

fn make_folder(folder: &Path) -> Result<(), String> {
    std::fs::create_dir_all(folder).map_err(|error| cannot("make", folder, &error))
}

fn cannot(what: &str, path: &Path, error: &std::io::Error) -> String {
    format!("cannot {what} {}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Plan, String> {
        Plan::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn architectures_are_named_or_all_are_meant() {
        let all = Plan { architectures: Vec::new(), is_tried: false };
        assert_eq!(parse(""), Ok(all));
        let one = Plan { architectures: vec![Architecture::X86], is_tried: true };
        assert_eq!(parse("x86_64 --try x86_64"), Ok(one));
        assert!(parse("pdp11").is_err());
    }

    #[test]
    fn a_program_with_an_interpreter_is_not_static() {
        let mut elf = vec![0_u8; 64 + 2 * 56];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        (elf[32], elf[54], elf[56]) = (64, 56, 2);
        (elf[64], elf[64 + 56]) = (1, 2);
        assert!(is_static(&elf));
        elf[64 + 56] = 3;
        assert!(!is_static(&elf));
        assert!(!is_static(&elf[..100]) && !is_static(b"#!/bin/sh\n"));
    }

    #[test]
    fn the_version_is_that_of_the_workspace() {
        assert_eq!(version().as_deref(), Ok(env!("CARGO_PKG_VERSION")));
    }
}
