//! Appending, reading, catch-up subscriptions, deletion and metadata.

use bytes::Bytes;
use kurrentdb::{
    Client, CurrentRevision, Error, EventData, Position, ReadAllOptions, ReadEvent, ReadStream,
    ReadStreamOptions, ResolvedEvent, RetryOptions, StreamMetadata, StreamMetadataResult, StreamPosition,
    StreamState, SubscribeToAllOptions, SubscribeToStreamOptions, Subscription, SubscriptionEvent,
    SubscriptionFilter,
};
use uuid::Uuid;

use crate::server::Server;
use crate::{append, client_of, events, eventually, expecting, soon, unique};

async fn all_of(mut read: ReadStream) -> kurrentdb::Result<Vec<ResolvedEvent>> {
    let mut found = Vec::new();
    while let Some(event) = soon(read.next()).await? {
        found.push(event);
    }
    Ok(found)
}

async fn revisions(
    client: &Client,
    stream: &str,
    options: &ReadStreamOptions,
) -> kurrentdb::Result<Vec<u64>> {
    let found = all_of(client.read_stream(stream, options).await?).await?;
    Ok(found.iter().map(|event| event.get_original_event().revision).collect())
}

/// What a subscription says next, apart from events.
async fn notice(subscription: &mut Subscription) -> SubscriptionEvent {
    soon(subscription.next_subscription_event()).await.expect("a notice")
}

#[tokio::test]
async fn an_event_comes_back_as_it_was_appended() {
    let server = Server::shared();
    let (client, stream) = (client_of(&server.url()), unique("orders"));
    let id = Uuid::new_v4();
    let json = EventData::json("Placed", &serde_json::json!({ "n": 7 })).expect("JSON").id(id);
    let json = json.metadata_as_json(&serde_json::json!({ "by": "me" })).expect("JSON");
    let bytes =
        EventData::binary("Raw", Bytes::from_static(&[0, 255, 1])).metadata(Bytes::from_static(&[254, 0]));
    let written =
        client.append_to_stream(stream.as_str(), &expecting(StreamState::Any), vec![json, bytes]).await;
    let written = written.expect("appended");
    assert_eq!(written.next_expected_version, 1);

    let read = client.read_stream(stream.as_str(), &ReadStreamOptions::default()).await.expect("read");
    let found = all_of(read).await.expect("events");
    let [first, second] = &found[..] else { panic!("two events, not {}", found.len()) };
    let (first, second) = (first.get_original_event(), second.get_original_event());
    assert_eq!((first.id, first.revision, first.event_type.as_str()), (id, 0, "Placed"));
    assert_eq!((first.stream_id(), first.is_json, second.is_json), (stream.as_str(), true, false));
    assert_eq!(first.as_json::<serde_json::Value>().expect("JSON"), serde_json::json!({ "n": 7 }));
    assert_eq!(first.custom_metadata, Bytes::from_static(br#"{"by":"me"}"#));
    assert_eq!((&second.data[..], &second.custom_metadata[..]), (&[0, 255, 1][..], &[254, 0][..]));
    assert!(first.position < second.position && second.position == written.position);
    assert!(first.created.timestamp() > 1_700_000_000, "{}", first.created);
}

#[tokio::test]
async fn every_expected_revision_is_checked() {
    let server = Server::shared();
    let (client, stream) = (client_of(&server.url()), unique("orders"));
    let attempt = async |state| {
        let written = client.append_to_stream(stream.as_str(), &expecting(state), events("T", 1)).await;
        match written {
            Ok(written) => Ok(written.next_expected_version),
            Err(Error::WrongExpectedVersion { expected, current }) => {
                assert_eq!(expected, state);
                Err(current)
            }
            Err(other) => panic!("{other}"),
        }
    };
    assert_eq!(attempt(StreamState::StreamExists).await, Err(CurrentRevision::NoStream));
    assert_eq!(attempt(StreamState::StreamRevision(0)).await, Err(CurrentRevision::NoStream));
    assert_eq!(attempt(StreamState::NoStream).await, Ok(0));
    assert_eq!(attempt(StreamState::NoStream).await, Err(CurrentRevision::Current(0)));
    assert_eq!(attempt(StreamState::StreamRevision(1)).await, Err(CurrentRevision::Current(0)));
    assert_eq!(attempt(StreamState::StreamRevision(0)).await, Ok(1));
    assert_eq!(attempt(StreamState::StreamExists).await, Ok(2));
    assert_eq!(attempt(StreamState::Any).await, Ok(3));
}

#[tokio::test]
async fn a_repeated_write_is_answered_as_the_first_time() {
    let server = Server::shared();
    let client = client_of(&server.url());
    for state in [StreamState::NoStream, StreamState::Any] {
        let (stream, options) = (unique("orders"), expecting(state));
        let sent: Vec<EventData> = events("T", 3).into_iter().map(|event| event.id(Uuid::new_v4())).collect();
        let write = || client.append_to_stream(stream.as_str(), &options, sent.clone());
        let (first, again) = (write().await.expect("appended"), write().await.expect("answered"));
        assert_eq!((first.next_expected_version, again.next_expected_version), (2, 2), "{state}");
        assert_eq!(first.position, again.position, "{state}");
        assert_eq!(
            revisions(&client, &stream, &ReadStreamOptions::default()).await.expect("read"),
            [0, 1, 2]
        );
    }
}

#[tokio::test]
async fn many_writes_share_one_batch_call() {
    let server = Server::shared();
    let client = client_of(&server.url());
    let (stream, other) = (unique("orders"), unique("orders"));
    let batch = client.batch_append(&Default::default()).await.expect("a session");
    let (first, second) = soon(async {
        tokio::join!(
            batch.append_to_stream(&stream, StreamState::NoStream, events("T", 3)),
            batch.append_to_stream(&other, StreamState::Any, events("T", 2)),
        )
    })
    .await;
    let (first, second) = (first.expect("appended"), second.expect("appended"));
    assert_eq!((first.stream_name(), first.current_revision()), (stream.as_str(), Some(2)));
    assert_eq!((second.stream_name(), second.current_revision()), (other.as_str(), Some(1)));
    assert!(first.current_position().is_some());
    // The client shows a refusal by its text alone, and ends the session with it.
    let refused = soon(batch.append_to_stream(&stream, StreamState::NoStream, events("T", 1))).await;
    let refused = refused.expect_err("a conflict");
    assert!(
        refused.to_string().contains("WrongExpectedVersion")
            || matches!(refused, Error::ResourceAlreadyExists)
    );
    assert_eq!(revisions(&client, &stream, &ReadStreamOptions::default()).await.expect("read"), [0, 1, 2]);
}

#[tokio::test]
async fn a_stream_is_read_in_both_directions_from_any_place() {
    let server = Server::shared();
    let (client, stream) = (client_of(&server.url()), unique("orders"));
    append(&client, &stream, "T", 5).await;
    let from = |revision| ReadStreamOptions::default().position(StreamPosition::Position(revision));
    let rows = [
        (ReadStreamOptions::default(), vec![0, 1, 2, 3, 4]),
        (ReadStreamOptions::default().max_count(2), vec![0, 1]),
        (from(3), vec![3, 4]),
        (from(3).backwards(), vec![3, 2, 1, 0]),
        (ReadStreamOptions::default().position(StreamPosition::End), vec![4, 3, 2, 1, 0]),
        (ReadStreamOptions::default().position(StreamPosition::End).max_count(1), vec![4]),
        (from(9), vec![]),
    ];
    for (options, expected) in rows {
        assert_eq!(revisions(&client, &stream, &options).await.expect("read"), expected);
    }
    // After the events the server says where the stream ends.
    let options = ReadStreamOptions::default().max_count(1);
    let mut read = client.read_stream(stream.as_str(), &options).await.expect("read");
    let mut last = None;
    while let Some(said) = soon(read.next_read_event()).await.expect("said") {
        if let ReadEvent::LastStreamPosition(revision) = said {
            last = Some(revision);
        }
    }
    assert_eq!(last, Some(4));
}

#[tokio::test]
async fn missing_and_deleted_streams_are_told_apart() {
    let server = Server::shared();
    let (client, stream) = (client_of(&server.url()), unique("orders"));
    let read = async || revisions(&client, &stream, &ReadStreamOptions::default()).await;
    assert!(matches!(read().await, Err(Error::ResourceNotFound)));
    append(&client, &stream, "T", 2).await;
    client.delete_stream(stream.as_str(), &Default::default()).await.expect("deleted");
    assert!(matches!(read().await, Err(Error::ResourceNotFound)));
    append(&client, &stream, "T", 1).await;
    assert_eq!(read().await.expect("read"), [2]);
    client.tombstone_stream(stream.as_str(), &Default::default()).await.expect("deleted for ever");
    assert!(matches!(read().await, Err(Error::ResourceDeleted)));
    let refused =
        client.append_to_stream(stream.as_str(), &expecting(StreamState::Any), events("T", 1)).await;
    assert!(matches!(refused, Err(Error::ResourceDeleted)), "{refused:?}");
}

#[tokio::test]
async fn an_event_that_is_too_large_is_refused() {
    let server = Server::shared();
    let (client, stream) = (client_of(&server.url()), unique("orders"));
    let large = EventData::binary("T", Bytes::from(vec![1; 2 << 20]));
    match client.append_to_stream(stream.as_str(), &expecting(StreamState::Any), large).await {
        Err(Error::Grpc { code, .. }) => assert_eq!(format!("{code:?}"), "InvalidArgument"),
        other => panic!("{other:?}"),
    }
    assert!(matches!(
        revisions(&client, &stream, &ReadStreamOptions::default()).await,
        Err(Error::ResourceNotFound)
    ));
}

#[tokio::test]
async fn metadata_limits_a_stream() {
    let server = Server::shared();
    let (client, stream) = (client_of(&server.url()), unique("orders"));
    append(&client, &stream, "T", 5).await;
    let metadata = StreamMetadata::builder().max_count(2).insert_custom_property("team", "a").build();
    client.set_stream_metadata(stream.as_str(), &Default::default(), &metadata).await.expect("set");
    match client.get_stream_metadata(stream.as_str(), &Default::default()).await.expect("metadata") {
        StreamMetadataResult::Success(found) => {
            assert_eq!((found.metadata(), found.version()), (&metadata, 0))
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(revisions(&client, &stream, &ReadStreamOptions::default()).await.expect("read"), [3, 4]);
    let none = client.get_stream_metadata(unique("orders"), &Default::default()).await.expect("metadata");
    assert!(none.is_not_found());
}

#[tokio::test]
async fn a_subscription_gets_old_and_new_events_and_says_when_it_has_caught_up() {
    let server = Server::shared();
    let (client, stream) = (client_of(&server.url()), unique("orders"));
    append(&client, &stream, "T", 2).await;
    let options = SubscribeToStreamOptions::default().start_from(StreamPosition::Start);
    let mut subscription = client.subscribe_to_stream(stream.as_str(), &options).await;
    assert!(matches!(notice(&mut subscription).await, SubscriptionEvent::Confirmed(_)));
    for revision in 0..2 {
        assert_eq!(
            soon(subscription.next()).await.expect("an event").get_original_event().revision,
            revision
        );
    }
    match notice(&mut subscription).await {
        SubscriptionEvent::CaughtUp(Some(at)) => assert_eq!(at.stream_revision, Some(1)),
        other => panic!("{other:?}"),
    }
    append(&client, &stream, "T", 1).await;
    assert_eq!(soon(subscription.next()).await.expect("an event").get_original_event().revision, 2);

    // After a revision, and for later events only.
    let options = SubscribeToStreamOptions::default().start_from(StreamPosition::Position(1));
    let mut after = client.subscribe_to_stream(stream.as_str(), &options).await;
    assert_eq!(soon(after.next()).await.expect("an event").get_original_event().revision, 2);
    let mut end = client.subscribe_to_stream(stream.as_str(), &SubscribeToStreamOptions::default()).await;
    assert!(matches!(notice(&mut end).await, SubscriptionEvent::Confirmed(_)));
    append(&client, &stream, "T", 1).await;
    assert_eq!(soon(end.next()).await.expect("an event").get_original_event().revision, 3);
}

#[tokio::test]
async fn all_streams_are_read_and_followed_with_a_filter() {
    let server = Server::shared();
    let client = client_of(&server.url());
    let stem = unique("category");
    let (kind, other) = (unique("Kind"), unique("Other"));
    append(&client, &format!("{stem}-1"), &kind, 2).await;
    append(&client, &format!("{stem}-2"), &other, 2).await;
    let of_kind = || SubscriptionFilter::on_event_type().add_prefix(&kind);
    let of_stem = || SubscriptionFilter::on_stream_name().regex(format!("^{stem}-[12]$"));

    let read = async |options: ReadAllOptions| {
        let found = all_of(client.read_all(&options).await.expect("read")).await.expect("events");
        let original = found.iter().map(ResolvedEvent::get_original_event);
        original.map(|event| (event.event_type.clone(), event.revision)).collect::<Vec<_>>()
    };
    let expected = [(kind.clone(), 0), (kind.clone(), 1), (other.clone(), 0), (other.clone(), 1)];
    assert_eq!(read(ReadAllOptions::default().filter(of_stem())).await, expected);
    assert_eq!(read(ReadAllOptions::default().filter(of_kind())).await, expected[..2]);
    let backwards = ReadAllOptions::default().position(StreamPosition::End).filter(of_stem()).max_count(2);
    assert_eq!(read(backwards).await, [expected[3].clone(), expected[2].clone()]);

    let options = SubscribeToAllOptions::default().filter(of_kind());
    let mut subscription = client.subscribe_to_all(&options).await;
    assert!(matches!(notice(&mut subscription).await, SubscriptionEvent::Confirmed(_)));
    for revision in 0..2 {
        let event = soon(subscription.next()).await.expect("an event");
        assert_eq!(event.get_original_event().revision, revision);
    }
    // It says how far it has looked, and goes on with new events.
    let mut checkpoint = Position::start();
    while checkpoint == Position::start() {
        if let SubscriptionEvent::Checkpoint(at) = notice(&mut subscription).await {
            checkpoint = at;
        }
    }
    append(&client, &format!("{stem}-1"), &kind, 1).await;
    let event = soon(subscription.next()).await.expect("an event");
    assert_eq!(event.get_original_event().revision, 2);
    assert!(event.get_original_event().position > checkpoint);
}

#[tokio::test]
async fn the_server_is_found_by_its_gossip() {
    let server = Server::shared();
    let (client, stream) = (client_of(&server.discovered_url()), unique("orders"));
    append(&client, &stream, "T", 1).await;
    assert_eq!(revisions(&client, &stream, &ReadStreamOptions::default()).await.expect("read"), [0]);
    let about = client.server_info().await.expect("the server's features");
    assert!(about.version().major() >= 24, "{:?}", about.version());
}

#[tokio::test]
async fn a_subscription_goes_on_after_the_server_was_killed() {
    let mut server = Server::start();
    let (client, stream) = (client_of(&server.url()), unique("orders"));
    append(&client, &stream, "T", 2).await;
    let retries = RetryOptions::default().retry_forever();
    let options =
        SubscribeToStreamOptions::default().start_from(StreamPosition::Start).retry_options(retries);
    let mut subscription = client.subscribe_to_stream(stream.as_str(), &options).await;
    for revision in 0..2 {
        assert_eq!(
            soon(subscription.next()).await.expect("an event").get_original_event().revision,
            revision
        );
    }
    server.kill_and_start();
    // The client connects again by itself; the call that shows it that the connection is gone may fail.
    let any = expecting(StreamState::Any);
    let write = || client.append_to_stream(stream.as_str(), &any, events("After", 1));
    eventually(write, |written| written.is_ok()).await.expect("appended");
    let event = soon(subscription.next()).await.expect("an event");
    let event = event.get_original_event();
    assert_eq!((event.event_type.as_str(), event.revision), ("After", 2));
}
