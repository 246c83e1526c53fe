//! Very many long polls of SQS that nothing is sent to: what they cost the server, and what wakes one of them.
//!
//! Each poll has a connection of its own and waits for 20 seconds, the longest that SQS allows; then it is made again.
//! Afterwards messages are sent one at a time, and exactly one of the waiting clients must get each.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::arguments::Arguments;
use crate::measure::quantile;
use crate::server;
use crate::sqs::client::{Client, Outcome, Queue};
use crate::sqs::contenders::{Contender, Peers};

const WAIT_SECONDS: u32 = 20;
/// Time for the server to calm down after the crowd has come.
const SETTLE: Duration = Duration::from_secs(5);
const BODY: usize = 100;
const MESSAGES: usize = 20;
/// Between two messages, and for one that should not come.
const PAUSE: Duration = Duration::from_millis(100);
const QUIET: Duration = Duration::from_secs(2);
/// How long a message may take.
const ARRIVAL_MAX: Duration = Duration::from_secs(10);

pub(crate) fn run(mut arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let polls = arguments.number("polls", 5_000)?;
    let many = arguments.number("queues", 500)?;
    let lasts = Duration::from_secs_f64(arguments.seconds(60.0)?);
    let peers = Peers::take(&mut arguments)?;
    let program = server::program(&mut arguments)?;
    let folder = arguments.folder()?;
    arguments.finish()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    println!(
        "{:>18} {:>8} {:>8} {:>12} {:>12} {:>10} {:>10} {:>24}",
        "", "queues", "polls", "renewed/s", "before", "memory", "CPU", "woken: half, most"
    );
    let measured = runtime.block_on(async {
        for queues in [1, many] {
            let contender = fresh(&program, &folder)?;
            watch(&contender, queues, polls, lasts).await?;
            drop(contender);
            for contender in peers.start().await? {
                // That another server cannot take as many is a result too.
                if let Err(error) = watch(&contender, queues, polls, lasts).await {
                    println!("{:>18} {queues:>8} {polls:>8} {error}", contender.name);
                }
            }
        }
        Ok(())
    });
    let _ = std::fs::remove_dir_all(&folder);
    measured.map_err(|error: Box<dyn Error + Send + Sync>| -> Box<dyn Error> { error })
}

fn fresh(program: &Path, folder: &Path) -> Outcome<Contender> {
    let _ = std::fs::remove_dir_all(folder);
    Contender::forebay(program, folder)
}

async fn watch(contender: &Contender, queues: u64, polls: u64, lasts: Duration) -> Outcome<()> {
    let mut client = Client::open(&contender.address).await?;
    let mut all = Vec::new();
    for n in 0..queues {
        all.push(client.create(&format!("polls-{queues}-{n}"), false).await?);
    }
    let mebibytes = || contender.memory().map_or(0, |memory| memory.resident >> 10);
    let before = mebibytes();
    let mut crowd = Crowd::gather(contender, &all, polls).await?;
    tokio::time::sleep(SETTLE).await;
    let (cpu, made, started) = (contender.cpu_seconds(), crowd.made(), Instant::now());
    tokio::time::sleep(lasts).await;
    let took = started.elapsed().as_secs_f64();
    let cpu = (contender.cpu_seconds() - cpu) / took * 100.0;
    let renewed = (crowd.made() - made) as f64 / took;
    let memory = mebibytes();
    crowd.check()?;
    let mut woken = crowd.wake(&mut client, &all).await?;
    println!(
        "{:>18} {queues:>8} {polls:>8} {renewed:>12.0} {:>12} {:>10} {:>10} {:>24}",
        contender.name,
        format!("{before} MiB"),
        format!("{memory} MiB"),
        format!("{cpu:.2} %"),
        format!("{:.2} {:.2} ms", quantile(&mut woken, 0.5), quantile(&mut woken, 1.0)),
    );
    for queue in &all {
        client.delete_queue(queue).await?;
    }
    Ok(())
}

/// The waiting clients.
struct Crowd {
    polls: JoinSet<Outcome<()>>,
    made: Arc<AtomicU64>,
    /// When a client got a message.
    arrivals: mpsc::UnboundedReceiver<Instant>,
}

impl Crowd {
    async fn gather(contender: &Contender, queues: &[Queue], polls: u64) -> Outcome<Crowd> {
        let made = Arc::new(AtomicU64::new(0));
        let (arrived, arrivals) = mpsc::unbounded_channel();
        let mut crowd = Crowd { polls: JoinSet::new(), made, arrivals };
        for queue in queues.iter().cycle().take(polls as usize) {
            let mut client = Client::open(&contender.address).await?;
            let (request, made, arrived) =
                (queue.receive(1, WAIT_SECONDS), crowd.made.clone(), arrived.clone());
            crowd.polls.spawn(async move {
                loop {
                    made.fetch_add(1, Ordering::Relaxed);
                    for _ in client.receive(&request).await? {
                        arrived.send(Instant::now())?;
                    }
                }
            });
        }
        Ok(crowd)
    }

    fn made(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }

    /// Everybody is still there.
    fn check(&mut self) -> Outcome<()> {
        match self.polls.try_join_next() {
            Some(ended) => ended?,
            None => Ok(()),
        }
    }

    /// Sends messages one at a time, each to another queue. Gives how many milliseconds each took to arrive.
    async fn wake(&mut self, client: &mut Client, queues: &[Queue]) -> Outcome<Vec<f64>> {
        let mut took = Vec::new();
        for queue in queues.iter().cycle().take(MESSAGES) {
            let sent = Instant::now();
            client.send(&queue.send(BODY, 1, None)).await?;
            let arrived = tokio::time::timeout(ARRIVAL_MAX, self.arrivals.recv()).await;
            let arrived = arrived.map_err(|_| "nobody got the message")?.ok_or("everybody has gone")?;
            took.push(arrived.duration_since(sent).as_secs_f64() * 1e3);
            tokio::time::sleep(PAUSE).await;
        }
        tokio::time::sleep(QUIET).await;
        self.check()?;
        match self.arrivals.try_recv() {
            Ok(_) => Err("a message came to more than one".into()),
            Err(_) => Ok(took),
        }
    }
}
