//! A connection to a standby, carried on to the owner of the log: bytes in both directions, of any protocol, encrypted
//! or not.

use std::future::Future;
use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// How long the owner may take to accept a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// How long one direction goes on after the other has ended. A client that has sent all of its request may still wait
/// for a long poll.
const HALF_CLOSED_MAX: Duration = Duration::from_secs(60);

/// Connects to the owner.
pub(super) async fn connect(address: &str) -> io::Result<TcpStream> {
    let connecting = tokio::time::timeout(CONNECT_WITHIN, TcpStream::connect(address)).await;
    let stream = connecting.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Carries bytes until both sides have ended, one of them breaks, or `over` resolves.
pub(super) async fn splice(mut client: TcpStream, mut owner: TcpStream, over: impl Future<Output = ()>) {
    let _ = client.set_nodelay(true);
    let (from_client, to_client) = client.split();
    let (from_owner, to_owner) = owner.split();
    let carry = async {
        let up = carry(from_client, to_owner);
        let down = carry(from_owner, to_client);
        tokio::pin!(up, down);
        let (up_ended, ended) = tokio::select! {
            ended = &mut up => (true, ended),
            ended = &mut down => (false, ended),
        };
        // A side that broke takes no answer any more.
        if ended.is_err() {
            return;
        }
        let _ = match up_ended {
            true => tokio::time::timeout(HALF_CLOSED_MAX, down).await,
            false => tokio::time::timeout(HALF_CLOSED_MAX, up).await,
        };
    };
    tokio::select! {
        () = carry => {}
        () = over => {}
    }
}

/// Carries one direction to its end, and passes the end on.
async fn carry(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> io::Result<()> {
    tokio::io::copy(&mut from, &mut to).await?;
    to.shutdown().await
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    use super::*;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let (near, far) = tokio::join!(connect(&address), listener.accept());
        (near.expect("a connection"), far.expect("a connection").0)
    }

    #[tokio::test]
    async fn bytes_go_both_ways_and_a_half_closed_side_still_gets_its_answer() {
        let ((mut client, standby), (to_owner, mut owner)) = (pair().await, pair().await);
        let spliced = tokio::spawn(splice(standby, to_owner, std::future::pending()));
        client.write_all(b"question").await.expect("it is sent");
        client.shutdown().await.expect("this direction ends");
        let mut asked = Vec::new();
        owner.read_to_end(&mut asked).await.expect("the end is passed on");
        assert_eq!(asked, b"question");
        owner.write_all(b"answer").await.expect("it is sent");
        drop(owner);
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.expect("the answer comes to its end");
        assert_eq!(answer, b"answer");
        spliced.await.expect("the splice has ended");
    }

    #[tokio::test]
    async fn a_side_that_breaks_ends_the_other() {
        let ((mut client, standby), (to_owner, owner)) = (pair().await, pair().await);
        let spliced = tokio::spawn(splice(standby, to_owner, std::future::pending()));
        owner.set_zero_linger().expect("the socket resets");
        drop(owner);
        spliced.await.expect("the splice has ended");
        let mut rest = Vec::new();
        assert_eq!(client.read_to_end(&mut rest).await.unwrap_or_default(), 0);
    }

    #[tokio::test]
    async fn a_splice_ends_when_it_is_over() {
        let ((mut client, standby), (to_owner, mut owner)) = (pair().await, pair().await);
        let (end, over) = tokio::sync::oneshot::channel::<()>();
        let over = async move { drop(over.await) };
        let spliced = tokio::spawn(splice(standby, to_owner, over));
        client.write_all(b"?").await.expect("it is sent");
        assert_eq!(owner.read_u8().await.expect("it arrives"), b'?');
        drop(end);
        spliced.await.expect("the splice has ended");
        assert_eq!(client.read(&mut [0]).await.unwrap_or_default(), 0);
        assert_eq!(owner.read(&mut [0]).await.unwrap_or_default(), 0);
    }

    #[tokio::test]
    async fn an_owner_that_is_not_there_is_an_error() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        drop(listener);
        assert!(connect(&address).await.is_err());
    }
}
