//! A message's fields as variables of the environment.

use std::collections::BTreeSet;

use crate::work::task::Task;

/// Every variable of a message begins so.
const HEADER: &str = "FOREBAY_HEADER_";
/// Which variables there would be if they could: too long, too many, or with a zero byte in them.
const LEFT_OUT: &str = "FOREBAY_LEFT_OUT";
/// The fields, each of which a message may have.
const FIELDS: [&str; 12] = [
    "FOREBAY_STREAM",
    "FOREBAY_GROUP",
    "FOREBAY_SEQ",
    "FOREBAY_ATTEMPT",
    "FOREBAY_ID",
    "FOREBAY_KEY",
    "FOREBAY_TYPE",
    "FOREBAY_SCHEMA",
    "FOREBAY_PRIORITY",
    "FOREBAY_PUBLISHED_AT",
    "FOREBAY_KEY_BASE64",
    "FOREBAY_CONTENT_TYPE",
];

/// One variable may have 128 KiB on Linux, and all of them with the arguments 2 MiB.
const VALUE_BYTES_MAX: usize = 64 << 10;
const HEADERS_BYTES_MAX: usize = 512 << 10;
const HEADERS_MAX: usize = 1_000;
/// How many are named among those that were left out.
const LEFT_OUT_MAX: usize = 100;

/// Whether a variable that this process has itself could be taken for one of a message.
pub(super) fn is_ours(name: &str) -> bool {
    name.starts_with(HEADER) || name == LEFT_OUT || FIELDS.contains(&name)
}

/// Names and values. Of two headers with one name the first counts.
pub(super) fn variables(task: &Task<'_>) -> Vec<(String, String)> {
    let [
        stream,
        group,
        seq,
        attempt,
        id,
        key,
        kind,
        schema,
        priority,
        published_at,
        key_base64,
        content_type,
    ] = FIELDS;
    let own = |text: Option<&str>| text.map(ToOwned::to_owned);
    let fields = [
        (stream, own(Some(task.stream))),
        (group, own(Some(task.group))),
        (seq, Some(task.seq.to_string())),
        (attempt, Some(task.attempt.to_string())),
        (id, own(task.id)),
        (key, own(task.key)),
        (kind, own(task.kind)),
        (schema, task.schema.map(|schema| schema.to_string())),
        (priority, Some(task.priority.to_string())),
        (published_at, Some(task.published_at.to_string())),
        (key_base64, task.key_base64.clone()),
        (content_type, own(task.content_type)),
    ];
    let mut set = Vec::with_capacity(FIELDS.len() + task.headers.len().min(HEADERS_MAX));
    let mut left_out = Vec::new();
    for (name, value) in fields {
        match value {
            Some(value) if fits(&value) => set.push((name.to_owned(), value)),
            Some(_) => left_out.push(name.to_owned()),
            None => {}
        }
    }
    let mut seen = BTreeSet::new();
    let mut bytes = 0;
    for (name, value) in &task.headers {
        // Names can be as long as values, and are listed among the variables that were left out.
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            continue;
        }
        let name = header_name(name);
        if !seen.insert(name.clone()) {
            continue;
        }
        bytes += name.len() + value.len();
        if fits(value) && bytes <= HEADERS_BYTES_MAX && seen.len() <= HEADERS_MAX {
            set.push((name, (*value).to_owned()));
        } else {
            left_out.push(name);
        }
    }
    if !left_out.is_empty() {
        left_out.truncate(LEFT_OUT_MAX);
        set.push((LEFT_OUT.to_owned(), left_out.join(" ")));
    }
    set
}

const NAME_BYTES_MAX: usize = 256;

fn fits(value: &str) -> bool {
    value.len() <= VALUE_BYTES_MAX && !value.contains('\0')
}

fn header_name(name: &str) -> String {
    let letters = name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' });
    HEADER.chars().chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn found<'a>(set: &'a [(String, String)], name: &str) -> Option<&'a str> {
        set.iter().find(|(of, _)| of == name).map(|(_, value)| &**value)
    }

    #[test]
    fn every_field_that_a_message_has_is_a_variable() {
        let body = Bytes::new();
        let task = Task {
            id: Some("email-17"),
            key: Some("user-4"),
            kind: Some("email.send"),
            schema: Some(2),
            priority: 5,
            content_type: Some("text/csv"),
            headers: vec![("trace-id", "a b"), ("Ünit", "x")],
            ..Task::plain(&body)
        };
        let mut lines: Vec<String> =
            variables(&task).iter().map(|(name, value)| format!("{name}={value}")).collect();
        lines.sort();
        assert_eq!(
            lines,
            [
                "FOREBAY_ATTEMPT=1",
                "FOREBAY_CONTENT_TYPE=text/csv",
                "FOREBAY_GROUP=senders",
                "FOREBAY_HEADER_TRACE_ID=a b",
                "FOREBAY_HEADER__NIT=x",
                "FOREBAY_ID=email-17",
                "FOREBAY_KEY=user-4",
                "FOREBAY_PRIORITY=5",
                "FOREBAY_PUBLISHED_AT=2023-11-14T22:13:20.000000Z",
                "FOREBAY_SCHEMA=2",
                "FOREBAY_SEQ=12",
                "FOREBAY_STREAM=emails",
                "FOREBAY_TYPE=email.send",
            ]
        );
        let plain = variables(&Task::plain(&body));
        for name in ["FOREBAY_ID", "FOREBAY_KEY", "FOREBAY_TYPE", "FOREBAY_SCHEMA", "FOREBAY_LEFT_OUT"] {
            assert_eq!(found(&plain, name), None, "{name}");
        }
    }

    #[test]
    fn what_cannot_be_a_variable_is_left_out_by_name_and_the_first_of_a_name_counts() {
        let (body, long) = (Bytes::new(), "x".repeat(VALUE_BYTES_MAX + 1));
        let headers = vec![("big", &*long), ("a-b", "first"), ("A_B", "second"), ("", "none"), ("nul", "\0")];
        let set = variables(&Task { key: Some("k\0"), headers, ..Task::plain(&body) });
        assert_eq!(found(&set, "FOREBAY_HEADER_A_B"), Some("first"));
        assert_eq!(set.iter().filter(|(name, _)| name == "FOREBAY_HEADER_A_B").count(), 1);
        assert_eq!(
            found(&set, LEFT_OUT),
            Some("FOREBAY_KEY FOREBAY_HEADER_BIG FOREBAY_HEADER_NUL"),
            "{set:?}"
        );
        assert!(!set.iter().any(|(_, value)| value.contains('\0')));
    }

    #[test]
    fn however_much_there_is_a_process_can_be_started_with_it() {
        let body = Bytes::new();
        let value = "x".repeat(60_000);
        let names: Vec<String> = (0..5_000).map(|n| format!("h{n}")).collect();
        for value in ["", &*value] {
            let headers = names.iter().map(|name| (&**name, value)).collect();
            let set = variables(&Task { headers, ..Task::plain(&body) });
            let ran = std::process::Command::new("true").envs(set).status().expect("it starts");
            assert!(ran.success());
        }
    }

    #[test]
    fn a_variable_of_a_message_is_told_from_settings() {
        for name in ["FOREBAY_ID", "FOREBAY_HEADER_X", "FOREBAY_LEFT_OUT"] {
            assert!(is_ours(name), "{name}");
        }
        for name in ["FOREBAY_SERVER", "PATH", "FOREBAY_LISTEN"] {
            assert!(!is_ours(name), "{name}");
        }
    }
}
