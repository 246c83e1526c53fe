//! Settling leases and publishing messages in one transaction.

use serde::{Deserialize, Serialize};

use super::{Message, NackAction, PublishReply, SettleReply, Span};

/// All of it is done and durable, or nothing is.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TransactionRequest {
    /// Leases to settle. Every one of them has to be current.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub settle: Vec<TransactionSettlement>,
    /// Messages to publish, by stream. A stream may be named once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub publish: Vec<TransactionBatch>,
}

/// Leases of one group that are settled alike.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TransactionSettlement {
    pub stream: String,
    pub group: String,
    /// At most 10000 in the whole transaction.
    pub leases: Vec<String>,
    /// Default `"ack"`.
    #[serde(default)]
    pub action: SettleAction,
    /// Before a retry, in place of the group's backoff; or for how long a message is given back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<Span>,
    /// Why the message failed, for operators. The first 512 bytes are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// For how long the whole group should hand out nothing, `"5m"` at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rest: Option<Span>,
}

/// What becomes of leased messages.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum SettleAction {
    /// The messages are done.
    #[default]
    Ack,
    /// As the group's policy says: a retry, or `on_exhausted` when they are used up.
    Auto,
    /// Offer them again. Once their retries are used up, `on_exhausted`.
    Retry,
    /// Set them aside at once.
    Park,
    /// Never offer them again.
    Skip,
    /// Give them back, as if they had never been handed out, for a while if there is a `delay`.
    Return,
    /// Settle them here and publish them to this stream.
    Move(String),
}

/// A transaction can do with leases whatever a nack can.
impl From<NackAction> for SettleAction {
    fn from(action: NackAction) -> SettleAction {
        match action {
            NackAction::Auto => SettleAction::Auto,
            NackAction::Retry => SettleAction::Retry,
            NackAction::Park => SettleAction::Park,
            NackAction::Skip => SettleAction::Skip,
            NackAction::Return => SettleAction::Return,
            NackAction::Move(to) => SettleAction::Move(to),
        }
    }
}

/// Messages for one stream. A stream that does not exist is created.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TransactionBatch {
    pub stream: String,
    pub messages: Vec<Message>,
    /// Only if the stream ends there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect_last_seq: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TransactionReply {
    /// One for each part of `settle`, in their order.
    pub settled: Vec<SettleReply>,
    /// One for each part of `publish`, in their order.
    pub published: Vec<PublishReply>,
    /// The transaction had been done before, and came again: the group is done with its leased messages, and all its
    /// messages are stored under their ids.
    pub already_committed: bool,
}
