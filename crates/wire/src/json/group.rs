//! Groups: what operators do to them.

use forebay_model::Start;
use serde::{Deserialize, Serialize};

#[cfg(feature = "openapi")]
use super::schema;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ResetRequest {
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Start))]
    pub to: Start,
    /// Default `"keep"`.
    #[serde(default)]
    pub parked: ParkedOnReset,
}

/// What a reset does to parked messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ParkedOnReset {
    #[default]
    Keep,
    Drop,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ResetReply {
    /// Everything up to here counts as settled now.
    pub settled_through: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PausedReply {
    pub paused: bool,
}
