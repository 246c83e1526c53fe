//! The commands of README, run as they stand there, with their replies compared.
//!
//! A block of `console` has commands, which begin with `$`, each followed by its reply. `…` stands for any text, and
//! white space counts as one space, since tables and tabs are wider on a terminal. The blocks are one session: a
//! variable that one sets is there in the next.

use std::process::{Command, Stdio};

use crate::commands::rig::Server;
use crate::rig::Folder;

const README: &str = include_str!("../../../../../README.md");

struct Step {
    command: String,
    reply: Vec<String>,
}

fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut inside = false;
    for line in page.lines() {
        match line {
            "```console" => inside = true,
            "```" => inside = false,
            _ if !inside => {}
            _ => match line.strip_prefix("$ ") {
                Some(command) => steps.push(Step { command: command.to_owned(), reply: Vec::new() }),
                None => steps.last_mut().expect("a command comes first").reply.push(line.to_owned()),
            },
        }
    }
    steps
}

fn plain(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether a reply is what the page shows.
fn is_like(reply: &str, shown: &str) -> bool {
    let (reply, shown) = (plain(reply), plain(shown));
    let mut parts = shown.split('…').map(str::trim);
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = reply.strip_prefix(first) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, between)) = parts.split_last() else { return rest.is_empty() };
    for part in between {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[expect(clippy::print_stderr, reason = "a test that cannot run says so")]
#[test]
fn the_commands_of_the_readme_answer_as_it_shows() {
    if Command::new("curl").arg("--version").stdout(Stdio::null()).status().is_err() {
        assert!(std::env::var_os("CI").is_none(), "curl is missing");
        eprintln!("skipped: curl is missing");
        return;
    }
    let folder = Folder::made("readme");
    let server = Server::start_with(&["--data", &folder.file("data"), "--sqs", "127.0.0.1:0"]);
    let sqs = server.first["sqs"].as_str().expect("it serves SQS").to_owned();
    let binary = std::path::Path::new(env!("CARGO_BIN_EXE_forebay")).parent().expect("a folder");
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap_or_default());
    let steps = steps(README);
    assert!(steps.len() >= 15, "{}", steps.len());
    let mut script = String::new();
    for step in &steps {
        let port = |address: &str| address.rsplit(':').next().expect("a port").to_owned();
        let command = step.command.replace("localhost:7070", &format!("localhost:{}", port(&server.address)));
        let command = command.replace("localhost:9324", &format!("localhost:{}", port(&sqs)));
        // The meter of curl goes to the standard error, which the page does not show.
        let command = command.replace("curl ", "curl -sS ");
        script.push_str(&format!("{{ {command}\n}} 2>&1\nprintf '\\n@@@\\n'\n"));
    }
    let ran = Command::new("sh")
        .args(["-c", &script])
        .current_dir(folder.file("."))
        .env("PATH", path)
        .env("FOREBAY_SERVER", &server.address)
        .env("HOME", folder.file("."))
        .env("XDG_CONFIG_HOME", folder.file("."))
        .stdin(Stdio::null())
        .output()
        .expect("a shell runs");
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    let replies: Vec<&str> = said.split("\n@@@\n").collect();
    for (step, reply) in steps.iter().zip(&replies) {
        let shown = step.reply.join("\n");
        assert!(is_like(reply, &shown), "$ {}\nanswered\n{reply}\nbut README shows\n{shown}", step.command);
    }
    assert_eq!(replies.len(), steps.len() + 1, "each command ran: {said}");
    server.stop();
}
