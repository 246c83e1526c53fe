//! The connection to the NATS servers: the few calls of the JetStream API that the engine needs, as requests and JSON.
//!
//! A failure that may pass by itself (a time-out, no leader) is repeated here. A failure that lasts is an error.

use std::future::Future;
use std::time::Duration;

use async_nats::{Client, ConnectOptions, HeaderMap, Message, StatusCode};
use bytes::Bytes;
use forebay_core::types::ShardId;
use futures_util::StreamExt as _;
use serde_json::{Value, json};

use crate::engine::StorageError;
use crate::jetstream::JetStreamConfig;
use crate::jetstream::record::Kind;
use crate::jetstream::walk::Stored;

/// A request that takes longer is repeated.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// Between two attempts of a call, at first and at most.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// One read brings so much at most. More than the largest message, which would not be sent otherwise.
const READ_BYTES: usize = 4 << 20;
const READ_MESSAGES: usize = 1_000;

/// The sequence that the stream must end with, or the message is refused.
const EXPECTED_LAST: &str = "Nats-Expected-Last-Sequence";
/// The same for the last message of its subject.
const EXPECTED_LAST_OF_SUBJECT: &str = "Nats-Expected-Last-Subject-Sequence";
const EXPECTED_STREAM: &str = "Nats-Expected-Stream";
const SEQUENCE: &str = "Nats-Sequence";

/// The stream is not there.
const STREAM_NOT_FOUND: u64 = 10_059;

#[derive(Debug, Clone)]
pub(crate) struct Link {
    client: Client,
    /// The stream of the log, and that of images.
    pub(crate) log: String,
    pub(crate) images: String,
    log_subject: String,
    image_subject: String,
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
    pub(crate) servers: Vec<String>,
    pub(crate) config: Value,
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
        StorageError::Io { doing: doing.to_owned(), source: std::sync::Arc::new(source) }
    }
}

impl Link {
    /// Connects, or fails if no server answers.
    pub(crate) async fn connect(config: &JetStreamConfig) -> Result<Link, String> {
        let mut options = ConnectOptions::new()
            .name(format!("forebay {}", config.claimant.node))
            .ping_interval(Duration::from_secs(1))
            .connection_timeout(Duration::from_secs(2))
            .request_timeout(Some(ANSWERS_WITHIN))
            .max_reconnects(None)
            .reconnect_delay_callback(|tries| Duration::from_millis(50 * (tries as u64).min(10)));
        if let Some(file) = &config.root_certificates {
            options = options.add_root_certificates(file.clone()).require_tls(true);
        }
        if let Some((user, password)) = &config.user {
            options = options.user_and_password(user.clone(), password.clone());
        }
        let servers: Result<Vec<async_nats::ServerAddr>, _> =
            config.servers.iter().map(|server| server.parse()).collect();
        let servers = servers.map_err(|error| error.to_string())?;
        let client = async_nats::connect_with_options(servers, options).await;
        let client = client.map_err(|error| error.to_string())?;
        let (cluster, shard) = (&config.cluster, config.shard.0);
        Ok(Link {
            client,
            log: format!("FB_{cluster}_{shard}"),
            images: format!("FB_{cluster}_images"),
            log_subject: format!("fb.{cluster}.{shard}"),
            image_subject: format!("fbi.{cluster}"),
        })
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
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
        let answer = self.client.request(format!("$JS.API.{call}"), body).await.map_err(passing)?;
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
        let peers = cluster["replicas"].as_array().into_iter().flatten().map(|peer| &peer["name"]);
        let servers = std::iter::once(&cluster["leader"]).chain(peers);
        Ok(Info {
            first: number(&state["first_seq"]),
            last: number(&state["last_seq"]),
            bytes: number(&state["bytes"]),
            bytes_max: config["max_bytes"].as_u64(),
            id: config["metadata"]["forebay_id"].as_str().unwrap_or_default().to_owned(),
            servers: servers.filter_map(|name| name.as_str().map(str::to_owned)).collect(),
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
        let inbox = self.client.new_inbox();
        let mut answers = self.client.subscribe(inbox.clone()).await.map_err(passing)?;
        let request = json!({
            "seq": from.max(1), "next_by_subj": subject, "batch": READ_MESSAGES, "max_bytes": READ_BYTES,
        });
        let get = format!("$JS.API.DIRECT.GET.{stream}");
        self.client.publish_with_reply(get, inbox, request.to_string().into()).await.map_err(passing)?;
        let mut found = Vec::new();
        loop {
            let Ok(Some(answer)) = tokio::time::timeout(ANSWERS_WITHIN, answers.next()).await else {
                return Err(CallError::Passing("a read was not answered".to_owned()));
            };
            match answer.status {
                None => found.push(stored(answer)?),
                // The end of the batch; or no message matches.
                Some(status) if status.as_u16() == 204 || status.as_u16() == 404 => return Ok(found),
                Some(StatusCode::NO_RESPONDERS) => {
                    return Err(CallError::Passing("no server answers for the stream".to_owned()));
                }
                Some(status) if status.as_u16() == 408 => {
                    return Err(CallError::Refused { code: 408, text: text_of(&answer) });
                }
                Some(_) => return Err(CallError::Passing(text_of(&answer))),
            }
        }
    }

    /// The last message of a subject, as one replica has it.
    pub(crate) async fn last_of(&self, stream: &str, subject: &str) -> Result<Option<Stored>, CallError> {
        let request = json!({ "last_by_subj": subject }).to_string();
        let get = format!("$JS.API.DIRECT.GET.{stream}");
        let answer = self.client.request(get, request.into()).await.map_err(passing)?;
        match answer.status {
            None => stored(answer).map(Some),
            Some(status) if status.as_u16() == 404 => Ok(None),
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
        let mut headers = HeaderMap::new();
        headers.insert(EXPECTED_STREAM, self.log.as_str());
        headers.insert(EXPECTED_LAST, after.to_string().as_str());
        let sent =
            self.client.publish_with_reply_and_headers(self.subject(kind), reply, headers, bytes).await;
        sent.map_err(passing)
    }

    /// Stores a claim if the last one is at this sequence.
    pub(crate) async fn claim(&self, last: u64, bytes: Bytes) -> Result<u64, CallError> {
        let mut headers = HeaderMap::new();
        headers.insert(EXPECTED_STREAM, self.log.as_str());
        headers.insert(EXPECTED_LAST_OF_SUBJECT, last.to_string().as_str());
        self.put(self.subject(Kind::Claim), headers, bytes).await
    }

    /// Stores a chunk of an image.
    pub(crate) async fn put_chunk(&self, subject: String, bytes: Bytes) -> Result<u64, CallError> {
        let mut headers = HeaderMap::new();
        headers.insert(EXPECTED_STREAM, self.images.as_str());
        self.put(subject, headers, bytes).await
    }

    async fn put(&self, subject: String, headers: HeaderMap, bytes: Bytes) -> Result<u64, CallError> {
        let answer = self.client.request_with_headers(subject, headers, bytes).await.map_err(passing)?;
        acknowledged(&answer)
    }

    /// Lets go of messages: all before a sequence, or all of a subject.
    pub(crate) async fn purge(&self, stream: &str, what: &Value) -> Result<(), CallError> {
        self.api(&format!("STREAM.PURGE.{stream}"), what).await.map(drop)
    }
}

/// The sequence that an answer to a publish names.
pub(crate) fn acknowledged(answer: &Message) -> Result<u64, CallError> {
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

fn stored(message: Message) -> Result<Stored, CallError> {
    let sequence = message.headers.as_ref().and_then(|headers| headers.get(SEQUENCE));
    let sequence = sequence.and_then(|sequence| sequence.as_str().parse().ok());
    let sequence =
        sequence.ok_or_else(|| CallError::Passing("a stored message has no sequence".to_owned()))?;
    Ok(Stored { sequence, bytes: message.payload })
}

fn text_of(message: &Message) -> String {
    let status = message.status.map(|status| status.as_u16()).unwrap_or_default();
    format!("status {status}: {}", message.description.as_deref().unwrap_or("no reason was given"))
}

fn passing(error: impl std::error::Error) -> CallError {
    CallError::Passing(error.to_string())
}
