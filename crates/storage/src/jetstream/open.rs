//! Opening: the servers are looked at before anything is trusted to them, and the streams are made.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::engine::StorageError;
use crate::jetstream::JetStreamConfig;
use crate::jetstream::link::{CallError, Info, Link};
use crate::jetstream::nats::Nats;
use crate::jetstream::record::MESSAGE_BYTES_MAX;
use crate::jetstream::wire::Wire;

/// The oldest release of nats-server that has everything: reads in batches came with 2.11, and fixes for lost records
/// that Jepsen found came up to 2.14.
const VERSION_MIN: (u64, u64) = (2, 14);
/// Headers of a message count toward `max_payload`.
const HEADERS_BYTES: usize = 1 << 10;
const FORMAT: &str = "1";
/// Of a log that is being copied: the log that it is a copy of.
const COPY_OF: &str = "forebay_copy_of";
/// How long a start waits for the servers to have a leader.
const READY_WITHIN: Duration = Duration::from_secs(30);
const READY_PAUSE: Duration = Duration::from_millis(250);
const MONITOR_ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// Why the log on JetStream cannot be used. Each names the setting that decides it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JetStreamError {
    #[error("no NATS server answers; `nats` names the servers. nats=`{servers}`: {why}")]
    Unreachable { servers: String, why: String },
    #[error(
        "cluster must be 1 to 32 letters, digits, hyphens or underscores, and node 1 to 64. value=`{value}`"
    )]
    BadName { value: String },
    #[error(
        "nats-server must be {}.{} or later; `nats` names the servers. version=`{version}`",
        VERSION_MIN.0, VERSION_MIN.1
    )]
    TooOld { version: String },
    #[error("the NATS server at `nats` has no JetStream: its configuration needs a jetstream block")]
    NoJetStream,
    #[error("max_payload of the NATS servers must be at least {needed} bytes. max_payload=`{found}`")]
    PayloadTooSmall { found: usize, needed: usize },
    #[error(
        "the stream exists and is not a log of this cluster; `cluster` names another. stream=`{stream}`: {why}"
    )]
    OtherStream { stream: String, why: String },
    #[error(
        "the server acknowledges before it syncs, so that a loss of power loses confirmed messages. Its \
         configuration needs `sync_interval: always`; or set nats_accept_loss if that loss is acceptable. \
         server=`{server}`"
    )]
    NotSynced { server: String },
    #[error(
        "there is no proof that the server syncs before it acknowledges. Name the monitoring addresses of all servers \
         in nats_monitors; or set nats_accept_loss if a loss of power may lose confirmed messages. server=`{server}`"
    )]
    NotProven { server: String },
    #[error("the monitoring address cannot be read; nats_monitors names it. address=`{address}`: {why}")]
    NoMonitor { address: String, why: String },
    #[error("the log cannot be read. stream=`{stream}`")]
    Unreadable {
        stream: String,
        #[source]
        error: StorageError,
    },
    #[error("there is no log of this cluster; `cluster` names it. stream=`{stream}`")]
    NoLog { stream: String },
    #[error(
        "the log is the unfinished result of an interrupted `forebay copy`, and messages are missing from it. Run the \
         same command again, and it goes on. stream=`{stream}` copy_of=`{of}`"
    )]
    Unfinished { stream: String, of: String },
    #[error(
        "the target is not empty and not an unfinished copy of this source, and was not changed; `cluster` names \
         another. stream=`{stream}`"
    )]
    NotEmpty { stream: String },
    #[error("JetStream refused; `nats_replicas` and `nats_max_bytes` say how large the stream is. {why}")]
    Refused { why: String },
}

/// Connects to the servers.
pub(crate) async fn connect(config: &JetStreamConfig) -> Result<Arc<dyn Wire>, JetStreamError> {
    check_name(&config.cluster, 32)?;
    check_name(&config.claimant.node, 64)?;
    let servers: Vec<String> = config.servers.iter().map(|server| without_password(server)).collect();
    let unreachable = |why| JetStreamError::Unreachable { servers: servers.join(","), why };
    Ok(Arc::new(Nats::connect(config).await.map_err(unreachable)?))
}

/// Checks the servers, and makes the streams where they are missing. Returns the id of the log's stream.
pub(crate) async fn open(
    wire: Arc<dyn Wire>,
    config: &JetStreamConfig,
) -> Result<(Link, String), JetStreamError> {
    let link = look_at(wire, config)?;
    let id = until_ready(|| make_log(&link, config)).await?;
    until_ready(|| make_images(&link, config)).await?;
    if !config.accept_loss {
        check_sync(&link, config).await?;
    }
    Ok((link, id))
}

/// The same for a log that is only read: nothing is made, and servers that do not sync are no obstacle.
pub(crate) async fn open_to_read(config: &JetStreamConfig) -> Result<(Link, Info), JetStreamError> {
    let link = look_at(connect(config).await?, config)?;
    let look = || async {
        let info = link.info(&link.log).await.map_err(|error| match error {
            error if error.is_not_found() => {
                Obstacle::Lasting(JetStreamError::NoLog { stream: link.log.clone() })
            }
            error => Obstacle::Call(error),
        })?;
        check_stream(&link.log, &info.config, config).map_err(Obstacle::Lasting)?;
        Ok(info)
    };
    let info = until_ready(look).await?;
    Ok((link, info))
}

/// All of the copy is durable: the log may be served.
pub(crate) async fn finish_copy(link: &Link) -> Result<(), StorageError> {
    let doing = "finish the copy";
    let info = link.persist(doing, || link.info(&link.log)).await?;
    let mut wanted = info.config;
    if let Some(metadata) = wanted["metadata"].as_object_mut() {
        metadata.remove(COPY_OF);
    }
    let call = format!("STREAM.UPDATE.{}", link.log);
    link.persist(doing, || link.api(&call, &wanted)).await.map(drop)
}

/// Looks at the server at the other end.
fn look_at(wire: Arc<dyn Wire>, config: &JetStreamConfig) -> Result<Link, JetStreamError> {
    let about = wire.about();
    if version(&about.version).is_none_or(|version| version < VERSION_MIN) {
        return Err(JetStreamError::TooOld { version: about.version });
    }
    if !about.has_jetstream {
        return Err(JetStreamError::NoJetStream);
    }
    let needed = MESSAGE_BYTES_MAX + HEADERS_BYTES;
    if about.payload_max < needed {
        return Err(JetStreamError::PayloadTooSmall { found: about.payload_max, needed });
    }
    Ok(Link::new(wire, config))
}

/// An address as it may be shown: without user and password.
fn without_password(server: &str) -> String {
    match (server.split_once("://"), server.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
        (None, Some((_, host))) => host.to_owned(),
        (_, None) => server.to_owned(),
    }
}

fn check_name(name: &str, length_max: usize) -> Result<(), JetStreamError> {
    let is_good = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.is_empty() || name.len() > length_max || !name.chars().all(is_good) {
        return Err(JetStreamError::BadName { value: name.to_owned() });
    }
    Ok(())
}

fn version(text: &str) -> Option<(u64, u64)> {
    let mut numbers = text.split(['.', '-']).map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// Why a step of opening failed: for now, or for good.
enum Obstacle {
    Call(CallError),
    Lasting(JetStreamError),
}

async fn until_ready<T, F: Future<Output = Result<T, Obstacle>>>(
    mut step: impl FnMut() -> F,
) -> Result<T, JetStreamError> {
    let tries = READY_WITHIN.as_millis() / READY_PAUSE.as_millis();
    let mut why = String::new();
    for _ in 0..tries {
        match step().await {
            Ok(done) => return Ok(done),
            Err(Obstacle::Call(CallError::Passing(text))) => why = text,
            Err(Obstacle::Call(error)) => return Err(JetStreamError::Refused { why: error.to_string() }),
            Err(Obstacle::Lasting(error)) => return Err(error),
        }
        tokio::time::sleep(READY_PAUSE).await;
    }
    Err(JetStreamError::Refused { why })
}

async fn make_log(link: &Link, config: &JetStreamConfig) -> Result<String, Obstacle> {
    match link.info(&link.log).await {
        Ok(info) => {
            check_stream(&link.log, &info.config, config).map_err(Obstacle::Lasting)?;
            return Ok(info.id);
        }
        Err(error) if error.is_not_found() => {}
        Err(error) => return Err(Obstacle::Call(error)),
    }
    let mut wanted = stream(&link.log, &link.all_log_subjects(), config);
    wanted["discard"] = json!("new");
    wanted["deny_delete"] = json!(true);
    wanted["duplicate_window"] = json!(100_000_000);
    if let Some(of) = &config.copy_of {
        wanted["metadata"][COPY_OF] = json!(of);
    }
    if let Some(bytes) = config.bytes_max {
        wanted["max_bytes"] = json!(bytes);
    }
    let made = link.api(&format!("STREAM.CREATE.{}", link.log), &wanted).await;
    // Another node may have made it a moment ago: then it is there on the next look.
    match made {
        Ok(_) => Err(Obstacle::Call(CallError::Passing("the stream was just made".to_owned()))),
        Err(CallError::Refused { code: 10_058, .. }) => {
            Err(Obstacle::Call(CallError::Passing("the stream was made by another node".to_owned())))
        }
        Err(error) => Err(Obstacle::Call(error)),
    }
}

async fn make_images(link: &Link, config: &JetStreamConfig) -> Result<(), Obstacle> {
    match link.info(&link.images).await {
        Ok(info) => return check_stream(&link.images, &info.config, config).map_err(Obstacle::Lasting),
        Err(error) if error.is_not_found() => {}
        Err(error) => return Err(Obstacle::Call(error)),
    }
    let wanted = stream(&link.images, &link.all_image_subjects(), config);
    match link.api(&format!("STREAM.CREATE.{}", link.images), &wanted).await {
        Ok(_) => Ok(()),
        Err(CallError::Refused { code: 10_058, .. }) => {
            Err(Obstacle::Call(CallError::Passing("the stream was made by another node".to_owned())))
        }
        Err(error) => Err(Obstacle::Call(error)),
    }
}

fn stream(name: &str, subjects: &str, config: &JetStreamConfig) -> Value {
    json!({
        "name": name,
        "subjects": [subjects],
        "storage": "file",
        "num_replicas": config.replicas,
        "retention": "limits",
        "max_age": 0,
        "max_msgs": -1,
        "max_bytes": -1,
        "allow_direct": true,
        "metadata": {
            "forebay_format": FORMAT,
            "forebay_cluster": config.cluster,
            "forebay_id": format!("{:016x}", config.claimant.start),
        },
    })
}

/// Whether a stream that exists is ours and keeps records until it is told to let them go.
fn check_stream(name: &str, found: &Value, config: &JetStreamConfig) -> Result<(), JetStreamError> {
    let other = |why: &str| JetStreamError::OtherStream { stream: name.to_owned(), why: why.to_owned() };
    let about = &found["metadata"];
    if about["forebay_cluster"].as_str() != Some(&config.cluster) {
        return Err(other("its metadata does not name the cluster"));
    }
    if about["forebay_format"].as_str() != Some(FORMAT) {
        return Err(other("its format is of another release"));
    }
    let is_log = found["subjects"][0].as_str().is_some_and(|subject| subject.starts_with("fb."));
    let stream = name.to_owned();
    match (about[COPY_OF].as_str(), &config.copy_of) {
        _ if !is_log => {}
        (None, None) => {}
        (Some(of), None) => return Err(JetStreamError::Unfinished { stream, of: of.to_owned() }),
        (of, Some(wanted)) if of == Some(wanted) => {}
        (_, Some(_)) => return Err(JetStreamError::NotEmpty { stream }),
    }
    let none = |value: &Value| value.as_i64().is_none_or(|value| value <= 0);
    if found["storage"] != "file" || found["retention"] != "limits" {
        return Err(other("it must have storage `file` and retention `limits`"));
    }
    if !none(&found["max_age"]) || !none(&found["max_msgs"]) || !none(&found["max_msgs_per_subject"]) {
        return Err(other("it must not have max_age, max_msgs or max_msgs_per_subject"));
    }
    if found["persist_mode"] == "async" {
        return Err(other("it must not have persist_mode `async`"));
    }
    if is_log && found["discard"] != "new" {
        return Err(other("it must have discard `new`, or a full stream deletes records"));
    }
    Ok(())
}

/// Asks the monitoring port of every server that keeps the log whether it syncs before it acknowledges.
async fn check_sync(link: &Link, config: &JetStreamConfig) -> Result<(), JetStreamError> {
    let mut proven = Vec::new();
    for address in &config.monitors {
        let no_monitor = |why: String| JetStreamError::NoMonitor { address: address.clone(), why };
        let about = monitor(address).await.map_err(no_monitor)?;
        let name = about["server_name"].as_str().unwrap_or_default().to_owned();
        if about["jetstream"]["config"]["sync_always"] != true {
            return Err(JetStreamError::NotSynced { server: name });
        }
        proven.push(name);
    }
    if proven.is_empty() {
        return Err(JetStreamError::NotProven { server: link.wire().about().name });
    }
    let info =
        link.info(&link.log).await.map_err(|error| JetStreamError::Refused { why: error.to_string() })?;
    match info.servers.into_iter().find(|server| !proven.contains(&server.name)) {
        Some(server) => Err(JetStreamError::NotProven { server: server.name }),
        None => Ok(()),
    }
}

/// The answer of `/varz`.
async fn monitor(address: &str) -> Result<Value, String> {
    let host = address.strip_prefix("http://").unwrap_or(address);
    let host = host.split('/').next().unwrap_or(host);
    let ask = async {
        let mut stream = TcpStream::connect(host).await?;
        let request = format!("GET /varz HTTP/1.0\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(4 << 20).read_to_end(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = tokio::time::timeout(MONITOR_ANSWERS_WITHIN, ask).await;
    let answer = answer.map_err(|_| "it does not answer".to_owned())?.map_err(|error| error.to_string())?;
    let body = answer.windows(4).position(|window| window == b"\r\n\r\n").map(|at| &answer[at + 4..]);
    let body = body.filter(|_| answer.starts_with(b"HTTP/1.") && answer[8..].starts_with(b" 200"));
    let body = body.ok_or_else(|| "its answer to /varz is not understood".to_owned())?;
    serde_json::from_slice(body).map_err(|error| format!("its answer to /varz is not understood: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_number() {
        assert_eq!(version("2.15.1"), Some((2, 15)));
        assert_eq!(version("2.9.10"), Some((2, 9)));
        assert_eq!(version("2.14.0-RC.1"), Some((2, 14)));
        assert_eq!(version("nightly"), None);
        assert!(version("2.9.10") < Some(VERSION_MIN));
    }

    #[test]
    fn a_password_is_not_shown() {
        assert_eq!(without_password("nats://user:secret@10.0.0.1:4222"), "nats://10.0.0.1:4222");
        assert_eq!(without_password("user:secret@10.0.0.1:4222"), "10.0.0.1:4222");
        assert_eq!(without_password("tls://10.0.0.1"), "tls://10.0.0.1");
    }

    #[test]
    fn names_are_safe_in_subjects() {
        for good in ["a", "orders-eu_1"] {
            assert!(check_name(good, 32).is_ok(), "{good}");
        }
        for bad in ["", "a.b", "a b", "a*", ">", "Ü", &"x".repeat(33)] {
            assert!(check_name(bad, 32).is_err(), "{bad}");
        }
    }
}
