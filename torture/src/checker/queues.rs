//! SQS queues: the part of the history that clients of the SQS door write, and its promises.
//!
//! | Line | Says |
//! | --- | --- |
//! | `info queue` | A queue, with its kind and visibility timeout |
//! | `send` | A message sent: `ok` with its id and, in a FIFO queue, its sequence number |
//! | `ok got` | A message received, by which receive, when that was asked for, and how long it is invisible |
//! | `delete`, `hide` | By the receipt of a delivery: deleted, or made invisible for so many seconds from now on |
//! | `ok left` | How many messages a queue had in the end |
//!
//! A message is invisible at least from when it came until its timeout has passed since the receive was asked for, or
//! until a request about it was sent that may end that.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use super::record::{Number, Wrong};
use super::{CLOCKS_AGREE, Promise, Report};
use crate::history::{Line, Phase, Time};

#[derive(Debug, Clone)]
struct Queue {
    is_fifo: bool,
    timeout: Time,
    /// How many messages it had when it should have been empty.
    left: Option<u64>,
}

#[derive(Debug)]
struct Sent {
    queue: String,
    content: u64,
    /// The message group of a FIFO queue.
    key: Option<String>,
    at: Time,
    tries: u32,
    refused: u32,
    /// When it was first confirmed.
    confirmed: Option<Time>,
    /// Its ids and sequence numbers, by all answers and deliveries. One message has one of each.
    ids: Vec<(String, Option<u64>)>,
}

#[derive(Debug)]
struct Got {
    queue: String,
    number: Number,
    content: u64,
    id: String,
    seq: Option<u64>,
    count: u64,
    /// Which receive brought it, when that was sent, and when its answer came.
    receive: u64,
    asked: Time,
    at: Time,
    requests: Vec<Request>,
}

#[derive(Debug)]
struct Request {
    kind: Kind,
    sent: Time,
    /// When it was answered with success.
    done: Option<Time>,
    was_refused: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Delete,
    Hide(Time),
}

/// The queues of a history.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    queues: BTreeMap<String, Queue>,
    sent: BTreeMap<Number, Sent>,
    got: Vec<Got>,
    by_number: BTreeMap<Number, Vec<usize>>,
    by_delivery: BTreeMap<u64, usize>,
    ended: Time,
}

impl Queues {
    /// False if the line is about something else.
    pub(super) fn take(&mut self, line: &Line) -> Result<bool, Wrong> {
        self.ended = line.at;
        match line.operation.as_str() {
            "queue" => {
                let timeout = line.number::<Time>("timeout_ms")? * 1_000;
                let queue = Queue { is_fifo: line.get("fifo") == Some("true"), timeout, left: None };
                self.queues.insert(line.text("name")?.to_owned(), queue);
            }
            "send" => self.on_send(line)?,
            "got" => self.on_got(line)?,
            "delete" | "hide" => self.on_request(line)?,
            "left" => {
                let name = line.text("queue")?;
                let unknown = || Wrong::Unknown(format!("queue {name}"));
                self.queues.get_mut(name).ok_or_else(unknown)?.left = Some(line.number("count")?);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn on_send(&mut self, line: &Line) -> Result<(), Wrong> {
        let number: Number = line.number("n")?;
        if line.phase == Phase::Invoke {
            let fresh = Sent {
                queue: line.text("queue")?.to_owned(),
                content: line.number("content")?,
                key: line.get("key").map(str::to_owned),
                at: line.at,
                tries: 0,
                refused: 0,
                confirmed: None,
                ids: Vec::new(),
            };
            self.sent.entry(number).or_insert(fresh).tries += 1;
            return Ok(());
        }
        let unknown = || Wrong::Unknown(format!("message {number}"));
        let sent = self.sent.get_mut(&number).ok_or_else(unknown)?;
        match line.phase {
            Phase::Ok => {
                sent.confirmed.get_or_insert(line.at);
                sent.ids.push((line.text("id")?.to_owned(), line.optional("seq")?));
            }
            Phase::Fail => sent.refused += 1,
            Phase::Info | Phase::Invoke => {}
        }
        Ok(())
    }

    fn on_got(&mut self, line: &Line) -> Result<(), Wrong> {
        let got = Got {
            queue: line.text("queue")?.to_owned(),
            number: line.number("n")?,
            content: line.number("content")?,
            id: line.text("id")?.to_owned(),
            seq: line.optional("seq")?,
            count: line.number("count")?,
            receive: line.number("receive")?,
            asked: line.number("asked")?,
            at: line.at,
            requests: Vec::new(),
        };
        let index = self.got.len();
        self.by_delivery.insert(line.number("delivery")?, index);
        self.by_number.entry(got.number).or_default().push(index);
        self.got.push(got);
        Ok(())
    }

    fn on_request(&mut self, line: &Line) -> Result<(), Wrong> {
        let delivery: u64 = line.number("delivery")?;
        let unknown = || Wrong::Unknown(format!("delivery {delivery}"));
        let index = *self.by_delivery.get(&delivery).ok_or_else(unknown)?;
        let requests = &mut self.got[index].requests;
        if line.phase == Phase::Invoke {
            let kind = match line.operation.as_str() {
                "hide" => Kind::Hide(line.number::<Time>("seconds")? * 1_000_000),
                _ => Kind::Delete,
            };
            requests.push(Request { kind, sent: line.at, done: None, was_refused: false });
            return Ok(());
        }
        let request = requests.last_mut().ok_or_else(unknown)?;
        match line.phase {
            Phase::Ok => request.done = Some(line.at),
            Phase::Fail => request.was_refused = true,
            Phase::Info | Phase::Invoke => {}
        }
        Ok(())
    }

    /// Until when a delivery certainly keeps its message invisible: the first moment at which it may not any more.
    fn invisible_until(&self, got: &Got) -> Time {
        let mut until = got.asked + self.queues.get(&got.queue).map_or(0, |queue| queue.timeout);
        for request in &got.requests {
            until = match (request.kind, request.done) {
                (Kind::Hide(time), Some(_)) if request.sent < until => request.sent + time,
                (Kind::Hide(_), None) if request.was_refused => until,
                (Kind::Hide(time), _) => until.min(request.sent + time),
                // A message that is gone is no matter of visibility.
                (Kind::Delete, _) => until,
            };
        }
        until
    }

    /// When a message was certainly deleted by this delivery: answered while the message was still invisible, or by a
    /// FIFO queue, which refuses an old receipt.
    fn deleted(&self, got: &Got) -> Option<Time> {
        let is_fifo = self.queues.get(&got.queue).is_some_and(|queue| queue.is_fifo);
        let until = self.invisible_until(got);
        let deletes = got.requests.iter().filter(|request| request.kind == Kind::Delete);
        deletes.filter_map(|request| request.done).filter(|done| is_fifo || done + CLOCKS_AGREE < until).min()
    }

    /// From when on a message may be deleted.
    fn delete_sent(&self, number: Number) -> Option<Time> {
        let all = self.by_number.get(&number).into_iter().flatten();
        let requests = all.flat_map(|&index| &self.got[index].requests);
        requests.filter(|request| request.kind == Kind::Delete && !request.was_refused).map(|r| r.sent).min()
    }
}

pub(super) fn check(queues: &Queues, report: &mut Report) {
    for got in &queues.got {
        delivered(queues, got, report);
    }
    for (&number, sent) in &queues.sent {
        finished(queues, number, sent, report);
        one_place(queues, number, sent, report);
    }
    for (number, deliveries) in &queues.by_number {
        one_at_a_time(queues, *number, deliveries, report);
    }
    in_order(queues, report);
    for (name, queue) in &queues.queues {
        match queue.left {
            Some(0) => {}
            Some(left) => {
                report.add(
                    Promise::Unfinished,
                    queues.ended,
                    format!("{name} has {left} messages in the end"),
                );
            }
            None => {
                let what = format!("{name}: no client asked how it stood in the end");
                report.add(Promise::Unfinished, queues.ended, what);
            }
        }
    }
    let counts = &mut report.counts;
    counts.sqs_sent = queues.sent.values().filter(|sent| sent.confirmed.is_some()).count() as u64;
    counts.sqs_received = queues.got.len() as u64;
    counts.sqs_deleted = queues.got.iter().filter(|got| queues.deleted(got).is_some()).count() as u64;
    counts.sqs_again =
        queues.by_number.values().map(|deliveries| deliveries.len().saturating_sub(1) as u64).sum();
}

/// I2: a delivery equals the message that was sent.
fn delivered(queues: &Queues, got: &Got, report: &mut Report) {
    let what = format!("{} message {}", got.queue, got.number);
    let Some(sent) = queues.sent.get(&got.number).filter(|sent| sent.queue == got.queue) else {
        return report.add(Promise::Unexpected, got.at, format!("{what} was never sent"));
    };
    if sent.confirmed.is_none() && sent.refused == sent.tries {
        report.add(Promise::Unexpected, got.at, format!("{what} was refused each time it was sent"));
    }
    if sent.content != got.content {
        report.add(Promise::Content, got.at, format!("{what} is not the one that was sent"));
    }
}

/// I1: in the end every confirmed message has been received, and is gone only by a delete.
fn finished(queues: &Queues, number: Number, sent: &Sent, report: &mut Report) {
    if sent.confirmed.is_none() {
        return;
    }
    let what = format!("{} message {number}", sent.queue);
    if !queues.by_number.contains_key(&number) {
        report.add(Promise::Lost, sent.at, format!("{what} was confirmed and never received"));
    } else if queues.delete_sent(number).is_none() {
        let is_empty = queues.queues.get(&sent.queue).is_some_and(|queue| queue.left == Some(0));
        if is_empty {
            report.add(Promise::Lost, sent.at, format!("{what} is gone, and no client deleted it"));
        }
    }
}

/// I11: a message has one id and one place, also if it was sent again because its outcome was unknown.
fn one_place(queues: &Queues, number: Number, sent: &Sent, report: &mut Report) {
    let deliveries = queues.by_number.get(&number).into_iter().flatten();
    let mut ids: Vec<(&str, Option<u64>)> = deliveries
        .map(|&index| (queues.got[index].id.as_str(), queues.got[index].seq))
        .chain(sent.ids.iter().map(|(id, seq)| (id.as_str(), *seq)))
        .collect();
    ids.sort_unstable();
    ids.dedup();
    if ids.len() > 1 {
        let what = format!("{} message {number} is there as {ids:?}", sent.queue);
        report.add(Promise::StoredTwice, sent.at, what);
    }
}

/// I3, I5, I8: a message is with one consumer at a time, does not come back after it was deleted, and its receives are
/// counted.
fn one_at_a_time(queues: &Queues, number: Number, deliveries: &[usize], report: &mut Report) {
    for (n, &first) in deliveries.iter().enumerate() {
        let first = &queues.got[first];
        let (until, deleted) = (queues.invisible_until(first), queues.deleted(first));
        for &second in &deliveries[n + 1..] {
            let second = &queues.got[second];
            let what = format!("{} message {number}", first.queue);
            // In the history the answers are in the order of time, and the receives need not be.
            if second.at + CLOCKS_AGREE < until && first.at < second.asked {
                let by = until - second.at;
                report.add(
                    Promise::Overlap,
                    second.at,
                    format!("{what} came again {by} us before it was visible"),
                );
            }
            if deleted.is_some_and(|at| at < second.asked) {
                report.add(Promise::CameBack, second.at, format!("{what} came again after it was deleted"));
            }
            if first.at < second.asked && second.count <= first.count {
                let what = format!("{what} came with count {} after {}", second.count, first.count);
                report.add(Promise::Attempts, second.at, what);
            }
        }
    }
}

/// I6: a message of a group of a FIFO queue comes only once those before it are deleted, or with them in one answer.
fn in_order(queues: &Queues, report: &mut Report) {
    let mut groups: BTreeMap<(&str, &str), BTreeMap<u64, Number>> = BTreeMap::new();
    for (&number, sent) in &queues.sent {
        let deliveries = queues.by_number.get(&number).into_iter().flatten();
        let seqs = deliveries.filter_map(|&index| queues.got[index].seq);
        let seq = sent.ids.iter().find_map(|(_, seq)| *seq).or_else(|| seqs.min());
        if let (Some(key), Some(seq)) = (&sent.key, seq) {
            groups.entry((&sent.queue, key)).or_default().insert(seq, number);
        }
    }
    for ((queue, key), messages) in groups {
        // Messages before the first that may still be there are gone for good, and need not be looked at again.
        let mut gone: BTreeMap<Number, Time> = BTreeMap::new();
        for &number in messages.values() {
            gone.extend(queues.delete_sent(number).map(|at| (number, at)));
        }
        for (&seq, &number) in &messages {
            for got in queues.by_number.get(&number).into_iter().flatten().map(|&index| &queues.got[index]) {
                let earlier = messages.range(..seq).rev();
                let mut open = earlier.filter(|(_, before)| gone.get(before).is_none_or(|at| *at > got.at));
                let skipped = open.find(|(_, before)| {
                    let is_stored = queues.sent[before].confirmed.is_some_and(|at| at < got.asked);
                    let same = queues.by_number.get(before).into_iter().flatten();
                    let mut same = same.map(|&index| &queues.got[index]);
                    is_stored && !same.any(|other| other.receive == got.receive)
                });
                if let Some((_, before)) = skipped {
                    let what =
                        format!("{queue} group {key}: message {number} came before {before} was deleted");
                    report.add(Promise::KeyOrder, got.at, what);
                }
            }
        }
    }
}
