//! A consumer of a persistent subscription. Most of the time it acks; now and then it answers late or never, gives
//! events back, parks or skips them, or leaves without a word. No answer is confirmed: the protocol has no such thing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use forebay_wire::kurrent::client::{Empty, Uuid};
use forebay_wire::kurrent::persistent_subscriptions::read_req::options::StreamOption;
use forebay_wire::kurrent::persistent_subscriptions::read_req::{Ack, Content, Nack, Options, nack};
use forebay_wire::kurrent::persistent_subscriptions::read_resp::read_event::Count;
use forebay_wire::kurrent::persistent_subscriptions::read_resp::{Content as Reply, ReadEvent};
use forebay_wire::kurrent::persistent_subscriptions::{ReadReq, ReadResp};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::super::{AGAIN, ANSWER_WITHIN};
use super::{Event, Link, identifier, is_passing, structured};
use crate::dice::Dice;
use crate::history::{Phase, Time};
use crate::plan::{Source, SubscriptionPlan};
use crate::world::{Server, Stage, World};

/// How long a consumer waits for the next event before it looks whether the run is over.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// Ids in one answer.
const IDS_MAX: usize = 10;

pub(crate) async fn consume(world: Arc<World>, process: u32, plan: SubscriptionPlan, mut dice: Dice) {
    while let Some(server) = world.listening().await {
        if let Some(address) = server.kurrent
            && let Ok(link) = Link::open(address).await
            && world.is_still(server).await
        {
            // Small ones, so that the next event often shows that an answer was taken.
            let buffer = dice.between(1, 6) as i32;
            let call = Call {
                world: world.clone(),
                process,
                name: plan.name(),
                plan: plan.clone(),
                dice: dice.fork(),
                server,
                id: world.number(),
                buffer,
                held: BTreeMap::new(),
                due: BTreeMap::new(),
                heard: 0,
            };
            call.run(link).await;
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// What a consumer means to do with an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Intent {
    Ack,
    Retry,
    Park,
    Skip,
    /// Leaves, with all that it holds.
    Leave,
}

impl Intent {
    fn name(self) -> &'static str {
        match self {
            Intent::Ack => "ack",
            Intent::Retry => "retry",
            Intent::Park => "park",
            Intent::Skip => "skip",
            Intent::Leave => "leave",
        }
    }

    fn request(self, ids: Vec<Uuid>) -> Option<ReadReq> {
        let action = match self {
            Intent::Ack => {
                let content = Some(Content::Ack(Ack { ids, ..Ack::default() }));
                return Some(ReadReq { content });
            }
            Intent::Retry => nack::Action::Retry,
            Intent::Park => nack::Action::Park,
            Intent::Skip => nack::Action::Skip,
            Intent::Leave => return None,
        };
        let nack =
            Nack { ids, action: action.into(), reason: "as the dice fell".to_owned(), ..Nack::default() };
        Some(ReadReq { content: Some(Content::Nack(nack)) })
    }
}

/// An event in hand, by the number of its delivery.
struct Held {
    id: Uuid,
    number: u64,
}

struct Call {
    world: Arc<World>,
    process: u32,
    name: String,
    plan: SubscriptionPlan,
    dice: Dice,
    server: Server,
    id: u64,
    buffer: i32,
    held: BTreeMap<u64, Held>,
    due: BTreeMap<(Instant, u64), Intent>,
    /// When it last heard of the server.
    heard: Time,
}

/// How a call came to its end.
enum End {
    /// The client went.
    Dropped,
    Lost,
}

impl Call {
    async fn run(mut self, mut link: Link) {
        let (requests, sent) = mpsc::channel(64);
        let stream_option = Some(match self.plan.source {
            Source::All => StreamOption::All(Empty {}),
            Source::Log(_) | Source::Category => {
                StreamOption::StreamIdentifier(identifier(self.plan.source.stream()))
            }
        });
        let options = Options {
            group_name: self.plan.group.to_owned(),
            buffer_size: self.buffer,
            uuid_option: structured(),
            stream_option,
        };
        let first = ReadReq { content: Some(Content::Options(options)) };
        requests.try_send(first).expect("the queue is empty");
        // Written before the call: it may lease events that no client sees.
        let fields = [
            ("call", self.id.to_string()),
            ("subscription", self.name.clone()),
            ("buffer", self.buffer.to_string()),
            ("run", self.server.run.to_string()),
        ];
        self.heard = self.world.write(self.process, Phase::Invoke, "join", &fields);
        let asked = link.subscriptions.read(ReceiverStream::new(sent));
        let end = match tokio::time::timeout(ANSWER_WITHIN, asked).await {
            Ok(Ok(replies)) => self.work(requests, replies.into_inner()).await,
            Ok(Err(status)) => self.lost(&status),
            Err(_) => End::Lost,
        };
        if matches!(end, End::Lost) {
            self.leave("lost");
        }
    }

    fn lost(&self, status: &Status) -> End {
        if !is_passing(status) {
            self.world.trouble(self.process, format!("{} cannot be consumed: {status}", self.name));
        }
        End::Lost
    }

    fn leave(&self, why: &str) {
        let fields =
            [("call", self.id.to_string()), ("why", why.to_owned()), ("heard", self.heard.to_string())];
        self.world.write(self.process, Phase::Info, "leave", &fields);
    }

    async fn work(&mut self, requests: mpsc::Sender<ReadReq>, mut replies: Streaming<ReadResp>) -> End {
        while self.world.stage() < Stage::Over {
            let due = self.due.first_key_value().map(|((at, _), _)| *at);
            let wake = due.unwrap_or_else(|| Instant::now() + LOOK_AGAIN).min(Instant::now() + LOOK_AGAIN);
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(wake) => {}
                reply = replies.message() => match reply {
                    Ok(Some(reply)) => self.on_reply(reply),
                    Ok(None) => {
                        self.world.trouble(self.process, format!("{}: a call came to an end", self.name));
                        return End::Lost;
                    }
                    Err(status) => return self.lost(&status),
                },
            }
            match self.answer_due(&requests).await {
                Ok(true) => {}
                Ok(false) => {
                    // Written before it is done.
                    self.leave("dropped");
                    return End::Dropped;
                }
                Err(_) => return End::Lost,
            }
        }
        self.leave("dropped");
        End::Dropped
    }

    fn on_reply(&mut self, reply: ReadResp) {
        self.heard = self.world.history.now();
        if let Some(Reply::Event(read)) = reply.content
            && self.on_event(&read).is_none()
        {
            self.world.trouble(self.process, format!("{}: an event of no writer: {read:?}", self.name));
        }
    }

    fn on_event(&mut self, read: &ReadEvent) -> Option<()> {
        let event = Event::read(read.event.as_ref()?)?;
        let id = read.link.as_ref().or(read.event.as_ref())?.id.clone()?;
        let Some(Count::RetryCount(retries)) = read.count else { return None };
        let delivery = self.world.number();
        let fields = [
            ("delivery", delivery.to_string()),
            ("call", self.id.to_string()),
            ("log", event.log.clone()),
            ("revision", event.revision.to_string()),
            ("n", event.number.to_string()),
            ("content", event.digest.to_string()),
            ("retries", retries.to_string()),
        ];
        self.heard = self.world.write(self.process, Phase::Ok, "event", &fields);
        self.held.insert(delivery, Held { id, number: event.number });
        if let Some((intent, after)) = self.decide() {
            self.due.insert((Instant::now() + after, delivery), intent);
        }
        Some(())
    }

    /// `None` if the event is never answered.
    fn decide(&mut self) -> Option<(Intent, Duration)> {
        let (dice, timeout) = (&mut self.dice, self.plan.timeout_ms);
        if self.world.stage() != Stage::Chaos {
            return Some((Intent::Ack, Duration::ZERO));
        }
        let soon = Duration::from_millis(dice.between(0, 120));
        match dice.between(0, 999) {
            0..740 => Some((Intent::Ack, soon)),
            // Long enough to see the server go and come again.
            740..830 => Some((Intent::Ack, Duration::from_millis(dice.between(100, timeout / 2)))),
            830..890 => Some((Intent::Retry, soon)),
            890..910 => Some((Intent::Park, soon)),
            910..935 => Some((Intent::Skip, soon)),
            935..955 => None,
            955..970 => Some((Intent::Leave, soon)),
            // When it may have come to another consumer.
            _ => Some((Intent::Ack, Duration::from_millis(timeout + dice.between(0, 600)))),
        }
    }

    /// Carries out all intents that are due. False if the consumer leaves.
    async fn answer_due(&mut self, requests: &mpsc::Sender<ReadReq>) -> Result<bool, ()> {
        let now = Instant::now();
        let mut answers: BTreeMap<Intent, Vec<u64>> = BTreeMap::new();
        while let Some(first) = self.due.first_entry()
            && first.key().0 <= now
        {
            let ((_, delivery), intent) = first.remove_entry();
            answers.entry(intent).or_default().push(delivery);
        }
        for (intent, deliveries) in answers {
            if intent == Intent::Leave {
                return Ok(false);
            }
            for some in deliveries.chunks(IDS_MAX) {
                let mut ids = Vec::new();
                for delivery in some {
                    let Some(held) = self.held.remove(delivery) else { continue };
                    let fields = [("delivery", delivery.to_string()), ("action", intent.name().to_owned())];
                    self.world.write(self.process, Phase::Invoke, "answer", &fields);
                    if matches!(intent, Intent::Ack | Intent::Skip) {
                        self.world.is_done_with(&self.name, held.number);
                    }
                    ids.push(held.id);
                }
                if let Some(request) = intent.request(ids) {
                    let sent = tokio::time::timeout(ANSWER_WITHIN, requests.send(request)).await;
                    sent.map_err(|_| ())?.map_err(|_| ())?;
                }
            }
        }
        Ok(true)
    }
}
