//! A connection with a buffer for each way: a batch leaves with one write, and many replies are parsed from
//! one read.

use std::fmt;

use bytes::{BufMut as _, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::contender::Failure;

/// Room for a batch, so that it need not be moved when the rest of it arrives.
const ROOM: usize = 512 << 10;
/// With less room than this, more is made: parsed and released bytes are used again.
const ROOM_MIN: usize = 64 << 10;

pub(crate) struct Connection {
    stream: TcpStream,
    /// Arrived and not parsed yet.
    pub(crate) input: BytesMut,
    /// To be written by the next [`flush`](Connection::flush).
    pub(crate) output: BytesMut,
}

impl Connection {
    pub(crate) async fn open(port: u16) -> Result<Connection, Failure> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, input: BytesMut::with_capacity(ROOM), output: BytesMut::new() })
    }

    /// Nothing is lost or written twice when it is dropped early.
    pub(crate) async fn flush(&mut self) -> Result<(), Failure> {
        while !self.output.is_empty() {
            self.stream.write_buf(&mut self.output).await?;
        }
        Ok(())
    }

    /// Waits until more arrived. Nothing is lost when it is dropped early.
    pub(crate) async fn fill(&mut self) -> Result<(), Failure> {
        if self.input.capacity() - self.input.len() < ROOM_MIN {
            self.input.reserve(ROOM);
        }
        if self.stream.read_buf(&mut self.input).await? == 0 {
            return Err("the server closed the connection".into());
        }
        Ok(())
    }
}

/// Why nothing was parsed.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The rest has not arrived yet.
    More,
    Wrong(Failure),
}

impl Stop {
    pub(crate) fn wrong(what: impl fmt::Display) -> Stop {
        Stop::Wrong(what.to_string().into())
    }
}

/// The parsed value, unless more bytes must arrive first.
pub(crate) fn arrived<T>(parsed: Result<T, Stop>) -> Result<Option<T>, Failure> {
    match parsed {
        Ok(parsed) => Ok(Some(parsed)),
        Err(Stop::More) => Ok(None),
        Err(Stop::Wrong(failure)) => Err(failure),
    }
}

/// The line that begins here, without its end, and where the next one begins.
pub(crate) fn line(input: &[u8], at: usize) -> Result<(&[u8], usize), Stop> {
    let rest = input.get(at..).ok_or(Stop::More)?;
    let end = rest.iter().position(|&byte| byte == b'\n').ok_or(Stop::More)?;
    let line = &rest[..end];
    Ok((line.strip_suffix(b"\r").unwrap_or(line), at + end + 1))
}

pub(crate) fn number(digits: &[u8]) -> Result<i64, Stop> {
    let number = std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| Stop::wrong(format!("not a number: {}", digits.escape_ascii())))
}

/// In decimal, without the detour by a string: it is done for every message.
pub(crate) fn put_number(output: &mut BytesMut, number: usize) {
    const DIGITS: usize = 20;
    let (mut digits, mut at, mut rest) = ([0; DIGITS], DIGITS, number);
    while at == DIGITS || rest > 0 {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    output.put_slice(&digits[at..]);
}
