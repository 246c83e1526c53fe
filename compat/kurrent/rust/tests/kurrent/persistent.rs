//! Persistent subscriptions: settings, consuming, each answer, parking, and each error by its type.

use std::time::Duration;

use kurrentdb::{
    Client, Error, NakAction, PersistentSubscription, PersistentSubscriptionEvent,
    PersistentSubscriptionInfo, PersistentSubscriptionOptions, PersistentSubscriptionToAllOptions,
    ReadStreamOptions, ReplayParkedMessagesOptions, ResolvedEvent, StreamPosition,
    SubscribeToPersistentSubscriptionOptions, SubscriptionFilter, SystemConsumerStrategy,
};

use crate::server::Server;
use crate::{A_WHILE, append, client_of, eventually, soon, unique};

const GROUP: &str = "workers";

fn from_start() -> PersistentSubscriptionOptions {
    PersistentSubscriptionOptions::default().start_from(StreamPosition::Start)
}

async fn create(client: &Client, stream: &str, options: &PersistentSubscriptionOptions) {
    client.create_persistent_subscription(stream, GROUP, options).await.expect("created");
}

async fn info(client: &Client, stream: &str) -> PersistentSubscriptionInfo<u64> {
    client.get_persistent_subscription_info(stream, GROUP, &Default::default()).await.expect("info")
}

/// Waits until so many events are parked.
async fn parked(client: &Client, stream: &str, count: usize) {
    eventually(|| info(client, stream), |info| info.stats.parked_message_count == count).await;
}

/// A consumer whose call has been confirmed.
struct Reading(PersistentSubscription);

impl Reading {
    async fn open(client: &Client, stream: &str, buffer: usize) -> Reading {
        let options = SubscribeToPersistentSubscriptionOptions::default().buffer_size(buffer);
        let call =
            client.subscribe_to_persistent_subscription(stream, GROUP, &options).await.expect("subscribed");
        let mut reading = Reading(call);
        match soon(reading.0.next_subscription_event()).await.expect("a confirmation") {
            PersistentSubscriptionEvent::Confirmed(id) => assert_eq!(id, format!("{stream}::{GROUP}")),
            other => panic!("{other:?}"),
        }
        reading
    }

    /// The next event and how often it was sent before.
    async fn next(&mut self) -> (ResolvedEvent, usize) {
        match soon(self.0.next_subscription_event()).await.expect("an event") {
            PersistentSubscriptionEvent::EventAppeared { event, retry_count } => (event, retry_count),
            other => panic!("{other:?}"),
        }
    }

    /// The next so many events, and their revisions.
    async fn take(&mut self, count: usize) -> (Vec<ResolvedEvent>, Vec<u64>) {
        let mut taken = Vec::new();
        for _ in 0..count {
            taken.push(self.next().await.0);
        }
        let revisions = taken.iter().map(revision).collect();
        (taken, revisions)
    }

    async fn ack(&mut self, event: &ResolvedEvent) {
        self.0.ack(event).await.expect("sent");
    }

    async fn nack(&mut self, event: &ResolvedEvent, action: NakAction) {
        self.0.nack(event, action, "no").await.expect("sent");
    }

    async fn has_nothing(&mut self) {
        let next = tokio::time::timeout(A_WHILE, self.0.next_subscription_event()).await;
        assert!(next.is_err(), "{next:?}");
    }

    /// The error with which the call ends.
    async fn end(&mut self) -> Error {
        soon(async {
            loop {
                if let Err(error) = self.0.next_subscription_event().await {
                    return error;
                }
            }
        })
        .await
    }
}

/// The revision of the event itself, whether a link led to it or not.
fn revision(event: &ResolvedEvent) -> u64 {
    event.event.as_ref().expect("an event").revision
}

#[tokio::test]
async fn settings_are_kept_and_updated() {
    let server = Server::shared();
    let (client, stream) = (client_of(&server.url()), unique("orders"));
    create(&client, &stream, &PersistentSubscriptionOptions::default()).await;
    let settings = info(&client, &stream).await.settings.expect("settings");
    assert_eq!(settings.start_from, StreamPosition::End);
    assert_eq!((settings.message_timeout, settings.max_retry_count), (Duration::from_secs(30), 10));
    assert_eq!((settings.read_batch_size, settings.history_buffer_size), (20, 500));
    assert_eq!((settings.checkpoint_lower_bound, settings.checkpoint_upper_bound), (10, 1000));
    assert_eq!(settings.consumer_strategy_name, SystemConsumerStrategy::RoundRobin);

    let changed = PersistentSubscriptionOptions::default()
        .start_from(StreamPosition::Position(7))
        .resolve_link_tos(true)
        .extra_statistics(true)
        .message_timeout(Duration::from_millis(7500))
        .max_retry_count(3)
        .live_buffer_size(300)
        .read_batch_size(30)
        .history_buffer_size(400)
        .checkpoint_after(Duration::from_millis(1500))
        .checkpoint_lower_bound(5)
        .checkpoint_upper_bound(50)
        .max_subscriber_count(2)
        .consumer_strategy_name(SystemConsumerStrategy::Pinned);
    client.update_persistent_subscription(stream.as_str(), GROUP, &changed).await.expect("updated");
    let settings = info(&client, &stream).await.settings.expect("settings");
    assert_eq!(settings.start_from, StreamPosition::Position(7));
    assert!(settings.resolve_link_tos && settings.extra_statistics);
    assert_eq!((settings.message_timeout, settings.max_retry_count), (Duration::from_millis(7500), 3));
    let sizes = (settings.live_buffer_size, settings.read_batch_size, settings.history_buffer_size);
    assert_eq!(sizes, (300, 30, 400));
    assert_eq!(settings.checkpoint_after, Duration::from_millis(1500));
    assert_eq!((settings.checkpoint_lower_bound, settings.checkpoint_upper_bound), (5, 50));
    assert_eq!(settings.max_subscriber_count, 2);
    assert_eq!(settings.consumer_strategy_name, SystemConsumerStrategy::Pinned);
}

#[tokio::test]
async fn two_consumers_hold_no_more_than_their_buffers() {
    let server = Server::shared();
    let (client, stream) = (client_of(&server.url()), unique("orders"));
    create(&client, &stream, &from_start()).await;
    let mut first = Reading::open(&client, &stream, 2).await;
    let mut second = Reading::open(&client, &stream, 3).await;
    append(&client, &stream, "T", 7).await;
    let (held, of_first) = first.take(2).await;
    let (_, of_second) = second.take(3).await;
    let mut all = [of_first, of_second].concat();
    all.sort_unstable();
    assert_eq!(all, [0, 1, 2, 3, 4]);
    first.has_nothing().await;
    second.has_nothing().await;
    first.ack(&held[0]).await;
    assert_eq!(first.take(1).await.1, [5]);
    second.has_nothing().await;
    let info = info(&client, &stream).await;
    assert_eq!((info.connections.len(), info.stats.total_in_flight_messages), (2, 5));
}

#[tokio::test]
async fn an_acked_event_does_not_come_again() {
    let server = Server::shared();
    let (client, stream) = (client_of(&server.url()), unique("orders"));
    create(&client, &stream, &from_start()).await;
    append(&client, &stream, "T", 4).await;
    let mut reading = Reading::open(&client, &stream, 10).await;
    let (held, revisions) = reading.take(4).await;
    assert_eq!(revisions, [0, 1, 2, 3]);
    reading.ack(&held[0]).await;
    reading.ack(&held[2]).await;
    eventually(|| info(&client, &stream), |info| info.stats.total_in_flight_messages == 2).await;
    drop(reading);
    let mut again = Reading::open(&client, &stream, 10).await;
    assert_eq!(again.take(2).await.1, [1, 3]);
    again.has_nothing().await;
}

#[tokio::test]
async fn each_nack_does_as_it_says() {
    let server = Server::shared();
    let (client, stream) = (client_of(&server.url()), unique("orders"));
    create(&client, &stream, &from_start()).await;
    append(&client, &stream, "T", 5).await;
    let mut reading = Reading::open(&client, &stream, 10).await;
    let (held, _) = reading.take(5).await;
    for (event, action) in [(0, NakAction::Skip), (1, NakAction::Stop), (2, NakAction::Park)] {
        reading.nack(&held[event], action).await;
    }
    parked(&client, &stream, 1).await;
    for (event, action) in [(3, NakAction::Retry), (4, NakAction::Unknown)] {
        reading.nack(&held[event], action).await;
        let (again, retries) = reading.next().await;
        assert_eq!((revision(&again), retries), (event as u64, 1));
        reading.ack(&again).await;
    }
    reading.has_nothing().await;
    eventually(|| info(&client, &stream), |info| info.stats.total_in_flight_messages == 0).await;
}

#[tokio::test]
async fn an_event_without_an_answer_comes_again_and_is_parked_after_its_retries() {
    let server = Server::shared();
    let (client, stream) = (client_of(&server.url()), unique("orders"));
    let options = from_start().message_timeout(Duration::from_millis(300)).max_retry_count(1);
    create(&client, &stream, &options).await;
    append(&client, &stream, "T", 1).await;
    let mut reading = Reading::open(&client, &stream, 10).await;
    for expected in 0..2 {
        let (event, retries) = reading.next().await;
        assert_eq!((revision(&event), retries), (0, expected));
    }
    parked(&client, &stream, 1).await;
    reading.has_nothing().await;
}

#[tokio::test]
async fn parked_events_are_read_and_replayed() {
    let server = Server::shared();
    let (client, stream) = (client_of(&server.url()), unique("orders"));
    create(&client, &stream, &from_start().max_retry_count(0)).await;
    append(&client, &stream, "T", 3).await;
    let mut reading = Reading::open(&client, &stream, 10).await;
    let (held, _) = reading.take(3).await;
    for event in &held {
        // Without retries, the first failure parks.
        reading.nack(event, NakAction::Retry).await;
    }
    parked(&client, &stream, 3).await;

    let name = format!("$persistentsubscription-{stream}::{GROUP}-parked");
    let options = ReadStreamOptions::default().resolve_link_tos();
    let mut read = client.read_stream(name, &options).await.expect("read");
    for expected in 0..3 {
        let entry = soon(read.next()).await.expect("read").expect("an entry");
        assert!(entry.is_resolved());
        assert_eq!(revision(&entry), expected);
    }

    let stop = ReplayParkedMessagesOptions::default().stop_at(2);
    client.replay_parked_messages(&stream, GROUP, &stop).await.expect("replayed");
    let (again, revisions) = reading.take(2).await;
    assert_eq!(revisions, [0, 1]);
    reading.has_nothing().await;
    for event in &again {
        reading.ack(event).await;
    }
    parked(&client, &stream, 1).await;
    client.replay_parked_messages(&stream, GROUP, &Default::default()).await.expect("replayed");
    let (rest, revisions) = reading.take(1).await;
    assert_eq!(revisions, [2]);
    reading.ack(&rest[0]).await;
    parked(&client, &stream, 0).await;
}

#[tokio::test]
async fn an_update_and_a_deletion_drop_consumers() {
    let server = Server::shared();
    let (client, stream) = (client_of(&server.url()), unique("orders"));
    create(&client, &stream, &from_start()).await;
    let mut reading = Reading::open(&client, &stream, 10).await;
    let changed = from_start().max_retry_count(2);
    client.update_persistent_subscription(stream.as_str(), GROUP, &changed).await.expect("updated");
    let end = reading.end().await;
    assert!(matches!(&end, Error::IllegalStateError(text) if text.contains("dropped")), "{end}");

    append(&client, &stream, "T", 1).await;
    let mut reading = Reading::open(&client, &stream, 10).await;
    assert_eq!(reading.take(1).await.1, [0]);
    client
        .delete_persistent_subscription(stream.as_str(), GROUP, &Default::default())
        .await
        .expect("deleted");
    let end = reading.end().await;
    assert!(matches!(&end, Error::IllegalStateError(text) if text.contains("dropped")), "{end}");
    let gone = client.get_persistent_subscription_info(&stream, GROUP, &Default::default()).await;
    assert!(matches!(gone, Err(Error::ResourceNotFound)));
}

#[tokio::test]
async fn a_restart_of_the_subsystem_drops_consumers() {
    // Of its own, because a restart drops the consumers of all tests.
    let server = Server::start();
    let (client, stream) = (client_of(&server.url()), unique("orders"));
    create(&client, &stream, &from_start()).await;
    let mut reading = Reading::open(&client, &stream, 10).await;
    client.restart_persistent_subscription_subsystem(&Default::default()).await.expect("restarted");
    let end = reading.end().await;
    assert!(matches!(&end, Error::IllegalStateError(text) if text.contains("dropped")), "{end}");
    append(&client, &stream, "T", 1).await;
    assert_eq!(Reading::open(&client, &stream, 10).await.take(1).await.1, [0]);
}

#[tokio::test]
async fn info_and_lists_tell_the_progress() {
    let server = Server::shared();
    let (client, stream) = (client_of(&server.url()), unique("orders"));
    let options = from_start().checkpoint_lower_bound(1).checkpoint_upper_bound(1).extra_statistics(true);
    create(&client, &stream, &options).await;
    client.create_persistent_subscription(stream.as_str(), "others", &from_start()).await.expect("created");
    append(&client, &stream, "T", 3).await;
    let mut reading = Reading::open(&client, &stream, 10).await;
    let (held, _) = reading.take(3).await;
    reading.ack(&held[0]).await;
    reading.ack(&held[1]).await;
    let told = eventually(|| info(&client, &stream), |info| info.stats.total_in_flight_messages == 1).await;
    assert_eq!((told.event_source.as_str(), told.group_name.as_str()), (stream.as_str(), GROUP));
    assert_eq!((told.stats.total_items, told.stats.last_known_event_revision), (3, Some(2)));
    eventually(|| info(&client, &stream), |info| info.stats.last_checkpointed_event_revision == Some(1))
        .await;
    assert_eq!((told.connections.len(), told.connections[0].available_slots), (1, 9));

    let names = |list: Vec<PersistentSubscriptionInfo<u64>>| {
        let mut names: Vec<String> = list.into_iter().map(|info| info.group_name).collect();
        names.sort_unstable();
        names
    };
    let of_stream = client.list_persistent_subscriptions_for_stream(&stream, &Default::default()).await;
    assert_eq!(names(of_stream.expect("a list")), ["others", GROUP]);
    let all = client.list_all_persistent_subscriptions(&Default::default()).await.expect("a list");
    assert_eq!(all.iter().filter(|info| info.event_source == stream).count(), 2);
}

#[tokio::test]
async fn each_error_has_its_type() {
    let server = Server::shared();
    let (client, stream) = (client_of(&server.url()), unique("orders"));
    let missing = client.delete_persistent_subscription(stream.as_str(), GROUP, &Default::default()).await;
    assert!(matches!(missing, Err(Error::ResourceNotFound)), "{missing:?}");
    let missing = client.update_persistent_subscription(stream.as_str(), GROUP, &from_start()).await;
    assert!(matches!(missing, Err(Error::ResourceNotFound)), "{missing:?}");
    let missing = client.replay_parked_messages(&stream, GROUP, &Default::default()).await;
    assert!(matches!(missing, Err(Error::ResourceNotFound)), "{missing:?}");
    let missing = client.list_persistent_subscriptions_for_stream(&stream, &Default::default()).await;
    assert!(matches!(missing, Err(Error::ResourceNotFound)), "{missing:?}");
    let subscribe = async || {
        let options = SubscribeToPersistentSubscriptionOptions::default();
        let mut call = client.subscribe_to_persistent_subscription(stream.as_str(), GROUP, &options).await?;
        soon(call.next_subscription_event()).await.map(|_| call)
    };
    assert!(matches!(subscribe().await, Err(Error::ResourceNotFound)));

    let refused = from_start().read_batch_size(20).history_buffer_size(20);
    match client.create_persistent_subscription(stream.as_str(), GROUP, &refused).await {
        Err(Error::ServerError(text)) => {
            assert!(text.contains("read_batch_size must be less than"), "{text}")
        }
        other => panic!("{other:?}"),
    }
    create(&client, &stream, &from_start().max_subscriber_count(1)).await;
    let twice = client.create_persistent_subscription(stream.as_str(), GROUP, &from_start()).await;
    assert!(matches!(twice, Err(Error::ResourceAlreadyExists)), "{twice:?}");
    let _first = subscribe().await.expect("subscribed");
    match subscribe().await {
        Err(Error::Grpc { code, message }) => {
            assert_eq!(format!("{code:?}"), "FailedPrecondition");
            assert!(message.starts_with("Maximum subscriptions reached"), "{message}");
        }
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("one consumer is the most"),
    }
}

#[tokio::test]
async fn a_subscription_to_all_streams_has_a_filter() {
    let server = Server::shared();
    let client = client_of(&server.url());
    let (stem, group) = (unique("category"), unique("group"));
    let filter = SubscriptionFilter::on_stream_name().add_prefix(format!("{stem}-"));
    let options =
        PersistentSubscriptionToAllOptions::default().start_from(StreamPosition::Start).filter(filter);
    append(&client, &format!("{stem}-1"), "T", 2).await;
    client.create_persistent_subscription_to_all(&group, &options).await.expect("created");
    append(&client, &unique("unrelated"), "T", 1).await;
    append(&client, &format!("{stem}-2"), "T", 1).await;

    let subscribed = client.subscribe_to_persistent_subscription_to_all(&group, &Default::default()).await;
    let mut reading = Reading(subscribed.expect("subscribed"));
    match soon(reading.0.next_subscription_event()).await.expect("a confirmation") {
        PersistentSubscriptionEvent::Confirmed(id) => assert_eq!(id, format!("$all::{group}")),
        other => panic!("{other:?}"),
    }
    for expected in [("1", 0), ("1", 1), ("2", 0)] {
        let (event, _) = reading.next().await;
        let found = event.event.as_ref().expect("an event");
        assert_eq!(
            (found.stream_id(), found.revision),
            (format!("{stem}-{}", expected.0).as_str(), expected.1)
        );
        reading.ack(&event).await;
    }
    reading.has_nothing().await;
    let told =
        client.get_persistent_subscription_info_to_all(&group, &Default::default()).await.expect("info");
    assert_eq!((told.event_source.as_str(), told.group_name.as_str()), ("$all", group.as_str()));
    let list = client.list_persistent_subscriptions_to_all(&Default::default()).await.expect("a list");
    assert!(list.iter().any(|info| info.group_name == group));
    client.delete_persistent_subscription_to_all(&group, &Default::default()).await.expect("deleted");
    let end = reading.end().await;
    assert!(matches!(&end, Error::IllegalStateError(text) if text.contains("dropped")), "{end}");
}

#[tokio::test]
async fn nothing_acked_comes_again_after_the_server_was_killed() {
    let mut server = Server::start();
    let (client, stream) = (client_of(&server.url()), unique("orders"));
    create(&client, &stream, &from_start()).await;
    append(&client, &stream, "T", 6).await;
    let mut reading = Reading::open(&client, &stream, 10).await;
    let (held, _) = reading.take(6).await;
    for event in [0, 2, 4] {
        reading.ack(&held[event]).await;
    }
    eventually(|| info(&client, &stream), |info| info.stats.total_in_flight_messages == 3).await;
    // An ack is in the log with the next write, and this is one.
    append(&client, &stream, "T", 1).await;
    server.kill_and_start();
    let end = reading.end().await;
    assert!(
        !matches!(end, Error::IllegalStateError(_)),
        "a lost connection is no dropped subscription: {end}"
    );

    // The first call after the kill shows the client that it has to connect again.
    let ask = async || client.get_persistent_subscription_info(&stream, GROUP, &Default::default()).await;
    eventually(ask, |told| told.is_ok()).await.expect("info");
    let mut again = Reading::open(&client, &stream, 10).await;
    for expected in [1, 3, 5] {
        let (event, retries) = again.next().await;
        assert_eq!((revision(&event), retries), (expected, 1));
        again.ack(&event).await;
    }
    assert_eq!(again.take(1).await.1, [6]);
    again.has_nothing().await;
}
