//! A connection that can be harmed: a port that passes bytes on to another one, until it is told otherwise.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

const CHUNK_BYTES: usize = 16 << 10;

/// How bytes are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Pass,
    /// Connections end, and new ones end at once.
    Cut,
    /// Connections stay, and new ones are taken; nothing is passed on. It goes on where it stopped.
    Hang,
    /// Each chunk is this late.
    Slow(Duration),
}

/// Closed when it is dropped.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    mode: watch::Sender<Mode>,
    _serving: JoinSet<()>,
}

impl Proxy {
    pub(crate) async fn open(target: u16) -> anyhow::Result<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("no port for a proxy")?;
        let port = listener.local_addr().context("no port for a proxy")?.port();
        let (mode, told) = watch::channel(Mode::Pass);
        let mut serving = JoinSet::new();
        serving.spawn(serve(listener, SocketAddr::from(([127, 0, 0, 1], target)), told));
        Ok(Proxy { port, mode, _serving: serving })
    }

    pub(crate) fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }
}

async fn serve(listener: TcpListener, target: SocketAddr, mode: watch::Receiver<Mode>) {
    let mut connections = JoinSet::new();
    loop {
        if let Ok((stream, _)) = listener.accept().await {
            connections.spawn(carry(stream, target, mode.clone()));
        }
        while connections.try_join_next().is_some() {}
    }
}

/// Carries one connection, until one end or the mode ends it.
async fn carry(stream: TcpStream, target: SocketAddr, mut mode: watch::Receiver<Mode>) {
    if allowed(&mut mode).await.is_none() {
        return;
    }
    let Ok(other) = TcpStream::connect(target).await else { return };
    let _ = (stream.set_nodelay(true), other.set_nodelay(true));
    let ((from, to), (back_from, back_to)) = (stream.into_split(), other.into_split());
    tokio::select! {
        () = pass(from, back_to, mode.clone()) => {}
        () = pass(back_from, to, mode) => {}
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut mode: watch::Receiver<Mode>) {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let read = tokio::select! {
            read = from.read(&mut chunk) => read,
            () = cut(mode.clone()) => return,
        };
        let Ok(count @ 1..) = read else { return };
        let Some(late) = allowed(&mut mode).await else { return };
        tokio::time::sleep(late).await;
        if to.write_all(&chunk[..count]).await.is_err() {
            return;
        }
    }
}

/// Waits until bytes may pass, and says how late they are then. `None`: the connection is over.
async fn allowed(mode: &mut watch::Receiver<Mode>) -> Option<Duration> {
    match *mode.wait_for(|mode| *mode != Mode::Hang).await.ok()? {
        Mode::Slow(late) => Some(late),
        Mode::Cut => None,
        Mode::Pass | Mode::Hang => Some(Duration::ZERO),
    }
}

async fn cut(mut mode: watch::Receiver<Mode>) {
    let _ = mode.wait_for(|mode| *mode == Mode::Cut).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(100);

    /// A server that sends back what it gets.
    async fn echo() -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = stream.into_split();
                    let _ = tokio::io::copy(&mut from, &mut to).await;
                });
            }
        });
        port
    }

    async fn said(stream: &mut TcpStream) -> Option<u8> {
        match tokio::time::timeout(SOON, stream.read_u8()).await {
            Ok(read) => Some(read.unwrap_or(b'!')),
            Err(_) => None,
        }
    }

    #[tokio::test]
    async fn a_connection_hangs_goes_on_and_is_cut() {
        let proxy = Proxy::open(echo().await).await.expect("a proxy");
        let mut stream = TcpStream::connect(("127.0.0.1", proxy.port)).await.expect("it listens");
        stream.write_u8(b'a').await.expect("it is taken");
        assert_eq!(said(&mut stream).await, Some(b'a'));
        proxy.set(Mode::Hang);
        stream.write_u8(b'b').await.expect("it is taken");
        assert_eq!(said(&mut stream).await, None, "nothing passes");
        let mut second = TcpStream::connect(("127.0.0.1", proxy.port)).await.expect("it is accepted");
        second.write_u8(b'c').await.expect("it is taken");
        assert_eq!(said(&mut second).await, None, "nothing passes");
        proxy.set(Mode::Slow(SOON / 4));
        assert_eq!(said(&mut stream).await, Some(b'b'), "it goes on where it stopped");
        assert_eq!(said(&mut second).await, Some(b'c'));
        proxy.set(Mode::Cut);
        assert_eq!(said(&mut stream).await, Some(b'!'), "it is over");
        let mut third = TcpStream::connect(("127.0.0.1", proxy.port)).await.expect("it is accepted");
        assert_eq!(said(&mut third).await, Some(b'!'), "and ends at once");
    }
}
