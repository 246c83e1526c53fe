//! Producers and consumers, the same for every server.
//!
//! A producer keeps a window of unconfirmed messages full. It does not dribble: it sends again once a
//! sixteenth of its window is confirmed, and then all that there is room for, in one batch. A consumer takes
//! all messages that have come and acks them before it takes more.
//!
//! While consumers are there, producers wait when a group is [`BEHIND_MAX`] messages behind: the
//! measurement is of messages that pass through, and not of how fast a queue can grow meanwhile.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{Barrier, Notify, mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};

use super::contender::{Consumer, Failure, Message, Producer, Running, Shape};

pub(crate) const PRODUCERS: usize = 2;
pub(crate) const CONSUMERS: usize = 4;
pub(crate) const WINDOW: usize = 1_024;
pub(crate) const PREFETCH: usize = 256;
pub(crate) const KEYS: u64 = 100_000;
/// How far a group may be behind before producers wait for it.
pub(crate) const BEHIND_MAX: u64 = 20_000;
/// A producer sends once this part of its window is free.
const WINDOW_PARTS: usize = 16;
/// Messages that a producer sends over and over, if they have keys.
const RING: u64 = 1 << 17;
/// How long a consumer waits for its first messages before the others may begin.
const FIRST_WAIT: Duration = Duration::from_secs(3);
/// How long messages in flight may take to arrive.
const FINISH_WAIT: Duration = Duration::from_secs(20);

/// What producers and consumers have done so far, all together.
#[derive(Default)]
pub(crate) struct Tally {
    sent: AtomicU64,
    confirmed: AtomicU64,
    acked: AtomicU64,
    /// When this many are acked, the waiting task is told.
    awaited: AtomicU64,
    reached: Notify,
}

impl Tally {
    pub(crate) fn confirmed(&self) -> u64 {
        self.confirmed.load(Ordering::Relaxed)
    }

    pub(crate) fn acked(&self) -> u64 {
        self.acked.load(Ordering::Relaxed)
    }

    fn ack(&self, count: usize) {
        let acked = self.acked.fetch_add(count as u64, Ordering::Relaxed) + count as u64;
        if acked >= self.awaited.load(Ordering::Relaxed) {
            self.reached.notify_one();
        }
    }

    /// Waits until this many are acked. Says whether they were in time.
    pub(crate) async fn reach(&self, acked: u64, limit: Duration) -> bool {
        self.awaited.store(acked, Ordering::Relaxed);
        let reached = async {
            while self.acked() < acked {
                self.reached.notified().await;
            }
        };
        tokio::time::timeout(limit, reached).await.is_ok()
    }
}

/// How producers work.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) producers: usize,
    pub(crate) window: usize,
    pub(crate) size: usize,
    pub(crate) has_keys: bool,
    /// Messages in all, or as many as there is time for.
    pub(crate) total: Option<u64>,
    /// Wait for groups that are far behind.
    pub(crate) waits: bool,
}

impl Pace {
    /// Two producers with a window of 1,024 messages of this size.
    pub(crate) fn standard(size: usize) -> Pace {
        Pace { producers: PRODUCERS, window: WINDOW, size, has_keys: false, total: None, waits: true }
    }

    /// Fills a queue with this many.
    pub(crate) fn fill(size: usize, total: u64) -> Pace {
        Pace { total: Some(total), waits: false, ..Pace::standard(size) }
    }
}

/// A queue under load.
pub(crate) struct Load<'a> {
    running: &'a dyn Running,
    shape: &'a Shape,
    pub(crate) tally: Arc<Tally>,
    producers: Vec<JoinHandle<Result<(), Failure>>>,
    consumers: Vec<JoinHandle<Result<(), Failure>>>,
    stop_producers: watch::Sender<bool>,
    stop_consumers: watch::Sender<bool>,
}

impl<'a> Load<'a> {
    pub(crate) fn new(running: &'a dyn Running, shape: &'a Shape) -> Load<'a> {
        Load {
            running,
            shape,
            tally: Arc::default(),
            producers: Vec::new(),
            consumers: Vec::new(),
            stop_producers: watch::Sender::new(false),
            stop_consumers: watch::Sender::new(false),
        }
    }

    pub(crate) async fn produce(&mut self, pace: Pace) -> Result<(), Failure> {
        for n in 0..pace.producers {
            let producer = self.running.producer(self.shape).await?;
            let part = |total: u64| {
                total / pace.producers as u64 + u64::from(n == 0) * (total % pace.producers as u64)
            };
            let producing = Producing {
                producer,
                messages: messages(&pace, n as u64),
                window: pace.window,
                left: pace.total.map_or(u64::MAX, part),
                behind_max: if pace.waits { BEHIND_MAX } else { u64::MAX },
                groups: self.shape.groups as u64,
                tally: self.tally.clone(),
                stop: self.stop_producers.subscribe(),
            };
            self.producers.push(tokio::spawn(producing.run()));
        }
        Ok(())
    }

    /// So many consumers for each group, which begin at once.
    pub(crate) async fn consume(&mut self, each: usize) -> Result<(), Failure> {
        for n in 0..each * self.shape.groups {
            let consumer = self.running.consumer(self.shape, n / each, PREFETCH).await?;
            let stop = self.stop_consumers.subscribe();
            self.consumers.push(tokio::spawn(consume(consumer, None, self.tally.clone(), stop)));
        }
        Ok(())
    }

    /// Likewise, but they begin to ack only when all of them are there and have got something. Returns then.
    pub(crate) async fn consume_together(&mut self, each: usize) -> Result<(), Failure> {
        let count = each * self.shape.groups;
        let gate = Arc::new(Barrier::new(count + 1));
        for n in 0..count {
            let consumer = self.running.consumer(self.shape, n / each, PREFETCH).await?;
            let (gate, stop) = (Some(gate.clone()), self.stop_consumers.subscribe());
            self.consumers.push(tokio::spawn(consume(consumer, gate, self.tally.clone(), stop)));
        }
        tokio::time::timeout(2 * FIRST_WAIT, gate.wait()).await.map_err(|_| "consumers do not get ready")?;
        Ok(())
    }

    /// Whether no client has failed yet. Only producers that have sent everything end by themselves.
    pub(crate) async fn check(&mut self) -> Result<(), Failure> {
        for list in [&mut self.producers, &mut self.consumers] {
            if let Some(at) = list.iter().position(JoinHandle::is_finished) {
                list.swap_remove(at).await??;
            }
        }
        Ok(())
    }

    /// Waits until producers that have a total have sent it and got it confirmed. Says whether they were in time.
    pub(crate) async fn filled(&mut self, limit: Duration) -> Result<bool, Failure> {
        let deadline = tokio::time::Instant::now() + limit;
        while let Some(producer) = self.producers.last_mut() {
            match tokio::time::timeout_at(deadline, producer).await {
                Ok(ended) => {
                    self.producers.pop();
                    ended??;
                }
                Err(_) => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Nothing more is sent, and all that was is confirmed.
    pub(crate) async fn stop_producing(&mut self) -> Result<(), Failure> {
        self.stop_producers.send_replace(true);
        end(&mut self.producers).await
    }

    /// Nothing more is received, and all acks have arrived.
    pub(crate) async fn stop_consuming(&mut self) -> Result<(), Failure> {
        self.stop_consumers.send_replace(true);
        end(&mut self.consumers).await
    }
}

impl Drop for Load<'_> {
    fn drop(&mut self) {
        self.producers.iter().chain(&self.consumers).for_each(JoinHandle::abort);
    }
}

async fn end(tasks: &mut Vec<JoinHandle<Result<(), Failure>>>) -> Result<(), Failure> {
    let deadline = tokio::time::Instant::now() + FINISH_WAIT;
    for mut task in tasks.drain(..) {
        match tokio::time::timeout_at(deadline, &mut task).await {
            Ok(ended) => ended??,
            Err(_) => {
                task.abort();
                return Err("what was under way did not come to its end".into());
            }
        }
    }
    Ok(())
}

/// What a producer sends, over and over: keys come in no order, so that some meet.
fn messages(pace: &Pace, producer: u64) -> Vec<Message> {
    let body = Bytes::from(vec![b'x'; pace.size]);
    if !pace.has_keys {
        return vec![Message { key: None, body }; pace.window];
    }
    let key = |n: u64| (scramble(n + producer * RING) % KEYS) as u32;
    (0..RING).map(|n| Message { key: Some(key(n)), body: body.clone() }).collect()
}

/// A number that looks like chance and is the same in every run (the finish of a 64-bit hash).
fn scramble(n: u64) -> u64 {
    let n = (n ^ (n >> 33)).wrapping_add(1).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let n = (n ^ (n >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    n ^ (n >> 33)
}

struct Producing {
    producer: Box<dyn Producer>,
    messages: Vec<Message>,
    window: usize,
    left: u64,
    behind_max: u64,
    groups: u64,
    tally: Arc<Tally>,
    stop: watch::Receiver<bool>,
}

impl Producing {
    async fn run(mut self) -> Result<(), Failure> {
        let (mut unconfirmed, mut next) = (0, 0);
        let enough = self.window.div_ceil(WINDOW_PARTS);
        loop {
            let left = if *self.stop.borrow() { 0 } else { self.left };
            let room = ((self.window - unconfirmed) as u64).min(left) as usize;
            let is_held = room > 0 && self.is_far_ahead();
            if room > 0 && !is_held && (room >= enough || room as u64 == left) {
                self.send(&mut next, room).await?;
                unconfirmed += room;
                self.left -= room as u64;
            }
            match unconfirmed {
                0 if left == 0 => return Ok(()),
                0 => tokio::time::sleep(Duration::from_millis(1)).await,
                _ => {
                    let count = self.producer.confirmed().await?;
                    unconfirmed = unconfirmed.checked_sub(count).ok_or("more was confirmed than sent")?;
                    self.tally.confirmed.fetch_add(count as u64, Ordering::Relaxed);
                }
            }
        }
    }

    fn is_far_ahead(&self) -> bool {
        let acked = self.tally.acked() / self.groups;
        self.tally.sent.load(Ordering::Relaxed).saturating_sub(acked) > self.behind_max
    }

    async fn send(&mut self, next: &mut usize, count: usize) -> Result<(), Failure> {
        self.tally.sent.fetch_add(count as u64, Ordering::Relaxed);
        let mut left = count;
        while left > 0 {
            let now = left.min(self.messages.len() - *next);
            self.producer.send(&self.messages[*next..*next + now]).await?;
            *next = (*next + now) % self.messages.len();
            left -= now;
        }
        Ok(())
    }
}

async fn consume(
    mut consumer: Box<dyn Consumer>,
    gate: Option<Arc<Barrier>>,
    tally: Arc<Tally>,
    mut stop: watch::Receiver<bool>,
) -> Result<(), Failure> {
    if let Some(gate) = gate {
        let first = tokio::time::timeout(FIRST_WAIT, consumer.receive()).await;
        gate.wait().await;
        if let Ok(bodies) = first {
            let count = bodies?.len();
            consumer.ack().await?;
            tally.ack(count);
        }
    }
    loop {
        let bodies = tokio::select! {
            bodies = consumer.receive() => bodies?,
            _ = stop.wait_for(|is_over| *is_over) => break,
        };
        let count = bodies.len();
        drop(bodies);
        consumer.ack().await?;
        tally.ack(count);
    }
    consumer.settle().await
}

/// What an open-loop run saw: how long each message took, in milliseconds, from the time it was due.
#[derive(Debug, Default)]
pub(crate) struct Delays {
    pub(crate) due: usize,
    pub(crate) confirmed: Vec<f64>,
    pub(crate) received: Vec<f64>,
}

/// Sends at a fixed rate whatever becomes of it, and counts from the time at which a message was due: a server
/// that stalls is charged for everything that it keeps waiting. Messages due in the first `warm` are left out.
pub(crate) async fn at_a_rate(
    running: &dyn Running,
    shape: &Shape,
    rate: u64,
    warm: Duration,
    lasts: Duration,
) -> Result<Delays, Failure> {
    let origin = Instant::now();
    let mut consumers = Vec::new();
    let stop = watch::Sender::new(false);
    for _ in 0..CONSUMERS {
        let consumer = running.consumer(shape, 0, PREFETCH).await?;
        consumers.push(tokio::spawn(clock(consumer, origin, stop.subscribe())));
    }
    // Those that do not come to their end are stopped, so that the next workload has the server to itself.
    let (mut producers, mut ticks) = (JoinSet::new(), Vec::new());
    for _ in 0..PRODUCERS {
        let (sender, due) = mpsc::unbounded_channel();
        ticks.push(sender);
        producers.spawn(send_when_due(running.producer(shape).await?, origin, due));
    }
    let begin = origin.elapsed();
    let pacer = std::thread::spawn(move || pace(origin, rate, warm + lasts, &ticks));
    let until = tokio::time::Instant::now() + warm + lasts + FINISH_WAIT / 4;
    let mut confirmed = Vec::new();
    loop {
        match tokio::time::timeout_at(until, producers.join_next()).await {
            Ok(Some(ended)) => confirmed.extend(ended??),
            Ok(None) => break,
            Err(_) => return Ok(Delays { due: 1, ..Delays::default() }),
        }
    }
    // Confirmed is not yet received: messages in flight get a moment.
    tokio::time::sleep(Duration::from_millis(300)).await;
    stop.send_replace(true);
    let mut received = Vec::new();
    for consumer in consumers {
        let ended = tokio::time::timeout(FINISH_WAIT, consumer).await;
        received.extend(ended.map_err(|_| "acks do not arrive")???);
    }
    let due = pacer.join().map_err(|_| "the pacer is gone")?;
    let from = begin + warm;
    let late = |all: Vec<(Duration, Duration)>| {
        let counted = all.into_iter().filter(|(due, _)| *due >= from);
        counted.map(|(due, at)| at.saturating_sub(due).as_secs_f64() * 1e3).collect()
    };
    let due = due.into_iter().filter(|due| *due >= from).count();
    Ok(Delays { due, confirmed: late(confirmed), received: late(received) })
}

/// Says when messages are due, to each producer in turn, on a thread of its own: timers of the runtime are
/// too coarse. Returns all the times.
fn pace(
    origin: Instant,
    rate: u64,
    lasts: Duration,
    producers: &[mpsc::UnboundedSender<Duration>],
) -> Vec<Duration> {
    let begin = origin.elapsed();
    let mut all = Vec::new();
    for n in 0..(rate as f64 * lasts.as_secs_f64()) as u64 {
        let due = begin + Duration::from_nanos(n * 1_000_000_000 / rate);
        std::thread::sleep(due.saturating_sub(origin.elapsed()));
        all.push(due);
        if producers[n as usize % producers.len()].send(due).is_err() {
            break;
        }
    }
    all
}

const LATENCY_BODY: usize = 100;

/// Sends messages when they are due, those due at once in one batch, and returns when each was due and confirmed.
async fn send_when_due(
    mut producer: Box<dyn Producer>,
    origin: Instant,
    mut due: mpsc::UnboundedReceiver<Duration>,
) -> Result<Vec<(Duration, Duration)>, Failure> {
    let mut unconfirmed = VecDeque::new();
    let mut all = Vec::new();
    let mut is_over = false;
    let mut batch = Vec::new();
    while !is_over || !unconfirmed.is_empty() {
        let room = WINDOW - unconfirmed.len();
        tokio::select! {
            count = due.recv_many(&mut batch, room), if room > 0 && !is_over => {
                is_over = count == 0;
                let messages: Vec<Message> = batch.iter().map(message_due).collect();
                if !messages.is_empty() {
                    producer.send(&messages).await?;
                }
                unconfirmed.extend(batch.drain(..));
            }
            count = producer.confirmed(), if !unconfirmed.is_empty() => {
                let (count, now) = (count?, origin.elapsed());
                let count = count.min(unconfirmed.len());
                all.extend(unconfirmed.drain(..count).map(|due| (due, now)));
            }
        }
    }
    Ok(all)
}

/// The first eight bytes say when it was due, in nanoseconds.
fn message_due(due: &Duration) -> Message {
    let mut body = vec![b'x'; LATENCY_BODY];
    body[..8].copy_from_slice(&(due.as_nanos() as u64).to_be_bytes());
    Message { key: None, body: body.into() }
}

/// Notes when each message was due and received.
async fn clock(
    mut consumer: Box<dyn Consumer>,
    origin: Instant,
    mut stop: watch::Receiver<bool>,
) -> Result<Vec<(Duration, Duration)>, Failure> {
    let mut all = Vec::new();
    loop {
        let bodies = tokio::select! {
            bodies = consumer.receive() => bodies?,
            _ = stop.wait_for(|is_over| *is_over) => break,
        };
        let now = origin.elapsed();
        for body in bodies {
            let due = body.first_chunk().ok_or("a message without a time")?;
            all.push((Duration::from_nanos(u64::from_be_bytes(*due)), now));
        }
        consumer.ack().await?;
    }
    consumer.settle().await?;
    Ok(all)
}
