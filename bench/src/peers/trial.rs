//! A contender tried out: whether it does with the true server what the load relies on.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::contender::{Consumer, Contender, Failure, Message, Running, Shape};

const MESSAGES: usize = 10_000;
const WINDOW: usize = 1_024;
const PREFETCH: usize = 256;
const PATIENCE: Duration = Duration::from_secs(90);

/// Tries all of these. There are none where the server is not installed; then it says so.
pub(crate) async fn all(contenders: Result<Vec<Box<dyn Contender>>, Failure>, variable: &str) {
    all_with_rest(contenders, variable, Duration::ZERO).await;
}

/// The same for servers that have this long before they are killed.
pub(crate) async fn all_with_rest(
    contenders: Result<Vec<Box<dyn Contender>>, Failure>,
    variable: &str,
    rest: Duration,
) {
    let contenders = contenders.expect("the servers say what they are");
    if contenders.is_empty() {
        eprintln!("SKIPPED: {variable} is not set");
    }
    for contender in contenders {
        let about = contender.about().clone();
        match tokio::time::timeout(PATIENCE * 2, one(&*contender, rest)).await {
            Ok(tried) => tried.unwrap_or_else(|failure| panic!("{about:?}: {failure}")),
            Err(_) => panic!("{about:?} takes too long"),
        }
    }
}

async fn one(contender: &dyn Contender, rest: Duration) -> Result<(), Failure> {
    static TRIALS: AtomicU32 = AtomicU32::new(0);
    let about = contender.about();
    let trial = TRIALS.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("forebay-trial-{}-{trial}", std::process::id()));
    let shape = Shape { queue: "trial-1".to_owned(), groups: 1, is_ordered: false };
    let mut running = contender.start(&folder).await?;
    running.prepare(&shape).await?;
    running.prepare(&shape).await?;

    let mut consumer = running.consumer(&shape, 0, PREFETCH).await?;
    // Nothing is lost by giving up waiting.
    for _ in 0..3 {
        assert!(tokio::time::timeout(Duration::from_millis(20), consumer.receive()).await.is_err());
    }
    let since = Instant::now();
    publish(&*running, &shape, 0).await?;
    let published = since.elapsed();
    let since = Instant::now();
    let seen = drain(&mut *consumer, MESSAGES).await?;
    println!(
        "{} {}: {MESSAGES} published in {published:?}, drained by one in {:?}",
        about.id,
        about.version,
        since.elapsed()
    );
    assert_eq!(seen, (0..MESSAGES).map(|n| (body(n), 1)).collect());
    drop(consumer);

    // Some are acked, some are held and the rest were never handed out when it is killed.
    publish(&*running, &shape, MESSAGES).await?;
    let mut consumer = running.consumer(&shape, 0, PREFETCH).await?;
    let acked = consumer.receive().await?;
    consumer.ack().await?;
    consumer.settle().await?;
    let held = consumer.receive().await?;
    assert!(!held.is_empty() && held.iter().all(|body| !acked.contains(body)));
    tokio::time::sleep(rest).await;
    drop(running);
    drop(consumer);
    let since = Instant::now();
    running = contender.start(&folder).await?;
    let started = since.elapsed();
    let mut consumer = running.consumer(&shape, 0, PREFETCH).await?;
    let since = Instant::now();
    let again = drain_all(&mut *consumer, (MESSAGES..2 * MESSAGES).map(body), &acked).await?;
    // A server may write acks down late, and lose the last of them. It may not lose all.
    assert!(again < MESSAGES, "{again} messages came again");
    println!(
        "{}: started again in {started:?}, the rest in {:?}; {again} acks were lost",
        about.id,
        since.elapsed()
    );
    drop(consumer);

    let shape = Shape { queue: "trial-2".to_owned(), groups: 3, is_ordered: false };
    match contender.lacks(&shape) {
        Some(reason) => println!("{}: no groups: {reason}", about.id),
        None => {
            running.prepare(&shape).await?;
            publish(&*running, &shape, 0).await?;
            for group in 0..shape.groups {
                let mut consumer = running.consumer(&shape, group, PREFETCH).await?;
                assert_eq!(drain(&mut *consumer, MESSAGES).await?.len(), MESSAGES);
            }
        }
    }
    drop(running);
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

fn body(n: usize) -> Bytes {
    format!("{n:0100}").into()
}

async fn publish(running: &dyn Running, shape: &Shape, first: usize) -> Result<(), Failure> {
    let mut producer = running.producer(shape).await?;
    let messages: Vec<Message> =
        (first..first + MESSAGES).map(|n| Message { key: None, body: body(n) }).collect();
    let (mut sent, mut confirmed) = (0, 0);
    while confirmed < MESSAGES {
        let end = (confirmed + WINDOW).min(MESSAGES);
        if end > sent {
            producer.send(&messages[sent..end]).await?;
            sent = end;
        }
        confirmed += producer.confirmed().await?;
        assert!(confirmed <= sent);
    }
    Ok(())
}

/// Receives and acks so many, and says how often each came.
async fn drain(consumer: &mut dyn Consumer, count: usize) -> Result<BTreeMap<Bytes, usize>, Failure> {
    let mut seen = BTreeMap::new();
    let mut received = 0;
    while received < count {
        let bodies = consumer.receive().await?;
        assert!((1..=PREFETCH).contains(&bodies.len()));
        received += bodies.len();
        for body in bodies {
            *seen.entry(body).or_default() += 1;
        }
        consumer.ack().await?;
    }
    consumer.settle().await?;
    Ok(seen)
}

/// Receives and acks until all of these came but those that were acked already. A server may forget an ack
/// when it is killed: the number of those is returned.
async fn drain_all(
    consumer: &mut dyn Consumer,
    bodies: impl Iterator<Item = Bytes>,
    acked: &[Bytes],
) -> Result<usize, Failure> {
    let mut missing: std::collections::BTreeSet<Bytes> =
        bodies.filter(|body| !acked.contains(body)).collect();
    let mut again = 0;
    let since = Instant::now();
    while !missing.is_empty() {
        if since.elapsed() > PATIENCE {
            return Err(format!("{} messages are lost, such as {:?}", missing.len(), missing.first()).into());
        }
        let Ok(received) = tokio::time::timeout(Duration::from_secs(1), consumer.receive()).await else {
            continue;
        };
        for body in received? {
            if !missing.remove(&body) {
                again += 1;
            }
        }
        consumer.ack().await?;
    }
    consumer.settle().await?;
    Ok(again)
}
