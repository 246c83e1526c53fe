//! The rows of the Kurrent door.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::TcpListener;

use super::Stage;
use crate::kit::identity::Anonymous;
use crate::kurrent::{KurrentConfig, serve};

/// A door that asks for credentials.
pub(super) async fn prepare(of: &Stage) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let config = KurrentConfig { anonymous: Anonymous::Refused, ..KurrentConfig::new([7; 16]) };
    tokio::spawn(serve(of.broker.entrance(), listener, of.broker.stopping(), config));
    address
}
