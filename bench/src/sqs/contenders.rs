//! The servers that are measured beside each other: Forebay, and whatever else speaks SQS.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::client::{Client, Outcome};
use crate::arguments::Arguments;
use crate::measure::Memory;
use crate::server::{Server, cpu_seconds};

/// How long a server may take to start. A JVM takes its time.
const START_MAX: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// What stands for the port in a command.
const PORT: &str = "{port}";

/// Servers of others that a run was asked to measure too.
pub(crate) struct Peers {
    commands: Vec<(&'static str, String)>,
    running: Option<(String, String, Option<u32>)>,
}

impl Peers {
    pub(crate) fn take(arguments: &mut Arguments) -> Result<Peers, String> {
        let mut commands = Vec::new();
        for name in ["elasticmq", "moto"] {
            if let Some(command) = arguments.take::<String>(name)? {
                if !command.contains(PORT) {
                    return Err(format!("--{name} needs {PORT} where its port goes. value=`{command}`"));
                }
                commands.push((name, command));
            }
        }
        let process = arguments.take("peer-pid")?;
        let running = match arguments.take::<String>("peer")? {
            Some(peer) => {
                let (name, address) = peer_of(&peer)
                    .ok_or_else(|| format!("--peer is NAME=http://HOST:PORT. value=`{peer}`"))?;
                Some((name, address, process))
            }
            None if process.is_some() => return Err("--peer-pid needs a --peer".to_owned()),
            None => None,
        };
        Ok(Peers { commands, running })
    }

    pub(crate) async fn start(&self) -> Outcome<Vec<Contender>> {
        let mut all = Vec::new();
        for (name, command) in &self.commands {
            all.push(Contender::run(name, command).await?);
        }
        if let Some((name, address, process)) = &self.running {
            Client::open(address).await?.list().await?;
            let (name, address) = (name.clone(), address.clone());
            all.push(Contender { name, address, process: *process, keeps: "not known here", _running: None });
        }
        Ok(all)
    }
}

fn peer_of(text: &str) -> Option<(String, String)> {
    let (name, url) = text.split_once('=')?;
    let address = url.strip_prefix("http://")?.trim_end_matches('/');
    let is_plain = !name.is_empty() && address.contains(':') && !address.contains('/');
    is_plain.then(|| (name.to_owned(), address.to_owned()))
}

/// A server that speaks SQS. Processes that were started for it end with it.
pub(crate) struct Contender {
    pub(crate) name: String,
    pub(crate) address: String,
    process: Option<u32>,
    /// What becomes of a message that was acknowledged.
    pub(crate) keeps: &'static str,
    _running: Option<Running>,
}

enum Running {
    Forebay(#[allow(dead_code)] Server),
    Other(Child),
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Running::Other(child) = self {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Contender {
    pub(crate) fn forebay(program: &Path, data: &Path) -> Outcome<Contender> {
        let data = data.to_str().ok_or("the folder's name is not text")?;
        let keeps = "synced before the answer: survives kill -9 and a loss of power";
        Contender::serve("forebay", program, &["--data", data], keeps)
    }

    pub(crate) fn forebay_in_memory(program: &Path) -> Outcome<Contender> {
        Contender::serve("forebay --memory", program, &["--memory"], "in memory: gone with the process")
    }

    fn serve(name: &str, program: &Path, place: &[&str], keeps: &'static str) -> Outcome<Contender> {
        let words = ["serve", "--listen", "127.0.0.1:0", "--kurrent", "none", "--sqs", "127.0.0.1:0"];
        let server = Server::start(program, &[&words, place].concat()).map_err(|error| error.to_string())?;
        let address = server.sqs.clone().ok_or("the server has no door for SQS")?;
        let process = Some(server.id());
        Ok(Contender {
            name: name.to_owned(),
            address,
            process,
            keeps,
            _running: Some(Running::Forebay(server)),
        })
    }

    /// Runs a command that serves SQS on the port that it is given.
    async fn run(name: &str, command: &str) -> Outcome<Contender> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        // The shell makes way for the server, so that the process is the server's.
        let line = format!("exec {}", command.replace(PORT, &port.to_string()));
        let child =
            Command::new("sh").args(["-c", &line]).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let process = child.id();
        let mut running = Running::Other(child);
        let address = format!("127.0.0.1:{port}");
        let started = Instant::now();
        while let Err(error) = answers(&address).await {
            let ended = match &mut running {
                Running::Other(child) => child.try_wait()?,
                Running::Forebay(_) => None,
            };
            if ended.is_some() || started.elapsed() > START_MAX {
                return Err(format!("{name} did not start: {error}. command=`{line}`").into());
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        Ok(Contender {
            name: name.to_owned(),
            address,
            process: Some(process),
            keeps: "in memory: gone with the process",
            _running: Some(running),
        })
    }

    /// Processor time used so far, in seconds. Not a number if the process is not known.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        self.process.map_or(f64::NAN, cpu_seconds)
    }

    pub(crate) fn memory(&self) -> Option<Memory> {
        Memory::of(&self.process?.to_string()).ok()
    }
}

async fn answers(address: &str) -> Outcome<()> {
    Client::open(address).await?.list().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_a_name_and_an_address() {
        let peer = |text: &str| peer_of(text).map(|(name, address)| format!("{name} at {address}"));
        assert_eq!(peer("emq=http://localhost:9324/").as_deref(), Some("emq at localhost:9324"));
        assert_eq!(peer("emq"), None);
        assert_eq!(peer("emq=localhost:9324"), None);
        assert_eq!(peer("=http://localhost:9324"), None);
        assert_eq!(peer("emq=http://localhost:9324/queue"), None);
    }

    #[test]
    fn a_command_has_to_say_where_the_port_goes() {
        let take = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            Peers::take(&mut Arguments::parse(&words).expect("pairs")).map(|peers| peers.commands.len())
        };
        assert_eq!(take(&["--elasticmq", "java -Dport={port} Main"]), Ok(1));
        assert!(take(&["--elasticmq", "java Main"]).is_err());
        assert!(take(&["--peer-pid", "7"]).is_err());
        assert_eq!(take(&[]), Ok(0));
    }
}
