//! A consumer over gRPC. Most of the time it works; now and then it answers late or never, gives messages back,
//! leaves without a word, or falls silent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use forebay_wire::v1;
use forebay_wire::v1::outcome_run::Outcome;
use forebay_wire::v1::settlement::Action;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::{AGAIN, ANSWER_WITHIN, Arrived, connect, write_delivery};
use crate::content::Content;
use crate::dice::Dice;
use crate::history::{Phase, Time};
use crate::plan::GroupPlan;
use crate::world::{Server, Stage, World};

/// How long after its deadline a consumer waits until another consumer has the message that it settles late.
const LATE_MAX: Duration = Duration::from_secs(1);
const LOOK_AGAIN: Duration = Duration::from_millis(3);

pub(crate) async fn consume(world: Arc<World>, process: u32, group: GroupPlan, mut dice: Dice) {
    while let Some(server) = world.listening().await {
        let credit = dice.between(1, 24) as u32;
        let id = world.number();
        let dice = dice.fork();
        let session = Session {
            world: world.clone(),
            process,
            name: group.name(),
            group: group.clone(),
            dice,
            server,
            id,
            credit,
            epoch: 0,
            held: BTreeMap::new(),
            due: BTreeMap::new(),
            asked: BTreeMap::new(),
            is_silent: false,
            heard: 0,
        };
        session.run().await;
        tokio::time::sleep(AGAIN).await;
    }
}

/// A message in hand, by the number of its delivery.
struct Held {
    seq: u64,
    grant: u64,
    epoch: u32,
    deadline: Time,
    is_poison: bool,
    /// It is settled when another consumer has it, and at the latest then.
    late: Option<Instant>,
}

/// What a consumer means to do with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Intent {
    action: i32,
    delay_ms: Option<u64>,
}

fn intent(action: Action, delay_ms: Option<u64>) -> Intent {
    Intent { action: action.into(), delay_ms }
}

struct Session {
    world: Arc<World>,
    process: u32,
    name: String,
    group: GroupPlan,
    dice: Dice,
    server: Server,
    id: u64,
    credit: u32,
    epoch: u32,
    held: BTreeMap<u64, Held>,
    due: BTreeMap<(Instant, u64), Intent>,
    /// Settlements that are not answered, by ticket, with the deliveries they are about, in order.
    asked: BTreeMap<u64, (Intent, Vec<u64>)>,
    is_silent: bool,
    heard: Time,
}

/// How a session came to its end.
enum End {
    Dropped,
    Lost,
    Goodbye,
}

impl Session {
    async fn run(mut self) {
        let Ok(mut client) = connect(self.server).await else { return };
        let (requests, sent) = mpsc::channel(64);
        let open = v1::Open {
            stream: self.group.stream.to_owned(),
            group: self.group.group.to_owned(),
            consumer: format!("consumer-{}", self.process),
            credit: self.credit,
            ..Default::default()
        };
        let first = v1::ConsumeRequest { open: Some(open), ..Default::default() };
        requests.try_send(first).expect("the queue is empty");
        // Written before the call: it may grant leases that no client sees.
        let fields = [
            ("session", self.id.to_string()),
            ("group", self.name.clone()),
            ("run", self.server.run.to_string()),
            ("credit", self.credit.to_string()),
        ];
        self.heard = self.world.write(self.process, Phase::Invoke, "open", &fields);
        let opened = tokio::time::timeout(ANSWER_WITHIN, client.consume(ReceiverStream::new(sent))).await;
        let end = match opened {
            Ok(Ok(replies)) => self.work(requests, replies.into_inner()).await,
            Ok(Err(status)) => {
                if matches!(status.code(), tonic::Code::NotFound | tonic::Code::InvalidArgument) {
                    self.world.trouble(self.process, format!("{} cannot be consumed: {status}", self.name));
                }
                End::Lost
            }
            Err(_) => End::Lost,
        };
        match end {
            End::Lost => self.close("lost"),
            // Written before it was done.
            End::Dropped | End::Goodbye => {}
        }
        for held in self.held.values().filter(|held| held.late.is_some()) {
            self.world.has_come(&self.name, held.seq, true);
        }
        for (_, deliveries) in std::mem::take(&mut self.asked).into_values() {
            for delivery in deliveries {
                let fields = [("delivery", delivery.to_string())];
                self.world.write(self.process, Phase::Info, "settle", &fields);
            }
        }
    }

    fn close(&self, why: &str) {
        let fields =
            [("session", self.id.to_string()), ("why", why.to_owned()), ("heard", self.heard.to_string())];
        self.world.write(self.process, Phase::Info, "close", &fields);
    }

    async fn work(
        &mut self,
        requests: mpsc::Sender<v1::ConsumeRequest>,
        mut replies: Streaming<v1::ConsumeReply>,
    ) -> End {
        let mut stage = self.world.stage.clone();
        let lasts = Duration::from_millis(self.dice.between(200, 7_000));
        let mut mischief_at = Instant::now() + lasts;
        loop {
            let now_is = *stage.borrow_and_update();
            if now_is == Stage::Over {
                return self.goodbye(requests, replies).await;
            }
            if now_is > Stage::Chaos && self.is_silent {
                self.close("dropped");
                return End::Dropped;
            }
            if now_is == Stage::Chaos && mischief_at <= Instant::now() {
                match self.dice.between(0, 99) {
                    _ if self.is_silent => {
                        self.close("dropped");
                        return End::Dropped;
                    }
                    0..40 => {
                        self.close("dropped");
                        return End::Dropped;
                    }
                    40..75 => return self.goodbye(requests, replies).await,
                    _ => {
                        self.is_silent = true;
                        mischief_at += Duration::from_millis(self.group.timeout_ms * 2);
                    }
                }
            }
            let due = self.due.first_key_value().map(|(&(at, _), _)| at).filter(|_| !self.is_silent);
            let wake = due.map_or(mischief_at, |due| due.min(mischief_at));
            // After the chaos the time for mischief is over, and so must not wake anybody.
            let wake = if now_is == Stage::Chaos { wake } else { due.unwrap_or(Instant::now() + AGAIN * 40) };
            tokio::select! {
                reply = replies.message() => match reply {
                    Ok(Some(reply)) => self.take(reply),
                    Ok(None) | Err(_) => return End::Lost,
                },
                () = tokio::time::sleep_until(wake) => {
                    if !self.is_silent && self.settle_due(&requests).await.is_err() {
                        return End::Lost;
                    }
                }
                changed = stage.changed() => {
                    if changed.is_err() {
                        return End::Lost;
                    }
                }
            }
        }
    }

    async fn goodbye(
        &mut self,
        requests: mpsc::Sender<v1::ConsumeRequest>,
        mut replies: Streaming<v1::ConsumeReply>,
    ) -> End {
        self.close("goodbye");
        let goodbye = v1::ConsumeRequest { goodbye: true, ..Default::default() };
        if requests.send(goodbye).await.is_ok() {
            while let Ok(Ok(Some(reply))) = tokio::time::timeout(ANSWER_WITHIN, replies.message()).await {
                self.settled(reply.settled);
            }
        }
        End::Goodbye
    }

    fn take(&mut self, reply: v1::ConsumeReply) {
        self.heard = self.world.history.now();
        if let Some(opened) = reply.opened {
            self.epoch = opened.epoch;
            self.server.run = self.server.run_of(opened.epoch);
        }
        self.settled(reply.settled);
        let Some(deliveries) = reply.deliveries else { return };
        let mut messages = deliveries.messages.into_iter();
        for run in &deliveries.runs {
            for n in 0..u64::from(run.count.max(1)) {
                let Some(message) = messages.next() else {
                    self.world.trouble(self.process, format!("{}: fewer messages than leases", self.name));
                    return;
                };
                let (seq, grant) = (run.first_seq + n, run.first_grant + n);
                self.delivered(deliveries.epoch, seq, grant, run, message);
            }
        }
    }

    fn delivered(&mut self, epoch: u32, seq: u64, grant: u64, run: &v1::DeliveryRun, message: v1::Message) {
        let published = message.published_at_us;
        let content = Content {
            id: message.id,
            key: message.key,
            kind: message.r#type,
            headers: message.headers.into_iter().map(|header| (header.name, header.value)).collect(),
            priority: message.priority,
            body: message.body.to_vec(),
        };
        let is_poison = content.is_poison();
        let session = Some(self.id);
        let arrived =
            Arrived { seq, attempt: run.attempt, deadline: run.deadline_us, published, content, session };
        let delivery = write_delivery(&self.world, self.process, &self.name, self.server.run, &arrived);
        let Some(delivery) = delivery else { return };
        let deadline = self.world.history.time_of(run.deadline_us);
        self.held.insert(delivery, Held { seq, grant, epoch, deadline, is_poison, late: None });
        self.intend(delivery);
    }

    /// Makes up its mind about a message.
    fn intend(&mut self, delivery: u64) {
        let Some(held) = self.held.get_mut(&delivery) else { return };
        let dice = &mut self.dice;
        let soon = Duration::from_millis(dice.between(0, 25));
        let (intent, after) = match (self.world.stage(), held.is_poison) {
            (Stage::Chaos | Stage::Calm, true) => (intent(Action::Retry, None), soon),
            (Stage::Chaos, false) => match dice.between(0, 999) {
                0..880 => (intent(Action::Ack, None), soon),
                880..910 => (intent(Action::Retry, Some(dice.between(50, 900))), soon),
                910..930 => (intent(Action::Retry, None), soon),
                930..950 => {
                    let by = self.group.timeout_ms + dice.between(0, 1_000);
                    (intent(Action::Extend, Some(by)), soon)
                }
                950..965 => (intent(Action::Ack, None), Duration::from_millis(dice.between(100, 1_000))),
                // Never, as far as anybody can tell.
                965..970 => return,
                970..980 => {
                    // Too late: once another consumer has it, or none has had it for long.
                    let deadline = Instant::from_std(self.world.history.instant_of(held.deadline));
                    let after = deadline.saturating_duration_since(Instant::now());
                    held.late = Some(deadline + LATE_MAX);
                    self.world.watch(&self.name, held.seq);
                    (intent(Action::Ack, None), after)
                }
                980..990 if self.group.retries.is_some() => (intent(Action::Park, None), soon),
                980..990 => (intent(Action::Skip, None), soon),
                _ => (intent(Action::Ack, None), soon),
            },
            _ => (intent(Action::Ack, None), Duration::ZERO),
        };
        self.due.insert((Instant::now() + after, delivery), intent);
    }

    /// Settles every message whose time has come, equal settlements together.
    async fn settle_due(&mut self, requests: &mpsc::Sender<v1::ConsumeRequest>) -> Result<(), ()> {
        let mut alike: BTreeMap<Intent, Vec<u64>> = BTreeMap::new();
        while let Some(entry) = self.due.first_entry() {
            let &(at, delivery) = entry.key();
            if at > Instant::now() {
                break;
            }
            let intent = entry.remove();
            if let Some(held) = self.held.get(&delivery)
                && let Some(latest) = held.late
                && !self.world.has_come(&self.name, held.seq, latest <= at)
                && at < latest
            {
                self.due.insert((Instant::now() + LOOK_AGAIN, delivery), intent);
                continue;
            }
            alike.entry(intent).or_default().push(delivery);
        }
        if alike.is_empty() {
            return Ok(());
        }
        let mut settlements = Vec::new();
        for (intent, mut deliveries) in alike {
            deliveries.sort_by_key(|delivery| self.held[delivery].seq);
            let epoch = self.held[&deliveries[0]].epoch;
            let mut leases: Vec<v1::LeaseRun> = Vec::new();
            for delivery in &deliveries {
                let held = &self.held[delivery];
                match leases.last_mut() {
                    Some(run)
                        if run.first_seq + u64::from(run.count) == held.seq
                            && run.first_grant + u64::from(run.count) == held.grant =>
                    {
                        run.count += 1;
                    }
                    _ => leases.push(v1::LeaseRun { first_seq: held.seq, first_grant: held.grant, count: 1 }),
                }
                self.write_settle(*delivery, intent);
            }
            let ticket = self.world.number();
            let Intent { action, delay_ms } = intent;
            let reason = "as it happens".to_owned();
            settlements.push(v1::Settlement {
                ticket,
                action,
                epoch,
                leases,
                delay_ms,
                reason,
                ..Default::default()
            });
            self.asked.insert(ticket, (intent, deliveries));
        }
        let request = v1::ConsumeRequest { settlements, ..Default::default() };
        requests.send(request).await.map_err(|_| ())
    }

    fn write_settle(&self, delivery: u64, intent: Intent) {
        let action = match Action::try_from(intent.action) {
            Ok(Action::Ack) => "ack",
            Ok(Action::Park) => "park",
            Ok(Action::Skip) => "skip",
            Ok(Action::Extend) => "extend",
            Ok(Action::Return) => "return",
            Ok(Action::Move) => "move",
            Ok(Action::Retry | Action::Auto | Action::Unspecified) | Err(_) => "retry",
        };
        let mut fields = vec![
            ("delivery", delivery.to_string()),
            ("action", action.to_owned()),
            ("run", self.server.run.to_string()),
        ];
        fields.extend(intent.delay_ms.map(|delay| ("delay_ms", delay.to_string())));
        self.world.write(self.process, Phase::Invoke, "settle", &fields);
    }

    fn settled(&mut self, answers: Vec<v1::Settled>) {
        for answer in answers {
            let Some((intent, deliveries)) = self.asked.remove(&answer.ticket) else {
                self.world.trouble(self.process, format!("an answer that nobody asked for: {answer:?}"));
                continue;
            };
            if let Some(problem) = &answer.problem {
                for delivery in deliveries {
                    let fields = [("delivery", delivery.to_string()), ("why", problem.detail.clone())];
                    self.world.write(self.process, Phase::Fail, "settle", &fields);
                }
                continue;
            }
            let outcomes = answer
                .outcomes
                .iter()
                .flat_map(|run| std::iter::repeat_n(run.outcome(), run.count.max(1) as usize));
            let outcomes: Vec<Outcome> = outcomes.collect();
            if outcomes.len() != deliveries.len() {
                self.world.trouble(self.process, format!("as many answers as leases: {answer:?}"));
            }
            for (delivery, outcome) in deliveries.into_iter().zip(outcomes) {
                let fields = [("delivery", delivery.to_string()), ("outcome", name(outcome).to_owned())];
                self.world.write(self.process, Phase::Ok, "settle", &fields);
                if outcome == Outcome::Extended && intent.action == i32::from(Action::Extend) {
                    // An extended message is held for about as long as a lease before it is acked.
                    let after = Duration::from_millis(self.dice.between(0, self.group.timeout_ms));
                    self.due.insert(
                        (Instant::now() + after, delivery),
                        Intent { action: Action::Ack.into(), delay_ms: None },
                    );
                } else {
                    self.held.remove(&delivery);
                }
            }
        }
    }
}

fn name(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Acked => "acked",
        Outcome::Retrying => "retrying",
        Outcome::Parked => "parked",
        Outcome::Skipped => "skipped",
        Outcome::Extended => "extended",
        Outcome::NotYours => "not_yours",
        Outcome::Moving => "moving",
        Outcome::Expired => "expired",
        Outcome::Returned => "returned",
        Outcome::Unspecified => "unspecified",
    }
}
