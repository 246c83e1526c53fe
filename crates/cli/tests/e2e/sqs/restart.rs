//! What a restart keeps, clean or not.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::rig::{Folder, sized};
use crate::sqs::rig::{Client, Process, bodies};

fn end(server: Process, cleanly: bool) {
    if cleanly { server.stop() } else { server.kill() }
}

#[tokio::test]
async fn queues_with_their_attributes_and_tags() {
    for cleanly in [true, false] {
        let folder = Folder::new(&format!("queues-{cleanly}"));
        let server = Process::start(&folder);
        let client = &server.client;
        let dead = client.create("dead", json!({ "MessageRetentionPeriod": "1209600" })).await;
        let dead_arn = client.attribute(&dead, "QueueArn").await;
        let redrive = json!({ "deadLetterTargetArn": dead_arn, "maxReceiveCount": 3 }).to_string();
        let queue =
            client.create("work", json!({ "VisibilityTimeout": "7", "RedrivePolicy": redrive })).await;
        client.call("TagQueue", json!({ "QueueUrl": queue, "Tags": { "team": "a", "empty": "" } })).await;
        let permission = json!({
            "QueueUrl": queue, "Label": "them", "AWSAccountIds": ["123456789012"], "Actions": ["SendMessage"],
        });
        client.call("AddPermission", permission).await;
        client.create("ordered.fifo", json!({ "FifoQueue": "true" })).await;
        client.create("gone", json!({})).await;
        let gone = client.call("GetQueueUrl", json!({ "QueueName": "gone" })).await;
        client.call("DeleteQueue", gone).await;
        let all = json!({ "QueueUrl": queue, "AttributeNames": ["All"] });
        let before = client.call("GetQueueAttributes", all.clone()).await;
        end(server, cleanly);

        let server = Process::start(&folder);
        let client = &server.client;
        assert_eq!(client.call("GetQueueAttributes", all).await, before);
        let tags = client.call("ListQueueTags", json!({ "QueueUrl": queue })).await;
        assert_eq!(tags["Tags"], json!({ "team": "a", "empty": "" }));
        let listed = client.call("ListQueues", json!({})).await;
        let names: Vec<&str> =
            listed["QueueUrls"].as_array().expect("queues").iter().map(last_part).collect();
        assert_eq!(names, ["dead", "ordered.fifo", "work"], "in order, and none that was deleted");
        let sources = client.call("ListDeadLetterSourceQueues", json!({ "QueueUrl": dead })).await;
        assert_eq!(sources["queueUrls"].as_array().map(Vec::len), Some(1));
    }
}

/// A client may leave at any moment. What the door tells of its queues then is what the log knows of them.
#[tokio::test]
async fn what_was_asked_for_by_those_who_left() {
    let folder = Folder::new("left");
    let server = Process::start(&folder);
    let client = &server.client;
    let queue = client.create("kept", json!({})).await;
    for n in 1..=60u64 {
        // Before it is read, while it is being written, and after.
        let patience = Duration::from_micros(n % 20 * 100);
        let create = json!({ "QueueName": format!("q{n:02}") });
        client.ask_and_leave("CreateQueue", &create, patience).await;
        let change = json!({ "QueueUrl": queue, "Attributes": { "DelaySeconds": n.to_string() } });
        client.ask_and_leave("SetQueueAttributes", &change, patience).await;
    }
    // Requests that were sent are read, and changes are made one after the other: this one after all that
    // were begun.
    tokio::time::sleep(Duration::from_millis(500)).await;
    client.create("last", json!({})).await;
    let seen = async |client: &Client| {
        let listed = client.call("ListQueues", json!({})).await["QueueUrls"].clone();
        let names: Vec<String> =
            listed.as_array().expect("queues").iter().map(|url| last_part(url).to_owned()).collect();
        (names, client.attribute(&queue, "DelaySeconds").await)
    };
    let before = seen(client).await;
    assert!(before.0.len() > 2, "some were made: {before:?}");
    server.stop();
    assert_eq!(seen(&Process::start(&folder).client).await, before);
}

fn last_part(url: &Value) -> &str {
    url.as_str().and_then(|url| url.rsplit('/').next()).expect("a URL")
}

/// Receives until something comes, and says how long that took.
async fn next(client: &Client, queue: &str) -> (Vec<Value>, Duration) {
    let began = Instant::now();
    loop {
        let messages = client.receive(queue, json!({ "WaitTimeSeconds": 20 })).await;
        if !messages.is_empty() {
            return (messages, began.elapsed());
        }
        assert!(began.elapsed() < Duration::from_secs(60), "nothing comes");
    }
}

#[tokio::test]
async fn messages_in_flight_stay_so_for_the_rest_of_their_time() {
    for cleanly in [true, false] {
        let folder = Folder::new(&format!("flight-{cleanly}"));
        let server = Process::start(&folder);
        let client = &server.client;
        let queue = client.create("work", json!({})).await;
        for body in ["deleted", "held", "extended", "waiting"] {
            client.send_text(&queue, body).await;
        }
        let began = Instant::now();
        let taken = client.receive(&queue, json!({ "MaxNumberOfMessages": 3, "VisibilityTimeout": 6 })).await;
        assert_eq!(bodies(&taken), ["deleted", "held", "extended"]);
        client.delete(&queue, &taken[0]).await;
        let longer = json!({
            "QueueUrl": queue, "ReceiptHandle": taken[2]["ReceiptHandle"], "VisibilityTimeout": 1_000,
        });
        client.call("ChangeMessageVisibility", longer).await;
        end(server, cleanly);

        let server = Process::start(&folder);
        let client = &server.client;
        assert_eq!(client.counts(&queue).await, ["1", "2", "0"]);
        let now = client.receive(&queue, json!({})).await;
        assert_eq!(
            bodies(&now),
            ["waiting"],
            "what was deleted does not come back, what is held is not given"
        );
        let (later, _) = next(client, &queue).await;
        assert!(began.elapsed() >= Duration::from_secs(6), "not before its time is over");
        assert_eq!(bodies(&later), ["held"]);
        assert_eq!(later[0]["Attributes"]["ApproximateReceiveCount"], "2");
        let first = |message: &Value| message["Attributes"]["ApproximateFirstReceiveTimestamp"].clone();
        assert_eq!(first(&later[0]), first(&taken[1]), "it was first received before the restart");
        assert_eq!(later[0]["MessageId"], taken[1]["MessageId"]);
        // A receipt from before is as good as one from now.
        client.delete(&queue, &taken[2]).await;
        assert_eq!(client.counts(&queue).await, ["0", "2", "0"]);
    }
}

#[tokio::test]
async fn what_is_a_duplicate() {
    for cleanly in [true, false] {
        let folder = Folder::new(&format!("duplicate-{cleanly}"));
        let server = Process::start(&folder);
        let queue = server.client.create("once.fifo", json!({ "FifoQueue": "true" })).await;
        let message = json!({
            "QueueUrl": queue, "MessageBody": "x", "MessageGroupId": "g", "MessageDeduplicationId": "d",
        });
        let first = server.client.call("SendMessage", message.clone()).await;
        let taken = server.client.receive(&queue, json!({})).await;
        server.client.delete(&queue, &taken[0]).await;
        end(server, cleanly);

        let server = Process::start(&folder);
        let again = server.client.call("SendMessage", message.clone()).await;
        assert_eq!(
            (&again["MessageId"], &again["SequenceNumber"]),
            (&first["MessageId"], &first["SequenceNumber"])
        );
        assert_eq!(server.client.counts(&queue).await, ["0", "0", "0"]);
        server.client.call("PurgeQueue", json!({ "QueueUrl": queue })).await;
        end(server, cleanly);

        let server = Process::start(&folder);
        let new = server.client.call("SendMessage", message).await;
        assert_ne!(new["MessageId"], first["MessageId"], "what was purged is forgotten, and stays so");
        assert_eq!(server.client.counts(&queue).await, ["1", "0", "0"]);
    }
}

#[tokio::test]
async fn a_task_that_moves_messages() {
    for cleanly in [true, false] {
        let folder = Folder::new(&format!("task-{cleanly}"));
        let server = Process::start(&folder);
        let client = &server.client;
        let dead = client.create("dead", json!({})).await;
        let dead_arn = client.attribute(&dead, "QueueArn").await;
        let redrive = json!({ "deadLetterTargetArn": dead_arn, "maxReceiveCount": 1 }).to_string();
        let queue = client.create("work", json!({ "RedrivePolicy": redrive })).await;
        const COUNT: usize = 30;
        for n in 0..COUNT {
            client.send_text(&queue, &n.to_string()).await;
        }
        let mut received = 0;
        while received < COUNT {
            let taken = client.receive(&queue, json!({})).await;
            received += taken.len();
            for message in &taken {
                let now = json!({
                    "QueueUrl": queue, "ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 0,
                });
                client.call("ChangeMessageVisibility", now).await;
            }
        }
        let all = COUNT.to_string();
        while client.counts(&dead).await[0] != all {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let start = json!({ "SourceArn": dead_arn, "MaxNumberOfMessagesPerSecond": 5 });
        let handle = client.call("StartMessageMoveTask", start).await["TaskHandle"].clone();
        let list = json!({ "SourceArn": dead_arn });
        end(server, cleanly);

        let server = Process::start(&folder);
        let client = &server.client;
        let task = client.call("ListMessageMoveTasks", list.clone()).await["Results"][0].clone();
        assert_eq!((&task["Status"], &task["TaskHandle"]), (&json!("RUNNING"), &handle), "{task}");
        assert_eq!(task["ApproximateNumberOfMessagesToMove"], COUNT);
        loop {
            let task = client.call("ListMessageMoveTasks", list.clone()).await["Results"][0].clone();
            if task["Status"] == "COMPLETED" {
                assert_eq!(task["ApproximateNumberOfMessagesMoved"], COUNT);
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(client.counts(&dead).await, ["0", "0", "0"]);
        let mut seen: Vec<usize> = Vec::new();
        while seen.len() < COUNT {
            let (messages, _) = next(client, &queue).await;
            assert!(messages.iter().all(|message| message["Attributes"]["ApproximateReceiveCount"] == "1"));
            seen.extend(bodies(&messages).iter().map(|body| body.parse::<usize>().expect("a number")));
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..COUNT).collect::<Vec<_>>(), "each is back once");
    }
}

/// What a client of SQS was told before a kill stands after it: a message that was accepted is there until it is
/// deleted, and one whose deletion was accepted does not come back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_answered_before_a_kill_stands() {
    for (name, attributes) in [("q", json!({})), ("q.fifo", json!({ "FifoQueue": "true" }))] {
        let folder = Folder::new(&format!("killed-{name}"));
        let mut server = Process::start(&folder);
        let queue = server.client.create(name, attributes).await;
        let path =
            queue.split_once("//").and_then(|(_, rest)| rest.split_once('/')).expect("a URL").1.to_owned();
        let done = Arc::new(Mutex::new(Done::default()));
        for life in 0..4 {
            let url = format!("http://{}/{path}", server.client.address);
            let mut tasks = tokio::task::JoinSet::new();
            for worker in 0..2 {
                tasks.spawn(produce(
                    server.client.clone(),
                    url.clone(),
                    format!("{life}-{worker}"),
                    done.clone(),
                ));
                tasks.spawn(consume(server.client.clone(), url.clone(), done.clone()));
            }
            tokio::time::sleep(Duration::from_millis(400)).await;
            server.kill();
            // They end with the first answer that does not come.
            while let Some(ended) = tasks.join_next().await {
                ended.expect("none of them panics");
            }
            server = Process::start(&folder);
        }
        let url = format!("http://{}/{path}", server.client.address);
        let Done { sent, deleted, doubtful } = std::mem::take(&mut *done.lock().expect("nobody panicked"));
        assert!(sent.len() > 40 && deleted.len() > 10, "{} sent, {} deleted", sent.len(), deleted.len());
        // Whatever the dead held comes back when its time is over, which was two seconds.
        let soon = Instant::now() + Duration::from_secs(60);
        let mut left: BTreeSet<String> =
            sent.difference(&deleted).filter(|body| !doubtful.contains(*body)).cloned().collect();
        while !left.is_empty() {
            assert!(Instant::now() < soon, "{} were accepted and are gone: {left:?}", left.len());
            let wish = json!({ "WaitTimeSeconds": 1, "VisibilityTimeout": 60 });
            for message in server.client.receive(&url, wish).await {
                let body = message["Body"].as_str().expect("a body").to_owned();
                assert!(!deleted.contains(&body), "{body} was deleted and came back");
                left.remove(&body);
                server.client.delete(&url, &message).await;
            }
        }
    }
}

#[derive(Default)]
struct Done {
    sent: BTreeSet<String>,
    deleted: BTreeSet<String>,
    /// Their deletion was requested, and its outcome is unknown.
    doubtful: BTreeSet<String>,
}

async fn produce(client: Client, queue: String, name: String, done: Arc<Mutex<Done>>) {
    for n in 0.. {
        let body = format!("{name}-{n}");
        let mut message = json!({ "QueueUrl": queue, "MessageBody": body });
        if queue.ends_with(".fifo") {
            message["MessageGroupId"] = json!(format!("{}", n % 5));
            message["MessageDeduplicationId"] = json!(body);
        }
        match client.try_ask("SendMessage", message).await {
            Some(answer) if answer.status == 200 => done.lock().expect("nobody panicked").sent.insert(body),
            _ => return,
        };
    }
}

async fn consume(client: Client, queue: String, done: Arc<Mutex<Done>>) {
    // Short, so that what a life leaves in flight is there for the next.
    let wish =
        json!({ "QueueUrl": queue, "MaxNumberOfMessages": 5, "WaitTimeSeconds": 1, "VisibilityTimeout": 2 });
    while let Some(answer) = client.try_ask("ReceiveMessage", wish.clone()).await {
        for message in answer.json()["Messages"].as_array().into_iter().flatten() {
            let body = message["Body"].as_str().expect("a body").to_owned();
            assert!(!done.lock().expect("nobody panicked").deleted.contains(&body), "{body} came back");
            let delete = json!({ "QueueUrl": queue, "ReceiptHandle": message["ReceiptHandle"] });
            match client.try_ask("DeleteMessage", delete).await {
                Some(answer) if answer.status == 200 => {
                    done.lock().expect("nobody panicked").deleted.insert(body);
                }
                _ => {
                    done.lock().expect("nobody panicked").doubtful.insert(body);
                    return;
                }
            }
        }
    }
}

/// Messages of a FIFO queue that were not in flight come at once after a kill, however many lie before them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_fifo_queue_goes_on_at_once_after_a_kill() {
    let (count, soon) = sized((4_000, Duration::from_secs(10)), (100_000, Duration::from_secs(1)));
    let folder = Folder::new("long-fifo");
    let server = Process::start(&folder);
    let client = &server.client;
    let attributes = json!({ "FifoQueue": "true", "VisibilityTimeout": "600" });
    let queue = client.create("long.fifo", attributes).await;
    let path = queue.split_once("//").and_then(|(_, rest)| rest.split_once('/')).expect("a URL").1.to_owned();
    let send = async |group: &str, bodies: std::ops::Range<u32>| {
        let entries: Vec<Value> = bodies
            .map(|n| {
                json!({ "Id": n.to_string(), "MessageBody": n.to_string(), "MessageGroupId": group,
                "MessageDeduplicationId": format!("{group}-{n}") })
            })
            .collect();
        let sent = client.call("SendMessageBatch", json!({ "QueueUrl": queue, "Entries": entries })).await;
        assert_eq!(sent["Successful"].as_array().map(Vec::len), Some(entries.len()), "{sent}");
    };
    for n in 0..count / 10 {
        send("first", n * 10..n * 10 + 10).await;
    }
    for n in 0..10 {
        send(&format!("late-{n}"), 0..1).await;
    }
    let one = client.receive(&queue, json!({ "MaxNumberOfMessages": 1 })).await;
    assert_eq!(bodies(&one), ["0"]);
    let mut held = 0;
    while held < 10 {
        held +=
            client.receive(&queue, json!({ "MaxNumberOfMessages": 10, "WaitTimeSeconds": 20 })).await.len();
    }
    send("last", 0..1).await;
    server.kill();

    let server = Process::start(&folder);
    let listening = Instant::now();
    let queue = format!("http://{}/{path}", server.client.address);
    let next =
        server.client.receive(&queue, json!({ "WaitTimeSeconds": 20, "AttributeNames": ["All"] })).await;
    assert_eq!(next[0]["Attributes"]["MessageGroupId"], "last", "{next:?}");
    assert!(listening.elapsed() < soon, "it took {:?}", listening.elapsed());
    server.stop();
}
