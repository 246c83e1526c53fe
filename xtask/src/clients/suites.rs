//! The suites: what each needs before it can run, how it is run, and what it says about itself.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::cache::Cache;
use super::tools::{self, Language, Tools};
use super::{Places, quietly, read};

/// In the order in which they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Suite {
    Python,
    Celery,
    Js,
    Java,
    Rust,
    /// Our own package for Python.
    Package,
    /// Our own package for Node.js.
    Node,
    /// Metrics, alerts and the Grafana dashboard, against Prometheus.
    Metrics,
    /// The HTTP API against its OpenAPI document.
    Document,
    /// Programs of the guide in languages that have no package of ours.
    Guides,
    /// The official client of KurrentDB for Python.
    Kurrent,
    /// The same for Node.js.
    KurrentNode,
    /// The same for Rust.
    KurrentRust,
    /// The same for Java.
    KurrentJava,
}

/// A suite with all that it needs.
pub(super) struct Prepared {
    pub(super) suite: Suite,
    program: PathBuf,
    arguments: Vec<OsString>,
    folder: PathBuf,
    variables: Vec<(&'static str, OsString)>,
}

impl Prepared {
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).current_dir(&self.folder).stdin(std::process::Stdio::null());
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        crate::leave_out_package(&mut command);
        command
    }
}

impl Suite {
    pub(super) const ALL: [Suite; 14] = [
        Suite::Python,
        Suite::Celery,
        Suite::Js,
        Suite::Java,
        Suite::Rust,
        Suite::Package,
        Suite::Node,
        Suite::Metrics,
        Suite::Document,
        Suite::Guides,
        Suite::Kurrent,
        Suite::KurrentNode,
        Suite::KurrentRust,
        Suite::KurrentJava,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Suite::Python => "python",
            Suite::Celery => "celery",
            Suite::Js => "js",
            Suite::Java => "java",
            Suite::Rust => "rust",
            Suite::Package => "package",
            Suite::Node => "node",
            Suite::Metrics => "metrics",
            Suite::Document => "document",
            Suite::Guides => "guides",
            Suite::Kurrent => "kurrent",
            Suite::KurrentNode => "kurrent-node",
            Suite::KurrentRust => "kurrent-rust",
            Suite::KurrentJava => "kurrent-java",
        }
    }

    pub(super) fn named(name: &str) -> Option<Suite> {
        Suite::ALL.into_iter().find(|suite| suite.name() == name)
    }

    pub(super) fn language(self) -> Language {
        match self {
            Suite::Python | Suite::Celery | Suite::Package | Suite::Document | Suite::Kurrent => {
                Language::Python
            }
            Suite::Js | Suite::Node | Suite::KurrentNode => Language::Js,
            Suite::Java | Suite::KurrentJava => Language::Java,
            Suite::Rust | Suite::KurrentRust => Language::Rust,
            Suite::Metrics => Language::Prometheus,
            Suite::Guides => Language::Go,
        }
    }

    pub(super) fn prepare(self, tools: &Tools, cache: &Cache, places: &Places) -> Result<Prepared, String> {
        match self {
            Suite::Python => python(self, &["-n", "4", "-m", "not celery"], tools, cache, places),
            Suite::Celery => python(self, &["-m", "celery"], tools, cache, places),
            Suite::Package | Suite::Metrics | Suite::Document | Suite::Guides | Suite::Kurrent => {
                python(self, &[], tools, cache, places)
            }
            Suite::Js => js(tools, cache, places),
            Suite::Node => node(tools, cache, places),
            Suite::KurrentNode => kurrent_node(tools, cache, places),
            Suite::Java | Suite::KurrentJava => java(self, tools, cache, places),
            Suite::Rust | Suite::KurrentRust => Ok(rust(self, tools, places)),
        }
    }

    /// What a suite says of how much it did, in a few words.
    pub(super) fn about(self, said: &str) -> Option<String> {
        let after = |start: &str| said.lines().find_map(|line| line.strip_prefix(start));
        match self {
            Suite::Python => {
                let played = after("rows played: ")?.replacen(" (", " rows (", 1);
                let left = after("rows not played: ").and_then(|left| left.split_whitespace().next());
                Some(left.map_or(played.clone(), |left| format!("{played}, {left} rows NOT PLAYED")))
            }
            Suite::Celery => None,
            Suite::Package | Suite::Metrics | Suite::Document | Suite::Guides | Suite::Kurrent => {
                let line = said.lines().rfind(|line| line.contains(" passed"))?;
                Some(format!("{} tests", line.split_whitespace().next()?))
            }
            Suite::Js | Suite::Node | Suite::KurrentNode => Some(format!("{} tests", after("# pass ")?)),
            Suite::Java | Suite::KurrentJava => {
                // Of the last line that counts: those before it are of single classes.
                let mut counts = said.lines().filter_map(|line| line.split_once("Tests run: "));
                Some(format!("{} tests", counts.next_back()?.1.split(',').next()?))
            }
            Suite::Rust | Suite::KurrentRust => {
                Some(format!("{} tests", after("test result: ok. ")?.split_whitespace().next()?))
            }
        }
    }
}

fn python(
    suite: Suite,
    choice: &[&str],
    tools: &Tools,
    cache: &Cache,
    places: &Places,
) -> Result<Prepared, String> {
    let package = places.clients.join("python");
    // Where the tests are, and whose packages they use.
    let (folder, name, of) = match suite {
        Suite::Package => (package.clone(), "package", package),
        Suite::Metrics => (places.metrics.clone(), "package", package),
        Suite::Guides => (places.guides.clone(), "package", package),
        Suite::Document => (places.http.clone(), "document", places.http.clone()),
        Suite::Kurrent => (places.kurrent.clone(), "kurrent", places.kurrent.clone()),
        _ => (places.compat.join("python"), "python", places.compat.join("python")),
    };
    let python = environment(name, &of.join("requirements.txt"), tools, cache)?;
    // Cleared by pytest before it is used.
    let scratch = places.target.join("compat").join(suite.name());
    let made = std::fs::create_dir_all(places.target.join("compat"));
    made.map_err(|error| format!("cannot make the folder {}: {error}", scratch.display()))?;
    let mut arguments: Vec<OsString> = vec!["-m".into(), "pytest".into(), "-q".into(), "--basetemp".into()];
    arguments.push(scratch.into_os_string());
    arguments.extend(choice.iter().map(OsString::from));
    Ok(Prepared {
        suite,
        program: python,
        arguments,
        folder,
        variables: vec![
            ("PYTHONDONTWRITEBYTECODE", "1".into()),
            // The package's tests start servers of their own.
            ("FOREBAY_BIN", places.target.join("release").join("forebay").into_os_string()),
        ],
    })
}

/// A Python with the packages that the file names.
pub(crate) fn environment(
    name: &str,
    requirements: &Path,
    tools: &Tools,
    cache: &Cache,
) -> Result<PathBuf, String> {
    let ingredients = [&read(requirements)?[..], &tools.version];
    let environment = cache.made_from(name, &ingredients, |environment| {
        quietly(command(&tools.first, &["-m".as_ref(), "venv".as_ref(), environment.as_os_str()]))?;
        let python = environment.join("bin").join("python");
        // Everything is named in the file, so that nothing else comes along; and nothing is missing.
        let install = ["-m", "pip", "install", "--quiet", "--no-input", "--no-deps", "--requirement"];
        let mut pip = Command::new(&python);
        pip.args(install).arg(requirements).env("PIP_DISABLE_PIP_VERSION_CHECK", "1");
        quietly(pip)?;
        let mut check = Command::new(&python);
        check.args(["-m", "pip", "check"]);
        quietly(check)
    })?;
    Ok(environment.join("bin").join("python"))
}

/// A folder with the packages that the lock file beside these sources names.
pub(crate) fn npm(name: &str, sources: &Path, tools: &Tools, cache: &Cache) -> Result<PathBuf, String> {
    let packages = ["package.json", "package-lock.json", ".npmrc"];
    let texts = packages.map(|name| read(&sources.join(name)));
    let [manifest, lock, settings] = texts;
    let (manifest, lock, settings) = (manifest?, lock?, settings?);
    cache.made_from(name, &[&manifest, &lock, &settings, &tools.version], |folder| {
        for name in packages {
            copy(&sources.join(name), &folder.join(name))?;
        }
        let mut npm = Command::new(&tools.second);
        npm.args(["ci", "--no-audit", "--no-fund", "--ignore-scripts"]).current_dir(folder);
        quietly(npm)
    })
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let cannot = |error: std::io::Error| format!("cannot copy {}: {error}", from.display());
    if from.is_dir() {
        std::fs::create_dir_all(to).map_err(cannot)?;
        for entry in std::fs::read_dir(from).map_err(cannot)? {
            let entry = entry.map_err(cannot)?;
            copy(&entry.path(), &to.join(entry.file_name()))?;
        }
        return Ok(());
    }
    std::fs::copy(from, to).map(|_| ()).map_err(cannot)
}

/// Compiled and run in the cache, where its packages are, so that nothing is written into the tree.
fn node(tools: &Tools, cache: &Cache, places: &Places) -> Result<Prepared, String> {
    let sources = places.clients.join("typescript");
    let folder = npm("node", &sources, tools, cache)?;
    for name in ["src", "test", "tsconfig.json", "README.md"] {
        copy(&sources.join(name), &folder.join(name))?;
    }
    let server = places.target.join("release").join("forebay").into_os_string();
    let arguments = vec!["test".into()];
    let variables = vec![("FOREBAY_BIN", server)];
    Ok(Prepared { suite: Suite::Node, program: tools.second.clone(), arguments, folder, variables })
}

fn js(tools: &Tools, cache: &Cache, places: &Places) -> Result<Prepared, String> {
    let sources = places.compat.join("js");
    let folder = npm("js", &sources, tools, cache)?;
    // A module looks for packages beside itself.
    copy(&sources.join("sqs.test.js"), &folder.join("sqs.test.js"))?;
    let arguments = ["--test", "--test-reporter=tap"].map(OsString::from).to_vec();
    Ok(Prepared { suite: Suite::Js, program: tools.first.clone(), arguments, folder, variables: Vec::new() })
}

/// Each file starts a server of its own.
fn kurrent_node(tools: &Tools, cache: &Cache, places: &Places) -> Result<Prepared, String> {
    let sources = places.kurrent.join("js");
    let folder = npm("kurrent-node", &sources, tools, cache)?;
    let entries = std::fs::read_dir(&sources);
    let cannot = |error: std::io::Error| format!("cannot read the folder {}: {error}", sources.display());
    for entry in entries.map_err(cannot)? {
        let name = entry.map_err(cannot)?.file_name();
        if name.to_string_lossy().ends_with(".js") {
            copy(&sources.join(&name), &folder.join(&name))?;
        }
    }
    let arguments = ["--test", "--test-reporter=tap"].map(OsString::from).to_vec();
    let variables = vec![("FOREBAY_BIN", places.target.join("release").join("forebay").into_os_string())];
    Ok(Prepared { suite: Suite::KurrentNode, program: tools.first.clone(), arguments, folder, variables })
}

fn java(suite: Suite, tools: &Tools, cache: &Cache, places: &Places) -> Result<Prepared, String> {
    let of = if suite == Suite::KurrentJava { &places.kurrent } else { &places.compat };
    let folder = of.join("java");
    let define = |name: &str, path: PathBuf| {
        let mut definition = OsString::from(format!("-D{name}="));
        definition.push(path);
        definition
    };
    let mut arguments: Vec<OsString> = vec!["-B".into(), "--no-transfer-progress".into()];
    arguments.push(define("maven.repo.local", cache.folder("maven")));
    arguments.push(define("compat.build", places.target.join("compat").join(suite.name())));
    arguments.push("test".into());
    let mut build = Command::new(&tools.second);
    build.args(&arguments).args(["-q", "-DskipTests"]).current_dir(&folder);
    quietly(build)?;
    // Tests of KurrentDB's protocol start servers of their own.
    let variables = vec![("FOREBAY_BIN", places.target.join("release").join("forebay").into_os_string())];
    Ok(Prepared { suite, program: tools.second.clone(), arguments, folder, variables })
}

fn rust(suite: Suite, tools: &Tools, places: &Places) -> Prepared {
    let of = if suite == Suite::KurrentRust { &places.kurrent } else { &places.compat };
    let arguments = ["test", "--quiet", "--locked"].map(OsString::from).to_vec();
    let variables = vec![
        ("CARGO_TARGET_DIR", places.target.clone().into_os_string()),
        // Tests of KurrentDB's protocol start servers of their own.
        ("FOREBAY_BIN", places.target.join("release").join("forebay").into_os_string()),
    ];
    Prepared { suite, program: tools.first.clone(), arguments, folder: of.join("rust"), variables }
}

/// Compiles a suite that is in Rust; of another one there is nothing to compile.
pub(super) fn compile(suite: Suite, places: &Places) -> Result<(), String> {
    if suite.language() != Language::Rust {
        return Ok(());
    }
    let mut build = rust(suite, &tools::cargo(), places).command();
    build.arg("--no-run");
    quietly(build)
}

fn command(program: &Path, arguments: &[&std::ffi::OsStr]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_suite_is_found_by_its_name() {
        for suite in Suite::ALL {
            assert_eq!(Suite::named(suite.name()), Some(suite));
        }
        assert_eq!(Suite::named("all"), None);
    }

    #[test]
    fn suites_say_how_much_they_did() {
        let about = |suite: Suite, said: &str| suite.about(said).unwrap_or_default();
        let python =
            "....\nrows not played: 2 (1.4-a, 2.1-b)\nrows played: 12 (1.4: 2, 2: 10)\n5 passed in 1.00s\n";
        assert_eq!(about(Suite::Python, python), "12 rows (1.4: 2, 2: 10), 2 rows NOT PLAYED");
        assert_eq!(about(Suite::Python, "rows played: 12 (1.4: 2, 2: 10)\n"), "12 rows (1.4: 2, 2: 10)");
        assert_eq!(about(Suite::Js, "# tests 10\n# pass 10\n# fail 0\n"), "10 tests");
        let java = "[INFO] Tests run: 4, Failures: 0\n[INFO] Tests run: 1, Failures: 0\n\
                    [INFO] Results:\n[INFO] Tests run: 5, Failures: 0, Errors: 0\n";
        assert_eq!(about(Suite::Java, java), "5 tests");
        assert_eq!(about(Suite::Rust, "\ntest result: ok. 7 passed; 0 failed;\n"), "7 tests");
        assert_eq!(about(Suite::Celery, "1 passed"), "");
        assert_eq!(about(Suite::Package, "....\n63 passed in 26.19s\n"), "63 tests");
    }
}
