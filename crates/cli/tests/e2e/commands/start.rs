//! Settings and where they come from, the log, and settings that are refused before anything starts.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::Value;

use crate::commands::rig::{Server, exists};
use crate::rig::{Folder, run};

fn setting<'a>(shown: &'a Value, name: &str) -> &'a Value {
    let all = shown["settings"].as_array().expect("a list");
    all.iter().find(|setting| setting["name"] == name).unwrap_or_else(|| panic!("no {name}"))
}

#[test]
fn a_flag_counts_before_the_environment_before_the_file_before_the_default() {
    let folder = Folder::made("precedence");
    let file = folder
        .write("forebay.toml", "# ours\nlisten = \"127.0.0.1:1\"\ndata = \"here\"\ndrain_timeout = \"3s\"\n");
    let environment =
        [("FOREBAY_LISTEN", "127.0.0.1:2"), ("FOREBAY_DATA", "there"), ("FOREBAY_CONFIG", &file)];
    let shown = run(&["config", "show", "--listen", "127.0.0.1:3", "-o", "json"], "", &environment).json();
    let listen = setting(&shown, "listen");
    assert_eq!((&listen["value"], &listen["from"]), (&"127.0.0.1:3".into(), &"flag".into()));
    let data = setting(&shown, "data");
    assert_eq!((&data["value"], &data["given_as"]), (&"there".into(), &"FOREBAY_DATA".into()));
    let drain = setting(&shown, "drain_timeout");
    assert_eq!(
        (&drain["value"], &drain["file"], &drain["line"]),
        (&"3s".into(), &file.clone().into(), &4.into())
    );
    assert_eq!(setting(&shown, "memory")["from"], "default");

    let table = run(&["config", "show", "--config", &file], "", &[]).good();
    let line =
        |name: &str| table.lines().find(|line| line.starts_with(name)).expect("it is listed").to_owned();
    assert!(line("listen").contains("127.0.0.1:1") && line("listen").ends_with(":2"), "{table}");
    assert!(line("memory").ends_with("default"), "{table}");
    assert!(!table.contains('\u{1b}'), "no colours without a terminal");
}

#[test]
fn a_wrong_setting_is_an_error_that_says_where_it_is() {
    let folder = Folder::made("wrong");
    let file = folder.write("typo.toml", "data = \"d\"\n\nlisen = \"127.0.0.1:1\"\n");
    run(&["serve", "--config", &file], "", &[]).refused(2, &["key=`lisen`", "line=`3`", "typo.toml"]);
    let file = folder.write("value.toml", "drain_timeout = \"soon\"\n");
    run(&["serve", "--config", &file], "", &[]).refused(2, &["key=`drain_timeout`", "line=`1`", "30s"]);
    let gone = folder.file("gone.toml");
    run(&["serve", "--config", &gone], "", &[]).refused(2, &["gone.toml"]);
    let environment = [("FOREBAY_MAX_CONNECTIONS", "many")];
    run(&["serve"], "", &environment).refused(2, &["FOREBAY_MAX_CONNECTIONS", "many", "expected a number"]);
    run(&["serve", "--segment-bytes", "1MiB"], "", &[]).refused(2, &["--segment-bytes", "32MiB"]);
    let data = folder.file("data");
    let small = ["serve", "--listen", "127.0.0.1:0", "--data", &data, "--disk-max-bytes", "100MiB"];
    run(&small, "", &[]).refused(2, &["needed=`"]);
}

#[test]
fn only_explicit_words_let_anyone_in() {
    let folder = Folder::made("anyone");
    let data = folder.file("data");
    let open = ["serve", "--listen", "0.0.0.0:0", "--data", &data];
    run(&open, "", &[]).refused(2, &["authentication", "--allow-anyone"]);
    assert!(!exists(&data), "nothing was made");
    let server = Server::start_first(&["--memory", "--listen", "0.0.0.0:0", "--allow-anyone"]);
    assert_eq!(server.first["level"], "warn");
}

#[test]
fn the_log_is_json_where_there_is_no_terminal_and_says_what_matters() {
    let folder = Folder::made("log");
    let server = Server::start_with(&["--data", &folder.file("data")]);
    let first = &server.first;
    assert_eq!((&first["level"], &first["epoch"], &first["streams"]), (&"info".into(), &1.into(), &0.into()));
    assert!(first["version"].is_string() && first["opened_in"].is_number(), "{first}");
    assert!(first["data"].as_str().is_some_and(|data| data.ends_with("data")), "{first}");
    server.run(&["pub", "emails", "a secret"]).good();
    let log = server.stop();
    assert!(log.iter().any(|line| line["message"].as_str().is_some_and(|text| text.starts_with("stopping"))));
    assert!(!log.iter().any(|line| line.to_string().contains("secret")), "{log:?}");

    let server = Server::start_with(&["--data", &folder.file("data")]);
    assert_eq!((&server.first["epoch"], &server.first["streams"]), (&2.into(), &1.into()));
    server.stop();
    // A mistake is a line of the log too.
    let refused = run(&["serve", "--data", "/dev/null/x", "--listen", "127.0.0.1:0"], "", &[]);
    let line: Value = serde_json::from_str(&refused.said).expect("one line of JSON");
    assert_eq!((refused.code, &line["level"]), (1, &"error".into()));
    let text = run(&["serve", "--data", "/dev/null/x", "--listen", "127.0.0.1:0", "--log", "text"], "", &[]);
    assert!(text.said.contains(" ERROR forebay: "), "{}", text.said);
}

#[test]
fn completions_are_there_for_every_shell() {
    for (shell, text) in
        [("bash", "complete -F _forebay"), ("zsh", "#compdef forebay"), ("fish", "complete -c forebay")]
    {
        let script = run(&["completions", shell], "", &[]).good();
        assert!(script.contains(text) && script.contains("drain-timeout"), "{shell}");
    }
    run(&["completions", "cmd"], "", &[]).refused(2, &["bash"]);
}

#[test]
fn a_server_that_stops_says_what_it_waits_for() {
    let server = Server::start_with(&["--memory", "--drain-timeout", "500ms"]);
    server.run(&["pub", "work", "a", "b"]).good();
    let address = server.address.clone();
    let holding =
        std::thread::spawn(move || run(&["sub", "work/team", "--create", "--server", &address], "", &[]));
    let holds = || {
        let shown = server.run(&["group", "show", "work/team", "-o", "json"]);
        shown.code == 0 && shown.json()["in_flight"] == 2
    };
    assert!((0..1_000).any(|_| holds()), "the consumer has them");
    let log = server.stop();
    let waits = log.iter().find(|line| line["in_flight"] == 2).unwrap_or_else(|| panic!("{log:?}"));
    assert!(waits["message"].as_str().is_some_and(|text| text.contains("waits for 2 messages")), "{waits}");
    let held = holding.join().expect("it ran");
    assert_eq!((held.code, held.printed.lines().count()), (10, 2), "{held:?}");
}

#[test]
fn a_folder_that_is_as_large_as_it_may_be_is_a_full_disk() {
    let folder = Folder::made("full");
    let sizes = [
        "--disk-max-bytes=322MiB",
        "--segment-bytes=32MiB",
        "--reserve-bytes=128MiB",
        "--free-bytes-min=64MiB",
    ];
    let server = Server::start_with(&[&["--data", &folder.file("data")], &sizes[..]].concat());
    server.run(&["group", "create", "big/g"]).good();
    let line = format!("{}\n", "x".repeat(100_000));
    let full = ["pub", "big", "--retry-for", "1500ms"];
    server.run_with(&full, &line.repeat(1_500)).refused(10, &["storage is full", "were stored"]);
    server.run(&["sub", "big/g", "--ack", "--idle", "500ms"]).good();
    let log = server.stop();
    let warned =
        log.iter().any(|line| line["level"] == "warn" && line.to_string().contains("storage is full"));
    assert!(warned, "{log:?}");
}

/// The permissions of a file or folder.
fn mode(path: &str) -> u32 {
    std::fs::metadata(path).expect("it is there").permissions().mode() & 0o777
}

#[test]
fn a_data_folder_is_private_and_one_that_is_not_is_warned_about() {
    let folder = Folder::made("private");
    let data = folder.file("deep/data");
    Server::start_with(&["--data", &data]).stop();
    assert_eq!(mode(&data), 0o700);
    for entry in std::fs::read_dir(&data).expect("the folder can be listed") {
        let path = entry.expect("the folder can be listed").path();
        assert_eq!(mode(path.to_str().expect("text")), 0o600, "{}", path.display());
    }
    std::fs::set_permissions(&data, Permissions::from_mode(0o755)).expect("the mode can be set");
    let server = Server::start_first(&["--listen", "127.0.0.1:0", "--data", &data]);
    assert_eq!((&server.first["level"], &server.first["mode"]), (&"warn".into(), &"755".into()));
    assert_eq!(mode(&data), 0o755, "it stays as its owner made it");
}

#[test]
fn a_file_of_access_keys_that_everyone_can_write_to_is_refused() {
    let folder = Folder::made("keys-mode");
    let keys = folder.write("keys", "[a]\naws_access_key_id = A\naws_secret_access_key = s\n");
    std::fs::set_permissions(&keys, Permissions::from_mode(0o622)).expect("the mode can be set");
    let words = ["serve", "--memory", "--listen", "127.0.0.1:0", "--sqs", "127.0.0.1:0", "--sqs-keys", &keys];
    run(&words, "", &[]).refused(2, &["must not be writable for every user", "mode=`622`", "chmod 600"]);
}

#[test]
fn a_server_is_found_by_flag_context_and_variable() {
    let folder = Folder::made("contexts");
    let config = folder.file("config");
    let server = Server::start();
    let with = |words: &[&str]| run(words, "", &[("XDG_CONFIG_HOME", &config)]);
    with(&["context", "use", "local"]).refused(8, &["no context local"]);
    with(&["context", "add", "local", &server.address]);
    with(&["context", "add", "wrong", "127.0.0.1:1"]);
    with(&["context", "add", "other", "redis://a:1"]).refused(2, &["scheme=`redis`"]);
    let listed = with(&["context", "list", "-o", "json"]).json();
    assert_eq!((&listed["current"], &listed["servers"]["wrong"]), (&"local".into(), &"127.0.0.1:1".into()));
    assert!(with(&["ping"]).good().starts_with(&server.address), "the first context is the current one");
    with(&["--context", "wrong", "ping"]).refused(7, &["127.0.0.1:1", "connection refused"]);
    with(&["context", "use", "wrong"]);
    with(&["ping"]).refused(7, &["127.0.0.1:1"]);
    // Before the command or after it, and the first of several that answers.
    let several = format!("127.0.0.1:1,{}", server.address);
    with(&["--server", &several, "stream", "list"]).good();
    with(&["stream", "list", "--server", &several]).good();
    with(&["pub", "work", "x", "--server", &several]);
    with(&["stream", "list", "--server", "a:b"]).refused(2, &["HOST:PORT"]);
    with(&["serve", "--server", "a"]).refused(2, &["no meaning"]);
    let environment = [("XDG_CONFIG_HOME", &*config), ("FOREBAY_SERVER", &*server.address)];
    assert_eq!(run(&["ping", "-o", "json"], "", &environment).json()["server"], *server.address);
    with(&["context", "remove", "wrong"]);
    server.stop();
}

#[test]
fn a_settings_file_to_begin_with_is_written_once() {
    let folder = Folder::made("init");
    let file = folder.file("forebay.toml");
    run(&["config", "init", &file], "", &[]);
    let text = std::fs::read_to_string(&file).expect("it is there");
    assert!(text.contains("# listen = \"127.0.0.1:7070\""), "{text}");
    run(&["config", "show", "--config", &file], "", &[]).good();
    run(&["config", "init", &file], "", &[]).refused(9, &["was not changed"]);
}
