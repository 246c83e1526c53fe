//! Workers that stop, are killed, or lose their server.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use super::{Worker, group, until, work};
use crate::commands::rig::Server;
use crate::rig::Folder;

/// Whether the process is there whose number is in the file.
pub(crate) fn lives(folder: &Folder, file: &str) -> bool {
    let pid = std::fs::read_to_string(folder.file(file)).expect("the handler has begun");
    let shown = Command::new("ps")
        .args(["-o", "stat=", "-p", pid.trim()])
        .stderr(Stdio::null())
        .output()
        .expect("there is a ps command");
    let state = String::from_utf8_lossy(&shown.stdout);
    !state.trim().is_empty() && !state.trim().starts_with('Z')
}

/// How often each message was begun, by position, and the highest attempt of all.
fn begun(folder: &Folder) -> (BTreeMap<u64, u32>, u32) {
    let text = std::fs::read_to_string(folder.file("begun")).unwrap_or_default();
    let (mut times, mut highest) = (BTreeMap::new(), 0);
    for line in text.lines() {
        let (seq, attempt) = line.split_once(' ').expect("two numbers");
        *times.entry(seq.parse().expect("a number")).or_default() += 1;
        highest = highest.max(attempt.parse().expect("a number"));
    }
    (times, highest)
}

/// A handler that says what it has begun, and takes its time.
fn handler(folder: &Folder, time: &str) -> String {
    format!("echo \"$FOREBAY_SEQ $FOREBAY_ATTEMPT\" >> {}; sleep {time}", folder.file("begun"))
}

fn publish(server: &Server, count: u64) {
    let lines: Vec<String> = (1..=count).map(|n| n.to_string()).collect();
    server.run_with(&["pub", "jobs"], &lines.join("\n")).good();
}

#[test]
fn stopped_under_load_it_finishes_what_it_has_and_burns_no_attempt() {
    let folder = Folder::made("work-stop");
    let server = Server::start();
    publish(&server, 60);
    let command = handler(&folder, "0.1");
    for round in 1..=2 {
        let worker =
            Worker::start(&server, &["jobs/team", "--exec", &command, "--prefetch", "20", "-o", "json"]);
        until("a few are done", || (begun(&folder).0.len() >= 10 * round).then_some(()));
        worker.signal("-TERM");
        let ran = worker.ended();
        assert_eq!(ran.code, 0, "{ran:?}");
        let summary: serde_json::Value = serde_json::from_str(&ran.printed).expect("a summary");
        assert_eq!((&summary["retried"], &summary["late"]), (&0.into(), &0.into()), "{summary}");
        assert!(summary["given_back"].as_u64() > Some(0), "it held more than it had begun: {summary}");
        let shown = group(&server, "jobs/team");
        assert_eq!(shown["in_flight"], 0, "{shown}");
        assert_eq!(shown["lag"], 60 - begun(&folder).0.len(), "what was begun is done: {shown}");
    }
    assert_eq!(work(&server, &["jobs/team", "--exec", &command])["retried"], 0);
    let (times, highest) = begun(&folder);
    assert_eq!(times, (1..=60).map(|seq| (seq, 1)).collect());
    assert_eq!(highest, 1);
}

#[test]
fn what_cannot_finish_in_time_is_ended_and_goes_back_as_if_it_had_never_been_tried() {
    let folder = Folder::made("work-deadline");
    let server = Server::start();
    publish(&server, 1);
    let pid = folder.file("pid");
    let command = format!("echo $$ > {pid}; {}", handler(&folder, "300 & wait"));
    let worker =
        Worker::start(&server, &["jobs/team", "--exec", &command, "--drain-timeout", "1s", "-o", "json"]);
    until("it has begun", || (begun(&folder).0.len() == 1).then_some(()));
    worker.signal("-TERM");
    let ran = worker.ended();
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.printed.contains("\"given_back\":1"), "{ran:?}");
    assert!(ran.said.contains("waits for 1 message"), "{ran:?}");
    assert!(!lives(&folder, "pid"), "the handler is gone");
    assert_eq!(work(&server, &["jobs/team", "--exec", &handler(&folder, "0")])["done"], 1);
    assert_eq!(begun(&folder), (BTreeMap::from([(1, 2)]), 1), "begun twice, and both times as the first try");
}

#[test]
fn a_second_signal_stops_it_and_its_handlers_at_once() {
    let folder = Folder::made("work-twice");
    let server = Server::start();
    publish(&server, 1);
    let pid = folder.file("pid");
    let command = format!("trap '' TERM; echo $$ > {pid}; {}", handler(&folder, "300"));
    let worker = Worker::start(&server, &["jobs/team", "--exec", &command]);
    until("it has begun", || (begun(&folder).0.len() == 1).then_some(()));
    worker.signal("-INT");
    worker.says("a second signal stops at once");
    // Signals within 300 ms are one request.
    std::thread::sleep(std::time::Duration::from_millis(400));
    worker.signal("-INT");
    worker.ended().refused(1, &["stopped at once, by a second signal"]);
    until("the handler is gone", || (!lives(&folder, "pid")).then_some(()));
    until("it is offered again", || (group(&server, "jobs/team")["in_flight"] == 0).then_some(()));
}

#[test]
fn killed_in_the_middle_nothing_is_lost() {
    let folder = Folder::made("work-killed");
    let server = Server::start();
    publish(&server, 60);
    let command = format!("{}; echo \"$FOREBAY_SEQ\" >> {}", handler(&folder, "0.05"), folder.file("ended"));
    for round in 1..=3 {
        let worker = Worker::start(&server, &["jobs/team", "--exec", &command]);
        until("a few have begun", || (begun(&folder).0.len() >= 10 * round).then_some(()));
        worker.signal("-KILL");
        worker.ended();
    }
    let became = work(&server, &["jobs/team", "--exec", &command]);
    assert_eq!((&became["parked"], &became["retried"]), (&0.into(), &0.into()), "{became}");
    assert_eq!(group(&server, "jobs/team")["lag"], 0);
    let ended = std::fs::read_to_string(folder.file("ended")).expect("some have ended");
    let ended: std::collections::BTreeSet<u64> =
        ended.lines().map(|seq| seq.parse().expect("a number")).collect();
    assert_eq!(ended, (1..=60).collect());
}

#[test]
fn while_its_server_is_away_it_says_so_once_and_goes_on_when_it_is_back() {
    let folder = Folder::made("work-away");
    let data = folder.file("data");
    let server = Server::start_with(&["--data", &data]);
    publish(&server, 40);
    let worker = Worker::start(&server, &["jobs/team", "--exec", &handler(&folder, "0.05")]);
    until("a few have begun", || (begun(&folder).0.len() >= 10).then_some(()));
    let address = server.address.clone();
    // Dropped is killed.
    drop(server);
    worker.says("the connection to the server is lost");
    std::thread::sleep(std::time::Duration::from_millis(500));
    let server = Server::start_first(&["--listen", &address, "--data", &data]);
    assert_eq!(server.address, address, "{}", server.first);
    worker.says("connected to the server again");
    until("all are done", || (group(&server, "jobs/team")["lag"] == 0).then_some(()));
    worker.signal("-TERM");
    let ran = worker.ended();
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(ran.said.matches("the connection to the server is lost").count(), 1, "{}", ran.said);
    assert_eq!(begun(&folder).0.len(), 40);
}

#[test]
fn when_its_group_is_deleted_it_ends() {
    let server = Server::start();
    let worker = Worker::start(&server, &["jobs/team", "--exec", "true"]);
    worker.says("working on");
    server.run(&["stream", "delete", "jobs", "--force", "--yes"]).good();
    worker.ended().refused(8, &[]);
}
