//! Where the servers are on this machine, and how to get them if they are not.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::program_in;

/// The version that we ask for by name, where there is a choice.
const POSTGRES_MAJOR: u32 = 15;
/// Where Debian and its kin put the programs of PostgreSQL, a folder for each version.
const POSTGRES_VERSIONS: &str = "/usr/lib/postgresql";
/// A script of this name says which services an installation may start. 101 means none.
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// A server that cannot be had, and why.
pub(super) struct Missing {
    what: &'static str,
    why: String,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not here and could not be installed: {}", self.what, self.why)
    }
}

/// The folder with PostgreSQL's programs.
pub(super) fn postgres() -> Result<PathBuf, Missing> {
    had("PostgreSQL", installed_postgres, || {
        let wanted = format!("postgresql-{POSTGRES_MAJOR}");
        if apt_has(&wanted)? {
            return Ok(wanted);
        }
        let offered = output("apt-cache", &["search", "--names-only", "^postgresql-[0-9]+$"])?;
        let package = newest_package(&offered).ok_or("no package of it is known to apt-get")?;
        eprintln!("xtask: there is no {wanted} here; taking {package} in its place");
        Ok(package)
    })
}

/// Redis's server program.
pub(super) fn redis() -> Result<PathBuf, Missing> {
    let installed = || program_in("redis-server", path_folders().iter().map(PathBuf::as_path));
    had("Redis", installed, || {
        let package = "redis-server".to_owned();
        if apt_has(&package)? { Ok(package) } else { Err("no package of it is known to apt-get".to_owned()) }
    })
}

/// What is here already, or what is here after installing the package.
fn had(
    what: &'static str,
    installed: impl Fn() -> Option<PathBuf>,
    package: impl Fn() -> Result<String, String>,
) -> Result<PathBuf, Missing> {
    if let Some(found) = installed() {
        return Ok(found);
    }
    let install = || {
        may_install()?;
        apt_install(&package()?)?;
        installed().ok_or_else(|| "its package does not have the programs that we look for".to_owned())
    };
    install().map_err(|why| Missing { what, why })
}

/// Both programs are needed: one makes the data folder, the other serves it.
fn installed_postgres() -> Option<PathBuf> {
    let versions: Vec<PathBuf> = std::fs::read_dir(POSTGRES_VERSIONS)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    let folders = path_folders().into_iter().chain(by_preference(versions));
    folders.into_iter().find(|folder| folder.join("initdb").is_file() && folder.join("postgres").is_file())
}

/// Folders that are named after a version: the one that we ask for, then the newest.
fn by_preference(folders: Vec<PathBuf>) -> impl Iterator<Item = PathBuf> {
    let major = |folder: &Path| folder.file_name()?.to_str()?.parse::<u32>().ok();
    let mut versions: Vec<(u32, PathBuf)> =
        folders.into_iter().filter_map(|folder| Some((major(&folder)?, folder))).collect();
    versions.sort_by_key(|(major, _)| (*major != POSTGRES_MAJOR, std::cmp::Reverse(*major)));
    versions.into_iter().map(|(_, folder)| folder.join("bin"))
}

/// The package with the highest version, of lines such as `postgresql-15 - The World's Most Advanced…`.
fn newest_package(offered: &str) -> Option<String> {
    let major = |line: &str| line.split_whitespace().next()?.strip_prefix("postgresql-")?.parse::<u32>().ok();
    offered.lines().filter_map(major).max().map(|major| format!("postgresql-{major}"))
}

fn path_folders() -> Vec<PathBuf> {
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

/// Whether there is such a package. The lists are fetched if they do not know it.
fn apt_has(package: &str) -> Result<bool, String> {
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

/// Installs a package without starting what it brings: its service is not ours, and ours is not a service.
fn apt_install(package: &str) -> Result<(), String> {
    eprintln!("xtask: installing {package}");
    let policy = Policy::forbid_starts()?;
    apt(&["install", "-q", "-y", "--no-install-recommends", package])?;
    drop(policy);
    if Path::new("/run/systemd/system").exists() {
        let service = if package.starts_with("postgresql") { "postgresql" } else { package };
        // Installed for tests, it has no business running after the next start of the machine either.
        output("systemctl", &["disable", "--now", service])?;
    }
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

pub(super) fn output(program: &str, arguments: &[&str]) -> Result<String, String> {
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
    fn the_version_that_we_ask_for_comes_first_then_the_newest() {
        let folders = ["/pg/9", "/pg/17", "/pg/15", "/pg/notes", "/pg/16"].map(PathBuf::from);
        let order: Vec<PathBuf> = by_preference(folders.to_vec()).collect();
        let expected = ["/pg/15/bin", "/pg/17/bin", "/pg/16/bin", "/pg/9/bin"].map(PathBuf::from);
        assert_eq!(order, expected);
    }

    #[test]
    fn the_newest_package_is_chosen_by_number_and_not_by_spelling() {
        let offered =
            "postgresql-9 - old\npostgresql-17 - new\npostgresql-client-18 - else\npostgresql-16 - x\n";
        assert_eq!(newest_package(offered), Some("postgresql-17".to_owned()));
        assert_eq!(newest_package(""), None);
    }

    #[test]
    fn a_package_without_a_candidate_is_not_there() {
        assert!(has_candidate("redis-server:\n  Installed: (none)\n  Candidate: 5:7.0.15-1\n"));
        assert!(!has_candidate("redis-server:\n  Installed: (none)\n  Candidate: (none)\n"));
        assert!(!has_candidate(""));
    }
}
