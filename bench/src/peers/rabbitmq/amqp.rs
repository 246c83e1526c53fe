//! As much of AMQP 0-9-1 as the load needs: one channel on each connection.
//!
//! A frame is `type: u8 | channel: u16 | size: u32 | payload | 0xCE`, big endian. A method's payload begins
//! with its class and its number; a message is a method frame, a header frame and its body in frames of their
//! own.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::peers::contender::Failure;

const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;
const HEARTBEAT: u8 = 8;
const END: u8 = 0xCE;
/// What comes before the payload, and the mark after it.
const OVERHEAD: usize = 8;
/// The server's default offer.
const FRAME_MAX: u32 = 131_072;
/// No frame that we are ready for is larger, whatever it says.
const PAYLOAD_MAX: usize = FRAME_MAX as usize;

/// Class and number of a method.
pub(super) type Method = (u16, u16);

const CONNECTION_START: Method = (10, 10);
const CONNECTION_START_OK: Method = (10, 11);
const CONNECTION_TUNE: Method = (10, 30);
const CONNECTION_TUNE_OK: Method = (10, 31);
const CONNECTION_OPEN: Method = (10, 40);
const CONNECTION_OPEN_OK: Method = (10, 41);
const CONNECTION_CLOSE: Method = (10, 50);
const CHANNEL_OPEN: Method = (20, 10);
const CHANNEL_OPEN_OK: Method = (20, 11);
const CHANNEL_CLOSE: Method = (20, 40);
const EXCHANGE_DECLARE: Method = (40, 10);
const EXCHANGE_DECLARE_OK: Method = (40, 11);
const QUEUE_DECLARE: Method = (50, 10);
const QUEUE_DECLARE_OK: Method = (50, 11);
const QUEUE_BIND: Method = (50, 20);
const QUEUE_BIND_OK: Method = (50, 21);
const BASIC_QOS: Method = (60, 10);
const BASIC_QOS_OK: Method = (60, 11);
const BASIC_CONSUME: Method = (60, 20);
const BASIC_CONSUME_OK: Method = (60, 21);
const BASIC_PUBLISH: Method = (60, 40);
const BASIC_DELIVER: Method = (60, 60);
const BASIC_ACK: Method = (60, 80);
const BASIC_NACK: Method = (60, 120);
const CONFIRM_SELECT: Method = (85, 10);
const CONFIRM_SELECT_OK: Method = (85, 11);

const PASSIVE: u8 = 1;
const DURABLE: u8 = 2;
/// The header says how the message is delivered, and nothing else.
const HAS_DELIVERY_MODE: u16 = 1 << 12;
const PERSISTENT: u8 = 2;

/// An event of the server that a task may wait for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    Delivery {
        tag: u64,
        body: Bytes,
    },
    /// Of a message, or of all up to it.
    Confirmed {
        tag: u64,
        and_before: bool,
    },
    /// The server answered a request.
    Answer(Method),
}

/// One connection with one open channel.
pub(super) struct Connection {
    stream: TcpStream,
    input: BytesMut,
    output: BytesMut,
    /// A message of which not all has arrived.
    partial: Option<Partial>,
}

#[derive(Debug)]
struct Partial {
    tag: u64,
    /// How long the body is, once its header was seen.
    length: Option<usize>,
    body: BytesMut,
}

impl Connection {
    pub(super) async fn open(port: u16) -> Result<Connection, Failure> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        let (input, output) = (BytesMut::with_capacity(1 << 16), BytesMut::with_capacity(1 << 16));
        let mut connection = Connection { stream, input, output, partial: None };
        connection.output.put_slice(b"AMQP\0\0\x09\x01");
        connection.flush().await?;
        connection.answered(CONNECTION_START).await?;
        connection.put(0, CONNECTION_START_OK, |out| {
            out.put_u32(0);
            put_short(out, "PLAIN");
            put_long(out, b"\0guest\0guest");
            put_short(out, "en_US");
        });
        connection.flush().await?;
        connection.answered(CONNECTION_TUNE).await?;
        connection.put(0, CONNECTION_TUNE_OK, |out| {
            out.put_u16(1);
            out.put_u32(FRAME_MAX);
            // A heartbeat would have to be answered while no task reads.
            out.put_u16(0);
        });
        connection.put(0, CONNECTION_OPEN, |out| {
            put_short(out, "/");
            put_short(out, "");
            out.put_u8(0);
        });
        connection.flush().await?;
        connection.answered(CONNECTION_OPEN_OK).await?;
        connection.ask(CHANNEL_OPEN, CHANNEL_OPEN_OK, |out| put_short(out, "")).await?;
        Ok(connection)
    }

    /// Makes a durable queue, unless there is the same already.
    pub(super) async fn declare_queue(&mut self, queue: &str, kind: &str) -> Result<(), Failure> {
        self.ask(QUEUE_DECLARE, QUEUE_DECLARE_OK, |out| {
            out.put_u16(0);
            put_short(out, queue);
            out.put_u8(DURABLE);
            put_table(out, "x-queue-type", kind);
        })
        .await
    }

    /// Makes an exchange that gives every message to every queue that is bound to it.
    pub(super) async fn declare_fanout(&mut self, exchange: &str) -> Result<(), Failure> {
        self.ask(EXCHANGE_DECLARE, EXCHANGE_DECLARE_OK, |out| {
            out.put_u16(0);
            put_short(out, exchange);
            put_short(out, "fanout");
            out.put_u8(DURABLE);
            out.put_u32(0);
        })
        .await
    }

    pub(super) async fn bind(&mut self, queue: &str, exchange: &str) -> Result<(), Failure> {
        self.ask(QUEUE_BIND, QUEUE_BIND_OK, |out| {
            out.put_u16(0);
            put_short(out, queue);
            put_short(out, exchange);
            put_short(out, "");
            out.put_u8(0);
            out.put_u32(0);
        })
        .await
    }

    /// From now on the server confirms messages that are published here.
    pub(super) async fn confirm(&mut self) -> Result<(), Failure> {
        self.ask(CONFIRM_SELECT, CONFIRM_SELECT_OK, |out| out.put_u8(0)).await
    }

    /// Deliveries begin at once, and may come before the answer to anything that is asked after this.
    pub(super) async fn consume(&mut self, queue: &str, prefetch: u16) -> Result<(), Failure> {
        self.ask(BASIC_QOS, BASIC_QOS_OK, |out| {
            out.put_u32(0);
            out.put_u16(prefetch);
            out.put_u8(0);
        })
        .await?;
        self.ask(BASIC_CONSUME, BASIC_CONSUME_OK, |out| {
            out.put_u16(0);
            put_short(out, queue);
            put_short(out, "c");
            out.put_u8(0);
            out.put_u32(0);
        })
        .await
    }

    /// Asks about a queue, which answers when it has seen all that came before on this channel.
    pub(super) async fn look(&mut self, queue: &str) -> Result<(), Failure> {
        self.put(1, QUEUE_DECLARE, |out| {
            out.put_u16(0);
            put_short(out, queue);
            out.put_u8(PASSIVE);
            out.put_u32(0);
        });
        self.flush().await
    }

    pub(super) fn is_look(method: Method) -> bool {
        method == QUEUE_DECLARE_OK
    }

    /// Adds a message to what [`flush`](Connection::flush) writes.
    pub(super) fn put_message(&mut self, exchange: &str, routing_key: &str, body: &[u8]) {
        self.put(1, BASIC_PUBLISH, |out| {
            out.put_u16(0);
            put_short(out, exchange);
            put_short(out, routing_key);
            out.put_u8(0);
        });
        put_frame(&mut self.output, HEADER, 1, |out| {
            out.put_u16(BASIC_PUBLISH.0);
            out.put_u16(0);
            out.put_u64(body.len() as u64);
            out.put_u16(HAS_DELIVERY_MODE);
            out.put_u8(PERSISTENT);
        });
        for piece in body.chunks(PAYLOAD_MAX - OVERHEAD) {
            put_frame(&mut self.output, BODY, 1, |out| out.put_slice(piece));
        }
    }

    /// Adds an ack of one message to what [`flush`](Connection::flush) writes.
    /// Acks a message and all before it.
    pub(super) fn put_ack_through(&mut self, tag: u64) {
        self.put(1, BASIC_ACK, |out| {
            out.put_u64(tag);
            out.put_u8(1);
        });
    }

    pub(super) async fn flush(&mut self) -> Result<(), Failure> {
        self.stream.write_all(&self.output).await?;
        self.output.clear();
        Ok(())
    }

    /// Waits for more from the server and parses complete frames. Nothing is lost when this is dropped early:
    /// the only wait is for a read.
    pub(super) async fn events(&mut self, into: &mut Vec<Event>) -> Result<(), Failure> {
        self.input.reserve(1 << 16);
        if self.stream.read_buf(&mut self.input).await? == 0 {
            return Err("the server closed the connection".into());
        }
        parse(&mut self.input, &mut self.partial, into)
    }

    fn put(&mut self, channel: u16, method: Method, arguments: impl FnOnce(&mut BytesMut)) {
        put_frame(&mut self.output, METHOD, channel, |out| {
            out.put_u16(method.0);
            out.put_u16(method.1);
            arguments(out);
        });
    }

    async fn ask(
        &mut self,
        method: Method,
        answer: Method,
        arguments: impl FnOnce(&mut BytesMut),
    ) -> Result<(), Failure> {
        self.put(1, method, arguments);
        self.flush().await?;
        self.answered(answer).await
    }

    /// Waits for this answer. What came after it stays where the next look finds it.
    async fn answered(&mut self, answer: Method) -> Result<(), Failure> {
        loop {
            if let Some(length) = frame_length(&self.input)? {
                let (mut frame, mut events) = (self.input.split_to(length), Vec::new());
                parse(&mut frame, &mut self.partial, &mut events)?;
                if events.contains(&Event::Answer(answer)) {
                    return Ok(());
                }
                if !events.is_empty() {
                    return Err(format!("the server says {events:?} where {answer:?} was due").into());
                }
            } else if self.stream.read_buf(&mut self.input).await? == 0 {
                return Err("the server closed the connection".into());
            }
        }
    }

    /// What came with the last answer, without waiting for more.
    pub(super) fn leftover(&mut self, into: &mut Vec<Event>) -> Result<(), Failure> {
        parse(&mut self.input, &mut self.partial, into)
    }
}

/// The length of the frame at the beginning, if all of it is there.
fn frame_length(input: &[u8]) -> Result<Option<usize>, Failure> {
    let Some(size) = input.get(3..7) else { return Ok(None) };
    let size = u32::from_be_bytes(size.try_into().expect("four bytes")) as usize;
    if size > PAYLOAD_MAX {
        return Err(format!("the server sends a frame of {size} bytes").into());
    }
    let length = size + OVERHEAD;
    match input.get(length - 1) {
        Some(&END) => Ok(Some(length)),
        Some(_) => Err("the server sends a frame without an end".into()),
        None => Ok(None),
    }
}

/// Takes all frames that are complete. Bodies share the memory that they were read into.
fn parse(input: &mut BytesMut, partial: &mut Option<Partial>, into: &mut Vec<Event>) -> Result<(), Failure> {
    let mut whole = 0;
    while let Some(length) = frame_length(&input[whole..])? {
        whole += length;
    }
    let mut frames = input.split_to(whole).freeze();
    while let Some(length) = frame_length(&frames)? {
        let kind = frames[0];
        let payload = frames.slice(OVERHEAD - 1..length - 1);
        frames.advance(length);
        match kind {
            METHOD => parse_method(payload, partial, into)?,
            HEADER => parse_header(payload, partial, into)?,
            BODY => parse_body(payload, partial, into)?,
            HEARTBEAT => {}
            other => return Err(format!("the server sends a frame of type {other}").into()),
        }
    }
    Ok(())
}

fn parse_method(
    mut payload: Bytes,
    partial: &mut Option<Partial>,
    into: &mut Vec<Event>,
) -> Result<(), Failure> {
    let method = (payload.try_get_u16()?, payload.try_get_u16()?);
    match method {
        BASIC_DELIVER => {
            let tag_length = usize::from(payload.try_get_u8()?);
            skip(&mut payload, tag_length)?;
            *partial = Some(Partial { tag: payload.try_get_u64()?, length: None, body: BytesMut::new() });
        }
        BASIC_ACK => {
            let tag = payload.try_get_u64()?;
            into.push(Event::Confirmed { tag, and_before: payload.try_get_u8()? & 1 == 1 });
        }
        BASIC_NACK => return Err("the server could not take a message".into()),
        CONNECTION_CLOSE | CHANNEL_CLOSE => {
            let code = payload.try_get_u16()?;
            let length = usize::from(payload.try_get_u8()?).min(payload.len());
            let why = String::from_utf8_lossy(&payload[..length]).into_owned();
            return Err(format!("the server closed the channel: {code} {why}").into());
        }
        answer => into.push(Event::Answer(answer)),
    }
    Ok(())
}

fn parse_header(
    mut payload: Bytes,
    partial: &mut Option<Partial>,
    into: &mut Vec<Event>,
) -> Result<(), Failure> {
    skip(&mut payload, 4)?;
    let length = usize::try_from(payload.try_get_u64()?)?;
    let Some(message) = partial else { return Err("the server sends a header of nothing".into()) };
    message.length = Some(length);
    if length == 0 {
        finish(partial, Bytes::new(), into);
    }
    Ok(())
}

fn parse_body(payload: Bytes, partial: &mut Option<Partial>, into: &mut Vec<Event>) -> Result<(), Failure> {
    let Some(message) = partial else { return Err("the server sends a body of nothing".into()) };
    let Some(length) = message.length else { return Err("the server sends a body before its header".into()) };
    if message.body.is_empty() && payload.len() == length {
        finish(partial, payload, into);
        return Ok(());
    }
    message.body.extend_from_slice(&payload);
    if message.body.len() >= length {
        let body = std::mem::take(&mut message.body).freeze();
        finish(partial, body, into);
    }
    Ok(())
}

fn finish(partial: &mut Option<Partial>, body: Bytes, into: &mut Vec<Event>) {
    if let Some(message) = partial.take() {
        into.push(Event::Delivery { tag: message.tag, body });
    }
}

fn skip(payload: &mut Bytes, count: usize) -> Result<(), Failure> {
    if payload.len() < count {
        return Err("the server sends a method that ends early".into());
    }
    payload.advance(count);
    Ok(())
}

fn put_frame(out: &mut BytesMut, kind: u8, channel: u16, payload: impl FnOnce(&mut BytesMut)) {
    out.put_u8(kind);
    out.put_u16(channel);
    let at = out.len();
    out.put_u32(0);
    payload(out);
    let size = u32::try_from(out.len() - at - 4).expect("a frame is small");
    out[at..at + 4].copy_from_slice(&size.to_be_bytes());
    out.put_u8(END);
}

fn put_short(out: &mut BytesMut, text: &str) {
    out.put_u8(u8::try_from(text.len()).expect("a name is short"));
    out.put_slice(text.as_bytes());
}

fn put_long(out: &mut BytesMut, text: &[u8]) {
    out.put_u32(u32::try_from(text.len()).expect("a text is short"));
    out.put_slice(text);
}

/// A table with one entry, whose value is text.
fn put_table(out: &mut BytesMut, name: &str, value: &str) {
    let mut table = BytesMut::new();
    put_short(&mut table, name);
    table.put_u8(b'S');
    put_long(&mut table, value.as_bytes());
    put_long(out, &table);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivery(tag: u64, pieces: &[&[u8]]) -> BytesMut {
        let mut out = BytesMut::new();
        put_frame(&mut out, METHOD, 1, |out| {
            out.put_u16(BASIC_DELIVER.0);
            out.put_u16(BASIC_DELIVER.1);
            put_short(out, "c");
            out.put_u64(tag);
            out.put_u8(0);
            put_short(out, "");
            put_short(out, "queue");
        });
        put_frame(&mut out, HEADER, 1, |out| {
            out.put_u32(60 << 16);
            out.put_u64(pieces.iter().map(|piece| piece.len() as u64).sum());
            out.put_u16(HAS_DELIVERY_MODE);
            out.put_u8(PERSISTENT);
        });
        for piece in pieces {
            put_frame(&mut out, BODY, 1, |out| out.put_slice(piece));
        }
        out
    }

    #[test]
    fn deliveries_are_found_however_they_are_cut() {
        let mut all = delivery(1, &[b"one"]);
        all.extend_from_slice(&delivery(2, &[b"tw", b"o"]));
        all.extend_from_slice(&delivery(3, &[]));
        put_frame(&mut all, HEARTBEAT, 0, |_| {});
        let body = |body: &'static [u8]| Bytes::from_static(body);
        let expected = [(1, body(b"one")), (2, body(b"two")), (3, body(b""))];
        let expected: Vec<Event> = expected.map(|(tag, body)| Event::Delivery { tag, body }).into();
        for at in 0..all.len() {
            let (mut input, mut partial, mut events) = (BytesMut::from(&all[..at]), None, Vec::new());
            parse(&mut input, &mut partial, &mut events).expect("a good beginning");
            input.extend_from_slice(&all[at..]);
            parse(&mut input, &mut partial, &mut events).expect("a good end");
            assert_eq!(events, expected, "cut at {at}");
        }
    }

    #[test]
    fn what_the_server_refuses_is_an_error() {
        let mut input = BytesMut::new();
        put_frame(&mut input, METHOD, 1, |out| {
            out.put_u16(CHANNEL_CLOSE.0);
            out.put_u16(CHANNEL_CLOSE.1);
            out.put_u16(404);
            put_short(out, "NOT_FOUND");
        });
        let error = parse(&mut input, &mut None, &mut Vec::new()).expect_err("it was closed");
        assert!(error.to_string().contains("404 NOT_FOUND"), "{error}");
        let bad = &mut BytesMut::from(&[1, 0, 1, 0, 0, 0, 1, 7, 0][..]);
        assert!(parse(bad, &mut None, &mut Vec::new()).is_err());
    }
}
