//! Permissions, and the policy of a queue that they add up to.
//!
//! A policy is JSON that its owner may also have written by hand, so what is not ours in it is kept as it is.

use serde_json::{Map, Value, json};

use super::address::Arn;
use super::error::{ErrorKind, SqsError};
use super::protocol::Action;

const ACTIONS_MAX: usize = 7;
const LABEL_CHARS_MAX: usize = 80;

/// What only the owner of a queue may do.
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
