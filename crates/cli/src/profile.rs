//! The profile of a person: the server that commands talk to, and how. `forebay login` writes it.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::OnceLock;

use anyhow::Context as _;

use crate::connect::DEFAULT_ADDRESS;
use crate::safe::printable;

/// A profile.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Profile {
    pub(crate) server: Option<String>,
    pub(crate) token: Option<String>,
    pub(crate) ca: Option<PathBuf>,
}

/// Where the profile is: FOREBAY_PROFILE, or `forebay/profile.toml` in the folder for configuration.
pub(crate) fn path() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("FOREBAY_PROFILE").filter(|path| !path.is_empty()) {
        return Some(path.into());
    }
    let folder = |name: &str| std::env::var_os(name).filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let folder = folder("XDG_CONFIG_HOME").or_else(|| Some(folder("HOME")?.join(".config")))?;
    Some(folder.join("forebay").join("profile.toml"))
}

/// The profile, read once. A profile that is absent or cannot be read says nothing.
pub(crate) fn get() -> &'static Profile {
    static PROFILE: OnceLock<Profile> = OnceLock::new();
    PROFILE.get_or_init(|| {
        let text = path().and_then(|path| std::fs::read_to_string(path).ok());
        text.map(|text| read(&text)).unwrap_or_default()
    })
}

/// The server that commands talk to unless they are told otherwise.
pub(crate) fn server() -> String {
    get().server.clone().unwrap_or_else(|| DEFAULT_ADDRESS.to_owned())
}

fn read(text: &str) -> Profile {
    // One `name = "value"` a line, as `write` writes them. A text in JSON is a text in TOML.
    let pairs: Vec<(&str, String)> = text
        .lines()
        .filter_map(|line| line.split_once('='))
        .filter_map(|(name, value)| Some((name.trim(), serde_json::from_str(value.trim()).ok()?)))
        .collect();
    let value = |name: &str| pairs.iter().find(|(other, _)| *other == name).map(|(_, value)| value.clone());
    Profile { server: value("server"), token: value("token"), ca: value("ca").map(PathBuf::from) }
}

fn write(profile: &Profile) -> String {
    let ca = profile.ca.as_ref().map(|path| path.display().to_string());
    let rows = [("server", &profile.server), ("token", &profile.token), ("ca", &ca)];
    let row = |(name, value): (&str, &Option<String>)| {
        value.as_ref().map(|value| format!("{name} = {}\n", serde_json::Value::from(value.as_str())))
    };
    rows.into_iter().filter_map(row).collect()
}

/// Writes the profile, for its owner alone.
pub(crate) fn save(profile: &Profile) -> anyhow::Result<PathBuf> {
    let path = path().context("there is no folder for the profile: HOME is not set")?;
    let shown = printable(&path.display().to_string());
    let cannot = || format!("cannot write the profile {shown}");
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(cannot)?;
    }
    let new = path.with_extension("new");
    let _ = std::fs::remove_file(&new);
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)
        .with_context(cannot)?;
    file.write_all(write(profile).as_bytes()).with_context(cannot)?;
    std::fs::rename(&new, &path).with_context(cannot)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_read_as_it_was_written() {
        let profile = Profile {
            server: Some("https://queue.example.com:7070".to_owned()),
            token: Some("fby_\"quoted\"".to_owned()),
            ca: Some("/etc/ca.pem".into()),
        };
        assert!(read(&write(&profile)) == profile);
        assert!(read("") == Profile::default() && read("no = toml = file") == Profile::default());
    }
}
