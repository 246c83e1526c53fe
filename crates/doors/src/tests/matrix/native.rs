//! The rows of HTTP and gRPC.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};

use axum::http::{Request, StatusCode};
use bytes::Bytes;
use forebay_broker::api::{BatchBuilder, CredentialKind, Message, PublishOptions, Receive, Verb};
use forebay_wire::v1;
use http_body_util::Full;
use prost::Message as _;
use tokio::net::TcpListener;

use super::client::{Answer, over_http1, over_http2};
use super::{Credential, Needs, Outcome, Stage, TABLE, expected, group, is_native, needs, stream};
use crate::kit::identity::Anonymous;
use crate::native::tests::calls;
use crate::native::{NativeConfig, serve_with};

/// The stream `work` with two messages and the group `team`, for which the first is parked; and the stream `other`.
pub(super) async fn prepare(of: &Stage) -> SocketAddr {
    let owner = &of.owner;
    for name in ["work", "other"] {
        owner.create_group(stream(name), group("team"), |_| {}).await.expect("it is created");
        for body in ["one", "two"] {
            let mut batch = BatchBuilder::with_capacity(1, 100);
            batch.push(&Message { body: body.as_bytes(), ..Message::default() });
            let batch = batch.build();
            let name = std::sync::Arc::new(stream(name));
            let room = owner.broker().room(&name, &batch).await;
            owner.publish(room, name, batch, PublishOptions::default()).await.expect("it is stored");
        }
        let request = Receive { max: 1, ..Receive::default() };
        let received = owner.receive(stream(name), group("team"), request).await.expect("a message").take();
        let leases: Vec<String> = received.into_iter().map(|(lease, _)| lease).collect();
        owner.settle(stream(name), group("team"), &leases, Verb::Park.into()).await.expect("it is parked");
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let config = NativeConfig { anonymous: Anonymous::Refused, ..NativeConfig::default() };
    tokio::spawn(serve_with(of.broker.entrance(), listener, of.broker.stopping(), config));
    address
}

fn authorization(of: &Stage, credential: Credential) -> Option<String> {
    of.credential(credential).map(|(_, token)| format!("Bearer {token}"))
}

/// Method and path of a row, with the names of things in it, and a body.
fn http_request(call: &str) -> (String, String, &'static str) {
    let (method, path) = call.split_once(' ').expect("a method and a path");
    let (id, group) =
        if call == "PUT /streams/{stream}/groups/{group}" { ("none", "new") } else { ("none", "team") };
    let mut path = path.replace("{stream}", "work").replace("{group}", group).replace("{id}", id);
    path = path
        .replace("{seq}", "1")
        .replace("{job}", "1")
        .replace("{kind}", "denied")
        .replace("{connection}", "none");
    if call == "DELETE /streams/{stream}" {
        path.push_str("?force=true");
    }
    let body = match call.rsplit('/').next().expect("a last part") {
        "messages" if method == "POST" => r#"{"messages":[{"body":"x"}]}"#,
        "reset" => r#"{"to":"end"}"#,
        "truncate" => r#"{"before":2}"#,
        "transactions" => {
            r#"{"settle":[{"stream":"work","group":"team","leases":["x"]}],
                "publish":[{"stream":"work","messages":[{"body":"x"}]}]}"#
        }
        "ack" | "nack" => r#"{"leases":["x"]}"#,
        "extend" => r#"{"leases":["x"],"by":"1s"}"#,
        "replay" | "discard" => r#"{"all":true}"#,
        "move" => r#"{"all":true,"to":"other"}"#,
        "credentials" if method == "POST" => r#"{"kind":"token","name":"new","grants":"publish:a"}"#,
        _ if matches!(method, "GET" | "DELETE") => "",
        _ => "{}",
    };
    (method.to_owned(), path, body)
}

async fn over_http(of: &Stage, address: SocketAddr, call: &str, credential: Credential) -> (Outcome, Answer) {
    let (method, path, body) = http_request(call);
    let mut request = Request::builder().method(&*method).uri(path).header("host", "localhost");
    if let Some(value) = authorization(of, credential) {
        request = request.header("authorization", value);
    }
    if !body.is_empty() {
        request = request.header("content-type", "application/json");
    }
    let request = request.body(Full::new(Bytes::from(body))).expect("a request");
    let answer = over_http1(address, request).await;
    let outcome = match answer.status {
        StatusCode::UNAUTHORIZED => Outcome::Unknown,
        StatusCode::FORBIDDEN => Outcome::Denied,
        status => {
            assert!(!status.is_server_error(), "{call}: {}", String::from_utf8_lossy(&answer.body));
            Outcome::Allowed
        }
    };
    (outcome, answer)
}

/// Plays one row, and sees that refused calls leave everything as it was.
async fn play(
    call: &str,
    needs: Needs,
    make: impl AsyncFn(SocketAddr, Credential) -> (Outcome, Answer),
    of: &Stage,
    address: SocketAddr,
) {
    let before = of.state().await;
    for credential in Credential::ALL {
        let (outcome, answer) = make(address, credential).await;
        let said = String::from_utf8_lossy(&answer.body).into_owned();
        assert_eq!(outcome, expected(needs, credential), "{call} with {credential:?}: {said}");
        if needs == Needs::Seen && outcome == Outcome::Allowed {
            // As JSON writes a name, and as protobuf does.
            let sees = said.contains("\"stream\":\"work\"") || said.contains("\u{a}\u{4}work");
            assert_eq!(sees, credential == Credential::Right, "{call} with {credential:?}: {said}");
        }
        if credential != Credential::Right {
            assert_eq!(of.state().await, before, "{call} with {credential:?} has changed something");
        }
    }
}

#[tokio::test]
async fn every_call_over_http() {
    for (call, needs) in TABLE.iter().filter(|(call, _)| is_native(call) && call.contains('/')) {
        let of = &Stage::open(CredentialKind::Token, *needs).await;
        let address = prepare(of).await;
        let make = async |address, credential| {
            let (outcome, answer) = over_http(of, address, call, credential).await;
            let other = call.replace("/streams/{stream}/groups/{group}", "/subscriptions/{stream}/{group}");
            if other != *call && outcome != Outcome::Allowed {
                let (also, _) = over_http(of, address, &other, credential).await;
                assert_eq!(also, outcome, "{other} with {credential:?}");
            }
            (outcome, answer)
        };
        play(call, *needs, make, of, address).await;
        of.broker.stop();
    }
}

#[allow(clippy::needless_update, reason = "some requests have no further fields")]
fn message_of(call: &str) -> Vec<u8> {
    macro_rules! of {
        ($request:ident $(, $field:ident: $value:expr)*) => {
            v1::$request { $($field: $value.into(),)* ..Default::default() }.encode_to_vec()
        };
    }
    let (work, team) = ("work", "team");
    let all = v1::parked_job_request::Select::All(true);
    let end = v1::Start { at: Some(v1::start::At::End(true)) };
    match call {
        "Publish" => {
            let message = v1::Message { body: b"x".to_vec().into(), ..Default::default() };
            of!(PublishRequest, stream: work, messages: vec![message], ticket: 1u64)
        }
        "PublishOnce" => {
            let message = v1::Message { body: b"x".to_vec().into(), ..Default::default() };
            of!(PublishRequest, stream: work, messages: vec![message])
        }
        "Commit" => {
            let settle = v1::SettleRequest {
                stream: work.into(),
                group: team.into(),
                leases: vec!["x".to_owned()],
                action: v1::settlement::Action::Ack.into(),
                ..Default::default()
            };
            let message = v1::Message { body: b"x".to_vec().into(), ..Default::default() };
            let publish =
                v1::Publication { stream: work.into(), messages: vec![message], ..Default::default() };
            of!(CommitRequest, settle: vec![settle], publish: vec![publish])
        }
        "Consume" => {
            let consumer = "running".into();
            let open = v1::Open {
                stream: work.into(),
                group: team.into(),
                consumer,
                credit: 1,
                ..Default::default()
            };
            of!(ConsumeRequest, open: Some(open))
        }
        "Receive" => of!(ReceiveRequest, stream: work, group: team, max: 1u32),
        "Settle" => {
            let leases = vec!["x".to_owned()];
            of!(SettleRequest, stream: work, group: team, leases: leases, action: v1::settlement::Action::Ack)
        }
        "CreateStream" => of!(CreateStreamRequest, stream: work),
        "UpdateStream" => of!(UpdateStreamRequest, stream: work),
        "GetStream" => of!(GetStreamRequest, stream: work),
        "ListStreams" => of!(ListStreamsRequest),
        "DeleteStream" => of!(DeleteStreamRequest, stream: work, force: true),
        "PurgeStream" => of!(PurgeStreamRequest, stream: work),
        "TruncateStream" => of!(TruncateStreamRequest, stream: work, before: 2u64),
        "ReadMessages" => of!(ReadMessagesRequest, stream: work),
        "FollowStream" => of!(FollowStreamRequest, stream: work),
        "ReadLog" => of!(ReadLogRequest),
        "FollowLog" => of!(FollowLogRequest),
        "CreateGroup" => of!(CreateGroupRequest, stream: work, group: "new"),
        "UpdateGroup" => of!(UpdateGroupRequest, stream: work, group: team),
        "GetGroup" => of!(GetGroupRequest, stream: work, group: team),
        "ListGroups" => of!(ListGroupsRequest),
        "DeleteGroup" => of!(DeleteGroupRequest, stream: work, group: team),
        "PauseGroup" => of!(PauseGroupRequest, stream: work, group: team),
        "ResumeGroup" => of!(ResumeGroupRequest, stream: work, group: team),
        "ResetGroup" => of!(ResetGroupRequest, stream: work, group: team, to: Some(end)),
        "GetScaling" => of!(GetScalingRequest, stream: work, group: team),
        "ListParked" => of!(ListParkedRequest, stream: work, group: team),
        "GetParked" => of!(GetParkedRequest, stream: work, group: team, seq: 1u64),
        "ListParkedReasons" => of!(ListParkedReasonsRequest, stream: work, group: team),
        "ReplayParked" | "DiscardParked" => {
            of!(ParkedJobRequest, stream: work, group: team, select: Some(all))
        }
        "MoveParked" => of!(ParkedJobRequest, stream: work, group: team, select: Some(all), to: "other"),
        "ResubmitParked" => {
            let message = Some(v1::Message::default());
            of!(ResubmitParkedRequest, stream: work, group: team, seq: 1u64, message: message)
        }
        "ListJobs" => of!(ListJobsRequest, stream: work, group: team),
        "GetJob" => of!(GetJobRequest, stream: work, group: team, job: 1u32),
        "CancelJob" => of!(CancelJobRequest, stream: work, group: team, job: 1u32),
        "CreateCredential" => {
            of!(CreateCredentialRequest, kind: v1::CredentialKind::Token, name: "new", grants: "publish:a")
        }
        "ListCredentials" => of!(ListCredentialsRequest),
        "ChangePassword" => of!(ChangePasswordRequest, id: "none"),
        "RevokeCredential" => of!(RevokeCredentialRequest, id: "none"),
        other => panic!("no request for {other}"),
    }
}

async fn over_grpc(of: &Stage, address: SocketAddr, call: &str, credential: Credential) -> (Outcome, Answer) {
    let message = message_of(call);
    let length = u32::try_from(message.len()).expect("it is short").to_be_bytes();
    let frame = [&[0], &length[..], &message].concat();
    let uri = format!("http://{address}/forebay.v1.Forebay/{call}");
    let mut request = Request::post(uri).header("content-type", "application/grpc").header("te", "trailers");
    if let Some(value) = authorization(of, credential) {
        request = request.header("authorization", value);
    }
    let answer = over_http2(address, request.body(Full::new(Bytes::from(frame))).expect("a request")).await;
    assert_eq!(answer.status, StatusCode::OK, "{call}");
    let status = answer.headers.get("grpc-status").and_then(|status| status.to_str().ok());
    let outcome = match status {
        Some("16") => Outcome::Unknown,
        Some("7") => Outcome::Denied,
        Some(code @ ("2" | "12" | "13")) => panic!("{call} with {credential:?}: {code} {:?}", answer.headers),
        // A batch that is refused does not end its call.
        _ if call == "Publish" => {
            let reply = v1::PublishReply::decode(&answer.body[5..]).expect("a reply");
            let [confirmation] = &reply.confirmations[..] else { panic!("{call} has no answer") };
            match confirmation.problem.as_ref().map(v1::Problem::code) {
                None => Outcome::Allowed,
                Some(v1::problem::Code::Denied) => Outcome::Denied,
                Some(other) => panic!("{call}: {other:?}"),
            }
        }
        _ => Outcome::Allowed,
    };
    (outcome, answer)
}

#[tokio::test]
async fn every_call_over_grpc() {
    let rows = TABLE.iter().filter(|(call, _)| is_native(call) && !call.contains('/'));
    for (call, needs) in rows {
        let of = &Stage::open(CredentialKind::Token, *needs).await;
        let address = prepare(of).await;
        let make = async |address, credential| over_grpc(of, address, call, credential).await;
        play(call, *needs, make, of, address).await;
        of.broker.stop();
    }
}

#[test]
fn the_table_has_every_call_of_the_native_api() {
    let (http, grpc) = calls();
    let known: BTreeSet<String> = http.into_iter().chain(grpc).collect();
    for call in &known {
        needs(call);
    }
    for (call, _) in TABLE.iter().filter(|(call, _)| is_native(call)) {
        assert!(known.contains(*call), "there is no call {call}");
    }
}

/// A consumer, a follower, a long poll: each ends within a second after its token was revoked.
#[tokio::test]
async fn a_revoked_token_ends_what_runs_in_its_name() {
    use std::time::{Duration, Instant};
    for call in [
        "Consume",
        "FollowStream",
        "GET /streams/{stream}/follow",
        "POST /streams/{stream}/groups/{group}/receive",
    ] {
        let of = &Stage::open(CredentialKind::Token, Needs::Grants("consume+read:work")).await;
        let address = prepare(of).await;
        // Nothing is left that a long poll could be answered with.
        let request = Receive { max: 10, ..Receive::default() };
        let taken = of.owner.receive(stream("work"), group("team"), request).await.expect("messages").take();
        let token = authorization(of, Credential::Right).expect("a token");
        let running = async {
            let begun = Instant::now();
            if call.contains('/') {
                let (method, path, _) = http_request(call);
                let request = Request::builder().method(&*method).uri(path).header("host", "localhost");
                let request =
                    request.header("authorization", &token).header("content-type", "application/json");
                let body = if method == "POST" { r#"{"wait":"60s"}"# } else { "" };
                let request = request.body(Full::new(Bytes::from(body))).expect("a request");
                super::client::whole_over_http1(address, request).await;
            } else {
                let message = message_of(call);
                let length = u32::try_from(message.len()).expect("it is short").to_be_bytes();
                let frame = [&[0], &length[..], &message].concat();
                let uri = format!("http://{address}/forebay.v1.Forebay/{call}");
                let request = Request::post(uri).header("content-type", "application/grpc");
                let request = request.header("te", "trailers").header("authorization", &token);
                super::client::whole_over_http2(address, request, frame).await;
            }
            begun.elapsed()
        };
        let revoke = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            of.owner.revoke_credential(&of.right.report.id).await.expect("it is revoked");
            Instant::now()
        };
        let (ran, _revoked) = tokio::join!(tokio::time::timeout(Duration::from_secs(20), running), revoke);
        let ran = ran.unwrap_or_else(|_| panic!("{call} goes on"));
        assert!(ran >= Duration::from_millis(190), "{call} ended by itself after {ran:?}");
        assert!(ran < Duration::from_millis(1_200), "{call} ended {ran:?} after it began");
        let report = of.owner.group(stream("work"), group("team")).await.expect("it is there");
        assert!(
            report.consumers.iter().all(|consumer| &*consumer.name != "running"),
            "{call} has left its group"
        );
        drop(taken);
        of.broker.stop();
    }
}
