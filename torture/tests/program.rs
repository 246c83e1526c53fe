//! The program from outside: with which code it ends. Since a test runs it, it is built along with the tests, and
//! `cargo xtask test` tortures the server with the program that lies there.

use std::process::{Command, Output};

fn torture(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_forebay-torture")).args(words).output().expect("the program runs")
}

#[test]
fn words_that_are_not_understood_get_the_usage() {
    let ran = torture(&["run-around"]);
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(2), "{said}");
    assert!(said.contains("Usage: forebay-torture"), "{said}");
}

#[test]
fn a_history_that_cannot_be_read_and_a_server_that_is_not_there_are_named() {
    for words in [&["check", "no-such-history"][..], &["run", "--seconds", "1", "--server", "no-such-server"]]
    {
        let ran = torture(words);
        let said = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(1), "{said}");
        assert!(said.contains("no-such"), "{said}");
    }
}
