//! The connection to the NATS servers: the few calls of the JetStream API that the engine needs, as requests and JSON.
//!
//! A failure that may pass by itself (a time-out, no leader) is repeated here. A failure that lasts is an error.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_core::types::{ShardId, Timestamp};
use serde_json::{Value, json};

use crate::engine::StorageError;
use crate::jetstream::JetStreamConfig;
use crate::jetstream::record::Kind;
use crate::jetstream::walk::Stored;
use crate::jetstream::wire::{
    EXPECTED_LAST, EXPECTED_LAST_OF_SUBJECT, EXPECTED_STREAM, Letter, SEQUENCE, STAMP, Wire,
};

/// A request that takes longer is repeated.
pub(crate) const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// Between two attempts of a call, at first and at most.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// A replica that the leader has not heard of for longer is not counted to its majority. Servers tell each other every
/// second that they are there.
const HEARD_WITHIN: Duration = Duration::from_secs(2);
/// One read brings so much at most. More than the largest message, which would not be sent otherwise.
const READ_BYTES: usize = 4 << 20;
const READ_MESSAGES: usize = 1_000;

/// No server answers for the subject.
const NO_RESPONDERS: u16 = 503;
/// The stream is not there.
const STREAM_NOT_FOUND: u64 = 10_059;

#[derive(Clone)]
pub(crate) struct Link {
    wire: Arc<dyn Wire>,
    /// The stream of the log, and that of images.
    pub(crate) log: String,
    pub(crate) images: String,
    log_subject: String,
    image_subject: String,
    nodes_subject: String,
}

/// A NATS server that keeps the log, as the stream's leader sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Server {
    pub name: String,
    pub is_leader: bool,
    pub is_online: bool,
    /// Whether it has everything that the leader has.
    pub is_current: bool,
    /// Records that it lacks.
    pub lag: u64,
    /// Since when the leader has not heard of it.
    pub silent_for: Option<Duration>,
}

/// How a stream stands, as its leader says.
#[derive(Debug, Clone, Default)]
pub(crate) struct Info {
    pub(crate) first: u64,
    pub(crate) last: u64,
    pub(crate) bytes: u64,
    pub(crate) bytes_max: Option<u64>,
    /// The id that the stream was created with.
    pub(crate) id: String,
    /// The servers that keep it.
    pub(crate) servers: Vec<Server>,
    pub(crate) config: Value,
}

impl Info {
    /// Whether the leader hears from a majority of the servers that keep the stream. If not it cannot store anything,
    /// and an end of the log that does not move shows nothing about the owner.
    pub(crate) fn has_majority(&self) -> bool {
        let is_heard = |server: &&Server| {
            server.is_leader || server.silent_for.is_some_and(|silent| silent <= HEARD_WITHIN)
        };
        // A server without a cluster does not name itself.
        self.servers.is_empty() || self.servers.iter().filter(is_heard).count() * 2 > self.servers.len()
    }
}

/// Why a call was not answered as hoped.
#[derive(Debug, Clone)]
pub(crate) enum CallError {
    /// May pass by itself.
    Passing(String),
    /// The server refused, with the code of its error.
    Refused { code: u64, text: String },
}

impl std::fmt::Display for CallError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CallError::Passing(text) => f.write_str(text),
            CallError::Refused { code, text } => write!(f, "{text} (error {code} of JetStream)"),
        }
    }
}

impl CallError {
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, CallError::Refused { code: STREAM_NOT_FOUND, .. })
    }

    pub(crate) fn into_storage(self, doing: &str) -> StorageError {
        let kind = match &self {
            CallError::Refused { code: STREAM_NOT_FOUND, .. } => std::io::ErrorKind::NotFound,
            _ => std::io::ErrorKind::Other,
        };
        let source = std::io::Error::new(kind, self.to_string());
        StorageError::Io { doing: doing.to_owned(), source: Arc::new(source) }
    }
}

impl Link {
    pub(crate) fn new(wire: Arc<dyn Wire>, config: &JetStreamConfig) -> Link {
        let (cluster, shard) = (&config.cluster, config.shard.0);
        Link {
            wire,
            log: format!("FB_{cluster}_{shard}"),
            images: format!("FB_{cluster}_images"),
            log_subject: format!("fb.{cluster}.{shard}"),
            image_subject: format!("fbi.{cluster}"),
            nodes_subject: format!("fbn.{cluster}"),
        }
    }

    pub(crate) fn wire(&self) -> &dyn Wire {
        &*self.wire
    }

    pub(crate) fn subject(&self, kind: Kind) -> String {
        format!("{}.{}", self.log_subject, kind.token())
    }

    pub(crate) fn all_log_subjects(&self) -> String {
        format!("{}.>", self.log_subject)
    }

    pub(crate) fn all_image_subjects(&self) -> String {
        format!("{}.>", self.image_subject)
    }

    /// Where nodes ask each other how they stand.
    pub(crate) fn nodes_subject(&self) -> String {
        self.nodes_subject.clone()
    }

    pub(crate) fn image_subject(&self, shard: ShardId) -> String {
        format!("{}.{}", self.image_subject, shard.0)
    }

    /// Does something until it succeeds or fails for good.
    pub(crate) async fn persist<T, F: Future<Output = Result<T, CallError>>>(
        &self,
        doing: &str,
        mut call: impl FnMut() -> F,
    ) -> Result<T, StorageError> {
        let mut pause = PAUSE_MIN;
        loop {
            match call().await {
                Ok(done) => return Ok(done),
                Err(CallError::Passing(why)) => tracing::debug!(doing, why, "a call to NATS is repeated"),
                Err(error) => return Err(error.into_storage(doing)),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// A call of the JetStream API.
    pub(crate) async fn api(&self, call: &str, body: &Value) -> Result<Value, CallError> {
        let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let question = Letter::new(format!("$JS.API.{call}"), body);
        let answer = self.wire.request(question).await.map_err(CallError::Passing)?;
        let answer: Value = serde_json::from_slice(&answer.payload).map_err(|error| {
            CallError::Passing(format!("an answer of NATS cannot be understood: {error}"))
        })?;
        match refusal(&answer) {
            Some(error) => Err(error),
            None => Ok(answer),
        }
    }

    pub(crate) async fn info(&self, stream: &str) -> Result<Info, CallError> {
        let answer = self.api(&format!("STREAM.INFO.{stream}"), &Value::Null).await?;
        let (state, config) = (&answer["state"], &answer["config"]);
        let number = |of: &Value| of.as_u64().unwrap_or_default();
        let cluster = &answer["cluster"];
        let leader = cluster["leader"].as_str().map(|name| Server {
            name: name.to_owned(),
            is_leader: true,
            is_online: true,
            is_current: true,
            ..Server::default()
        });
        let replica = |of: &Value| {
            Some(Server {
                name: of["name"].as_str()?.to_owned(),
                is_leader: false,
                is_online: of["offline"] != true,
                is_current: of["current"] == true,
                lag: number(&of["lag"]),
                silent_for: of["active"].as_u64().map(Duration::from_nanos),
            })
        };
        let replicas = cluster["replicas"].as_array().into_iter().flatten().filter_map(replica);
        Ok(Info {
            first: number(&state["first_seq"]),
            last: number(&state["last_seq"]),
            bytes: number(&state["bytes"]),
            bytes_max: config["max_bytes"].as_u64(),
            id: config["metadata"]["forebay_id"].as_str().unwrap_or_default().to_owned(),
            servers: leader.into_iter().chain(replicas).collect(),
            config: config.clone(),
        })
    }

    /// Messages of a subject from this sequence on, in order, as one replica has them: some of the newest may be
    /// missing. Empty if there are none.
    pub(crate) async fn read(
        &self,
        stream: &str,
        subject: &str,
        from: u64,
    ) -> Result<Vec<Stored>, CallError> {
        let inbox = self.wire.inbox();
        let mut answers = self.wire.listen(inbox.clone()).await.map_err(CallError::Passing)?;
        let request = json!({
            "seq": from.max(1), "next_by_subj": subject, "batch": READ_MESSAGES, "max_bytes": READ_BYTES,
        });
        let get = Letter::new(format!("$JS.API.DIRECT.GET.{stream}"), request.to_string());
        let get = Letter { reply: Some(inbox), ..get };
        self.wire.send(get).await.map_err(CallError::Passing)?;
        let mut found = Vec::new();
        loop {
            let Ok(Some(answer)) = tokio::time::timeout(ANSWERS_WITHIN, answers.next()).await else {
                return Err(CallError::Passing("a read was not answered".to_owned()));
            };
            match answer.status {
                None => found.push(stored(answer)?),
                // The end of the batch; or no message matches.
                Some(204 | 404) => return Ok(found),
                Some(NO_RESPONDERS) => {
                    return Err(CallError::Passing("no server answers for the stream".to_owned()));
                }
                Some(408) => return Err(CallError::Refused { code: 408, text: text_of(&answer) }),
                Some(_) => return Err(CallError::Passing(text_of(&answer))),
            }
        }
    }

    /// The last message of a subject, as one replica has it.
    pub(crate) async fn last_of(&self, stream: &str, subject: &str) -> Result<Option<Stored>, CallError> {
        let request = json!({ "last_by_subj": subject }).to_string();
        let get = Letter::new(format!("$JS.API.DIRECT.GET.{stream}"), request);
        let answer = self.wire.request(get).await.map_err(CallError::Passing)?;
        match answer.status {
            None => stored(answer).map(Some),
            Some(404) => Ok(None),
            Some(_) => Err(CallError::Passing(text_of(&answer))),
        }
    }

    /// Sends a message of the log, which is answered at `reply`.
    pub(crate) async fn send(
        &self,
        kind: Kind,
        after: u64,
        reply: String,
        bytes: Bytes,
    ) -> Result<(), CallError> {
        let letter = Letter { reply: Some(reply), ..Letter::new(self.subject(kind), bytes) };
        let letter = letter.with(EXPECTED_STREAM, &self.log).with(EXPECTED_LAST, after);
        self.wire.send(letter).await.map_err(CallError::Passing)
    }

    /// Stores a claim if the last one is at this sequence.
    pub(crate) async fn claim(&self, last: u64, bytes: Bytes) -> Result<u64, CallError> {
        let letter = Letter::new(self.subject(Kind::Claim), bytes);
        self.put(letter.with(EXPECTED_STREAM, &self.log).with(EXPECTED_LAST_OF_SUBJECT, last)).await
    }

    /// Stores a chunk of an image.
    pub(crate) async fn put_chunk(&self, subject: String, bytes: Bytes) -> Result<u64, CallError> {
        self.put(Letter::new(subject, bytes).with(EXPECTED_STREAM, &self.images)).await
    }

    async fn put(&self, letter: Letter) -> Result<u64, CallError> {
        let answer = self.wire.request(letter).await.map_err(CallError::Passing)?;
        acknowledged(&answer)
    }

    /// Lets go of messages: all before a sequence, or all of a subject.
    pub(crate) async fn purge(&self, stream: &str, what: &Value) -> Result<(), CallError> {
        self.api(&format!("STREAM.PURGE.{stream}"), what).await.map(drop)
    }
}

/// The sequence that an answer to a publish names.
pub(crate) fn acknowledged(answer: &Letter) -> Result<u64, CallError> {
    if answer.status.is_some() {
        return Err(CallError::Passing(text_of(answer)));
    }
    let json: Value = serde_json::from_slice(&answer.payload)
        .map_err(|error| CallError::Passing(format!("an answer of NATS cannot be understood: {error}")))?;
    if let Some(error) = refusal(&json) {
        return Err(error);
    }
    let sequence = json["seq"].as_u64().filter(|sequence| *sequence > 0);
    sequence.ok_or_else(|| CallError::Passing("an acknowledgement names no sequence".to_owned()))
}

fn refusal(answer: &Value) -> Option<CallError> {
    let error = answer.get("error")?;
    let code = error["err_code"].as_u64().unwrap_or_default();
    let text = error["description"].as_str().unwrap_or("no reason was given").to_owned();
    // 408, 500 and 503 speak of the moment: no leader, no quorum, an overloaded server.
    Some(match error["code"].as_u64() {
        Some(408 | 500 | 503) => CallError::Passing(text),
        _ => CallError::Refused { code, text },
    })
}

fn stored(message: Letter) -> Result<Stored, CallError> {
    let sequence = message.header(SEQUENCE).and_then(|sequence| sequence.parse().ok());
    let sequence =
        sequence.ok_or_else(|| CallError::Passing("a stored message has no sequence".to_owned()))?;
    let stamp = message.header(STAMP).and_then(time_of);
    Ok(Stored { sequence, stamp, bytes: message.payload })
}

/// A time in the form of RFC 3339, in UTC, such as `2026-11-16T17:12:00.123456789Z`.
fn time_of(text: &str) -> Option<Timestamp> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let mut date = date.splitn(3, '-').map(|number| number.parse::<u64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let (clock, fraction) = time.split_once('.').unwrap_or((time, ""));
    let mut clock = clock.splitn(3, ':').map(|number| number.parse::<u64>().ok());
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    let is_good = (1970..10_000).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60
        && fraction.len() <= 9
        && fraction.bytes().all(|byte| byte.is_ascii_digit());
    if !is_good {
        return None;
    }
    // Years begin with March, so that the day that some of them have is their last.
    let (year, month) = if month <= 2 { (year - 1, month + 9) } else { (year, month - 3) };
    let days =
        365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - DAYS_TO_1970;
    let seconds = ((days * 24 + hour) * 60 + minute) * 60 + second;
    let nanos = format!("{fraction:0<9}").parse::<u64>().ok()?;
    Some(Timestamp(seconds * 1_000_000 + nanos / 1_000))
}

/// From the first of March of the year 0.
const DAYS_TO_1970: u64 = 719_468;

fn text_of(message: &Letter) -> String {
    let status = message.status.unwrap_or_default();
    format!("status {status}: {}", message.description.as_deref().unwrap_or("no reason was given"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_that_hears_of_no_other_server_has_no_majority() {
        let leader = Server { is_leader: true, ..Server::default() };
        let replica = |millis: u64| Server {
            is_online: true,
            silent_for: Some(Duration::from_millis(millis)),
            ..Server::default()
        };
        let info = |servers: &[Server]| Info { servers: servers.to_vec(), ..Info::default() };
        assert!(info(&[]).has_majority() && info(std::slice::from_ref(&leader)).has_majority());
        assert!(info(&[leader.clone(), replica(9_000), replica(900)]).has_majority());
        assert!(!info(&[leader.clone(), replica(9_000), replica(2_100)]).has_majority());
        assert!(!info(&[leader.clone(), replica(u64::MAX), Server::default()]).has_majority());
        assert!(!info(&[leader, replica(2_100)]).has_majority());
    }

    #[test]
    fn stamps_are_understood() {
        for (text, micros) in [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("1970-01-01T00:00:01.5Z", Some(1_500_000)),
            ("2000-02-29T12:00:00Z", Some(951_825_600_000_000)),
            ("2000-03-01T00:00:00Z", Some(951_868_800_000_000)),
            ("2026-11-16T17:12:00.123456789Z", Some(1_794_849_120_123_456)),
            ("2100-12-31T23:59:59Z", Some(4_133_980_799_000_000)),
            ("2026-11-16T17:12:00+01:00", None),
            ("2026-13-16T17:12:00Z", None),
            ("2026-11-16T17:12:00.1234567891Z", None),
            ("soon", None),
            ("", None),
        ] {
            assert_eq!(time_of(text), micros.map(Timestamp), "{text}");
        }
    }
}
