//! Transactions: over both protocols by leases that were received, and over an open `Consume` call.

use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;

use super::*;

const PATH: &str = "/transactions";

fn settle(leases: &[String]) -> v1::SettleRequest {
    v1::SettleRequest {
        stream: "in".into(),
        group: "makers".into(),
        leases: leases.to_vec(),
        action: v1::settlement::Action::Ack.into(),
        ..Default::default()
    }
}

fn publication(stream: &str, messages: Vec<v1::Message>) -> v1::Publication {
    v1::Publication { stream: stream.to_owned(), messages, expect_last_seq: None }
}

fn commit(settle: Vec<v1::SettleRequest>, publish: Vec<v1::Publication>) -> v1::CommitRequest {
    v1::CommitRequest { settle, publish }
}

fn named(id: &str, body: &str) -> v1::Message {
    v1::Message { id: id.to_owned(), ..message(body) }
}

pub(super) async fn both_protocols(pair: &mut Pair) {
    let group = request!(CreateGroupRequest, stream: "in", group: "makers");
    both!(pair, "PUT" "/streams/in/groups/makers", {} = create_group group);
    // Two streams at once, and nothing else.
    let parts = vec![publication("in", (1..=4).map(|n| message(&n.to_string())).collect())];
    let body = json!({ "publish": [{ "stream": "in", "messages": [
        { "body": 1 }, { "body": 2 }, { "body": 3 }, { "body": 4 }] }] });
    both!(pair, "POST" PATH, body = commit commit(Vec::new(), parts));
    let parts = vec![publication("log", vec![message("1")]), publication("in", vec![named("x", "5")])];
    let body = json!({ "publish": [
        { "stream": "log", "messages": [{ "body": 1 }] },
        { "stream": "in", "messages": [{ "body": 5, "id": "x" }] },
    ] });
    both!(pair, "POST" PATH, body = commit commit(Vec::new(), parts.clone()));
    both!(pair, "POST" PATH, body = commit commit(Vec::new(), parts));

    let receive = request!(ReceiveRequest, stream: "in", group: "makers", max: 5u32, consumer: "clerk");
    let body = json!({ "max": 5, "consumer": "clerk" });
    let got = both!(pair, "POST" "/streams/in/groups/makers/receive", body = receive receive);
    let messages = got["messages"].as_array().expect("messages").iter();
    let leases: Vec<String> =
        messages.map(|message| message["lease"].as_str().expect("a lease").to_owned()).collect();
    assert!(leases.len() >= 3, "{leases:?}");
    let own = |n: usize| json!({ "stream": "in", "group": "makers", "leases": [leases[n]] });
    let out = |id: &str| json!([{ "stream": "out", "messages": [{ "id": id, "body": 1 }] }]);
    let made = |id: &str| vec![publication("out", vec![named(id, "1")])];
    let body = json!({ "settle": [own(0)], "publish": out("a") });
    let request = || commit(vec![settle(&leases[..1])], made("a"));
    let done = both!(pair, "POST" PATH, body = commit request());
    assert_eq!(done["already_committed"], json!(false));
    let again = both!(pair, "POST" PATH, body = commit request());
    assert_eq!(
        again["already_committed"],
        json!(true),
        "a client that did not hear the answer sends it again"
    );
    let body = json!({ "settle": [own(0)], "publish": out("b") });
    both!(pair, "POST" PATH, body = commit commit(vec![settle(&leases[..1])], made("b")));
    // A lease that is current beside one that is not.
    let mixed = [leases[1].clone(), "forged".to_owned()];
    let body =
        json!({ "settle": [{ "stream": "in", "group": "makers", "leases": mixed }], "publish": out("c") });
    both!(pair, "POST" PATH, body = commit commit(vec![settle(&mixed)], made("c")));
    let park = v1::SettleRequest {
        action: v1::settlement::Action::Park.into(),
        reason: "no".into(),
        ..settle(&leases[1..2])
    };
    let body = json!({ "settle": [
        { "stream": "in", "group": "makers", "leases": [leases[1]], "action": "park", "reason": "no" },
        own(2),
    ] });
    both!(pair, "POST" PATH, body = commit commit(vec![park, settle(&leases[2..3])], Vec::new()));
    both!(pair, "GET" "/streams/out/messages", null = read_messages request!(ReadMessagesRequest, stream: "out"));
    refused(pair, &leases).await;
}

/// Nothing of these is done.
async fn refused(pair: &mut Pair, leases: &[String]) {
    let one = |stream: &str| publication(stream, vec![message("1")]);
    let part = |stream: &str| json!({ "stream": stream, "messages": [{ "body": 1 }] });
    both!(pair, "POST" PATH, {} = commit commit(Vec::new(), Vec::new()));
    let body = json!({ "publish": [part("out"), part("$x")] });
    both!(pair, "POST" PATH, body = commit commit(Vec::new(), vec![one("out"), one("$x")]));
    let body = json!({ "publish": [part("out"), part("out")] });
    both!(pair, "POST" PATH, body = commit commit(Vec::new(), vec![one("out"), one("out")]));
    let body = json!({ "publish": [part("log"), { "stream": "out", "messages": [] }] });
    both!(pair, "POST" PATH, body = commit commit(Vec::new(), vec![one("log"), publication("out", Vec::new())]));
    let late = v1::Publication { expect_last_seq: Some(77), ..one("out") };
    let wrong = json!({ "stream": "out", "messages": [{ "body": 1 }], "expect_last_seq": 77 });
    let body = json!({ "publish": [part("log"), wrong] });
    both!(pair, "POST" PATH, body = commit commit(Vec::new(), vec![one("log"), late]));
    let wrong = publication("out", vec![v1::Message { delay_ms: 400 * 86_400_000, ..message("1") }]);
    let body = json!({ "publish": [{ "stream": "out", "messages": [{ "body": 1, "delay": "400d" }] }] });
    both!(pair, "POST" PATH, body = commit commit(Vec::new(), vec![wrong]));
    let body = json!({ "settle": [{ "stream": "in", "group": "makers", "leases": [] }] });
    both!(pair, "POST" PATH, body = commit commit(vec![settle(&[])], Vec::new()));
    let body = json!({ "settle": [{ "stream": "in", "group": "none", "leases": leases }] });
    let none = v1::SettleRequest { group: "none".into(), ..settle(leases) };
    both!(pair, "POST" PATH, body = commit commit(vec![none], Vec::new()));
    let twice = [leases[3].clone(), leases[3].clone()];
    let body = json!({ "settle": [{ "stream": "in", "group": "makers", "leases": twice }] });
    both!(pair, "POST" PATH, body = commit commit(vec![settle(&twice)], Vec::new()));
    let list = request!(ReadMessagesRequest, stream: "log");
    both!(pair, "GET" "/streams/log/messages", null = read_messages list);
}

/// What a `Consume` call with its requests gets next.
struct Consuming {
    requests: mpsc::UnboundedSender<v1::ConsumeRequest>,
    replies: tonic::Streaming<v1::ConsumeReply>,
}

impl Consuming {
    fn send(&self, request: v1::ConsumeRequest) {
        self.requests.send(request).expect("the call is open");
    }

    /// Replies until one has the part that is asked for.
    async fn next<T>(&mut self, part: impl Fn(v1::ConsumeReply) -> Option<T>) -> T {
        loop {
            let reply = self.replies.message().await.expect("it goes on").expect("a reply");
            if let Some(found) = part(reply) {
                return found;
            }
        }
    }
}

#[tokio::test]
async fn leases_of_an_open_call_are_settled_with_messages() {
    let mut pair = Pair::start().await;
    let group = request!(CreateGroupRequest, stream: "in", group: "makers");
    pair.grpc.create_group(group).await.expect("it is created");
    let input = commit(Vec::new(), vec![publication("in", vec![message("1"), message("2"), message("3")])]);
    pair.grpc.commit(input).await.expect("it is stored");
    let (requests, sent) = mpsc::unbounded_channel();
    let open = v1::Open {
        stream: "in".into(),
        group: "makers".into(),
        consumer: "c".into(),
        credit: 3,
        ..Default::default()
    };
    requests.send(v1::ConsumeRequest { open: Some(open), ..Default::default() }).expect("it is read");
    let replies = pair.grpc.consume(UnboundedReceiverStream::new(sent)).await.expect("it joins").into_inner();
    let mut call = Consuming { requests, replies };
    let mut leases: Vec<(u32, u64, u64)> = Vec::new();
    while leases.len() < 3 {
        let deliveries = call.next(|reply| reply.deliveries).await;
        for run in deliveries.runs {
            let of_run = 0..u64::from(run.count.max(1));
            leases.extend(of_run.map(|n| (deliveries.epoch, run.first_seq + n, run.first_grant + n)));
        }
    }
    let settlement = |n: usize| {
        let (epoch, first_seq, first_grant) = leases[n];
        let run = v1::LeaseRun { first_seq, first_grant, count: 1 };
        v1::Settlement {
            action: v1::settlement::Action::Ack.into(),
            epoch,
            leases: vec![run],
            ..Default::default()
        }
    };
    let transaction = |ticket: u64, settle: Vec<v1::Settlement>, id: &str| v1::Commit {
        ticket,
        settle,
        publish: vec![publication("out", vec![named(id, "1")])],
    };
    let extend = v1::Settlement { action: v1::settlement::Action::Extend.into(), ..settlement(1) };
    let commits = vec![
        transaction(1, vec![settlement(0)], "a"),
        transaction(2, vec![settlement(0)], "b"),
        transaction(3, vec![extend], "c"),
        transaction(4, vec![settlement(0)], "a"),
        transaction(5, vec![settlement(1), settlement(0)], "d"),
        v1::Commit { ticket: 6, publish: vec![publication("$x", vec![message("1")])], ..Default::default() },
        transaction(7, vec![settlement(1)], "e"),
        // The goodbye comes after it.
        transaction(8, vec![settlement(2)], "f"),
    ];
    call.send(v1::ConsumeRequest { commits, goodbye: true, ..Default::default() });
    let mut answers: BTreeMap<u64, v1::Committed> = BTreeMap::new();
    while let Some(reply) = call.replies.message().await.expect("it ends in order") {
        answers.extend(reply.committed.into_iter().map(|answer| (answer.ticket, answer)));
    }
    let told: Vec<(u64, Option<&str>, bool)> = answers
        .values()
        .map(|answer| {
            let code = answer.problem.as_ref().map(|problem| problem.code().as_str_name());
            (answer.ticket, code, answer.already_committed)
        })
        .collect();
    let expected = [
        (1, None, false),
        (2, Some("LEASE_NOT_CURRENT"), false),
        (3, Some("INVALID"), false),
        (4, None, true),
        (5, Some("LEASE_NOT_CURRENT"), false),
        (6, Some("INVALID"), false),
        (7, None, false),
        (8, None, false),
    ];
    assert_eq!(told, expected, "{answers:?}");
    assert_eq!(answers[&1].published[0].first_seq, 1);
    assert_eq!(answers[&4].published[0].duplicates, [v1::Duplicate { index: 0, seq: 1 }]);
    let detail = &answers[&5].problem.as_ref().expect("it is refused").detail;
    assert!(detail.contains("seq=`1`"), "{detail}");
    let read = request!(ReadMessagesRequest, stream: "out");
    let stored = pair.grpc.read_messages(read).await.expect("it is read").into_inner().messages;
    let ids: Vec<String> = stored.into_iter().filter_map(|of| of.message).map(|message| message.id).collect();
    assert_eq!(ids, ["a", "e", "f"]);
}
