//! Access keys, and who may listen where.

use std::process::Command;

use serde_json::json;

use crate::rig::Folder;
use crate::sqs::rig::Process;

#[tokio::test]
async fn with_access_keys_nobody_else_is_believed() {
    let folder = Folder::new("keys");
    std::fs::create_dir_all(folder.path()).expect("a folder");
    let file = format!("{}/keys", folder.path());
    let text = "[a]\naws_access_key_id = A\naws_secret_access_key = s\n";
    std::fs::write(&file, text).expect("a file");
    let data = format!("{}/data", folder.path());
    let server = Process::start_with(&["--data", &data, "--sqs", "127.0.0.1:0", "--sqs-keys", &file]);
    let code = server.client.refused("ListQueues", json!({})).await;
    assert_eq!(code, "MissingAuthenticationToken");
    let signed = |key: &str, signature: &str| {
        format!(
            "AWS4-HMAC-SHA256 Credential={key}/20261115/us-east-1/sqs/aws4_request, \
             SignedHeaders=host;x-amz-date;x-amz-target, Signature={signature}"
        )
    };
    let ask = async |authorization: String| {
        let client = server.client.clone().with("authorization", &authorization);
        client.with("x-amz-date", "20261115T120000Z").refused("ListQueues", json!({})).await
    };
    assert_eq!(ask(signed("B", "00")).await, "InvalidClientTokenId");
    assert_eq!(ask(signed("A", "00")).await, "SignatureDoesNotMatch");
    assert_eq!(ask("AWS4-HMAC-SHA256 nonsense".to_owned()).await, "IncompleteSignature");
}

#[tokio::test]
async fn no_queue_has_a_name_that_is_another_accounts() {
    let folder = Folder::new("names");
    let server = Process::start(&folder);
    let mine = json!({ "QueueName": "123456789012.fifo", "Attributes": { "FifoQueue": "true" } });
    assert_eq!(server.client.refused("CreateQueue", mine).await, "InvalidParameterValue");
}

fn serve(words: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_forebay"))
        .args(["serve", "--memory", "--log", "text", "--listen", "127.0.0.1:0"])
        .args(words)
        .output()
        .expect("it runs");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn without_access_keys_it_listens_on_this_machine_only() {
    let (code, said) = serve(&["--sqs", "0.0.0.0:0"]);
    assert_ne!(code, Some(0));
    assert!(said.contains("--sqs-keys") && said.contains("--allow-anyone"), "{said}");
}

#[test]
fn a_file_of_access_keys_that_cannot_be_read_is_named() {
    let (code, said) = serve(&["--sqs", "127.0.0.1:0", "--sqs-keys", "no-such-file"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("no-such-file"), "{said}");
}

#[tokio::test]
async fn a_port_that_is_in_use_is_an_error_where_it_was_asked_for() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let (code, said) = serve(&["--sqs", &address]);
    assert_eq!(code, Some(5), "{said}");
    assert!(said.contains(&address), "{said}");
    let folder = Folder::new("none");
    let server = Process::start_with(&["--data", folder.path(), "--sqs", "none"]);
    assert_eq!(server.client.address, "", "no SQS");
}
