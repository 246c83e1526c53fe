//! An email leveler.
//!
//! Programs publish as much mail as they have. The mail server accepts twenty per second. The group's rate is set to
//! that, and applies to all workers together. A mail that fails is retried after a backoff. A mail that cannot be
//! sent is parked with the reason, and `triage` goes through the parked mails at the end.
//!
//! ```text
//! cargo run -p forebay-examples --bin emails
//! ```

// A program that talks to its user.
#![allow(clippy::print_stdout)]

mod smtp;
#[cfg(test)]
mod tests;

use std::time::Duration;

use forebay_client::admin::parked::{ParkedFilter, Selection};
use forebay_client::admin::settings::{Backoff, Rate};
use forebay_client::worker::WorkerBuilder;
use forebay_client::{Class, Client, Fault, GroupSettings, Job, Message, Payload, Worker};
use serde::{Deserialize, Serialize};
use smtp::{Refusal, Smtp};

const STREAM: &str = "newsletter";
const GROUP: &str = "senders";
const PER_SECOND: f64 = 20.0;
const BURST: u32 = 5;

#[derive(Debug, Clone, Serialize, Deserialize)]
struct SendEmail {
    to: String,
    subject: String,
}

impl Payload for SendEmail {
    const TYPE: &'static str = "email.send";
}

async fn send_email(smtp: Smtp, job: Job<SendEmail>) -> Result<(), Fault> {
    smtp.send(&job.to, &job.subject).await?;
    Ok(())
}

/// Classifies errors. Handlers only use `?`.
fn classify(error: &(dyn std::error::Error + Send + Sync + 'static)) -> Class {
    match error.downcast_ref::<Refusal>() {
        Some(Refusal::NoSuchMailbox) => Class::Permanent,
        Some(Refusal::TooManyConnections { wait }) => Class::Throttled(Some(*wait)),
        Some(Refusal::TryAgain | Refusal::MailboxFull) | None => Class::Transient,
    }
}

async fn create_group(client: &Client) -> Result<(), Box<dyn std::error::Error>> {
    let settings = GroupSettings::new()
        .rate(Rate::per_second(PER_SECOND).burst(BURST))
        .max_retries(3)
        .backoff(Backoff::new().min(Duration::from_secs(1)).max(Duration::from_secs(10)));
    client.create_group(STREAM, GROUP, settings).await?;
    Ok(())
}

fn worker(client: Client, smtp: Smtp) -> WorkerBuilder<Smtp> {
    Worker::builder(client, STREAM, GROUP, smtp).concurrency(4).classify(classify).on(send_email)
}

/// A newsletter: everything at once.
async fn publish_burst(client: &Client, count: u32) -> Result<(), Box<dyn std::error::Error>> {
    let to = |n: u32| match n % 25 {
        3 => format!("reader-{n}@flaky.example"),
        7 => format!("reader-{n}@full.example"),
        11 => format!("reader-{n}@busy.example"),
        15 => format!("reader-{n}@exmaple.com"),
        19 => format!("reader-{n}@gone.example"),
        _ => format!("reader-{n}@example.com"),
    };
    let mail = |n| SendEmail { to: to(n), subject: "News".to_owned() };
    let mails: Vec<SendEmail> = (1..=count).map(mail).collect();
    client.publish_batch(STREAM, &mails).await?;
    Ok(())
}

/// Goes through the parked mails: corrects misspelled addresses, replays mails to full mailboxes, and discards the
/// rest. Returns the number of each.
async fn triage(client: &Client) -> Result<Triaged, Box<dyn std::error::Error>> {
    let mut corrected = 0;
    let mut after = 0;
    let unknown =
        ParkedFilter { reason: Some(Refusal::NoSuchMailbox.to_string()), ..ParkedFilter::default() };
    loop {
        let page = client.parked_after(STREAM, GROUP, after, unknown.clone()).await?;
        for parked in page.items {
            let Some(message) = parked.message else { continue };
            let mut mail: SendEmail = message.payload()?;
            if mail.to.ends_with("@exmaple.com") {
                mail.to = mail.to.replace("@exmaple.com", "@example.com");
                client.resubmit_parked(STREAM, GROUP, parked.seq, Message::of(&mail)?).await?;
                corrected += 1;
            }
        }
        let Some(next) = page.next else { break };
        after = next;
    }
    let discarded = client.discard_parked(STREAM, GROUP, Selection::matching(unknown)).await?.matched;
    let full = ParkedFilter { reason: Some(Refusal::MailboxFull.to_string()), ..ParkedFilter::default() };
    let replayed = client.replay_parked(STREAM, GROUP, Selection::matching(full)).await?.matched;
    Ok(Triaged { corrected, replayed, discarded })
}

#[derive(Debug, PartialEq, Eq)]
struct Triaged {
    corrected: u64,
    replayed: u64,
    discarded: u64,
}

/// Prints the progress until nothing is left to do.
async fn watch(client: &Client, smtp: &Smtp) -> Result<(), Box<dyn std::error::Error>> {
    loop {
        let group = client.group(STREAM, GROUP).await?;
        println!("{:4} sent, {:4} to do, {:2} parked", smtp.sent(), group.lag, group.parked);
        if group.lag == 0 {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = std::env::var("FOREBAY_SERVER").unwrap_or_else(|_| "127.0.0.1:7070".to_owned());
    let client = Client::connect(server).await?;
    create_group(&client).await?;
    let smtp = Smtp::default();
    let running = worker(client.clone(), smtp.clone()).start().await?;
    publish_burst(&client, 200).await?;
    watch(&client, &smtp).await?;
    for (reason, count) in client.parked_reasons(STREAM, GROUP).await? {
        println!("{count:4} parked: {reason}");
    }
    smtp.empty_mailboxes();
    println!("{:?}", triage(&client).await?);
    watch(&client, &smtp).await?;
    let stats = running.shutdown().await?;
    println!("acked {}, retried {}, throttled {}", stats.acked, stats.retried, stats.throttled);
    Ok(())
}
