//! Rules about crates: who may depend on whom, and what all of them share.
//!
//! The table below is the map of ARCHITECTURE.md as data. A new crate, or a new arrow between crates, is
//! a change to both.

use super::{Finding, SourceFile};

/// Each crate of the workspace, and the crates of the workspace that it may use.
const MAY_USE: [(&str, &[&str]); 17] = [
    ("forebay-model", &[]),
    ("forebay-core", &["forebay-model"]),
    ("forebay-storage", &["forebay-core"]),
    ("forebay-broker", &["forebay-core", "forebay-storage"]),
    ("forebay-wire", &["forebay-model"]),
    // Doors decide nothing and know no engine: they see the broker.
    ("forebay-doors", &["forebay-model", "forebay-core", "forebay-broker", "forebay-wire"]),
    // It speaks to its server as any client does, so it needs no SDK, and the SDK's tests can use it.
    ("forebay-test", &["forebay-storage", "forebay-broker", "forebay-wire", "forebay-doors"]),
    // A macro, which the SDK exports.
    ("forebay-derive", &[]),
    ("forebay-client", &["forebay-derive", "forebay-model", "forebay-wire", "forebay-test"]),
    (
        "forebay",
        &[
            "forebay-model",
            "forebay-core",
            "forebay-storage",
            "forebay-broker",
            "forebay-wire",
            "forebay-doors",
            "forebay-client",
        ],
    ),
    ("forebay-sim", &["forebay-core", "forebay-storage", "forebay-broker"]),
    (
        "forebay-bench",
        &[
            "forebay-core",
            "forebay-storage",
            "forebay-broker",
            "forebay-wire",
            "forebay-doors",
            "forebay-client",
        ],
    ),
    // It sees the server as its clients do.
    ("forebay-torture", &["forebay-wire", "forebay-client", "forebay-sim"]),
    // They see what a user sees.
    ("forebay-examples", &["forebay-client", "forebay-test"]),
    ("xtask", &[]),
    // They see the server as clients of SQS and KurrentDB do, and are no members of the workspace.
    ("forebay-compat-sqs", &[]),
    ("forebay-compat-kurrent", &[]),
];

/// What the tests of a crate may use beside that: a broker needs an engine.
const TESTS_MAY_USE: [(&str, &str); 1] = [("forebay-doors", "forebay-storage")];

/// A server for tests. Only `dev-dependencies` may name it.
const FOR_TESTS: &str = "forebay-test";

/// The core may use these crates and no others. What it cannot name, it cannot do.
const CORE_MAY_USE: [&str; 2] = ["forebay-model", "thiserror"];
/// And the model, which the core sees, only this one, for the wire's JSON.
const MODEL_MAY_USE: [&str; 1] = ["serde"];

pub(super) fn core_is_alone(file: &SourceFile, findings: &mut Vec<Finding>) {
    let Some(manifest) = Manifest::of(file) else { return };
    let allowed: &[&str] = match manifest.name {
        "forebay-core" => &CORE_MAY_USE,
        "forebay-model" => &MODEL_MAY_USE,
        _ => return,
    };
    for dependency in &manifest.dependencies {
        if dependency.section != Section::Dev && !allowed.contains(&dependency.name) {
            let (name, allowed) = (manifest.name, allowed.join("`, `"));
            let what = format!("`{name}` depends on `{}`, where only `{allowed}` may be", dependency.name);
            findings.push(file.finding(dependency.line, "core-is-alone", what));
        }
    }
}

/// Dependencies point down the page and never up, those of tests included.
pub(super) fn direction(file: &SourceFile, findings: &mut Vec<Finding>) {
    let Some(manifest) = Manifest::of(file) else { return };
    let Some((_, allowed)) = MAY_USE.iter().find(|(name, _)| *name == manifest.name) else {
        let what =
            format!("`{}` is not on the map: add it to ARCHITECTURE.md and to the tidy rules", manifest.name);
        findings.push(file.finding(1, "direction", what));
        return;
    };
    for dependency in &manifest.dependencies {
        let ours = MAY_USE.iter().any(|(name, _)| *name == dependency.name);
        // Tests of a crate may ask for its own features.
        let itself = dependency.section == Section::Dev && dependency.name == manifest.name;
        let in_tests =
            dependency.section == Section::Dev && TESTS_MAY_USE.contains(&(manifest.name, dependency.name));
        if ours && !itself && !in_tests && !allowed.contains(&dependency.name) {
            let what = format!("`{}` may not use `{}`", manifest.name, dependency.name);
            findings.push(file.finding(dependency.line, "direction", what));
        }
        if dependency.name == FOR_TESTS && dependency.section != Section::Dev {
            let what = format!("`{FOR_TESTS}` is for tests: name it in `dev-dependencies`");
            findings.push(file.finding(dependency.line, "direction", what));
        }
    }
}

/// One set of lints for everyone in the workspace.
pub(super) fn lints(file: &SourceFile, findings: &mut Vec<Finding>) {
    if Manifest::of(file).is_some_and(|manifest| !manifest.is_apart && !manifest.inherits_lints) {
        findings.push(file.finding(1, "lints", "does not inherit the workspace's lints"));
    }
}

/// Versions and places of packages stand in the workspace's manifest and nowhere else.
pub(super) fn shared_versions(file: &SourceFile, findings: &mut Vec<Finding>) {
    let Some(manifest) = Manifest::of(file).filter(|manifest| !manifest.is_apart) else { return };
    for dependency in &manifest.dependencies {
        // A crate that names itself, for features in its tests, does so by its path.
        if !dependency.is_inherited && dependency.name != manifest.name {
            let what = format!("`{}` does not come from the workspace's manifest", dependency.name);
            findings.push(file.finding(dependency.line, "shared-versions", what));
        }
    }
}

/// The switches that break promises are for the simulator, and never for the product.
///
/// Cargo joins the features of all crates that it builds together, so a build of the simulator and the
/// product in one go would give the product the switches too. Only the product is built by default.
pub(super) fn planted_faults(file: &SourceFile, findings: &mut Vec<Finding>) {
    if file.path == "Cargo.toml" && file.text.contains("\"crates/cli\"") {
        let alone = file.text.lines().any(|line| line == "default-members = [\"crates/cli\"]");
        if !alone {
            let what =
                "`default-members` must be `crates/cli` alone, or the product is built with planted faults";
            findings.push(file.finding(1, "planted-faults", what));
        }
    }
    let Some(manifest) = Manifest::of(file).filter(|manifest| manifest.name != "forebay-sim") else { return };
    for dependency in &manifest.dependencies {
        if dependency.section != Section::Dev && dependency.plants_faults {
            let what = format!("`{}` is asked for with its planted faults", dependency.name);
            findings.push(file.finding(dependency.line, "planted-faults", what));
        }
    }
    for (line, text) in file.lines() {
        if text.starts_with("default = ") && text.contains("planted-faults") {
            findings.push(file.finding(line, "planted-faults", "planted faults are on unless switched off"));
        }
    }
}

/// What the rules want to know of a `Cargo.toml`, read line by line in the one shape that we write.
struct Manifest<'a> {
    name: &'a str,
    dependencies: Vec<Dependency<'a>>,
    inherits_lints: bool,
    /// Whether the crate is a workspace of its own, which can inherit nothing.
    is_apart: bool,
}

struct Dependency<'a> {
    name: &'a str,
    section: Section,
    line: usize,
    is_inherited: bool,
    plants_faults: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Section {
    Normal,
    Dev,
    Build,
}

impl<'a> Manifest<'a> {
    /// `None` for anything that is not the manifest of a crate.
    fn of(file: &'a SourceFile) -> Option<Manifest<'a>> {
        if !file.is_manifest() {
            return None;
        }
        let mut manifest =
            Manifest { name: "", dependencies: Vec::new(), inherits_lints: false, is_apart: false };
        let mut heading = "";
        for (line, text) in file.lines() {
            if text.starts_with('[') {
                heading = text.trim().trim_matches(['[', ']']);
                manifest.is_apart |= heading == "workspace";
                continue;
            }
            let Some((key, value)) = text.split_once('=') else { continue };
            let (key, value) = (key.trim(), value.trim());
            match heading {
                "package" if key == "name" => manifest.name = value.trim_matches('"'),
                "lints" if key == "workspace" => manifest.inherits_lints = value == "true",
                _ => {
                    if let Some(section) = Section::of(heading).filter(|_| !key.starts_with('#')) {
                        manifest.dependencies.push(Dependency::read(section, line, key, value));
                    }
                }
            }
        }
        (!manifest.name.is_empty()).then_some(manifest)
    }
}

impl Section {
    /// Also sections for one platform, as in `target.'cfg(unix)'.dependencies`.
    fn of(heading: &str) -> Option<Section> {
        match heading.rsplit('.').next()? {
            _ if heading.starts_with("workspace.") => None,
            "dependencies" => Some(Section::Normal),
            "dev-dependencies" => Some(Section::Dev),
            "build-dependencies" => Some(Section::Build),
            _ => None,
        }
    }
}

impl<'a> Dependency<'a> {
    fn read(section: Section, line: usize, key: &'a str, value: &str) -> Dependency<'a> {
        let (name, field) = key.split_once('.').unwrap_or((key, ""));
        let is_inherited =
            field == "workspace" && value == "true" || value.replace(' ', "").contains("workspace=true");
        Dependency { name, section, line, is_inherited, plants_faults: value.contains("planted-faults") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Rule = fn(&SourceFile, &mut Vec<Finding>);

    /// The lines that break a rule.
    fn broken(rule: Rule, text: &str) -> Vec<usize> {
        broken_in("crates/some/Cargo.toml", rule, text)
    }

    fn broken_in(path: &str, rule: Rule, text: &str) -> Vec<usize> {
        let mut findings = Vec::new();
        rule(&SourceFile { path: path.to_owned(), text: text.to_owned() }, &mut findings);
        findings.iter().map(|finding| finding.line).collect()
    }

    const CORE: &str = "[package]\nname = \"forebay-core\"\n";
    const BROKER: &str = "[package]\nname = \"forebay-broker\"\n";

    #[test]
    fn the_core_uses_one_crate() {
        let good = format!(
            "{CORE}[dependencies]\nthiserror.workspace = true\n[dev-dependencies]\nproptest = \"1\"\n"
        );
        assert_eq!(broken(core_is_alone, &good), [0; 0]);
        let bad = format!("{CORE}[dependencies]\nthiserror.workspace = true\nserde = \"1\"\n");
        assert_eq!(broken(core_is_alone, &bad), [5]);
        let bad = format!("{CORE}[target.'cfg(unix)'.dependencies]\nlibc = \"1\"\n");
        assert_eq!(broken(core_is_alone, &bad), [4]);
        let model = "[package]\nname = \"forebay-model\"\n[dependencies]\nserde.workspace = true\n";
        assert_eq!(broken(core_is_alone, model), [0; 0]);
        assert_eq!(broken(core_is_alone, &format!("{model}prost = \"1\"\n")), [5]);
    }

    #[test]
    fn dependencies_never_point_up() {
        let good = format!("{BROKER}[dependencies]\nforebay-core.workspace = true\ntokio.workspace = true\n");
        assert_eq!(broken(direction, &good), [0; 0]);
        let bad = format!("{BROKER}[dependencies]\nforebay-doors.workspace = true\n");
        assert_eq!(broken(direction, &bad), [4]);
        let bad = format!("{CORE}[dev-dependencies]\nforebay-sim = {{ workspace = true }}\n");
        assert_eq!(broken(direction, &bad), [4]);
    }

    #[test]
    fn the_server_for_tests_is_for_tests() {
        let client = "[package]\nname = \"forebay-client\"\n";
        let good = format!("{client}[dev-dependencies]\nforebay-test.workspace = true\n");
        assert_eq!(broken(direction, &good), [0; 0]);
        let bad = format!("{client}[dependencies]\nforebay-test.workspace = true\n");
        assert_eq!(broken(direction, &bad), [4]);
    }

    #[test]
    fn a_crate_that_is_not_on_the_map_is_found() {
        assert_eq!(broken(direction, "[package]\nname = \"forebay-extra\"\n"), [1]);
    }

    /// Which also means that there is no way round in a circle.
    #[test]
    fn the_map_names_only_crates_that_come_before() {
        for (index, (name, uses)) in MAY_USE.iter().enumerate() {
            for used in *uses {
                let before = MAY_USE[..index].iter().any(|(other, _)| other == used);
                assert!(before, "{name} uses {used}, which does not come before it");
            }
        }
    }

    #[test]
    fn every_crate_has_the_same_lints() {
        assert_eq!(broken(lints, &format!("{CORE}[lints]\nworkspace = true\n")), [0; 0]);
        assert_eq!(broken(lints, CORE), [1]);
        assert_eq!(broken(lints, &format!("{CORE}[lints]\nworkspace = false\n")), [1]);
        assert_eq!(broken(lints, "[workspace]\nmembers = []\n"), [0; 0]);
    }

    #[test]
    fn versions_stand_in_one_place() {
        let good = "tokio = { workspace = true, features = [\"rt\"] }\nbytes.workspace = true\n";
        assert_eq!(broken(shared_versions, &format!("{BROKER}[dependencies]\n{good}")), [0; 0]);
        let bad = "tokio = \"1\"\nforebay-core = { path = \"../core\" }\nbytes.version = \"1\"\n";
        assert_eq!(broken(shared_versions, &format!("{BROKER}[dependencies]\n{bad}")), [4, 5, 6]);
    }

    #[test]
    fn a_workspace_of_its_own_inherits_nothing_and_uses_nothing_of_ours() {
        let apart = "[workspace]\n[package]\nname = \"forebay-compat-sqs\"\n[dev-dependencies]\n";
        let good = format!("{apart}aws-sdk-sqs = \"1\"\n");
        for rule in [direction, lints, shared_versions] {
            assert_eq!(broken(rule, &good), [0; 0]);
        }
        let bad = format!("{apart}forebay-client = {{ path = \"../../../crates/client\" }}\n");
        assert_eq!(broken(direction, &bad), [5]);
    }

    #[test]
    fn only_the_simulator_asks_for_planted_faults() {
        let asks = "[dependencies]\nforebay-core = { workspace = true, features = [\"planted-faults\"] }\n";
        assert_eq!(broken(planted_faults, &format!("{BROKER}{asks}")), [4]);
        assert_eq!(broken(planted_faults, &format!("[package]\nname = \"forebay-sim\"\n{asks}")), [0; 0]);
        let forwards = "[features]\nplanted-faults = [\"forebay-core/planted-faults\"]\n";
        assert_eq!(broken(planted_faults, &format!("{BROKER}{forwards}")), [0; 0]);
        let always = "[features]\ndefault = [\"planted-faults\"]\n";
        assert_eq!(broken(planted_faults, &format!("{BROKER}{always}")), [4]);
    }

    #[test]
    fn only_the_product_is_built_by_default() {
        let members = "[workspace]\nmembers = [\"crates/cli\", \"crates/sim\"]\n";
        assert_eq!(broken_in("Cargo.toml", planted_faults, members), [1]);
        let alone = format!("{members}default-members = [\"crates/cli\"]\n");
        assert_eq!(broken_in("Cargo.toml", planted_faults, &alone), [0; 0]);
        let more = format!("{members}default-members = [\"crates/cli\", \"crates/sim\"]\n");
        assert_eq!(broken_in("Cargo.toml", planted_faults, &more), [1]);
    }
}
