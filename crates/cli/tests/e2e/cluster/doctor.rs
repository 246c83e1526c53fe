//! `forebay doctor --engine jetstream`: a log on NATS is verified, also while a node uses it, and damage is found.

use super::Node;
use super::servers::{Servers, unique};
use crate::rig::{Folder, Ran, forebay};

fn doctor(servers: &Servers, cluster: &str, more: &[&str]) -> Ran {
    let nats = servers.addresses().join(",");
    let words = ["doctor", "--engine", "jetstream", "--cluster", cluster, "--nats", &nats];
    forebay(&[&words[..], more].concat(), "")
}

/// Lets go of messages behind the back of the owner.
fn purge(servers: &Servers, cluster: &str, kind: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _};
        let address = servers.addresses()[0].trim_start_matches("nats://").to_owned();
        let mut stream = tokio::net::TcpStream::connect(address).await.expect("a connection");
        let (read, mut write) = stream.split();
        let mut lines = tokio::io::BufReader::new(read).lines();
        let body = format!(r#"{{"filter":"fb.{cluster}.0.{kind}"}}"#);
        let call = format!(
            "CONNECT {{\"verbose\":false}}\r\nSUB answer 1\r\n\
             PUB $JS.API.STREAM.PURGE.FB_{cluster}_0 answer {}\r\n{body}\r\n",
            body.len()
        );
        write.write_all(call.as_bytes()).await.expect("it is sent");
        while let Some(line) = lines.next_line().await.expect("the server answers") {
            if line.contains("stream_purge_response") {
                assert!(line.contains("\"success\":true"), "{line}");
                return;
            }
        }
        panic!("the server did not answer");
    });
}

#[test]
fn a_log_on_nats_is_verified_and_damage_is_found() {
    let Some(servers) = Servers::start(1, "sync_interval: always") else { return };
    let cluster = unique();
    doctor(&servers, &cluster, &[]).refused(4, &[&format!("FB_{cluster}_0")]);
    let node = Node::start(&servers, &cluster, "a", "listening on");
    node.ok("PUT", "/streams/work", "{}");
    node.ok("PUT", "/subscriptions/work/team", "{}");
    node.publish(1..=5);
    let text = doctor(&servers, &cluster, &[]).good();
    for words in ["The log is sound.", "term 1, last owned by node a", "1 claim"] {
        assert!(text.contains(words), "{words} is not in {text}");
    }
    assert_eq!(node.take(), [1, 2, 3, 4, 5], "nothing was changed");
    node.process.stop();
    let report = doctor(&servers, &cluster, &["-o", "json"]).json();
    assert_eq!(
        (&report["sound"], &report["stopped_cleanly"], &report["term"], &report["owner"]),
        (&true.into(), &true.into(), &1.into(), &"a".into()),
        "{report}"
    );
    assert_eq!(report["records"], report["last_record"], "every record was read: {report}");
    assert!(report["frames"].as_u64().is_some_and(|frames| frames > 0), "{report}");
    let folder = Folder::made("doctor-nats");
    let nats = servers.addresses().join(",");
    let text = format!("engine = \"jetstream\"\ncluster = \"{cluster}\"\nnats = \"{nats}\"\n");
    let file = folder.write("forebay.toml", &text);
    assert!(forebay(&["doctor", "--config", &file], "").good().contains("The log is sound."));
    doctor(&servers, &cluster, &["--salvage", "x"]).refused(2, &["--salvage needs a data folder"]);
    forebay(&["doctor", "--nats", &nats], "").refused(2, &["engine must be `jetstream`"]);

    purge(&servers, &cluster, "log");
    let ran = doctor(&servers, &cluster, &["-o", "json"]).refused(4, &["the log on NATS is damaged"]);
    assert!(ran.printed.contains("\"sound\": false") && ran.printed.contains("missing"), "{}", ran.printed);
}
