//! Taking connections, no more than there may be, and letting them end.

use std::future::Future;
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

/// After the system had no more sockets to give. Others close theirs meanwhile.
const PAUSE: Duration = Duration::from_millis(50);

/// Serves every connection with `serve_one` until `stop` resolves and all of them have ended. `serve_one` is told
/// when the server stops, and then ends its connection after the requests that it has. One connection too many is
/// sent `busy`.
pub(crate) async fn connections<F>(
    listener: TcpListener,
    stop: impl Future<Output = ()> + Send,
    permits: Arc<Semaphore>,
    busy: &'static [u8],
    serve_one: impl Fn(TcpStream, SocketAddr, Stopping) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let most = u32::try_from(permits.available_permits()).unwrap_or(u32::MAX);
    let (stopping, is_stopping) = watch::channel(false);
    let mut stop = std::pin::pin!(stop);
    loop {
        let accepted = tokio::select! {
            () = &mut stop => break,
            accepted = listener.accept() => accepted,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            // The one who knocked has gone, or there are no sockets left; either passes.
            Err(_) => {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        match permits.clone().try_acquire_owned() {
            Ok(permit) => {
                // Small answers must not wait for more. A socket that cannot is none any more.
                let _ = stream.set_nodelay(true);
                let served = serve_one(stream, address, Stopping(is_stopping.clone()));
                tokio::spawn(async move {
                    served.await;
                    drop(permit);
                });
            }
            // As much as the socket takes at once; nobody waits for it.
            Err(_) => {
                if let Ok(mut stream) = stream.into_std() {
                    let _ = stream.write(busy);
                }
            }
        }
    }
    drop(listener);
    let _ = stopping.send(true);
    // Every connection holds one of these.
    let _ = permits.acquire_many(most).await;
}

/// Tells a connection that the server stops.
pub(crate) struct Stopping(watch::Receiver<bool>);

impl Stopping {
    pub(crate) async fn wait(mut self) {
        // An error means that the door is gone, which is the same.
        let _ = self.0.wait_for(|stopping| *stopping).await;
    }
}
