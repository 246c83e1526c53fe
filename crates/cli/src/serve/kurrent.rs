//! The Kurrent door of a server: where it listens.

use std::net::SocketAddr;

use anyhow::bail;
use forebay_broker::broker::Broker;
use forebay_doors::kurrent::{self, KurrentConfig};
use tokio::net::TcpListener;

use super::optional::{self, Prepared};
use crate::settings::Settings;

/// The door, ready to be opened.
pub(super) struct Door {
    listener: TcpListener,
    pub(super) address: SocketAddr,
    config: KurrentConfig,
}

impl Door {
    /// Serves until the broker stops and the calls have ended.
    pub(super) async fn serve(self, broker: Broker) -> std::io::Result<()> {
        let stop = broker.stopping();
        kurrent::serve(broker.entrance(), self.listener, stop, self.config).await
    }
}

/// Listens, if the settings say so.
pub(super) async fn prepare(settings: &Settings, is_asked_for: bool) -> anyhow::Result<Prepared<Door>> {
    let Some(address) = settings.kurrent else { return Ok(Prepared::Closed) };
    check_reach(settings, address)?;
    let (listener, address) = match optional::listen("Kurrent", "--kurrent", address, is_asked_for).await? {
        Ok(listening) => listening,
        Err(remark) => return Ok(Prepared::Taken(remark)),
    };
    let config = KurrentConfig {
        connections_max: settings.max_connections,
        body_bytes_max: settings.request_bytes as usize,
        host_names: settings.host_names.clone(),
        ..KurrentConfig::new(super::random()?)
    };
    Ok(Prepared::Open(Box::new(Door { listener, address, config })))
}

/// Refuses an address that others can reach, since every client may do everything.
fn check_reach(settings: &Settings, address: SocketAddr) -> anyhow::Result<()> {
    if address.ip().is_loopback() {
        return Ok(());
    }
    if !settings.allow_anyone {
        bail!(
            "there is no authentication yet, so Kurrent is served on addresses of this machine only. Give --kurrent an \
             address such as 127.0.0.1:2113; or --allow-anyone, to let anyone who can reach the port do everything. \
             address=`{address}`"
        );
    }
    tracing::warn!(
        "anyone who reaches the Kurrent port may do everything: --allow-anyone is set, and there is no authentication yet",
    );
    Ok(())
}
