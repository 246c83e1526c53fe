//! The relay, which publishes the rows of an outbox.
//!
//! One relay at a time holds the table. It reads rows in order and sorts them by stream. The rows of a stream are
//! published as one batch, and only when that is answered are further rows of the stream read. So the messages of a
//! stream keep their order, and a stream that is full holds up no other.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;

use super::row::Row;
use super::{Hold, Table};
use crate::client::Client;
use crate::error::{PublishError, Refusal, in_words};
use crate::message::Message;

/// Rows that are read at once, and so messages in one batch.
const BATCH: usize = 500;
/// Streams that are published to at a time.
const STREAMS_MAX: usize = 64;
/// Streams whose failures in a row are counted.
const FAILING_MAX: usize = 1_000;
/// How long a stop waits for batches in flight.
const STOP_WITHIN: Duration = Duration::from_secs(10);
/// A database that does not answer is taken to be gone.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// The wait before a retry: twice as long each time.
const REST_MIN: Duration = Duration::from_millis(100);
const REST_MAX: Duration = Duration::from_secs(10);

/// Publishes the committed rows of an outbox, for as long as it runs. Made by `PostgresOutbox::relay` and
/// `SqliteOutbox::relay`.
///
/// Run one in several processes: one of them works, the others stand by and take over when it is gone. A relay that
/// loses the database or the server retries and never gives up by itself. See [`crate::outbox`] for its guarantees.
///
/// ```no_run
/// # #[cfg(feature = "sqlite")]
/// # async fn example(client: forebay_client::Client, pool: sqlx::SqlitePool) {
/// use std::time::Duration;
/// use forebay_client::outbox::SqliteOutbox;
///
/// let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
/// let relay = SqliteOutbox::new(pool).relay(client).poll_every(Duration::from_millis(20));
/// let stats = relay.stats();
/// let running = tokio::spawn(relay.run_until(async { drop(stopped.await) }));
/// // Some time later:
/// println!("{} published, {} refused", stats.published(), stats.refused());
/// drop(stop);
/// let _ = running.await;
/// # }
/// ```
#[must_use = "nothing is published before it is run"]
pub struct Relay {
    client: Client,
    table: Arc<dyn Table>,
    poll_every: Duration,
    batch: usize,
    stop_within: Duration,
    figures: RelayStats,
}

/// Counters of a relay. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct RelayStats(Arc<Figures>);

#[derive(Debug, Default)]
struct Figures {
    published: AtomicU64,
    refused: AtomicU64,
    failures: AtomicU64,
    is_active: AtomicBool,
}

impl RelayStats {
    /// Rows that were published and removed.
    pub fn published(&self) -> u64 {
        self.0.published.load(Ordering::Relaxed)
    }

    /// Rows that were set aside.
    pub fn refused(&self) -> u64 {
        self.0.refused.load(Ordering::Relaxed)
    }

    /// Failures that were retried.
    pub fn failures(&self) -> u64 {
        self.0.failures.load(Ordering::Relaxed)
    }

    /// Whether this relay works, rather than standing by.
    pub fn is_active(&self) -> bool {
        self.0.is_active.load(Ordering::Relaxed)
    }
}

impl Relay {
    pub(super) fn new(client: Client, table: Arc<dyn Table>, poll_every: Duration) -> Relay {
        let figures = RelayStats::default();
        Relay { client, table, poll_every, batch: BATCH, stop_within: STOP_WITHIN, figures }
    }

    /// Sets how often to look for rows, and for a chance to take over when standing by. PostgreSQL notifies of
    /// inserts, so the default there is one second; in SQLite it is 100 milliseconds.
    pub fn poll_every(mut self, interval: Duration) -> Relay {
        self.poll_every = interval.max(Duration::from_millis(1));
        self
    }

    /// Sets the most rows in one batch, from 1 to 10,000. The default is 500.
    pub fn batch(mut self, rows: usize) -> Relay {
        self.batch = rows.clamp(1, 10_000);
        self
    }

    /// Sets how long a stop waits for batches in flight. The default is ten seconds. The next relay publishes batches
    /// again that are not confirmed by then.
    pub fn stop_within(mut self, time: Duration) -> Relay {
        self.stop_within = time;
        self
    }

    /// Counters, also while the relay runs.
    pub fn stats(&self) -> RelayStats {
        self.figures.clone()
    }

    /// Publishes until it is dropped.
    pub async fn run(self) {
        self.run_until(std::future::pending()).await;
    }

    /// Publishes until `stop` resolves, then waits for the messages under way, and lets another relay take
    /// over.
    pub async fn run_until(self, stop: impl Future<Output = ()> + Send) {
        let mut stop = std::pin::pin!(stop);
        let mut rest = Rest::default();
        loop {
            let trouble = tokio::select! {
                () = &mut stop => return,
                held = in_time(self.table.hold()) => match held {
                    Ok(None) => None,
                    Ok(Some(hold)) => match self.work(hold, stop.as_mut(), &mut rest).await {
                        Ok(()) => return,
                        Err(error) => Some(error),
                    },
                    Err(error) => Some(error),
                },
            };
            let pause = match trouble {
                None => self.poll_every,
                Some(error) => {
                    self.figures.0.failures.fetch_add(1, Ordering::Relaxed);
                    let again_in = rest.next();
                    let table = self.table.name();
                    tracing::warn!(table, error = in_words(&error), ?again_in, "the outbox cannot be read");
                    again_in
                }
            };
            tokio::select! {
                () = &mut stop => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Works while the table is ours. Ends well if it was told to stop.
    async fn work(
        &self,
        hold: Box<dyn Hold>,
        stop: Pin<&mut (impl Future<Output = ()> + Send)>,
        rest: &mut Rest,
    ) -> Result<(), sqlx::Error> {
        let _active = Active::new(&self.figures);
        let mut shift = Shift {
            relay: self,
            hold,
            busy: HashSet::new(),
            publishing: 0,
            failing: HashMap::new(),
            on_their_way: FuturesUnordered::new(),
        };
        shift.run(stop, rest).await?;
        shift.hold.release().await;
        Ok(())
    }
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay")
            .field("table", &self.table.name())
            .field("client", &self.client)
            .field("batch", &self.batch)
            .finish_non_exhaustive()
    }
}

/// Says that this relay works, until it is dropped.
struct Active<'a>(&'a AtomicBool);

impl Active<'_> {
    fn new(figures: &RelayStats) -> Active<'_> {
        figures.0.is_active.store(true, Ordering::Relaxed);
        Active(&figures.0.is_active)
    }
}

impl Drop for Active<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// How long to wait, longer each time.
#[derive(Default)]
struct Rest {
    times: u32,
}

impl Rest {
    fn next(&mut self) -> Duration {
        let rest = REST_MIN * 2u32.pow(self.times.min(16));
        self.times += 1;
        rest.min(REST_MAX)
    }
}

/// The time in which a relay holds the table.
struct Shift<'a> {
    relay: &'a Relay,
    hold: Box<dyn Hold>,
    /// Streams of which nothing is read now: rows are on their way, or they rest.
    busy: HashSet<String>,
    /// How many of them have rows on their way.
    publishing: usize,
    /// Streams that failed last time.
    failing: HashMap<String, Rest>,
    on_their_way: FuturesUnordered<Pin<Box<dyn Future<Output = Event> + Send + 'a>>>,
}

/// The result of a lane.
enum Event {
    Answered(Answered),
    Rested { stream: String },
}

/// The outcome of the rows that a lane was given. Rows in neither list are still to be published.
struct Answered {
    stream: String,
    published: Vec<i64>,
    refused: Vec<(i64, String)>,
    trouble: Option<PublishError>,
}

impl<'a> Shift<'a> {
    async fn run(
        &mut self,
        mut stop: Pin<&mut (impl Future<Output = ()> + Send)>,
        rest: &mut Rest,
    ) -> Result<(), sqlx::Error> {
        let look_every = self.relay.poll_every.min(self.hold.keep_every());
        loop {
            let more = if self.busy.len() < STREAMS_MAX {
                self.read().await?
            } else {
                in_time(self.hold.keep()).await?;
                false
            };
            rest.times = 0;
            let event = tokio::select! {
                biased;
                () = &mut stop => break,
                Some(event) = self.on_their_way.next(), if !self.on_their_way.is_empty() => Some(event),
                () = std::future::ready(()), if more => None,
                () = self.hold.inserted() => None,
                () = tokio::time::sleep(look_every) => None,
            };
            if let Some(event) = event {
                self.on_event(event).await?;
            }
        }
        let finished = tokio::time::timeout(self.relay.stop_within, self.finish()).await;
        finished.unwrap_or(Ok(()))
    }

    /// Reads rows and sends them on their way. Says whether there may be more.
    async fn read(&mut self) -> Result<bool, sqlx::Error> {
        let busy: Vec<String> = self.busy.iter().cloned().collect();
        let rows = in_time(self.hold.read(&busy, self.relay.batch)).await?;
        let more = rows.len() >= self.relay.batch;
        let mut lanes: HashMap<String, Vec<Row>> = HashMap::new();
        for row in rows {
            // Those that find no lane are read again when one is free.
            if lanes.contains_key(&row.stream) || self.busy.len() + lanes.len() < STREAMS_MAX {
                lanes.entry(row.stream.clone()).or_default().push(row);
            }
        }
        for (stream, rows) in lanes {
            self.busy.insert(stream.clone());
            self.publishing += 1;
            self.on_their_way.push(Box::pin(publish(&self.relay.client, stream, rows)));
        }
        Ok(more)
    }

    async fn on_event(&mut self, event: Event) -> Result<(), sqlx::Error> {
        match event {
            Event::Rested { stream } => drop(self.busy.remove(&stream)),
            Event::Answered(answered) => {
                self.publishing -= 1;
                self.settle(&answered).await?;
                match answered.trouble {
                    None => {
                        self.busy.remove(&answered.stream);
                        self.failing.remove(&answered.stream);
                    }
                    Some(error) => self.let_rest(answered.stream, &error),
                }
            }
        }
        Ok(())
    }

    async fn settle(&mut self, answered: &Answered) -> Result<(), sqlx::Error> {
        let figures = &self.relay.figures.0;
        if !answered.published.is_empty() {
            in_time(self.hold.remove(&answered.published)).await?;
            figures.published.fetch_add(answered.published.len() as u64, Ordering::Relaxed);
        }
        for (position, reason) in &answered.refused {
            in_time(self.hold.refuse(*position, reason)).await?;
            figures.refused.fetch_add(1, Ordering::Relaxed);
            let (table, stream) = (self.relay.table.name(), &answered.stream);
            tracing::error!(
                table,
                stream,
                position,
                reason,
                "the server refuses a row of the outbox for good"
            );
        }
        Ok(())
    }

    fn let_rest(&mut self, stream: String, error: &PublishError) {
        self.relay.figures.0.failures.fetch_add(1, Ordering::Relaxed);
        if self.failing.len() >= FAILING_MAX {
            self.failing.clear();
        }
        let again_in = self.failing.entry(stream.clone()).or_default().next();
        let table = self.relay.table.name();
        tracing::warn!(
            table,
            stream,
            error = in_words(error),
            ?again_in,
            "cannot publish from the outbox now"
        );
        self.on_their_way.push(Box::pin(async move {
            tokio::time::sleep(again_in).await;
            Event::Rested { stream }
        }));
    }

    /// Waits for the messages under way.
    async fn finish(&mut self) -> Result<(), sqlx::Error> {
        while self.publishing > 0
            && let Some(event) = self.on_their_way.next().await
        {
            if let Event::Answered(answered) = event {
                self.publishing -= 1;
                self.settle(&answered).await?;
            }
        }
        Ok(())
    }
}

/// Publishes the rows of one stream, in order. A row that is refused permanently is found by halving the
/// batch.
async fn publish(client: &Client, stream: String, rows: Vec<Row>) -> Event {
    let mut answered = Answered { stream, published: Vec::new(), refused: Vec::new(), trouble: None };
    // The part that is published next is the last.
    let mut parts = vec![rows];
    while let Some(mut part) = parts.pop() {
        let messages: Vec<Message> = part.iter().map(|row| Message(row.message.clone())).collect();
        match client.publish_batch(&answered.stream, messages).await {
            Ok(_) => answered.published.extend(part.iter().map(|row| row.position)),
            Err(PublishError::Refused { refusal, detail }) if is_about_content(refusal) => match &part[..] {
                [row] => answered.refused.push((row.position, detail)),
                _ => {
                    let behind = part.split_off(part.len() / 2);
                    parts.push(behind);
                    parts.push(part);
                }
            },
            // Whatever it is, it is not the row's fault, and what comes behind must not overtake it.
            Err(error) => {
                answered.trouble = Some(error);
                break;
            }
        }
    }
    Event::Answered(answered)
}

/// Whether a refusal is due to the message's content, and so is permanent.
fn is_about_content(refusal: Refusal) -> bool {
    matches!(refusal, Refusal::Invalid | Refusal::TooLarge | Refusal::Unsupported)
}

/// The database's answer, unless it takes too long.
async fn in_time<T>(call: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, sqlx::Error> {
    let answer = tokio::time::timeout(ANSWER_WITHIN, call).await;
    answer.unwrap_or_else(|_| Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())))
}
