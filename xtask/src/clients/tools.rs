//! The toolchains of the clients' languages.

use std::path::{Path, PathBuf};

use crate::install::{Missing, apt_has, apt_install, had, output, path_folders, program_in};

/// What a suite is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Language {
    Python,
    Js,
    Java,
    Rust,
    /// Python, and Prometheus with its tools.
    Prometheus,
    /// Python, and Go.
    Go,
}

/// The programs of a toolchain that is good enough, and what it says of itself.
#[derive(Debug)]
pub(crate) struct Tools {
    /// Runs programs of the language, or builds them.
    pub(crate) first: PathBuf,
    /// Gets packages, where that is another program.
    pub(crate) second: PathBuf,
    pub(crate) version: String,
}

const PYTHON_MIN: u32 = 10;
const NODE_MIN: u32 = 20;
const JAVA_MIN: u32 = 17;
const GO_MIN: u32 = 19;

pub(crate) fn find(language: Language) -> Result<Tools, Missing> {
    match language {
        Language::Python => {
            had("Python with venv", python, || install(&[&["python3"], &["python3-venv"], &["python3-pip"]]))
        }
        Language::Js => had("Node.js with npm", node, || install(&[&["nodejs"], &["npm"]])),
        Language::Java => had("Java with Maven", java, || {
            install(&[
                &["openjdk-17-jdk-headless", "openjdk-21-jdk-headless", "default-jdk-headless"],
                &["maven"],
            ])
        }),
        Language::Rust => Ok(cargo()),
        Language::Prometheus => {
            had("Prometheus with promtool", prometheus, || install(&[&["prometheus"]]))?;
            find(Language::Python)
        }
        Language::Go => {
            had("Go", go, || install(&[&["golang-go"]]))?;
            find(Language::Python)
        }
    }
}

/// Installs a package of each list, the first that there is.
fn install(lists: &[&[&str]]) -> Result<(), String> {
    let mut packages = Vec::new();
    for names in lists {
        let mut found = None;
        for name in *names {
            if found.is_none() && apt_has(name)? {
                found = Some(*name);
            }
        }
        packages.push(found.ok_or_else(|| format!("apt-get knows no package {}", names[0]))?);
    }
    apt_install(&packages)
}

pub(crate) fn program(name: &str) -> Option<PathBuf> {
    program_in(name, path_folders().iter().map(PathBuf::as_path))
}

fn ask(program: &Path, arguments: &[&str]) -> Option<String> {
    output(program.to_str()?, arguments).ok().map(|said| said.trim().to_owned())
}

fn python() -> Option<Tools> {
    let first = program("python3")?;
    // `ensurepip` is what some distributions leave out of `venv`.
    let version = ask(&first, &["-c", "import ensurepip, sys, venv; print(sys.version)"])?;
    let is_new = numbers(&version) >= Some((3, PYTHON_MIN));
    is_new.then_some(Tools { second: first.clone(), first, version })
}

fn node() -> Option<Tools> {
    let (first, second) = (program("node")?, program("npm")?);
    let version = ask(&first, &["--version"])?;
    let is_new = numbers(version.trim_start_matches('v')) >= Some((NODE_MIN, 0));
    is_new.then_some(Tools { first, second, version })
}

fn java() -> Option<Tools> {
    let (first, second) = (program("javac")?, program("mvn")?);
    let version = ask(&first, &["-version"])?;
    let is_new = numbers(version.trim_start_matches("javac ")) >= Some((JAVA_MIN, 0));
    is_new.then_some(Tools { first, second, version })
}

fn prometheus() -> Option<(PathBuf, PathBuf)> {
    Some((program("prometheus")?, program("promtool")?))
}

fn go() -> Option<PathBuf> {
    let go = program("go")?;
    let version = ask(&go, &["env", "GOVERSION"])?;
    (numbers(version.trim_start_matches("go")) >= Some((1, GO_MIN))).then_some(go)
}

/// The one that runs us.
pub(super) fn cargo() -> Tools {
    let first = PathBuf::from(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    Tools { second: first.clone(), first, version: String::new() }
}

/// The first two numbers of a version.
fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split(|c: char| !c.is_ascii_digit());
    let major = numbers.next()?.parse().ok()?;
    Some((major, numbers.next().and_then(|minor| minor.parse().ok()).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert_eq!(numbers("3.11.7 (main, Nov 1 2026)"), Some((3, 11)));
        assert_eq!(numbers("20.20.2"), Some((20, 20)));
        assert_eq!(numbers("17"), Some((17, 0)));
        assert_eq!(numbers("1.8.0_392"), Some((1, 8)));
        assert_eq!(numbers("22-ea"), Some((22, 0)));
        assert_eq!(numbers("unknown"), None);
        assert!(numbers("3.9.2") < Some((3, PYTHON_MIN)) && numbers("unknown") < Some((3, PYTHON_MIN)));
    }
}
