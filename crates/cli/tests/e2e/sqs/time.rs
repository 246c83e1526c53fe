//! What depends on time, on a clock that the test moves.

use std::sync::Arc;

use forebay_broker::access::Principal;
use forebay_broker::batch::{BatchBuilder, Message};
use forebay_broker::caller::Receive;
use forebay_core::group::{Outcome, Verb};
use forebay_core::types::{GroupName, StreamName};
use forebay_doors::sqs::SqsConfig;
use serde_json::{Value, json};

use crate::sqs::rig::{Still, bodies};

fn letter(queue: &str, group: &str, body: &str) -> Value {
    json!({ "QueueUrl": queue, "MessageBody": body, "MessageGroupId": group, "MessageDeduplicationId": body })
}

#[tokio::test]
async fn the_name_of_a_deleted_queue_rests_for_a_minute() {
    let server = Still::start().await;
    let client = &server.client;
    let queue = client.create("q", json!({})).await;
    client.call("DeleteQueue", json!({ "QueueUrl": queue })).await;
    let code = client.refused("CreateQueue", json!({ "QueueName": "q" })).await;
    assert_eq!(code, "AWS.SimpleQueueService.QueueDeletedRecently");
    server.advance(59).await;
    client.refused("CreateQueue", json!({ "QueueName": "q" })).await;
    server.advance(1).await;
    client.create("q", json!({})).await;
    let lenient = Still::start_with(SqsConfig::new([7; 32])).await;
    let queue = lenient.client.create("q", json!({})).await;
    lenient.client.call("DeleteQueue", json!({ "QueueUrl": queue })).await;
    lenient.client.create("q", json!({})).await;
}

#[tokio::test]
async fn a_queue_is_purged_once_a_minute() {
    let server = Still::start().await;
    let client = &server.client;
    let queue = client.create("q", json!({})).await;
    let purge = json!({ "QueueUrl": queue });
    client.call("PurgeQueue", purge.clone()).await;
    let answer = client.ask("PurgeQueue", purge.clone()).await;
    assert_eq!(answer.status, 403);
    let told = "Only one PurgeQueue operation on q is allowed every 60 seconds.";
    assert_eq!(answer.error(), ("AWS.SimpleQueueService.PurgeQueueInProgress".to_owned(), told.to_owned()));
    server.advance(60).await;
    client.call("PurgeQueue", purge).await;
}

#[tokio::test]
async fn a_duplicate_is_one_for_five_minutes_and_survives_deletion() {
    let server = Still::start().await;
    let client = &server.client;
    let queue = client.create("q.fifo", json!({ "FifoQueue": "true" })).await;
    let first = client.call("SendMessage", letter(&queue, "g", "a")).await;
    let taken = client.receive(&queue, json!({})).await;
    client.delete(&queue, &taken[0]).await;
    server.advance(299).await;
    let again = client.call("SendMessage", letter(&queue, "g", "a")).await;
    assert_eq!(again["SequenceNumber"], first["SequenceNumber"]);
    assert!(client.receive(&queue, json!({})).await.is_empty());
    server.advance(1).await;
    client.call("SendMessage", letter(&queue, "g", "a")).await;
    assert_eq!(client.receive(&queue, json!({})).await.len(), 1, "the window counts from the first");
}

#[tokio::test]
async fn a_message_is_hidden_for_twelve_hours_at_most() {
    let server = Still::start().await;
    let client = &server.client;
    let queue = client.create("q", json!({})).await;
    client.send_text(&queue, "a").await;
    let taken = client.receive(&queue, json!({ "VisibilityTimeout": 43_200 })).await;
    server.advance(43_000).await;
    let handle = &taken[0]["ReceiptHandle"];
    let hide =
        |seconds: u32| json!({ "QueueUrl": queue, "ReceiptHandle": handle, "VisibilityTimeout": seconds });
    let answer = client.ask("ChangeMessageVisibility", hide(300)).await;
    let (code, told) = answer.error();
    assert_eq!(code, "InvalidParameterValue");
    assert!(
        told.ends_with("Total VisibilityTimeout for the message is beyond the limit [43200 seconds]"),
        "{told}"
    );
    client.call("ChangeMessageVisibility", hide(200)).await;
    server.advance(199).await;
    assert!(client.receive(&queue, json!({})).await.is_empty());
    server.advance(1).await;
    assert_eq!(client.receive(&queue, json!({})).await.len(), 1);
}

#[tokio::test]
async fn retention_counts_from_the_send_and_may_be_changed() {
    let server = Still::start().await;
    let client = &server.client;
    let queue = client.create("q", json!({ "MessageRetentionPeriod": "120" })).await;
    client.send_text(&queue, "a").await;
    server.advance(100).await;
    client.send_text(&queue, "b").await;
    server.advance(21).await;
    assert_eq!(bodies(&client.receive(&queue, json!({ "VisibilityTimeout": 0 })).await), ["b"]);
    let longer = json!({ "QueueUrl": queue, "Attributes": { "MessageRetentionPeriod": "60" } });
    client.call("SetQueueAttributes", longer).await;
    server.advance(40).await;
    assert!(client.receive(&queue, json!({})).await.is_empty(), "it counts for what is there already");
}

#[tokio::test]
async fn delays_of_queue_and_message() {
    let server = Still::start().await;
    let client = &server.client;
    let queue = client.create("q", json!({ "DelaySeconds": "10" })).await;
    client.send_text(&queue, "usual").await;
    let now = json!({ "QueueUrl": queue, "MessageBody": "now", "DelaySeconds": 0 });
    client.call("SendMessage", now).await;
    let late = json!({ "QueueUrl": queue, "MessageBody": "late", "DelaySeconds": 900 });
    client.call("SendMessage", late).await;
    assert_eq!(client.counts(&queue).await, ["1", "0", "2"]);
    assert_eq!(bodies(&client.receive(&queue, json!({})).await), ["now"]);
    server.advance(10).await;
    assert_eq!(client.counts(&queue).await, ["1", "1", "1"]);
    assert_eq!(bodies(&client.receive(&queue, json!({})).await), ["usual"]);
    server.advance(890).await;
    assert!(bodies(&client.receive(&queue, json!({})).await).contains(&"late"));
}

#[tokio::test]
async fn a_receipt_of_a_fifo_queue_expires() {
    let server = Still::start().await;
    let client = &server.client;
    let queue = client.create("q.fifo", json!({ "FifoQueue": "true", "VisibilityTimeout": "30" })).await;
    client.call("SendMessage", letter(&queue, "g", "a")).await;
    let taken = client.receive(&queue, json!({})).await;
    let handle = taken[0]["ReceiptHandle"].as_str().expect("a handle");
    server.advance(29).await;
    let longer = json!({ "QueueUrl": queue, "ReceiptHandle": handle, "VisibilityTimeout": 30 });
    client.call("ChangeMessageVisibility", longer).await;
    server.advance(29).await;
    // It was extended in time, and is not extended any more.
    server.advance(1).await;
    let delete = json!({ "QueueUrl": queue, "ReceiptHandle": handle });
    let (code, told) = client.ask("DeleteMessage", delete.clone()).await.error();
    let expected = format!(
        "Value {handle} for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired."
    );
    assert_eq!((code.as_str(), told), ("InvalidParameterValue", expected));
    let taken = client.receive(&queue, json!({})).await;
    assert_eq!(
        client.refused("DeleteMessage", delete.clone()).await,
        "InvalidParameterValue",
        "somebody else has it"
    );
    client.delete(&queue, &taken[0]).await;
    client.call("DeleteMessage", delete).await;
}

#[tokio::test]
async fn a_receipt_of_a_standard_queue_is_good_until_the_next_receive() {
    let server = Still::start().await;
    let client = &server.client;
    let queue = client.create("q", json!({})).await;
    client.send_text(&queue, "a").await;
    let first = client.receive(&queue, json!({})).await;
    server.advance(30).await;
    let change = |message: &Value, seconds: u32| {
        let handle = &message["ReceiptHandle"];
        json!({ "QueueUrl": queue, "ReceiptHandle": handle, "VisibilityTimeout": seconds })
    };
    client.call("ChangeMessageVisibility", change(&first[0], 5)).await;
    assert_eq!(client.counts(&queue).await, ["1", "0", "0"], "which changes nothing");
    let second = client.receive(&queue, json!({})).await;
    client.delete(&queue, &first[0]).await;
    assert_eq!(client.counts(&queue).await, ["0", "1", "0"], "an older receipt deletes nothing");
    server.advance(30).await;
    client.delete(&queue, &second[0]).await;
    assert_eq!(client.counts(&queue).await, ["0", "0", "0"], "the latest does, though its time is over");
    let (code, told) = client.ask("ChangeMessageVisibility", change(&second[0], 5)).await.error();
    assert_eq!(code, "InvalidParameterValue");
    assert!(
        told.ends_with("Message does not exist or is not available for visibility timeout change."),
        "{told}"
    );
}

#[tokio::test]
async fn a_receive_attempt_is_answered_as_before() {
    let server = Still::start().await;
    let client = &server.client;
    let queue = client.create("q.fifo", json!({ "FifoQueue": "true" })).await;
    for body in ["a", "b", "c"] {
        client.call("SendMessage", letter(&queue, "g", body)).await;
    }
    let attempt =
        json!({ "ReceiveRequestAttemptId": "one", "MaxNumberOfMessages": 2, "VisibilityTimeout": 30 });
    let first = client.receive(&queue, attempt.clone()).await;
    assert_eq!(bodies(&first), ["a", "b"]);
    server.advance(20).await;
    let again = client.receive(&queue, attempt.clone()).await;
    let handles = |messages: &[Value]| -> Vec<Value> {
        messages.iter().map(|message| message["ReceiptHandle"].clone()).collect()
    };
    assert_eq!(handles(&again), handles(&first));
    server.advance(20).await;
    assert_eq!(client.counts(&queue).await, ["1", "2", "0"], "the second answer hid them anew");
    // A deleted message is not given again: the attempt is a new one, and the group is not free.
    client.delete(&queue, &first[0]).await;
    assert!(client.receive(&queue, attempt).await.is_empty());
}

#[tokio::test]
async fn a_message_that_is_received_too_often_goes_to_the_dead_letters() {
    let server = Still::start().await;
    let client = &server.client;
    let dead = client.create("dead", json!({})).await;
    let dead_arn = client.attribute(&dead, "QueueArn").await;
    let redrive = json!({ "deadLetterTargetArn": dead_arn, "maxReceiveCount": 2 }).to_string();
    let queue = client.create("work", json!({ "RedrivePolicy": redrive })).await;
    let sent = client.send_text(&queue, "a").await;
    for count in ["1", "2"] {
        let taken = client.receive(&queue, json!({})).await;
        assert_eq!(taken[0]["Attributes"]["ApproximateReceiveCount"], count);
        server.advance(30).await;
    }
    assert!(client.receive(&queue, json!({})).await.is_empty());
    let found = client.receive(&dead, json!({})).await;
    assert_eq!(bodies(&found), ["a"]);
    assert_eq!(found[0]["MessageId"], sent["MessageId"]);
    let attributes = &found[0]["Attributes"];
    assert_eq!(attributes["ApproximateReceiveCount"], "3", "the count goes on");
    assert_eq!(attributes["DeadLetterQueueSourceArn"], client.attribute(&queue, "QueueArn").await);

    // Where the dead letters were to go is gone: the message stays, and is neither lost nor brings the queue back.
    client.call("DeleteQueue", json!({ "QueueUrl": dead })).await;
    client.send_text(&queue, "b").await;
    for count in ["1", "2", "3", "4"] {
        let taken = client.receive(&queue, json!({})).await;
        assert_eq!(taken[0]["Attributes"]["ApproximateReceiveCount"], count);
        server.advance(30).await;
    }
    let code = client.refused("GetQueueUrl", json!({ "QueueName": "dead" })).await;
    assert_eq!(code, "AWS.SimpleQueueService.NonExistentQueue");
}

#[tokio::test]
async fn a_queue_may_be_its_own_dead_letter_queue() {
    let server = Still::start().await;
    let client = &server.client;
    let queue = client.create("work", json!({})).await;
    let own = client.attribute(&queue, "QueueArn").await;
    let redrive = json!({ "deadLetterTargetArn": own, "maxReceiveCount": 2 }).to_string();
    let set = json!({ "QueueUrl": queue, "Attributes": { "RedrivePolicy": redrive } });
    client.call("SetQueueAttributes", set).await;
    assert_eq!(client.attribute(&queue, "RedrivePolicy").await, redrive);
    let sources = client.call("ListDeadLetterSourceQueues", json!({ "QueueUrl": queue })).await;
    assert_eq!(sources["queueUrls"], json!([queue]));
    client.send_text(&queue, "a").await;
    for count in ["1", "2", "3", "4"] {
        let taken = client.receive(&queue, json!({})).await;
        assert_eq!(bodies(&taken), ["a"], "it stays in the queue");
        assert_eq!(taken[0]["Attributes"]["ApproximateReceiveCount"], count);
        server.advance(30).await;
    }
    // With another target the rule counts again, also for receives that are over.
    let dead = client.create("dead", json!({})).await;
    let dead_arn = client.attribute(&dead, "QueueArn").await;
    let redrive = json!({ "deadLetterTargetArn": dead_arn, "maxReceiveCount": 2 }).to_string();
    let set = json!({ "QueueUrl": queue, "Attributes": { "RedrivePolicy": redrive } });
    client.call("SetQueueAttributes", set).await;
    client.receive(&queue, json!({ "VisibilityTimeout": 0 })).await;
    assert!(client.receive(&queue, json!({})).await.is_empty());
    assert_eq!(bodies(&client.receive(&dead, json!({})).await), ["a"]);
    // A queue can be created with a policy that names it, unless it denies that.
    let own = own.replace("work", "fresh");
    let redrive = json!({ "deadLetterTargetArn": own, "maxReceiveCount": 2 }).to_string();
    let denied = json!({ "redrivePermission": "denyAll" }).to_string();
    let both = json!({ "RedrivePolicy": redrive, "RedriveAllowPolicy": denied });
    let code = client.refused("CreateQueue", json!({ "QueueName": "fresh", "Attributes": both })).await;
    assert_eq!(code, "InvalidParameterValue");
    client.create("fresh", json!({ "RedrivePolicy": redrive })).await;
}

#[tokio::test]
async fn a_group_gives_what_comes_before_its_first_hidden_message() {
    let server = Still::start().await;
    let client = &server.client;
    let queue = client.create("q.fifo", json!({ "FifoQueue": "true" })).await;
    for body in ["a", "b", "c", "d"] {
        client.call("SendMessage", letter(&queue, "g", body)).await;
    }
    client.call("SendMessage", letter(&queue, "other", "x")).await;
    let taken = client.receive(&queue, json!({ "MaxNumberOfMessages": 3 })).await;
    assert_eq!(bodies(&taken), ["a", "b", "c"], "one group first");
    assert_eq!(bodies(&client.receive(&queue, json!({})).await), ["x"]);
    client.delete(&queue, &taken[1]).await;
    assert!(client.receive(&queue, json!({})).await.is_empty(), "two are still in flight");
    let now =
        json!({ "QueueUrl": queue, "ReceiptHandle": taken[0]["ReceiptHandle"], "VisibilityTimeout": 0 });
    client.call("ChangeMessageVisibility", now).await;
    let again = client.receive(&queue, json!({})).await;
    assert_eq!(
        bodies(&again),
        ["a"],
        "it comes before the one that is still hidden; what follows that does not go"
    );
    client.delete(&queue, &taken[2]).await;
    client.delete(&queue, &again[0]).await;
    assert_eq!(bodies(&client.receive(&queue, json!({})).await), ["d"]);
}

#[tokio::test]
async fn groups_take_turns_where_nothing_is_hidden() {
    let server = Still::start().await;
    let client = &server.client;
    let queue = client.create("q.fifo", json!({ "FifoQueue": "true", "VisibilityTimeout": "0" })).await;
    for (group, body) in [("a", "a1"), ("a", "a2"), ("b", "b1"), ("b", "b2")] {
        client.call("SendMessage", letter(&queue, group, body)).await;
    }
    let two = json!({ "MaxNumberOfMessages": 2 });
    assert_eq!(bodies(&client.receive(&queue, two.clone()).await), ["a1", "a2"]);
    assert_eq!(bodies(&client.receive(&queue, two.clone()).await), ["b1", "b2"]);
    assert_eq!(bodies(&client.receive(&queue, two).await), ["a1", "a2"]);
}

#[tokio::test]
async fn tenants_of_a_standard_queue_take_turns() {
    let server = Still::start().await;
    let client = &server.client;
    let queue = client.create("q", json!({})).await;
    let of = |tenant: &str, body: &str| json!({ "QueueUrl": queue, "MessageBody": body, "MessageGroupId": tenant });
    for n in 1..=40 {
        client.call("SendMessage", of("noisy", &format!("noisy {n}"))).await;
    }
    client.call("SendMessage", of("quiet", "quiet 1")).await;
    client.call("SendMessage", of("quiet", "quiet 2")).await;
    let taken = client.receive(&queue, json!({})).await;
    let quiet: Vec<&str> = bodies(&taken).into_iter().filter(|body| body.starts_with("quiet")).collect();
    assert_eq!(taken.len(), 10);
    assert_eq!(quiet, ["quiet 1", "quiet 2"], "forty that came before do not hold them up");
    // Unlike in a FIFO queue, messages in flight hold up no others.
    client.call("SendMessage", of("quiet", "quiet 3")).await;
    let next = client.receive(&queue, json!({})).await;
    assert!(bodies(&next).contains(&"quiet 3"), "{:?}", bodies(&next));
    assert_eq!(next.len(), 10);
}

#[tokio::test]
async fn no_more_than_so_many_are_in_flight() {
    const IN_FLIGHT_MAX: u32 = 120_000;
    const STEP: u32 = 10_000;
    let server = Still::start().await;
    let client = &server.client;
    let queues = [("q", json!({})), ("q.fifo", json!({ "FifoQueue": "true" }))];
    for (name, attributes) in queues {
        let queue = client.create(name, attributes).await;
        // Through the broker itself: by ten it would take long.
        let caller = server.broker.enter(Principal::owner(), None);
        let stream = StreamName::parse(name).expect("a name");
        let mut keys = (0..).map(|n: u32| n.to_string());
        for _ in 0..=IN_FLIGHT_MAX / STEP {
            let mut batch = BatchBuilder::default();
            for _ in 0..STEP {
                let key = keys.next().expect("there is no end of them");
                batch.push(&Message { key: Some(key.as_bytes()), body: b"x", ..Message::default() });
            }
            let batch = batch.build();
            let room = server.broker.room(&stream, &batch).await;
            caller.publish_to_existing(room, Arc::new(stream.clone()), batch).await.expect("it is stored");
        }
        let group = GroupName::parse("queue").expect("a name");
        let mut first = None;
        for _ in 0..IN_FLIGHT_MAX / STEP {
            let wish = Receive { consumer: "c".to_owned(), max: STEP, ..Receive::default() };
            let mut left = STEP as usize;
            while left > 0 {
                let wish = Receive { max: left as u32, ..wish.clone() };
                let taken = caller.receive(stream.clone(), group.clone(), wish).await.expect("some").take();
                assert!(!taken.is_empty());
                left -= taken.len();
                first = first.or_else(|| taken.into_iter().next());
            }
        }
        assert_eq!(
            client.counts(&queue).await,
            [STEP.to_string(), IN_FLIGHT_MAX.to_string(), "0".to_owned()]
        );
        let wish = json!({ "QueueUrl": queue, "MaxNumberOfMessages": 1 });
        let answer = client.ask("ReceiveMessage", wish.clone()).await;
        if name.ends_with(".fifo") {
            assert_eq!((answer.status, answer.json()), (200, json!({})), "a FIFO queue waits");
        } else {
            assert_eq!((answer.status, answer.error().0.as_str()), (403, "OverLimit"));
        }
        let (receipt, _) = first.expect("one was taken");
        let settled =
            caller.settle(stream, group, &[receipt], Verb::Ack.into()).await.expect("it is answered");
        assert_eq!(settled, [Outcome::Acked]);
        let received = client.call("ReceiveMessage", wish).await;
        assert_eq!(received["Messages"].as_array().map(Vec::len), Some(1), "there is room for one again");
    }
}
