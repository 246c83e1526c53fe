//! The `forebay` command: the server, and everything that a person does with it.

mod backup;
mod bench;
mod cert;
mod clock;
mod commands;
mod complete;
mod config;
mod connect;
mod context;
#[cfg(feature = "jetstream")]
mod copy;
mod demo;
mod doctor;
mod encryption;
mod exit;
mod failure;
mod http;
mod log;
mod login;
mod man;
mod ping;
mod post;
mod print;
mod publish;
mod safe;
mod screen;
mod serve;
mod settings;
mod signals;
mod subscribe;
#[cfg(feature = "jetstream")]
mod trial;
mod units;
mod work;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::{ContextKind, ErrorKind};
use clap::{Parser, Subcommand};
use clap_complete::Shell;

use crate::print::Output;

/// Gives freed memory back to the system. The allocator of glibc keeps most of it after replies of many sizes.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Forebay is a durable message queue: streams, and groups of competing consumers with retries and dead letters.
#[derive(Debug, Parser)]
#[command(name = "forebay", version, after_help = after_help())]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Output format: text for people, or the API's JSON.
    #[arg(
        short,
        long,
        global = true,
        value_name = "text|json",
        default_value = "text",
        hide_possible_values = true,
        hide_default_value = true,
        display_order = 900
    )]
    output: Output,
    #[command(flatten)]
    server: connect::Server,
}

const EXAMPLES: &str = "\
Examples:
  forebay demo                           watch it work, in half a minute
  forebay serve                          start a server; its data is stored in ./forebay-data
  forebay pub emails 'hello' 'world'     publish two messages to the stream `emails`
  forebay sub emails/senders --create --ack     receive and ack them as a consumer of the new group `senders`
  forebay work emails/senders --exec ./send.sh     run a command for each of them
  forebay backup --to /backup/monday     copy the data, also while the server runs
  forebay doctor                         verify the data while no server uses it

`forebay COMMAND --help` has examples for each.";

fn after_help() -> String {
    format!("{EXAMPLES}\n\n{}", exit::CODES)
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start the server.
    #[command(after_help = serve::EXAMPLES)]
    Serve(settings::Sources),
    /// Show the server's settings, and where they come from.
    Config(config::Config),
    /// Publish messages to a stream. The stream is created if it does not exist.
    #[command(after_help = publish::EXAMPLES)]
    Pub(publish::Pub),
    /// Receive messages as a consumer of a group, and print them.
    #[command(after_help = subscribe::EXAMPLES)]
    Sub(subscribe::Sub),
    /// Process the messages of a group with handlers in any language: a command, or an HTTP service.
    #[command(after_help = work::EXAMPLES)]
    Work(work::Work),
    /// Name servers, and choose the one that commands talk to.
    Context(context::Context),
    /// Check that a server answers and accepts work.
    #[command(after_help = ping::EXAMPLES)]
    Ping(ping::Ping),
    /// List, show, create, change, purge and delete streams.
    Stream(commands::stream::Stream),
    /// List, show, create, change, pause, reset and delete groups.
    Group(commands::group::Group),
    /// List, replay, move and discard parked messages (dead letters).
    Parked(commands::parked::Parked),
    /// List connections of clients, and close one.
    Connections(commands::connections::Connections),
    /// Create, list and revoke tokens, with which clients authenticate.
    Token(commands::credential::Token),
    /// Create, list and revoke access keys, with which SQS clients authenticate.
    Key(commands::credential::Key),
    /// Create, list and revoke users with passwords, and change passwords.
    User(commands::credential::User),
    /// Show a cluster: the owner of the log, the nodes, and the NATS servers. Or try one out on this machine.
    Cluster(commands::cluster::Cluster),
    /// Make keys for encryption at rest, and show which keys a data folder needs.
    Encryption(encryption::Encryption),
    /// Make a certificate for trying out TLS.
    Cert(cert::Cert),
    /// Keep the address of a server and a token for later commands.
    #[command(after_help = login::EXAMPLES)]
    Login(login::Login),
    /// Watch streams and groups.
    #[command(after_help = commands::top::EXAMPLES)]
    Top(commands::top::Top),
    /// Show load leveling: a burst, a steady rate, a worker and the server killed, and nothing lost.
    #[command(after_help = demo::EXAMPLES)]
    Demo(demo::Demo),
    /// Part of `demo`: a server that ends with it.
    #[command(hide = true)]
    DemoServer(settings::Sources),
    /// Part of `demo`: one of its workers.
    #[command(hide = true)]
    DemoWorker(demo::worker::DemoWorker),
    /// Part of `cluster try`: ends its processes if it is killed.
    #[cfg(feature = "jetstream")]
    #[command(hide = true)]
    ClusterTryKeeper,
    /// Put load on a server and measure throughput, latencies and cost, and check that every message arrives.
    #[command(after_help = bench::EXAMPLES)]
    Bench(bench::Bench),
    /// Verify a data folder, or salvage the readable part of a damaged one.
    #[command(after_help = doctor::EXAMPLES)]
    Doctor(doctor::Doctor),
    /// Copy a data folder, even while a server uses it.
    #[command(after_help = backup::BACKUP_EXAMPLES)]
    Backup(backup::Backup),
    /// Move the log of a data folder to NATS JetStream, or back.
    #[cfg(feature = "jetstream")]
    #[command(after_help = copy::EXAMPLES)]
    Copy(copy::Copy),
    /// Create a data folder from a backup.
    #[command(after_help = backup::RESTORE_EXAMPLES)]
    Restore(backup::Restore),
    /// Print a completion script for a shell.
    #[command(after_help = complete::EXAMPLES)]
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Part of the completion scripts: names that may stand at the end of a command line.
    #[command(hide = true)]
    Complete(complete::Complete),
    /// Print the manual, or write the manual pages of all commands.
    #[command(after_help = man::EXAMPLES)]
    Man(man::Man),
}

/// For commands that talk to no server.
fn no_server() -> anyhow::Result<()> {
    Err(anyhow::anyhow!(exit::Exit::NotUnderstood)
        .context("--server, --context, --token-file and --ca have no meaning for this command"))
}

/// Reads the command line. In `help --help` clap takes the flag for the name of a command; it is left out there.
fn parse(words: &[OsString]) -> Result<Cli, clap::Error> {
    let is_help = |word: &OsString| word == "--help" || word == "-h";
    Cli::try_parse_from(words).map_err(|error| commands::pairs::as_pair(error, words)).map_err(|error| {
        let wrong = error.get(ContextKind::InvalidSubcommand).map(ToString::to_string);
        if !wrong.is_some_and(|wrong| is_help(&wrong.into())) {
            return error;
        }
        match Cli::try_parse_from(words.iter().filter(|word| !is_help(word))) {
            Err(help) if help.kind() == ErrorKind::DisplayHelp => help,
            _ => error,
        }
    })
}

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    let Cli { command, output, server } = parse(&words).unwrap_or_else(|error| error.exit());
    let done = match command {
        Command::Serve(_)
        | Command::Config(_)
        | Command::Demo(_)
        | Command::Doctor(_)
        | Command::Backup(_)
        | Command::Restore(_)
        | Command::Completions { .. }
        | Command::Man(_)
            if server.is_given() =>
        {
            no_server()
        }
        #[cfg(feature = "jetstream")]
        Command::Copy(_) if server.is_given() => no_server(),
        Command::Serve(sources) => serve::run(&sources),
        Command::Config(config) => config::run(&config, output),
        Command::Pub(options) => publish::run(&options, output),
        Command::Sub(options) => subscribe::run(&options, output),
        Command::Work(options) => work::run(&options, output),
        Command::Context(options) => context::run(&options, &server, output),
        Command::Ping(options) => ping::run(&options, output),
        Command::Stream(options) => commands::stream::run(&options, output),
        Command::Group(options) => commands::group::run(&options, output),
        Command::Parked(options) => commands::parked::run(&options, output),
        Command::Connections(options) => commands::connections::run(&options, output),
        Command::Token(options) => commands::credential::run_token(&options, output),
        Command::Key(options) => commands::credential::run_key(&options, output),
        Command::User(options) => commands::credential::run_user(&options, output),
        Command::Cluster(options) => commands::cluster::run(&options, output),
        Command::Encryption(options) => encryption::run(&options, output),
        Command::Cert(options) => cert::run(&options, output),
        Command::Login(options) => login::run(&options, output),
        Command::Top(options) => commands::top::run(&options, output),
        Command::Demo(options) => demo::run(&options, output),
        Command::DemoServer(sources) => demo::server::run(&sources),
        Command::DemoWorker(options) => demo::worker::run(&options),
        #[cfg(feature = "jetstream")]
        Command::ClusterTryKeeper => trial::keeper::run(),
        Command::Bench(options) => bench::run(&options, output),
        Command::Doctor(options) => doctor::run(&options, output),
        Command::Backup(options) => backup::back_up(&options, output),
        Command::Restore(options) => backup::restore(&options, output),
        #[cfg(feature = "jetstream")]
        Command::Copy(options) => copy::run(&options, output),
        Command::Completions { shell } => complete::print_script(shell),
        Command::Complete(options) => complete::run(&options),
        Command::Man(options) => man::run(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.downcast_ref::<print::PipeClosed>().is_some() => ExitCode::SUCCESS,
        Err(error) => {
            match error.downcast_ref::<http::Refused>() {
                Some(refused) if output == Output::Json => exit::say(&refused.document),
                _ if log::is_started() => log::error(&exit::text(&error)),
                _ if output == Output::Json => exit::say(&exit::document(&error)),
                _ => exit::say(&format!("forebay: {}", exit::text(&error))),
            }
            exit::code(&error)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_that_does_something_has_examples() {
        fn look(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            let commands: Vec<_> =
                command.get_subcommands().filter(|command| command.get_name() != "help").collect();
            if commands.is_empty() && !command.is_hide_set() {
                let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.contains("Examples:"), "{path} has no examples");
            }
            commands.iter().for_each(|command| look(command, &path));
        }
        look(&Cli::command(), "");
    }

    #[test]
    fn every_argument_has_help() {
        fn look(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            if command.is_hide_set() {
                return;
            }
            for argument in command.get_arguments() {
                assert!(argument.get_help().is_some(), "{path}: {} has no help", argument.get_id());
            }
            let commands = command.get_subcommands().filter(|command| command.get_name() != "help");
            commands.for_each(|command| look(command, &path));
        }
        look(&Cli::command(), "");
    }

    #[test]
    fn help_is_helped_wherever_it_stands() {
        for (line, part) in [
            ("forebay help --help", "Usage: forebay"),
            ("forebay stream help -h", "Usage: forebay stream"),
            ("forebay help stream --help", "Usage: forebay stream"),
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let help = parse(&words).expect_err("help is no command");
            assert_eq!(help.kind(), ErrorKind::DisplayHelp, "{line}: {help}");
            assert!(help.to_string().contains(part), "{line}: {help}");
        }
        let wrong: Vec<OsString> = ["forebay", "nothing"].map(OsString::from).into();
        assert_eq!(parse(&wrong).expect_err("no command").kind(), ErrorKind::InvalidSubcommand);
    }

    #[test]
    fn a_setting_that_is_given_like_a_flag_is_told_how_it_is_given() {
        for (line, part) in [
            ("forebay group create g/x --max-retries 3", "settings are given as max_retries=3"),
            ("forebay group set g/x --max-retries=3", "settings are given as max_retries=3"),
            ("forebay group create g/x --rate 10", "settings are given as rate=10"),
            ("forebay group create g/x --set max_retries=3", "settings are given as max_retries=3"),
            ("forebay stream create s --dedupe-window 1m", "settings are given as dedupe_window=1m"),
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let wrong = parse(&words).expect_err("there is no such flag").to_string();
            assert!(wrong.contains(part) && !wrong.contains("as a value"), "{line}: {wrong}");
        }
        let words: Vec<OsString> = ["forebay", "group", "list", "--max", "3"].map(OsString::from).into();
        assert!(!parse(&words).expect_err("no such flag").to_string().contains("settings"));
    }

    #[test]
    fn every_exit_code_is_in_the_help_and_in_the_reference() {
        use exit::Exit;
        let page = include_str!("../../../docs/reference/cli.md");
        for exit in [
            Exit::NotUnderstood,
            Exit::DataInUse,
            Exit::DataRefused,
            Exit::CannotListen,
            Exit::StorageFailed,
            Exit::Unreachable,
            Exit::NotFound,
            Exit::Conflict,
            Exit::Later,
            Exit::Unknown,
            Exit::Denied,
            Exit::WentBack,
        ] {
            let row = format!("\n{:>3}  ", exit as u8);
            assert!(exit::CODES.contains(&row), "{exit} has no row");
            assert!(page.contains(&format!("\n| {} | ", exit as u8)), "{exit} has no row in cli.md");
        }
    }
}
