//! HTTP/1.1 as a load generator needs it: one request at a time on a connection that is kept, and replies that say how
//! long they are. It does as little as it can, so that the measurement is of the server.

use std::io;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Minimum size of a read.
const READ_BYTES: usize = 4 << 10;
const HEAD_BYTES_MAX: usize = 64 << 10;
const REPLY_BYTES_MAX: usize = 64 << 20;

/// A request as it goes over the wire.
pub(crate) fn post(host: &str, target: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "POST / HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/x-amz-json-1.0\r\nx-amz-target: {target}\r\n\
         content-length: {length}\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

pub(crate) struct Reply<'a> {
    pub(crate) status: u16,
    pub(crate) body: &'a [u8],
}

pub(crate) struct Connection {
    address: String,
    stream: TcpStream,
    /// Received bytes: the previous reply, which is dropped with the next request, and the bytes that follow it.
    bytes: Vec<u8>,
    taken: usize,
    /// The server said that it closes the connection.
    is_over: bool,
}

impl Connection {
    pub(crate) async fn open(address: &str) -> io::Result<Connection> {
        let stream = connect(address).await?;
        Ok(Connection { address: address.to_owned(), stream, bytes: Vec::new(), taken: 0, is_over: false })
    }

    pub(crate) async fn ask(&mut self, request: &[u8]) -> io::Result<Reply<'_>> {
        if self.is_over {
            *self = Connection::open(&self.address).await?;
        }
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.stream.write_all(request).await?;
        let head = loop {
            if let Some(head) = Head::read(&self.bytes).map_err(io::Error::other)? {
                break head;
            }
            self.read(READ_BYTES).await?;
        };
        while self.bytes.len() < head.end {
            self.read(head.end - self.bytes.len()).await?;
        }
        self.taken = head.end;
        self.is_over = !head.keeps;
        Ok(Reply { status: head.status, body: &self.bytes[head.body_at..head.end] })
    }

    async fn read(&mut self, wanted: usize) -> io::Result<()> {
        self.bytes.reserve(wanted.max(READ_BYTES));
        match self.stream.read_buf(&mut self.bytes).await? {
            0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection")),
            _ => Ok(()),
        }
    }
}

async fn connect(address: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

#[derive(Debug, PartialEq, Eq)]
struct Head {
    status: u16,
    /// Whether another request may follow on this connection.
    keeps: bool,
    body_at: usize,
    /// Where the reply ends.
    end: usize,
}

impl Head {
    /// `None` as long as it is not there as a whole.
    fn read(bytes: &[u8]) -> Result<Option<Head>, &'static str> {
        let Some(length) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
            return if bytes.len() < HEAD_BYTES_MAX {
                Ok(None)
            } else {
                Err("the head of a reply has no end")
            };
        };
        let text = std::str::from_utf8(&bytes[..length]).map_err(|_| "the head of a reply is no text")?;
        let mut lines = text.split("\r\n");
        let mut status = lines.next().unwrap_or_default().splitn(3, ' ');
        let version = status.next();
        let mut keeps = version == Some("HTTP/1.1");
        if !keeps && version != Some("HTTP/1.0") {
            return Err("this is not HTTP/1");
        }
        let status = status.next().and_then(|status| status.parse().ok()).ok_or("a reply has no status")?;
        let mut body = None;
        for line in lines {
            let (name, value) = line.split_once(':').ok_or("a header of a reply has no colon")?;
            let value = value.trim();
            if name.eq_ignore_ascii_case("content-length") {
                let length: usize = value.parse().map_err(|_| "the length of a reply is no number")?;
                body = Some(length).filter(|length| *length <= REPLY_BYTES_MAX);
            } else if name.eq_ignore_ascii_case("connection") {
                keeps =
                    if value.eq_ignore_ascii_case("keep-alive") { true } else { keeps && value != "close" };
            }
        }
        let body_at = length + 4;
        let body = body.ok_or("a reply does not say how long it is, or is too long")?;
        Ok(Some(Head { status, keeps, body_at, end: body_at + body }))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn a_head_is_read_once_it_is_there_as_a_whole() {
        let reply = b"HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: 2\r\n\r\n{}HTTP/1.1 400";
        let length = reply.len() - b"{}HTTP/1.1 400".len();
        for part in 0..length {
            assert_eq!(Head::read(&reply[..part]), Ok(None), "{part}");
        }
        let head = Head { status: 200, keeps: true, body_at: length, end: length + 2 };
        assert_eq!(Head::read(reply), Ok(Some(head)));
    }

    #[test]
    fn a_server_may_say_that_it_closes_the_connection() {
        let keeps = |head: &str| Head::read(head.as_bytes()).map(|head| head.map(|head| head.keeps));
        assert_eq!(
            keeps("HTTP/1.1 200 OK\r\ncontent-length:0\r\nConnection: close\r\n\r\n"),
            Ok(Some(false))
        );
        assert_eq!(keeps("HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n"), Ok(Some(false)));
        assert_eq!(
            keeps("HTTP/1.0 200 OK\r\ncontent-length: 0\r\nconnection: keep-alive\r\n\r\n"),
            Ok(Some(true))
        );
    }

    #[test]
    fn what_is_not_understood_is_said() {
        assert!(Head::read(b"SSH-2.0-x\r\n\r\n").is_err());
        assert!(Head::read(b"HTTP/1.1 fine\r\ncontent-length: 0\r\n\r\n").is_err());
        assert!(Head::read(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").is_err());
        assert!(Head::read(b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n").is_err());
        assert!(Head::read(b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n").is_err());
        assert!(Head::read(&[b'x'; HEAD_BYTES_MAX]).is_err());
    }

    /// A server that answers each request with these pieces, and then closes the connection.
    async fn server(connections: Vec<Vec<&'static [u8]>>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        tokio::spawn(async move {
            for pieces in connections {
                let (mut stream, _) = listener.accept().await.expect("somebody comes");
                let mut request = [0; 1024];
                assert!(stream.read(&mut request).await.expect("a request") > 0);
                for piece in pieces {
                    stream.write_all(piece).await.expect("it is read");
                    // So that the other side gets to read it before there is more.
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            }
        });
        address
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_reply_in_pieces_is_one_reply_and_a_closed_connection_is_opened_again() {
        let first: [&[u8]; 4] =
            [b"HTTP/1.1 200 OK\r\nconnection: close\r\nconte", b"nt-length: 5\r\n\r", b"\nabcd", b"e"];
        let second: [&[u8]; 1] = [b"HTTP/1.1 400 Bad Request\r\ncontent-length: 1\r\n\r\nx"];
        let address = server(vec![first.to_vec(), second.to_vec()]).await;
        let mut connection = Connection::open(&address).await.expect("it listens");
        let reply = connection.ask(b"first").await.expect("a reply");
        assert_eq!((reply.status, reply.body), (200, &b"abcde"[..]));
        let reply = connection.ask(b"second").await.expect("a reply on another connection");
        assert_eq!((reply.status, reply.body), (400, &b"x"[..]));
        let error = connection.ask(b"third").await.err().map(|error| error.kind());
        assert!(error.is_some(), "nobody is there any more");
    }
}
