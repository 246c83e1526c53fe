//! The Kurrent door of a server: its settings.

use std::sync::Arc;

use forebay_broker::broker::Entrance;
use forebay_doors::kurrent::{self, KurrentConfig};
use tokio::net::TcpListener;

use super::doors::{Protocol, Serving, Site};

struct Kurrent {
    config: KurrentConfig,
}

impl Protocol for Kurrent {
    fn serve(&self, broker: Entrance, listener: TcpListener) -> Serving {
        let (stop, config) = (broker.stopping(), self.config.clone());
        Box::pin(async move { kurrent::serve(broker, listener, stop, config).await })
    }
}

pub(super) fn prepare(site: &Site<'_>) -> anyhow::Result<Arc<dyn Protocol>> {
    let (settings, identity) = (site.settings, site.identity);
    identity.check_before(settings, "--kurrent", site.address)?;
    let config = KurrentConfig {
        connections_max: settings.max_connections,
        body_bytes_max: settings.request_bytes as usize,
        connections_per_address: settings.max_connections_per_address,
        host_names: settings.host_names.clone(),
        anonymous: identity.anonymous(site.address),
        tls: site.tls.clone(),
        ..KurrentConfig::new(super::random()?)
    };
    Ok(Arc::new(Kurrent { config }))
}
