//! A server that was built without the SQS door.

use std::net::SocketAddr;

use anyhow::bail;
use forebay_broker::broker::Broker;

use crate::exit::Exit;
use crate::settings::Settings;

/// A door that is never open: this build has no SQS.
pub(super) struct Door {
    pub(super) address: SocketAddr,
    none: std::convert::Infallible,
}

impl Door {
    #[allow(dead_code, reason = "a cluster asks every door")]
    pub(super) fn listener(&self) -> &tokio::net::TcpListener {
        match self.none {}
    }

    pub(super) fn again(&self) -> std::io::Result<Door> {
        match self.none {}
    }

    pub(super) async fn serve(self, _broker: Broker) -> std::io::Result<()> {
        match self.none {}
    }
}

/// As a server with the door has it.
#[allow(dead_code, reason = "one of them can happen here")]
pub(super) enum Prepared {
    Open(Box<Door>),
    Closed,
    Taken(String),
}

/// Refuses a door that was asked for by name.
pub(super) async fn prepare(settings: &Settings, is_asked_for: bool) -> anyhow::Result<Prepared> {
    if let Some(address) = settings.sqs.filter(|_| is_asked_for) {
        let error =
            anyhow::anyhow!("sqs must be `none`: this server was built without SQS. value=`{address}`");
        bail!(error.context(Exit::NotUnderstood));
    }
    Ok(Prepared::Closed)
}
