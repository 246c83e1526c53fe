//! `cargo xtask features`: each crate with none of its features, and with each of them alone.
//!
//! Whatever is built together shares its features, so a build of the workspace says nothing about a crate that is
//! built with fewer. The features are read from the manifests, so a new one is checked without being listed here.

use std::path::Path;

use crate::{cargo, clients};

pub(crate) const HELP: &str = "\
Usage: cargo xtask features

Runs clippy, with warnings as errors, on every crate that has features: with none of them, and with each of them
alone. A default feature counts as one of them; the switches of `planted-faults` are the simulator's.
";

pub(crate) fn run() -> Result<(), String> {
    let mut count = 0;
    for (package, features) in crates()? {
        let alone = features.iter().map(|feature| Some(feature.as_str()));
        for feature in std::iter::once(None).chain(alone) {
            let mut line = vec!["clippy", "--quiet", "--package", &package, "--no-default-features"];
            line.extend(feature.iter().flat_map(|feature| ["--features", feature]));
            line.extend(["--", "-D", "warnings"]);
            cargo(&line)?;
            count += 1;
        }
    }
    println!("xtask features: {count} builds with fewer features than all pass");
    Ok(())
}

/// The crates that have features, and which.
fn crates() -> Result<Vec<(String, Vec<String>)>, String> {
    let folder = crate::root().join("crates");
    let cannot = |error: std::io::Error| format!("cannot read {}: {error}", folder.display());
    let mut manifests = Vec::new();
    for entry in std::fs::read_dir(&folder).map_err(cannot)? {
        manifests.push(entry.map_err(cannot)?.path().join("Cargo.toml"));
    }
    manifests.sort();
    let read = |path: &Path| clients::read(path).map(|text| features(&text));
    let crates = manifests.iter().map(|path| read(path)).collect::<Result<Vec<_>, _>>()?;
    Ok(crates.into_iter().filter(|(_, features)| !features.is_empty()).collect())
}

/// The name of a crate, and its features but for `default` and the planted faults.
fn features(manifest: &str) -> (String, Vec<String>) {
    let (mut name, mut features) = (String::new(), Vec::new());
    let mut heading = "";
    for line in manifest.lines() {
        if line.starts_with('[') {
            heading = line;
        }
        let Some((key, value)) = line.split_once(" = ") else { continue };
        match heading {
            "[package]" if key == "name" => name = value.trim_matches('"').to_owned(),
            "[features]" if !["default", "planted-faults"].contains(&key) && !key.starts_with('#') => {
                features.push(key.to_owned());
            }
            _ => {}
        }
    }
    (name, features)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_read_from_a_manifest() {
        let text = "[package]\nname = \"a\"\nversion = \"1\"\n\n[features]\ndefault = [\"x\"]\n# a = b\nx = [\n    \
                    \"dep:b\",\n]\ny = []\nplanted-faults = []\n\n[dependencies]\nb = { optional = true }\n";
        assert_eq!(features(text), ("a".to_owned(), vec!["x".to_owned(), "y".to_owned()]));
    }

    #[test]
    fn every_door_is_a_feature_and_the_simulator_has_none() {
        let crates = crates().expect("the manifests can be read");
        let of =
            |name: &str| crates.iter().find(|(package, _)| package == name).map(|(_, features)| features);
        assert_eq!(
            of("forebay-doors").map(|doors| doors.join(" ")),
            Some("dashboard kurrent native sqs".to_owned())
        );
        assert!(of("forebay-sim").is_none() && of("forebay-core").is_none());
    }
}
