//! Settings of streams and groups. A setting that is not given has its default when the stream or group is new, and
//! stays as it is when it exists.
//!
//! ```
//! use std::time::Duration;
//! use forebay_client::admin::settings::{
//!     Backoff, GroupSettings, OnFull, Rate, Retention, Retries, Start, Strategy, StreamLimits, StreamSettings,
//! };
//!
//! let stream = StreamSettings::new()
//!     .retention(Retention::Work)
//!     .limits(StreamLimits::new().max_messages(100_000).on_full(OnFull::Reject))
//!     .dedupe_window(Duration::from_secs(3_600))
//!     .ingress_rate(Rate::per_second(500.0).burst(50));
//!
//! let group = GroupSettings::new()
//!     .start(Start::End)
//!     .strategy(Strategy::Ordered)
//!     .message_timeout(Duration::from_secs(60))
//!     .max_retries(5)
//!     .backoff(Backoff::new().min(Duration::from_secs(1)).max(Duration::from_secs(60)))
//!     .rate(Rate::per_second(100.0).burst(20));
//! assert_eq!(group.max_retries, Some(Retries::AtMost(5)));
//! ```

pub use forebay_model::types::{NameError, Seq, StreamName, Timestamp};
pub use forebay_model::{
    Acks, BackoffPatch as Backoff, CheckpointPatch as Checkpoint, Fairness, GroupPatch as GroupSettings,
    OnEnd, OnExhausted, OnFull, OnParkedKey, Rate, Retention, Retries, Source, Start, Strategy,
    StreamLimitsPatch as StreamLimits, StreamPatch as StreamSettings,
};
