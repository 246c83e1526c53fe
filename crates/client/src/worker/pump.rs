//! The task that owns the connection: it puts deliveries on the desk, tells the server the verdicts, renews leases, and
//! adjusts the credit and the number of runners.
//!
//! It shares nothing with the runners but the desk.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_wire::v1;
use futures_util::future::OptionFuture;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tonic::Status;

use super::answers::{self, About, Answers, Sent};
use super::breaker::BreakerState;
use super::credit::{CREDIT_BYTES, Credit};
use super::desk::{Done, Parcel, Verdict};
use super::event::WorkerEvent;
use super::leases::Leases;
use super::route::Table;
use super::scale::{self, Concurrency, Load};
use super::shared::Shared;
use super::{WorkerError, runner};
use crate::admin::groups::{Scaling, ScalingTarget};
use crate::admin::settings::{GroupSettings, Strategy};
use crate::client::Client;
use crate::clock::{self, Instant};
use crate::consumer::{Lease, Outcome, Session, Settlement, arrived, outcomes};
use crate::error::{Advice, CallError, ProblemKind, in_words};
use crate::job::{Finish, Finisher, JobInfo};

/// How often leases, credit and the breaker are checked.
const CHECK_EVERY: Duration = Duration::from_millis(200);
/// How often the server is asked for the size of the backlog.
const SCALE_EVERY: Duration = Duration::from_secs(1);
/// The wait before a reconnect: twice as long each time.
const RECONNECT_MIN: Duration = Duration::from_millis(50);
const RECONNECT_MAX: Duration = Duration::from_secs(2);
/// How long the last answers may take when the worker leaves.
const FAREWELL: Duration = Duration::from_secs(5);
/// How long cancelled handlers may take to end.
const CANCEL_WITHIN: Duration = Duration::from_secs(1);
/// How long it may take to join the group.
const JOIN_WITHIN: Duration = Duration::from_secs(10);

/// Transactions, and bytes of their messages, that go into one request.
const FINISHES_PER_REQUEST: usize = 256;
const FINISH_BYTES_PER_REQUEST: usize = 1 << 20;

/// The builder's settings, as far as the pump needs them.
pub(super) struct Terms {
    pub(super) client: Client,
    pub(super) stream: Arc<str>,
    pub(super) group: Arc<str>,
    pub(super) name: String,
    pub(super) concurrency: Concurrency,
    pub(super) target_drain: Duration,
    pub(super) prefetch: Option<usize>,
    /// Jobs that may begin each second.
    pub(super) rate: Option<f64>,
    pub(super) create: Option<GroupSettings>,
    pub(super) shutdown_within: Duration,
}

pub(super) struct Pump<S> {
    shared: Arc<Shared<S>>,
    terms: Terms,
    table: Table,
    runners: JoinSet<()>,
    concurrency: usize,
    breaker: BreakerState,
    leases: Leases,
    answers: Answers,
    /// Transactions of jobs, which are handed to jobs with the sender.
    finishes: mpsc::UnboundedReceiver<Finish>,
    finish: mpsc::UnboundedSender<Finish>,
    finishing: HashMap<u64, (Lease, oneshot::Sender<Result<(), v1::Problem>>)>,
    finish_ticket: u64,
    credit: Credit,
    patience: Patience,
    stop: watch::Receiver<bool>,
    /// When running jobs must have ended. Set once the worker shuts down.
    closing: Option<Instant>,
    done: Vec<Done>,
    acks: Vec<Lease>,
}

/// Why a session ended.
enum End {
    /// The worker shut down.
    Closed,
    Broken(CallError),
}

impl<S: Clone + Send + Sync + 'static> Pump<S> {
    pub(super) fn new(
        shared: Arc<Shared<S>>,
        terms: Terms,
        table: Table,
        stop: watch::Receiver<bool>,
    ) -> Pump<S> {
        let (finish, finishes) = mpsc::unbounded_channel();
        Pump {
            concurrency: terms.concurrency.min,
            finishes,
            finish,
            finishing: HashMap::new(),
            finish_ticket: 0,
            shared,
            terms,
            table,
            runners: JoinSet::new(),
            breaker: BreakerState::Closed,
            leases: Leases::new(),
            answers: Answers::default(),
            credit: Credit::new(),
            patience: Patience::default(),
            stop,
            closing: None,
            done: Vec::new(),
            acks: Vec::new(),
        }
    }

    /// Works until it is told to stop, or the server refuses it. With `ready` the first try must succeed.
    pub(super) async fn run(
        mut self,
        mut ready: Option<oneshot::Sender<Result<(), WorkerError>>>,
    ) -> Result<(), WorkerError> {
        let mut again_in = RECONNECT_MIN;
        let mut stop = self.stop.clone();
        let outcome = loop {
            let opened = tokio::select! {
                opened = tokio::time::timeout(JOIN_WITHIN, self.open()) => opened,
                _ = stop.wait_for(|stop| *stop) => break Ok(()),
            };
            let silent = || Err(Status::deadline_exceeded("the server did not answer").into());
            let error = match opened.unwrap_or_else(|_| silent()) {
                Ok(session) => {
                    self.patience.joined();
                    if let Some(ready) = ready.take() {
                        let _ = ready.send(Ok(()));
                    }
                    again_in = RECONNECT_MIN;
                    self.shared.counters.connected.store(1, Ordering::Relaxed);
                    self.shared.emit(WorkerEvent::Connected);
                    let end = self.serve(session).await;
                    self.shared.counters.connected.store(0, Ordering::Relaxed);
                    self.lose_everything();
                    match end {
                        End::Closed => break Ok(()),
                        End::Broken(error) => error,
                    }
                }
                Err(error) => error,
            };
            let creates = self.terms.create.is_some();
            if self.patience.is_final(&error, creates) || ready.is_some() {
                break Err(WorkerError::Refused(error));
            }
            if self.closing.is_some() || *self.stop.borrow() {
                break Ok(());
            }
            self.shared.counters.disconnected.add(1);
            self.shared.emit(WorkerEvent::Disconnected { error, again_in });
            tokio::select! {
                () = tokio::time::sleep(again_in) => {}
                _ = stop.wait_for(|stop| *stop) => break Ok(()),
            }
            again_in = (again_in * 2).min(RECONNECT_MAX);
        };
        self.finish_running().await;
        self.drop_runners().await;
        if let (Some(ready), Err(error)) = (ready, &outcome) {
            let _ = ready.send(Err(error.clone()));
        }
        outcome
    }

    /// Joins the group, after creating it if it should, and asking for its settings.
    async fn open(&mut self) -> Result<Session, CallError> {
        let Terms { client, stream, group, create, .. } = &self.terms;
        if let Some(settings) = create {
            match client.create_group(stream, group, settings.clone()).await {
                // A group with other settings is used as it is.
                Err(error) if !error.is(ProblemKind::SettingsDiffer) => return Err(error),
                _ => {}
            }
        }
        let settings = client.group(stream, group).await?.settings;
        let in_order = matches!(settings.strategy, Some(Strategy::Ordered | Strategy::Pinned));
        let credit = {
            let mut desk = self.shared.desk();
            desk.keep_keys_in_order(in_order);
            desk.set_limit(self.concurrency);
            let wanted = Credit::wanted(&desk, self.terms.prefetch, self.terms.rate);
            self.credit.open(wanted, desk.credit_max(clock::now()))
        };
        let open = v1::Open {
            stream: stream.to_string(),
            group: group.to_string(),
            consumer: self.terms.name.clone(),
            credit,
            ..Default::default()
        };
        let session = Session::open(client.grpc(), open, Some(CREDIT_BYTES)).await?;
        self.credit.set_max(session.credit_max);
        self.leases.set_duration(settings.message_timeout);
        Ok(session)
    }

    /// Works on one connection until it ends.
    async fn serve(&mut self, mut session: Session) -> End {
        let first = std::mem::take(&mut session.first);
        self.on_reply(&session, first);
        // Often enough for the shortest leases.
        let mut check = tokio::time::interval(CHECK_EVERY.min(self.leases.duration() / 6));
        check.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut asked_at = clock::now();
        let mut scaling: Option<JoinHandle<Result<Scaling, CallError>>> = None;
        let mut stop = self.stop.clone();
        loop {
            self.send_verdicts(&session);
            if let Some(until) = self.closing
                && (self.shared.desk().with_runners() == 0 || clock::now() >= until)
            {
                return self.leave(session).await;
            }
            let shared = self.shared.clone();
            tokio::select! {
                reply = session.replies.message() => match reply {
                    Ok(Some(reply)) => self.on_reply(&session, reply),
                    Ok(None) => return End::Broken(Status::unavailable("the call ended").into()),
                    Err(status) => return End::Broken(status.into()),
                },
                () = shared.verdicts.notified() => {}
                Some(finish) = self.finishes.recv() => self.send_finishes(&session, finish),
                _ = check.tick() => {
                    let now = clock::now();
                    self.renew(&session, now);
                    self.check_breaker(now);
                    self.update_credit(&session, now);
                    self.check_runners();
                    self.start_runners();
                    let is_automatic = self.terms.concurrency.is_automatic();
                    if is_automatic && scaling.is_none() && now - asked_at >= SCALE_EVERY {
                        asked_at = now;
                        scaling = Some(self.ask_for_backlog());
                    }
                }
                Some(answer) = OptionFuture::from(scaling.as_mut()), if scaling.is_some() => {
                    scaling = None;
                    if let Ok(Ok(reply)) = answer {
                        self.scale(&reply);
                        self.update_credit(&session, clock::now());
                    }
                }
                _ = stop.wait_for(|stop| *stop), if self.closing.is_none() => self.begin_to_close(&session),
            }
        }
    }

    fn on_reply(&mut self, session: &Session, reply: v1::ConsumeReply) {
        for settled in &reply.settled {
            self.on_settled(settled);
        }
        for committed in reply.committed {
            self.on_committed(committed);
        }
        let Some(deliveries) = reply.deliveries else { return };
        let now = clock::now();
        let shared = self.shared.clone();
        let mut desk = shared.desk();
        let (mut count, mut back) = (0, Vec::new());
        for arrived in arrived(now, deliveries) {
            count += 1;
            let lease = arrived.lease;
            let route = self.table.find(&arrived.message.r#type, arrived.message.schema);
            let (stream, group) = (self.terms.stream.clone(), self.terms.group.clone());
            let info = JobInfo::new(stream, group, lease.seq, arrived.attempt, arrived.message);
            info.set_finisher(Finisher { lease, requests: self.finish.clone() });
            self.leases.add(now, lease, info.clone(), arrived.deadline);
            if self.closing.is_some() {
                back.push(Done { lease, verdict: Verdict::Return { after: None } });
            } else {
                desk.arrive(now, Parcel { lease, route, info });
            }
        }
        self.shared.lease_us.store(micros(self.leases.duration()), Ordering::Relaxed);
        self.shared.counters.received.add(count);
        drop(desk);
        self.start_runners();
        if !back.is_empty() {
            self.done.append(&mut back);
            self.send_verdicts(session);
        }
    }

    /// Sends the handlers' verdicts. Acks go together; the others have reasons of their own.
    fn send_verdicts(&mut self, session: &Session) {
        self.shared.desk().take_done(&mut self.done);
        if self.done.is_empty() {
            return;
        }
        let mut settlements = Vec::new();
        for Done { lease, verdict } in std::mem::take(&mut self.done) {
            let Some(info) = self.leases.remove(&lease) else {
                // The loss of the lease was reported. That the work was done all the same is news.
                if matches!(verdict, Verdict::Ack) {
                    self.late(lease);
                }
                continue;
            };
            match answers::settlement(&verdict) {
                Some(settlement) => {
                    let about = About::Verdict { attempt: info.attempt(), verdict };
                    settlements.push(self.answers.expect(settlement, vec![lease], about));
                }
                None => {
                    if verdict == Verdict::Duplicate {
                        self.shared.counters.duplicates.add(1);
                    }
                    if matches!(verdict, Verdict::Ack | Verdict::Duplicate) {
                        self.acks.push(lease);
                    }
                }
            }
        }
        if !self.acks.is_empty() {
            let mut acks = std::mem::take(&mut self.acks);
            acks.sort_unstable();
            settlements.push(self.answers.expect(Settlement::ack(), acks, About::Acks));
        }
        if !settlements.is_empty() {
            let _ = session.requests.send(v1::ConsumeRequest { settlements, ..Default::default() });
        }
    }

    /// Sends the transactions of jobs, those that wait together.
    fn send_finishes(&mut self, session: &Session, first: Finish) {
        let (mut commits, mut bytes) = (Vec::new(), 0);
        let mut next = Some(first);
        while let Some(Finish { lease, publish, reply }) = next {
            // A job whose lease is lost is told by the end of its reply.
            if self.leases.has(&lease) {
                self.finish_ticket += 1;
                let ticket = self.finish_ticket;
                let messages = publish.iter().flat_map(|part| &part.messages);
                bytes += messages.map(|message| message.body.len()).sum::<usize>();
                let settle = vec![Settlement::ack().into_wire(0, [lease])];
                commits.push(v1::Commit { ticket, settle, publish });
                self.finishing.insert(ticket, (lease, reply));
            }
            let is_full = commits.len() >= FINISHES_PER_REQUEST || bytes >= FINISH_BYTES_PER_REQUEST;
            next = if is_full { None } else { self.finishes.try_recv().ok() };
        }
        if !commits.is_empty() {
            let _ = session.requests.send(v1::ConsumeRequest { commits, ..Default::default() });
        }
    }

    fn on_committed(&mut self, committed: v1::Committed) {
        let Some((lease, reply)) = self.finishing.remove(&committed.ticket) else { return };
        let done = match committed.problem {
            None => {
                self.leases.remove(&lease);
                self.shared.counters.acked.add(1);
                Ok(())
            }
            Some(problem) => {
                if problem.code() == v1::problem::Code::LeaseNotCurrent
                    && let Some(info) = self.leases.remove(&lease)
                {
                    self.lose(&info);
                }
                Err(problem)
            }
        };
        // The job may have been dropped.
        let _ = reply.send(done);
    }

    fn on_settled(&mut self, settled: &v1::Settled) {
        let Some(sent) = self.answers.take(settled.ticket) else { return };
        if let Some(problem) = &settled.problem {
            // The server should never refuse a settlement of a worker. If it does, the leases run out.
            if matches!(sent.about, About::Renewal) {
                self.leases.renewed();
            }
            tracing::error!(detail = problem.detail, "the server refused a settlement");
            return;
        }
        let Sent { leases, about, .. } = sent;
        match about {
            About::Acks => {
                let mut acked = 0;
                for (lease, outcome) in leases.iter().zip(outcomes(settled)) {
                    match outcome {
                        Outcome::NotYours => self.late(*lease),
                        _ => acked += 1,
                    }
                }
                self.shared.counters.acked.add(acked);
            }
            About::Renewal => {
                self.leases.renewed();
                for (lease, outcome) in leases.iter().zip(outcomes(settled)) {
                    // The answer to a transaction says what became of its lease.
                    let is_finishing = || self.finishing.values().any(|(finishing, _)| finishing == lease);
                    if outcome == Outcome::NotYours
                        && !is_finishing()
                        && let Some(info) = self.leases.remove(lease)
                    {
                        self.lose(&info);
                    }
                }
            }
            About::Verdict { attempt, verdict } => {
                let outcome = outcomes(settled).next().unwrap_or(Outcome::Other);
                self.count_verdict(leases[0], attempt, verdict, outcome);
            }
        }
    }

    fn count_verdict(&self, lease: Lease, attempt: u32, verdict: Verdict, outcome: Outcome) {
        let counters = &self.shared.counters;
        let counter = match outcome {
            Outcome::NotYours => return self.late(lease),
            Outcome::Parked => &counters.parked,
            Outcome::Moving => &counters.moved,
            Outcome::Skipped | Outcome::Expired => &counters.skipped,
            Outcome::Returned => match &verdict {
                Verdict::Throttled { .. } => &counters.throttled,
                Verdict::Return { after: Some(_) } | Verdict::NoStore { .. } => &counters.snoozed,
                _ => &counters.returned,
            },
            _ => &counters.retried,
        };
        counter.add(1);
        if let Verdict::Retry { reason, .. } | Verdict::Park { reason } = verdict {
            let parked = matches!(outcome, Outcome::Parked | Outcome::Moving);
            self.shared.emit(WorkerEvent::Failed { seq: lease.seq, attempt, reason, parked });
        }
    }

    fn late(&self, lease: Lease) {
        self.shared.counters.late.add(1);
        self.shared.emit(WorkerEvent::LateAnswer { seq: lease.seq });
    }

    /// Cancels the job. A handler that has not begun will not run.
    fn lose(&self, info: &JobInfo) {
        info.cancel();
        self.shared.counters.lost.add(1);
        let (seq, attempt) = (info.seq(), info.attempt());
        self.shared.emit(WorkerEvent::LeaseLost { seq, attempt });
    }

    /// The connection is gone. Unsent acks are late; other messages in hand will be delivered again.
    fn lose_everything(&mut self) {
        {
            let mut desk = self.shared.desk();
            desk.take_done(&mut self.done);
            desk.forget_waiting();
        }
        for Done { lease, verdict } in std::mem::take(&mut self.done) {
            if matches!(verdict, Verdict::Ack) {
                self.leases.remove(&lease);
                self.late(lease);
            }
        }
        for info in self.leases.take_all() {
            self.lose(&info);
        }
        // Their jobs are told by the end of the replies that the outcome is unknown.
        self.finishing.clear();
        while self.finishes.try_recv().is_ok() {}
        self.give_up_answers();
    }

    fn give_up_answers(&mut self) {
        let acks = self.answers.give_up();
        if acks > 0 {
            self.shared.counters.unanswered.add(acks);
            self.shared.emit(WorkerEvent::Unanswered { acks });
        }
    }

    /// Extends leases before they run out, and the claims that go with them.
    fn renew(&mut self, session: &Session, now: Instant) {
        let Some(renewal) = self.leases.renew(now) else { return };
        let extend = Settlement::extend(self.leases.duration());
        let settlements = vec![self.answers.expect(extend, renewal.leases, About::Renewal)];
        let _ = session.requests.send(v1::ConsumeRequest { settlements, ..Default::default() });
        let claims = renewal.claims;
        if let (Some(store), false) = (&self.shared.idempotency, claims.is_empty()) {
            let (store, shared) = (store.store.clone(), self.shared.clone());
            tokio::spawn(async move {
                if let Err(error) = store.renew(&claims, shared.claim_lasts()).await {
                    shared.emit(WorkerEvent::StoreFailed { error: in_words(&error) });
                }
            });
        }
    }

    /// While the breaker is open or the worker pauses, messages that wait here are given back for other workers.
    fn check_breaker(&mut self, now: Instant) {
        let state = {
            let mut desk = self.shared.desk();
            let state = desk.breaker_state();
            if state == BreakerState::Open || desk.is_paused(now) {
                desk.give_back_waiting();
            }
            state
        };
        if state != self.breaker {
            self.breaker = state;
            self.shared.emit(WorkerEvent::Breaker(state));
        }
    }

    fn update_credit(&mut self, session: &Session, now: Instant) {
        if self.closing.is_some() {
            return;
        }
        let change = {
            let mut desk = self.shared.desk();
            let wanted = Credit::wanted(&desk, self.terms.prefetch, self.terms.rate);
            self.credit.change(wanted, desk.credit_max(now))
        };
        if change.is_some() {
            let credit_bytes = Some(CREDIT_BYTES);
            let request = v1::ConsumeRequest { credit: change, credit_bytes, ..Default::default() };
            let _ = session.requests.send(request);
        }
    }

    /// Starts as many runners as there is work for, and wakes one. Runners stay: an idle one costs next to nothing.
    fn start_runners(&mut self) {
        let (wanted, may_take) = {
            let desk = self.shared.desk();
            (desk.limit().min(desk.runnable() + desk.running()), desk.may_take())
        };
        while self.runners.len() < wanted {
            self.runners.spawn(runner::run(self.shared.clone()));
        }
        if may_take {
            self.shared.work.notify_one();
        }
    }

    /// Runners never end by themselves. A panic in one is a bug of the SDK, and is passed on.
    fn check_runners(&mut self) {
        while let Some(ended) = self.runners.try_join_next() {
            if let Err(error) = ended
                && error.is_panic()
            {
                std::panic::resume_unwind(error.into_panic());
            }
        }
    }

    fn ask_for_backlog(&self) -> JoinHandle<Result<Scaling, CallError>> {
        let Terms { client, stream, group, target_drain, .. } = &self.terms;
        let (client, stream, group) = (client.clone(), stream.clone(), group.clone());
        let target = ScalingTarget { drain: *target_drain, ..Default::default() };
        tokio::spawn(async move { client.scaling(&stream, &group, target).await })
    }

    fn scale(&mut self, reply: &Scaling) {
        let now = self.concurrency;
        let next = {
            let mut desk = self.shared.desk();
            let load = Load {
                // Messages on the desk wait as well.
                backlog: reply.backlog + desk.waiting() as u64,
                oldest_age: reply.oldest_age,
                arrival_rate: reply.arrival_rate,
                consumers: reply.consumers,
                job_mean: desk.job_mean(),
                running: desk.running(),
            };
            let next = scale::concurrency(now, &load, self.terms.target_drain, self.terms.concurrency);
            desk.set_limit(next);
            next
        };
        self.start_runners();
        if next != now {
            self.concurrency = next;
            self.shared.emit(WorkerEvent::Concurrency(next));
        }
    }

    /// Takes nothing more, and gives back messages that have not begun.
    fn begin_to_close(&mut self, session: &Session) {
        self.closing = Some(clock::after(self.terms.shutdown_within));
        self.shared.desk().close();
        let credit = Some(self.credit.close());
        let _ = session.requests.send(v1::ConsumeRequest { credit, ..Default::default() });
    }

    /// Running jobs have ended, or their time is over. Other messages are given back without costing an attempt.
    async fn leave(&mut self, mut session: Session) -> End {
        for info in self.leases.messages() {
            info.cancel();
        }
        // Handlers that watch for the cancellation may tidy up. The others are dropped.
        self.wait_for_runners(clock::after(CANCEL_WITHIN)).await;
        // Before their messages are given back, so that no other worker begins while they still run.
        let are_gone = self.drop_runners().await;
        self.send_verdicts(&session);
        self.shared.counters.returned.add(self.leases.len() as u64);
        let left = self.leases.take_all();
        if are_gone {
            self.abandon(&left).await;
        }
        let _ = session.requests.send(v1::ConsumeRequest { goodbye: true, ..Default::default() });
        let answers = async {
            while let Ok(Some(reply)) = session.replies.message().await {
                for settled in &reply.settled {
                    self.on_settled(settled);
                }
                for committed in reply.committed {
                    self.on_committed(committed);
                }
            }
        };
        if tokio::time::timeout(FAREWELL, answers).await.is_err() {
            tracing::warn!("the server did not answer the goodbye");
        }
        self.give_up_answers();
        End::Closed
    }

    /// Gives claims up, so that the next worker can begin at once and not only when the claims have lapsed.
    async fn abandon(&self, left: &[JobInfo]) {
        let Some(store) = &self.shared.idempotency else { return };
        let abandoned = async {
            for claim in left.iter().filter_map(JobInfo::claim) {
                // Otherwise it lapses by itself. A mark that is written stays.
                let _ = store.store.abandon(claim).await;
            }
        };
        let _ = tokio::time::timeout(CANCEL_WITHIN, abandoned).await;
    }

    /// There is no connection, but running jobs may finish as they could with one.
    async fn finish_running(&mut self) {
        self.shared.desk().close();
        let until = self.closing.unwrap_or_else(|| clock::after(self.terms.shutdown_within));
        self.wait_for_runners(until).await;
        self.lose_everything();
    }

    async fn wait_for_runners(&self, until: Instant) {
        while self.shared.desk().with_runners() > 0 && clock::now() < until {
            let _ = tokio::time::timeout(CHECK_EVERY, self.shared.verdicts.notified()).await;
        }
    }

    /// Whether every handler has ended.
    async fn drop_runners(&mut self) -> bool {
        self.runners.abort_all();
        // A handler that never awaits cannot be dropped.
        let gone = async { while self.runners.join_next().await.is_some() {} };
        let are_gone = tokio::time::timeout(CANCEL_WITHIN, gone).await.is_ok();
        if !are_gone {
            tracing::warn!("a handler goes on after its time, because it never awaits");
        }
        are_gone
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Decides whether an error ends the worker.
#[derive(Debug, Default)]
struct Patience {
    /// The worker has been a member of its group.
    has_joined: bool,
    /// The server has said that the group does not exist, since the worker joined last.
    is_gone: bool,
}

impl Patience {
    fn joined(&mut self) {
        *self = Patience { has_joined: true, is_gone: false };
    }

    /// Whether another try is useless. A worker that has joined before may join again: a deleted group may be created
    /// again, and a proxy may have answered for a server that was down. That the group is gone counts when it is said
    /// a second time, since a worker that ends for good cannot correct a mistake. `creates`: the worker creates the
    /// group itself.
    fn is_final(&mut self, error: &CallError, creates: bool) -> bool {
        let may_pass = match error {
            CallError::NotUnderstood(_) => true,
            error if error.is(ProblemKind::NoSuchGroup) => {
                let first = !std::mem::replace(&mut self.is_gone, true);
                creates || first
            }
            _ => false,
        };
        error.advice() == Advice::FixRequest && !(self.has_joined && may_pass)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_ends_when_it_is_told_twice_that_its_group_is_gone() {
        let refused =
            |kind| CallError::Refused { kind: Some(kind), detail: String::new(), advice: Advice::FixRequest };
        let gone = refused(ProblemKind::NoSuchGroup);
        let mut patience = Patience::default();
        assert!(patience.is_final(&gone, false), "it has never been there");
        patience.joined();
        assert!(!patience.is_final(&gone, false), "the server may have been about to die");
        patience.joined();
        assert!(!patience.is_final(&gone, false), "the group was there again");
        assert!(patience.is_final(&gone, false));
        assert!(!patience.is_final(&gone, true), "a worker that creates its group tries again");
        assert!(patience.is_final(&refused(ProblemKind::MalformedRequest), false));
    }
}
