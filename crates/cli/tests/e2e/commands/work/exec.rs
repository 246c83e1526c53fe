//! A process for each message.

use std::collections::BTreeMap;

use serde_json::json;

use super::{Worker, body, group, impatient, parked, publish, until, work};
use crate::commands::rig::Server;
use crate::rig::{Folder, run};

#[test]
fn how_a_handler_ends_decides_what_becomes_of_its_message() {
    let folder = Folder::made("work-codes");
    let server = Server::start();
    impatient(&server, "jobs/team");
    publish(&server, "jobs", &["done", "later", "bad", "unwanted", "wrong", "crash"].map(body));
    let script = folder.write(
        "handler.sh",
        r#"case $(cat) in
             '"done"') exit 0 ;;
             '"later"') echo "not on try $FOREBAY_ATTEMPT" >&2; [ "$FOREBAY_ATTEMPT" = 3 ] && exit 0; exit 75 ;;
             '"bad"') echo 'no such user' >&2; exit 65 ;;
             '"unwanted"') exit 99 ;;
             '"wrong"') echo 'first line' >&2; echo oops >&2; exit 1 ;;
             '"crash"') kill -9 $$ ;;
           esac"#,
    );
    let became = work(&server, &["jobs/team", "--exec", &format!("sh {script}")]);
    let expected = json!({
        "stream": "jobs", "group": "team", "done": 2, "retried": 6, "parked": 3, "skipped": 1, "throttled": 0,
        "given_back": 0, "late": 0,
    });
    assert_eq!(became, expected);
    assert_eq!(group(&server, "jobs/team")["lag"], 0);
    let expected = [
        ("bad", 1, "no such user"),
        ("wrong", 3, "exit code 1: first line | oops"),
        ("crash", 3, "exit code 137 (SIGKILL): Killed"),
    ];
    let mut found = parked(&server, "jobs/team");
    // Some shells say that something was killed, and some replace themselves by it.
    found[2].2 = found[2].2.replace("ended by SIGKILL", "exit code 137 (SIGKILL): Killed");
    assert_eq!(
        found,
        expected.map(|(body, attempts, reason)| (body.to_owned(), attempts, reason.to_owned()))
    );
}

#[test]
fn a_handler_knows_everything_about_its_message_and_nothing_about_another() {
    let folder = Folder::made("work-fields");
    let server = Server::start();
    let full = json!({"id": "email-17", "type": "email.send", "key": "user-4", "headers": {"trace-id": "a b"},
                      "body": {"to": "a@example.com"}, "priority": 5, "schema": 2});
    publish(&server, "emails", &[full, json!({"body_base64": "AP8="})]);
    let out = folder.path();
    let command =
        format!("env | grep ^FOREBAY_ | sort > {out}/$FOREBAY_SEQ.env; cat > {out}/$FOREBAY_SEQ.body");
    // What this process has itself must not be taken for what the second message has.
    let environment =
        [("FOREBAY_SERVER", &*server.address), ("FOREBAY_ID", "mine"), ("FOREBAY_HEADER_X", "mine")];
    run(&["work", "emails/senders", "--create", "--exec", &command, "--idle", "1s"], "", &environment).good();
    let read =
        |name: &str| std::fs::read(folder.file(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let variables = |name: &str| -> BTreeMap<String, String> {
        let text = String::from_utf8(read(name)).expect("text");
        let pairs = text.lines().filter_map(|line| line.split_once('='));
        pairs
            .map(|(name, value)| (name.trim_start_matches("FOREBAY_").to_owned(), value.to_owned()))
            .collect()
    };
    let mut first = variables("1.env");
    assert!(first.remove("PUBLISHED_AT").is_some_and(|at| at.ends_with('Z')));
    let expected = [
        ("ATTEMPT", "1"),
        ("CONTENT_TYPE", "application/json"),
        ("GROUP", "senders"),
        ("HEADER_TRACE_ID", "a b"),
        ("ID", "email-17"),
        ("KEY", "user-4"),
        ("PRIORITY", "5"),
        ("SCHEMA", "2"),
        ("SEQ", "1"),
        ("SERVER", &server.address),
        ("STREAM", "emails"),
        ("TYPE", "email.send"),
    ];
    assert_eq!(first, expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
    assert_eq!(read("1.body"), br#"{"to":"a@example.com"}"#);
    let second: Vec<String> = variables("2.env").into_keys().collect();
    assert_eq!(
        second,
        ["ATTEMPT", "CONTENT_TYPE", "GROUP", "PRIORITY", "PUBLISHED_AT", "SEQ", "SERVER", "STREAM"]
    );
    assert_eq!(read("2.body"), [0, 0xff]);
}

#[test]
fn one_that_takes_too_long_is_ended_and_has_failed() {
    let folder = Folder::made("work-timeout");
    let server = Server::start();
    server.run(&["group", "create", "slow/team", "max_retries=0"]).good();
    publish(&server, "slow", &[body("x")]);
    let pid = folder.file("pid");
    let command = format!("echo $$ > {pid}; echo began >&2; sleep 300");
    let became = work(&server, &["slow/team", "--exec", &command, "--timeout", "1s"]);
    assert_eq!(became["parked"], 1);
    let expected = ("x".to_owned(), 1, "timed out after 1s: began".to_owned());
    assert_eq!(parked(&server, "slow/team"), [expected]);
    assert!(!super::stop::lives(&folder, "pid"), "it is gone");
}

#[test]
fn what_handlers_print_is_passed_on_with_their_message_and_cannot_act_on_a_terminal() {
    let server = Server::start();
    server.run(&["pub", "jobs", "a"]).good();
    let command = "printf 'out \\033[2J\\n'; echo err >&2; sleep 0.1; printf 'no end'";
    let ran = server.run(&["work", "jobs/team", "--create", "--exec", command, "--idle", "1s"]);
    assert_eq!((ran.code, &*ran.printed), (0, ""), "{ran:?}");
    for line in [
        "created the group jobs/team\n",
        "working on jobs/team",
        "1\t#1\tout \\x1b[2J\n",
        "1\t#1\terr\n",
        "1\t#1\tno end\n",
        "1 done\n",
    ] {
        assert!(ran.said.contains(line), "{line} is not in {}", ran.said);
    }
    server.run(&["pub", "jobs", "b"]).good();
    let ran = server.run(&["work", "jobs/team", "--create", "--exec", command, "--idle", "1s", "-o", "json"]);
    let lines: Vec<serde_json::Value> =
        ran.said.lines().map(|line| serde_json::from_str(line).expect("every line is JSON")).collect();
    let err = lines.iter().find(|line| line["output"] == "stderr").unwrap_or_else(|| panic!("{lines:?}"));
    assert_eq!((&err["message"], &err["seq"], &err["attempt"]), (&"err".into(), &2.into(), &1.into()));
}

#[test]
fn a_backlog_makes_it_do_more_at_a_time() {
    let folder = Folder::made("work-scale");
    let server = Server::start();
    let numbers: Vec<String> = (0..400).map(|n| n.to_string()).collect();
    server.run_with(&["pub", "jobs"], &numbers.join("\n")).good();
    let running = folder.file("running");
    std::fs::create_dir(&running).expect("a folder can be made");
    // As many files as handlers run.
    let most = folder.file("most");
    let command =
        format!("touch {running}/$$; ls {running} | wc -l >> {most}; sleep 0.2; rm {running}/$$; exit 0");
    let words = ["jobs/team", "--exec", &command, "--min", "1", "--max", "8", "--drain", "1s", "-o", "json"];
    let worker = Worker::start(&server, &words);
    let most = until("more than four at a time", || {
        let counts = std::fs::read_to_string(&most).ok()?;
        counts.lines().filter_map(|line| line.trim().parse::<u32>().ok()).max().filter(|most| *most > 4)
    });
    assert!(most <= 8, "{most}");
    worker.says("\"concurrency\":");
    worker.signal("-TERM");
    assert_eq!(worker.ended().code, 0);
}

#[test]
fn what_cannot_work_is_said_before_any_message_is_taken() {
    let server = Server::start();
    server.run(&["pub", "jobs", "a"]).good();
    let refused = |words: &[&str], code: i32, said: &[&str]| {
        server.run(&[&["work", "jobs/team"], words].concat()).refused(code, said);
    };
    refused(&["--exec", "./no-such-handler"], 2, &["--exec cannot run this", "./no-such-handler"]);
    refused(&["--exec", "no-such-command x"], 2, &["there is no command"]);
    refused(&["--exec", "if"], 2, &["--exec cannot run this"]);
    refused(&[], 2, &["--exec", "--push"]);
    refused(&["--exec", "cat", "--push", "http://a/"], 2, &["cannot be used with"]);
    refused(&["--push", "example.com"], 2, &["https://example.com/hook"]);
    refused(&["--exec", "cat", "--min", "4", "--max", "2"], 2, &["--max must be at least --min"]);
    refused(&["--exec", "cat", "--rate", "0"], 2, &["10/s"]);
    refused(&["--exec", "cat", "--timeout", "0s"], 2, &["none"]);
    refused(&["--exec", "cat", "--header", "a: b"], 2, &["cannot be used with"]);
    refused(&["--exec", "cat", "--server", "ftp://x"], 2, &["http"]);
    refused(&["--exec", "cat", "--server", "127.0.0.1:1"], 7, &["Is it running?"]);
    refused(&["--exec", "cat"], 8, &["there is no group jobs/team", "--create"]);
    let groups = server.run(&["group", "list", "-o", "json"]).json();
    assert_eq!(groups["groups"], json!([]));
}

#[test]
fn a_rate_is_kept() {
    let folder = Folder::made("work-rate");
    let server = Server::start();
    server.run_with(&["pub", "jobs"], "1\n2\n3\n4\n5\n6\n").good();
    let began = std::time::Instant::now();
    let became = work(&server, &["jobs/team", "--exec", "true", "--rate", "5/s"]);
    assert_eq!(became["done"], 6);
    // The first goes at once, and the other five take a second.
    assert!(began.elapsed() >= std::time::Duration::from_secs(1), "{:?}", began.elapsed());
    drop(folder);
}
