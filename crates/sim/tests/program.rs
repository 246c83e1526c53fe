//! The program from outside: what it prints, and with which code it ends. Since a test runs it, it is built along with
//! the tests, and `cargo xtask test` simulates with the program that lies there.

use std::process::{Command, Output};

fn sim(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_forebay-sim")).args(words).output().expect("the program runs")
}

#[test]
fn histories_that_keep_every_promise_end_well() {
    let ran = sim(&["sim", "--seeds", "2", "--from", "7", "--steps", "200"]);
    let printed = String::from_utf8_lossy(&ran.stdout);
    assert_eq!(ran.status.code(), Some(0), "{printed}");
    assert!(printed.starts_with("2 histories of 200 steps from seed 7"), "{printed}");
    assert!(printed.ends_with("sim: 2 passed, 0 failed\n"), "{printed}");
}

#[test]
fn words_that_are_not_understood_are_named() {
    for (words, named) in [(&["simulate"][..], "simulate"), (&["sim", "--seeds", "many"], "many")] {
        let ran = sim(words);
        let said = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(2), "{said}");
        assert!(said.contains(named) && said.contains("Usage:"), "{said}");
    }
}
