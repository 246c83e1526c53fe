//! The project's own rules, checked over the source tree.
//!
//! The compiler and clippy know the language; these rules know the project: who may read the clock, who
//! may open files, who may depend on whom, what a file may look like. A rule is a function from one
//! file to what breaks it in there, and looks at text rather than at a syntax tree: it is meant for
//! honest mistakes, and a newcomer can read all of it. Every rule has a test that plants a violation.

mod code;
mod english;
mod manifest;
mod text;

use std::fmt;
use std::path::Path;

/// A rule that is broken, and where.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) path: String,
    /// The first line is 1.
    pub(crate) line: usize,
    pub(crate) rule: &'static str,
    pub(crate) what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.path, self.line, self.rule, self.what)
    }
}

/// A text file of the project.
#[derive(Debug)]
pub(crate) struct SourceFile {
    /// From the root of the workspace, with `/` between folders.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl SourceFile {
    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    fn is_manifest(&self) -> bool {
        self.path == "Cargo.toml" || self.path.ends_with("/Cargo.toml")
    }

    /// Whether a generator wrote it, which says so in the first line.
    fn is_generated(&self) -> bool {
        self.text.lines().next().is_some_and(|line| line.starts_with("//") && line.contains("@generated"))
    }

    /// Every line with its number.
    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(index, line)| (index + 1, line))
    }

    fn finding(&self, line: usize, rule: &'static str, what: impl Into<String>) -> Finding {
        Finding { path: self.path.clone(), line, rule, what: what.into() }
    }
}

/// The project's text files, in order of their paths.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) files: Vec<SourceFile>,
}

/// The kinds of files that the rules speak of. Everything else is data.
const TEXT_ENDINGS: [&str; 16] = [
    ".rs", ".toml", ".md", ".proto", ".lock", ".yml", ".yaml", ".sh", "/run", ".py", ".js", ".java", ".json",
    ".xml", ".txt", ".ini",
];

/// Hidden folders that belong to the project; all others belong to tools.
const HIDDEN_FOLDERS: [&str; 3] = [".cargo", ".ci", ".github"];

impl Tree {
    pub(crate) fn read(root: &Path) -> Result<Tree, String> {
        let mut files = Vec::new();
        collect(root, "", &mut files)?;
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Tree { files })
    }
}

fn collect(folder: &Path, prefix: &str, files: &mut Vec<SourceFile>) -> Result<(), String> {
    let cannot = |error: std::io::Error| format!("cannot read {}: {error}", folder.display());
    for entry in std::fs::read_dir(folder).map_err(cannot)? {
        let entry = entry.map_err(cannot)?;
        let kind = entry.file_type().map_err(cannot)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{prefix}{name}");
        if kind.is_dir() {
            let foreign = ["target", "node_modules"].contains(&name.as_str())
                || name.starts_with('.') && !HIDDEN_FOLDERS.contains(&name.as_str());
            if !foreign {
                collect(&entry.path(), &format!("{path}/"), files)?;
            }
        } else if kind.is_file() && TEXT_ENDINGS.iter().any(|ending| path.ends_with(ending)) {
            let text = std::fs::read_to_string(entry.path())
                .map_err(|error| format!("cannot read {path}: {error}"))?;
            files.push(SourceFile { path, text });
        }
    }
    Ok(())
}

/// Applies every rule to every file.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let rules: [fn(&SourceFile, &mut Vec<Finding>); 13] = [
        code::clock,
        code::files,
        code::facade,
        code::file_length,
        code::line_length,
        text::unfinished,
        text::machine_paths,
        text::registries,
        manifest::core_is_alone,
        manifest::direction,
        manifest::lints,
        manifest::shared_versions,
        manifest::planted_faults,
    ];
    let mut findings = Vec::new();
    for file in &tree.files {
        for rule in rules {
            rule(file, &mut findings);
        }
    }
    english::check(tree, &mut findings);
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> Tree {
        Tree::read(&crate::root()).expect("the tree can be read")
    }

    #[test]
    fn the_tree_follows_its_own_rules() {
        let findings = check(&here());
        let list: Vec<String> = findings.iter().map(ToString::to_string).collect();
        assert!(findings.is_empty(), "\n{}\n", list.join("\n"));
    }

    /// A tree that was not read would follow every rule.
    #[test]
    fn the_tree_that_is_checked_is_this_one() {
        let tree = here();
        for path in ["Cargo.toml", "Cargo.lock", "README.md", ".ci/run", "crates/core/src/types.rs", file!()]
        {
            assert!(tree.files.iter().any(|file| file.path == path), "{path} is not among the files");
        }
        assert!(!tree.files.iter().any(|file| file.path.starts_with("target/")));
    }

    #[test]
    fn every_rule_is_applied() {
        let planted = |path: &str, text: &str| SourceFile { path: path.to_owned(), text: text.to_owned() };
        let tree = Tree {
            files: vec![
                planted("crates/doors/src/door.rs", "use forebay_broker::driver::Driver;\n"),
                planted(
                    "crates/core/src/shard.rs",
                    &format!(
                        "let t = Instant::now();\nlet f = File::open(x);\n// {}: {}x/y, {}\n// {}\n{}",
                        concat!("TO", "DO"),
                        concat!("/wo", "rk/"),
                        concat!("index.", "crates.io"),
                        "-".repeat(200),
                        "x();\n".repeat(1000),
                    ),
                ),
                planted("README.md", concat!("some", "body\n")),
                planted(
                    "crates/core/Cargo.toml",
                    "[package]\nname = \"forebay-core\"\n[dependencies]\n\
                     forebay-storage = { path = \"../storage\", features = [\"planted-faults\"] }\n",
                ),
            ],
        };
        let mut broken: Vec<&str> = check(&tree).iter().map(|finding| finding.rule).collect();
        broken.sort_unstable();
        broken.dedup();
        assert_eq!(
            broken,
            [
                "clock",
                "core-is-alone",
                "direction",
                "english",
                "facade",
                "file-length",
                "files",
                "line-length",
                "lints",
                "machine-paths",
                "planted-faults",
                "registries",
                "shared-versions",
                "unfinished",
            ]
        );
    }
}
