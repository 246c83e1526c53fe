//! The settable attributes of a queue.

use std::collections::BTreeMap;

use super::{QueueAttribute, RedriveAllowPolicy, RedrivePolicy, Values};
use crate::sqs::wire::address::QueueName;
use crate::sqs::wire::error::{ErrorKind, SqsError};
use crate::sqs::wire::message::QueueRules;

const TWO_ENCRYPTIONS: &str = "You can use one type of server-side encryption (SSE) at one time. You can either \
                               enable KMS SSE or SQS SSE.";

/// The scope within which a message is a duplicate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeduplicationScope {
    Queue,
    MessageGroup,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FifoThroughputLimit {
    PerQueue,
    PerMessageGroupId,
}

/// The settable attributes of a queue, valid by construction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueSettings {
    pub is_fifo: bool,
    /// In seconds, as all times here.
    pub visibility_timeout: u32,
    pub delay: u32,
    pub receive_wait: u32,
    pub retention: u32,
    pub message_bytes_max: u32,
    pub policy: Option<String>,
    pub redrive: Option<RedrivePolicy>,
    pub redrive_allow: Option<RedriveAllowPolicy>,
    pub content_based_deduplication: bool,
    pub deduplication_scope: DeduplicationScope,
    pub throughput_limit: FifoThroughputLimit,
    pub kms_key: Option<String>,
    pub kms_reuse_period: u32,
    pub managed_encryption: bool,
}

impl QueueSettings {
    fn usual(is_fifo: bool) -> QueueSettings {
        QueueSettings {
            is_fifo,
            visibility_timeout: QueueAttribute::VisibilityTimeout.usual(),
            delay: QueueAttribute::DelaySeconds.usual(),
            receive_wait: QueueAttribute::ReceiveMessageWaitTimeSeconds.usual(),
            retention: QueueAttribute::MessageRetentionPeriod.usual(),
            message_bytes_max: QueueAttribute::MaximumMessageSize.usual(),
            policy: None,
            redrive: None,
            redrive_allow: None,
            content_based_deduplication: false,
            deduplication_scope: DeduplicationScope::Queue,
            throughput_limit: FifoThroughputLimit::PerQueue,
            kms_key: None,
            kms_reuse_period: QueueAttribute::KmsDataKeyReusePeriodSeconds.usual(),
            managed_encryption: true,
        }
    }

    /// Of a new queue with this name and these attributes.
    pub fn create(
        name: &str,
        attributes: &BTreeMap<String, String>,
    ) -> Result<(QueueName, QueueSettings), SqsError> {
        let fifo = QueueAttribute::FifoQueue;
        let is_fifo = match attributes.get(fifo.name()) {
            None => false,
            Some(text) if boolean(fifo, text)? => true,
            // That a queue is not FIFO is not said by an attribute.
            Some(_) => return Err(SqsError::unknown_attribute(fifo.name())),
        };
        let name = QueueName::new(name, is_fifo)?;
        Ok((name, QueueSettings::usual(is_fifo).changed(attributes)?))
    }

    /// Of a queue with this name that is there, from what [`QueueSettings::texts`] said of it.
    pub fn kept(name: &str, attributes: &BTreeMap<String, String>) -> Result<QueueSettings, SqsError> {
        QueueSettings::usual(QueueName::is_fifo_name(name)).changed(attributes)
    }

    /// With other attributes: all of them, or none if one cannot be.
    pub fn changed(&self, attributes: &BTreeMap<String, String>) -> Result<QueueSettings, SqsError> {
        let mut settings = self.clone();
        for (name, text) in attributes {
            settings.set(settable(name)?, text)?;
        }
        settings.settle_encryption(attributes)?;
        settings.check_throughput()?;
        Ok(settings)
    }

    /// The first attribute that differs from an existing queue's, if a request creates it again. Only
    /// attributes in the request are compared, by value: texts that mean the same are equal.
    pub fn difference(
        &self,
        attributes: &BTreeMap<String, String>,
    ) -> Result<Option<QueueAttribute>, SqsError> {
        for (name, text) in attributes {
            let attribute = settable(name)?;
            let mut wanted = self.clone();
            wanted.set(attribute, text)?;
            // A policy is kept as it was written.
            if json(&wanted.policy) == json(&self.policy) {
                wanted.policy.clone_from(&self.policy);
            }
            if wanted != *self {
                return Ok(Some(attribute));
            }
        }
        Ok(None)
    }

    /// For a queue that is created again with another value.
    pub fn exists_with_another(attribute: QueueAttribute) -> SqsError {
        let name = attribute.name();
        let message =
            format!("A queue already exists with the same name and a different value for attribute {name}");
        SqsError::new(ErrorKind::QueueNameExists, message)
    }

    /// The rules that decide whether the queue accepts a message.
    pub fn rules(&self) -> QueueRules {
        QueueRules {
            is_fifo: self.is_fifo,
            content_based_deduplication: self.content_based_deduplication,
            message_bytes_max: self.message_bytes_max as usize,
        }
    }

    fn set(&mut self, attribute: QueueAttribute, text: &str) -> Result<(), SqsError> {
        self.check_type(attribute, text)?;
        let number = |attribute| number(attribute, text);
        match attribute {
            QueueAttribute::VisibilityTimeout => self.visibility_timeout = number(attribute)?,
            QueueAttribute::DelaySeconds => self.delay = number(attribute)?,
            QueueAttribute::ReceiveMessageWaitTimeSeconds => self.receive_wait = number(attribute)?,
            QueueAttribute::MessageRetentionPeriod => self.retention = number(attribute)?,
            QueueAttribute::MaximumMessageSize => self.message_bytes_max = number(attribute)?,
            QueueAttribute::KmsDataKeyReusePeriodSeconds => self.kms_reuse_period = number(attribute)?,
            QueueAttribute::Policy => self.policy = policy(text)?,
            QueueAttribute::RedrivePolicy => {
                self.redrive = filled(text).map(RedrivePolicy::parse).transpose()?;
            }
            QueueAttribute::RedriveAllowPolicy => {
                self.redrive_allow = filled(text).map(RedriveAllowPolicy::parse).transpose()?;
            }
            QueueAttribute::ContentBasedDeduplication => {
                self.content_based_deduplication = boolean(attribute, text)?;
            }
            QueueAttribute::DeduplicationScope => {
                self.deduplication_scope = match choice(attribute, text)? {
                    0 => DeduplicationScope::Queue,
                    _ => DeduplicationScope::MessageGroup,
                };
            }
            QueueAttribute::FifoThroughputLimit => {
                self.throughput_limit = match choice(attribute, text)? {
                    0 => FifoThroughputLimit::PerQueue,
                    _ => FifoThroughputLimit::PerMessageGroupId,
                };
            }
            QueueAttribute::KmsMasterKeyId => self.kms_key = filled(text).map(str::to_owned),
            QueueAttribute::SqsManagedSseEnabled => self.managed_encryption = boolean(attribute, text)?,
            // The kind of a queue is fixed when it is created.
            QueueAttribute::FifoQueue
            | QueueAttribute::ApproximateNumberOfMessages
            | QueueAttribute::ApproximateNumberOfMessagesDelayed
            | QueueAttribute::ApproximateNumberOfMessagesNotVisible
            | QueueAttribute::CreatedTimestamp
            | QueueAttribute::LastModifiedTimestamp
            | QueueAttribute::QueueArn => {}
        }
        Ok(())
    }

    /// Some attributes are for FIFO queues only.
    fn check_type(&self, attribute: QueueAttribute, text: &str) -> Result<(), SqsError> {
        let name = attribute.name();
        match attribute {
            QueueAttribute::FifoQueue | QueueAttribute::ContentBasedDeduplication if !self.is_fifo => {
                Err(SqsError::unknown_attribute(name))
            }
            QueueAttribute::DeduplicationScope | QueueAttribute::FifoThroughputLimit if !self.is_fifo => {
                let message = format!("You can specify the {name} only when FifoQueue is set to true.");
                Err(SqsError::new(ErrorKind::InvalidAttributeName, message))
            }
            QueueAttribute::FifoQueue if !boolean(attribute, text)? => {
                let message = format!(
                    "Invalid value for the parameter {name}. Reason: Modifying queue type is not supported."
                );
                Err(SqsError::new(ErrorKind::InvalidAttributeValue, message))
            }
            _ => Ok(()),
        }
    }

    /// A key takes the place of the server's own encryption, unless both are asked for. Giving the key up does not
    /// bring the other back.
    fn settle_encryption(&mut self, attributes: &BTreeMap<String, String>) -> Result<(), SqsError> {
        if self.kms_key.is_none() || !self.managed_encryption {
            return Ok(());
        }
        if attributes.contains_key(QueueAttribute::SqsManagedSseEnabled.name()) {
            return Err(SqsError::new(ErrorKind::InvalidAttributeName, TWO_ENCRYPTIONS));
        }
        self.managed_encryption = false;
        Ok(())
    }

    fn check_throughput(&self) -> Result<(), SqsError> {
        let per_group = self.throughput_limit == FifoThroughputLimit::PerMessageGroupId;
        if per_group && self.deduplication_scope != DeduplicationScope::MessageGroup {
            let message = "Invalid value for the parameter FifoThroughputLimit. Reason: perMessageGroupId needs \
                           DeduplicationScope to be messageGroup.";
            return Err(SqsError::new(ErrorKind::InvalidAttributeValue, message));
        }
        Ok(())
    }

    /// An attribute's value as a client is shown it. `None` if the attribute is not set, or does not apply to
    /// this kind of queue.
    pub(super) fn get(&self, attribute: QueueAttribute) -> Option<String> {
        let on_fifo = |text: &str| self.is_fifo.then(|| text.to_owned());
        match attribute {
            QueueAttribute::VisibilityTimeout => Some(self.visibility_timeout.to_string()),
            QueueAttribute::DelaySeconds => Some(self.delay.to_string()),
            QueueAttribute::ReceiveMessageWaitTimeSeconds => Some(self.receive_wait.to_string()),
            QueueAttribute::MessageRetentionPeriod => Some(self.retention.to_string()),
            QueueAttribute::MaximumMessageSize => Some(self.message_bytes_max.to_string()),
            QueueAttribute::KmsDataKeyReusePeriodSeconds => {
                let is_usual = self.kms_reuse_period == attribute.usual();
                (!is_usual).then(|| self.kms_reuse_period.to_string())
            }
            QueueAttribute::Policy => self.policy.clone(),
            QueueAttribute::RedrivePolicy => self.redrive.as_ref().map(RedrivePolicy::render),
            QueueAttribute::RedriveAllowPolicy => self.redrive_allow.as_ref().map(RedriveAllowPolicy::render),
            QueueAttribute::FifoQueue => on_fifo("true"),
            QueueAttribute::ContentBasedDeduplication => on_fifo(word(self.content_based_deduplication)),
            QueueAttribute::DeduplicationScope => on_fifo(match self.deduplication_scope {
                DeduplicationScope::Queue => "queue",
                DeduplicationScope::MessageGroup => "messageGroup",
            }),
            QueueAttribute::FifoThroughputLimit => on_fifo(match self.throughput_limit {
                FifoThroughputLimit::PerQueue => "perQueue",
                FifoThroughputLimit::PerMessageGroupId => "perMessageGroupId",
            }),
            QueueAttribute::KmsMasterKeyId => self.kms_key.clone(),
            QueueAttribute::SqsManagedSseEnabled => Some(word(self.managed_encryption).to_owned()),
            // The queue's own figures.
            QueueAttribute::ApproximateNumberOfMessages
            | QueueAttribute::ApproximateNumberOfMessagesDelayed
            | QueueAttribute::ApproximateNumberOfMessagesNotVisible
            | QueueAttribute::CreatedTimestamp
            | QueueAttribute::LastModifiedTimestamp
            | QueueAttribute::QueueArn => None,
        }
    }

    /// Everything that is not as usual, as texts that [`QueueSettings::changed`] understands: what a queue needs to
    /// be kept by, beside its name.
    pub fn texts(&self) -> BTreeMap<String, String> {
        let usual = QueueSettings::usual(self.is_fifo);
        let said = |attribute: &&QueueAttribute| self.get(**attribute) != usual.get(**attribute);
        let all = QueueAttribute::ALL.iter().filter(said);
        all.filter_map(|attribute| Some((attribute.name().to_owned(), self.get(*attribute)?))).collect()
    }
}

fn settable(name: &str) -> Result<QueueAttribute, SqsError> {
    let attribute = QueueAttribute::named(name).filter(|attribute| attribute.values() != Values::ReadOnly);
    attribute.ok_or_else(|| SqsError::unknown_attribute(name))
}

fn number(attribute: QueueAttribute, text: &str) -> Result<u32, SqsError> {
    let Values::Number { min, max, .. } = attribute.values() else {
        return Err(SqsError::attribute_value(attribute.name()));
    };
    let value = text.trim().parse().ok().filter(|value| (min..=max).contains(value));
    value.ok_or_else(|| SqsError::attribute_value(attribute.name()))
}

/// In any case, as in `True`.
fn boolean(attribute: QueueAttribute, text: &str) -> Result<bool, SqsError> {
    match text {
        _ if text.eq_ignore_ascii_case("true") => Ok(true),
        _ if text.eq_ignore_ascii_case("false") => Ok(false),
        _ => Err(SqsError::attribute_value(attribute.name())),
    }
}

fn word(value: bool) -> &'static str {
    if value { "true" } else { "false" }
}

/// Which of the words it is.
fn choice(attribute: QueueAttribute, text: &str) -> Result<usize, SqsError> {
    let Values::Choice(words) = attribute.values() else {
        return Err(SqsError::attribute_value(attribute.name()));
    };
    let at = words.iter().position(|word| *word == text);
    at.ok_or_else(|| SqsError::attribute_value(attribute.name()))
}

fn filled(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.trim().is_empty())
}

fn json(text: &Option<String>) -> Option<serde_json::Value> {
    text.as_ref().and_then(|text| serde_json::from_str(text).ok())
}

fn policy(text: &str) -> Result<Option<String>, SqsError> {
    let Some(text) = filled(text) else { return Ok(None) };
    let is_object = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(text).is_ok();
    is_object.then(|| Some(text.to_owned())).ok_or_else(|| SqsError::attribute_value("Policy"))
}
