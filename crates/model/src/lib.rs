//! Settings of streams and groups: every setting, choice and limit is declared here once, and everything else
//! follows from the declaration: defaults, checks, patches, the JSON, the encoding in the log, `--help`, the pages
//! in `docs/reference` and the OpenAPI schemas.
//!
//! | Module | Contents |
//! | --- | --- |
//! | [`settings`] | the tables: one entry for each setting |
//! | [`choices`] | the values that are not plain numbers: `Strategy`, `Retention`, `Rate` and others |
//! | [`limits`] | limits that several crates keep to |
//! | [`value`] | what a value must be able to do to stand in a table |
//! | [`describe`] | what a table says about itself: names, values, defaults, help |
//! | [`types`] | positions, times and names |
//! | [`text`] | lengths of time and moments as people write them |
//!
//! The macro behind the tables is in `table.rs`.

pub mod choices;
pub mod describe;
#[cfg(feature = "serde")]
mod json;
pub mod limits;
pub mod settings;
mod table;
pub mod text;
pub mod types;
pub mod value;

pub use choices::{
    Acks, Choice, Fairness, KeyLock, MoveTerms, OnEnd, OnExhausted, OnFull, OnParkedKey, Rate, Retention,
    Retries, Source, Start, Strategy,
};
pub use describe::{Field, Kind};
pub use settings::{
    Backoff, BackoffPatch, Checkpoint, CheckpointPatch, GroupPatch, GroupSettings, StreamLimits,
    StreamLimitsPatch, StreamPatch, StreamSettings,
};
pub use value::{Limit, SettingsError};
