//! `Read` of all streams: events in the order of the log, once or as they come.

use std::pin::Pin;
use std::sync::Arc;

use forebay_broker::api::{CallError, Choice, Direction, LogFilter, LogPage, LogReader, Most, Stage};
use forebay_core::types::Ordinal;
use forebay_wire::kurrent::client::{FilterOptions, SubscriptionConfirmation};
use forebay_wire::kurrent::streams::ReadResp;
use forebay_wire::kurrent::streams::read_req::options::AllOptions;
use forebay_wire::kurrent::streams::read_req::options::all_options::AllOption;
use forebay_wire::kurrent::streams::read_resp::{CaughtUp, Checkpoint, Content};
use tonic::Status;

use super::read::{PAGE, Ready, View, replies, reply, timestamp};
use crate::kurrent::event::Stored;
use crate::kurrent::filter::{self, Filter};
use crate::kurrent::{KurrentDoor, Replies, places, status};

/// The broker's form of a filter.
pub(in crate::kurrent) fn log_filter(filter: &Filter) -> LogFilter {
    let (of_streams, of_kinds) = (filter.clone(), filter.clone());
    let kinds = match filter.has_kinds() {
        true => Choice::Test(Arc::new(move |kind: &str| of_kinds.passes_kind(kind))),
        false => Choice::All,
    };
    LogFilter {
        streams: Choice::Test(Arc::new(move |name: &str| of_streams.passes_stream(name))),
        kinds,
        ..LogFilter::default()
    }
}

fn filter_of(options: Option<&FilterOptions>) -> Result<Filter, Status> {
    options.map_or_else(|| Ok(Filter::default()), Filter::read)
}

/// A read that ends.
pub(super) struct Once {
    view: View,
    reader: Option<LogReader>,
    ready: Ready,
    /// Events that the client may still be given.
    left: u64,
    /// The last event that there was when the read began.
    end: Ordinal,
}

impl Once {
    pub(super) async fn open(
        view: View,
        of: AllOptions,
        direction: Direction,
        count: u64,
        filter: Option<&FilterOptions>,
    ) -> Result<Replies<ReadResp>, Status> {
        let filter = filter_of(filter)?;
        let of_call = |error: CallError| status::of_call(&error);
        let end = view.caller.log_end().await.map_err(of_call)?;
        let next = match (of.all_option, direction) {
            (Some(AllOption::Position(at)), Direction::Forwards) => Some(places::ordinal(at.commit_position)),
            // Backwards the position itself is not among the events.
            (Some(AllOption::Position(at)), Direction::Backwards) => {
                at.commit_position.checked_sub(1).map(|before| places::ordinal(before).min(end))
            }
            (Some(AllOption::Start(_)), Direction::Forwards) => Some(Ordinal(0)),
            (Some(AllOption::End(_)), Direction::Backwards) => Some(end),
            (Some(AllOption::Start(_) | AllOption::End(_)), _) => None,
            (None, _) => return Err(status::invalid("position, start or end must be set")),
        };
        let reader = match next.filter(|_| count > 0) {
            Some(next) => {
                let reader = view.caller.log_reader(next, direction, log_filter(&filter));
                Some(reader.map_err(of_call)?)
            }
            None => None,
        };
        let call = Once { view, reader, ready: Ready::default(), left: count, end };
        Ok(replies(call, |call| &mut call.ready, |call| Box::pin(call.next())))
    }

    async fn next(&mut self) -> Option<Result<ReadResp, Status>> {
        loop {
            if let Some(ready) = self.ready.pop() {
                return Some(Ok(ready));
            }
            let reader = self.reader.as_mut()?;
            let most = Most { messages: PAGE.messages.min(self.left), ..PAGE };
            let most = self.ready.room(&self.view.share, most);
            let page = match reader.next(most).await {
                Ok(page) => page,
                Err(error) => return Some(Err(status::of_call(&error))),
            };
            let mut is_over = page.is_end;
            for message in &page.messages {
                if message.message.ordinal > self.end || self.left == 0 {
                    is_over = true;
                    break;
                }
                self.left -= 1;
                match self.view.show(Stored::found(&message.stream, &message.message)).await {
                    Ok(shown) => self.ready.push(shown),
                    Err(status) => return Some(Err(status)),
                }
            }
            let is_behind = reader.direction() == Direction::Forwards && page.next > self.end;
            if is_over || is_behind || self.left == 0 {
                self.reader = None;
            }
        }
    }
}

/// A subscription to all streams.
pub(super) struct Follow {
    door: KurrentDoor,
    view: View,
    reader: LogReader,
    ready: Ready,
    /// Events between two checkpoints, if there is a filter.
    interval: Option<u64>,
    /// The last checkpoint.
    checkpoint: Ordinal,
    is_caught_up: bool,
    stopping: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Follow {
    pub(super) async fn open(
        door: KurrentDoor,
        view: View,
        of: AllOptions,
        options: Option<&FilterOptions>,
    ) -> Result<Replies<ReadResp>, Status> {
        let filter = filter_of(options)?;
        let interval = options.map(filter::checkpoint_interval).transpose()?;
        let of_call = |error: CallError| status::of_call(&error);
        let seen = match of.all_option {
            Some(AllOption::Position(at)) => places::ordinal(at.commit_position),
            Some(AllOption::Start(_)) => Ordinal(0),
            Some(AllOption::End(_)) => view.caller.log_end().await.map_err(of_call)?,
            None => return Err(status::invalid("position, start or end must be set")),
        };
        // The position itself was seen.
        let next = Ordinal(seen.0.saturating_add(1));
        let reader = view.caller.log_reader(next, Direction::Forwards, log_filter(&filter));
        let reader = reader.map_err(of_call)?;
        let confirmation = SubscriptionConfirmation { subscription_id: door.next_id().to_string() };
        let mut ready = Ready::default();
        ready.push(reply(Content::Confirmation(confirmation)));
        let stopping = Box::pin(door.broker.reached(Stage::Draining));
        let (checkpoint, is_caught_up) = (seen, false);
        let call = Follow { door, view, reader, ready, interval, checkpoint, is_caught_up, stopping };
        Ok(replies(call, |call| &mut call.ready, |call| Box::pin(call.next())))
    }

    async fn next(&mut self) -> Option<Result<ReadResp, Status>> {
        loop {
            if let Some(ready) = self.ready.pop() {
                return Some(Ok(ready));
            }
            let messages = self.interval.map_or(PAGE.messages, |interval| interval.min(PAGE.messages));
            let most = self.ready.room(&self.view.share, Most { messages, ..PAGE });
            let page = tokio::select! {
                biased;
                () = self.stopping.as_mut() => return Some(Err(status::stopping())),
                page = self.reader.next(most) => page,
            };
            let page = match page {
                Ok(page) => page,
                Err(error) => return Some(Err(status::of_call(&error))),
            };
            for message in &page.messages {
                match self.view.show(Stored::found(&message.stream, &message.message)).await {
                    Ok(shown) => self.ready.push(shown),
                    Err(status) => return Some(Err(status)),
                }
            }
            let goes_live = page.is_end && !self.is_caught_up;
            self.mark(&page, goes_live);
            if goes_live {
                self.is_caught_up = true;
                let caught_up = self.caught_up(&page);
                self.ready.push(caught_up);
            } else if page.is_end && self.ready.is_empty() {
                self.ready = Ready::default();
                let grown = tokio::select! {
                    biased;
                    () = self.stopping.as_mut() => return Some(Err(status::stopping())),
                    grown = self.reader.grown() => grown,
                };
                if let Err(error) = grown {
                    return Some(Err(status::of_call(&error)));
                }
            }
        }
    }

    /// Says how far the events were looked at, if that is far enough from the last time.
    fn mark(&mut self, page: &LogPage, goes_live: bool) {
        let Some(interval) = self.interval else { return };
        let seen = Ordinal(page.next.0.saturating_sub(1));
        let considered = seen.0.saturating_sub(self.checkpoint.0);
        if considered >= interval || (goes_live && considered > 0) {
            self.checkpoint = seen;
            self.ready.push(reply(Content::Checkpoint(Checkpoint {
                commit_position: places::commit(seen),
                prepare_position: places::commit(seen),
                timestamp: Some(timestamp(self.door.broker.clock().now())),
            })));
        }
    }

    fn caught_up(&self, page: &LogPage) -> ReadResp {
        let position = (page.last > Ordinal(0)).then(|| places::position(page.last));
        let timestamp = Some(timestamp(self.door.broker.clock().now()));
        reply(Content::CaughtUp(CaughtUp { timestamp, stream_revision: None, position }))
    }
}
