//! Encryption at rest, from outside: nothing planted is found in any file, and only its keys open a folder.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::http::rig::{Server, leases};
use crate::rig::{Folder, Ran, forebay, run};

/// Everything that a user or an operator gives a server to keep.
const PLANTED: [&str; 12] = [
    "planted-payload",
    "planted-key",
    "planted-header-name",
    "planted-header-value",
    "planted-type",
    "planted-id",
    "planted-stream",
    "planted-group",
    "planted-consumer",
    "planted-reason",
    "planted-token",
    "planted-access-key",
];

/// The planted texts that are found in the files of a folder, each with a file.
fn found_in(folder: &Folder) -> BTreeMap<&'static str, String> {
    let entries = std::fs::read_dir(folder.path()).expect("the folder is there");
    let paths = entries.map(|entry| entry.expect("the folder can be listed").path());
    let mut found = BTreeMap::new();
    for path in paths.filter(|path| !path.ends_with("RESERVE")) {
        let bytes = std::fs::read(&path).expect("a file can be read");
        let mut rest = &bytes[..];
        // All of them begin with the same letter, so most bytes are passed over quickly.
        while let Some(at) = rest.iter().position(|byte| *byte == b'p') {
            rest = &rest[at..];
            for text in PLANTED.into_iter().filter(|text| rest.starts_with(text.as_bytes())) {
                found.entry(text).or_insert_with(|| path.display().to_string());
            }
            rest = &rest[1..];
        }
    }
    found
}

/// A new key in a file, and its id.
fn key(folder: &Folder, name: &str) -> (String, String) {
    let file = folder.file(name);
    let made = forebay(&["encryption", "new-key", "--file", &file, "-o", "json"], "").json();
    (file, made["id"].as_str().expect("it has an id").to_owned())
}

fn start(folder: &Folder, keys: &str) -> Server {
    Server::start_as(folder, &["--encryption-key-file", keys])
}

/// Everything that was planted, kept by a server that was killed once, and saved in images.
fn plant(folder: &Folder, words: &[&str]) {
    let server = Server::start_as(folder, words);
    server.ok("PUT", "/streams/planted-stream", "{}");
    server.ok("PUT", "/streams/planted-stream/groups/planted-group", "{}");
    let message = |n: u32| {
        json!({ "id": format!("planted-id-{n}"), "key": "planted-key", "type": "planted-type",
            "headers": { "planted-header-name": "planted-header-value" },
            "body": format!("planted-payload {n} {}", "and more of it ".repeat(200)) })
    };
    let messages: Vec<Value> = (0..200).map(message).collect();
    server.ok("POST", "/streams/planted-stream/messages", &json!({ "messages": messages }).to_string());
    let receive = "/subscriptions/planted-stream/planted-group/receive";
    let got = server.ok("POST", receive, r#"{"max":2,"consumer":"planted-consumer"}"#);
    let got = got["messages"].as_array().expect("a list").clone();
    assert_eq!(got.len(), 2);
    let park = format!(r#"{{"leases":{},"action":"park","reason":"planted-reason"}}"#, leases(&got));
    server.ok("POST", "/subscriptions/planted-stream/planted-group/nack", &park);
    let command = |words: &[&str]| run(words, "", &[("FOREBAY_SERVER", &server.address)]).good();
    command(&["token", "create", "planted-token", "--may", "publish:planted-stream"]);
    command(&["key", "create", "planted-access-key", "--may", "publish:planted-stream"]);
    server.kill();
    Server::start_as(folder, words).stop();
}

fn check(server: &Server) {
    let parked = server.ok("GET", "/streams/planted-stream/groups/planted-group/parked", "");
    let parked = parked["parked"].as_array().expect("a list");
    assert_eq!(parked.len(), 2);
    assert!(parked.iter().all(|one| one["reason"] == "planted-reason"), "{parked:?}");
    let got = server.ok("GET", "/streams/planted-stream/messages?from=1&limit=500", "");
    let got = got["messages"].as_array().expect("a list");
    let bodies =
        got.iter().filter(|one| one["body"].as_str().is_some_and(|body| body.starts_with(PLANTED[0])));
    assert_eq!(bodies.count(), 200, "all of them are there");
}

#[track_caller]
fn refused(folder: &Folder, words: &[&str], said: &[&str]) -> Ran {
    let usual = ["serve", "--log", "text", "--listen", "127.0.0.1:0", "--data", folder.path()];
    forebay(&[&usual[..], words].concat(), "").refused(4, said)
}

#[test]
fn no_file_of_an_encrypted_folder_shows_anything_and_only_its_key_opens_it() {
    let keys = Folder::made("encryption-keys");
    let (first, first_id) = key(&keys, "first");
    let (other, other_id) = key(&keys, "other");
    let folder = Folder::new("encryption-data");
    plant(&folder, &["--encryption-key-file", &first]);
    assert_eq!(found_in(&folder), BTreeMap::new());
    let plain = Folder::new("encryption-plain");
    plant(&plain, &[]);
    assert_eq!(found_in(&plain).len(), PLANTED.len(), "they are found where they are");

    refused(&folder, &["--encryption-key-file", &other], &["not given", &first_id, &other_id, "file="]);
    refused(&folder, &[], &["is encrypted, and no key was given", &first_id]);
    refused(&plain, &["--encryption-key-file", &first], &["is not encrypted", "--salvage"]);
    let server = start(&folder, &first);
    check(&server);
    server.stop();

    // From a command, and from the environment.
    let server = Server::start_as(&folder, &["--encryption-key-command", &format!("cat '{first}'")]);
    check(&server);
    server.stop();
    let text = std::fs::read_to_string(&first).expect("the key can be read");
    let key = text.lines().find(|line| !line.starts_with('#')).expect("it has a key");
    let words = ["doctor", "--data", folder.path(), "-o", "json"];
    assert_eq!(run(&words, "", &[("FOREBAY_ENCRYPTION_KEY", key)]).json()["sound"], true);
    let both = run(
        &[&words[..], &["--encryption-key-file", &first]].concat(),
        "",
        &[("FOREBAY_ENCRYPTION_KEY", key)],
    );
    both.refused(2, &["one may be given"]);
}

#[test]
fn the_doctor_and_backups_work_with_the_key_and_say_what_they_do_not_read_without_it() {
    let keys = Folder::made("encryption-keys");
    let (first, first_id) = key(&keys, "first");
    let folder = Folder::new("encryption-data");
    plant(&folder, &["--encryption-key-file", &first]);

    let data = ["--data", folder.path()];
    let with = ["--encryption-key-file", first.as_str()];
    let doctor = |words: &[&str]| forebay(&[&["doctor"], &data[..], words].concat(), "");
    let report = doctor(&[&with[..], &["-o", "json"]].concat()).json();
    assert_eq!((&report["sound"], &report["messages"]), (&json!(true), &json!(200)));
    let locked = doctor(&[]).refused(4, &["a key is missing"]);
    for text in ["ENCRYPTED", "not read", &first_id, "The checksums are good"] {
        assert!(locked.printed.contains(text), "{text} is not in {locked:?}");
    }
    assert!(!locked.printed.contains("planted"), "{locked:?}");
    let to = Folder::new("encryption-salvaged");
    doctor(&["--salvage", to.path()]).refused(4, &["nothing can be salvaged without the key", &first_id]);

    let backup = Folder::new("encryption-backup");
    let done = forebay(&[&["backup"], &data[..], &["--to", backup.path()]].concat(), "").good();
    assert!(done.contains("contents were not read"), "{done}");
    assert_eq!(found_in(&backup), BTreeMap::new());
    let restored = Folder::new("encryption-restored");
    let words = ["restore", "--from", backup.path(), "--data", restored.path()];
    let done = forebay(&[&words[..], &with[..]].concat(), "").good();
    assert!(done.contains("200 messages kept"), "{done}");
    let server = start(&restored, &first);
    check(&server);
    server.stop();
}

#[test]
fn keys_are_changed_by_putting_a_new_one_first_and_folders_by_writing_them_anew() {
    let keys = Folder::made("encryption-keys");
    let (first, first_id) = key(&keys, "first");
    let (second, second_id) = key(&keys, "second");
    let plain = Folder::new("encryption-plain");
    plant(&plain, &[]);

    // A plain folder becomes an encrypted one.
    let folder = Folder::new("encryption-data");
    let rewrite = |from: &Folder, to: &Folder, keys: &str| {
        let words = ["doctor", "--data", from.path(), "--salvage", to.path(), "--encryption-key-file", keys];
        forebay(&words, "").good();
    };
    rewrite(&plain, &folder, &first);
    assert_eq!(found_in(&folder), BTreeMap::new());

    // A new key first, the old one below it.
    let both: String = [&second, &first].map(|file| std::fs::read_to_string(file).expect("a key")).concat();
    let both = keys.write("both", &both);
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&both, private).expect("it is ours");
    let server = start(&folder, &both);
    check(&server);
    let words =
        ["encryption", "keys", "--data", folder.path(), "--encryption-key-file", &second, "-o", "json"];
    let used = forebay(&words, "").json();
    let of = |id: &str| {
        let keys = used["keys"].as_array().expect("a list");
        keys.iter().find(|key| key["id"] == id).unwrap_or_else(|| panic!("{id} is not in {used}")).clone()
    };
    assert_eq!((&of(&first_id)["given"], &of(&second_id)["given"]), (&json!(false), &json!(true)));
    assert!(of(&second_id)["segments"].as_u64().is_some_and(|count| count > 0), "{used}");
    server.stop();
    refused(&folder, &["--encryption-key-file", &second], &["not given", &first_id]);

    // Written anew, the old key is no longer needed.
    let renewed = Folder::new("encryption-renewed");
    rewrite(&folder, &renewed, &both);
    let server = start(&renewed, &second);
    check(&server);
    server.stop();
}

#[test]
fn keys_that_are_none_or_open_to_all_are_refused_and_not_shown() {
    let keys = Folder::made("encryption-keys");
    let folder = Folder::new("encryption-data");
    let wrong = keys.write("wrong", "planted-secret\n");
    let serve = |words: &[&str]| {
        let usual = ["serve", "--log", "text", "--listen", "127.0.0.1:0", "--data", folder.path()];
        forebay(&[&usual[..], words].concat(), "")
    };
    std::fs::set_permissions(&wrong, std::os::unix::fs::PermissionsExt::from_mode(0o644))
        .expect("it is ours");
    serve(&["--encryption-key-file", &wrong]).refused(2, &["chmod 600"]);
    std::fs::set_permissions(&wrong, std::os::unix::fs::PermissionsExt::from_mode(0o600))
        .expect("it is ours");
    let ran = serve(&["--encryption-key-file", &wrong]).refused(2, &["32 random bytes", "number 1"]);
    assert!(!ran.said.contains("planted-secret"), "{ran:?}");
    serve(&["--encryption-key-command", "exit 7"]).refused(2, &["encryption_key_command failed"]);
    let (good, _) = key(&keys, "good");
    forebay(&["serve", "--memory", "--listen", "127.0.0.1:0", "--encryption-key-file", &good], "")
        .refused(2, &["encryption keys are for a log in a data folder"]);
    forebay(&["encryption", "new-key", "--file", &good], "").refused(9, &["exists"]);
    assert!(std::fs::read_dir(folder.path()).is_err(), "no folder was made");
}
