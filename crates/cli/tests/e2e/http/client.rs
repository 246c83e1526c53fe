//! A client that sends exactly the bytes it is told to.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

/// Long enough for anything that happens at all.
const PATIENCE: Duration = Duration::from_secs(40);

pub(crate) struct Connection {
    reader: BufReader<TcpStream>,
    address: String,
    /// Events that have come and were not asked for yet.
    events: String,
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Connection {
    pub(crate) fn open(address: &str) -> Connection {
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        stream.set_nodelay(true).expect("a socket");
        Connection { reader: BufReader::new(stream), address: address.to_owned(), events: String::new() }
    }

    /// Whether the other side takes them. One that has closed the connection does not.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> bool {
        self.reader.get_mut().write_all(bytes).is_ok()
    }

    pub(crate) fn send_request(&mut self, method: &str, path: &str, headers: &[&str], body: &str) {
        let mut text = format!("{method} {path} HTTP/1.1\r\nhost: {}\r\n", self.address);
        for header in headers {
            text.push_str(header);
            text.push_str("\r\n");
        }
        if !body.is_empty() {
            text.push_str(&format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len()));
        }
        text.push_str("\r\n");
        text.push_str(body);
        assert!(self.send(text.as_bytes()), "the server takes the request");
    }

    #[track_caller]
    pub(crate) fn call(&mut self, method: &str, path: &str, body: &str) -> Reply {
        self.call_with(method, path, &[], body)
    }

    #[track_caller]
    pub(crate) fn call_with(&mut self, method: &str, path: &str, headers: &[&str], body: &str) -> Reply {
        self.send_request(method, path, headers, body);
        self.reply().unwrap_or_else(|| panic!("{method} {path} was not answered"))
    }

    /// Reads a reply. `None` if the connection ends first.
    pub(crate) fn reply(&mut self) -> Option<Reply> {
        let mut reply = self.head()?;
        if let Some(length) = reply.header("content-length") {
            reply.body = vec![0; length.parse().expect("a length")];
            self.reader.read_exact(&mut reply.body).expect("the body comes");
        } else if reply.header("transfer-encoding").is_some() {
            while let Some(chunk) = self.chunk() {
                reply.body.extend(chunk);
            }
        }
        Some(reply)
    }

    /// An answer without its body.
    pub(crate) fn head(&mut self) -> Option<Reply> {
        let first = self.line()?;
        let status = first.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.unwrap_or_else(|| panic!("not an answer: {first}"));
        let mut headers = Vec::new();
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        Some(Reply { status, headers, body: Vec::new() })
    }

    /// The next piece of a body that goes on.
    pub(crate) fn chunk(&mut self) -> Option<Vec<u8>> {
        let length = usize::from_str_radix(&self.line()?, 16).expect("the length of a chunk");
        let mut chunk = vec![0; length + 2];
        self.reader.read_exact(&mut chunk).ok()?;
        chunk.truncate(length);
        (length > 0).then_some(chunk)
    }

    /// Reads events until one of this name comes, and returns its id and its data.
    pub(crate) fn event(&mut self, wanted: &str) -> Option<(String, Value)> {
        loop {
            while let Some((event, rest)) = self.events.split_once("\n\n") {
                let field = |name: &str| {
                    let line = event.lines().find_map(|line| line.strip_prefix(name));
                    line.unwrap_or_default().trim().to_owned()
                };
                let found = (field("event:") == wanted).then(|| (field("id:"), field("data:")));
                self.events = rest.to_owned();
                if let Some((id, data)) = found {
                    return Some((id, serde_json::from_str(&data).expect("data is JSON")));
                }
            }
            let more = String::from_utf8(self.chunk()?).expect("events are text");
            self.events.push_str(&more);
        }
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let count = self.reader.read_line(&mut line).ok()?;
        (count > 0).then(|| line.trim_end().to_owned())
    }

    /// Whether the server has closed the connection, after all that it said.
    pub(crate) fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        self.reader
            .read_to_end(&mut rest)
            .map_or_else(|error| error.kind() == std::io::ErrorKind::ConnectionReset, |_| true)
    }
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| &value[..])
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("not JSON: {}", self.text()))
    }

    /// The problem, as `status slug field retry`.
    #[track_caller]
    pub(crate) fn problem(&self) -> String {
        assert!(self.status >= 400, "{} {}", self.status, self.text());
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{}", self.text());
        let problem = self.json();
        assert_eq!(problem["status"], self.status, "{problem}");
        for name in ["title", "detail"] {
            assert!(problem[name].as_str().is_some_and(|text| !text.is_empty()), "{problem}");
        }
        let retry = problem["retry"].as_str().expect("advice");
        assert!(retry != "later" || self.header("retry-after").is_some(), "{problem}");
        let slug = problem["type"].as_str().and_then(|uri| uri.strip_prefix("/problems/")).expect("a type");
        let field = problem["field"].as_str().unwrap_or("-");
        format!("{} {slug} {field} {retry}", self.status)
    }
}
