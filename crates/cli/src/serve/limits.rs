//! The limits of clients and streams: their file, which is read again when it changes, and the looks at streams that
//! some of them need.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use forebay_broker::broker::{Entrance, Stage};
use forebay_broker::tenants::Tenants;

use super::identity::on_change;
use crate::exit::Exit;
use crate::safe::printable;
use crate::settings::Settings;

/// How often streams with limits are looked at.
const MEASURE_EVERY: Duration = Duration::from_secs(1);

/// Refuses limits that cannot be read, before the server begins.
pub(crate) fn check(settings: &Settings) -> anyhow::Result<()> {
    match &settings.limits_file {
        Some(path) => read(path, &Tenants::default()).context(Exit::NotUnderstood),
        None => Ok(()),
    }
}

fn read(path: &Path, tenants: &Tenants) -> anyhow::Result<()> {
    let shown = printable(&path.display().to_string());
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read the limits in {shown}"))?;
    tenants.replace(&text).with_context(|| format!("cannot use the limits in {shown}"))
}

/// The limits count from now on.
pub(super) async fn begin(broker: &Entrance, settings: &Settings) -> anyhow::Result<()> {
    let Some(path) = settings.limits_file.clone() else { return Ok(()) };
    read(&path, broker.tenants()).context(Exit::NotUnderstood)?;
    broker.tenants().measure(broker).await?;
    let tenants = broker.tenants().clone();
    tokio::spawn(on_change(path, move |path| match read(path, &tenants) {
        Ok(()) => tracing::info!("the limits were read again"),
        Err(error) => {
            tracing::warn!("the limits cannot be read again, and the last ones count: {error:#}");
        }
    }));
    let broker = broker.clone();
    tokio::spawn(async move {
        while broker.stage() < Stage::Stopping {
            tokio::time::sleep(MEASURE_EVERY).await;
            if let Err(error) = broker.tenants().measure(&broker).await {
                tracing::debug!(%error, "streams with limits could not be looked at");
            }
        }
    });
    Ok(())
}
