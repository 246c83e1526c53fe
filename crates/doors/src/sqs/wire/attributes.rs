//! A queue's attributes: names, defaults, what they may be, and which of them a list shows.
//!
//! [`QueueSettings`] is what can be set. It is made from the texts that a client sends and is valid from then on;
//! what a queue counts and knows of itself ([`QueueFacts`]) joins it when attributes are listed.

mod redrive;
mod settings;

pub use redrive::{RedriveAllowPolicy, RedrivePermission, RedrivePolicy};
pub use settings::{DeduplicationScope, FifoThroughputLimit, QueueSettings};

use std::collections::BTreeSet;

use super::address::Arn;
use super::error::SqsError;

/// What kind of values an attribute has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values {
    /// A whole number.
    Number {
        usual: u32,
        min: u32,
        max: u32,
    },
    Boolean,
    /// One of a few words, of which the first is the usual one.
    Choice(&'static [&'static str]),
    /// JSON. Empty clears it.
    Json,
    /// Any text. Empty clears it.
    Text,
    /// It cannot be set.
    ReadOnly,
}

macro_rules! attributes {
    ($($name:ident $values:expr;)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum QueueAttribute {
            $($name,)*
        }

        impl QueueAttribute {
            pub const ALL: &'static [QueueAttribute] = &[$(QueueAttribute::$name,)*];

            pub fn name(self) -> &'static str {
                match self {
                    $(QueueAttribute::$name => stringify!($name),)*
                }
            }

            pub fn values(self) -> Values {
                match self {
                    $(QueueAttribute::$name => $values,)*
                }
            }

            /// By its exact name.
            pub fn named(name: &str) -> Option<QueueAttribute> {
                match name {
                    $(stringify!($name) => Some(QueueAttribute::$name),)*
                    _ => None,
                }
            }
        }
    };
}

const fn number(usual: u32, min: u32, max: u32) -> Values {
    Values::Number { usual, min, max }
}

attributes! {
    ApproximateNumberOfMessages Values::ReadOnly;
    ApproximateNumberOfMessagesDelayed Values::ReadOnly;
    ApproximateNumberOfMessagesNotVisible Values::ReadOnly;
    ContentBasedDeduplication Values::Boolean;
    CreatedTimestamp Values::ReadOnly;
    DeduplicationScope Values::Choice(&["queue", "messageGroup"]);
    DelaySeconds number(0, 0, 900);
    FifoQueue Values::Boolean;
    FifoThroughputLimit Values::Choice(&["perQueue", "perMessageGroupId"]);
    KmsDataKeyReusePeriodSeconds number(300, 60, 86_400);
    KmsMasterKeyId Values::Text;
    LastModifiedTimestamp Values::ReadOnly;
    MaximumMessageSize number(1_048_576, 1_024, 1_048_576);
    MessageRetentionPeriod number(345_600, 60, 1_209_600);
    Policy Values::Json;
    QueueArn Values::ReadOnly;
    ReceiveMessageWaitTimeSeconds number(0, 0, 20);
    RedriveAllowPolicy Values::Json;
    RedrivePolicy Values::Json;
    SqsManagedSseEnabled Values::Boolean;
    VisibilityTimeout number(30, 0, 43_200);
}

impl QueueAttribute {
    /// The default of an attribute that is a number.
    pub(super) fn usual(self) -> u32 {
        match self.values() {
            Values::Number { usual, .. } => usual,
            _ => 0,
        }
    }
}

/// The figures and facts of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueFacts {
    pub arn: Arn,
    /// Seconds since 1970.
    pub created: u64,
    /// Seconds since 1970.
    pub modified: u64,
    /// Messages that can be received now, also where they wait for others of their group.
    pub visible: u64,
    /// Messages in flight.
    pub not_visible: u64,
    pub delayed: u64,
}

/// The attributes that a request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted(BTreeSet<QueueAttribute>);

impl Wanted {
    pub fn of(names: &[String]) -> Result<Wanted, SqsError> {
        let mut wanted = BTreeSet::new();
        for name in names {
            match QueueAttribute::named(name) {
                Some(attribute) => drop(wanted.insert(attribute)),
                None if name == "All" => wanted.extend(QueueAttribute::ALL),
                None => return Err(SqsError::unknown_attribute(name)),
            }
        }
        Ok(Wanted(wanted))
    }

    /// Those that the queue has, in order of their names.
    pub fn list(&self, settings: &QueueSettings, facts: &QueueFacts) -> Vec<(&'static str, String)> {
        let value = |attribute: &QueueAttribute| {
            let value = match attribute {
                QueueAttribute::ApproximateNumberOfMessages => facts.visible.to_string(),
                QueueAttribute::ApproximateNumberOfMessagesDelayed => facts.delayed.to_string(),
                QueueAttribute::ApproximateNumberOfMessagesNotVisible => facts.not_visible.to_string(),
                QueueAttribute::CreatedTimestamp => facts.created.to_string(),
                QueueAttribute::LastModifiedTimestamp => facts.modified.to_string(),
                QueueAttribute::QueueArn => facts.arn.to_string(),
                set => settings.get(*set)?,
            };
            Some((attribute.name(), value))
        };
        self.0.iter().filter_map(value).collect()
    }
}
