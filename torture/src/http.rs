//! A small client of the HTTP door: one connection that is kept, one request at a time, JSON both ways.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

/// The longest line of a head, and the most lines.
const LINE_BYTES_MAX: u64 = 16 << 10;
const HEAD_LINES_MAX: usize = 128;
const BODY_BYTES_MAX: usize = 64 << 20;

/// Why there is no answer. The request may have been carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpError {
    #[error("the connection broke")]
    Broken(#[from] std::io::Error),
    #[error("the connection ended in the middle of an answer")]
    Ended,
    #[error("this is no HTTP answer. text=`{0}`")]
    Malformed(String),
    #[error("the answer is larger than {BODY_BYTES_MAX} bytes")]
    TooLarge,
    #[error("the answer is not JSON")]
    NotJson(#[from] serde_json::Error),
}

#[derive(Debug, PartialEq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// `Null` if there is no body.
    pub(crate) body: Value,
}

pub(crate) struct Connection {
    stream: BufReader<TcpStream>,
    host: String,
    /// The server said that it closes the connection after the last answer.
    is_over: bool,
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> Result<Connection, HttpError> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream: BufReader::new(stream), host: address.to_string(), is_over: false })
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    pub(crate) async fn send(
        &mut self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(), HttpError> {
        self.send_with(method, path, "Content-Type: application/json", body).await
    }

    async fn send_with(
        &mut self,
        method: &str,
        path: &str,
        headers: &str,
        body: Option<&Value>,
    ) -> Result<(), HttpError> {
        let body = body.map(ToString::to_string).unwrap_or_default();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\n{headers}\r\nContent-Length: {}\r\n\r\n",
            self.host,
            body.len()
        );
        // One write, so that a request is one packet and the answer does not wait for the second.
        self.stream.get_mut().write_all(format!("{head}{body}").as_bytes()).await?;
        Ok(())
    }

    pub(crate) async fn answer(&mut self) -> Result<Answer, HttpError> {
        loop {
            let (status, length) = self.head().await?;
            // An interim response.
            if (100..200).contains(&status) {
                continue;
            }
            let bytes = match length {
                _ if status == 204 || status == 304 => Vec::new(),
                Length::Bytes(count) => self.exactly(count).await?,
                Length::Chunks => self.chunks().await?,
            };
            let body = if bytes.is_empty() { Value::Null } else { serde_json::from_slice(&bytes)? };
            return Ok(Answer { status, body });
        }
    }

    pub(crate) async fn request(
        &mut self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Answer, HttpError> {
        self.send(method, path, body).await?;
        self.answer().await
    }

    /// An action of SQS, in its JSON protocol.
    pub(crate) async fn action(&mut self, action: &str, body: &Value) -> Result<Answer, HttpError> {
        let headers = format!("Content-Type: application/x-amz-json-1.0\r\nX-Amz-Target: AmazonSQS.{action}");
        self.send_with("POST", "/", &headers, Some(body)).await?;
        self.answer().await
    }

    async fn head(&mut self) -> Result<(u16, Length), HttpError> {
        let first = self.line().await?;
        let malformed = || HttpError::Malformed(first.clone());
        let mut words = first.split(' ');
        let version = words.next().filter(|word| word.starts_with("HTTP/1.")).ok_or_else(malformed)?;
        let status = words.next().and_then(|word| word.parse().ok()).ok_or_else(malformed)?;
        self.is_over = version == "HTTP/1.0";
        let mut length = Length::Bytes(0);
        for _ in 0..HEAD_LINES_MAX {
            let line = self.line().await?;
            if line.is_empty() {
                return Ok((status, length));
            }
            let (name, value) = line.split_once(':').ok_or_else(|| HttpError::Malformed(line.clone()))?;
            let value = value.trim();
            match name.to_ascii_lowercase().as_str() {
                "content-length" => {
                    let count = value.parse().map_err(|_| HttpError::Malformed(line.clone()))?;
                    length = Length::Bytes(count);
                }
                "transfer-encoding" if value.eq_ignore_ascii_case("chunked") => length = Length::Chunks,
                "connection" => self.is_over = value.eq_ignore_ascii_case("close"),
                _ => {}
            }
        }
        Err(HttpError::Malformed("a head without an end".to_owned()))
    }

    async fn line(&mut self) -> Result<String, HttpError> {
        let mut line = Vec::new();
        (&mut self.stream).take(LINE_BYTES_MAX).read_until(b'\n', &mut line).await?;
        if line.pop() != Some(b'\n') {
            return Err(HttpError::Ended);
        }
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        String::from_utf8(line).map_err(|error| HttpError::Malformed(error.to_string()))
    }

    async fn exactly(&mut self, count: usize) -> Result<Vec<u8>, HttpError> {
        if count > BODY_BYTES_MAX {
            return Err(HttpError::TooLarge);
        }
        let mut bytes = vec![0; count];
        self.stream.read_exact(&mut bytes).await?;
        Ok(bytes)
    }

    async fn chunks(&mut self) -> Result<Vec<u8>, HttpError> {
        let mut bytes = Vec::new();
        loop {
            let line = self.line().await?;
            let size = line.split(';').next().unwrap_or_default().trim();
            let size = usize::from_str_radix(size, 16).map_err(|_| HttpError::Malformed(line.clone()))?;
            if size == 0 {
                break;
            }
            if size > BODY_BYTES_MAX - bytes.len() {
                return Err(HttpError::TooLarge);
            }
            bytes.extend(self.exactly(size).await?);
            self.line().await?;
        }
        for _ in 0..HEAD_LINES_MAX {
            if self.line().await?.is_empty() {
                return Ok(bytes);
            }
        }
        Err(HttpError::Malformed("a trailer without an end".to_owned()))
    }
}

enum Length {
    Bytes(usize),
    Chunks,
}

/// A name as it stands in a path.
pub(crate) fn in_path(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    name.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

/// The bytes of a base64 text, with or without its padding.
pub(crate) fn from_base64(text: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut bits, mut count) = (Vec::with_capacity(text.len() / 4 * 3), 0u32, 0);
    for byte in text.trim_end_matches('=').bytes() {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    Some(bytes)
}

pub(crate) fn to_base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let part = |index: usize| u32::from(three.get(index).copied().unwrap_or(0));
        let bits = part(0) << 16 | part(1) << 8 | part(2);
        for digit in 0..4 {
            let value = bits >> (18 - 6 * digit) & 63;
            out.push(if digit <= three.len() { char::from(DIGITS[value as usize]) } else { '=' });
        }
    }
    out
}

/// A time as the API writes it, in microseconds since 1970: `2026-11-15T10:30:00.123456Z`.
pub(crate) fn micros_of(text: &str) -> Option<u64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let mut date = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let (time, fraction) = time.split_once('.').unwrap_or((time, ""));
    let mut time = time.splitn(3, ':').map(|part| part.parse::<i64>().ok());
    let (hour, minute, second) = (time.next()??, time.next()??, time.next()??);
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Years that begin in March, so that the day that some years have more is the last.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1 - 719_468;
    let seconds = ((days * 24 + hour) * 60 + minute) * 60 + second;
    let digits: String = fraction.chars().chain("000000".chars()).take(6).collect();
    Some(u64::try_from(seconds).ok()? * 1_000_000 + digits.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tokio::net::TcpListener;

    /// A server that answers each request on one connection with the next of these texts, and then closes it.
    /// Gives back the requests that it got.
    async fn serve(answers: &'static [&'static str]) -> (SocketAddr, tokio::task::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let served = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a client");
            let mut requests = Vec::new();
            for answer in answers {
                let mut got = String::new();
                let mut buffer = [0; 1024];
                loop {
                    let count = stream.read(&mut buffer).await.expect("a request");
                    got.push_str(std::str::from_utf8(&buffer[..count]).expect("text"));
                    let (head, body) = got.split_once("\r\n\r\n").unwrap_or(("", ""));
                    let length = head.split("Content-Length: ").nth(1).and_then(|rest| rest.lines().next());
                    if length.is_some_and(|length| length.parse() == Ok(body.len())) || count == 0 {
                        break;
                    }
                }
                requests.push(got);
                // In pieces, as a network may bring it.
                for piece in answer.as_bytes().chunks(7) {
                    stream.write_all(piece).await.expect("the client reads");
                    stream.flush().await.expect("the client reads");
                }
            }
            requests
        });
        (address, served)
    }

    #[tokio::test]
    async fn a_connection_is_kept_for_the_next_request() {
        let (address, served) = serve(&[
            "HTTP/1.1 201 Created\r\ncontent-length: 13\r\n\r\n{\"results\":0}",
            "HTTP/1.1 204 No Content\r\n\r\n",
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 Not Found\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",
        ])
        .await;
        let mut connection = Connection::open(address).await.expect("it listens");
        let body = json!({"max": 10});
        let first = connection.request("POST", "/a/b", Some(&body)).await.expect("an answer");
        assert_eq!(first, Answer { status: 201, body: json!({"results": 0}) });
        let second = connection.request("GET", "/c", None).await.expect("an answer");
        assert_eq!((second.status, second.body, connection.is_over()), (204, Value::Null, false));
        let third = connection.request("GET", "/d", None).await.expect("an answer");
        assert_eq!((third.status, connection.is_over()), (404, true));
        let requests = served.await.expect("it served");
        assert!(requests[0].starts_with("POST /a/b HTTP/1.1\r\nHost: 127.0.0.1"));
        assert!(requests[0].ends_with("\r\n\r\n{\"max\":10}"), "{}", requests[0]);
    }

    #[tokio::test]
    async fn an_action_of_sqs_is_named_in_a_header() {
        let (address, served) = serve(&["HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"]).await;
        let mut connection = Connection::open(address).await.expect("it listens");
        let answer = connection.action("SendMessage", &json!({})).await.expect("an answer");
        assert_eq!(answer, Answer { status: 200, body: json!({}) });
        let requests = served.await.expect("it served");
        assert!(requests[0].contains("\r\nX-Amz-Target: AmazonSQS.SendMessage\r\n"), "{}", requests[0]);
        assert!(requests[0].contains("\r\nContent-Type: application/x-amz-json-1.0\r\n"), "{}", requests[0]);
    }

    #[tokio::test]
    async fn an_answer_in_chunks_is_put_together() {
        let (address, _) = serve(&[
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x\r\n{\"a\":\r\n7\r\n [1,2]}\r\n0\r\nT: v\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ntrue",
        ])
        .await;
        let mut connection = Connection::open(address).await.expect("it listens");
        let chunked = connection.request("GET", "/", None).await.expect("an answer");
        assert_eq!(chunked.body, json!({"a": [1, 2]}));
        let next = connection.request("GET", "/", None).await.expect("an answer");
        assert_eq!(next.body, json!(true));
    }

    #[tokio::test]
    async fn what_is_no_answer_is_an_error() {
        let cases: [&'static [&'static str]; 5] = [
            &["HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}"],
            &["SSH-2.0-x\r\n\r\n"],
            &["HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n"],
            &["HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"],
            &["HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n<a>"],
        ];
        for answers in cases {
            let (address, _) = serve(answers).await;
            let mut connection = Connection::open(address).await.expect("it listens");
            assert!(connection.request("GET", "/", None).await.is_err(), "{answers:?}");
        }
    }

    #[test]
    fn names_in_paths_are_escaped() {
        assert_eq!(in_path("a b/ü"), "a%20b%2F%C3%BC");
    }

    #[test]
    fn base64_is_read_with_and_without_padding() {
        for text in ["AP8Q", "AP8QIA==", "AP8QIA"] {
            assert!(from_base64(text).is_some_and(|bytes| bytes.starts_with(&[0, 255, 16])), "{text}");
        }
        assert_eq!(from_base64("AP8QIA=="), Some(vec![0, 255, 16, 32]));
        assert_eq!(from_base64("A P"), None);
        for bytes in [&b""[..], b"a", b"ab", b"abc", &[0, 255, 16, 32]] {
            assert_eq!(from_base64(&to_base64(bytes)).as_deref(), Some(bytes));
        }
        assert_eq!(to_base64(&[0, 255, 16, 32]), "AP8QIA==");
    }

    #[test]
    fn times_are_read_to_the_microsecond() {
        assert_eq!(micros_of("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(micros_of("2000-03-01T00:00:00.5Z"), Some(951_868_800_500_000));
        assert_eq!(micros_of("2026-11-15T10:30:00.123456Z"), Some(1_794_738_600_123_456));
        assert_eq!(micros_of("2026-11-15T10:30:00.123456789Z"), Some(1_794_738_600_123_456));
        assert_eq!(micros_of("2026-11-15 10:30:00"), None);
        assert_eq!(micros_of("2026-13-15T10:30:00Z"), None);
    }
}
