//! `cargo xtask compat`: the clients that people use, against our own server.
//!
//! The suites lie in `compat/`, in the languages of the clients. What they need is installed by package name and kept
//! in a cache folder outside of the tree, so that only the first run takes long. The server is the product, as it is
//! released; it is started for the suites and gone after them.

pub(crate) mod cache;
pub(crate) mod suites;
pub(crate) mod tools;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::install::take;
use crate::services::{SQS, Services};
use cache::Cache;
use suites::{Prepared, Suite};

pub(crate) const HELP: &str = "\
Usage: cargo xtask compat [python|celery|js|java|rust|package|node|metrics|document|guides|kurrent|kurrent-node|
                           kurrent-rust|kurrent-java|all] ...
                          [--endpoint URL]

Builds the server as it is released, starts it with a data folder of its own, and runs the suites of compat/ against
its SQS door: boto3 and Query by hand (python), Celery with workers that are killed (celery), and the AWS SDKs for
JavaScript (js), Java (java) and Rust (rust). The suites `package` and `node` are those of our own packages
for Python and Node.js in clients/, `metrics` holds metrics, alert rules and the Grafana dashboard against
Prometheus, `document` holds the HTTP API against its OpenAPI document, `guides` compiles and runs the guide's
programs, and `kurrent`, `kurrent-node`, `kurrent-rust` and `kurrent-java` play the official clients of KurrentDB for
Python, Node.js, Rust and Java; these start servers of their own. All of them, if none is named.

Packages are kept in the folder `forebay/compat` of the user's cache. As root, where there is apt-get, a toolchain
that is missing is installed. What cannot be had is said, and its suites are skipped; with CI set that is an error.

With --endpoint the suites run against a server that is running already. What needs a server with other settings
is then left out.

  cargo xtask compat python
  cargo xtask compat js java --endpoint http://127.0.0.1:9324
";

/// What to run, and against whom.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    suites: Vec<Suite>,
    endpoint: Option<String>,
}

impl Plan {
    pub(crate) fn everything() -> Plan {
        Plan { suites: Suite::ALL.to_vec(), endpoint: None }
    }

    pub(crate) fn parse(arguments: &[String]) -> Result<Plan, String> {
        let mut plan = Plan { suites: Vec::new(), endpoint: None };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            match (argument.as_str(), Suite::named(argument)) {
                (_, Some(suite)) => plan.suites.push(suite),
                ("all", _) => plan.suites.extend(Suite::ALL),
                ("--endpoint", _) => {
                    let url = rest.next().filter(|url| url.starts_with("http"));
                    plan.endpoint = Some(url.ok_or("`--endpoint` takes a URL")?.clone());
                }
                _ => return Err(format!("`compat` does not take this. argument=`{argument}`")),
            }
        }
        if plan.suites.is_empty() {
            plan.suites.extend(Suite::ALL);
        }
        plan.suites.sort_unstable();
        plan.suites.dedup();
        Ok(plan)
    }
}

pub(crate) fn run(plan: &Plan) -> Result<(), String> {
    let places = Places::find()?;
    plan.suites.iter().try_for_each(|suite| suites::compile(*suite, &places))?;
    let clients = prepare(plan)?;
    match &plan.endpoint {
        Some(url) => clients.play_against(&[(SQS.to_owned(), url.clone())]),
        None => {
            crate::cargo(&crate::SERVER)?;
            clients.play()
        }
    }
}

/// Compiles the suites in Rust, which keeps the machine busy. All else that suites need is a matter of waiting.
pub(crate) fn compile() -> Result<(), String> {
    let places = Places::find()?;
    Suite::ALL.into_iter().try_for_each(|suite| suites::compile(suite, &places))
}

/// Gets each suite what it needs, one after the other. Those that cannot have it are left out.
pub(crate) fn prepare(plan: &Plan) -> Result<Clients, String> {
    let places = Places::find()?;
    let cache = Cache::open("compat")?;
    let mut suites = Vec::new();
    for suite in &plan.suites {
        let mut tools = None;
        take(tools::find(suite.language()), &mut tools)?;
        if let Some(tools) = tools {
            suites.push(suite.prepare(&tools, &cache, &places)?);
        }
    }
    Ok(Clients { suites, places })
}

/// Suites that have all that they need.
pub(crate) struct Clients {
    suites: Vec<Prepared>,
    places: Places,
}

impl Clients {
    /// Runs the suites against the product, which has been built.
    pub(crate) fn play(&self) -> Result<(), String> {
        let server = self.places.target.join("release").join("forebay");
        let services = Services::sqs(server, self.places.compat.join("keys.ini"))?;
        let variables: Vec<(String, String)> =
            services.variables().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        self.play_against(&variables)
    }

    /// Runs them against the servers that these variables name.
    fn play_against(&self, variables: &[(String, String)]) -> Result<(), String> {
        let failed = play(&self.suites, variables);
        if failed.is_empty() {
            Ok(())
        } else {
            Err(format!("clients do not get on with the server: {}", failed.join(", ")))
        }
    }
}

/// Where things are.
struct Places {
    /// The suites.
    compat: PathBuf,
    /// The tests of metrics and alerts.
    metrics: PathBuf,
    /// The tests of the HTTP API against its document.
    http: PathBuf,
    /// The tests of the guide's programs.
    guides: PathBuf,
    /// The tests with clients of KurrentDB.
    kurrent: PathBuf,
    /// Our own packages in other languages.
    clients: PathBuf,
    /// Where cargo builds, for us and for the suite in Rust.
    target: PathBuf,
}

impl Places {
    fn find() -> Result<Places, String> {
        let root = crate::root();
        Ok(Places {
            compat: root.join("compat").join("sqs"),
            metrics: root.join("compat").join("metrics"),
            http: root.join("compat").join("http"),
            guides: root.join("compat").join("guides"),
            kurrent: root.join("compat").join("kurrent"),
            clients: root.join("clients"),
            target: crate::target()?,
        })
    }
}

/// Runs the suites and gives the names of those that fail. The first, which is the largest and looks at time most
/// closely, has the machine for itself; the others run together.
fn play(prepared: &[Prepared], variables: &[(String, String)]) -> Vec<&'static str> {
    let (first, others) = prepared.split_at(prepared.len().min(1));
    let mut failed: Vec<&'static str> =
        first.iter().filter(|one| !play_one(one, variables)).map(|one| one.suite.name()).collect();
    std::thread::scope(|scope| {
        let running: Vec<_> =
            others.iter().map(|one| (one.suite.name(), scope.spawn(|| play_one(one, variables)))).collect();
        for (name, suite) in running {
            if !suite.join().unwrap_or(false) {
                failed.push(name);
            }
        }
    });
    failed
}

fn play_one(prepared: &Prepared, variables: &[(String, String)]) -> bool {
    let name = prepared.suite.name();
    let since = Instant::now();
    let mut command = prepared.command();
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    let (passed, said) = match command.output() {
        Ok(output) => {
            let said = [&output.stdout[..], &output.stderr].concat();
            (output.status.success(), String::from_utf8_lossy(&said).into_owned())
        }
        Err(error) => (false, format!("cannot run it: {error}")),
    };
    let about = prepared.suite.about(&said).map(|about| format!(", {about}")).unwrap_or_default();
    let seconds = round(since.elapsed());
    if passed {
        println!("compat {name}: passed{about}, in {seconds} s");
    } else {
        // In one piece, so that suites that run together do not talk at once.
        println!("{}\ncompat {name}: FAILED{about}, in {seconds} s", said.trim_end());
    }
    passed
}

pub(crate) fn round(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_millis() >= 500)
}

/// Runs a command whose output matters only if it fails.
pub(crate) fn quietly(mut command: Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let said = [&output.stdout[..], &output.stderr].concat();
            Err(format!("`{program}` failed ({}):\n{}", output.status, String::from_utf8_lossy(&said).trim()))
        }
        Err(error) => Err(format!("cannot run `{program}`: {error}")),
    }
}

pub(crate) fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Plan, String> {
        Plan::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn suites_are_named_or_all_are_meant() {
        assert_eq!(parse(""), Ok(Plan::everything()));
        assert_eq!(parse("all"), Ok(Plan::everything()));
        assert_eq!(parse("js"), Ok(Plan { suites: vec![Suite::Js], endpoint: None }));
        let both = Plan { suites: vec![Suite::Celery, Suite::Java], endpoint: None };
        assert_eq!(parse("java celery java"), Ok(both));
        assert!(parse("cobol").is_err());
    }

    #[test]
    fn a_server_that_runs_is_named_by_its_address() {
        let url = "http://127.0.0.1:9324";
        let plan = Plan { suites: vec![Suite::Rust], endpoint: Some(url.to_owned()) };
        assert_eq!(parse(&format!("rust --endpoint {url}")), Ok(plan));
        assert!(parse("--endpoint").is_err() && parse("--endpoint rust").is_err());
    }
}
