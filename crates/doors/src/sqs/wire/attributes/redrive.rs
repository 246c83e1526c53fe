//! Where messages go that were received too often, and from where they may come.

use serde_json::{Map, Value, json};

use crate::sqs::wire::address::Arn;
use crate::sqs::wire::error::SqsError;

const RECEIVES_MAX: u32 = 1_000;
/// Where a policy does not say.
const RECEIVES_USUAL: u32 = 10;
const SOURCES_MAX: usize = 10;

const POLICY: &str = "RedrivePolicy";
const ALLOW: &str = "RedriveAllowPolicy";

/// A message that was received so often goes to another queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedrivePolicy {
    pub target: Arn,
    /// From 1 to 1000.
    pub max_receive_count: u32,
}

impl RedrivePolicy {
    pub fn parse(text: &str) -> Result<RedrivePolicy, SqsError> {
        let refuse = |reason: &str| SqsError::value(text, POLICY, reason);
        let policy = object(text).ok_or_else(|| refuse(UNSUPPORTED_FORMAT))?;
        let Some(target) = policy.get("deadLetterTargetArn").filter(|target| !target.is_null()) else {
            return Err(refuse("Redrive policy does not contain mandatory attribute: deadLetterTargetArn."));
        };
        let target = target.as_str().and_then(Arn::parse);
        let target = target.ok_or_else(|| refuse("Invalid value for deadLetterTargetArn."))?;
        let max_receive_count = match policy.get("maxReceiveCount").filter(|count| !count.is_null()) {
            None => RECEIVES_USUAL,
            Some(count) => receive_count(count).ok_or_else(|| {
                let shown = count.as_str().map_or_else(|| count.to_string(), str::to_owned);
                refuse(&format!(
                    "Invalid value for maxReceiveCount: {shown}, valid values are from 1 to {RECEIVES_MAX} both \
                     inclusive."
                ))
            })?,
        };
        Ok(RedrivePolicy { target, max_receive_count })
    }

    pub fn render(&self) -> String {
        let (target, count) = (self.target.to_string(), self.max_receive_count);
        json!({ "deadLetterTargetArn": target, "maxReceiveCount": count }).to_string()
    }

    /// For a target that is not there.
    pub fn no_target(&self) -> SqsError {
        self.refused("Dead letter target does not exist.")
    }

    /// For a target that cannot be one for this queue, or does not want to be.
    pub fn refused(&self, reason: &str) -> SqsError {
        SqsError::value(self.render(), POLICY, reason)
    }
}

/// A number, or a text that is one.
fn receive_count(value: &Value) -> Option<u32> {
    let count = match value {
        Value::Number(number) => number.as_u64()?,
        Value::String(text) => text.parse().ok()?,
        _ => return None,
    };
    u32::try_from(count).ok().filter(|count| (1..=RECEIVES_MAX).contains(count))
}

/// Which queues may name this one as the target of their redrive policies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedriveAllowPolicy {
    pub permission: RedrivePermission,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RedrivePermission {
    AllowAll,
    DenyAll,
    /// From 1 to 10 queues.
    ByQueue(Vec<Arn>),
}

impl RedriveAllowPolicy {
    pub fn parse(text: &str) -> Result<RedriveAllowPolicy, SqsError> {
        let refuse = |reason: &str| SqsError::value(text, ALLOW, reason);
        let policy = object(text).ok_or_else(|| refuse(UNSUPPORTED_FORMAT))?;
        let sources = match policy.get("sourceQueueArns").filter(|sources| !sources.is_null()) {
            None => None,
            Some(Value::Array(sources)) => {
                let arns: Option<Vec<Arn>> =
                    sources.iter().map(|source| source.as_str().and_then(Arn::parse)).collect();
                Some(arns.ok_or_else(|| refuse("Invalid value for sourceQueueArns."))?)
            }
            Some(_) => return Err(refuse("Invalid value for sourceQueueArns.")),
        };
        let permission = match (policy.get("redrivePermission").and_then(Value::as_str), sources) {
            (Some("allowAll"), None) => RedrivePermission::AllowAll,
            (Some("denyAll"), None) => RedrivePermission::DenyAll,
            (Some("allowAll" | "denyAll"), Some(_)) => {
                return Err(refuse(
                    "sourceQueueArns can be specified only when redrivePermission is byQueue.",
                ));
            }
            (Some("byQueue"), Some(sources)) if (1..=SOURCES_MAX).contains(&sources.len()) => {
                RedrivePermission::ByQueue(sources)
            }
            (Some("byQueue"), _) => {
                return Err(refuse(
                    "sourceQueueArns must name 1 to 10 queues when redrivePermission is byQueue.",
                ));
            }
            _ => return Err(refuse("redrivePermission must be allowAll, denyAll or byQueue.")),
        };
        Ok(RedriveAllowPolicy { permission })
    }

    pub fn render(&self) -> String {
        let policy = match &self.permission {
            RedrivePermission::AllowAll => json!({ "redrivePermission": "allowAll" }),
            RedrivePermission::DenyAll => json!({ "redrivePermission": "denyAll" }),
            RedrivePermission::ByQueue(sources) => {
                let sources: Vec<String> = sources.iter().map(Arn::to_string).collect();
                json!({ "redrivePermission": "byQueue", "sourceQueueArns": sources })
            }
        };
        policy.to_string()
    }

    pub fn admits(&self, source: &Arn) -> bool {
        match &self.permission {
            RedrivePermission::AllowAll => true,
            RedrivePermission::DenyAll => false,
            RedrivePermission::ByQueue(sources) => sources.contains(source),
        }
    }
}

const UNSUPPORTED_FORMAT: &str = "The policy is not in a supported format.";

fn object(text: &str) -> Option<Map<String, Value>> {
    serde_json::from_str(text).ok()
}
