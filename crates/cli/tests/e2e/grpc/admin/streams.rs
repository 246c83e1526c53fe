//! Streams: settings, lists, contents and deletion.

use forebay_wire::v1;
use tonic::Code;

use super::{answer, is_refused, message, of_group, of_stream};
use crate::grpc::rig::{Server, Session, publish, publish_one};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_is_changed_field_by_field() {
    let server = Server::start_in_memory().await;
    let mut client = server.client();
    let limits = v1::StreamLimits { max_messages: Some(10), max_bytes: Some(1 << 20), ..Default::default() };
    let settings = v1::StreamSettings { limits: Some(limits), ..Default::default() };
    let create = of_stream!(CreateStreamRequest, "orders", settings: Some(settings));
    assert!(answer(client.create_stream(create.clone()).await).created);
    assert!(!answer(client.create_stream(create).await).created);
    let other = v1::StreamSettings { dedupe_max: Some(7), ..Default::default() };
    let other = of_stream!(CreateStreamRequest, "orders", settings: Some(other));
    is_refused(
        client.create_stream(other).await,
        Code::AlreadyExists,
        "settings-differ",
        "dedupe_max of the existing stream orders",
    );

    let rate = Some(v1::Rate { per_second: 100.0, burst: 5 });
    let limits = Some(v1::StreamLimits { max_messages: Some(20), ..Default::default() });
    let settings = v1::StreamSettings { ingress_rate: rate, limits, ..Default::default() };
    let clear = vec!["limits.max_bytes".to_owned()];
    let update = of_stream!(UpdateStreamRequest, "orders", settings: Some(settings), clear: clear);
    answer(client.update_stream(update).await);
    let report = answer(client.get_stream(of_stream!(GetStreamRequest, "orders")).await);
    let settings = report.settings.expect("settings are there");
    let limits = settings.limits.expect("limits are there");
    assert_eq!((limits.max_messages, limits.max_bytes), (Some(20), None));
    assert_eq!((settings.ingress_rate, settings.dedupe_window_ms), (rate, Some(600_000)));
    let update = of_stream!(UpdateStreamRequest, "orders", clear: vec!["ingress_rate".to_owned()]);
    answer(client.update_stream(update).await);
    let report = answer(client.get_stream(of_stream!(GetStreamRequest, "orders")).await);
    assert_eq!(report.settings.expect("settings are there").ingress_rate, None);

    let update = of_stream!(UpdateStreamRequest, "orders", clear: vec!["max_bytes".to_owned()]);
    is_refused(
        client.update_stream(update).await,
        Code::InvalidArgument,
        "invalid-field",
        "clear must name settings that can be changed",
    );
    let limits = Some(v1::StreamLimits { max_bytes: Some(0), ..Default::default() });
    let settings = v1::StreamSettings { limits, ..Default::default() };
    let update = of_stream!(UpdateStreamRequest, "orders", settings: Some(settings));
    let text = "limits.max_bytes must be at least 1";
    is_refused(client.update_stream(update).await, Code::InvalidArgument, "invalid-field", text);
    let update = of_stream!(UpdateStreamRequest, "nothing");
    is_refused(client.update_stream(update).await, Code::NotFound, "no-such-stream", "no such stream");
    server.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_are_listed_in_pages() {
    let server = Server::start_in_memory().await;
    let mut client = server.client();
    for name in ["a", "b", "c", "d", "e"] {
        answer(client.create_stream(of_stream!(CreateStreamRequest, name)).await);
    }
    server.create_group("b", "team").await;
    publish(&server, "b", ["x", "y"], 2).await;
    let mut seen = Vec::new();
    let mut after = String::new();
    loop {
        let page = answer(client.list_streams(v1::ListStreamsRequest { after, limit: 2 }).await);
        assert!(page.streams.len() <= 2);
        seen.extend(page.streams);
        if page.next.is_empty() {
            break;
        }
        after = page.next;
    }
    let names: Vec<&str> = seen.iter().map(|report| &report.stream[..]).collect();
    assert_eq!(names, ["a", "b", "c", "d", "e"]);
    let b = &seen[1];
    assert_eq!((b.first_seq, b.last_seq, b.messages, &b.groups[..]), (1, 2, 2, &["team".to_owned()][..]));
    assert!(b.bytes > 0 && b.created_at_us > 0 && b.oldest_age_ms.is_some() && b.published.is_some());
    let page = client.list_streams(v1::ListStreamsRequest { limit: 1_001, ..Default::default() }).await;
    is_refused(page, Code::InvalidArgument, "invalid-field", "limit must be between 1 and 1000");
    let page = client.list_streams(v1::ListStreamsRequest { after: "a\n".to_owned(), limit: 1 }).await;
    is_refused(page, Code::InvalidArgument, "invalid-name", "after must");
    let stream = client.get_stream(of_stream!(GetStreamRequest, "nothing")).await;
    is_refused(stream, Code::NotFound, "no-such-stream", "no such stream");
    server.stop();
}

fn of_kind(key: &str, kind: &str, body: &str) -> v1::Message {
    v1::Message { key: key.to_owned(), r#type: kind.to_owned(), ..message(body) }
}

fn bodies(messages: &[v1::StoredMessage]) -> Vec<(u64, String)> {
    let body = |stored: &v1::StoredMessage| stored.message.clone().expect("it has a message").body;
    messages.iter().map(|stored| (stored.seq, String::from_utf8_lossy(&body(stored)).into_owned())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_can_be_seen_without_being_taken() {
    let server = Server::start_in_memory().await;
    let mut client = server.client();
    server.create_group("work", "team").await;
    let messages = vec![
        of_kind("k1", "email", "1"),
        of_kind("k2", "email", "2"),
        of_kind("k1", "letter", "3"),
        of_kind("k1", "email", "4"),
    ];
    publish_one(&server, "work", messages).await;
    let first = answer(client.read_messages(of_stream!(ReadMessagesRequest, "work", limit: 3)).await);
    assert_eq!(bodies(&first.messages).len(), 3);
    assert_eq!((first.next, first.last_seq), (4, 4));
    let one = first.messages[0].message.clone().expect("it has a message");
    assert_eq!((&one.key[..], &one.r#type[..], one.published_at_us > 0), ("k1", "email", true));
    let rest = of_stream!(ReadMessagesRequest, "work", from: first.next);
    let rest = answer(client.read_messages(rest).await);
    assert_eq!((bodies(&rest.messages), rest.next), (vec![(4, "4".to_owned())], 5));
    let some = of_stream!(ReadMessagesRequest, "work", key: "k1".to_owned(), r#type: "email".to_owned());
    let some = answer(client.read_messages(some).await);
    assert_eq!(bodies(&some.messages), [(1, "1".to_owned()), (4, "4".to_owned())]);
    let figures = server.figures("work", "team").await.expect("the group is there");
    assert_eq!((figures.lag, figures.in_flight), (4, 0), "nothing was disturbed");

    let too_many = of_stream!(ReadMessagesRequest, "work", limit: 2_000);
    is_refused(client.read_messages(too_many).await, Code::InvalidArgument, "invalid-field", "limit must");
    let absent = of_stream!(ReadMessagesRequest, "nothing");
    is_refused(client.read_messages(absent).await, Code::NotFound, "no-such-stream", "no such stream");
    server.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_of_large_messages_fits_into_a_reply() {
    let server = Server::start_in_memory().await;
    // Their contents together are what the broker reads at a time, 4 MiB, and with their fields more than that.
    let large = "x".repeat((1 << 20) - 8);
    for _ in 0..4 {
        publish_one(&server, "work", vec![message(&large)]).await;
    }
    // A client with the limits that clients have.
    let mut client = v1::forebay_client::ForebayClient::new(server.channel());
    let (mut from, mut seen) = (0, 0);
    loop {
        let page = answer(client.read_messages(of_stream!(ReadMessagesRequest, "work", from: from)).await);
        assert!(!page.messages.is_empty());
        seen += page.messages.len();
        from = page.next;
        if from > page.last_seq {
            break;
        }
    }
    assert_eq!(seen, 4);
    server.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everyone_who_follows_sees_everything_in_order() {
    let server = Server::start_in_memory().await;
    let mut client = server.client();
    publish(&server, "log", ["1", "2", "3"], 3).await;
    let mut all = answer(client.follow_stream(of_stream!(FollowStreamRequest, "log")).await);
    let mut late = answer(client.follow_stream(of_stream!(FollowStreamRequest, "log", new_only: true)).await);
    let picky = of_stream!(FollowStreamRequest, "log", from: 2, key: "k".to_owned());
    let mut picky = answer(client.follow_stream(picky).await);
    let first = all.message().await.expect("it goes on").expect("it goes on");
    assert_eq!((bodies(&first.messages).len(), first.next), (3, 4));
    publish_one(&server, "log", vec![message("4"), of_kind("k", "", "5")]).await;
    let next = all.message().await.expect("it goes on").expect("it goes on");
    assert_eq!(bodies(&next.messages), [(4, "4".to_owned()), (5, "5".to_owned())]);
    let next = late.message().await.expect("it goes on").expect("it goes on");
    assert_eq!(bodies(&next.messages), [(4, "4".to_owned()), (5, "5".to_owned())]);
    let next = picky.message().await.expect("it goes on").expect("it goes on");
    assert_eq!(bodies(&next.messages), [(5, "5".to_owned())]);

    let both = of_stream!(FollowStreamRequest, "log", from: 2, new_only: true);
    is_refused(client.follow_stream(both).await, Code::InvalidArgument, "invalid-field", "from must not");
    let absent = of_stream!(FollowStreamRequest, "nothing");
    is_refused(client.follow_stream(absent).await, Code::NotFound, "no-such-stream", "no such stream");
    answer(client.delete_stream(of_stream!(DeleteStreamRequest, "log")).await);
    let gone = all.message().await.expect_err("the stream is gone");
    assert_eq!(gone.code(), Code::NotFound, "{gone:?}");
    publish(&server, "other", ["1"], 1).await;
    let mut other = answer(client.follow_stream(of_stream!(FollowStreamRequest, "other")).await);
    other.message().await.expect("it goes on").expect("it goes on");
    server.stop();
    let stopped = other.message().await.expect_err("the server has stopped");
    assert_eq!(stopped.code(), Code::Unavailable, "{stopped:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_is_purged_and_deleted_with_its_groups() {
    let server = Server::start_in_memory().await;
    let mut client = server.client();
    server.create_group("work", "team").await;
    publish(&server, "work", (1..=10).map(|n| n.to_string()), 10).await;
    let purged = answer(client.purge_stream(of_stream!(PurgeStreamRequest, "work")).await);
    assert_eq!(purged.messages, 10);
    assert_eq!(server.figures("work", "team").await.expect("the group is there").lag, 0);
    let absent = client.purge_stream(of_stream!(PurgeStreamRequest, "nothing")).await;
    is_refused(absent, Code::NotFound, "no-such-stream", "no such stream");

    let mut consumer = Session::open(&server, "work", "team", 1).await;
    let in_use = client.delete_stream(of_stream!(DeleteStreamRequest, "work")).await;
    is_refused(in_use, Code::FailedPrecondition, "in-use", "groups of the stream have consumers");
    answer(client.delete_stream(of_stream!(DeleteStreamRequest, "work", force: true)).await);
    assert_eq!(consumer.ended().await, Some(Code::NotFound));
    let gone = client.delete_stream(of_stream!(DeleteStreamRequest, "work")).await;
    is_refused(gone, Code::NotFound, "no-such-stream", "no such stream");
    let gone = client.get_group(of_group!(GetGroupRequest, "work", "team")).await;
    is_refused(gone, Code::NotFound, "no-such-stream", "no such stream");
    server.stop();
}
