//! One life of a node: it stands by, claims the log, serves, and stands by again when it has lost the log. The order of
//! the steps is that of `forebay serve --engine jetstream`.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use forebay_broker::api::{Broker, BrokerConfig, Clock, OpenError, Principal};
use forebay_broker::broker::TaskFuture;
use forebay_broker::recovery::RecoveryError;
use forebay_core::types::{Epoch, Timestamp};
use forebay_storage::engine::{BoxFuture, StorageError};
use forebay_storage::jetstream::{Claimant, JetStreamConfig, JetStreamEngine, JetStreamError};
use tokio::sync::oneshot;

use super::clients::{Office, Shared};
use super::servers::{Servers, SimWire, moment};
use super::world::BEGINS;
use crate::shell::executor::LocalFuture;
use crate::tale::tell;

const REOPEN_PAUSE: Duration = Duration::from_millis(500);

/// Tasks of a node that wait to be run.
#[derive(Clone, Default)]
pub(super) struct Spawned {
    /// Of the engine.
    sent: Arc<Mutex<Vec<BoxFuture<'static, ()>>>>,
    local: Rc<RefCell<Vec<LocalFuture>>>,
}

impl Spawned {
    pub(super) fn take(&self) -> Vec<LocalFuture> {
        let sent = std::mem::take(&mut *self.sent.lock().unwrap_or_else(PoisonError::into_inner));
        let mut all: Vec<LocalFuture> = sent.into_iter().map(|task| task as LocalFuture).collect();
        all.append(&mut self.local.borrow_mut());
        all
    }
}

/// How a node differs from the other one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Nature {
    pub(super) number: usize,
    /// By how much its date is wrong, in microseconds.
    pub(super) skew: i64,
    /// By how much its clock gains in a thousand seconds.
    pub(super) drift: i64,
    pub(super) tenure: Duration,
    pub(super) place_bytes: u64,
}

pub(super) struct Life {
    pub(super) nature: Nature,
    /// Tells the lives of a node apart.
    pub(super) start: u64,
    pub(super) shared: Rc<Shared>,
    pub(super) servers: Arc<Servers>,
    pub(super) config: BrokerConfig,
    pub(super) spawned: Spawned,
    /// The broker of the present term.
    pub(super) broker: Rc<RefCell<Option<Broker>>>,
    pub(super) terms: Rc<Cell<u64>>,
}

impl Life {
    /// Until it is stopped cleanly.
    pub(super) async fn live(self) {
        let Nature { number, skew, drift, .. } = self.nature;
        let began = moment();
        let date = Timestamp(self.shared.now().0.saturating_add_signed(skew));
        let clock = Clock::starting_at(date);
        let engine_clock = move || {
            let passed = began.elapsed().as_micros() as i64;
            BEGINS + Duration::from_micros((passed + passed * drift / 1_000) as u64)
        };
        let claimant = Claimant { node: format!("n{number}"), start: self.start, ..Claimant::default() };
        let spawned = self.spawned.sent.clone();
        let config = JetStreamConfig {
            accept_loss: true,
            tenure: self.nature.tenure,
            place_bytes: self.nature.place_bytes,
            spawn: Arc::new(move |task| {
                spawned.lock().unwrap_or_else(PoisonError::into_inner).push(task);
            }),
            ..JetStreamConfig::new(Vec::new(), "c", claimant, engine_clock)
        };
        loop {
            let engine = Arc::new(self.open(&config).await);
            let stands_by = engine.stand_by(|_| {}).await;
            stands_by.unwrap_or_else(|error| panic!("I18: node {number} cannot stand by: {error:?}"));
            match self.term(engine.clone(), clock).await {
                Ok(()) => {
                    engine.close().await;
                    return tell(|| format!("node {number} has stopped"));
                }
                Err(RecoveryError::Storage(StorageError::Fenced { .. } | StorageError::TenureOver)) => {
                    tell(|| format!("node {number} has lost the log"));
                }
                Err(error) => panic!("I18: node {number} cannot serve: {error:?}"),
            }
        }
    }

    async fn open(&self, config: &JetStreamConfig) -> JetStreamEngine {
        loop {
            let wire = SimWire { servers: self.servers.clone(), node: self.nature.number };
            match JetStreamEngine::open_on(Arc::new(wire), config.clone()).await {
                Ok(engine) => return engine,
                Err(JetStreamError::Refused { .. }) => tokio::time::sleep(REOPEN_PAUSE).await,
                Err(error) => panic!("I18: node {} cannot open the log: {error:?}", self.nature.number),
            }
        }
    }

    /// Claims the log and serves until the end of the term.
    async fn term(&self, engine: Arc<JetStreamEngine>, clock: Clock) -> Result<(), RecoveryError> {
        let number = self.nature.number;
        let (done, ended) = oneshot::channel();
        let local = self.spawned.local.clone();
        let spawn = move |task: TaskFuture| {
            let run = async move {
                let _ = done.send(task.await);
            };
            local.borrow_mut().push(Box::pin(run));
        };
        tell(|| format!("node {number} claims the log"));
        let opened = Broker::open_on(engine.clone(), clock, self.config.clone(), spawn).await;
        let broker = match opened {
            Ok(broker) => broker,
            Err(OpenError::Recovery(error)) => return Err(error),
            Err(error) => panic!("I18: node {number} cannot begin its term: {error:?}"),
        };
        let epoch = Epoch(engine.epoch().expect("it has claimed the log"));
        tell(|| format!("node {number} serves in epoch {}", epoch.0));
        self.terms.set(self.terms.get() + 1);
        self.shared.newest.set(self.shared.newest.get().max(epoch));
        let caller = broker.enter(Principal::owner(), None);
        *self.shared.offices[number].borrow_mut() = Some(Office { caller, epoch });
        *self.broker.borrow_mut() = Some(broker);
        let over = ended.await.expect("the task is not dropped before its node");
        *self.shared.offices[number].borrow_mut() = None;
        *self.broker.borrow_mut() = None;
        over
    }
}
