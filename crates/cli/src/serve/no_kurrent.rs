//! A server that was built without the Kurrent door.

use std::net::SocketAddr;

use anyhow::bail;
use forebay_broker::broker::Broker;
use forebay_doors::kit::tls::Tls;

use super::identity::Identity;
use super::optional::Prepared;
use crate::exit::Exit;
use crate::settings::Settings;

/// A door that is never open: this build has no Kurrent door.
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

/// Refuses a door that was asked for by name.
pub(super) async fn prepare(
    settings: &Settings,
    _identity: &Identity,
    _tls: Option<Tls>,
    is_asked_for: bool,
) -> anyhow::Result<Prepared<Door>> {
    if let Some(address) = settings.kurrent.filter(|_| is_asked_for) {
        let error = anyhow::anyhow!(
            "kurrent must be `none`: this server was built without the Kurrent door. value=`{address}`"
        );
        bail!(error.context(Exit::NotUnderstood));
    }
    Ok(Prepared::Closed)
}
