//! `forebay demo`: that it tells its story, counts right, and leaves nothing behind.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::commands::work::until;
use crate::rig::Folder;

fn demo(folder: &Folder, words: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_forebay"))
        .arg("demo")
        .args(words)
        .env("TMPDIR", folder.path())
        // Settings for other commands must not mislead the demo.
        .env("FOREBAY_SERVER", "127.0.0.1:1")
        .env("FOREBAY_LISTEN", "127.0.0.1:1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs")
}

pub(crate) fn left_in(folder: &Folder) -> usize {
    std::fs::read_dir(folder.path()).expect("the folder is there").count()
}

#[test]
fn nothing_is_lost_although_a_worker_and_the_server_are_killed() {
    let (folder, pictures) = (Folder::made("demo"), Folder::made("pictures"));
    let picture = pictures.file("demo.svg");
    let words = ["--quick", "-o", "json", "--svg", &picture];
    let ran = demo(&folder, &words).wait_with_output().expect("it ends");
    let printed = String::from_utf8(ran.stdout).expect("text");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(0), "{said}\n{printed}");
    let lines: Vec<Value> =
        printed.lines().map(|line| serde_json::from_str(line).expect("every line is JSON")).collect();
    let accounts = lines.last().expect("the accounts");
    let number = |name: &str| accounts[name].as_u64().unwrap_or_else(|| panic!("no {name} in {accounts}"));
    assert_eq!((number("lost"), &accounts["problems"]), (0, &Value::Array(vec![])), "{accounts}");
    assert_eq!(number("processed") + number("parked"), number("published"), "{accounts}");
    for name in ["published", "duplicates_dropped", "retried", "parked"] {
        assert!(number(name) > 0, "{name}: {accounts}");
    }
    let story: Vec<&str> = lines.iter().filter_map(|line| line["story"].as_str()).collect();
    for text in ["a burst", "worker-3 is killed", "the server itself is killed", "told to stop"] {
        assert!(story.iter().any(|line| line.contains(text)), "{text} is not in {story:?}");
    }
    assert_eq!(left_in(&folder), 0, "its folder is gone");
    let picture = std::fs::read_to_string(&picture).expect("it wrote a picture");
    for part in ["<svg ", "is killed with kill -9", "Nothing was lost.", "<animate ", "</svg>"] {
        assert!(picture.contains(part), "{part} is not in the picture");
    }
}

#[test]
fn a_picture_that_cannot_be_written_is_refused_before_the_demo() {
    let folder = Folder::made("no-picture");
    let ran = demo(&folder, &["--svg", "/nonexistent/demo.svg"]).wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.code() == Some(1) && said.contains("/nonexistent/demo.svg"), "{said}");
    assert!(ran.stdout.is_empty(), "it has not begun");
}

/// Processes that this one has started.
pub(crate) fn children_of(process: u32) -> Vec<String> {
    let shown =
        Command::new("ps").args(["-A", "-o", "pid=,ppid=,stat="]).output().expect("there is a ps command");
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    let child = |line: &str| {
        let mut words = line.split_whitespace();
        let (pid, parent, state) = (words.next()?, words.next()?, words.next()?);
        (parent == process.to_string() && !state.starts_with('Z')).then(|| pid.to_owned())
    };
    shown.lines().filter_map(child).collect()
}

pub(crate) fn lives(process: &str) -> bool {
    let shown =
        Command::new("ps").args(["-o", "stat=", "-p", process]).output().expect("there is a ps command");
    let state = String::from_utf8_lossy(&shown.stdout);
    !state.trim().is_empty() && !state.trim().starts_with('Z')
}

#[test]
fn however_it_ends_no_process_is_left() {
    for signal in ["-INT", "-KILL"] {
        let folder = Folder::made(&format!("demo{signal}"));
        let mut child = demo(&folder, &[]);
        let mut printed = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        printed.read_line(&mut line).expect("it says something");
        assert!(line.contains("workers share one group"), "{line}");
        let processes = until("the server and three workers run", || {
            Some(children_of(child.id())).filter(|processes| processes.len() == 4)
        });
        let id = child.id().to_string();
        assert!(
            Command::new("kill").args([signal, &id]).status().expect("there is a kill command").success()
        );
        child.wait().expect("it ends");
        until("all of them are gone", || processes.iter().all(|process| !lives(process)).then_some(()));
        if signal == "-INT" {
            assert_eq!(left_in(&folder), 0, "its folder is gone");
        }
    }
}

#[test]
fn a_reader_that_closes_the_pipe_ends_it_and_nothing_is_left() {
    let folder = Folder::made("demo-pipe");
    let mut running = demo(&folder, &["--quick"]);
    let mut lines = BufReader::new(running.stdout.take().expect("a pipe"));
    lines.read_line(&mut String::new()).expect("a line");
    drop(lines);
    let ended = running.wait().expect("it ends");
    assert_eq!(ended.code(), Some(0));
    assert_eq!(left_in(&folder), 0, "its folder is gone");
}
