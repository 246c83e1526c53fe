//! The connection of a client, with the token that goes with each call.

use std::fmt;

use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::{Request, Status};

/// A connection that authenticates each call.
pub(crate) type Channel = InterceptedService<tonic::transport::Channel, Credential>;

/// The token that goes with each call, if the client has one.
#[derive(Clone, Default)]
pub(crate) struct Credential(Option<MetadataValue<Ascii>>);

impl Credential {
    /// `None` if the token cannot be sent in a header.
    pub(crate) fn token(token: &str) -> Option<Credential> {
        let mut value: MetadataValue<Ascii> = format!("Bearer {}", token.trim()).parse().ok()?;
        value.set_sensitive(true);
        Some(Credential(Some(value)))
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Credential(..)" } else { "Credential(none)" })
    }
}

impl Interceptor for Credential {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(value) = &self.0 {
            request.metadata_mut().insert("authorization", value.clone());
        }
        Ok(request)
    }
}
