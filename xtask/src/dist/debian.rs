//! The Debian package. It is written here, so that a machine without `dpkg-deb` can make it.

use std::path::{Path, PathBuf};

use super::contents::{copy, copy_folder, filled, pack, write};
use super::{cannot, make_folder};
use crate::clients::read;
use crate::install::output;

/// Which file of the archive goes where.
const PLACES: [(&str, &str, u32); 6] = [
    ("forebay", "usr/bin/forebay", 0o755),
    ("forebay.toml", "etc/forebay/forebay.toml", 0o644),
    ("LICENSE", "usr/share/doc/forebay/copyright", 0o644),
    ("completions/forebay.bash", "usr/share/bash-completion/completions/forebay", 0o644),
    ("completions/_forebay", "usr/share/zsh/vendor-completions/_forebay", 0o644),
    ("completions/forebay.fish", "usr/share/fish/vendor_completions.d/forebay.fish", 0o644),
];

pub(super) fn package_name(version: &str, architecture: &str) -> String {
    format!("forebay_{version}_{architecture}.deb")
}

pub(super) fn build(dist: &Path, folder: &Path, version: &str, architecture: &str) -> Result<(), String> {
    let work = dist.join(format!("debian-{architecture}"));
    let (data, control) = (work.join("data"), work.join("control"));
    for (from, to, mode) in PLACES {
        copy(&folder.join(from), &data.join(to), mode)?;
    }
    copy_folder(&folder.join("man"), &data.join("usr/share/man/man1"))?;
    let units = data.join("lib/systemd/system");
    make_folder(&units)?;
    write(&units.join("forebay.service"), &unit(&read(&folder.join("forebay.service"))?)?)?;

    let size = output("du", &["--summarize", "--block-size=1024", &data.to_string_lossy()])?;
    let size = size.split_whitespace().next().unwrap_or("0").to_owned();
    let scripts = crate::root().join("packaging").join("debian");
    make_folder(&control)?;
    let places = [("VERSION", version), ("ARCHITECTURE", architecture), ("SIZE", &size)];
    write(&control.join("control"), &filled(&read(&scripts.join("control"))?, &places))?;
    write(&control.join("conffiles"), "/etc/forebay/forebay.toml\n")?;
    for script in ["postinst", "prerm", "postrm"] {
        copy(&scripts.join(script), &control.join(script), 0o755)?;
    }
    let parts = ["control", "data"].map(|part| work.join(format!("{part}.tar.gz")));
    pack(&control, &["."], &parts[0])?;
    pack(&data, &["."], &parts[1])?;
    let file = dist.join(package_name(version, architecture));
    let [control, data] = parts.map(|part: PathBuf| read_bytes(&part));
    let members =
        [("debian-binary", b"2.0\n".to_vec()), ("control.tar.gz", control?), ("data.tar.gz", data?)];
    std::fs::write(&file, ar(&members)).map_err(|error| cannot("write", &file, &error))?;
    std::fs::remove_dir_all(&work).map_err(|error| cannot("remove", &work, &error))
}

/// The unit for a program that belongs to the system: without the notes for installing it by hand.
fn unit(by_hand: &str) -> Result<String, String> {
    let start = by_hand.find("[Unit]").ok_or("packaging/forebay.service has no section Unit")?;
    let unit = by_hand[start..].replace("/usr/local/bin/forebay", "/usr/bin/forebay");
    Ok(unit.replace("Documentation=man:systemd.exec(5)", "Documentation=man:forebay(1)"))
}

/// The members as an archive of the form that `ar` writes: for each a header of 60 bytes, then the contents, then a
/// byte if they are an odd number.
fn ar(members: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut archive = b"!<arch>\n".to_vec();
    for (name, contents) in members {
        let header = format!("{name:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`\n", 0, 0, 0, "100644", contents.len());
        archive.extend_from_slice(header.as_bytes());
        archive.extend_from_slice(contents);
        if contents.len() % 2 == 1 {
            archive.push(b'\n');
        }
    }
    archive
}

fn read_bytes(file: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(file).map_err(|error| cannot("read", file, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packaging(name: &str) -> String {
        read(&crate::root().join("packaging").join(name)).expect("a file")
    }

    #[test]
    fn the_control_file_has_no_place_that_is_not_filled() {
        let places = [("VERSION", "1.2.3"), ("ARCHITECTURE", "amd64"), ("SIZE", "9")];
        let filled = filled(&packaging("debian/control"), &places);
        let left = filled.lines().find(|line| line.contains('@') && !line.starts_with("Maintainer: "));
        assert_eq!(left, None);
        assert!(filled.contains("Version: 1.2.3\n") && filled.contains("Architecture: amd64\n"));
    }

    #[test]
    fn the_unit_of_the_package_starts_the_program_of_the_package() {
        let unit = unit(&packaging("forebay.service")).expect("it has its sections");
        assert!(unit.starts_with("[Unit]\n"));
        assert!(!unit.contains("/usr/local"), "{unit}");
        let started: Vec<&str> = unit.lines().filter(|line| line.starts_with("ExecStart")).collect();
        assert_eq!(started.len(), 2);
        assert!(started.iter().all(|line| line.contains("=/usr/bin/forebay ")), "{started:?}");
    }

    #[test]
    fn an_archive_has_headers_of_sixty_bytes_at_even_places() {
        let archive = ar(&[("one", b"abc".to_vec()), ("two", b"".to_vec())]);
        assert_eq!(archive.len(), 8 + 60 + 4 + 60);
        assert_eq!(&archive[8..12], b"one ");
        assert_eq!(&archive[56..68], b"3         `\n");
        assert_eq!(&archive[72..76], b"two ");
    }
}
