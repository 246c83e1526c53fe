//! Reads messages and puts them together to batches.

use std::io::{BufRead as _, BufReader, Read};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use forebay_wire::{json, v1};
use tokio::sync::mpsc;

use crate::exit::Exit;

/// What is published as one batch at most.
const MESSAGES_PER_BATCH: usize = 1_000;
const BYTES_PER_BATCH: usize = 1 << 20;
const BUFFER: usize = 256 << 10;
/// No message may be longer than the largest that a server takes, by far.
const LINE_BYTES_MAX: u64 = 64 << 20;

/// Messages that are stored together, and which lines of the input they are.
pub(super) struct Batch {
    pub(super) messages: Vec<v1::Message>,
    pub(super) lines: (u64, u64),
    /// Of the input.
    pub(super) bytes: u64,
}

pub(super) enum From {
    Words(Vec<String>),
    Lines(Box<dyn Read + Send>),
}

pub(super) enum Ids {
    None,
    One(String),
    Numbered(String),
}

pub(super) struct Source {
    pub(super) from: From,
    pub(super) ndjson: bool,
    /// What every message is beside its body.
    pub(super) terms: v1::Message,
    pub(super) ids: Ids,
}

impl Source {
    /// Sends batches until there is nothing more to read, or until nobody takes them.
    pub(super) fn read(self, batches: &mpsc::Sender<anyhow::Result<Batch>>) {
        let (ndjson, terms, ids) = (self.ndjson, self.terms, self.ids);
        let mut filling =
            Filling { batches, messages: Vec::new(), lines: (1, 1), line: 0, contents: 0, bytes: 0 };
        let message = |line: u64, body: Vec<u8>| -> anyhow::Result<v1::Message> {
            if ndjson {
                let parsed = parse(&body).context(Exit::NotUnderstood);
                return parsed.with_context(|| format!("line {line} is no message"));
            }
            let id = match &ids {
                Ids::None => String::new(),
                Ids::One(id) => id.clone(),
                Ids::Numbered(prefix) => format!("{prefix}-{line}"),
            };
            Ok(v1::Message { body: body.into(), id, ..terms.clone() })
        };
        let read = match self.from {
            From::Words(words) => words.into_iter().try_for_each(|word| {
                filling.line += 1;
                let message = message(filling.line, word.into_bytes())?;
                filling.push(message, 0)
            }),
            From::Lines(lines) => filling.lines(lines, ndjson, message),
        };
        // What was read before a mistake is published.
        let sent = filling.send();
        if let (Err(error), Ok(())) = (read, sent)
            && !error.is::<NobodyThere>()
        {
            let _ = batches.blocking_send(Err(error));
        }
    }
}

/// The receiving side is gone, and reports the reason itself.
#[derive(Debug, thiserror::Error)]
#[error("publishing has ended")]
struct NobodyThere;

struct Filling<'a> {
    batches: &'a mpsc::Sender<anyhow::Result<Batch>>,
    messages: Vec<v1::Message>,
    /// The lines of the first and the last of them.
    lines: (u64, u64),
    /// The last line that was read.
    line: u64,
    contents: usize,
    bytes: u64,
}

impl Filling<'_> {
    fn lines(
        &mut self,
        lines: Box<dyn Read + Send>,
        ndjson: bool,
        message: impl Fn(u64, Vec<u8>) -> anyhow::Result<v1::Message>,
    ) -> anyhow::Result<()> {
        let mut input = BufReader::with_capacity(BUFFER, lines);
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
            self.line += 1;
            if line.last() == Some(&b'\n') {
                line.pop();
            } else if read as u64 == LINE_BYTES_MAX {
                return Err(anyhow!(Exit::NotUnderstood).context(format!("line {} is too long", self.line)));
            }
            // An empty line is a message without a body; but it is no message object.
            if ndjson && line.trim_ascii().is_empty() {
                self.bytes += read as u64;
            } else {
                let message = message(self.line, line)?;
                self.push(message, read as u64)?;
            }
            // Nothing more to read just now: what has been read must not wait for what may never come.
            if input.buffer().is_empty() {
                self.send()?;
            }
        }
    }

    fn push(&mut self, message: v1::Message, bytes: u64) -> anyhow::Result<()> {
        // Either all messages of a batch have ids, or it is numbered.
        let other_kind = self.messages.last().is_some_and(|last| last.id.is_empty() != message.id.is_empty());
        let full =
            self.messages.len() >= MESSAGES_PER_BATCH || self.contents + message.body.len() > BYTES_PER_BATCH;
        if full || other_kind {
            self.send()?;
        }
        if self.messages.is_empty() {
            self.lines.0 = self.line;
        }
        self.lines.1 = self.line;
        self.contents += message.body.len();
        self.bytes += bytes;
        self.messages.push(message);
        Ok(())
    }

    fn send(&mut self) -> anyhow::Result<()> {
        if self.messages.is_empty() {
            return Ok(());
        }
        let messages = std::mem::take(&mut self.messages);
        let batch = Batch { messages, lines: self.lines, bytes: std::mem::take(&mut self.bytes) };
        self.contents = 0;
        self.batches.blocking_send(Ok(batch)).map_err(|_| NobodyThere.into())
    }
}

/// A message object of the API.
fn parse(line: &[u8]) -> anyhow::Result<v1::Message> {
    let message: json::Message = serde_json::from_slice(line).map_err(|error| {
        // The place within the line; which line it is, the reader knows.
        let text = error.to_string();
        let text = text.rsplit_once(" at line ").map_or(&*text, |(text, _)| text);
        anyhow!("{text}, at column {}", error.column())
    })?;
    let body = match (message.body, message.body_base64) {
        (Some(_), Some(_)) => return Err(anyhow!("it has both `body` and `body_base64`")),
        (Some(body), None) => body.get().to_owned().into_bytes(),
        (None, Some(text)) => STANDARD.decode(text).map_err(|_| anyhow!("`body_base64` is not base64"))?,
        (None, None) => b"null".to_vec(),
    };
    if message.delay.is_some() && message.deliver_at.is_some() {
        return Err(anyhow!("it has both `delay` and `deliver_at`"));
    }
    Ok(v1::Message {
        body: body.into(),
        id: message.id.unwrap_or_default(),
        key: message.key.unwrap_or_default(),
        r#type: message.kind.unwrap_or_default(),
        schema: message.schema,
        headers: message.headers.into_iter().map(|(name, value)| v1::Header { name, value }).collect(),
        priority: message.priority.unwrap_or(0).into(),
        delay_ms: message.delay.map_or(0, |delay| millis(delay.0)),
        ttl_ms: message.ttl.map_or(0, |ttl| millis(ttl.0)),
        deliver_at_us: message.deliver_at.map_or(0, |at| at.0),
        ..v1::Message::default()
    })
}

/// Rounded up, so that what is short does not become nothing.
pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, ndjson: bool, ids: Ids) -> (Vec<Batch>, Option<String>) {
        let (batches, mut read) = mpsc::channel(100);
        let from = From::Lines(Box::new(std::io::Cursor::new(text.to_owned())));
        Source { from, ndjson, terms: v1::Message::default(), ids }.read(&batches);
        drop(batches);
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
        let (batches, wrong) = read(&text, false, Ids::Numbered("run".to_owned()));
        assert_eq!(wrong, None);
        let lines: Vec<_> = batches.iter().map(|batch| (batch.messages.len(), batch.lines)).collect();
        assert_eq!(lines, [(1000, (1, 1000)), (1000, (1001, 2000)), (500, (2001, 2500))]);
        assert_eq!(batches[2].messages[0].id, "run-2001");
        assert_eq!(batches.iter().map(|batch| batch.bytes).sum::<u64>(), text.len() as u64);
        let (batches, _) = read("a\n\nlast", false, Ids::None);
        let bodies: Vec<_> = batches[0].messages.iter().map(|message| message.body.to_vec()).collect();
        assert_eq!(bodies, [&b"a"[..], b"", b"last"]);
    }

    #[test]
    fn a_line_that_is_no_message_is_named_and_those_before_it_are_kept() {
        let text = concat!(
            "{\"body\": 1}\n\n",
            "{\"id\":\"a\",\"body\":{\"x\":[1, 2]},\"delay\":\"5s\"}\n",
            "{\"bodi\": 2}\n{\"body\": 3}\n",
        );
        let (batches, wrong) = read(text, true, Ids::None);
        let found: Vec<_> = batches.iter().map(|batch| (batch.messages.len(), batch.lines)).collect();
        assert_eq!(found, [(1, (1, 1)), (1, (3, 3))], "with ids and without do not mix");
        let second = &batches[1].messages[0];
        assert_eq!((&*second.body, &*second.id, second.delay_ms), (&br#"{"x":[1, 2]}"#[..], "a", 5_000));
        let wrong = wrong.expect("the fourth line is wrong");
        assert!(wrong.starts_with("line 4 is no message: unknown field `bodi`"), "{wrong}");
        for (line, text) in [
            ("{\"body\":1,\"body_base64\":\"AA==\"}", "both `body`"),
            ("{\"body_base64\":\"?\"}", "not base64"),
            ("[1]", "column"),
            ("{\"body\":1", "EOF"),
            ("{\"body\":1,\"delay\":5}", "length of time"),
        ] {
            let (_, wrong) = read(line, true, Ids::None);
            let wrong = wrong.unwrap_or_else(|| panic!("{line} was taken"));
            assert!(wrong.contains("line 1") && wrong.contains(text), "{wrong}");
        }
    }
}
