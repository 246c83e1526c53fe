//! Sends lines through the SDK's producer, and keeps account of them.

use std::time::Duration;

use anyhow::anyhow;
use forebay_client::{Client, Confirmation, Producer, PublishError};
use tokio::sync::mpsc;

use super::input::Line;
use super::progress::{self, Progress};
use crate::exit::{self, Exit};
use crate::failure::from_publish;
use crate::units;

/// Messages in flight. Several full batches, so that the server need not wait for the client.
const WINDOW: usize = 8_192;

/// How many messages were stored.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tally {
    pub(super) stored: u64,
    /// Stored before, with the same id.
    pub(super) duplicates: u64,
    /// It is not known whether they were stored.
    unknown: u64,
}

/// A message that was sent, or why nothing more is.
enum Step {
    Sent { number: u64, bytes: u64, confirmation: Confirmation },
    Refused { number: u64, error: PublishError },
    NotRead(anyhow::Error),
}

/// Publishes all lines, or up to the first that fails.
pub(super) async fn run(
    client: &Client,
    stream: &str,
    retry_for: Duration,
    lines: mpsc::Receiver<anyhow::Result<Vec<Line>>>,
    progress: Progress,
) -> anyhow::Result<Tally> {
    let producer = client.producer(stream).window(WINDOW).retry_for(retry_for);
    let producer = producer.retry_while_storing().stop_at_failure().build();
    let (steps, sent) = mpsc::channel(WINDOW);
    let sending = tokio::spawn(send(producer, lines, steps));
    let outcome = Account { retry_for, progress, tally: Tally::default() }.settle(sent).await;
    sending.abort();
    outcome
}

async fn send(
    producer: Producer,
    mut lines: mpsc::Receiver<anyhow::Result<Vec<Line>>>,
    steps: mpsc::Sender<Step>,
) {
    while let Some(batch) = lines.recv().await {
        let batch = match batch {
            Ok(batch) => batch,
            Err(error) => return drop(steps.send(Step::NotRead(error)).await),
        };
        for Line { message, number, bytes } in batch {
            let step = match producer.send(message).await {
                Ok(confirmation) => Step::Sent { number, bytes, confirmation },
                Err(error) => return drop(steps.send(Step::Refused { number, error }).await),
            };
            if steps.send(step).await.is_err() {
                return;
            }
        }
    }
}

struct Account {
    retry_for: Duration,
    progress: Progress,
    tally: Tally,
}

impl Account {
    /// Waits for every confirmation, in order. After the first failure no later message is stored.
    async fn settle(mut self, mut steps: mpsc::Receiver<Step>) -> anyhow::Result<Tally> {
        let mut draw = tokio::time::interval(progress::REDRAW);
        let mut failed: Option<anyhow::Error> = None;
        loop {
            let step = tokio::select! {
                step = steps.recv() => step,
                _ = draw.tick() => {
                    self.draw();
                    continue;
                }
            };
            let error = match step {
                None => break,
                Some(Step::NotRead(error)) => error,
                Some(Step::Refused { number, error }) => self.error(number, &error),
                Some(Step::Sent { number, bytes, confirmation }) => {
                    let mut confirming = confirmation.into_future();
                    let published = loop {
                        tokio::select! {
                            published = &mut confirming => break published,
                            _ = draw.tick() => self.draw(),
                        }
                    };
                    match published {
                        Ok(published) => {
                            self.progress.add(bytes);
                            let known = published.duplicate;
                            let count =
                                if known { &mut self.tally.duplicates } else { &mut self.tally.stored };
                            *count += 1;
                            continue;
                        }
                        Err(error) => {
                            self.tally.unknown += u64::from(matches!(error, PublishError::Unknown { .. }));
                            if failed.is_some() {
                                continue;
                            }
                            self.error(number, &error)
                        }
                    }
                }
            };
            // Nothing more is read. The messages in flight are still answered.
            steps.close();
            failed.get_or_insert(error);
        }
        self.progress.clear();
        match failed {
            None => Ok(self.tally),
            Some(error) => Err(self.with_tally(&error)),
        }
    }

    fn draw(&mut self) {
        self.progress.draw(self.tally.stored + self.tally.duplicates);
    }

    fn error(&self, number: u64, error: &PublishError) -> anyhow::Error {
        let retry_for = units::age(self.retry_for.as_secs_f64());
        let context = match error {
            PublishError::NotInTime { .. } => format!("gave up after {retry_for} without progress"),
            PublishError::Unknown { .. } => format!("message {number} may or may not be stored"),
            _ => format!("message {number} was not stored"),
        };
        from_publish(error).context(context)
    }

    /// The mistake, and how far it came, so that a person knows where to go on.
    fn with_tally(&self, error: &anyhow::Error) -> anyhow::Error {
        let unknown = match self.tally.unknown {
            0 => String::new(),
            count => format!("; the outcome of {} more is unknown", units::count(count)),
        };
        let stored = match self.tally.stored + self.tally.duplicates {
            0 => "Nothing was stored".to_owned(),
            1 => "The first message was stored".to_owned(),
            count => format!("The first {} were stored", units::of(count, "message")),
        };
        let text = format!("{}. {stored}{unknown}", exit::text(error));
        match error.downcast_ref::<Exit>() {
            Some(exit) => anyhow!(*exit).context(text),
            None => anyhow!(text),
        }
    }
}
