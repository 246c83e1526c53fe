//! Stands between the server and the lanes: puts what comes on the desk, tells the server what became of it, keeps
//! leases alive, and decides how much to hold.
//!
//! One task owns the connection and everything about leases. It shares nothing with the lanes but the desk.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_wire::v1;
use futures_util::future::OptionFuture;
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;
use tonic::Status;

use super::breaker::BreakerState;
use super::desk::{Done, Parcel, Verdict};
use super::event::WorkerEvent;
use super::route::Table;
use super::scale::{self, Concurrency, Load};
use super::{Shared, WorkerError, lane};
use crate::admin::groups::{Scaling, ScalingTarget};
use crate::admin::settings::{GroupSettings, Strategy};
use crate::client::Client;
use crate::clock;
use crate::consumer::{Lease, Outcome, Session, Settlement, arrived, outcomes};
use crate::error::{Advice, CallError, ProblemKind};
use crate::idempotency::Claim;
use crate::job::JobInfo;

/// How often leases, credit and the breaker are looked at.
const LOOK: Duration = Duration::from_millis(200);
/// How often the server is asked how much there is to do.
const SCALE_EVERY: Duration = Duration::from_secs(1);
/// The wait before the server is tried again: twice as long each time.
const AGAIN_MIN: Duration = Duration::from_millis(50);
const AGAIN_MAX: Duration = Duration::from_secs(2);
/// How long the last answers may take when the worker leaves.
const FAREWELL: Duration = Duration::from_secs(5);
/// Handlers that were told to stop, and are dropped where they wait, have this long to be gone.
const DROPPED: Duration = Duration::from_secs(1);
/// Leases are renewed when a third of their time is over.
const RENEW_AFTER: u32 = 3;

/// What leases last, unless the group says otherwise, and what is believed of it.
const LEASE: Duration = Duration::from_secs(30);
const LEASE_MIN: Duration = Duration::from_millis(100);
const LEASE_MAX: Duration = forebay_model::limits::YEAR;
/// What is held at a time, in bytes, so that no reply becomes larger than can be read.
const CREDIT_BYTES: u64 = 16 << 20;
/// How long it may take to join the group.
const JOIN: Duration = Duration::from_secs(10);

/// What a worker was told to begin with, as far as the pump has to know.
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

/// A message in hand, as far as its lease goes.
struct Held {
    info: JobInfo,
    /// Until when the lease lasts.
    deadline: Instant,
}

/// What was sent and is not answered yet.
struct Sent {
    ticket: u64,
    leases: Vec<Lease>,
    what: What,
}

enum What {
    Acks,
    /// One message, with the attempt and the verdict.
    Other(u32, Verdict),
    Extension,
}

pub(super) struct Pump<S> {
    shared: Arc<Shared<S>>,
    terms: Terms,
    table: Table,
    lanes: JoinSet<()>,
    concurrency: usize,
    breaker: BreakerState,
    held: HashMap<Lease, Held>,
    sent: VecDeque<Sent>,
    ticket: u64,
    credit: u32,
    credit_max: u32,
    /// How long leases last from each renewal.
    lease: Duration,
    /// The worker has been a member of its group.
    has_joined: bool,
    /// An extension is on its way.
    extending: bool,
    stop: watch::Receiver<bool>,
    /// Set once the worker is to end.
    closing: Option<Instant>,
    done: Vec<Done>,
    acks: Vec<Lease>,
}

/// Why a conversation with the server ended.
enum End {
    /// The worker was told to.
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
        Pump {
            concurrency: terms.concurrency.min,
            shared,
            terms,
            table,
            lanes: JoinSet::new(),
            breaker: BreakerState::Closed,
            held: HashMap::new(),
            sent: VecDeque::new(),
            ticket: 0,
            credit: 0,
            credit_max: u32::MAX,
            lease: LEASE,
            has_joined: false,
            extending: false,
            stop,
            closing: None,
            done: Vec::new(),
            acks: Vec::new(),
        }
    }

    /// Works until it is told to stop, or the server will not have it. If somebody waits for it to be `ready`, the
    /// first try must succeed.
    pub(super) async fn run(
        mut self,
        mut ready: Option<oneshot::Sender<Result<(), WorkerError>>>,
    ) -> Result<(), WorkerError> {
        let mut again = AGAIN_MIN;
        let mut stop = self.stop.clone();
        let outcome = loop {
            let opened = tokio::select! {
                opened = tokio::time::timeout(JOIN, self.open()) => opened,
                _ = stop.wait_for(|stop| *stop) => break Ok(()),
            };
            let silent = || Err(Status::deadline_exceeded("the server did not answer").into());
            let error = match opened.unwrap_or_else(|_| silent()) {
                Ok(session) => {
                    self.has_joined = true;
                    if let Some(ready) = ready.take() {
                        let _ = ready.send(Ok(()));
                    }
                    again = AGAIN_MIN;
                    self.shared.counters.connected.store(1, Ordering::Relaxed);
                    self.shared.tell(WorkerEvent::Connected);
                    let end = self.converse(session).await;
                    self.shared.counters.connected.store(0, Ordering::Relaxed);
                    self.lose_everything();
                    match end {
                        End::Closed => break Ok(()),
                        End::Broken(error) => error,
                    }
                }
                Err(error) => error,
            };
            if ready.is_some() || self.is_final(&error) {
                break Err(WorkerError::Refused(error));
            }
            if self.closing.is_some() || *self.stop.borrow() {
                break Ok(());
            }
            self.shared.counters.disconnected.add(1);
            self.shared.tell(WorkerEvent::Disconnected { error, again_in: again });
            tokio::select! {
                () = tokio::time::sleep(again) => {}
                _ = stop.wait_for(|stop| *stop) => break Ok(()),
            }
            again = (again * 2).min(AGAIN_MAX);
        };
        self.finish_running().await;
        self.drop_lanes().await;
        if let (Some(ready), Err(error)) = (ready, &outcome) {
            let _ = ready.send(Err(error.clone()));
        }
        outcome
    }

    /// Whether there is no use in trying again. What worked once may work again: a group that is made anew, a proxy
    /// that answered for a server that was away.
    fn is_final(&self, error: &CallError) -> bool {
        let comes_back = match error {
            CallError::NotUnderstood(_) => true,
            error => error.is(ProblemKind::NoSuchGroup) && self.terms.create.is_some(),
        };
        error.advice() == Advice::FixRequest && !(self.has_joined && comes_back)
    }

    /// Joins the group, after seeing to it that it is there and what it is like.
    async fn open(&mut self) -> Result<Session, CallError> {
        let Terms { client, stream, group, create, .. } = &self.terms;
        if let Some(settings) = create {
            match client.create_group(stream, group, settings.clone()).await {
                // One that is there with settings of its own is as good: whoever runs it knows better.
                Err(error) if !error.is(ProblemKind::SettingsDiffer) => return Err(error),
                _ => {}
            }
        }
        let settings = client.group(stream, group).await?.settings;
        let strategy = settings.strategy;
        let in_order = matches!(strategy, Some(Strategy::Ordered | Strategy::Pinned));
        let now = clock::now();
        let credit = {
            let mut desk = self.shared.desk();
            desk.keep_keys_in_order(in_order);
            desk.set_limit(self.concurrency);
            desk.credit_max(now)
        };
        self.credit = u32::try_from(self.credit_wanted().min(credit)).unwrap_or(u32::MAX);
        let open = v1::Open {
            stream: stream.to_string(),
            group: group.to_string(),
            consumer: self.terms.name.clone(),
            credit: self.credit,
        };
        let session = Session::open(client.grpc(), open, Some(CREDIT_BYTES)).await?;
        self.credit_max = session.credit_max;
        self.lease = settings.message_timeout.unwrap_or(LEASE).clamp(LEASE_MIN, LEASE_MAX);
        Ok(session)
    }

    fn credit_wanted(&self) -> usize {
        let desk = self.shared.desk();
        let (limit, mean) = (desk.limit(), desk.job_mean());
        let prefetch = self.terms.prefetch.unwrap_or_else(|| scale::prefetch(limit, mean));
        scale::credit(limit * desk.together() + prefetch, desk.with_lanes(), desk.shut_in(), self.terms.rate)
    }

    async fn converse(&mut self, mut session: Session) -> End {
        let first = std::mem::take(&mut session.first);
        self.on_reply(&session, first);
        // Often enough for the shortest leases.
        let mut look = tokio::time::interval(LOOK.min(self.lease / 6));
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut asked_at = clock::now();
        let mut scaling: Option<JoinHandle<Result<Scaling, CallError>>> = None;
        let mut stop = self.stop.clone();
        loop {
            self.tell_verdicts(&session);
            if let Some(until) = self.closing
                && (self.shared.desk().with_lanes() == 0 || clock::now() >= until)
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
                _ = look.tick() => {
                    let now = clock::now();
                    self.renew(&session, now);
                    self.look_at_breaker(now);
                    self.set_credit(&session, now);
                    self.tend_lanes();
                    self.see_to_lanes();
                    if self.terms.concurrency.is_automatic() && scaling.is_none() && now - asked_at >= SCALE_EVERY {
                        asked_at = now;
                        scaling = Some(self.ask_how_much());
                    }
                }
                Some(answer) = OptionFuture::from(scaling.as_mut()), if scaling.is_some() => {
                    scaling = None;
                    if let Ok(Ok(reply)) = answer {
                        self.scale(&reply);
                        self.set_credit(&session, clock::now());
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
            // Somebody may have given the group a longer timeout since.
            self.lease = self.lease.max(arrived.deadline - now);
            self.held.insert(lease, Held { info: info.clone(), deadline: arrived.deadline });
            if self.closing.is_some() {
                back.push(Done { lease, verdict: Verdict::Return { after: None } });
            } else {
                desk.arrive(now, Parcel { lease, route, info });
            }
        }
        self.shared.lease_us.store(micros(self.lease), Ordering::Relaxed);
        self.shared.counters.received.add(count);
        drop(desk);
        self.see_to_lanes();
        if !back.is_empty() {
            self.done.append(&mut back);
            self.tell_verdicts(session);
        }
    }

    /// Tells the server what was decided. Acks go together; the others have reasons of their own.
    fn tell_verdicts(&mut self, session: &Session) {
        self.shared.desk().take_done(&mut self.done);
        if self.done.is_empty() {
            return;
        }
        let mut settlements = Vec::new();
        for Done { lease, verdict } in std::mem::take(&mut self.done) {
            let Some(held) = self.held.remove(&lease) else {
                // Its lease was lost, and that was told. What is new is that the work was done all the same.
                if matches!(verdict, Verdict::Ack) {
                    self.late(lease);
                }
                continue;
            };
            let settlement = match &verdict {
                Verdict::Ack | Verdict::Duplicate => {
                    if verdict == Verdict::Duplicate {
                        self.shared.counters.duplicates.add(1);
                    }
                    self.acks.push(lease);
                    continue;
                }
                Verdict::Retry { after, reason } => with(Settlement::retry(), *after).because(reason.clone()),
                Verdict::Park { reason } => Settlement::park().because(reason.clone()),
                Verdict::Skip { reason } => Settlement::skip().because(reason.clone()),
                Verdict::Return { after } => with(Settlement::give_back(), *after),
                Verdict::NoStore { after } => Settlement::give_back().after(*after),
                Verdict::Throttled { after, reason } => {
                    Settlement::give_back().after(*after).because(reason.clone()).rest(*after)
                }
                Verdict::Lost => continue,
            };
            let what = What::Other(held.info.attempt(), verdict);
            settlements.push(self.send(settlement, vec![lease], what));
        }
        if !self.acks.is_empty() {
            let mut acks = std::mem::take(&mut self.acks);
            acks.sort_unstable();
            settlements.push(self.send(Settlement::ack(), acks, What::Acks));
        }
        if !settlements.is_empty() {
            let _ = session.requests.send(v1::ConsumeRequest { settlements, ..Default::default() });
        }
    }

    fn send(&mut self, settlement: Settlement, leases: Vec<Lease>, what: What) -> v1::Settlement {
        self.ticket += 1;
        let wire = settlement.into_wire(self.ticket, leases.iter().copied());
        self.sent.push_back(Sent { ticket: self.ticket, leases, what });
        wire
    }

    fn on_settled(&mut self, settled: &v1::Settled) {
        // They come in the order in which they were asked, but for those that are refused, which come at once.
        let Some(at) = self.sent.iter().position(|sent| sent.ticket == settled.ticket) else { return };
        let Some(sent) = self.sent.remove(at) else { return };
        if let Some(problem) = &settled.problem {
            // Nothing that this side says should ever be refused; if it is, the leases lapse by themselves.
            self.extending &= !matches!(sent.what, What::Extension);
            tracing::error!(detail = problem.detail, "the server did not understand a settlement");
            return;
        }
        let counters = self.shared.counters_of();
        match sent.what {
            What::Acks => {
                let mut acked = 0;
                for (lease, outcome) in sent.leases.iter().zip(outcomes(settled)) {
                    match outcome {
                        Outcome::NotYours => self.late(*lease),
                        _ => acked += 1,
                    }
                }
                self.shared.counters.acked.add(acked);
            }
            What::Extension => {
                self.extending = false;
                for (lease, outcome) in sent.leases.iter().zip(outcomes(settled)) {
                    if outcome == Outcome::NotYours
                        && let Some(held) = self.held.remove(lease)
                    {
                        self.lose(&held);
                    }
                }
            }
            What::Other(attempt, verdict) => {
                let outcome = outcomes(settled).next().unwrap_or(Outcome::Unspecified);
                let lease = sent.leases[0];
                let told = match outcome {
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
                told.add(1);
                if let Verdict::Retry { reason, .. } | Verdict::Park { reason } = verdict {
                    let parked = matches!(outcome, Outcome::Parked | Outcome::Moving);
                    self.shared.tell(WorkerEvent::Failed { seq: lease.seq, attempt, reason, parked });
                }
            }
        }
    }

    fn late(&self, lease: Lease) {
        self.shared.counters.late.add(1);
        self.shared.tell(WorkerEvent::LateAnswer { seq: lease.seq });
    }

    /// Whoever works on it is told; whoever has not begun will not.
    fn lose(&self, held: &Held) {
        held.info.cancel();
        self.shared.counters.lost.add(1);
        let (seq, attempt) = (held.info.seq(), held.info.attempt());
        self.shared.tell(WorkerEvent::LeaseLost { seq, attempt });
    }

    /// The connection is gone. What was not told is late; what was in hand comes again, here or elsewhere.
    fn lose_everything(&mut self) {
        {
            let mut desk = self.shared.desk();
            desk.take_done(&mut self.done);
            desk.forget_waiting();
        }
        for Done { lease, verdict } in std::mem::take(&mut self.done) {
            if matches!(verdict, Verdict::Ack) {
                self.held.remove(&lease);
                self.late(lease);
            }
        }
        for (_, held) in std::mem::take(&mut self.held) {
            self.lose(&held);
        }
        self.give_up_answers();
        self.extending = false;
    }

    /// Nobody will say any more what became of acks that were sent.
    fn give_up_answers(&mut self) {
        let acks = self.sent.drain(..).filter(|sent| matches!(sent.what, What::Acks));
        let count: u64 = acks.map(|sent| sent.leases.len() as u64).sum();
        if count > 0 {
            self.shared.counters.unanswered.add(count);
            self.shared.tell(WorkerEvent::Unanswered { acks: count });
        }
    }

    /// Prolongs the leases of everything in hand before they lapse, and the claims that go with them.
    fn renew(&mut self, session: &Session, now: Instant) {
        if self.extending {
            return;
        }
        let (enough, until) = (now + self.lease - self.lease / RENEW_AFTER, now + self.lease);
        let mut leases: Vec<Lease> = Vec::new();
        let mut claims: Vec<Claim> = Vec::new();
        for (lease, held) in self.held.iter_mut().filter(|(_, held)| held.deadline < enough) {
            held.deadline = until;
            leases.push(*lease);
            claims.extend(held.info.claim().cloned());
        }
        if leases.is_empty() {
            return;
        }
        leases.sort_unstable();
        self.extending = true;
        let extension = self.send(Settlement::extend(self.lease), leases, What::Extension);
        let _ =
            session.requests.send(v1::ConsumeRequest { settlements: vec![extension], ..Default::default() });
        if let (Some(store), false) = (&self.shared.idempotency, claims.is_empty()) {
            let (store, shared, lasts) =
                (store.store.clone(), self.shared.clone(), self.shared.claim_lasts());
            tokio::spawn(async move {
                if let Err(error) = store.renew(&claims, lasts).await {
                    let error = crate::error::in_words(&error);
                    shared.tell(WorkerEvent::StoreFailed { error });
                }
            });
        }
    }

    /// While the breaker is open, or everybody was told to slow down, nothing waits here that somebody else could do.
    fn look_at_breaker(&mut self, now: Instant) {
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
            self.shared.tell(WorkerEvent::Breaker(state));
        }
    }

    fn set_credit(&mut self, session: &Session, now: Instant) {
        if self.closing.is_some() {
            return;
        }
        let wanted = self.credit_wanted();
        let allowed = self.shared.desk().credit_max(now);
        let wanted = u32::try_from(wanted.min(allowed)).unwrap_or(u32::MAX).min(self.credit_max);
        // A little more or less is not worth a word.
        let near = wanted.abs_diff(self.credit) <= self.credit / 4;
        if wanted == self.credit || (near && wanted > 0 && allowed == usize::MAX && self.credit > 8) {
            return;
        }
        self.credit = wanted;
        let credit_bytes = Some(CREDIT_BYTES);
        let request = v1::ConsumeRequest { credit: Some(wanted), credit_bytes, ..Default::default() };
        let _ = session.requests.send(request);
    }

    /// As many lanes as there is work for, and one of them awake. Those stay: they cost next to nothing.
    fn see_to_lanes(&mut self) {
        let (wanted, may_take) = {
            let desk = self.shared.desk();
            (desk.limit().min(desk.runnable() + desk.running()), desk.may_take())
        };
        while self.lanes.len() < wanted {
            self.lanes.spawn(lane::run(self.shared.clone()));
        }
        if may_take {
            self.shared.bell.notify_one();
        }
    }

    /// Lanes never end by themselves; one that did is a mistake in here, and is not hidden.
    fn tend_lanes(&mut self) {
        while let Some(ended) = self.lanes.try_join_next() {
            if let Err(error) = ended
                && error.is_panic()
            {
                std::panic::resume_unwind(error.into_panic());
            }
        }
    }

    fn ask_how_much(&self) -> JoinHandle<Result<Scaling, CallError>> {
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
                // What lies here waits as well.
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
        self.see_to_lanes();
        if next != now {
            self.concurrency = next;
            self.shared.tell(WorkerEvent::Concurrency(next));
        }
    }

    /// Takes nothing more, and gives back what has not begun.
    fn begin_to_close(&mut self, session: &Session) {
        self.closing = Some(clock::after(self.terms.shutdown_within));
        self.shared.desk().close();
        self.credit = 0;
        let _ = session.requests.send(v1::ConsumeRequest { credit: Some(0), ..Default::default() });
    }

    /// Running jobs have ended, or their time is over. What is still held goes back without costing an attempt.
    async fn leave(&mut self, mut session: Session) -> End {
        for held in self.held.values() {
            held.info.cancel();
        }
        // Those who listen may tidy up, and those who do not are dropped.
        let until = clock::after(DROPPED);
        while self.shared.desk().with_lanes() > 0 && clock::now() < until {
            let _ = tokio::time::timeout(LOOK, self.shared.verdicts.notified()).await;
        }
        // Before their messages are given back, so that nobody else begins while they are still at it.
        let are_gone = self.drop_lanes().await;
        self.tell_verdicts(&session);
        self.shared.counters.returned.add(self.held.len() as u64);
        let left = std::mem::take(&mut self.held);
        if are_gone {
            self.abandon(left.into_values()).await;
        }
        let _ = session.requests.send(v1::ConsumeRequest { goodbye: true, ..Default::default() });
        let answers = async {
            while let Ok(Some(reply)) = session.replies.message().await {
                for settled in &reply.settled {
                    self.on_settled(settled);
                }
            }
        };
        if tokio::time::timeout(FAREWELL, answers).await.is_err() {
            tracing::warn!("the server did not answer the goodbye");
        }
        self.give_up_answers();
        End::Closed
    }

    /// What was not done may be begun by the next one at once, and not only when the claim has lapsed.
    async fn abandon(&self, left: impl Iterator<Item = Held>) {
        let Some(store) = &self.shared.idempotency else { return };
        let abandoned = async {
            for held in left {
                if let Some(claim) = held.info.claim() {
                    // It lapses by itself otherwise. A mark that is written stays.
                    let _ = store.store.abandon(claim).await;
                }
            }
        };
        let _ = tokio::time::timeout(DROPPED, abandoned).await;
    }

    /// There is no server to tell, but jobs that run may finish for as long as they could with one.
    async fn finish_running(&mut self) {
        self.shared.desk().close();
        let until = self.closing.unwrap_or_else(|| clock::after(self.terms.shutdown_within));
        while self.shared.desk().with_lanes() > 0 && clock::now() < until {
            let _ = tokio::time::timeout(LOOK, self.shared.verdicts.notified()).await;
        }
        self.lose_everything();
    }

    /// Says whether no handler runs any more.
    async fn drop_lanes(&mut self) -> bool {
        self.lanes.abort_all();
        // A handler that does not wait anywhere cannot be dropped.
        let gone = async { while self.lanes.join_next().await.is_some() {} };
        let are_gone = tokio::time::timeout(DROPPED, gone).await.is_ok();
        if !are_gone {
            tracing::warn!("a handler goes on after its time, since it never waits");
        }
        are_gone
    }
}

fn with(settlement: Settlement, after: Option<Duration>) -> Settlement {
    match after {
        Some(after) => settlement.after(after),
        None => settlement,
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
