//! The rows of the Kurrent door, over gRPC and over HTTP, and of KEDA's scaler.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use axum::http::{Method, Request, StatusCode};
use bytes::Bytes;
use forebay_broker::api::CredentialKind;
use forebay_wire::keda;
use forebay_wire::kurrent::client::{
    Empty, MetadataEntry, StreamIdentifier, StreamOptions, Uuid, UuidOption, stream_options, uuid,
    uuid_option,
};
use forebay_wire::kurrent::{persistent_subscriptions as subscriptions, streams};
use http_body_util::Full;
use prost::Message as _;
use tokio::net::TcpListener;

use super::client::{Answer, over_http1, over_http2, whole_over_http2};
use super::{Credential, Needs, Outcome, Stage, TABLE, expected, native, needs};
use crate::kit::identity::Anonymous;
use crate::kurrent::{KurrentConfig, http_routes, serve};

const PREFIX: &str = "kurrent ";
const KEDA: &str = "keda ";
const EVENT: &str = "6b0b7a0c-3c5f-4b6e-9d41-0d3f2b6f3a11";
/// The services, with the file that declares each.
const SERVICES: [(&str, &str); 4] = [
    ("event_store.client.streams.Streams", include_str!("../../../../../proto/kurrent/streams.proto")),
    (
        "event_store.client.persistent_subscriptions.PersistentSubscriptions",
        include_str!("../../../../../proto/kurrent/persistent.proto"),
    ),
    (
        "event_store.client.server_features.ServerFeatures",
        include_str!("../../../../../proto/kurrent/serverfeatures.proto"),
    ),
    ("event_store.client.gossip.Gossip", include_str!("../../../../../proto/kurrent/gossip.proto")),
];

/// A door that asks for credentials.
pub(super) async fn prepare(of: &Stage) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let config = KurrentConfig { anonymous: Anonymous::Refused, ..KurrentConfig::new([7; 16]) };
    tokio::spawn(serve(of.broker.entrance(), listener, of.broker.stopping(), config));
    address
}

/// The calls that a file declares.
fn declared(proto: &str) -> Vec<&str> {
    let calls = proto.lines().filter_map(|line| line.trim().strip_prefix("rpc "));
    calls.filter_map(|line| line.split('(').next()).collect()
}

/// The last word of a service, and a call.
fn row_of(service: &str, call: &str) -> String {
    format!("{PREFIX}{}.{call}", service.rsplit('.').next().unwrap_or_default())
}

fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("it is short").to_be_bytes();
    [&[0], &length[..], message].concat()
}

fn work() -> Option<StreamIdentifier> {
    Some(StreamIdentifier { stream_name: b"work".to_vec().into() })
}

fn ids_as_text() -> Option<UuidOption> {
    Some(UuidOption { content: Some(uuid_option::Content::String(Empty {})) })
}

fn write_options() -> streams::WriteOptions {
    let expected = Some(streams::write_options::Expected::Any(Empty {}));
    streams::WriteOptions { stream_identifier: work(), expected, ..Default::default() }
}

fn event() -> streams::ProposedMessage {
    let id = Uuid { value: Some(uuid::Value::String(EVENT.to_owned())) };
    let metadata = [("type", "t"), ("content-type", "application/json")];
    let metadata = metadata.map(|(name, value)| MetadataEntry::new(name, value)).into();
    streams::ProposedMessage { id: Some(id), metadata, data: b"{}".to_vec().into(), ..Default::default() }
}

/// Everything that a client sends.
fn message_of(row: &str) -> Vec<u8> {
    let team = || "team".to_owned();
    let whole = |message: Vec<u8>| framed(&message);
    let settings = || {
        Some(subscriptions::create_req::Settings {
            max_retry_count: 10,
            min_checkpoint_count: 10,
            max_checkpoint_count: 1_000,
            live_buffer_size: 500,
            read_batch_size: 20,
            history_buffer_size: 500,
            message_timeout: Some(subscriptions::create_req::settings::MessageTimeout::MessageTimeoutMs(
                30_000,
            )),
            checkpoint_after: Some(subscriptions::create_req::settings::CheckpointAfter::CheckpointAfterMs(
                2_000,
            )),
            ..Default::default()
        })
    };
    let arrange = |group: &str| {
        let start = Some(stream_options::RevisionOption::Start(Empty {}));
        let of = StreamOptions { stream_identifier: work(), revision_option: start };
        let options = subscriptions::create_req::Options {
            stream_option: Some(subscriptions::create_req::options::StreamOption::Stream(of)),
            group_name: group.to_owned(),
            settings: settings(),
            ..Default::default()
        };
        whole(subscriptions::CreateReq { options: Some(options) }.encode_to_vec())
    };
    match &row[PREFIX.len()..] {
        "Streams.Read" => {
            let start = Some(stream_options::RevisionOption::Start(Empty {}));
            let of = StreamOptions { stream_identifier: work(), revision_option: start };
            let options = streams::read_req::Options {
                stream_option: Some(streams::read_req::options::StreamOption::Stream(of)),
                count_option: Some(streams::read_req::options::CountOption::Count(10)),
                filter_option: Some(streams::read_req::options::FilterOption::NoFilter(Empty {})),
                uuid_option: ids_as_text(),
                ..Default::default()
            };
            whole(streams::ReadReq { options: Some(options) }.encode_to_vec())
        }
        "Streams.Append" => {
            let options = streams::append_req::Content::Options(write_options());
            let event = streams::append_req::Content::ProposedMessage(event());
            let sent = [options, event].map(|content| streams::AppendReq { content: Some(content) });
            sent.iter().flat_map(|request| framed(&request.encode_to_vec())).collect()
        }
        "Streams.BatchAppend" => {
            let request = streams::BatchAppendReq {
                correlation_id: Some(Uuid { value: Some(uuid::Value::String(EVENT.to_owned())) }),
                options: Some(write_options()),
                proposed_messages: vec![event()],
                is_final: true,
            };
            whole(request.encode_to_vec())
        }
        "Streams.Delete" | "Streams.Tombstone" => {
            whole(streams::DeleteReq { options: Some(write_options()) }.encode_to_vec())
        }
        "PersistentSubscriptions.Create" => arrange("new"),
        "PersistentSubscriptions.Update" => arrange("team"),
        "PersistentSubscriptions.Delete" => {
            let of = work().map(subscriptions::delete_req::options::StreamOption::StreamIdentifier);
            let options = subscriptions::delete_req::Options { group_name: team(), stream_option: of };
            whole(subscriptions::DeleteReq { options: Some(options) }.encode_to_vec())
        }
        "PersistentSubscriptions.Read" => {
            let of = work().map(subscriptions::read_req::options::StreamOption::StreamIdentifier);
            let options = subscriptions::read_req::Options {
                group_name: team(),
                stream_option: of,
                buffer_size: 1,
                uuid_option: ids_as_text(),
            };
            let content = Some(subscriptions::read_req::Content::Options(options));
            whole(subscriptions::ReadReq { content }.encode_to_vec())
        }
        "PersistentSubscriptions.GetInfo" => {
            let of = work().map(subscriptions::get_info_req::options::StreamOption::StreamIdentifier);
            let options = subscriptions::get_info_req::Options { group_name: team(), stream_option: of };
            whole(subscriptions::GetInfoReq { options: Some(options) }.encode_to_vec())
        }
        "PersistentSubscriptions.ReplayParked" | "PersistentSubscriptions.TruncateParked" => {
            let of = work().map(subscriptions::replay_parked_req::options::StreamOption::StreamIdentifier);
            let all = subscriptions::replay_parked_req::options::StopAtOption::NoLimit(Empty {});
            let options = subscriptions::replay_parked_req::Options {
                group_name: team(),
                stream_option: of,
                stop_at_option: Some(all),
            };
            whole(subscriptions::ReplayParkedReq { options: Some(options) }.encode_to_vec())
        }
        "PersistentSubscriptions.List" => {
            let all = subscriptions::list_req::options::ListOption::ListAllSubscriptions(Empty {});
            let options = subscriptions::list_req::Options { list_option: Some(all) };
            whole(subscriptions::ListReq { options: Some(options) }.encode_to_vec())
        }
        "PersistentSubscriptions.RestartSubsystem" | "ServerFeatures.GetSupportedMethods" | "Gossip.Read" => {
            whole(Empty {}.encode_to_vec())
        }
        other => panic!("no request for {other}"),
    }
}

fn scaler_message(call: &str) -> Vec<u8> {
    let metadata = [("stream", "work"), ("group", "team")];
    let scaler_metadata = metadata.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let of = keda::ScaledObjectRef { scaler_metadata, ..Default::default() };
    framed(&match call {
        "GetMetrics" => {
            keda::GetMetricsRequest { scaled_object_ref: Some(of), ..Default::default() }.encode_to_vec()
        }
        _ => of.encode_to_vec(),
    })
}

async fn over_grpc(
    of: &Stage,
    address: SocketAddr,
    path: &str,
    body: Vec<u8>,
    credential: Credential,
) -> (Outcome, Answer) {
    let request = Request::post(format!("http://{address}/{path}"));
    let mut request = request.header("content-type", "application/grpc").header("te", "trailers");
    if let Some((_, token)) = of.credential(credential) {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let answer = over_http2(address, request.body(Full::new(Bytes::from(body))).expect("a request")).await;
    assert_eq!(answer.status, StatusCode::OK, "{path}");
    let outcome = match answer.headers.get("grpc-status").and_then(|status| status.to_str().ok()) {
        Some("16") => Outcome::Unknown,
        Some("7") => Outcome::Denied,
        Some(code @ ("2" | "12" | "13")) => panic!("{path} with {credential:?}: {code} {:?}", answer.headers),
        // A write that is refused does not end its call.
        _ if path.ends_with("/BatchAppend") => {
            let reply = streams::BatchAppendResp::decode(&answer.body[5..]).expect("a reply");
            match reply.result {
                Some(streams::batch_append_resp::Result::Error(error)) => {
                    assert_eq!(error.code, 7, "{error:?}");
                    Outcome::Denied
                }
                _ => Outcome::Allowed,
            }
        }
        _ => Outcome::Allowed,
    };
    (outcome, answer)
}

/// Plays one row, and sees that refused calls leave everything as it was.
async fn play(row: &str, needs: Needs, of: &Stage, make: impl AsyncFn(Credential) -> (Outcome, Answer)) {
    let before = of.state().await;
    for credential in Credential::ALL {
        let (outcome, answer) = make(credential).await;
        let said = String::from_utf8_lossy(&answer.body).into_owned();
        let why = answer.headers.get("grpc-message");
        assert_eq!(outcome, expected(needs, credential), "{row} with {credential:?}: {said} {why:?}");
        if needs == Needs::Seen && outcome == Outcome::Allowed {
            assert_eq!(said.contains("work"), credential == Credential::Right, "{row}: {said}");
        }
        if credential != Credential::Right {
            assert_eq!(of.state().await, before, "{row} with {credential:?} has changed something");
        }
    }
    of.broker.stop();
}

#[tokio::test]
async fn every_call_of_kurrent_over_grpc() {
    for (service, proto) in SERVICES {
        for call in declared(proto) {
            let row = row_of(service, call);
            let of = Stage::open(CredentialKind::Token, needs(&row)).await;
            native::prepare(&of).await;
            let address = prepare(&of).await;
            let (path, body) = (format!("{service}/{call}"), message_of(&row));
            let make = async |credential| over_grpc(&of, address, &path, body.clone(), credential).await;
            play(&row, needs(&row), &of, make).await;
        }
    }
}

/// A subscription and a consumer of a persistent one end within a second after their token was revoked.
#[tokio::test]
async fn a_revoked_token_ends_subscriptions() {
    let of_stream = StreamOptions {
        stream_identifier: work(),
        revision_option: Some(stream_options::RevisionOption::Start(Empty {})),
    };
    let options = streams::read_req::Options {
        stream_option: Some(streams::read_req::options::StreamOption::Stream(of_stream)),
        count_option: Some(streams::read_req::options::CountOption::Subscription(Empty {})),
        filter_option: Some(streams::read_req::options::FilterOption::NoFilter(Empty {})),
        uuid_option: ids_as_text(),
        ..Default::default()
    };
    let subscribe = framed(&streams::ReadReq { options: Some(options) }.encode_to_vec());
    let persistent = message_of("kurrent PersistentSubscriptions.Read");
    for (path, first) in [
        ("event_store.client.streams.Streams/Read", subscribe),
        ("event_store.client.persistent_subscriptions.PersistentSubscriptions/Read", persistent),
    ] {
        let of = &Stage::open(CredentialKind::Token, Needs::Grants("consume+read:work")).await;
        native::prepare(of).await;
        let address = prepare(of).await;
        let (_, token) = of.credential(Credential::Right).expect("a token");
        let request = Request::post(format!("http://{address}/{path}"));
        let request = request.header("content-type", "application/grpc").header("te", "trailers");
        let request = request.header("authorization", format!("Bearer {token}"));
        let begun = Instant::now();
        let running = async {
            whole_over_http2(address, request, first).await;
            begun.elapsed()
        };
        let revoke = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            of.owner.revoke_credential(&of.right.report.id).await.expect("it is revoked");
        };
        let (ran, ()) = tokio::join!(tokio::time::timeout(Duration::from_secs(20), running), revoke);
        let ran = ran.unwrap_or_else(|_| panic!("{path} goes on"));
        assert!(ran >= Duration::from_millis(190), "{path} ended by itself after {ran:?}");
        assert!(ran < Duration::from_millis(1_200), "{path} ended {ran:?} after it began");
        of.broker.stop();
    }
}

#[tokio::test]
async fn every_call_of_the_scaler() {
    let calls = declared(include_str!("../../../../../proto/keda/externalscaler.proto"));
    for call in &calls {
        let row = format!("{KEDA}{call}");
        let of = Stage::open(CredentialKind::Token, needs(&row)).await;
        let address = native::prepare(&of).await;
        let (path, body) = (format!("externalscaler.ExternalScaler/{call}"), scaler_message(call));
        let make = async |credential| over_grpc(&of, address, &path, body.clone(), credential).await;
        play(&row, needs(&row), &of, make).await;
    }
    let rows = TABLE.iter().filter_map(|(row, _)| row.strip_prefix(KEDA));
    assert_eq!(rows.collect::<BTreeSet<_>>(), calls.into_iter().collect(), "the table has every call");
}

/// Method, path and query, and body.
fn http_request(row: &str) -> (Method, String, &'static str) {
    let (method, path) = row.split_once(' ').expect("a method and a path");
    let group = if method == "PUT" { "new" } else { "team" };
    let mut path = path.replace("{stream}", "work").replace("{group}", group);
    path = path.replace("{id}", EVENT).replace("{count}", "1").replace("{event}", "head");
    if path.ends_with("/ack") || path.ends_with("/nack") {
        path.push_str(&format!("?ids={EVENT}"));
    }
    let body = match (method, path.as_str()) {
        ("POST", "/streams/work") => {
            r#"[{"eventId":"6b0b7a0c-3c5f-4b6e-9d41-0d3f2b6f3a11","eventType":"t","data":{}}]"#
        }
        ("PUT", _) | ("POST", "/subscriptions/work/team") => "{}",
        _ => "",
    };
    (method.parse().expect("a method"), path, body)
}

async fn over_http(of: &Stage, address: SocketAddr, row: &str, credential: Credential) -> (Outcome, Answer) {
    let (method, path, body) = http_request(row);
    let content_type = match path.as_str() {
        "/streams/work" => "application/vnd.eventstore.events+json",
        _ => "application/json",
    };
    let request = Request::builder().method(method).uri(path).header("host", "localhost");
    let mut request = request.header("content-type", content_type);
    if let Some((_, token)) = of.credential(credential) {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let answer = over_http1(address, request.body(Full::new(Bytes::from(body))).expect("a request")).await;
    let outcome = match answer.status {
        // The protocol has one status for both. A client that is not known is asked for a credential.
        StatusCode::UNAUTHORIZED if answer.headers.contains_key("www-authenticate") => Outcome::Unknown,
        StatusCode::UNAUTHORIZED => Outcome::Denied,
        status => {
            assert!(!status.is_server_error(), "{row}: {}", String::from_utf8_lossy(&answer.body));
            Outcome::Allowed
        }
    };
    (outcome, answer)
}

fn http_rows() -> impl Iterator<Item = (&'static str, Needs)> {
    let rows = TABLE.iter().filter_map(|(row, needs)| Some((row.strip_prefix(PREFIX)?, *needs)));
    rows.filter(|(row, _)| row.contains(" /"))
}

#[tokio::test]
async fn every_call_of_kurrent_over_http() {
    for (row, needs) in http_rows() {
        let of = Stage::open(CredentialKind::Token, needs).await;
        native::prepare(&of).await;
        let address = prepare(&of).await;
        play(row, needs, &of, async |credential| over_http(&of, address, row, credential).await).await;
    }
}

#[test]
fn the_table_has_every_call_of_kurrent() {
    let known: BTreeSet<String> = SERVICES
        .iter()
        .flat_map(|(service, proto)| declared(proto).into_iter().map(|call| row_of(service, call)))
        .collect();
    let rows = TABLE.iter().map(|(row, _)| *row).filter(|row| row.starts_with(PREFIX) && !row.contains('/'));
    assert_eq!(rows.map(str::to_owned).collect::<BTreeSet<_>>(), known);
    let (route_name, routes) = http_routes();
    let subscriptions = http_rows().filter(|(row, _)| row.contains("/subscriptions"));
    let named: BTreeSet<&str> = subscriptions
        .map(|(row, _)| {
            let (method, path, _) = http_request(row);
            let path = path.split('?').next().unwrap_or_default();
            route_name(&method, path).unwrap_or_else(|| panic!("there is no call {row}"))
        })
        .collect();
    assert_eq!(named.len(), routes, "{named:?}");
}

/// A client without rights learns nothing of a stream, whatever it says that it expects.
#[tokio::test]
async fn expectations_of_a_stream_tell_nothing_without_a_right() {
    let of = Stage::open(CredentialKind::Token, Needs::Grants("publish:other")).await;
    native::prepare(&of).await;
    let address = prepare(&of).await;
    for stream in ["work", "nowhere"] {
        for version in ["-1", "-2", "-4", "7"] {
            let (_, token) = of.credential(Credential::Right).expect("a token");
            let request = Request::post(format!("/streams/{stream}")).header("host", "localhost");
            let request = request.header("content-type", "application/json").header("es-eventtype", "t");
            let request = request.header("es-expectedversion", version).header("es-eventid", EVENT);
            let request = request.header("authorization", format!("Bearer {token}"));
            let request = request.body(Full::new(Bytes::from("{}"))).expect("a request");
            let answer = over_http1(address, request).await;
            let said = String::from_utf8_lossy(&answer.body).into_owned();
            assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{stream} {version}: {said}");
            assert!(!answer.headers.contains_key("es-currentversion"), "{stream} {version}");
        }
    }
    of.broker.stop();
}
