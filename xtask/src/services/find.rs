//! Where the servers are on this machine, and how to get them if they are not.

use std::path::{Path, PathBuf};

use crate::install::{Missing, apt_has, apt_install, had, output, path_folders, program_in};

/// The version that we ask for by name, where there is a choice.
const POSTGRES_MAJOR: u32 = 15;
/// Where Debian and its kin put the programs of PostgreSQL, a folder for each version.
const POSTGRES_VERSIONS: &str = "/usr/lib/postgresql";
/// Where they put those of RabbitMQ.
const RABBITMQ_PROGRAMS: &str = "/usr/lib/rabbitmq/bin";

/// The folder with PostgreSQL's programs.
pub(crate) fn postgres() -> Result<PathBuf, Missing> {
    had("PostgreSQL", installed_postgres, || {
        let wanted = format!("postgresql-{POSTGRES_MAJOR}");
        if apt_has(&wanted)? {
            return install(&wanted, "postgresql");
        }
        let offered = output("apt-cache", &["search", "--names-only", "^postgresql-[0-9]+$"])?;
        let package = newest_package(&offered).ok_or("no package of it is known to apt-get")?;
        eprintln!("xtask: there is no {wanted} here; taking {package} in its place");
        install(&package, "postgresql")
    })
}

/// Redis's server program.
pub(crate) fn redis() -> Result<PathBuf, Missing> {
    let installed = || program_in("redis-server", path_folders().iter().map(PathBuf::as_path));
    had("Redis", installed, || {
        let package = "redis-server";
        if !apt_has(package)? {
            return Err("no package of it is known to apt-get".to_owned());
        }
        install(package, package)
    })
}

/// RabbitMQ's server program: not the one on the path, where Debian puts a script that insists on a user and on
/// folders of its own.
pub(crate) fn rabbitmq() -> Result<PathBuf, Missing> {
    let installed = || {
        let folders = [PathBuf::from(RABBITMQ_PROGRAMS)].into_iter().chain(path_folders());
        program_in("rabbitmq-server", folders.collect::<Vec<_>>().iter().map(PathBuf::as_path))
    };
    had("RabbitMQ", installed, || {
        let package = "rabbitmq-server";
        if !apt_has(package)? {
            return Err("no package of it is known to apt-get".to_owned());
        }
        install(package, package)
    })
}

/// Installs a package whose service is not ours: ours is not a service.
fn install(package: &str, service: &str) -> Result<(), String> {
    apt_install(&[package])?;
    if Path::new("/run/systemd/system").exists() {
        // Installed for tests, it has no business running after the next start of the machine either.
        output("systemctl", &["disable", "--now", service])?;
    }
    Ok(())
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
}
