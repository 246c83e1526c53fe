//! A server that was built without the engine jetstream.

use super::{Doors, Started};
use crate::exit::Exit;
use crate::settings::Settings;

pub(super) async fn serve(_: &Settings, _: Started, _: Doors) -> anyhow::Result<()> {
    let error = anyhow::anyhow!(
        "engine must be `journal`: this server was built without JetStream. value=`jetstream`"
    );
    Err(error.context(Exit::NotUnderstood))
}
