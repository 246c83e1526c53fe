//! Permissions, and the policy of a queue that they add up to.
//!
//! A policy is JSON that its owner may also have written by hand, so statements that the server did not write
//! are kept as they are.

use serde_json::{Map, Value, json};

use super::address::Arn;
use super::error::{ErrorKind, SqsError};
use super::protocol::Action;

const ACTIONS_MAX: usize = 7;
const LABEL_CHARS_MAX: usize = 80;

/// The actions that only the owner of a queue may perform.
const OWNER_ONLY: [Action; 12] = [
    Action::AddPermission,
    Action::CancelMessageMoveTask,
    Action::CreateQueue,
    Action::DeleteQueue,
    Action::ListMessageMoveTasks,
    Action::ListQueueTags,
    Action::ListQueues,
    Action::RemovePermission,
    Action::SetQueueAttributes,
    Action::StartMessageMoveTask,
    Action::TagQueue,
    Action::UntagQueue,
];

/// Some accounts may do some things with a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permission {
    pub label: String,
    pub accounts: Vec<String>,
    pub actions: Vec<String>,
}

impl Permission {
    pub(super) fn check(&self) -> Result<(), SqsError> {
        check_label(&self.label)?;
        if self.actions.len() > ACTIONS_MAX {
            let sent = self.actions.len();
            let message = format!("{sent} Actions were found, maximum allowed is {ACTIONS_MAX}.");
            return Err(SqsError::new(ErrorKind::OverLimit, message));
        }
        for action in &self.actions {
            check_action(action)?;
        }
        if self.accounts.is_empty() || !self.accounts.iter().all(|account| is_account(account)) {
            let accounts = self.accounts.join(", ");
            return Err(SqsError::value(format!("[{accounts}]"), "PrincipalId", "Unable to verify."));
        }
        Ok(())
    }

    fn statement(&self, queue: &Arn) -> Value {
        let principal =
            self.accounts.iter().map(|account| format!("arn:{}:iam::{account}:root", queue.partition));
        let actions = self.actions.iter().map(|action| format!("SQS:{action}"));
        json!({
            "Sid": self.label,
            "Effect": "Allow",
            "Principal": { "AWS": one_or_many(principal) },
            "Action": one_or_many(actions),
            "Resource": queue.to_string(),
        })
    }
}

pub(super) fn check_label(label: &str) -> Result<(), SqsError> {
    let fits = (1..=LABEL_CHARS_MAX).contains(&label.len());
    if !fits || !label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_') {
        let reason = "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length";
        return Err(SqsError::value(label, "Label", reason));
    }
    Ok(())
}

fn check_action(name: &str) -> Result<(), SqsError> {
    let refuse = |reason| Err(SqsError::value(format!("SQS:{name}"), "ActionName", reason));
    match Action::named(name) {
        _ if name == "*" => Ok(()),
        None => refuse("Please refer to the appropriate WSDL for a list of valid actions."),
        Some(action) if OWNER_ONLY.contains(&action) => {
            refuse("Only the queue owner is allowed to invoke this action.")
        }
        Some(_) => Ok(()),
    }
}

fn is_account(text: &str) -> bool {
    text.len() == 12 && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn one_or_many(values: impl Iterator<Item = String>) -> Value {
    let mut values: Vec<Value> = values.map(Value::String).collect();
    if values.len() == 1 { values.remove(0) } else { Value::Array(values) }
}

/// The policy of a queue with one more permission.
pub fn with(policy: Option<&str>, queue: &Arn, permission: &Permission) -> Result<String, SqsError> {
    let mut policy = match policy {
        Some(text) => parse(text),
        None => Map::from_iter([
            ("Version".to_owned(), json!("2008-10-17")),
            ("Id".to_owned(), json!(format!("{queue}/SQSDefaultPolicy"))),
        ]),
    };
    let mut statements = statements(&mut policy);
    if statements.iter().any(|statement| is_labelled(statement, &permission.label)) {
        return Err(SqsError::value(&permission.label, "Label", "Already exists."));
    }
    statements.push(permission.statement(queue));
    policy.insert("Statement".to_owned(), Value::Array(statements));
    Ok(Value::Object(policy).to_string())
}

/// The policy of a queue without a permission. None if it was the last one.
pub fn without(policy: Option<&str>, label: &str) -> Result<Option<String>, SqsError> {
    let mut policy = policy.map(parse).unwrap_or_default();
    let mut statements = statements(&mut policy);
    let before = statements.len();
    statements.retain(|statement| !is_labelled(statement, label));
    if statements.len() == before {
        return Err(SqsError::value(label, "Label", "can't find label."));
    }
    if statements.is_empty() {
        return Ok(None);
    }
    policy.insert("Statement".to_owned(), Value::Array(statements));
    Ok(Some(Value::Object(policy).to_string()))
}

/// Only objects are taken as policies.
fn parse(text: &str) -> Map<String, Value> {
    serde_json::from_str(text).unwrap_or_default()
}

/// A single statement need not be in a list.
fn statements(policy: &mut Map<String, Value>) -> Vec<Value> {
    match policy.remove("Statement") {
        Some(Value::Array(statements)) => statements,
        None | Some(Value::Null) => Vec::new(),
        Some(one) => vec![one],
    }
}

fn is_labelled(statement: &Value, label: &str) -> bool {
    statement.get("Sid").and_then(Value::as_str) == Some(label)
}

/// Whether a policy lets another account do something with the queue. Actions reserved to the owner are never
/// allowed. Denials go before permissions. A part of a statement that is not understood makes it deny more and
/// allow less: conditions, negated members (`Not…`), and patterns.
pub fn allows(policy: &str, account: &str, action: Action, queue: &Arn) -> bool {
    if OWNER_ONLY.contains(&action) {
        return false;
    }
    let statements = statements(&mut parse(policy));
    let meant = |statement: &Value| {
        [
            meant_by(statement.get("Action"), &|name| is_action(name, action)),
            meant_by(statement.get("Resource"), &|name| is_queue(name, queue)),
            meant_by(principals(statement), &|name| is_root_of(name, account)),
            statement.get("Condition").map_or(Meant::Yes, |_| Meant::Unclear),
        ]
    };
    let has_effect =
        |statement: &&Value, effect: &str| statement.get("Effect").and_then(Value::as_str) == Some(effect);
    let denies = |statement: &Value| meant(statement).iter().all(|meant| *meant != Meant::No);
    let allows = |statement: &Value| meant(statement).iter().all(|meant| *meant == Meant::Yes);
    let is_denied = statements.iter().filter(|it| !has_effect(it, "Allow")).any(denies);
    !is_denied && statements.iter().filter(|it| has_effect(it, "Allow")).any(allows)
}

/// Whether a statement applies to the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Meant {
    No,
    Unclear,
    Yes,
}

/// Decided by the clearest of the texts of a member. An absent member is unclear, since it may be there under
/// another name.
fn meant_by(member: Option<&Value>, is_meant: &dyn Fn(&str) -> Meant) -> Meant {
    match member {
        Some(Value::String(text)) => is_meant(text),
        Some(Value::Array(values)) => {
            values.iter().map(|value| meant_by(Some(value), is_meant)).max().unwrap_or(Meant::Unclear)
        }
        _ => Meant::Unclear,
    }
}

/// The accounts of a statement: under `AWS`, or the member itself. Other kinds of principals do not count
/// here.
fn principals(statement: &Value) -> Option<&Value> {
    match statement.get("Principal")? {
        Value::Object(principal) => principal.get("AWS"),
        other => Some(other),
    }
}

/// As an exact text, or as a pattern that is not followed.
fn exactly(is_it: bool, pattern: &str) -> Meant {
    match is_it {
        true => Meant::Yes,
        false if pattern.contains(['*', '?']) => Meant::Unclear,
        false => Meant::No,
    }
}

/// `SQS:SendMessage`, `sqs:Send*`, `sqs:*` or `*`, whatever the case.
fn is_action(name: &str, action: Action) -> Meant {
    let Some((service, name)) = name.split_once(':') else { return exactly(name == "*", name) };
    if !service.eq_ignore_ascii_case("sqs") {
        return exactly(false, service);
    }
    match name.strip_suffix('*') {
        Some(start) if !start.contains(['*', '?']) => {
            let begin = action.name().get(..start.len());
            exactly(begin.is_some_and(|begin| begin.eq_ignore_ascii_case(start)), "")
        }
        _ => exactly(action.name().eq_ignore_ascii_case(name), name),
    }
}

/// All regions are one, so only account and name count.
fn is_queue(name: &str, queue: &Arn) -> Meant {
    let is_it = Arn::parse(name)
        .is_some_and(|named| (&named.account, &named.queue) == (&queue.account, &queue.queue));
    exactly(name == "*" || is_it, name)
}

/// `*`, the number of the account, or the name of its root. Users and roles are not known here.
fn is_root_of(name: &str, account: &str) -> Meant {
    match name.split(':').collect::<Vec<_>>()[..] {
        ["arn", _, "iam", "", number, "root"] => exactly(number == account, ""),
        ["arn", ..] => Meant::Unclear,
        _ => exactly(name == "*" || name == account, name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(statements: &[Value], action: Action) -> bool {
        let policy = json!({ "Statement": statements }).to_string();
        allows(&policy, "222222222222", action, &Arn::new("us-east-1", "111111111111", "q"))
    }

    fn statement(effect: &str, changed: Value) -> Value {
        let mut statement = json!({
            "Effect": effect, "Principal": "*", "Action": "sqs:*", "Resource": "arn:aws:sqs:us-east-1:111111111111:q",
        });
        for (name, value) in changed.as_object().expect("members") {
            statement[name] = value.clone();
        }
        statement
    }

    #[test]
    fn another_account_may_do_what_a_policy_allows() {
        for (changed, expected) in [
            (json!({}), true),
            (json!({ "Principal": { "AWS": "222222222222" } }), true),
            (json!({ "Principal": { "AWS": ["arn:aws:iam::222222222222:root", "x"] } }), true),
            (json!({ "Principal": { "AWS": "333333333333" } }), false),
            (json!({ "Principal": { "AWS": "arn:aws:iam::222222222222:user/ann" } }), false),
            (json!({ "Principal": { "Service": "sns.amazonaws.com" } }), false),
            (json!({ "Action": "SQS:SendMessage" }), true),
            (json!({ "Action": ["sqs:receivemessage", "sqs:Send*"] }), true),
            (json!({ "Action": "sqs:*Message" }), false),
            (json!({ "Action": "sns:*" }), false),
            (json!({ "Resource": "arn:aws:sqs:eu-west-1:111111111111:q" }), true),
            (json!({ "Resource": "arn:aws:sqs:us-east-1:111111111111:other" }), false),
            (json!({ "Resource": "arn:aws:sqs:*:111111111111:q*" }), false),
            (json!({ "Condition": { "Bool": { "aws:SecureTransport": "true" } } }), false),
        ] {
            assert_eq!(
                allowed(&[statement("Allow", changed.clone())], Action::SendMessage),
                expected,
                "{changed}"
            );
        }
        assert!(
            !allowed(&[statement("Allow", json!({}))], Action::DeleteQueue),
            "that is its owner's business"
        );
        assert!(!allowed(&[], Action::SendMessage));
    }

    #[test]
    fn what_denies_goes_first_and_what_is_not_understood_denies() {
        let allow = statement("Allow", json!({ "Resource": "*" }));
        for (changed, denied) in [
            (json!({}), true),
            (json!({ "Resource": "arn:aws:sqs:eu-west-1:111111111111:q" }), true),
            (json!({ "Resource": "arn:aws:sqs:*:1111*:q" }), true),
            (json!({ "Action": "sqs:*Message" }), true),
            (json!({ "Action": null, "NotAction": "sqs:ReceiveMessage" }), true),
            (json!({ "Principal": null, "NotPrincipal": { "AWS": "222222222222" } }), true),
            (json!({ "Condition": {} }), true),
            (json!({ "Action": "sqs:DeleteMessage" }), false),
            (json!({ "Principal": { "AWS": "333333333333" } }), false),
            (json!({ "Resource": "arn:aws:sqs:us-east-1:111111111111:other" }), false),
        ] {
            let deny = statement("Deny", changed.clone());
            assert_eq!(allowed(&[allow.clone(), deny], Action::SendMessage), !denied, "{changed}");
        }
    }
}
