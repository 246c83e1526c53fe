//! From stream to stream exactly once: a worker reads one stream and writes another, and worker and server are killed
//! again and again.
//!
//! The worker is a process of its own: this very program, told by its environment to be the worker, so that it can be
//! killed as the system kills. A longer run:
//!
//! ```text
//! EXACTLY_ONCE=20000:20 cargo test -p forebay --test e2e exactly_once
//! ```
//!
//! The rate beside a worker that publishes and acknowledges in two steps:
//!
//! ```text
//! EXACTLY_ONCE_RATE=20000 cargo test -p forebay --test e2e exactly_once::both -- --nocapture
//! ```

use std::io::Read as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forebay_client::admin::settings::{Backoff, Retries};
use forebay_client::admin::streams::ReadQuery;
use forebay_client::{Client, Fault, GroupSettings, Job, Message, MessageSet, Payload, Worker};
use serde::{Deserialize, Serialize};

use crate::rig::{Folder, Process, address_after};

const FROM: &str = "orders";
const GROUP: &str = "billing";
const TO: &str = "invoices";
const JOBS: usize = 16;
const PATIENCE: Duration = Duration::from_secs(120);

/// Messages and kills, as `MESSAGES:KILLS`.
const SIZE: &str = "EXACTLY_ONCE";
/// Messages that rates are measured with.
const RATE: &str = "EXACTLY_ONCE_RATE";
/// The server of a worker process.
const SERVER: &str = "EXACTLY_ONCE_SERVER";

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    number: u64,
}

impl Payload for Order {
    const TYPE: &'static str = "order";
}

async fn bill(_state: (), job: Job<Order>) -> Result<(), Fault> {
    let invoice = Message::new(job.number.to_string());
    job.finish_with(MessageSet::new().add(TO, invoice)?).await
}

/// The worker, if a test has started this process for it. Otherwise there is nothing to do.
#[test]
fn worker_process() {
    let Ok(server) = std::env::var(SERVER) else { return };
    // If the test is gone, so is its end of the pipe, and this process is not needed any more.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let client = Client::connect(server).await.expect("the test's server answers");
        let worker = Worker::builder(client, FROM, GROUP, ()).concurrency(JOBS).on(bill);
        worker.run_until(std::future::pending()).await.expect("it works until it is killed");
    });
}

struct Killable(Child);

impl Killable {
    fn start(server: &str) -> Killable {
        let program = std::env::current_exe().expect("this program is a file");
        let child = Command::new(program)
            .args(["--exact", "exactly_once::worker_process", "--nocapture", "--quiet"])
            .env(SERVER, server)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn();
        Killable(child.expect("a second process of this program"))
    }

    /// By SIGKILL: it has no time for anything.
    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Killable {
    fn drop(&mut self) {
        self.kill();
    }
}

fn serve(folder: &Folder, listen: &str) -> (Process, String) {
    let words = ["--data", folder.path(), "--listen", listen, "--log", "text"];
    Process::serve(&words, |line| address_after("listening on ", line))
}

/// Messages that are settled, and messages that were written. Waits until the server answers and no consumer is there.
async fn settled_and_written(client: &Client, messages: u64) -> (u64, u64) {
    let give_up = Instant::now() + PATIENCE;
    loop {
        if let Ok(group) = client.group(FROM, GROUP).await
            && group.consumers == 0
        {
            let written = client.stream(TO).await.map_or(0, |stream| stream.last_seq);
            return (messages - group.lag, written);
        }
        assert!(Instant::now() < give_up, "the server does not notice that the worker is gone");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn written(client: &Client) -> u64 {
    client.stream(TO).await.map_or(0, |stream| stream.last_seq)
}

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let give_up = Instant::now() + PATIENCE;
    while !is_so().await {
        assert!(Instant::now() < give_up, "it never came to that: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_output_is_there_once_though_worker_and_server_are_killed() {
    let size = std::env::var(SIZE).unwrap_or_else(|_| "4000:6".to_owned());
    let (messages, kills) = size.split_once(':').expect("MESSAGES:KILLS");
    let (messages, kills): (u64, u64) =
        (messages.parse().expect("a number"), kills.parse().expect("a number"));
    let folder = Folder::new("exactly-once");
    let (mut server, address) = serve(&folder, "127.0.0.1:0");
    let client = Client::connect(address.clone()).await.expect("it answers");
    let settings = GroupSettings::new()
        .max_retries(Retries::Unlimited)
        .backoff(Backoff::new().min(Duration::from_millis(5)).max(Duration::from_millis(5)));
    client.create_group(FROM, GROUP, settings).await.expect("there was none");
    let orders: Vec<Order> = (0..messages).map(|number| Order { number }).collect();
    for orders in orders.chunks(1_000) {
        client.publish_batch(FROM, orders).await.expect("it is stored");
    }

    let share = messages / (kills + 2);
    for kill in 1..=kills {
        let mut worker = Killable::start(&address);
        let before = written(&client).await;
        until("some more is done", async || written(&client).await >= (before + share).min(messages)).await;
        // The server in every other round, and the worker in the others: each while the other one works.
        if kill.is_multiple_of(2) {
            server.kill();
            (server, _) = serve(&folder, &address);
            worker.kill();
        } else {
            worker.kill();
        }
        let (settled, written) = settled_and_written(&client, messages).await;
        assert_eq!(settled, written, "after kill {kill}: an output for each settled input, and no other");
    }
    assert!(written(&client).await < messages, "it was finished before the last kill");
    let mut worker = Killable::start(&address);
    until("all is done", async || client.group(FROM, GROUP).await.is_ok_and(|group| group.lag == 0)).await;
    worker.kill();
    let mut numbers = Vec::new();
    let mut query = ReadQuery { limit: 1_000, ..ReadQuery::default() };
    loop {
        let page = client.read_messages(TO, query.clone()).await.expect("it can be read");
        let number = |body: &[u8]| std::str::from_utf8(body).ok().and_then(|text| text.parse::<u64>().ok());
        numbers.extend(page.messages.iter().map(|message| number(message.body()).expect("a number")));
        if page.next > page.last_seq {
            break;
        }
        query.from = page.next;
    }
    assert_eq!(numbers.len() as u64, messages, "each output once");
    numbers.sort_unstable();
    assert_eq!(numbers, (0..messages).collect::<Vec<u64>>(), "and none is missing");
    assert_eq!(client.group(FROM, GROUP).await.expect("it is there").parked, 0);
    server.stop();
}

/// Publishes and acknowledges in two steps: a crash in between publishes again.
async fn bill_in_steps(client: Client, job: Job<Order>) -> Result<(), Fault> {
    client.publish(TO, Message::new(job.number.to_string())).await?;
    Ok(())
}

/// The rate of a worker over messages that lie in its stream, each of which it turns into one output.
async fn rate(client: &Client, worker: Worker, messages: u64, before: u64) -> f64 {
    let started = Instant::now();
    until("all is done", async || client.group(FROM, GROUP).await.is_ok_and(|group| group.lag == 0)).await;
    let rate = messages as f64 / started.elapsed().as_secs_f64();
    worker.shutdown().await.expect("it leaves well");
    assert_eq!(written(client).await, before + messages, "each input has its output");
    rate
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[allow(clippy::print_stderr, reason = "it is run to see the rates")]
async fn both_kinds_of_workers_do_the_same() {
    const JOBS: usize = 64;
    let messages: u64 = std::env::var(RATE).map_or(300, |text| text.parse().expect("a number"));
    let folder = Folder::new("rates");
    let (server, address) = serve(&folder, "127.0.0.1:0");
    let client = Client::connect(address).await.expect("it answers");
    client.create_group(FROM, GROUP, GroupSettings::new()).await.expect("there was none");
    let fill = async || {
        let orders: Vec<Order> = (0..messages).map(|number| Order { number }).collect();
        for orders in orders.chunks(1_000) {
            client.publish_batch(FROM, orders).await.expect("it is stored");
        }
    };
    fill().await;
    let plain = Worker::builder(client.clone(), FROM, GROUP, client.clone()).concurrency(JOBS);
    let plain = plain.on(bill_in_steps).start().await.expect("it joins");
    let plain = rate(&client, plain, messages, 0).await;
    fill().await;
    let exact = Worker::builder(client.clone(), FROM, GROUP, ()).concurrency(JOBS).on(bill).start().await;
    let exact = rate(&client, exact.expect("it joins"), messages, messages).await;
    eprintln!("in two steps {plain:.0}/s, in one transaction {exact:.0}/s: {:.0} %", 100.0 * exact / plain);
    server.stop();
}
