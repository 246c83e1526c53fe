//! Doors that a server may do without: where each listens, and why it does not.

use std::net::SocketAddr;

use anyhow::Context as _;
use tokio::net::TcpListener;

use crate::exit::Exit;

/// The result of preparing a door.
#[cfg_attr(
    not(all(feature = "kurrent", feature = "sqs")),
    allow(dead_code, reason = "a door that is not built is closed")
)]
pub(super) enum Prepared<D> {
    Open(Box<D>),
    /// The settings do not ask for it.
    Closed,
    /// The remark for the log, once the server has said that it listens.
    Taken(String),
}

impl<D> Prepared<D> {
    /// The door, if it is open. Adds the remark, if there is one.
    pub(super) fn open(self, remarks: &mut Vec<String>) -> Option<D> {
        match self {
            Prepared::Open(door) => Some(*door),
            Prepared::Closed => None,
            Prepared::Taken(remark) => {
                remarks.push(remark);
                None
            }
        }
    }
}

/// A socket for a door, or a remark: if the port is in use and no setting asks for the door explicitly, the server
/// starts without it.
#[cfg(any(feature = "kurrent", feature = "sqs"))]
pub(super) async fn listen(
    name: &str,
    flag: &str,
    address: SocketAddr,
    is_asked_for: bool,
) -> anyhow::Result<Result<(TcpListener, SocketAddr), String>> {
    let listener = match TcpListener::bind(address).await {
        Ok(listener) => listener,
        Err(error) if !is_asked_for => {
            return Ok(Err(format!(
                "{name} is not served: {address} cannot be listened on ({error}); {flag} takes another address, or none"
            )));
        }
        Err(error) => {
            return Err(anyhow::Error::new(error).context(Exit::CannotListen).context(format!(
                "{name} cannot be served on port {}; {flag} takes another. address=`{address}`",
                address.port()
            )));
        }
    };
    let address = listener.local_addr().with_context(|| format!("cannot tell the address of {name}"))?;
    Ok(Ok((listener, address)))
}
