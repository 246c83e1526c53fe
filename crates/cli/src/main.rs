//! The `forebay` command: starts the server, and lets a person publish and consume by hand.

mod client;
mod exit;
mod serve;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

/// Forebay levels load: durable streams, and groups of competing consumers that work through them.
#[derive(Debug, Parser)]
#[command(name = "forebay", version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  forebay serve                          start a server; its data is kept in ./forebay-data
  forebay pub emails 'hello' 'world'     publish two messages to the stream `emails`
  forebay sub emails/senders --ack       work through them as a consumer of the group `senders`

Exit codes:
  0  done, or stopped as asked
  1  the command failed; the message says why
  2  the command line could not be understood
  3  the data folder is in use by another process
  4  the data folder is damaged or from a newer release, and was left as it is
  5  the address could not be listened on
  6  storage failed while the server was running
  7  the server could not be reached";

#[derive(Debug, Subcommand)]
enum Command {
    /// Start the server.
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(Serve),
    /// Publish messages to a stream, which is created if it is absent.
    #[command(after_help = PUB_EXAMPLES)]
    Pub(Pub),
    /// Receive messages as a consumer of a group, which is created if it is absent.
    #[command(after_help = SUB_EXAMPLES)]
    Sub(Sub),
}

const SERVE_EXAMPLES: &str = "\
Examples:
  forebay serve
  forebay serve --data /var/lib/forebay --listen 127.0.0.1:7171
  forebay serve --memory                 keep nothing; for trying things out";

const PUB_EXAMPLES: &str = "\
Examples:
  forebay pub emails 'hello' 'world'
  seq 1000 | forebay pub numbers         one message for each line
  forebay pub emails 'now' --priority 9  goes before what has less
  forebay pub emails 'later' --delay 15m --ttl 2h
  forebay pub accounts 'debit 5' --key account-17";

const SUB_EXAMPLES: &str = "\
Examples:
  forebay sub emails/senders             look at messages; they are given back when you leave
  forebay sub emails/senders --ack       settle them
  forebay sub emails/senders --ack --max 10
  forebay sub emails/senders --ack --name laptop";

#[derive(Debug, Args)]
struct Serve {
    /// Where the data is kept. Made if it is absent.
    #[arg(long, value_name = "DIR", default_value = "./forebay-data", conflicts_with = "memory")]
    data: PathBuf,
    /// Where to listen. Only addresses of this machine, as there is no authentication yet.
    #[arg(long, value_name = "ADDRESS", default_value = DEFAULT_ADDRESS)]
    listen: std::net::SocketAddr,
    /// Keep everything in memory and nothing after the end.
    #[arg(long)]
    memory: bool,
}

#[derive(Debug, Args)]
struct Pub {
    stream: String,
    /// The messages. If there are none, each line of the standard input is one.
    text: Vec<String>,
    /// Higher goes first.
    #[arg(long, value_name = "0-9", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=9))]
    priority: u8,
    /// Not handed out before this long has passed, such as 250ms, 30s, 15m, 12h, 7d.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    delay: Option<Duration>,
    /// Not handed out after this long has passed.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    ttl: Option<Duration>,
    /// Messages of one key belong together, where a group orders or spreads by key.
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    #[command(flatten)]
    server: Server,
}

#[derive(Debug, Args)]
struct Sub {
    /// The group, as STREAM/GROUP.
    #[arg(value_name = "STREAM/GROUP")]
    group: String,
    /// Settle each message once it is printed.
    #[arg(long)]
    ack: bool,
    /// Leave after this many messages.
    #[arg(long, value_name = "N")]
    max: Option<u64>,
    /// What the consumer is called in figures and failures.
    #[arg(long, value_name = "NAME", default_value = "forebay-sub")]
    name: String,
    #[command(flatten)]
    server: Server,
}

#[derive(Debug, Args)]
struct Server {
    /// The server's address.
    #[arg(long, value_name = "ADDRESS", default_value = DEFAULT_ADDRESS)]
    server: String,
}

const DEFAULT_ADDRESS: &str = "127.0.0.1:7070";

/// A length of time with its unit.
fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let millis = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err("a time is a number and a unit: ms, s, m, h or d".to_owned()),
    };
    let number: u64 = number.parse().map_err(|_| "a time begins with a number".to_owned())?;
    let millis = number.checked_mul(millis).ok_or("that is too long")?;
    Ok(Duration::from_millis(millis))
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Serve(options) => serve::run(&options),
        Command::Pub(options) => client::publish(&options),
        Command::Sub(options) => client::subscribe(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            exit::say(&format!("forebay: {error:#}"));
            exit::code(&error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_a_number_and_a_unit() {
        let seconds = |text| duration(text).map(|duration| duration.as_secs_f64());
        assert_eq!(seconds("250ms"), Ok(0.25));
        assert_eq!(seconds("15m"), Ok(900.0));
        assert_eq!(seconds("7d"), Ok(604_800.0));
        for wrong in ["", "5", "s", "-5s", "5 s", "1.5h", "99999999999999999999s", "9999999999999999999d"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
