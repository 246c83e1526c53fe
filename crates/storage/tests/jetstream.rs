//! The log on JetStream against real servers, which `cargo xtask services` finds.
//!
//! Every clause of the contract runs against one server and against a cluster of three. `FOREBAY_TEST_TAKEOVERS` sets
//! how many takeovers the clause on takeovers plays.

#![cfg(feature = "jetstream")]

use std::sync::Arc;
use std::time::Duration;

use forebay_core::types::{Position, Timestamp};
use forebay_storage::conformance::{SHARD, Subject, Takeovers};
use forebay_storage::engine::{Engine as _, Frame, ReadBudget, StorageError};
use forebay_storage::engine_conforms;
use forebay_storage::jetstream::{Claimant, JetStreamConfig, JetStreamEngine, JetStreamError};
use servers::{Servers, unique};

#[path = "jetstream/servers.rs"]
mod servers;

const TENURE: Duration = Duration::from_millis(400);
const ALL: ReadBudget = ReadBudget { bytes_max: usize::MAX, frames_max: usize::MAX, payloads: true };

fn clock() -> impl Fn() -> Timestamp + Send + Sync + 'static {
    let started = tokio::time::Instant::now();
    move || Timestamp::ZERO + Duration::from_secs(1_000) + started.elapsed()
}

fn config(servers: &Servers, cluster: &str, node: &str) -> JetStreamConfig {
    let claimant = Claimant {
        node: node.to_owned(),
        address: "127.0.0.1:7070".to_owned(),
        others: Vec::new(),
        start: servers::random(),
    };
    JetStreamConfig {
        monitors: servers.monitors(),
        replicas: servers.count(),
        place_bytes: 16 << 10,
        tenure: TENURE,
        ..JetStreamConfig::new(servers.addresses(), cluster, claimant, clock())
    }
}

/// A log of its own on servers that several tests share.
struct Streams {
    servers: Option<Arc<Servers>>,
    cluster: String,
}

impl Streams {
    fn on(servers: Option<Arc<Servers>>) -> Streams {
        Streams { servers, cluster: unique() }
    }

    async fn open(&self) -> JetStreamEngine {
        let servers = self.servers.as_ref().expect("without servers no clause runs");
        JetStreamEngine::open(config(servers, &self.cluster, "a")).await.expect("the engine opens")
    }
}

macro_rules! subject {
    ($name:ident, $count:literal) => {
        struct $name(Streams);

        impl Subject for $name {
            type Engine = JetStreamEngine;

            fn new() -> $name {
                $name(Streams::on(Servers::shared($count)))
            }

            fn is_there(&self) -> bool {
                self.0.servers.is_some()
            }

            async fn engine(&self) -> JetStreamEngine {
                self.0.open().await
            }

            async fn second_engine(&self) -> Option<JetStreamEngine> {
                Some(self.0.open().await)
            }

            fn takeovers(&self) -> u64 {
                let number = std::env::var("FOREBAY_TEST_TAKEOVERS");
                number.ok().and_then(|number| number.parse().ok()).unwrap_or(10)
            }

            fn played(&self, takeovers: &Takeovers) {
                tell($count, takeovers);
            }
        }
    };
}

#[allow(clippy::print_stderr)]
fn tell(servers: usize, takeovers: &Takeovers) {
    assert!(takeovers.reported > 0, "owners were busy: {takeovers:?}");
    assert!(takeovers.void > 0, "frames were on their way: {takeovers:?}");
    eprintln!("NATS servers: {servers}, {takeovers:?}");
}

subject!(OneServer, 1);
subject!(ThreeServers, 3);

engine_conforms!(one_server, OneServer);
engine_conforms!(three_servers, ThreeServers);

fn run(test: impl AsyncFnOnce(Arc<Servers>)) {
    let Some(servers) = Servers::shared(1) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(test(servers));
}

fn frame(number: u64) -> Frame {
    Frame { entries: format!("entry {number}").into(), ..Frame::default() }
}

#[test]
fn a_server_that_does_not_sync_is_refused() {
    let Some(servers) = Servers::start(1, "sync_interval: \"2m\"") else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let with = |change: fn(&mut JetStreamConfig)| {
            let mut config = config(&servers, "refused", "a");
            change(&mut config);
            JetStreamEngine::open(config)
        };
        let error = with(|_| {}).await.err();
        assert!(matches!(error, Some(JetStreamError::NotSynced { .. })), "{error:?}");
        let text = error.map(|error| error.to_string()).unwrap_or_default();
        assert!(text.contains("sync_interval: always") && text.contains("nats_accept_loss"), "{text}");
        let error = with(|config| config.monitors.clear()).await.err();
        assert!(matches!(error, Some(JetStreamError::NotProven { .. })), "{error:?}");
        let error = with(|config| config.monitors = vec!["127.0.0.1:1".to_owned()]).await.err();
        assert!(matches!(error, Some(JetStreamError::NoMonitor { .. })), "{error:?}");
        with(|config| config.accept_loss = true).await.expect("the operator said that loss is acceptable");
    });
}

#[test]
fn a_server_with_small_messages_is_refused() {
    let Some(servers) = Servers::start_with(1, "sync_interval: always", "max_payload: 65536") else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let error = JetStreamEngine::open(config(&servers, "small", "a")).await.err();
        assert!(matches!(error, Some(JetStreamError::PayloadTooSmall { found: 65_536, .. })), "{error:?}");
    });
}

#[test]
fn a_stream_of_another_program_is_refused() {
    run(async |servers| {
        let client = async_nats::connect(servers.addresses()[0].clone()).await.expect("a client");
        let name = unique();
        let stream =
            serde_json::json!({ "name": format!("FB_{name}_0"), "subjects": [format!("fb.{name}.0.>")] });
        let create = format!("$JS.API.STREAM.CREATE.FB_{name}_0");
        client.request(create, stream.to_string().into()).await.expect("the stream is made");
        let error = JetStreamEngine::open(config(&servers, &name, "a")).await.err();
        assert!(matches!(error, Some(JetStreamError::OtherStream { .. })), "{error:?}");
    });
}

#[test]
fn a_standby_takes_over_at_once_from_an_owner_that_stopped_and_later_from_one_that_vanished() {
    run(async |servers| {
        let name = unique();
        let open = async |node| JetStreamEngine::open(config(&servers, &name, node)).await.expect("it opens");
        let first = open("a").await;
        first.stand_by(|_| {}).await.expect("a new log is free");
        let claim = first.claim(SHARD).await.expect("it can be claimed");
        first.append(frame(1)).await.expect("it becomes durable");
        assert!(claim.tenure.may_serve());
        let second = open("b").await;
        let mut seen = Vec::new();
        let waits = second.stand_by(|ownership| seen.push(ownership.clone()));
        let waited = tokio::time::timeout(TENURE * 4, waits).await;
        assert!(waited.is_err(), "an owner that is idle shows that it is there");
        let owner = seen[0].owner.clone().expect("the log has an owner");
        assert_eq!((owner.node.as_str(), owner.address.as_str(), seen[0].epoch), ("a", "127.0.0.1:7070", 1));
        first.close().await;
        let began = tokio::time::Instant::now();
        second.stand_by(|_| {}).await.expect("it is free");
        let claim = second.claim(SHARD).await.expect("it can be claimed");
        assert!(began.elapsed() < TENURE * 3, "nothing has to be waited for: {:?}", began.elapsed());
        second.append(frame(2)).await.expect("it becomes durable");
        assert!(claim.tenure.may_serve());
        // It vanishes: its task ends with its runtime, and says nothing.
        let third = open("c").await;
        let owned = std::thread::spawn({
            let config = config(&servers, &unique(), "d");
            move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let cluster = config.cluster.clone();
                runtime.expect("a runtime").block_on(async {
                    let engine = JetStreamEngine::open(config).await.expect("it opens");
                    engine.claim(SHARD).await.expect("it can be claimed");
                    engine.append(frame(1)).await.expect("it becomes durable");
                    std::mem::forget(engine);
                });
                cluster
            }
        });
        let cluster = owned.join().expect("the owner is gone");
        let next = JetStreamEngine::open(config(&servers, &cluster, "e")).await.expect("it opens");
        let began = tokio::time::Instant::now();
        next.stand_by(|_| {}).await.expect("it is free");
        assert!(began.elapsed() >= TENURE, "the tenure is waited out");
        let claim = next.claim(SHARD).await.expect("it can be claimed");
        assert_eq!(claim.epoch.0, 2);
        drop(third);
    });
}

/// Without this, all standbys of an owner that vanished would claim the log one after the other.
#[test]
fn a_standby_does_not_claim_a_log_that_another_one_claimed_a_moment_ago() {
    run(async |servers| {
        let name = unique();
        let open = async |node| JetStreamEngine::open(config(&servers, &name, node)).await.expect("it opens");
        let (first, second) = (open("a").await, open("b").await);
        first.stand_by(|_| {}).await.expect("a new log is free");
        second.stand_by(|_| {}).await.expect("it is still free");
        let claim = first.claim(SHARD).await.expect("it can be claimed");
        let late = second.claim(SHARD).await.err();
        assert!(matches!(late, Some(StorageError::Fenced { epoch }) if epoch == claim.epoch), "{late:?}");
        first.append(frame(1)).await.expect("the first is still the owner");
        first.close().await;
        let (third, fourth) = (open("c").await, open("d").await);
        third.stand_by(|_| {}).await.expect("its owner has stopped");
        fourth.stand_by(|_| {}).await.expect("its owner has stopped");
        let claim = third.claim(SHARD).await.expect("it can be claimed");
        let late = fourth.claim(SHARD).await.err();
        assert!(matches!(late, Some(StorageError::Fenced { epoch }) if epoch == claim.epoch), "{late:?}");
        third.append(frame(2)).await.expect("the third is the owner");
    });
}

#[test]
fn a_former_owner_learns_that_it_lost_the_log_without_appending() {
    run(async |servers| {
        let name = unique();
        let first = JetStreamEngine::open(config(&servers, &name, "a")).await.expect("it opens");
        let claim = first.claim(SHARD).await.expect("it can be claimed");
        first.append(frame(1)).await.expect("it becomes durable");
        let second = JetStreamEngine::open(config(&servers, &name, "b")).await.expect("it opens");
        second.claim(SHARD).await.expect("it can be claimed");
        let lost =
            tokio::time::timeout(Duration::from_secs(20), claim.tenure.lost()).await.expect("it is told");
        assert!(matches!(lost, StorageError::Fenced { .. }), "{lost}");
        assert!(!claim.tenure.may_serve());
        assert_eq!(second.read(SHARD, Position::START, ALL).await.expect("it can be read").len(), 1);
    });
}

#[test]
fn a_log_that_was_deleted_and_made_anew_is_not_written_to() {
    run(async |servers| {
        let name = unique();
        let engine = JetStreamEngine::open(config(&servers, &name, "a")).await.expect("it opens");
        let claim = engine.claim(SHARD).await.expect("it can be claimed");
        engine.append(frame(1)).await.expect("it becomes durable");
        let client = async_nats::connect(servers.addresses()[0].clone()).await.expect("a client");
        let delete = format!("$JS.API.STREAM.DELETE.FB_{name}_0");
        client.request(delete, "".into()).await.expect("the stream is deleted");
        let _other = JetStreamEngine::open(config(&servers, &name, "b")).await.expect("it opens");
        let lost =
            tokio::time::timeout(Duration::from_secs(20), claim.tenure.lost()).await.expect("it is told");
        assert!(matches!(lost, StorageError::WentBack { .. }), "{lost}");
        assert!(engine.append(frame(2)).await.is_err());
    });
}

#[test]
fn an_owner_goes_on_after_its_server_was_away() {
    let Some(servers) = Servers::start(1, "sync_interval: always") else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let config = JetStreamConfig { tenure: Duration::from_secs(20), ..config(&servers, "away", "a") };
        let engine = JetStreamEngine::open(config).await.expect("it opens");
        let claim = engine.claim(SHARD).await.expect("it can be claimed");
        engine.append(frame(1)).await.expect("it becomes durable");
        servers.kill(0);
        let waiting: Vec<_> = (2..10).map(|number| engine.append(frame(number))).collect();
        tokio::time::sleep(Duration::from_millis(700)).await;
        assert!(!claim.tenure.may_serve(), "frames wait for too long to hand anything out");
        servers.restart(0);
        for answer in waiting {
            answer.await.expect("it becomes durable once the server is back");
        }
        assert!(claim.tenure.may_serve());
        let found = engine.read(SHARD, Position::START, ALL).await.expect("it can be read");
        let entries: Vec<_> = found.iter().map(|frame| frame.entries.clone()).collect();
        assert_eq!(entries, (1..10).map(|number| frame(number).entries).collect::<Vec<_>>());
    });
}

/// The index of the server that leads the log's stream.
async fn leader_of(servers: &Servers, cluster: &str) -> usize {
    let client = async_nats::connect(servers.addresses()).await.expect("a client");
    let info =
        client.request(format!("$JS.API.STREAM.INFO.FB_{cluster}_0"), "".into()).await.expect("an answer");
    let info: serde_json::Value = serde_json::from_slice(&info.payload).expect("JSON");
    let name = info["cluster"]["leader"].as_str().expect("it has a leader").to_owned();
    name.strip_prefix('n').and_then(|index| index.parse().ok()).expect("servers are numbered")
}

#[test]
fn an_election_among_the_servers_does_not_change_the_owner() {
    let Some(servers) = Servers::start(3, "sync_interval: always") else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        // Shorter than an election, which takes four seconds and more.
        let at = |node| JetStreamConfig { tenure: Duration::from_secs(2), ..config(&servers, "election", node) };
        let owner = JetStreamEngine::open(at("a")).await.expect("it opens");
        let claim = owner.claim(SHARD).await.expect("it can be claimed");
        owner.append(frame(1)).await.expect("it becomes durable");
        let standby = JetStreamEngine::open(at("b")).await.expect("it opens");
        let leader = leader_of(&servers, "election").await;
        let goes_on = async {
            servers.kill(leader);
            let waiting: Vec<_> = (2..10).map(|number| owner.append(frame(number))).collect();
            for answer in waiting {
                answer.await.expect("it becomes durable once there is a leader");
            }
            // A standby would have claimed the log by now if it had counted the silence.
            for number in 10..20 {
                tokio::time::sleep(Duration::from_millis(300)).await;
                owner.append(frame(number)).await.expect("it becomes durable");
            }
        };
        tokio::select! {
            () = goes_on => {}
            stood_by = standby.stand_by(|_| {}) => panic!("an election is no reason to take over: {stood_by:?}"),
        }
        assert!(claim.tenure.may_serve() && !claim.tenure.is_lost());
        let found = owner.read(SHARD, Position::START, ALL).await.expect("it can be read");
        assert_eq!(found.len(), 19);
        assert!(found.iter().all(|frame| frame.epoch == claim.epoch), "all of it in one term");
    });
}

#[test]
fn an_owner_that_cannot_reach_the_log_for_long_gives_it_up() {
    let Some(servers) = Servers::start(1, "sync_interval: always") else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let unreachable_max = Duration::from_secs(2);
        let config = JetStreamConfig { unreachable_max, ..config(&servers, "given-up", "a") };
        let engine = JetStreamEngine::open(config).await.expect("it opens");
        let claim = engine.claim(SHARD).await.expect("it can be claimed");
        servers.kill(0);
        let began = tokio::time::Instant::now();
        let waits = engine.append(frame(1));
        let lost =
            tokio::time::timeout(Duration::from_secs(20), claim.tenure.lost()).await.expect("it is told");
        assert!(matches!(lost, StorageError::TenureOver), "{lost}");
        assert!(began.elapsed() >= unreachable_max, "{:?}", began.elapsed());
        assert!(matches!(waits.await, Err(StorageError::TenureOver)));
    });
}

#[test]
fn a_claim_tells_how_much_time_has_passed_since_the_last_frame() {
    run(async |servers| {
        let name = unique();
        let first = JetStreamEngine::open(config(&servers, &name, "a")).await.expect("it opens");
        let claim = first.claim(SHARD).await.expect("it can be claimed");
        let none = claim.elapsed.expect("servers have stamps").stamped;
        assert!(none < Duration::from_millis(500), "there is no frame: {none:?}");
        first.append(frame(1)).await.expect("it becomes durable");
        let began = tokio::time::Instant::now();
        tokio::time::sleep(Duration::from_millis(800)).await;
        first.close().await;
        let second = JetStreamEngine::open(config(&servers, &name, "b")).await.expect("it opens");
        second.stand_by(|_| {}).await.expect("it is free");
        let elapsed =
            second.claim(SHARD).await.expect("it can be claimed").elapsed.expect("there are stamps");
        let most = began.elapsed() + Duration::from_millis(100);
        assert!((Duration::from_millis(700)..most).contains(&elapsed.stamped), "{elapsed:?} {most:?}");
        assert!(elapsed.seen <= most, "{elapsed:?}");
    });
}

#[test]
fn a_node_signs_in_with_user_and_password() {
    let more = "authorization { user: forebay, password: secret }";
    let Some(servers) = Servers::start_with(1, "sync_interval: always", more) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let open = async |password: &str| {
            let user = Some(("forebay".to_owned(), password.to_owned()));
            JetStreamEngine::open(JetStreamConfig { user, ..config(&servers, "user", "a") }).await
        };
        let Err(error) = open("wrong").await else { panic!("the password is wrong") };
        assert!(matches!(error, JetStreamError::Unreachable { .. }), "{error}");
        assert!(!error.to_string().contains("wrong"), "a password is not shown: {error}");
        let engine = open("secret").await.expect("the password is right");
        engine.claim(SHARD).await.expect("it can be claimed");
        engine.append(frame(1)).await.expect("it becomes durable");
    });
}
