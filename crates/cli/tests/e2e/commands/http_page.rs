//! The calls of `docs/reference/http.md`, made one after the other as they stand there, and the answers that it shows.
//!
//! An answer is compared by its fields and their types: the page shortens some, and times and leases differ.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::commands::rig::Server;

const PAGE: &str = include_str!("../../../../../docs/reference/http.md");
/// Calls that are refused here, as the page says.
const REFUSED: [(&str, u16); 3] =
    [("-X DELETE", 404), ("/credentials/none", 404), ("/connections/none", 404)];

enum Part {
    Call(String),
    Answer(Value),
}

/// The calls and answers of the page, in order.
fn parts() -> Vec<Part> {
    let mut parts = Vec::new();
    let mut block: Option<(&str, String)> = None;
    for line in PAGE.lines() {
        match (line.strip_prefix("```"), &mut block) {
            (Some(language), None) => block = Some((language, String::new())),
            (None, Some((_, text))) => {
                text.push_str(line);
                text.push('\n');
            }
            (Some(_), Some(_)) => match block.take() {
                Some(("json", text)) => {
                    let answer = serde_json::from_str(&text);
                    parts.push(Part::Answer(answer.unwrap_or_else(|error| panic!("{error}: {text}"))));
                }
                Some(("", text)) => {
                    let calls =
                        text.split("curl ").skip(1).map(|call| Part::Call(format!("curl {}", call.trim())));
                    parts.extend(calls);
                }
                _ => {}
            },
            (None, None) => {}
        }
    }
    parts
}

struct Session {
    server: Server,
    /// The lease of each message that was received and not settled, by stream, group and position.
    leases: BTreeMap<(String, String, u64), String>,
}

impl Session {
    /// The status and the body of an answer.
    fn curl(&self, command: &str) -> (u16, String) {
        let command = command.replace("127.0.0.1:7070", &self.server.address);
        let script = command.replacen("curl ", "curl -sS -w '\\n%{http_code}' ", 1);
        let ran = Command::new("bash").args(["-c", &script]).stdin(Stdio::null()).output().expect("a shell");
        let said = String::from_utf8_lossy(&ran.stdout).into_owned();
        let (body, status) = said.rsplit_once('\n').expect("curl prints the status last");
        (status.parse().expect("a status"), body.to_owned())
    }

    fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let address = &self.server.address;
        let (status, answer) =
            self.curl(&format!("curl --json '{body}' -X {method} 'http://{address}{path}'"));
        assert!(status < 300, "{method} {path} {body}: {answer}");
        serde_json::from_str(&answer).unwrap_or_default()
    }

    fn keep_leases(&mut self, stream: &str, group: &str, received: &Value) {
        for message in received["messages"].as_array().into_iter().flatten() {
            if let (Some(seq), Some(lease)) = (message["seq"].as_u64(), message["lease"].as_str()) {
                self.leases.insert((stream.to_owned(), group.to_owned(), seq), lease.to_owned());
            }
        }
    }

    /// A new message of a group, leased.
    fn lease(&mut self, stream: &str, group: &str) -> String {
        self.call("PUT", &format!("/streams/{stream}/groups/{group}"), &json!({}));
        let sent = json!({ "messages": [{ "body": 1 }] });
        let stored = self.call("POST", &format!("/streams/{stream}/messages"), &sent);
        let seq = stored["results"][0]["seq"].as_u64().expect("a position");
        self.receive(stream, group, seq)
    }

    /// The lease of this message, received if it was not.
    fn receive(&mut self, stream: &str, group: &str, seq: u64) -> String {
        let of = (stream.to_owned(), group.to_owned(), seq);
        for _ in 0..20 {
            if let Some(lease) = self.leases.remove(&of) {
                return lease;
            }
            let wish = json!({ "max": 10, "wait": "1s" });
            let received = self.call("POST", &format!("/streams/{stream}/groups/{group}/receive"), &wish);
            self.keep_leases(stream, group, &received);
        }
        panic!("message {seq} of {stream} does not come");
    }

    /// Waits until the first job is done.
    fn finish_job(&self) {
        for _ in 0..200 {
            let job = self.call("GET", "/streams/emails/groups/senders/jobs/1", &json!({}));
            if job["state"] == "done" {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("the job does not end");
    }

    /// Parks the first message, as the examples about parked messages need it.
    fn park(&mut self) {
        let lease = self.receive("emails", "senders", 1);
        let nack = json!({ "leases": [lease], "action": "park", "reason": "smtp down" });
        self.call("POST", "/streams/emails/groups/senders/nack", &nack);
    }
}

/// Where an answer differs from the one that is shown: a field that is not there, or a value of another type.
fn difference(shown: &Value, answer: &Value, at: &str) -> Option<String> {
    match (shown, answer) {
        (Value::Null, _) | (_, Value::Null) => None,
        (Value::Object(shown), Value::Object(answer)) => shown.iter().find_map(|(name, shown)| {
            let at = format!("{at}.{name}");
            answer.get(name).map_or(Some(format!("{at} is not there")), |value| difference(shown, value, &at))
        }),
        (Value::Array(shown), Value::Array(answer)) => match (shown.first(), answer.first()) {
            (Some(shown), Some(answer)) => difference(shown, answer, &format!("{at}[0]")),
            (Some(_), None) => Some(format!("{at} is empty")),
            (None, _) => None,
        },
        (Value::Number(_), Value::Number(_))
        | (Value::String(_), Value::String(_))
        | (Value::Bool(_), Value::Bool(_)) => None,
        _ => Some(format!("{at} is {answer}, and not like {shown}")),
    }
}

#[test]
fn every_call_of_the_reference_of_http_answers_as_it_shows() {
    if Command::new("curl").arg("--version").stdout(Stdio::null()).status().is_err() {
        assert!(std::env::var_os("CI").is_none(), "curl is missing");
        return;
    }
    let mut session = Session { server: Server::start(), leases: BTreeMap::new() };
    session.call("PUT", "/streams/quarantine", &json!({}));
    let (mut calls, mut examples) = (0, 0);
    // Of the calls before the answers that the page shows next.
    let mut answers: Vec<(String, Value)> = Vec::new();
    let mut is_shown = false;
    for part in parts() {
        match part {
            Part::Call(command) => {
                calls += 1;
                if std::mem::take(&mut is_shown) {
                    answers.clear();
                }
                if command.ends_with("/life") {
                    session.call("PUT", "/streams/emails/groups/audit", &json!({}));
                }
                if command.contains("parked/discard") {
                    // The message that is offered again must not be discarded before.
                    session.finish_job();
                }
                if command.contains("groups/senders/parked?") || command.contains("/resubmit") {
                    session.park();
                }
                let call = match command.contains("LEASE") {
                    true if command.contains("transactions") => {
                        command.replace("LEASE", &session.lease("orders", "billing"))
                    }
                    true => command.replace("LEASE", &session.lease("emails", "senders")),
                    false => command.clone(),
                };
                let (status, body) = session.curl(&call);
                let refused = REFUSED.iter().find(|(part, _)| command.contains(part) && status == 404);
                assert!(status < 300 || refused.is_some(), "{command}\nanswered {status} {body}");
                let answer = serde_json::from_str(&body).unwrap_or_default();
                if command.contains("senders/receive") {
                    session.keep_leases("emails", "senders", &answer);
                }
                answers.push((command, answer));
            }
            Part::Answer(shown) => {
                examples += 1;
                let found: Vec<Option<String>> =
                    answers.iter().map(|(_, answer)| difference(&shown, answer, "")).collect();
                let calls: Vec<String> = answers
                    .iter()
                    .zip(&found)
                    .map(|((call, answer), difference)| format!("{call}: {difference:?}\n{answer}"))
                    .collect();
                assert!(found.contains(&None), "no answer is like {shown}\n{}", calls.join("\n"));
                is_shown = true;
            }
        }
    }
    assert!(calls >= 55 && examples >= 16, "{calls} calls, {examples} examples");
    session.server.stop();
}

#[test]
fn answers_are_compared_by_fields_and_types() {
    let shown = json!({ "a": [{ "b": 1, "c": null }], "d": "x" });
    assert_eq!(difference(&shown, &json!({ "a": [{ "b": 7, "c": "y" }], "d": "z", "e": 1 }), ""), None);
    for (answer, at) in [
        (json!({ "a": [{ "b": 7 }], "d": "z" }), ".a[0].c is not there"),
        (json!({ "a": [], "d": "z" }), ".a is empty"),
        (json!({ "a": [{ "b": "7", "c": 1 }], "d": "z" }), ".a[0].b is \"7\", and not like 1"),
    ] {
        assert_eq!(difference(&shown, &answer, "").as_deref(), Some(at));
    }
}
