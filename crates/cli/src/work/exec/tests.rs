use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use super::*;

/// A folder that goes when the test does.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("forebay-exec-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a folder can be made");
        Folder(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// The number that a handler writes into a file, once it has.
    async fn number(&self, name: &str) -> u32 {
        loop {
            let text = std::fs::read_to_string(self.0.join(name)).unwrap_or_default();
            if let Some(number) = text.strip_suffix('\n').and_then(|text| text.parse().ok()) {
                return number;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn exec(command: &str, timeout: Option<Duration>) -> Exec {
    exec_with(command, timeout, watch::channel(false).1)
}

fn exec_with(command: &str, timeout: Option<Duration>, hurry: watch::Receiver<bool>) -> Exec {
    let server = Server::at("127.0.0.1:7070");
    Exec::new(command, timeout, &server, Console::discarding(), hurry).expect("the command can be run")
}

async fn run(command: &str, task: &Task<'_>) -> Result<(), Fault> {
    exec(command, None).run_task(task, std::future::pending()).await
}

/// Whether a process runs, and is not a zombie that its parent has not waited for yet.
fn lives(process: u32) -> bool {
    let shown = std::process::Command::new("ps")
        .args(["-o", "stat=", "-p", &process.to_string()])
        .stderr(Stdio::null())
        .output()
        .expect("there is a ps command");
    let state = String::from_utf8_lossy(&shown.stdout);
    !state.trim().is_empty() && !state.trim().starts_with('Z')
}

async fn gone(process: u32) -> bool {
    for _ in 0..400 {
        if !lives(process) {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    false
}

#[tokio::test]
async fn how_a_handler_ends_says_what_becomes_of_its_message() {
    let body = Bytes::from_static(b"hello");
    let task = Task::plain(&body);
    run("test \"$(cat)\" = hello", &task).await.expect("acked");
    for (command, class, reason) in [
        ("exit 75", Class::Transient, "exit code 75"),
        ("echo no room >&2; exit 75", Class::Transient, "no room"),
        ("echo 'no such\n\n user' >&2; exit 65", Class::Permanent, "no such | user"),
        ("echo unsubscribed >&2; exit 99", Class::Skip, "unsubscribed"),
        ("exit 3", Class::Transient, "exit code 3"),
        ("echo oops >&2; exit 1", Class::Transient, "exit code 1: oops"),
        ("kill -9 $$", Class::Transient, "ended by SIGKILL"),
        ("echo then >&2; kill -SEGV $$", Class::Transient, "ended by SIGSEGV: then"),
        ("exit 137", Class::Transient, "exit code 137 (SIGKILL)"),
    ] {
        let fault = run(command, &task).await.expect_err(command);
        assert_eq!(fault.class(), Some(class), "{command}");
        assert_eq!(fault.reason(), reason, "{command}");
    }
}

#[tokio::test]
async fn the_end_of_what_a_handler_says_becomes_the_reason() {
    let body = Bytes::new();
    let command =
        "i=0; while [ $i -lt 500 ]; do echo \"line $i of many\" >&2; i=$((i+1)); done; echo end >&2; exit 1";
    let fault = run(command, &Task::plain(&body)).await.expect_err("it fails");
    let reason = fault.reason();
    assert!(reason.len() <= REASON_BYTES_MAX, "{}", reason.len());
    assert!(reason.starts_with("exit code 1: …") && reason.ends_with("line 499 of many | end"), "{reason}");
    let fault = run("printf 'a\\377b\\n' >&2; exit 65", &Task::plain(&body)).await.expect_err("it fails");
    assert_eq!(fault.reason(), "a\u{fffd}b");
}

#[tokio::test]
async fn a_large_body_goes_through_a_handler_that_answers_while_it_reads() {
    let body = Bytes::from("0123456789abcde\n".repeat(1 << 16));
    let task = Task::plain(&body);
    // Without the pipes being read at once, this would wait for ever.
    let command = "cat >&2; exit 65";
    let fault = run(command, &task).await.expect_err("it fails");
    assert!(fault.reason().ends_with("| 0123456789abcde"), "{}", fault.reason());
    run("test $(wc -c) = 1048576", &task).await.expect("all of it came");
    run("exec <&-; exit 0", &task).await.expect("nobody must read it");
    run("head -c 10 >/dev/null", &task).await.expect("nor all of it");
}

#[tokio::test]
async fn fields_are_in_the_environment() {
    let body = Bytes::new();
    let task = Task { id: Some("email-17"), headers: vec![("trace-id", "a b")], ..Task::plain(&body) };
    let command =
        "test \"$FOREBAY_STREAM/$FOREBAY_GROUP/$FOREBAY_SEQ/$FOREBAY_ATTEMPT\" = emails/senders/12/1 &&
         test \"$FOREBAY_ID\" = email-17 && test \"$FOREBAY_HEADER_TRACE_ID\" = 'a b' &&
         test \"$FOREBAY_SERVER\" = 127.0.0.1:7070 && test -z \"${FOREBAY_KEY+set}\"";
    run(command, &task).await.expect("all of them are there");
}

#[tokio::test]
async fn a_handler_that_takes_too_long_is_ended_with_all_it_has_started() {
    let folder = Folder::new("timeout");
    let body = Bytes::new();
    let file = folder.path("child");
    let command = format!("echo working >&2; sleep 300 & echo $! > {file}; wait");
    let exec = exec(&command, Some(Duration::from_secs(1)));
    let fault = exec.run_task(&Task::plain(&body), std::future::pending()).await.expect_err("too long");
    assert_eq!(fault.class(), Some(Class::Transient));
    assert_eq!(fault.reason(), "timed out after 1s: working");
    assert!(gone(folder.number("child").await).await);
}

#[tokio::test]
async fn a_job_that_is_no_longer_ours_is_ended_even_if_it_does_not_listen() {
    let folder = Folder::new("cancel");
    let body = Bytes::new();
    let file = folder.path("child");
    let command = format!("trap '' TERM; sleep 300 & echo $! > {file}; wait");
    let cancelled = async {
        folder.number("child").await;
    };
    let fault = exec(&command, None).run_task(&Task::plain(&body), cancelled).await.expect_err("cancelled");
    assert_eq!(fault.reason(), "the lease was lost");
    assert!(gone(folder.number("child").await).await);
}

#[tokio::test]
async fn a_handler_that_is_asked_to_end_may_still_finish() {
    let folder = Folder::new("hurry");
    let body = Bytes::new();
    for (name, at_the_end, finished) in [
        ("done", "exit 0", Some(Ok(()))),
        ("parked", "exit 65", Some(Err(Class::Permanent))),
        ("other", "exit 1", None),
    ] {
        let file = folder.path(name);
        let command = format!("trap '{at_the_end}' TERM; echo $$ > {file}; while :; do sleep 0.01; done");
        let (hurry, hurried) = watch::channel(false);
        let exec = exec_with(&command, None, hurried);
        let task = Task::plain(&body);
        let asked = async {
            folder.number(name).await;
            hurry.send(true).expect("it listens");
        };
        let (ended, ()) = tokio::join!(exec.run_task(&task, std::future::pending()), asked);
        let ended = ended.map_err(|fault| fault.class().expect("it is said"));
        assert_eq!(ended, finished.unwrap_or(Err(Class::Snooze(Duration::ZERO))), "{name}");
    }
}

#[tokio::test]
async fn nothing_is_left_behind_by_a_job_that_is_dropped() {
    let folder = Folder::new("drop");
    let body = Bytes::new();
    let file = folder.path("child");
    let exec = exec(&format!("sleep 300 & echo $! > {file}; wait"), None);
    let task = Task::plain(&body);
    tokio::select! {
        _ = exec.run_task(&task, std::future::pending()) => panic!("it sleeps"),
        () = async { assert!(lives(folder.number("child").await)) } => {}
    }
    assert!(gone(folder.number("child").await).await);
}

#[tokio::test]
async fn what_a_handler_leaves_in_the_background_is_neither_waited_for_nor_ended() {
    let folder = Folder::new("background");
    let body = Bytes::new();
    let file = folder.path("child");
    let command = format!("sleep 300 & echo $! > {file}");
    run(&command, &Task::plain(&body)).await.expect("acked");
    let child = folder.number("child").await;
    assert!(lives(child));
    let _ = std::process::Command::new("kill").arg(child.to_string()).status();
}

#[test]
fn a_command_that_cannot_be_run_is_refused_before_any_message() {
    let folder = Folder::new("check");
    let script = folder.path("handler.sh");
    std::fs::write(&script, "exit 0\n").expect("it can be written");
    let said = |command: &str| {
        let error = check(command).expect_err(command);
        assert_eq!(error.downcast_ref::<Exit>(), Some(&Exit::NotUnderstood), "{command}");
        crate::exit::text(&error)
    };
    assert!(said("").contains("it is not a command"));
    assert!(said("./no-such-handler --fast").contains("No such file"));
    assert!(said("no-such-command-at-all x | cat").contains("there is no command `no-such-command-at-all`"));
    assert!(said("if true").contains("--exec cannot run this: "));
    assert!(said(&script).contains("chmod +x"), "{}", said(&script));
    assert!(said(&folder.path("")).contains("is not a file that can be run"));
    assert!(Path::new(&script).exists());
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("it can be changed");
    for command in
        [&*script, "exit 65", "if true; then cat; fi", "A=1 whatever", "cat | wc -c", "\"$HANDLER\" x"]
    {
        check(command).expect(command);
    }
}
