//! The native API in JSON: every request and every reply of the HTTP calls, in both directions.
//!
//! A request refuses fields that it does not know, so that a typing mistake never passes silently. A reply
//! takes them, so that an older client can read what a newer server says. Fields of a request that may be
//! left out are options.

pub mod body;
mod cluster;
mod connection;
mod consume;
mod credential;
mod group;
mod message;
mod monitor;
mod read;
#[cfg(feature = "openapi")]
pub mod schema;
mod span;
mod stream;
mod time;
mod transaction;
mod triage;

use serde::{Deserialize, Deserializer};

pub use cluster::{ClusterLog, ClusterNode, ClusterReport, NatsServer, NodeRole};
pub use connection::{Connection, ConnectionList};
pub use consume::{
    AckRequest, Delivery, ExtendRequest, NackAction, NackRequest, Outcome, RECEIVE_MAX, ReceiveReply,
    ReceiveRequest, SettleReply, SettleResult,
};
pub use credential::{
    ChangePasswordRequest, CreateCredentialReply, CreateCredentialRequest, Credential, CredentialKind,
    CredentialList,
};
// Settings are declared in the model, and their JSON with them.
pub use forebay_model::{GroupPatch as GroupSettings, Rate, Start, StreamPatch as StreamSettings};
pub use group::{ParkedOnReset, PausedReply, ResetReply, ResetRequest};
pub use message::{
    Headers, LogList, Message, MessageList, PublishReply, PublishRequest, PublishResult, SourceMessage,
    StoredMessage,
};
pub use monitor::{
    Consumer, ConsumerKind, Counters, GroupList, GroupReport, GroupStatus, History, ProcessingTime, Rates,
    Scaling, ServerReport, ServerStage, SubscriptionList, Throughput,
};
pub use read::read;
pub use span::{BadSpan, Span};
pub use stream::{
    PurgeReply, PurgeRequest, StreamList, StreamRates, StreamReport, TruncateReply, TruncateRequest,
};
pub use time::{BadTime, Time};
pub use transaction::{
    SettleAction, TransactionBatch, TransactionReply, TransactionRequest, TransactionSettlement,
};
pub use triage::{
    Failure, FailureCause, GroupLife, Job, JobList, JobState, JobWork, MessageLife, MessageState, Parked,
    ParkedList, Reason, ReasonList, SelectFilter, SelectReply, SelectRequest,
};

/// A field that may be left out but not be `null`: `Option` alone would take `null` for nothing, silently.
fn some<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

#[cfg(test)]
mod tests;
