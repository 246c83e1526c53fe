//! Subscriptions on a broker in memory whose clock the test moves, and the page that describes them.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use forebay_broker::api::{
    Backoff, BatchBuilder, Broker, BrokerConfig, CallError, Caller, Clock, Dedupe, Door, Grants, Message,
    Principal, PublishOptions, Retention, Strategy, Work,
};
use forebay_core::types::{GroupName, Seq, StreamName};
use forebay_storage::memory::{MemoryEngine, MemoryLog};
use forebay_wire::kurrent::client::{Empty, StreamIdentifier, StreamOptions, stream_options};
use forebay_wire::kurrent::persistent_subscriptions as wire;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use super::super::links::AllTerms;
use super::calls::Names;
use super::http::test::{self, route_name};
use super::parked::{self, ParkedStream};
use super::service::{Refusal, Subscriptions};
use super::settings::{ConsumerStrategy, Settings, StartFrom};
use super::{METHODS, Wish, refused};

const FRAME_BYTES_MAX: usize = 32 << 20;
const PAGE: &str = include_str!("../../../../../docs/reference/kurrent-subscriptions.md");

struct Rig {
    broker: Broker,
    caller: Caller,
    subscriptions: Arc<Subscriptions>,
}

fn names(stream: &str, group: &str) -> Names {
    let Ok(names) = Names::new(stream, group) else { panic!("they are names") };
    names
}

impl Rig {
    async fn start() -> Rig {
        let config = BrokerConfig::new([7; 32]);
        let engine = MemoryEngine::new(MemoryLog::new(config.driver.shard, FRAME_BYTES_MAX));
        let opened = Broker::open(Arc::new(engine), Clock::still(), config).await;
        let broker = opened.expect("a new log opens").0;
        let caller = broker.enter(Principal::owner(), None);
        let subscriptions = Subscriptions::open(&caller).await.expect("there are no notes");
        Rig { broker, caller, subscriptions: Arc::new(subscriptions) }
    }

    async fn create(&self, stream: &str, group: &str, settings: Settings) -> Result<(), Refusal> {
        self.subscriptions.create(&self.caller, names(stream, group), settings).await
    }

    /// Appends events whose ids end in their numbers.
    async fn append(&self, stream: &str, numbers: std::ops::Range<u32>) {
        let mut builder = BatchBuilder::default();
        for number in numbers {
            let id = id(number);
            builder.push(&Message {
                id: Some(&id),
                dedupe: Dedupe::No,
                kind: Some("Placed"),
                body: b"{}",
                ..Message::default()
            });
        }
        let (batch, name) = (builder.build(), Arc::new(StreamName::stored(stream)));
        let room = self.broker.room(&name, &batch).await;
        let stored = self.caller.publish(room, name, batch, PublishOptions::default());
        stored.await.expect("they are stored");
    }

    async fn http(&self, method: Method, address: &str, body: &str) -> (StatusCode, Value) {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_static("localhost:2113"));
        let answered = test::answer(
            &self.subscriptions,
            self.caller.clone(),
            &method,
            address,
            &headers,
            body.as_bytes(),
        );
        let answer = answered.await;
        let status = answer.status();
        let body = answer.into_body().collect().await.expect("a body").to_bytes();
        let text = String::from_utf8(body.to_vec()).expect("text");
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    /// Pulls events and returns their numbers.
    async fn pull(&self, count: u32) -> Vec<u64> {
        let (status, feed) =
            self.http(Method::GET, &format!("/subscriptions/s/g/{count}?embed=body"), "").await;
        assert_eq!(status, StatusCode::OK, "{feed}");
        let entries = feed["entries"].as_array().expect("entries");
        entries.iter().map(|entry| entry["eventNumber"].as_u64().expect("a number")).collect()
    }

    async fn nack(&self, number: u32, action: &str) {
        let address = format!("/subscriptions/s/g/nack/{}?action={action}", id(number));
        assert_eq!(self.http(Method::POST, &address, "").await.0, StatusCode::ACCEPTED);
    }

    async fn parked(&self) -> i64 {
        let info = self.subscriptions.info(&self.caller, &names("s", "g")).await;
        info.expect("it is there").parked
    }
}

fn id(number: u32) -> String {
    format!("00000000-0000-0000-0000-{number:012}")
}

#[tokio::test]
async fn a_subscription_is_a_group_that_every_door_sees() {
    let rig = Rig::start().await;
    let given = Settings { start: StartFrom::Revision(3), max_retry_count: 4, ..Settings::default() };
    rig.create("s", "g", given.clone()).await.expect("it is new");
    let (stream, group) = (StreamName::stored("s"), GroupName::stored("g"));
    let report = rig.caller.group(stream.clone(), group.clone()).await.expect("a group");
    assert_eq!(report.settings.max_retries.at_most(), Some(4));
    let of = rig.caller.stream(stream.clone()).await.expect("its stream");
    assert!(matches!(of.settings.retention, Retention::Log { .. }), "every event is kept");
    assert_eq!(rig.create("s", "g", given.clone()).await, Err(Refusal::Exists));
    // A change through another door is shown, and an update leaves what only that door can set.
    let backoff = Backoff::default();
    let native = move |settings: &mut forebay_broker::api::GroupSettings| {
        settings.message_timeout = Duration::from_secs(77);
        settings.strategy = Strategy::Ordered;
        settings.backoff = backoff;
    };
    rig.caller.change_group(stream.clone(), group.clone(), native).await.expect("it is changed");
    let shown = rig.subscriptions.info(&rig.caller, &names("s", "g")).await.expect("it is there").settings;
    let strategy = ConsumerStrategy::Pinned;
    assert_eq!(shown, Settings { message_timeout_ms: 77_000, strategy, ..given });
    let asked = Settings { max_retry_count: 5, ..shown };
    rig.subscriptions.update(&rig.caller, names("s", "g"), asked.clone()).await.expect("it is updated");
    let report = rig.caller.group(stream.clone(), group.clone()).await.expect("a group");
    assert_eq!((report.settings.strategy, report.settings.backoff), (Strategy::Ordered, Backoff::default()));
    assert_eq!(report.settings.max_retries.at_most(), Some(5));
    let shown = rig.subscriptions.info(&rig.caller, &names("s", "g")).await.expect("it is there").settings;
    assert_eq!(shown, asked);
    // And the other way round: a group of another door is a subscription.
    rig.caller.create_group(stream, GroupName::stored("native"), |_| {}).await.expect("it is new");
    let listed = rig.subscriptions.list(&rig.caller, Some("s")).await.expect("there are two");
    let found: Vec<_> = listed.iter().map(|info| info.group.as_str()).collect();
    assert_eq!(found, ["g", "native"]);
}

#[tokio::test]
async fn an_existing_stream_keeps_its_settings() {
    let rig = Rig::start().await;
    let stream = StreamName::stored("s");
    rig.caller.create_stream(stream.clone(), |_| {}).await.expect("it is new");
    rig.create("s", "g", Settings::default()).await.expect("it is new");
    let report = rig.caller.stream(stream).await.expect("it is there");
    assert_eq!(report.settings.retention, Retention::Work);
}

#[tokio::test]
async fn a_subscription_that_is_not_there_is_missing() {
    let rig = Rig::start().await;
    let (caller, subscriptions) = (&rig.caller, &rig.subscriptions);
    let none = || names("s", "none");
    assert_eq!(subscriptions.update(caller, none(), Settings::default()).await, Err(Refusal::Missing));
    assert_eq!(subscriptions.delete(caller, none()).await, Err(Refusal::Missing));
    assert_eq!(subscriptions.info(caller, &none()).await, Err(Refusal::Missing));
    for stop_at in [None, Some(0), Some(1)] {
        assert_eq!(subscriptions.parked(caller, none(), Work::Replay, stop_at).await, Err(Refusal::Missing));
    }
    assert_eq!(subscriptions.list(caller, Some("s")).await, Err(Refusal::Missing));
    assert_eq!(subscriptions.list(caller, None).await, Ok(Vec::new()));
    rig.create("s", "g", Settings::default()).await.expect("it is new");
    subscriptions.delete(caller, names("s", "g")).await.expect("it is deleted");
    assert_eq!(subscriptions.list(caller, Some("s")).await, Ok(Vec::new()), "the stream is there");
    assert!(matches!(Names::new("$all", "g"), Err(Refusal::Failed(_))));
    assert!(matches!(Names::new("$all::g", "g"), Err(Refusal::Failed(_))));
    assert!(matches!(Names::of_all(&"g".repeat(250)), Err(Refusal::Failed(_))));
    assert_eq!(subscriptions.list(caller, Some("$all")).await, Err(Refusal::Missing));
    assert!(matches!(Names::new("s", "a/b"), Err(Refusal::Failed(_))));
    assert!(matches!(Names::existing("", "g"), Err(Refusal::Missing)));
}

#[tokio::test]
async fn a_subscription_to_all_is_a_group_on_links_to_its_events() {
    let rig = Rig::start().await;
    let Ok(of) = Names::of_all("g") else { panic!("it is a name") };
    let info = async |rig: &Rig| rig.subscriptions.info(&rig.caller, &of).await.expect("it is there");
    let fed = async |rig: &Rig| {
        let end = rig.caller.log_end().await.expect("it answers");
        rig.caller.links_reach(&of.stream, end).await;
    };
    rig.append("a", 0..2).await;
    let (given, terms) = (Settings::default(), AllTerms::default());
    let create = async |given: Settings| {
        rig.subscriptions.create_of_all(&rig.caller, of.clone(), given, terms.clone()).await
    };
    let beyond = StartFrom::Position { commit: 3, prepare: 3 };
    assert!(matches!(create(Settings { start: beyond, ..given.clone() }).await, Err(Refusal::Failed(_))));
    create(given.clone()).await.expect("it is new");
    assert_eq!(create(given.clone()).await, Err(Refusal::Exists));
    rig.append("b", 2..3).await;
    fed(&rig).await;
    let shown = info(&rig).await;
    assert_eq!((shown.stream.as_str(), shown.group.as_str(), shown.read_buffer_count), ("$all", "g", 3));
    assert_eq!((shown.start_from.as_str(), shown.last_checkpointed), ("C:0/P:0", None));
    assert!(shown.last_known.is_some_and(|at| at.number() >= 3));
    for listed in [Some("$all"), None] {
        let listed = rig.subscriptions.list(&rig.caller, listed).await.expect("there is one");
        let sources: Vec<_> = listed.iter().map(|info| info.stream.as_str()).collect();
        assert_eq!(sources, ["$all"]);
    }
    // As long as nothing was settled it may begin elsewhere.
    let end = Settings { start: StartFrom::End, ..given.clone() };
    rig.subscriptions.update(&rig.caller, of.clone(), end).await.expect("it is updated");
    fed(&rig).await;
    let shown = info(&rig).await;
    assert_eq!((shown.start_from.as_str(), shown.read_buffer_count), ("C:-1/P:-1", 0));
    let second = StartFrom::Position { commit: 2, prepare: 2 };
    let at = Settings { start: second, ..given.clone() };
    rig.subscriptions.update(&rig.caller, of.clone(), at.clone()).await.expect("it is updated");
    fed(&rig).await;
    let shown = info(&rig).await;
    assert_eq!((shown.start_from.as_str(), shown.read_buffer_count), ("C:2/P:2", 2));
    assert_eq!(shown.settings, at);
    // A door that opens again goes on with the feeder, and one without its group is removed.
    rig.caller.stop_links(&of.stream).await.expect("it may");
    rig.append("a", 3..4).await;
    rig.subscriptions.restart(&rig.caller).await.expect("it is started");
    fed(&rig).await;
    assert_eq!(info(&rig).await.read_buffer_count, 3);
    let http = rig.http(Method::DELETE, "/subscriptions/%24all/g", "").await;
    assert_eq!(http.0, StatusCode::BAD_REQUEST, "{}", http.1);
    assert_eq!(rig.http(Method::GET, "/subscriptions/%24all/g/info", "").await.0, StatusCode::OK);
    rig.subscriptions.delete(&rig.caller, of.clone()).await.expect("it is deleted");
    assert_eq!(rig.subscriptions.info(&rig.caller, &of).await, Err(Refusal::Missing));
    assert_eq!(rig.caller.link_streams(Door::KURRENT).await, Ok(Vec::new()));
    assert!(rig.caller.stream(of.stream.clone()).await.is_err(), "its links are gone");
    create(given).await.expect("it is new again");
    rig.caller.delete_group(of.stream.clone(), of.group.clone()).await.expect("another door may");
    rig.subscriptions.restart(&rig.caller).await.expect("it is swept");
    assert!(rig.caller.stream(of.stream.clone()).await.is_err(), "links without a group are removed");
}

#[tokio::test]
async fn the_note_of_a_group_that_another_door_deleted_is_removed() {
    let rig = Rig::start().await;
    rig.create("s", "g", Settings { live_buffer_size: 7, ..Settings::default() }).await.expect("it is new");
    let (stream, group) = (StreamName::stored("s"), GroupName::stored("g"));
    rig.caller.delete_group(stream.clone(), group.clone()).await.expect("it is deleted");
    let noted = rig.subscriptions.noted(&names("s", "g")).await;
    assert!(noted.expect("an answer").is_some());
    rig.subscriptions.restart(&rig.caller).await.expect("it is swept");
    let noted = rig.subscriptions.noted(&names("s", "g")).await;
    assert_eq!(noted, Ok(None));
}

#[tokio::test]
async fn an_update_moves_the_start_as_long_as_nothing_is_settled() {
    let rig = Rig::start().await;
    rig.create("s", "g", Settings::default()).await.expect("it is new");
    rig.append("s", 0..3).await;
    let end = Settings { start: StartFrom::End, ..Settings::default() };
    rig.subscriptions.update(&rig.caller, names("s", "g"), end.clone()).await.expect("it is updated");
    assert_eq!(rig.pull(10).await, Vec::<u64>::new());
    rig.append("s", 3..4).await;
    assert_eq!(rig.pull(10).await, [3]);
    let ack = format!("/subscriptions/s/g/ack?ids={}", id(3));
    assert_eq!(rig.http(Method::POST, &ack, "").await.0, StatusCode::ACCEPTED);
    rig.subscriptions.update(&rig.caller, names("s", "g"), Settings::default()).await.expect("it is updated");
    assert_eq!(rig.pull(10).await, Vec::<u64>::new(), "it has a checkpoint");
    let info = rig.subscriptions.info(&rig.caller, &names("s", "g")).await.expect("it is there");
    assert_eq!(info.settings, Settings::default());
}

#[tokio::test]
async fn pulled_events_are_answered_by_their_addresses() {
    let rig = Rig::start().await;
    let (status, _) = rig.http(Method::PUT, "/subscriptions/s/g", r#"{"maxRetryCount": 1}"#).await;
    assert_eq!(status, StatusCode::CREATED);
    assert_eq!(rig.http(Method::PUT, "/subscriptions/s/g", "{}").await.0, StatusCode::CONFLICT);
    rig.append("s", 0..4).await;
    let (_, feed) = rig.http(Method::GET, "/subscriptions/s/g/2", "").await;
    let entry = &feed["entries"][0];
    assert_eq!((&entry["title"], &entry["summary"]), (&json!("0@s"), &json!("Placed")));
    let uri = |of: &Value, relation: &str| {
        let links = of["links"].as_array().expect("links");
        let link = links.iter().find(|link| link["relation"] == relation).expect("the link");
        link["uri"].as_str().expect("text").replace(test::BASE, "")
    };
    let address = format!("/subscriptions/s/g/ack/{}", id(0));
    assert_eq!(uri(entry, "ack"), address);
    assert_eq!(rig.http(Method::POST, &address, "").await.0, StatusCode::ACCEPTED);
    // Refused twice, which is once more than there are retries.
    let nack = uri(&feed["entries"][1], "nack") + "?action=retry";
    assert_eq!(rig.http(Method::POST, &nack, "").await.0, StatusCode::ACCEPTED);
    let (_, again) = rig.http(Method::GET, "/subscriptions/s/g/1?embed=rich", "").await;
    assert_eq!(
        (&again["entries"][0]["eventNumber"], &again["entries"][0]["retryCount"]),
        (&json!(1), &json!(1))
    );
    assert_eq!(rig.parked().await, 0);
    rig.nack(1, "retry").await;
    assert_eq!(rig.parked().await, 1);
    let (_, two) = rig.http(Method::GET, "/subscriptions/s/g/5", "").await;
    assert_eq!(rig.http(Method::POST, &uri(&two, "ackAll"), "").await.0, StatusCode::ACCEPTED);
    let (_, info) = rig.http(Method::GET, "/subscriptions/s/g/info", "").await;
    assert_eq!(info["outstandingMessagesCount"], 0);
    assert_eq!((&info["lastKnownEventNumber"], &info["config"]["maxRetryCount"]), (&json!(3), &json!(1)));
    // Ids that no consumer holds are ignored. A text that is not an id is refused.
    assert_eq!(rig.http(Method::POST, &address, "").await.0, StatusCode::ACCEPTED);
    let (status, text) = rig.http(Method::POST, "/subscriptions/s/g/ack/x", "").await;
    assert_eq!((status, text), (StatusCode::BAD_REQUEST, json!("an id must be a UUID. value=`x`\n")));
}

#[tokio::test]
async fn a_pulled_event_without_an_answer_comes_again_after_the_timeout() {
    let rig = Rig::start().await;
    rig.create("s", "g", Settings { message_timeout_ms: 5_000, ..Settings::default() })
        .await
        .expect("it is new");
    rig.append("s", 0..1).await;
    assert_eq!(rig.pull(1).await, [0]);
    assert_eq!(rig.pull(1).await, Vec::<u64>::new());
    rig.broker.advance(Duration::from_secs(5)).await;
    assert_eq!(rig.pull(1).await, [0]);
    rig.nack(0, "skip").await;
    rig.broker.advance(Duration::from_secs(5)).await;
    assert_eq!(rig.pull(1).await, Vec::<u64>::new());
    assert_eq!(rig.parked().await, 0);
}

#[tokio::test]
async fn parked_events_are_a_stream_and_come_back_by_a_replay() {
    let rig = Rig::start().await;
    let given = Settings { max_retry_count: 0, ..Settings::default() };
    rig.create("s", "g", given).await.expect("it is new");
    rig.append("s", 0..4).await;
    assert_eq!(rig.pull(4).await, [0, 1, 2, 3]);
    rig.nack(0, "park").await;
    rig.nack(2, "retry").await;
    rig.nack(3, "park").await;
    let name = parked::name("s", "g");
    let opened = ParkedStream::open(&rig.caller, &name).await.expect("an answer");
    let mut stream = opened.expect("three are parked");
    let entries = stream.forwards(0, 10).await.expect("they are read");
    let shown: Vec<_> = entries.iter().map(|entry| (entry.revision, entry.data.as_str())).collect();
    assert_eq!(shown, [(0, "0@s"), (1, "2@s"), (2, "3@s")]);
    let metadata: Value = serde_json::from_str(&entries[1].metadata).expect("JSON");
    assert_eq!(
        (&metadata["reason"], &metadata["subscriptionEventNumber"]),
        (&json!("Reached retry count of 0"), &json!(2))
    );
    let mut stream = ParkedStream::open(&rig.caller, &name).await.expect("an answer").expect("as before");
    let back = stream.backwards(1, 5).await.expect("they are read");
    assert_eq!(back.iter().map(|entry| entry.report.seq).collect::<Vec<_>>(), [Seq(3), Seq(1)]);
    let (_, feed) =
        rig.http(Method::GET, "/subscriptions/viewparkedmessages/s/g/head/backward/1?embed=body", "").await;
    assert_eq!(
        (&feed["entries"][0]["eventNumber"], &feed["entries"][0]["positionEventNumber"]),
        (&json!(3), &json!(2))
    );
    // Two of them, and then the rest.
    let (status, _) = rig.http(Method::POST, "/subscriptions/s/g/replayParked?stopAt=2", "").await;
    assert_eq!(status, StatusCode::OK);
    rig.broker.advance(Duration::from_secs(1)).await;
    assert_eq!((rig.parked().await, rig.pull(10).await), (1, vec![0, 2]));
    rig.subscriptions.parked(&rig.caller, names("s", "g"), Work::Discard, None).await.expect("it is started");
    rig.broker.advance(Duration::from_secs(1)).await;
    assert_eq!(rig.parked().await, 0);
    let negative = rig.http(Method::POST, "/subscriptions/s/g/replayParked?stopAt=-1", "").await;
    assert_eq!(negative, (StatusCode::BAD_REQUEST, json!("stop_at must be at least 0. value=`-1`\n")));
}

/// The rows under a heading, as cells.
fn rows(heading: &str) -> Vec<Vec<&'static str>> {
    let section = PAGE.split("\n## ").find(|section| section.starts_with(heading)).expect("the section");
    let lines = section.lines().filter(|line| line.starts_with("| `"));
    lines.map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect()).collect()
}

#[test]
fn every_call_and_every_setting_has_its_row() {
    let calls: Vec<_> = rows("Calls").iter().map(|cells| cells[0].trim_matches('`').to_owned()).collect();
    assert_eq!(calls, METHODS.iter().map(|method| method.name.to_owned()).collect::<Vec<_>>());
    let described: Vec<String> = rows("Settings")
        .iter()
        .flat_map(|cells| cells[0].split(", ").map(|name| name.trim_matches('`').to_owned()))
        .collect();
    let settings = serde_json::to_value(Settings::default()).expect("JSON");
    let strategies = ConsumerStrategy::ALL.map(|strategy| strategy.name().to_owned());
    let known = settings.as_object().expect("an object").keys().map(|name| match name.as_str() {
        "strategy" => "consumer_strategy".to_owned(),
        name => name.to_owned(),
    });
    for name in known.chain(strategies) {
        assert!(described.contains(&name), "{name} has no row");
    }
}

#[test]
fn every_request_over_http_has_its_row() {
    let mut described: Vec<&str> = Vec::new();
    for cells in rows("HTTP") {
        let (method, path) = cells[0].trim_matches('`').split_once(' ').expect("a method and a path");
        let path = path.replace("{direction}", "forward");
        let path: String = path.chars().filter(|c| !matches!(c, '{' | '}')).collect();
        let method = method.parse::<Method>().expect("a method");
        described.push(route_name(&method, &path).unwrap_or_else(|| panic!("{method} {path}")));
    }
    described.sort_unstable();
    described.dedup();
    assert_eq!(described.len(), test::ROUTES, "{described:?}");
}

/// A request as the Node client sends it: the stream and the start where the oldest protocol had them.
fn legacy(revision: u64) -> wire::CreateReq {
    let settings = wire::create_req::Settings {
        revision,
        history_buffer_size: 500,
        read_batch_size: 20,
        named_consumer_strategy: wire::create_req::ConsumerStrategy::RoundRobin.into(),
        message_timeout: Some(wire::create_req::settings::MessageTimeout::MessageTimeoutTicks(300_000_000)),
        ..wire::create_req::Settings::default()
    };
    let options = wire::create_req::Options {
        stream_identifier: Some(StreamIdentifier { stream_name: "s".into() }),
        group_name: "g".to_owned(),
        settings: Some(settings),
        stream_option: None,
    };
    wire::CreateReq { options: Some(options) }
}

#[test]
fn the_oldest_form_of_a_request_is_understood() {
    for (revision, start) in [(0, StartFrom::Start), (5, StartFrom::Revision(5)), (u64::MAX, StartFrom::End)]
    {
        let wish = Wish::of(legacy(revision)).expect("it is understood");
        assert_eq!((wish.stream.as_str(), wish.group.as_str()), ("s", "g"));
        let settings = wish.settings.expect("they are valid");
        assert_eq!((settings.start, settings.message_timeout_ms), (start, 30_000));
        assert_eq!((settings.strategy, settings.checkpoint_after_ms), (ConsumerStrategy::RoundRobin, 0));
    }
}

#[test]
fn the_newer_form_counts_if_a_request_has_both() {
    let mut request = legacy(7);
    let options = request.options.as_mut().expect("it has them");
    let stream = StreamOptions {
        stream_identifier: Some(StreamIdentifier { stream_name: "newer".into() }),
        revision_option: Some(stream_options::RevisionOption::End(Empty {})),
    };
    options.stream_option = Some(wire::create_req::options::StreamOption::Stream(stream));
    if let Some(settings) = &mut options.settings {
        settings.consumer_strategy = "PinnedByCorrelation".to_owned();
    }
    let wish = Wish::of(request.clone()).expect("it is understood");
    assert_eq!(wish.stream, "newer");
    let settings = wish.settings.expect("they are valid");
    assert_eq!((settings.start, settings.strategy), (StartFrom::End, ConsumerStrategy::PinnedByCorrelation));
    let all = wire::create_req::AllOptions::default();
    request.options.as_mut().expect("it has them").stream_option =
        Some(wire::create_req::options::StreamOption::All(all));
    assert_eq!(Wish::of(request).expect("it is understood").stream, "$all");
    assert!(Wish::of(wire::CreateReq { options: None }).is_err());
}

#[test]
fn every_refusal_has_its_status() {
    use tonic::Code;
    for (refusal, code) in [
        (Refusal::Exists, Code::AlreadyExists),
        (Refusal::Missing, Code::NotFound),
        (Refusal::Full, Code::FailedPrecondition),
        (Refusal::Failed("why".to_owned()), Code::Internal),
        (Refusal::Tombstone, Code::FailedPrecondition),
        (Refusal::Call(CallError::Stopping), Code::Unavailable),
    ] {
        assert_eq!(refused(refusal, "s", "g").code(), code);
    }
}

#[tokio::test]
async fn a_client_does_what_its_rights_say_and_needs_none_for_the_notes() {
    let mut rig = Rig::start().await;
    let as_one = |grants: &str| {
        let grants = grants.parse::<Grants>().expect("grants");
        rig.broker.enter(Principal::new("client", grants), None)
    };
    let (keeper, worker) = (as_one("configure:s"), as_one("consume:s/g"));
    rig.append("s", 0..2).await;
    let given = Settings { live_buffer_size: 7, ..Settings::default() };
    let denied = |done: Result<(), Refusal>| matches!(done, Err(Refusal::Call(CallError::Denied(_))));
    let (subscriptions, of) = (rig.subscriptions.clone(), || names("s", "g"));
    assert!(denied(subscriptions.create(&worker, of(), given.clone()).await));
    subscriptions.create(&keeper, of(), given.clone()).await.expect("it may");
    assert!(
        denied(subscriptions.create(&worker, of(), given.clone()).await),
        "not even that it exists is said"
    );
    assert!(denied(subscriptions.update(&worker, of(), given.clone()).await));
    assert!(denied(subscriptions.delete(&worker, of()).await));
    assert!(denied(subscriptions.restart(&worker).await));
    subscriptions.update(&keeper, of(), given).await.expect("it may");
    rig.caller = worker;
    assert_eq!(rig.pull(2).await, [0, 1]);
    let ack = format!("/subscriptions/s/g/ack/{}", id(0));
    assert_eq!(rig.http(Method::POST, &ack, "").await.0, StatusCode::ACCEPTED);
    rig.caller = keeper.clone();
    assert_eq!(rig.http(Method::POST, &ack, "").await.0, StatusCode::UNAUTHORIZED);
    assert_eq!(rig.http(Method::GET, "/subscriptions/s/g/1", "").await.0, StatusCode::UNAUTHORIZED);
    subscriptions.delete(&keeper, of()).await.expect("it may");
}
