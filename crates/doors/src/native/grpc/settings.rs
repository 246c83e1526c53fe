//! Settings as requests of gRPC have them. The service checks them.

use forebay_model::Field;
use forebay_wire::settings::{Message, model_name, requested};

use crate::native::problem::Refusal;
use crate::native::service::Answer;

/// The settings of a request. A choice or a name that does not exist is refused.
pub(super) fn patch<P: Message>(wire: Option<P::Wire>) -> Answer<P>
where
    P::Wire: Default,
{
    requested(&wire.unwrap_or_default()).map_err(|error| Refusal::of_settings(&error))
}

/// Names of fields in `forebay.v1`, by their names in the API.
pub(super) fn cleared(names: Vec<String>, fields: &[Field]) -> Vec<String> {
    names.iter().map(|name| model_name(fields, name).to_owned()).collect()
}
