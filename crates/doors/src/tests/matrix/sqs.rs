//! The rows of SQS.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, Method, Request};
use bytes::Bytes;
use forebay_broker::api::CredentialKind;
use http_body_util::Full;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::client::over_http1;
use super::{Credential, Needs, Outcome, Stage, TABLE, expected, needs};
use crate::kit::identity::Anonymous;
use crate::sqs::wire::protocol::{Action, Head};
use crate::sqs::wire::signature::{date_of, sign};
use crate::sqs::{SqsConfig, serve};

const ARN: &str = "arn:aws:sqs:us-east-1:000000000000:work";

pub(super) async fn call(
    of: &Stage,
    address: SocketAddr,
    key: Option<(&str, &str)>,
    action: &str,
    body: &Value,
) -> (u16, String) {
    let body = Bytes::from(body.to_string());
    let now = of.broker.clock().date();
    let mut headers = HeaderMap::new();
    headers.insert("host", address.to_string().parse().expect("a value"));
    headers.insert("content-type", "application/x-amz-json-1.0".parse().expect("a value"));
    headers.insert("x-amz-target", format!("AmazonSQS.{action}").parse().expect("a value"));
    headers.insert("x-amz-date", date_of(now).parse().expect("a value"));
    if let Some(key) = key {
        let head = Head { method: &Method::POST, path: "/", query: "", headers: &headers };
        let value = sign(now, key, &head, &body);
        headers.insert("authorization", value.parse().expect("a value"));
    }
    let mut request = Request::post("/").body(Full::new(body)).expect("a request");
    *request.headers_mut() = headers;
    let answer = over_http1(address, request).await;
    (answer.status.as_u16(), String::from_utf8_lossy(&answer.body).into_owned())
}

/// The queues `work` and `other`, and `source`, whose dead letters go to `work`.
pub(super) async fn prepare(of: &Stage) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let open = SqsConfig { anonymous: Anonymous::Owner, ..SqsConfig::new([7; 32]) };
    // Through a door of the owner's own: doors remember queues, so the one under test is opened after them.
    let first = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    let of_owner = first.local_addr().expect("an address");
    let owners = tokio::spawn(serve(of.broker.entrance(), first, std::future::pending(), open));
    let redrive = json!({ "deadLetterTargetArn": ARN, "maxReceiveCount": 3 }).to_string();
    for body in [
        json!({ "QueueName": "work" }),
        json!({ "QueueName": "other" }),
        json!({ "QueueName": "source", "Attributes": { "RedrivePolicy": redrive } }),
    ] {
        let (status, said) = call(of, of_owner, None, "CreateQueue", &body).await;
        assert_eq!(status, 200, "{said}");
    }
    owners.abort();
    let config = SqsConfig { anonymous: Anonymous::Refused, ..SqsConfig::new([7; 32]) };
    tokio::spawn(serve(of.broker.entrance(), listener, of.broker.stopping(), config));
    address
}

fn body_of(action: &str) -> Value {
    let url = "http://localhost/000000000000/work";
    let mut body = match action {
        "AddPermission" => {
            json!({ "Label": "l", "AWSAccountIds": ["123456789012"], "Actions": ["SendMessage"] })
        }
        "RemovePermission" => json!({ "Label": "none" }),
        "ChangeMessageVisibility" => json!({ "ReceiptHandle": "x", "VisibilityTimeout": 1 }),
        "ChangeMessageVisibilityBatch" => {
            json!({ "Entries": [{ "Id": "1", "ReceiptHandle": "x", "VisibilityTimeout": 1 }] })
        }
        "CreateQueue" => return json!({ "QueueName": "work", "Attributes": { "DelaySeconds": "0" } }),
        "DeleteMessage" => json!({ "ReceiptHandle": "x" }),
        "DeleteMessageBatch" => json!({ "Entries": [{ "Id": "1", "ReceiptHandle": "x" }] }),
        "GetQueueAttributes" => json!({ "AttributeNames": ["All"] }),
        "GetQueueUrl" => return json!({ "QueueName": "work" }),
        "ListQueues" => return json!({}),
        "ListMessageMoveTasks" | "StartMessageMoveTask" => return json!({ "SourceArn": ARN }),
        "SendMessage" => json!({ "MessageBody": "x" }),
        "SendMessageBatch" => json!({ "Entries": [{ "Id": "1", "MessageBody": "x" }] }),
        "SetQueueAttributes" => json!({ "Attributes": { "VisibilityTimeout": "7" } }),
        "TagQueue" => json!({ "Tags": { "a": "b" } }),
        "UntagQueue" => json!({ "TagKeys": ["a"] }),
        _ => json!({}),
    };
    body["QueueUrl"] = url.into();
    body
}

/// A task that runs, by its handle.
async fn running_move(of: &Stage, address: SocketAddr) -> Value {
    let admin = of.owner.create_credential(forebay_broker::api::CredentialTerms {
        kind: CredentialKind::AccessKey,
        name: "admin".to_owned(),
        grants: "admin:*".parse().expect("grants"),
        expires: None,
        limits: None,
        account: None,
        password: None,
    });
    let admin = admin.await.expect("it is created");
    let key = Some((&*admin.report.id, admin.secret.reveal()));
    for n in 0..3 {
        let body = json!({ "QueueUrl": "http://localhost/000000000000/work", "MessageBody": n.to_string() });
        assert_eq!(call(of, address, key, "SendMessage", &body).await.0, 200);
    }
    let slow = json!({ "SourceArn": ARN, "MaxNumberOfMessagesPerSecond": 1 });
    let (status, said) = call(of, address, key, "StartMessageMoveTask", &slow).await;
    assert_eq!(status, 200, "{said}");
    serde_json::from_str::<Value>(&said).expect("JSON")["TaskHandle"].clone()
}

fn outcome_of(status: u16, said: &str) -> Outcome {
    let is = |code: &str| said.contains(code);
    match status {
        200 => Outcome::Allowed,
        _ if is("MissingAuthenticationToken") || is("SignatureDoesNotMatch") || is("UnrecognizedClient") => {
            Outcome::Unknown
        }
        // A queue that must not be seen is one that does not exist.
        _ if is("AccessDenied")
            || is("QueueDoesNotExist")
            || is("NonExistentQueue")
            || is("ResourceNotFound") =>
        {
            Outcome::Denied
        }
        500.. => panic!("{said}"),
        _ => Outcome::Allowed,
    }
}

#[tokio::test]
async fn every_action_over_sqs() {
    for (row, needs) in TABLE.iter().filter(|(call, _)| call.starts_with("sqs ")) {
        let action = &row["sqs ".len()..];
        let of = &Stage::open(CredentialKind::AccessKey, *needs).await;
        let address = prepare(of).await;
        let mut body = body_of(action);
        if action == "CancelMessageMoveTask" {
            body = json!({ "TaskHandle": running_move(of, address).await });
        }
        let before = of.state().await;
        for credential in Credential::ALL {
            let key = of.credential(credential);
            let key = key.as_ref().map(|(id, secret)| (&id[..], &secret[..]));
            let (status, said) = call(of, address, key, action, &body).await;
            let outcome = outcome_of(status, &said);
            assert_eq!(outcome, expected(*needs, credential), "{row} with {credential:?}: {status} {said}");
            if *needs == Needs::Seen && outcome == Outcome::Allowed {
                assert_eq!(said.contains("/work"), credential == Credential::Right, "{row}: {said}");
            }
            if credential != Credential::Right {
                assert_eq!(of.state().await, before, "{row} with {credential:?} has changed something");
            }
        }
        of.broker.stop();
    }
}

/// A receive that waits for messages ends within a second after its access key was revoked.
#[tokio::test]
async fn a_revoked_access_key_ends_a_receive_that_waits() {
    let of = &Stage::open(CredentialKind::AccessKey, Needs::Grants("consume:work/queue")).await;
    let address = prepare(of).await;
    let key = of.credential(Credential::Right).expect("a key");
    let body = json!({ "QueueUrl": "http://localhost/000000000000/work", "WaitTimeSeconds": 20 });
    let receive =
        async |body: &Value| call(of, address, Some((&key.0, &key.1)), "ReceiveMessage", body).await;
    // Nothing is left that a receive could be answered with.
    let taken = json!({ "QueueUrl": body["QueueUrl"], "MaxNumberOfMessages": 10 });
    assert_eq!(receive(&taken).await.0, 200);
    let begun = Instant::now();
    let revoke = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        of.owner.revoke_credential(&of.right.report.id).await.expect("it is revoked");
    };
    let (answered, ()) = tokio::join!(tokio::time::timeout(Duration::from_secs(20), receive(&body)), revoke);
    let ((status, said), ran) = (answered.expect("it ends"), begun.elapsed());
    assert!(ran >= Duration::from_millis(190), "it ended by itself after {ran:?}: {said}");
    assert!(ran < Duration::from_millis(1_200), "it ended {ran:?} after it began");
    assert_eq!(outcome_of(status, &said), Outcome::Unknown, "{said}");
    of.broker.stop();
}

#[test]
fn the_table_has_every_action_of_sqs() {
    let known: BTreeSet<String> = Action::ALL.iter().map(|action| format!("sqs {}", action.name())).collect();
    for call in &known {
        needs(call);
    }
    for (call, _) in TABLE.iter().filter(|(call, _)| call.starts_with("sqs ")) {
        assert!(known.contains(*call), "there is no action {call}");
    }
}
