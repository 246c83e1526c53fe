//! How long one send takes, and how long a message takes to a waiting client.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::client::{Client, Outcome};
use super::contenders::Contender;
use crate::measure::{median, quantile};

/// Before a message is sent to a client that has just begun to wait.
const PAUSE: Duration = Duration::from_millis(5);
const WAIT_SECONDS: u32 = 20;

/// Milliseconds that this share of all took at most.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Latency {
    half: f64,
    ninety: f64,
    ninety_nine: f64,
}

impl Latency {
    fn of(mut milliseconds: Vec<f64>) -> Outcome<Latency> {
        if milliseconds.is_empty() {
            return Err("nothing was answered".into());
        }
        let mut at = |share: f64| quantile(&mut milliseconds, share);
        Ok(Latency { half: at(0.5), ninety: at(0.9), ninety_nine: at(0.99) })
    }

    pub(crate) fn median(of: &[Latency]) -> Latency {
        let middle = |value: fn(&Latency) -> f64| median(&mut of.iter().map(value).collect::<Vec<_>>());
        Latency {
            half: middle(|of| of.half),
            ninety: middle(|of| of.ninety),
            ninety_nine: middle(|of| of.ninety_nine),
        }
    }
}

impl std::fmt::Display for Latency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&format!("{:.2} {:.2} {:.2} ms", self.half, self.ninety, self.ninety_nine))
    }
}

fn milliseconds_since(started: Instant) -> f64 {
    started.elapsed().as_secs_f64() * 1e3
}

/// So many clients that send one message after the other.
pub(crate) async fn of_sends(
    contender: &Contender,
    name: &str,
    size: usize,
    connections: usize,
    lasts: Duration,
) -> Outcome<Latency> {
    let queue = Client::open(&contender.address).await?.create(name, false).await?;
    let until = Instant::now() + lasts;
    let mut clients = JoinSet::new();
    for _ in 0..connections {
        let mut client = Client::open(&contender.address).await?;
        let request = queue.send(size, 1, None);
        clients.spawn(async move {
            let mut took = Vec::new();
            while Instant::now() < until {
                let started = Instant::now();
                client.send(&request).await?;
                took.push(milliseconds_since(started));
            }
            Outcome::Ok(took)
        });
    }
    let mut all = Vec::new();
    while let Some(took) = clients.join_next().await {
        all.extend(took??);
    }
    Client::open(&contender.address).await?.delete_queue(&queue).await?;
    Latency::of(all)
}

/// From the moment of a send until a waiting client has the message.
pub(crate) async fn of_wake_ups(
    contender: &Contender,
    name: &str,
    size: usize,
    lasts: Duration,
) -> Outcome<Latency> {
    let mut sender = Client::open(&contender.address).await?;
    let mut receiver = Client::open(&contender.address).await?;
    let queue = sender.create(name, false).await?;
    let (send, receive) = (queue.send(size, 1, None), queue.receive(1, WAIT_SECONDS));
    let until = Instant::now() + lasts;
    let mut all = Vec::new();
    while Instant::now() < until {
        let waiting = async {
            let handles = receiver.receive(&receive).await?;
            Outcome::Ok((handles, Instant::now()))
        };
        let sending = async {
            tokio::time::sleep(PAUSE).await;
            let started = Instant::now();
            sender.send(&send).await?;
            Outcome::Ok(started)
        };
        let (waited, sent) = tokio::join!(waiting, sending);
        let ((handles, arrived), started) = (waited?, sent?);
        if handles.len() != 1 {
            return Err("one message was sent, and did not come".into());
        }
        all.push(arrived.duration_since(started).as_secs_f64() * 1e3);
        receiver.delete(&queue, &handles).await?;
    }
    sender.delete_queue(&queue).await?;
    Latency::of(all)
}
