//! What the clients do while a server is measured.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::client::{Client, Outcome, Queue};
use super::contenders::Contender;
use crate::server::cpu_seconds;

/// The most that SQS takes at a time.
pub(crate) const BATCH: usize = 10;
const FIFO_GROUPS: u64 = 1_000;
/// Messages that are on their way where nothing else says how many there are.
const WINDOW: usize = 1_000;
/// How long a receive waits. Those of a busy queue do not.
const WAIT_SECONDS: u32 = 5;
/// Time at the beginning that is not measured.
const WARM_UP: Duration = Duration::from_millis(500);
/// For how long a backlog is filled. A server that needs longer gets a smaller one.
const FILL_MAX: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(1);

#[derive(Debug, Clone, Copy)]
pub(crate) enum Work {
    /// Send, so many at a time.
    Send { batch: usize },
    /// Receive ten and delete ten, of so many that are there.
    Drain { backlog: u64 },
    /// Send, receive and delete, so many at a time, while so many lie in the queue.
    Pass { batch: usize, backlog: u64 },
    /// The same on a FIFO queue with many groups.
    Fifo,
}

pub(crate) struct Plan {
    pub(crate) work: Work,
    pub(crate) size: usize,
    /// As many send, and as many receive.
    pub(crate) connections: usize,
    pub(crate) lasts: Duration,
}

/// The measurements of one server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Figure {
    /// Messages a second: those deleted, or those sent where none is.
    pub(crate) rate: f64,
    /// Microseconds of processor time for each message, of the server and of the clients.
    pub(crate) server: f64,
    pub(crate) client: f64,
    /// What lay in the queue at first.
    pub(crate) backlog: u64,
}

/// What all clients of one measurement share.
struct Shared {
    done: AtomicU64,
    /// What may still be sent.
    room: Semaphore,
    numbers: AtomicU64,
}

pub(crate) async fn run(contender: &Contender, name: &str, plan: &Plan) -> Outcome<Figure> {
    let is_fifo = matches!(plan.work, Work::Fifo);
    let queue = Client::open(&contender.address).await?.create(name, is_fifo).await?;
    let (wanted, batch) = match plan.work {
        Work::Send { batch } => (0, batch),
        Work::Drain { backlog } => (backlog, BATCH),
        Work::Pass { batch, backlog } => (backlog, batch),
        Work::Fifo => (0, BATCH),
    };
    let backlog = fill(contender, &queue, plan, wanted).await?;
    // If a backlog is to keep its size, each deletion makes room for a send.
    let room = if backlog == 0 { WINDOW } else { 0 };
    let numbers = AtomicU64::new(0);
    let shared = Arc::new(Shared { done: AtomicU64::new(0), room: Semaphore::new(room), numbers });
    let mut clients = JoinSet::new();
    let (sends, receives) = match plan.work {
        Work::Send { .. } => (true, false),
        Work::Drain { .. } => (false, true),
        Work::Pass { .. } | Work::Fifo => (true, true),
    };
    for _ in 0..plan.connections {
        if sends {
            let sender = Sender { size: plan.size, batch, is_fifo, is_alone: !receives };
            let client = Client::open(&contender.address).await?;
            clients.spawn(send(client, queue.clone(), sender, shared.clone()));
        }
        if receives {
            let client = Client::open(&contender.address).await?;
            clients.spawn(receive(client, queue.clone(), batch, shared.clone()));
        }
    }
    let drained = matches!(plan.work, Work::Drain { .. }).then_some(backlog);
    let figure = measure(contender, &shared, &mut clients, plan.lasts, drained).await?;
    clients.shutdown().await;
    Client::open(&contender.address).await?.delete_queue(&queue).await?;
    Ok(Figure { backlog, ..figure })
}

async fn measure(
    contender: &Contender,
    shared: &Shared,
    clients: &mut JoinSet<Outcome<()>>,
    lasts: Duration,
    drained: Option<u64>,
) -> Outcome<Figure> {
    if drained.is_none() {
        tokio::time::sleep(WARM_UP).await;
    }
    let most = drained.unwrap_or(u64::MAX);
    let done = || shared.done.load(Ordering::Relaxed);
    let own = || cpu_seconds(std::process::id());
    let (started, before, server, client) = (Instant::now(), done(), contender.cpu_seconds(), own());
    while started.elapsed() < lasts && done() < most {
        tokio::time::sleep(LOOK_AGAIN).await;
        if let Some(ended) = clients.try_join_next() {
            ended??;
        }
    }
    let (took, count) = (started.elapsed(), (done() - before) as f64);
    if count == 0.0 {
        return Err("nothing came through".into());
    }
    let each = |seconds: f64| seconds * 1e6 / count;
    Ok(Figure {
        rate: count / took.as_secs_f64(),
        server: each(contender.cpu_seconds() - server),
        client: each(own() - client),
        backlog: 0,
    })
}

/// Puts so many messages into a queue, or as many as it takes in a minute. Gives their number.
async fn fill(contender: &Contender, queue: &Queue, plan: &Plan, wanted: u64) -> Outcome<u64> {
    let until = Instant::now() + FILL_MAX;
    let batches = wanted.div_ceil(BATCH as u64);
    let taken = Arc::new(AtomicU64::new(0));
    let mut clients = JoinSet::new();
    for _ in 0..plan.connections.min(batches as usize) {
        let mut client = Client::open(&contender.address).await?;
        let (request, taken) = (queue.send(plan.size, BATCH, None), taken.clone());
        clients.spawn(async move {
            let mut sent = 0;
            while taken.fetch_add(1, Ordering::Relaxed) < batches && Instant::now() < until {
                client.send_all(&request, BATCH).await?;
                sent += BATCH as u64;
            }
            Outcome::Ok(sent)
        });
    }
    let mut filled = 0;
    while let Some(sent) = clients.join_next().await {
        filled += sent??;
    }
    Ok(filled)
}

struct Sender {
    size: usize,
    batch: usize,
    is_fifo: bool,
    /// There are no receivers: sends are counted, and there is room for all of them.
    is_alone: bool,
}

async fn send(mut client: Client, queue: Queue, sender: Sender, shared: Arc<Shared>) -> Outcome<()> {
    let Sender { size, batch, is_fifo, is_alone } = sender;
    let mut request = queue.send(size, batch, None);
    loop {
        if !is_alone {
            shared.room.acquire_many(batch as u32).await?.forget();
        }
        if is_fifo {
            let mut names = || {
                let number = shared.numbers.fetch_add(1, Ordering::Relaxed);
                (format!("group-{}", number % FIFO_GROUPS), number.to_string())
            };
            request = queue.send(size, batch, Some(&mut names));
        }
        match batch {
            1 => client.send(&request).await?,
            _ => client.send_all(&request, batch).await?,
        }
        if is_alone {
            shared.done.fetch_add(batch as u64, Ordering::Relaxed);
        }
    }
}

async fn receive(mut client: Client, queue: Queue, max: usize, shared: Arc<Shared>) -> Outcome<()> {
    let request = queue.receive(max, WAIT_SECONDS);
    loop {
        let handles = client.receive(&request).await?;
        client.delete(&queue, &handles).await?;
        shared.done.fetch_add(handles.len() as u64, Ordering::Relaxed);
        shared.room.add_permits(handles.len());
    }
}
