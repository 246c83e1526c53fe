//! Taking connections, no more than there may be, and letting them end.

use std::collections::HashMap;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use forebay_broker::api::{Clock, DoorStats, LiveConnection};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

/// After the system had no more sockets to give. Others close theirs meanwhile.
const PAUSE: Duration = Duration::from_millis(50);
/// Connections that are being refused, over all of a door: each has a descriptor for as long as it is told.
const REFUSING_MAX: usize = 16;
/// How long, and up to how many bytes, the request of a refused client is read. A connection that is closed while
/// bytes of it are unread is reset, and the refusal may be lost with it.
const REFUSE_MAX: Duration = Duration::from_millis(500);
const REFUSED_BYTES_MAX: usize = 64 << 10;

/// How many connections a door has at a time.
pub(crate) struct Limits {
    permits: Arc<Semaphore>,
    /// From one address. None: as many as the door has.
    per_address: Option<usize>,
}

impl Limits {
    pub(crate) fn new(connections_max: usize, per_address: Option<usize>) -> Limits {
        Limits { permits: Arc::new(Semaphore::new(connections_max)), per_address }
    }
}

/// The connections of each address, counted only if they are limited.
#[derive(Default)]
struct Addresses(Mutex<HashMap<IpAddr, usize>>);

impl Addresses {
    /// A place for a connection from this address, if there is one.
    fn enter(self: &Arc<Addresses>, address: IpAddr, max: Option<usize>) -> Option<Place> {
        let Some(max) = max else { return Some(Place(None)) };
        let address = address.to_canonical();
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(address).or_default();
        if *count >= max {
            return None;
        }
        *count += 1;
        Some(Place(Some((self.clone(), address))))
    }
}

/// A connection that counts for its address.
struct Place(Option<(Arc<Addresses>, IpAddr)>);

impl Drop for Place {
    fn drop(&mut self) {
        let Some((addresses, address)) = self.0.take() else { return };
        let mut open = addresses.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                open.remove(&address);
            }
        }
    }
}

/// Serves every connection with `serve_one` until `stop` resolves and all of them have ended. `serve_one` is told
/// when the server stops, and then ends its connection after the requests that it has. One connection too many is
/// sent `busy`.
pub(crate) async fn connections<F>(
    listener: TcpListener,
    stop: impl Future<Output = ()> + Send,
    limits: Limits,
    busy: &'static [u8],
    (stats, clock): (&Arc<DoorStats>, Clock),
    serve_one: impl Fn(TcpStream, SocketAddr, Stopping, Arc<LiveConnection>) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let (Limits { permits, per_address }, addresses) = (limits, Arc::<Addresses>::default());
    let most = u32::try_from(permits.available_permits()).unwrap_or(u32::MAX);
    let refusing = Arc::new(Semaphore::new(REFUSING_MAX));
    let (stopping, is_stopping) = watch::channel(false);
    stats.listens.store(true, Ordering::Relaxed);
    let mut stop = std::pin::pin!(stop);
    // The log says when refusing begins and ends; a line for each refusal could fill the disk.
    let mut is_refusing = false;
    let mut is_failing = false;
    loop {
        let accepted = tokio::select! {
            () = &mut stop => break,
            accepted = listener.accept() => accepted,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            // The client has gone, or there are no sockets left; either passes.
            Err(error) => {
                if !std::mem::replace(&mut is_failing, true) {
                    tracing::warn!(door = stats.name, %error, "connections cannot be accepted");
                }
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        is_failing = false;
        let permit = permits.clone().try_acquire_owned().ok();
        let entered = permit.and_then(|permit| {
            let place = addresses.enter(address.ip(), per_address)?;
            Some((permit, stats.connect(address, clock.now())?, place))
        });
        match entered {
            Some((permit, mut connected, place)) => {
                tracing::debug!(door = stats.name, peer = %address, "connection accepted");
                if std::mem::replace(&mut is_refusing, false) {
                    tracing::info!(door = stats.name, "connections are accepted again");
                }
                // Small answers must not wait for more. It fails only for a socket that is closed already.
                let _ = stream.set_nodelay(true);
                let served = serve_one(stream, address, Stopping(is_stopping.clone()), connected.live());
                let (door, closed) = (stats.name, connected.closed());
                tokio::spawn(async move {
                    tokio::select! {
                        biased;
                        () = served => {}
                        () = closed => tracing::info!(door, peer = %address, "connection closed by an operator"),
                    }
                    drop((connected, place));
                    tracing::debug!(door, peer = %address, "connection closed");
                    drop(permit);
                });
            }
            None => {
                stats.refused.fetch_add(1, Ordering::Relaxed);
                if std::mem::replace(&mut is_refusing, true) {
                    tracing::debug!(door = stats.name, peer = %address, "connection refused");
                } else {
                    tracing::warn!(
                        door = stats.name,
                        peer = %address,
                        open = stats.open.load(Ordering::Relaxed),
                        "connection refused: as many are open as there may be"
                    );
                }
                if let Ok(place) = refusing.clone().try_acquire_owned() {
                    tokio::spawn(async move {
                        let _ = tokio::time::timeout(REFUSE_MAX, refuse(stream, busy)).await;
                        drop(place);
                    });
                } else {
                    // As much of the reply as the socket takes at once.
                    let _ = stream.try_write(busy);
                }
            }
        }
    }
    drop(listener);
    let _ = stopping.send(true);
    // Every connection holds one of these.
    let _ = permits.acquire_many(most).await;
}

/// Tells a client that there is no place for it, and reads its request until it has seen that.
async fn refuse(mut stream: TcpStream, busy: &'static [u8]) -> std::io::Result<()> {
    stream.write_all(busy).await?;
    stream.shutdown().await?;
    let (mut scratch, mut read) = ([0; 4 << 10], 0);
    while read < REFUSED_BYTES_MAX {
        match stream.read(&mut scratch).await? {
            0 => break,
            count => read += count,
        }
    }
    Ok(())
}

/// Tells a connection that the server stops.
pub(crate) struct Stopping(watch::Receiver<bool>);

impl Stopping {
    pub(crate) async fn wait(mut self) {
        // An error means that the door is gone, which is the same.
        let _ = self.0.wait_for(|stopping| *stopping).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_so_many_places_and_gives_them_back() {
        let addresses = Arc::<Addresses>::default();
        let (one, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let places: Vec<Place> = (0..2).filter_map(|_| addresses.enter(one, Some(2))).collect();
        assert_eq!(places.len(), 2);
        assert!(addresses.enter(one, Some(2)).is_none());
        assert!(addresses.enter("::ffff:10.0.0.1".parse().expect("an address"), Some(2)).is_none());
        let elsewhere = addresses.enter(other, Some(2));
        assert!(elsewhere.is_some() && addresses.enter(one, None).is_some());
        drop((places, elsewhere));
        assert!(
            addresses.0.lock().expect("no panic").is_empty(),
            "an address without connections is forgotten"
        );
        assert!(addresses.enter(one, Some(2)).is_some());
    }
}
