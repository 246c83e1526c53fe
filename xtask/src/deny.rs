//! `cargo xtask deny`: the licences of all packages that are compiled, and packages that are there twice.
//!
//! cargo-deny does the same and more, but takes minutes to compile on a build machine and wants the network. This asks
//! `cargo tree`, and reads the lists in `deny.toml` that cargo-deny reads too.

use std::collections::{BTreeMap, BTreeSet};

use crate::cargo_command;

pub(crate) const HELP: &str = "\
Usage: cargo xtask deny

Checks every package that the workspace is compiled from against deny.toml: that its licence is one of those that
are allowed, and that there is one version of it, unless the file says why there are more. The same check is a test,
and so a part of `cargo test`. Where cargo-deny is installed, `cargo deny check` looks for advisories as well.
";

pub(crate) fn run() -> Result<(), String> {
    let packages = packages()?;
    let findings = check(&packages, &Lists::read()?);
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => {
            println!("xtask deny: {} packages are as deny.toml has them", packages.len());
            Ok(())
        }
        count => Err(format!("packages are not as deny.toml has them. findings=`{count}`")),
    }
}

/// Name, version and licence.
pub(crate) type Package = (String, String, String);

/// All packages, for this machine.
fn packages() -> Result<BTreeSet<Package>, String> {
    let words = ["tree", "--workspace", "--locked", "--edges", "normal,build,dev", "--prefix", "none"];
    let ran = cargo_command(&words).args(["--format", "{p}|{l}"]).output();
    let ran = ran.map_err(|error| format!("cannot run `cargo tree`: {error}"))?;
    if !ran.status.success() {
        return Err(format!("`cargo tree` failed: {}", String::from_utf8_lossy(&ran.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&ran.stdout).lines().filter_map(package).collect())
}

/// A line such as `syn v2.0.119|MIT OR Apache-2.0 (*)`; ours have a path after the version.
pub(crate) fn package(line: &str) -> Option<Package> {
    let (package, licence) = line.trim_end_matches(" (*)").split_once('|')?;
    let mut words = package.split(' ');
    let (name, version) = (words.next()?, words.next()?);
    Some((name.to_owned(), version.trim_start_matches('v').to_owned(), licence.to_owned()))
}

/// What `deny.toml` says, as far as it is looked at here.
#[derive(Debug, Default)]
struct Lists {
    licences: Vec<String>,
    /// Packages of which there may be several versions.
    several: Vec<String>,
}

impl Lists {
    fn read() -> Result<Lists, String> {
        let path = crate::root().join("deny.toml");
        Ok(Lists::parse(&crate::clients::read(&path)?))
    }

    /// Reads the one shape that we write: an entry of a list on a line of its own.
    fn parse(text: &str) -> Lists {
        let mut lists = Lists::default();
        let mut list = "";
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
            if let Some((name, "[")) = line.split_once(" = ") {
                list = name;
            }
            let quoted = line.split('"').nth(1).map(str::to_owned);
            match list {
                "allow" if line.starts_with('"') => lists.licences.extend(quoted),
                "skip" if line.starts_with('{') => lists.several.extend(quoted),
                _ if line == "]" => list = "",
                _ => {}
            }
        }
        lists
    }
}

fn check(packages: &BTreeSet<Package>, lists: &Lists) -> Vec<String> {
    let mut findings = Vec::new();
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, version, licence) in packages {
        versions.entry(name).or_default().push(version);
        if !may_use(licence, &lists.licences) {
            findings.push(format!("{name} {version}: the licence is not allowed. licence=`{licence}`"));
        }
    }
    for (name, versions) in &versions {
        let has_leave = lists.several.iter().any(|several| several == name);
        if versions.len() > 1 && !has_leave {
            findings.push(format!("{name} is there more than once. versions=`{}`", versions.join(", ")));
        }
        if versions.len() == 1 && has_leave {
            findings.push(format!("{name} is there once, and deny.toml need not list it"));
        }
    }
    for listed in &lists.several {
        if !versions.contains_key(&**listed) {
            findings.push(format!("{listed} is not there, and deny.toml need not list it"));
        }
    }
    findings
}

/// Whether an expression of licences can be met with these. An exception only adds to what a licence allows.
fn may_use(expression: &str, allowed: &[String]) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = &words[..];
    either(&mut rest, allowed) == Some(true) && rest.is_empty()
}

fn either(words: &mut &[&str], allowed: &[String]) -> Option<bool> {
    let mut met = all(words, allowed)?;
    while let Some((&"OR", rest)) = words.split_first() {
        *words = rest;
        met |= all(words, allowed)?;
    }
    Some(met)
}

fn all(words: &mut &[&str], allowed: &[String]) -> Option<bool> {
    let mut met = one(words, allowed)?;
    while let Some((&"AND", rest)) = words.split_first() {
        *words = rest;
        met &= one(words, allowed)?;
    }
    Some(met)
}

/// `None` if it cannot be understood.
fn one(words: &mut &[&str], allowed: &[String]) -> Option<bool> {
    let (word, rest) = words.split_first()?;
    *words = rest;
    if *word == "(" {
        let met = either(words, allowed)?;
        *words = words.strip_prefix(&[")"])?;
        return Some(met);
    }
    if let Some((&"WITH", rest)) = words.split_first() {
        *words = rest.split_first()?.1;
    }
    Some(allowed.iter().any(|licence| licence == word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_packages_are_as_deny_toml_has_them() {
        let packages = packages().expect("the packages are known");
        assert!(packages.iter().any(|(name, _, _)| name == "forebay-core") && packages.len() > 100);
        let findings = check(&packages, &Lists::read().expect("deny.toml can be read"));
        assert!(findings.is_empty(), "\n{}\n", findings.join("\n"));
    }

    #[test]
    fn an_expression_of_licences_is_met_or_not() {
        let allowed = ["MIT".to_owned(), "Apache-2.0".to_owned(), "Unicode-3.0".to_owned()];
        for good in [
            "MIT",
            "GPL-3.0 OR MIT",
            "Apache-2.0 / MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception",
            "GPL-3.0 OR (MIT AND Apache-2.0)",
        ] {
            assert!(may_use(good, &allowed), "{good}");
        }
        for bad in
            ["", "GPL-3.0", "MIT AND GPL-3.0", "(MIT", "MIT Apache-2.0", "MIT OR", "(GPL-3.0 OR X) AND MIT"]
        {
            assert!(!may_use(bad, &allowed), "{bad}");
        }
    }

    #[test]
    fn a_licence_a_duplicate_and_an_entry_without_use_are_found() {
        let skip =
            ["b", "once", "gone"].map(|name| format!("    {{ crate = \"{name}\", reason = \"x\" }},\n"));
        let text = format!("[licenses]\nallow = [\n    \"MIT\",\n]\n[bans]\nskip = [\n{}]\n", skip.concat());
        let lists = Lists::parse(&text);
        assert_eq!((&lists.licences[..], lists.several.len()), (&["MIT".to_owned()][..], 3));
        let lines =
            ["a v1.0.0|MIT", "a v2.0.0|MIT (*)", "b v1.0.0|MIT", "b v2.0.0|GPL-3.0", "once v1.0.0 (/x)|MIT"];
        let packages = lines.iter().filter_map(|line| package(line)).collect();
        assert_eq!(
            check(&packages, &lists),
            [
                "b 2.0.0: the licence is not allowed. licence=`GPL-3.0`",
                "a is there more than once. versions=`1.0.0, 2.0.0`",
                "once is there once, and deny.toml need not list it",
                "gone is not there, and deny.toml need not list it",
            ]
        );
    }
}
