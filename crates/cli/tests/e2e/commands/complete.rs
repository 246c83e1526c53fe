//! Completion in bash, with the script that the binary prints.

use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::commands::rig::Server;

/// Calls the function that bash calls for the Tab key, with the words as bash has split them.
const TAB: &str = r#"
source <(forebay completions bash)
COMP_LINE=$1 COMP_POINT=${#1}
shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
how=$(complete -p forebay)
function=${how#*-F }
${function%% *} forebay "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\n' "${COMPREPLY[@]}"
"#;

/// The completions of a line, and everything that was printed beside them.
fn tab(server: &str, line: &str, words: &[&str]) -> (Vec<String>, String) {
    let binary = std::path::Path::new(env!("CARGO_BIN_EXE_forebay")).parent().expect("a folder");
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap_or_default());
    let ran = Command::new("bash")
        .args(["-c", TAB, "bash", line])
        .args(words)
        .env("PATH", path)
        .env("FOREBAY_SERVER", server)
        .stdin(Stdio::null())
        .output()
        .expect("bash runs");
    let lines = String::from_utf8_lossy(&ran.stdout).lines().map(str::to_owned).collect();
    (lines, String::from_utf8_lossy(&ran.stderr).into_owned())
}

/// The completions of a line that bash splits at spaces.
#[track_caller]
fn completed(server: &str, line: &str) -> Vec<String> {
    let (found, said) = tab(server, line, &line.split(' ').collect::<Vec<_>>());
    assert_eq!(said, "", "nothing may disturb the line that a person is typing");
    found
}

#[test]
fn bash_completes_the_names_of_streams_and_groups() {
    let server = Server::start();
    for group in ["emails/senders", "emails/audit", "orders/billing", "a:b/team", "two words/team"] {
        server.run(&["group", "create", group]).good();
    }
    let at = server.address.as_str();
    assert_eq!(completed(at, "forebay sub em"), ["emails/audit", "emails/senders"]);
    assert_eq!(completed(at, "forebay group show emails/s"), ["emails/senders"]);
    assert_eq!(completed(at, "forebay pub o"), ["orders"]);
    assert_eq!(completed(at, "forebay pub t"), ["two\\ words"], "ready to be put on the line");
    assert_eq!(completed(at, "forebay sub none"), [""], "nothing begins so");
    // Bash ends words at a colon, so it replaces only the part after it.
    let (found, _) = tab(at, "forebay sub a:b/", &["forebay", "sub", "a", ":", "b/"]);
    assert_eq!(found, ["b/team"]);
    assert!(completed(at, "forebay grou").contains(&"group".to_owned()), "commands are completed as before");
    assert!(completed(at, "forebay sub --a").contains(&"--ack".to_owned()), "and flags");
    server.stop();
}

#[test]
fn a_server_that_does_not_answer_delays_a_person_for_a_moment_only() {
    assert_eq!(completed("127.0.0.1:1", "forebay sub em"), [""], "no server");
    // Accepts connections and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = silent.local_addr().expect("it is bound").to_string();
    let since = Instant::now();
    assert_eq!(completed(&address, "forebay sub em"), [""]);
    // The limit is 300 ms; the rest is for two processes on a busy machine.
    assert!(since.elapsed() < Duration::from_secs(5), "{:?}", since.elapsed());
}
