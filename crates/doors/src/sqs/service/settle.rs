//! Deleting and visibility, one or a batch.

use std::time::Duration;

use forebay_broker::api::{NotYours, Outcome, Settlement, Verb};

use super::{Asker, Service};
use crate::sqs::queue::Queue;
use crate::sqs::wire::batch::Entry;
use crate::sqs::wire::error::SqsError;
use crate::sqs::wire::protocol::Action;
use crate::sqs::wire::request::{
    ChangeMessageVisibility, ChangeMessageVisibilityBatch, DeleteMessage, DeleteMessageBatch, VISIBILITY_MAX,
    Visibility,
};
use crate::sqs::wire::response::{Batch, Changed, Response};

impl Service {
    pub(super) async fn delete_message(
        &self,
        asker: &Asker,
        request: DeleteMessage,
    ) -> Result<Response, SqsError> {
        let queue = self.find(asker, &request.queue_url, Action::DeleteMessage)?;
        let handles = [request.receipt_handle];
        let deleted = self.delete_by(asker, &queue, &handles).await?;
        for (handle, settled) in handles.iter().zip(deleted) {
            deletion(&queue, handle, settled)?;
        }
        Ok(Response::DeleteMessage)
    }

    pub(super) async fn delete_messages(
        &self,
        asker: &Asker,
        request: DeleteMessageBatch,
    ) -> Result<Response, SqsError> {
        let queue = self.find(asker, &request.queue_url, Action::DeleteMessage)?;
        let (ids, handles): (Vec<String>, Vec<String>) =
            request.receipt_handles()?.into_iter().map(|entry| (entry.id, entry.content)).unzip();
        let deleted = self.delete_by(asker, &queue, &handles).await?;
        let outcomes = handles.iter().zip(deleted).map(|(handle, settled)| deletion(&queue, handle, settled));
        Ok(Response::DeleteMessageBatch(batch(ids.into_iter().zip(outcomes))))
    }

    async fn delete_by(
        &self,
        asker: &Asker,
        queue: &Queue,
        handles: &[String],
    ) -> Result<Vec<Outcome>, SqsError> {
        // On a standard queue the latest receipt is valid until the message is received again.
        let settlement = Settlement { late: !queue.is_fifo(), ..Verb::Ack.into() };
        self.settle(asker, queue, handles, settlement).await
    }

    pub(super) async fn change_visibility(
        &self,
        asker: &Asker,
        request: ChangeMessageVisibility,
    ) -> Result<Response, SqsError> {
        let queue = self.find(asker, &request.queue_url, Action::ChangeMessageVisibility)?;
        let visibility = request.visibility()?;
        self.hide(asker, &queue, &visibility).await?;
        Ok(Response::ChangeMessageVisibility)
    }

    pub(super) async fn change_visibilities(
        &self,
        asker: &Asker,
        request: ChangeMessageVisibilityBatch,
    ) -> Result<Response, SqsError> {
        let queue = self.find(asker, &request.queue_url, Action::ChangeMessageVisibility)?;
        let entries = request.visibilities()?;
        // Each may have a time of its own, so they are asked for one by one, and all at once: they share a sync.
        let outcomes = entries.iter().map(|Entry { content, .. }| async {
            match content {
                Ok(visibility) => self.hide(asker, &queue, visibility).await,
                Err(error) => Err(error.clone()),
            }
        });
        let outcomes = futures_util::future::join_all(outcomes).await;
        let ids = entries.iter().map(|entry| entry.id.clone());
        Ok(Response::ChangeMessageVisibilityBatch(batch(ids.zip(outcomes))))
    }

    /// Hides a message for so long from now on, or shows it at once.
    async fn hide(&self, asker: &Asker, queue: &Queue, visibility: &Visibility) -> Result<(), SqsError> {
        let seconds = |of: u32| Duration::from_secs(of.into());
        let verb = match visibility.timeout {
            0 => Verb::Retry { delay: Some(Duration::ZERO) },
            timeout => Verb::Extend { by: seconds(timeout), total_max: Some(seconds(VISIBILITY_MAX)) },
        };
        let handle = &visibility.receipt_handle;
        let settled = self.settle(asker, queue, std::slice::from_ref(handle), verb.into()).await?;
        let gone = || {
            let reason = "Message does not exist or is not available for visibility timeout change.";
            Err(SqsError::value(handle, "ReceiptHandle", reason))
        };
        match settled.first() {
            Some(Outcome::NotYours(NotYours::Unknown)) | None => Err(SqsError::bad_receipt(handle)),
            Some(Outcome::NotYours(NotYours::Lapsed)) if !queue.is_fifo() => Ok(()),
            Some(Outcome::NotYours(_)) => gone(),
            Some(Outcome::TooLong) => {
                let reason = format!(
                    "Total VisibilityTimeout for the message is beyond the limit [{VISIBILITY_MAX} seconds]"
                );
                Err(SqsError::value(visibility.timeout, "VisibilityTimeout", reason))
            }
            Some(_) => Ok(()),
        }
    }

    async fn settle(
        &self,
        asker: &Asker,
        queue: &Queue,
        handles: &[String],
        settlement: Settlement,
    ) -> Result<Vec<Outcome>, SqsError> {
        match asker.caller.settle(queue.stream(), queue.group(), handles, settlement).await {
            Ok(settled) => Ok(settled),
            Err(error) => Err(self.failed(queue, &error).await),
        }
    }
}

/// The outcome of a deletion. Deleting a message that is gone succeeds, however often it is repeated.
fn deletion(queue: &Queue, handle: &str, settled: Outcome) -> Result<(), SqsError> {
    match settled {
        Outcome::NotYours(NotYours::Unknown) => Err(SqsError::bad_receipt(handle)),
        Outcome::NotYours(NotYours::Lapsed | NotYours::Superseded) if queue.is_fifo() => {
            Err(SqsError::value(handle, "ReceiptHandle", "The receipt handle has expired."))
        }
        _ => Ok(()),
    }
}

fn batch(outcomes: impl Iterator<Item = (String, Result<(), SqsError>)>) -> Batch<Changed> {
    let mut batch = Batch { successful: Vec::new(), failed: Vec::new() };
    for (id, outcome) in outcomes {
        match outcome {
            Ok(()) => batch.successful.push(Changed { id }),
            Err(error) => batch.failed.push((id, error)),
        }
    }
    batch
}
