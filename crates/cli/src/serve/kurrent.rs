//! The Kurrent door of a server: where it listens.

use std::net::SocketAddr;

use forebay_broker::broker::Broker;
use forebay_doors::kit::tls::Tls;
use forebay_doors::kurrent::{self, KurrentConfig};
use tokio::net::TcpListener;

use super::identity::Identity;
use super::optional::{self, Prepared};
use crate::settings::Settings;

/// The door, ready to be opened.
pub(super) struct Door {
    listener: TcpListener,
    pub(super) address: SocketAddr,
    config: KurrentConfig,
}

impl Door {
    #[cfg_attr(not(feature = "jetstream"), allow(dead_code))]
    pub(super) fn listener(&self) -> &TcpListener {
        &self.listener
    }

    /// The same socket once more.
    pub(super) fn again(&self) -> std::io::Result<Door> {
        let listener = super::listen_again(&self.listener)?;
        Ok(Door { listener, address: self.address, config: self.config.clone() })
    }

    /// Serves until the broker stops and the calls have ended.
    pub(super) async fn serve(self, broker: Broker) -> std::io::Result<()> {
        let stop = broker.stopping();
        kurrent::serve(broker.entrance(), self.listener, stop, self.config).await
    }
}

/// Listens, if the settings say so.
pub(super) async fn prepare(
    settings: &Settings,
    identity: &Identity,
    tls: Option<Tls>,
    is_asked_for: bool,
) -> anyhow::Result<Prepared<Door>> {
    let Some(address) = settings.kurrent else { return Ok(Prepared::Closed) };
    identity.check_before(settings, address)?;
    let (listener, address) = match optional::listen("Kurrent", "--kurrent", address, is_asked_for).await? {
        Ok(listening) => listening,
        Err(remark) => return Ok(Prepared::Taken(remark)),
    };
    let config = KurrentConfig {
        connections_max: settings.max_connections,
        body_bytes_max: settings.request_bytes as usize,
        connections_per_address: settings.max_connections_per_address,
        host_names: settings.host_names.clone(),
        anonymous: identity.anonymous(address),
        tls,
        ..KurrentConfig::new(super::random()?)
    };
    Ok(Prepared::Open(Box::new(Door { listener, address, config })))
}
