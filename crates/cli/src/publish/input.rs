//! Reads messages from the command line or from lines, a batch at a time.

use std::io::{BufRead as _, BufReader, Read};
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context as _, anyhow};
use forebay_client::Message;
use forebay_wire::json;
use forebay_wire::json::body::{Content, from_base64};
use tokio::sync::mpsc;

use crate::exit::Exit;

/// The most that is passed on at once.
const MESSAGES_PER_BATCH: usize = 1_000;
const BYTES_PER_BATCH: usize = 1 << 20;
const BUFFER: usize = 256 << 10;
/// Far longer than the largest message that a server takes.
const LINE_BYTES_MAX: u64 = 64 << 20;

/// A message and where it came from.
pub(super) struct Line {
    pub(super) message: Message,
    pub(super) number: u64,
    /// Bytes of the input up to the next message.
    pub(super) bytes: u64,
}

pub(super) enum Input {
    Words(Vec<String>),
    Lines(Box<dyn Read + Send>),
}

/// The channel that lines are sent to. A mistake in the input comes last.
pub(super) type Lines = mpsc::Sender<anyhow::Result<Vec<Line>>>;

pub(super) struct Source {
    pub(super) input: Input,
    /// Each line is a message object of the API, and `make` is not used.
    pub(super) ndjson: bool,
    /// Makes a message from its number and its body.
    pub(super) make: Box<dyn Fn(u64, Vec<u8>) -> Message + Send>,
}

impl Source {
    /// Sends lines until the input ends, or until the receiver is gone.
    pub(super) fn read(self, lines: &Lines) {
        let mut reader = Reader {
            ndjson: self.ndjson,
            make: self.make,
            lines,
            batch: Vec::new(),
            number: 0,
            contents: 0,
            skipped: 0,
        };
        let read = match self.input {
            Input::Words(words) => words.into_iter().try_for_each(|word| reader.add(word.into_bytes(), 0)),
            Input::Lines(input) => reader.read(input),
        };
        // Messages before a mistake are published.
        let sent = reader.send();
        if let (Err(error), Ok(())) = (read, sent)
            && !error.is::<ReceiverGone>()
        {
            let _ = lines.blocking_send(Err(error));
        }
    }
}

/// The other side takes no more lines, and knows why.
#[derive(Debug, thiserror::Error)]
#[error("no more messages are taken")]
struct ReceiverGone;

struct Reader<'a> {
    ndjson: bool,
    make: Box<dyn Fn(u64, Vec<u8>) -> Message + Send>,
    lines: &'a Lines,
    batch: Vec<Line>,
    /// Of the last line that was read.
    number: u64,
    /// Bytes of the bodies in the batch.
    contents: usize,
    /// Bytes of empty lines since the last message.
    skipped: u64,
}

impl Reader<'_> {
    fn read(&mut self, input: Box<dyn Read + Send>) -> anyhow::Result<()> {
        let mut input = BufReader::with_capacity(BUFFER, input);
        loop {
            let mut line = Vec::new();
            let read = input
                .by_ref()
                .take(LINE_BYTES_MAX)
                .read_until(b'\n', &mut line)
                .context("cannot read the input")?;
            if read == 0 {
                return Ok(());
            }
            if line.last() == Some(&b'\n') {
                line.pop();
            } else if read as u64 == LINE_BYTES_MAX {
                let text = format!("line {} is too long", self.number + 1);
                return Err(anyhow!(Exit::NotUnderstood).context(text));
            }
            // An empty line is a message with an empty body, but not a message object.
            if self.ndjson && line.trim_ascii().is_empty() {
                self.number += 1;
                self.skipped += read as u64;
            } else {
                self.add(line, read as u64)?;
            }
            // Lines must not wait for input that may never come.
            if input.buffer().is_empty() {
                self.send()?;
            }
        }
    }

    fn add(&mut self, body: Vec<u8>, bytes: u64) -> anyhow::Result<()> {
        self.number += 1;
        let number = self.number;
        let message = if self.ndjson {
            let parsed = parse(&body).context(Exit::NotUnderstood);
            parsed.with_context(|| format!("line {number} is not a message"))?
        } else {
            (self.make)(number, body)
        };
        let length = message.body().len();
        if self.batch.len() >= MESSAGES_PER_BATCH || self.contents + length > BYTES_PER_BATCH {
            self.send()?;
        }
        self.contents += length;
        let bytes = bytes + std::mem::take(&mut self.skipped);
        self.batch.push(Line { message, number, bytes });
        Ok(())
    }

    fn send(&mut self) -> anyhow::Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        self.contents = 0;
        let batch = std::mem::take(&mut self.batch);
        self.lines.blocking_send(Ok(batch)).map_err(|_| ReceiverGone.into())
    }
}

/// A message object of the API.
fn parse(line: &[u8]) -> anyhow::Result<Message> {
    let message: json::Message = json::read(line)?;
    let made = match message.content()? {
        None => Message::new("null").content_type("application/json"),
        Some(Content { bytes: None, content_type }) => Message::without_body().content_type(content_type),
        Some(Content { bytes: Some(bytes), content_type }) => {
            Message::new(bytes.into_owned()).content_type(content_type)
        }
    };
    if message.key.is_some() && message.key_base64.is_some() {
        return Err(anyhow!("it has both `key` and `key_base64`"));
    }
    if message.delay.is_some() && message.deliver_at.is_some() {
        return Err(anyhow!("it has both `delay` and `deliver_at`"));
    }
    let mut made = made.priority(message.priority.unwrap_or(0));
    if let Some(id) = message.id {
        made = made.id(id);
    }
    if let Some(key) = message.key {
        made = made.key(key);
    }
    if let Some(key) = message.key_base64 {
        made = made.key_bytes(from_base64("key_base64", &key)?);
    }
    if let Some(kind) = message.kind {
        made = made.kind(kind);
    }
    if let Some(schema) = message.schema {
        made = made.schema(schema);
    }
    for (name, value) in message.headers {
        made = made.header(name, value);
    }
    for (name, value) in message.headers_base64 {
        made = made.header_bytes(name, from_base64("headers_base64", &value)?);
    }
    if let Some(delay) = message.delay {
        made = made.delay(delay.0);
    }
    if let Some(at) = message.deliver_at {
        made = made.deliver_at(UNIX_EPOCH + Duration::from_micros(at.0));
    }
    if let Some(ttl) = message.ttl {
        made = made.ttl(ttl.0);
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, ndjson: bool) -> (Vec<Vec<Line>>, Option<String>) {
        let (lines, mut read) = mpsc::channel(100);
        let input = Input::Lines(Box::new(std::io::Cursor::new(text.to_owned())));
        Source { input, ndjson, make: Box::new(|_, body| Message::new(body)) }.read(&lines);
        drop(lines);
        let (mut good, mut wrong) = (Vec::new(), None);
        while let Some(batch) = read.blocking_recv() {
            match batch {
                Ok(batch) => good.push(batch),
                Err(error) => wrong = Some(crate::exit::text(&error)),
            }
        }
        (good, wrong)
    }

    #[test]
    fn lines_become_batches_that_know_where_they_came_from() {
        let text: String = (1..=2_500).map(|n| format!("{n}\n")).collect();
        let (batches, wrong) = read(&text, false);
        assert_eq!(wrong, None);
        let counts: Vec<_> = batches.iter().map(|batch| (batch.len(), batch[0].number)).collect();
        assert_eq!(counts, [(1000, 1), (1000, 1001), (500, 2001)]);
        let bytes: u64 = batches.iter().flatten().map(|line| line.bytes).sum();
        assert_eq!(bytes, text.len() as u64);
        let (batches, _) = read("a\n\nlast", false);
        let bodies: Vec<_> = batches[0].iter().map(|line| line.message.body().to_vec()).collect();
        assert_eq!(bodies, [&b"a"[..], b"", b"last"]);
    }

    #[test]
    fn a_line_that_is_not_a_message_is_named_and_the_lines_before_it_are_kept() {
        let text = concat!(
            "{\"body\": 1}\n\n",
            "{\"id\":\"a\",\"body\":{\"x\":[1, 2]},\"delay\":\"5s\"}\n",
            "{\"bodi\": 2}\n{\"body\": 3}\n",
        );
        let (batches, wrong) = read(text, true);
        let found: Vec<_> = batches.iter().flatten().map(|line| (line.number, line.bytes)).collect();
        assert_eq!(found, [(1, 12), (3, 45)], "the empty line counts with the next one");
        let expected = Message::new(r#"{"x":[1, 2]}"#).content_type("application/json");
        let expected = expected.id("a").delay(Duration::from_secs(5));
        assert_eq!(batches[0][1].message, expected);
        let wrong = wrong.expect("the fourth line is wrong");
        assert!(wrong.starts_with("line 4 is not a message: unknown field `bodi`"), "{wrong}");
        for (line, text) in [
            ("{\"body\":1,\"body_base64\":\"AA==\"}", "must not be given together with `body`"),
            ("{\"body_base64\":\"?\"}", "must be base64"),
            ("[1]", "the JSON must be an object, not a list"),
            ("{\"body\":1", "not JSON"),
            ("{\"body\":1,\"delay\":5}", "delay must be a duration"),
        ] {
            let (_, wrong) = read(line, true);
            let wrong = wrong.unwrap_or_else(|| panic!("{line} was taken"));
            assert!(wrong.contains("line 1") && wrong.contains(text), "{wrong}");
        }
    }
}
