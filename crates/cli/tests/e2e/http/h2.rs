//! A client of HTTP/2 that takes no replies: its windows are closed, and it answers every PING.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const INITIAL_WINDOW_SIZE: [u8; 2] = [0, 4];

pub(crate) struct Stubborn {
    stream: TcpStream,
    is_closed: Arc<AtomicBool>,
    next: u32,
}

impl Stubborn {
    pub(crate) fn connect(address: &str) -> Stubborn {
        let mut stream = TcpStream::connect(address).expect("the server listens");
        let mut first = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        first.extend(frame(SETTINGS, 0, 0, &[&INITIAL_WINDOW_SIZE[..], &0u32.to_be_bytes()].concat()));
        stream.write_all(&first).expect("it is taken");
        let is_closed = Arc::new(AtomicBool::new(false));
        let (mut reader, closed) = (stream.try_clone().expect("a socket"), is_closed.clone());
        std::thread::spawn(move || {
            while answer_one(&mut reader).is_some() {}
            closed.store(true, Ordering::Relaxed);
        });
        Stubborn { stream, is_closed, next: 1 }
    }

    /// Whether the server has given it up.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    pub(crate) fn get(&mut self, path: &str) {
        self.request("GET", path, &[], None);
    }

    /// Begins a call of gRPC with one message, or the beginning of one.
    pub(crate) fn call(&mut self, method: &str, message: &[u8]) {
        let headers = [("content-type", "application/grpc"), ("te", "trailers")];
        self.request("POST", &format!("/forebay.v1.Forebay/{method}"), &headers, Some(message));
    }

    fn request(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: Option<&[u8]>) {
        let pseudo = [(":method", method), (":scheme", "http"), (":authority", "localhost"), (":path", path)];
        let mut block = Vec::new();
        for (name, value) in pseudo.iter().chain(headers) {
            // A literal that is not indexed, with a new name.
            block.push(0);
            for text in [name, value] {
                block.push(u8::try_from(text.len()).expect("a short text"));
                block.extend(text.bytes());
            }
        }
        let end = if body.is_none() { END_STREAM } else { 0 };
        let mut bytes = frame(HEADERS, END_HEADERS | end, self.next, &block);
        if let Some(body) = body {
            bytes.extend(frame(DATA, 0, self.next, body));
        }
        // A server that has given the client up takes nothing more.
        let _ = self.stream.write_all(&bytes);
        self.next += 2;
    }
}

impl Drop for Stubborn {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Reads a frame, and confirms settings and PINGs. `None` when the connection has ended.
fn answer_one(stream: &mut TcpStream) -> Option<()> {
    let mut head = [0; 9];
    stream.read_exact(&mut head).ok()?;
    let [a, b, c, kind, flags, ..] = head;
    let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
    stream.read_exact(&mut payload).ok()?;
    if matches!(kind, SETTINGS | PING) && flags & ACK == 0 {
        let confirmed = if kind == PING { &payload[..] } else { &[] };
        stream.write_all(&frame(kind, ACK, 0, confirmed)).ok()?;
    }
    Some(())
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    let mut bytes = [&length[1..], &[kind, flags][..], &stream.to_be_bytes()].concat();
    bytes.extend(payload);
    bytes
}
