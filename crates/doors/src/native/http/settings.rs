//! Lengths of time in requests. Settings themselves are checked and applied by the model.

use forebay_model::limits::{INSTANT, YEAR};
use forebay_model::value::{Setting as _, lasting};
use forebay_wire::json::Span;

use super::failure::Failure;

/// A length of time that is given is above zero and within a year.
pub(super) fn some_time(field: &str, span: Option<Span>) -> Result<(), Failure> {
    Ok(span.map_or(Ok(()), |span| span.0.check(field, lasting(INSTANT, YEAR)))?)
}
