//! The clause on takeovers against a real server, with the writer's rule switched off: it must fail.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use forebay_core::types::Timestamp;
use servers::{Servers, unique};

use crate::conformance::{self, Subject};
use crate::jetstream::{Claimant, JetStreamConfig, JetStreamEngine};

#[path = "../../../tests/jetstream/servers.rs"]
#[allow(dead_code)]
mod servers;

/// Owners that believe every acknowledgement as it comes.
struct Gullible {
    servers: Option<Arc<Servers>>,
    cluster: String,
}

impl Gullible {
    async fn open(&self) -> JetStreamEngine {
        let servers = self.servers.as_ref().expect("without servers no clause runs");
        let began = tokio::time::Instant::now();
        let clock = move || Timestamp::ZERO + Duration::from_secs(1_000) + began.elapsed();
        let claimant = Claimant { node: "a".to_owned(), start: servers::random(), ..Claimant::default() };
        let config = JetStreamConfig {
            monitors: servers.monitors(),
            replicas: servers.count(),
            tenure: Duration::from_millis(400),
            believes_every_answer: true,
            ..JetStreamConfig::new(servers.addresses(), &self.cluster, claimant, clock)
        };
        JetStreamEngine::open(config).await.expect("the engine opens")
    }
}

impl Subject for Gullible {
    type Engine = JetStreamEngine;

    fn new() -> Gullible {
        Gullible { servers: Servers::shared(1), cluster: unique() }
    }

    fn is_there(&self) -> bool {
        self.servers.is_some()
    }

    async fn engine(&self) -> JetStreamEngine {
        self.open().await
    }

    async fn second_engine(&self) -> Option<JetStreamEngine> {
        Some(self.open().await)
    }
}

#[test]
fn without_the_writers_rule_the_clause_on_takeovers_fails() {
    if Servers::shared(1).is_none() {
        return;
    }
    let clause = || conformance::run(conformance::takeovers_lose_no_reported_frame::<Gullible>);
    let failed = catch_unwind(AssertUnwindSafe(clause)).expect_err("the clause notices");
    let text = failed.downcast_ref::<String>().cloned().unwrap_or_default();
    assert!(text.contains("frames that were reported as durable are void"), "{text}");
}
