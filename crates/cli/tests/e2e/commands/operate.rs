//! Streams, groups and parked messages, in both outputs.

use serde_json::{Value, json};

use crate::commands::rig::Server;
use crate::rig::{forebay, run};

#[test]
fn a_stream_is_made_seen_changed_emptied_and_deleted() {
    let server = Server::start();
    let none = server.run(&["stream", "list"]);
    assert!(none.said.contains("no streams yet"), "{none:?}");
    assert_eq!(server.run(&["stream", "list", "-o", "json"]).json(), json!({"streams": [], "next": null}));

    let made =
        server.run(&["stream", "create", "emails", "dedupe_window=5m", "limits.max_messages=100"]).good();
    assert_eq!(made, "created the stream emails\n");
    let again = server.run(&["stream", "create", "emails"]).good();
    assert_eq!(again, "stream emails already exists\n");
    server
        .run(&["stream", "create", "emails", "dedupe_window=6m"])
        .refused(9, &["forebay: dedupe_window of the existing stream emails", "value=`5m` requested=`6m`"]);
    server.run(&["stream", "create", "emails", "dedupe_windw=6m"]).refused(2, &["dedupe_windw"]);
    server.run(&["stream", "create", "emails", "dedupe_window"]).refused(2, &["name=value"]);
    server.run(&["stream", "set", "emails"]).refused(2, &["nothing to change"]);
    let changed = server.run(&["stream", "set", "emails", "limits.max_messages=null", "-o", "json"]).json();
    assert_eq!(changed["settings"]["limits"]["max_messages"], json!(null));

    server.run(&["pub", "emails", "one", "two", "--key", "k\u{1b}"]).good();
    let shown = server.run(&["stream", "show", "emails"]).good();
    assert!(shown.contains("settings dedupe_window") && shown.contains("5m"), "{shown}");
    assert!(shown.lines().any(|line| line.starts_with("messages") && line.contains(" 2 (")), "{shown}");
    assert_eq!(server.run(&["stream", "show", "emails", "-o", "json"]).json()["messages"], 2);
    let list = server.run(&["stream", "list"]).good();
    assert!(list.starts_with("STREAM") && list.lines().any(|line| line.starts_with("emails")), "{list}");

    let table = server.run(&["stream", "browse", "emails", "--limit", "1"]);
    assert!(table.said.contains("--from 2"), "{table:?}");
    assert!(table.printed.contains(r"k\x1b") && table.printed.contains("one"), "{table:?}");
    let list = server.run(&["stream", "peek", "emails", "--from", "2", "-o", "json"]).json();
    assert_eq!(
        (&list["messages"][0]["seq"], list["messages"].as_array().map(Vec::len)),
        (&2.into(), Some(1))
    );

    server.run(&["group", "create", "emails/senders"]).good();
    assert_eq!(server.run(&["stream", "purge", "emails", "--yes"]).good(), "dropped 2 messages\n");
    assert_eq!(server.run(&["stream", "purge", "emails", "-o", "json", "-y"]).json(), json!({"purged": 0}));
    assert_eq!(server.run(&["stream", "delete", "emails", "--yes"]).good(), "deleted the stream emails\n");
    server.run(&["stream", "show", "emails"]).refused(8, &["no such stream"]);
    let problem = server.run(&["stream", "show", "emails", "-o", "json"]).refused(8, &[]);
    let problem: Value = serde_json::from_str(&problem.said).expect("the problem document");
    assert_eq!((&problem["status"], &problem["retry"]), (&404.into(), &"never".into()));
    server.stop();
}

#[test]
fn names_may_have_anything_that_names_may_have() {
    let server = Server::start();
    for name in ["a b", "ü/x", "50%", "a?b#c", "."] {
        let group = format!("{name}/g r");
        server.run(&["group", "create", &group]).good();
        assert_eq!(server.run(&["stream", "show", name, "-o", "json"]).json()["stream"], name);
        assert_eq!(server.run(&["group", "show", &group, "-o", "json"]).json()["group"], "g r");
    }
    server.run(&["stream", "show", "a\nb"]).refused(2, &["control characters"]);
    server.stop();
}

#[test]
fn a_group_is_made_seen_changed_paused_moved_and_deleted() {
    let server = Server::start();
    let made = server.run(&["group", "create", "work/team", "max_retries=3", "backoff.min=1s"]).good();
    assert_eq!(made, "created the group work/team\n");
    assert_eq!(server.run(&["group", "create", "work/team"]).good(), "group work/team already exists\n");
    server
        .run(&["group", "create", "work/team", "max_retries=4"])
        .refused(9, &["forebay: max_retries of the existing group work/team", "value=`3` requested=`4`"]);
    server.run(&["group", "create", "work"]).refused(2, &["STREAM/GROUP"]);
    server.run(&["group", "set", "work/team", "max_retries=unlimited", "rate.per_second=5"]).good();
    server.run(&["group", "set", "work/team", "strategy=random"]).refused(2, &["strategy"]);
    let shown = server.run(&["group", "show", "work/team", "-o", "json"]).json();
    assert_eq!((&shown["settings"]["max_retries"], &shown["lag"]), (&"unlimited".into(), &0.into()));
    let shown = server.run(&["group", "show", "work/team"]).good();
    assert!(
        shown.lines().any(|line| line.contains("settings rate.per_second") && line.ends_with("5.0")),
        "{shown}"
    );

    server.run(&["pub", "work", "a", "b", "c"]).good();
    assert_eq!(server.run(&["group", "pause", "work/team"]).good(), "paused the group work/team\n");
    let list = server.run(&["group", "list"]).good();
    assert!(list.lines().any(|line| line.starts_with("work/team") && line.contains("paused")), "{list}");
    assert_eq!(server.run(&["group", "resume", "work/team", "-o", "json"]).json(), json!({"paused": false}));
    let list = server.run(&["group", "list", "work", "-o", "json"]).json();
    assert_eq!((&list["groups"][0]["lag"], &list["next"]), (&3.into(), &json!(null)));
    server.run(&["group", "list", "nothing"]).refused(8, &["no such stream"]);

    let moved = server.run(&["group", "reset", "work/team", "--to", "3", "--yes"]).good();
    assert_eq!(moved, "the group work/team continues after position 2\n");
    assert_eq!(server.run(&["group", "show", "work/team", "-o", "json"]).json()["lag"], 1);
    server.run(&["group", "reset", "work/team", "--to", "later"]).refused(2, &["beginning, end"]);
    let scaling = ["group", "scaling", "work/team", "--target-drain", "5m", "--min", "2", "--max", "9"];
    assert!(server.run(&scaling).good().starts_with("consumers wanted"));
    assert_eq!(server.run(&[&scaling[..], &["-o", "json"]].concat()).json()["desired_consumers"], 2);
    assert_eq!(
        server.run(&["group", "delete", "work/team", "--yes"]).good(),
        "deleted the group work/team\n"
    );
    server.run(&["group", "show", "work/team"]).refused(8, &["no such group"]);
    server.stop();
}

#[test]
fn parked_messages_are_seen_replayed_resubmitted_and_discarded() {
    let server = Server::start();
    for n in 1..=4 {
        let key = format!("k{n}");
        server.run(&["pub", "work", &format!("body {n}"), "--key", &key, "--type", "job"]).good();
    }
    server.run(&["group", "create", "work/team"]).good();
    let park =
        ["sub", "work/team", "--nack", "park", "--reason", "no good", "--max", "4", "--name", "tester"];
    server.run(&park).good();
    let list = server.run(&["parked", "list", "work/team", "-o", "json"]).json();
    assert_eq!(list["parked"].as_array().map(Vec::len), Some(4), "{list}");
    let table = server.run(&["parked", "list", "work/team", "--key", "k2"]).good();
    let row = table.lines().nth(1).expect("a row");
    assert!(row.contains("no good") && row.contains("body 2") && row.contains("tester"), "{table}");
    assert_eq!(table.lines().count(), 2, "{table}");
    let reasons = server.run(&["parked", "reasons", "work/team"]).good();
    assert!(reasons.lines().nth(1).is_some_and(|line| line.trim_start().starts_with('4')), "{reasons}");

    let shown = server.run(&["parked", "show", "work/team", "2"]).good();
    assert!(shown.contains("body 2") && shown.contains("no good"), "{shown}");
    assert_eq!(server.run(&["parked", "show", "work/team", "2", "-o", "json"]).json()["seq"], 2);
    server.run(&["parked", "show", "work/team", "9"]).refused(8, &["not parked"]);

    server.run(&["parked", "replay", "work/team"]).refused(2, &["nothing is selected"]);
    let dry = server.run(&["parked", "replay", "work/team", "--all", "--dry-run", "-o", "json"]).json();
    assert_eq!((&dry["matched"], &dry["job"]), (&4.into(), &json!(null)));
    server.run(&["parked", "replay", "work/team", "1"]).good();
    assert_eq!(server.run(&["sub", "work/team", "--ack", "--max", "1", "--raw"]).good(), "body 1\n");
    server.run(&["parked", "replay", "work/team", "--key", "k2", "--rate", "1000"]).good();
    assert_eq!(server.run(&["sub", "work/team", "--ack", "--max", "1", "--raw"]).good(), "body 2\n");
    let jobs = server.run(&["parked", "jobs", "work/team"]).good();
    assert!(jobs.contains("replay"), "{jobs}");
    server.run(&["parked", "jobs", "work/team", "4711"]).refused(8, &["forebay: "]);
    server.run(&["parked", "cancel", "work/team", "4711"]).refused(8, &["forebay: "]);

    let edited =
        server.run(&["parked", "resubmit", "work/team", "3", "--body", "better", "-o", "json"]).json();
    assert_eq!(edited["seq"], 5, "{edited}");
    let again = server.run(&["sub", "work/team", "--ack", "--max", "1", "-o", "json"]).json();
    assert_eq!(
        (&again["key"], &again["type"], &again["body_text"]),
        (&"k3".into(), &"job".into(), &"better".into())
    );
    server.run(&["parked", "resubmit", "work/team", "4"]).refused(2, &["--body"]);
    server.run(&["parked", "discard", "work/team", "--all", "--yes"]).good();
    // A discard is a job, and may take a turn or two.
    let left = (0..100).map(|_| server.run(&["parked", "list", "work/team", "-o", "json"]).json());
    assert!(left.into_iter().any(|list| list["parked"] == json!([])), "they are dropped");
    server.stop();
}

#[test]
fn parked_messages_are_moved_to_another_stream() {
    let server = Server::start();
    server.run(&["group", "create", "work/team"]).good();
    for (n, reason) in [(1, "bad"), (2, "bad"), (3, "worse")] {
        server.run(&["pub", "work", &format!("body {n}"), "--key", &format!("k{n}")]).good();
        server.run(&["sub", "work/team", "--nack", "park", "--reason", reason, "--max", "1"]).good();
    }
    let bad = ["parked", "move", "work/team", "--reason", "bad", "--to", "quarantine"];
    server.run(&bad).refused(8, &["no such stream"]);
    server.run(&["parked", "move", "work/team", "--all", "--to", "work"]).refused(8, &["no such stream"]);
    server.run(&["parked", "move", "work/team", "--all"]).refused(2, &["--to"]);
    server.run(&["stream", "create", "quarantine"]).good();
    let counted = server.run(&[&bad[..], &["--dry-run"]].concat()).good();
    assert_eq!(counted.trim(), "2 messages would be moved to quarantine");
    let begun = server.run(&bad).good();
    assert!(begun.starts_with("2 messages to be moved to quarantine, as job 1"), "{begun}");
    // A move is a job, and may take a turn or two.
    let mut jobs = (0..100).map(|_| server.run(&["parked", "jobs", "work/team", "1", "-o", "json"]).json());
    let job = jobs.find(|job| job["state"] == "done").expect("it ends");
    assert_eq!((&job["work"], &job["done"], &job["failed"]), (&"move_parked".into(), &2.into(), &0.into()));
    let table = server.run(&["parked", "jobs", "work/team"]).good();
    assert!(table.contains("move parked to quarantine"), "{table}");
    let moved = server.run(&["stream", "browse", "quarantine", "-o", "json"]).json();
    let moved: Vec<_> = moved["messages"].as_array().expect("a list").iter().map(|one| &one["key"]).collect();
    assert_eq!(moved, ["k1", "k2"]);
    let left = server.run(&["parked", "list", "work/team", "-o", "json"]).json();
    assert_eq!(left["parked"].as_array().map(Vec::len), Some(1), "{left}");
    assert_eq!(left["parked"][0]["seq"], 3);
    server.stop();
}

#[test]
fn a_command_that_destroys_data_needs_yes_without_a_terminal() {
    let server = Server::start();
    server.run(&["group", "create", "work/team"]).good();
    server.run(&["pub", "work", "a", "b"]).good();
    for words in [
        &["stream", "delete", "work"][..],
        &["stream", "purge", "work"],
        &["group", "delete", "work/team"],
        &["group", "reset", "work/team", "--to", "end"],
        &["parked", "discard", "work/team", "--all"],
    ] {
        server.run_with(words, "y\n").refused(2, &["--yes", "cannot be undone"]);
    }
    assert_eq!(server.run(&["group", "show", "work/team", "-o", "json"]).json()["lag"], 2, "all is there");
    let beyond = server.run(&["group", "reset", "work/team", "--to", "99999999", "--yes"]);
    beyond.refused(9, &["position=`99999999`", "last=`2`"]);
    assert_eq!(
        server.run(&["group", "show", "work/team", "-o", "json"]).json()["lag"],
        2,
        "nothing is settled"
    );
    server.stop();
}

#[test]
fn a_mistyped_name_creates_nothing() {
    let server = Server::start();
    server.run(&["group", "create", "work/team"]).good();
    server.run(&["sub", "work/taem", "--max", "1"]).refused(8, &["no group work/taem", "--create"]);
    server.run(&["pub", "work/team", "x"]).refused(8, &["no stream work/team", "such as work."]);
    server.run(&["group", "create", "work/"]).refused(2, &["STREAM/GROUP"]);
    let groups = server.run(&["group", "list", "-o", "json"]).json();
    assert_eq!(groups["groups"].as_array().map(Vec::len), Some(1), "{groups}");
    let streams = server.run(&["stream", "list", "-o", "json"]).json();
    assert_eq!(streams["streams"].as_array().map(Vec::len), Some(1), "{streams}");
    // A stream may have a slash in its name if that is asked for.
    server.run(&["stream", "create", "eu/orders"]).good();
    server.run(&["pub", "eu/orders", "x"]).good();
    assert_eq!(
        server.run(&["sub", "eu/orders/team", "--create", "--ack", "--max", "1", "--raw"]).good(),
        "x\n"
    );
    server.run(&["pub", "work", "x", "--ttl", "0s"]).refused(2, &["greater than zero"]);
    server.run(&["pub", "work", "x", "--ttl", "1s", "--delay", "2s"]).refused(2, &["--ttl", "ttl=`1s`"]);
    server.stop();
}

#[test]
fn a_stream_is_followed_and_settings_have_units() {
    let server = Server::start();
    server.run(&["stream", "create", "emails", "limits.max_bytes=10MiB", "ingress_rate=6000/m"]).good();
    let settings = server.run(&["stream", "show", "emails", "-o", "json"]).json()["settings"].clone();
    assert_eq!(settings["limits"]["max_bytes"], 10 << 20);
    assert_eq!(settings["ingress_rate"]["per_second"], 100.0);
    server.run(&["stream", "set", "emails", "limits.max_bytes=ten"]).refused(2, &["a size is a number"]);
    server.run(&["pub", "emails", "a"]).good();
    let followed =
        server.run(&["stream", "follow", "emails", "--from", "1", "--max", "1", "-o", "json"]).json();
    assert_eq!(followed["seq"], 1);
    let address = server.address.clone();
    let following = std::thread::spawn(move || {
        run(&["--server", &address, "stream", "follow", "emails", "--from", "1", "--max", "2"], "", &[])
            .good()
    });
    server.run(&["pub", "emails", "b"]).good();
    let followed = following.join().expect("it ran");
    let bodies: Vec<&str> = followed.lines().filter_map(|line| line.rsplit('\t').next()).collect();
    assert_eq!(bodies, ["a", "b"], "{followed}");
    server.run(&["stream", "follow", "none"]).refused(8, &["no such stream. stream=`none`"]);
    server.stop();
}

#[test]
fn refusals_say_what_to_do() {
    let server = Server::start();
    server.run(&["group", "show", "emails/nope"]).refused(8, &["`forebay stream list` lists the streams"]);
    server.run(&["stream", "show", "nope"]).refused(8, &["`forebay stream list` lists the streams"]);
    server.run(&["group", "create", "emails/senders", "max_retries=5"]).good();
    server.run(&["group", "show", "emails/nope"]).refused(8, &["`forebay group list` lists the groups"]);
    server
        .run(&["group", "create", "emails/senders", "max_retries=7"])
        .refused(9, &["`forebay group set emails/senders max_retries=7` changes it"]);
    // What does not exist is not asked about.
    server.run(&["group", "delete", "emails/nope"]).refused(8, &["no such group"]);
    server.run(&["stream", "delete", "nope"]).refused(8, &["no such stream"]);
    let asked = server.run(&["group", "delete", "emails/senders"]);
    asked.refused(2, &["forebay: Delete the group emails/senders with its progress", "--yes confirms it"]);
    let replayed = server.run(&["parked", "replay", "emails/senders", "--reason", "smtp is down"]);
    assert!(
        replayed.said.contains("`forebay parked reasons emails/senders` lists them"),
        "{}",
        replayed.said
    );
    server.run(&["pub", "emails", "a", "b"]).good();
    server.run(&["sub", "emails/senders", "--ack", "--max", "2"]).good();
    server.run(&["stream", "truncate", "emails", "--before", "3", "--yes"]).good();
    let reset = server.run(&["group", "reset", "emails/senders", "--to", "beginning", "--yes"]).good();
    assert!(reset.contains("unless the stream's `retention` keeps them"), "{reset}");
    server.stop();
    run(&["--context", "foo", "stream", "list"], "", &[])
        .refused(8, &["`forebay context add NAME ADDRESS` adds one"]);
}

#[test]
fn a_new_stream_without_a_group_is_named_as_such() {
    let server = Server::start();
    let first = server.run(&["pub", "emials", "hi"]);
    assert!(first.said.contains("stored 1 message in the new stream emials, which has no group yet"));
    let second = server.run(&["pub", "emials", "hi"]);
    assert_eq!(second.said.trim(), "stored 1 message in emials");
    server.stop();
}

#[test]
fn a_delayed_message_is_shown_apart_and_is_no_backlog() {
    let server = Server::start();
    server.run(&["group", "create", "later/g"]).good();
    server.run(&["pub", "later", "--delay", "10m", "hi"]).good();
    server.run(&["pub", "later", "--delay", "10m", "ho"]).good();
    let shown = server.run(&["group", "show", "later/g", "-o", "json"]).json();
    assert_eq!(
        (&shown["lag"], &shown["delayed"], &shown["oldest_age"], &shown["status"], &shown["catch_up_time"]),
        (&2.into(), &2.into(), &Value::Null, &"idle".into(), &0.0.into())
    );
    let scaling = server.run(&["group", "scaling", "later/g", "-o", "json"]).json();
    assert_eq!((&scaling["backlog"], &scaling["oldest_age"]), (&0.into(), &0.0.into()));
    let shown = server.run(&["group", "show", "later/g"]).good();
    assert!(shown.contains("2 messages, 2 delayed\n") && !shown.contains("never"), "{shown}");
    let shown = server.run(&["group", "list"]).good();
    assert!(shown.lines().next().is_some_and(|line| line.contains("DELAYED")), "{shown}");
    server.stop();
}

#[test]
fn top_prints_everything_once_where_there_is_no_terminal() {
    let server = Server::start();
    server.run(&["group", "create", "work/team"]).good();
    server.run(&["pub", "work", "a", "b"]).good();
    let shown = server.run(&["top"]).good();
    assert!(shown.starts_with("STREAM"), "{shown}");
    assert!(shown.lines().any(|line| line.starts_with("work/team") && line.contains(" idle ")), "{shown}");
    assert!(!shown.contains('\u{1b}'), "{shown}");
    let shown = server.run(&["top", "--once", "--sort", "parked", "-o", "json"]).json();
    assert_eq!((&shown["streams"][0]["stream"], &shown["groups"][0]["lag"]), (&"work".into(), &2.into()));
    server.stop();
    run(&["top", "--sort", "size"], "", &[]).refused(2, &["parked"]);
}

#[test]
fn a_failure_of_the_command_itself_is_json_too_if_that_is_asked_for() {
    for words in [&["group", "list"][..], &["pub", "emails", "hello"]] {
        let asked = [words, &["--server", "127.0.0.1:1", "-o", "json"]].concat();
        let failed = forebay(&asked, "").refused(7, &[]);
        let said: Value = serde_json::from_str(&failed.said).expect("one line of JSON");
        assert_eq!(said["exit_code"], 7, "{said}");
        assert!(said["detail"].as_str().is_some_and(|detail| detail.contains("127.0.0.1:1")), "{said}");
        assert!(said["title"].is_string() && failed.printed.is_empty(), "{failed:?}");
    }
}
