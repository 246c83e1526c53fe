//! Who held what: one at a time, given again only for a reason, counted right, and answered right.

use super::record::{Action, Answer, Delivery, Ending, Group, Leaving, Outcome, Record, Session, Settle};
use super::{CLOCKS_AGREE, Promise, Reason, Report};
use crate::history::Time;

/// A broken connection is noticed by both ends within this time of each other.
const NOTICED_WITHIN: Time = 5_000_000;

pub(super) fn check(record: &Record, report: &mut Report) {
    for ((name, _), indices) in &record.by_message {
        let Some(group) = record.groups.get(name) else { continue };
        let deliveries: Vec<&Delivery> = indices.iter().map(|&index| &record.deliveries[index]).collect();
        for (index, &delivery) in deliveries.iter().enumerate() {
            let earlier = &deliveries[..index];
            overlaps(record, earlier, delivery, report);
            attempts(record, group, earlier, delivery, report);
            if let Some(last) = earlier.last() {
                again(record, group, last, delivery, report);
            }
            for (place, settle) in delivery.settles.iter().enumerate() {
                let before = &delivery.settles[..place];
                answers(record, group, delivery, before, settle, report);
                stale(delivery, settle, &deliveries[index + 1..], report);
            }
        }
    }
    for session in record.sessions.values() {
        credit(record, session, report);
    }
}

fn named(delivery: &Delivery) -> String {
    format!("{} {}#{} (message {})", delivery.group, delivery.seq, delivery.attempt, delivery.number)
}

/// The earliest deadline that the lease may have had after these settlements.
fn deadline(record: &Record, delivery: &Delivery, settles: &[Settle]) -> Time {
    let mut deadline = delivery.deadline;
    for settle in settles.iter().filter(|settle| settle.action == Action::Extend) {
        let Some(by) = settle.delay else { continue };
        let extended = settle.invoked + by;
        deadline = match settle.answer {
            Answer::Is(Outcome::Extended, at) if !record.may_be_forgotten(settle.run, at) => extended,
            Answer::Is(Outcome::Extended, _) | Answer::Unknown => deadline.min(extended),
            Answer::Is(..) | Answer::Refused => deadline,
        };
    }
    deadline.saturating_sub(CLOCKS_AGREE)
}

/// When the lease may have ended without an answer: by its deadline, its consumer or its server.
fn lapsed(record: &Record, delivery: &Delivery, settles: &[Settle]) -> Time {
    let mut end = deadline(record, delivery, settles);
    if let Some(session) = delivery.session {
        let left = record.sessions.get(&session).and_then(|session| session.end).map(|end| end.at);
        let run = record.run_end(delivery.run).map(|end| end.at);
        end = [left, run].into_iter().flatten().fold(end, Time::min);
    }
    end
}

/// When a client first asked to end the lease, if that may have counted.
fn asked_to_end(settles: &[Settle]) -> Option<Time> {
    let ends = |settle: &&Settle| {
        let counts = !matches!(settle.answer, Answer::Is(Outcome::NotYours, _) | Answer::Refused);
        counts && settle.action != Action::Extend
    };
    settles.iter().find(ends).map(|settle| settle.invoked)
}

/// The first moment at which the consumer may not have held the message any more.
fn held_until(record: &Record, delivery: &Delivery) -> Time {
    let lapsed = lapsed(record, delivery, &delivery.settles);
    asked_to_end(&delivery.settles).map_or(lapsed, |asked| asked.min(lapsed))
}

/// I3: while a consumer holds a message no other consumer does.
fn overlaps(record: &Record, earlier: &[&Delivery], delivery: &Delivery, report: &mut Report) {
    let until = held_until(record, delivery);
    for other in earlier {
        let other_until = held_until(record, other);
        if other.at.max(delivery.at) < other_until.min(until) {
            let what = format!(
                "{} is held from {} to {other_until}, and {} from {} to {until}",
                named(other),
                other.at,
                named(delivery),
                delivery.at
            );
            report.add(Promise::Overlap, delivery.at, what);
        }
    }
}

/// Whether a replay of parked messages was requested between the two deliveries.
fn replayed(record: &Record, last: &Delivery, delivery: &Delivery) -> bool {
    let mut replays = record.replays.get(&delivery.group).into_iter().flatten();
    replays.any(|at| last.at <= *at && *at <= delivery.at)
}

/// A second delivery needs a reason, and a settled message has no reason.
fn again(record: &Record, group: &Group, last: &Delivery, delivery: &Delivery, report: &mut Report) {
    // A settlement that was requested later is late, and is checked as late.
    let mut asked = last.settles.iter().filter(|settle| settle.invoked <= delivery.at);
    if let Some(settle) = asked.find(|settle| {
        matches!(settle.answer, Answer::Is(Outcome::Acked | Outcome::Skipped | Outcome::Parked, _))
    }) {
        let Answer::Is(outcome, at) = settle.answer else { return };
        let is_replay = outcome == Outcome::Parked && replayed(record, last, delivery);
        let is_forgotten = record.may_be_forgotten(settle.run, at) && settle.run < delivery.run;
        let reason = if is_replay { Reason::Replay } else { Reason::Crash };
        if !is_replay && group.is_durable && outcome == Outcome::Acked {
            let what = format!("{} came after it was acked at {at}, durably", named(delivery));
            report.add(Promise::DurableAck, delivery.at, what);
        } else if !is_replay && !is_forgotten {
            let what = format!("{} came after it was {outcome:?} at {at}", named(delivery));
            report.add(Promise::CameBack, delivery.at, what);
        }
        *report.counts.duplicates.entry(reason).or_default() += 1;
        return;
    }
    let Some(reason) = reason(record, last, delivery) else {
        let what = format!(
            "{} came again at {}, and nobody gave {} back",
            named(delivery),
            delivery.at,
            named(last)
        );
        report.add(Promise::Duplicate, delivery.at, what);
        return;
    };
    too_soon(record, last, delivery, report);
    *report.counts.duplicates.entry(reason).or_default() += 1;
}

fn reason(record: &Record, last: &Delivery, delivery: &Delivery) -> Option<Reason> {
    if replayed(record, last, delivery) {
        return Some(Reason::Replay);
    }
    let nacked = |settle: &Settle| {
        let counts = matches!(settle.answer, Answer::Unknown | Answer::Is(Outcome::Retrying, _));
        counts && settle.action == Action::Retry && settle.invoked <= delivery.at
    };
    if last.settles.iter().any(nacked) {
        return Some(Reason::Nack);
    }
    if let Some(session) = last.session {
        let end = record.run_end(last.run).filter(|_| last.run < delivery.run);
        if let Some(end) = end {
            return Some(if end.how == Ending::Killed { Reason::Crash } else { Reason::Stop });
        }
        let left = record.sessions.get(&session).and_then(|session| session.end);
        if let Some(end) = left.filter(|end| end.at <= delivery.at) {
            return Some(if end.how == Leaving::Goodbye { Reason::Goodbye } else { Reason::Disconnect });
        }
    }
    let is_over = deadline(record, last, &last.settles) <= delivery.at;
    is_over.then_some(Reason::Expiry)
}

/// I12: who gives a message back for later does not see it sooner.
fn too_soon(record: &Record, last: &Delivery, delivery: &Delivery, report: &mut Report) {
    for settle in last.settles.iter().filter(|settle| settle.action == Action::Retry) {
        let (Some(delay), Some(at)) = (settle.delay, settle.answered(Outcome::Retrying)) else { continue };
        let forgotten = record.may_be_forgotten(settle.run, at) && settle.run < delivery.run;
        if !forgotten && delivery.at + CLOCKS_AGREE < settle.invoked + delay {
            let what = format!(
                "{} came at {}, and was given back at {} for {delay} us",
                named(delivery),
                delivery.at,
                settle.invoked
            );
            report.add(Promise::Early, delivery.at, what);
        }
    }
}

/// I8: attempts count the deliveries before, but those given back by a goodbye. A kill may lower the count by
/// leases that were not in the log yet; leases on the clock always are. Deliveries that were on their way when a connection
/// broke count, and no client saw them.
fn attempts(record: &Record, group: &Group, earlier: &[&Delivery], delivery: &Delivery, report: &mut Report) {
    let anew = earlier.iter().rposition(|other| replayed(record, other, delivery)).map_or(0, |at| at + 1);
    let is_anew = anew > 0;
    let earlier = &earlier[anew..];
    let mut least = 1;
    for other in earlier {
        let counts = other.session.is_none()
            || other.run == delivery.run
            || !record.may_be_forgotten(other.run, other.at);
        if counts {
            let left = other.session.and_then(|session| record.sessions.get(&session)?.end);
            let given_back = left.is_some_and(|end| end.how == Leaving::Goodbye);
            least = least.max(other.attempt + u32::from(!given_back));
        }
    }
    let most = earlier.iter().map(|other| other.attempt).max().unwrap_or(0) + 1;
    let since = earlier.last().map_or(0, |last| last.at);
    let too_many = delivery.attempt > most && delivery.attempt > most + unseen(record, delivery, since);
    // A message that was parked under an older count starts again only once the replay is done.
    if delivery.attempt < least || (too_many && !is_anew) {
        let what = format!("{}: expected {least} to {most}, or what nobody saw more", named(delivery));
        report.add(Promise::Attempts, delivery.at, what);
    }
    if let Some(retries) = group.retries {
        // A server that ends takes messages back from their last attempt, and that parks nothing.
        let ends = record.runs.values().filter_map(|run| run.end).filter(|end| end.at <= delivery.at).count();
        if delivery.attempt > retries + 1 + ends as u32 {
            let what = format!("{}: more than {retries} retries", named(delivery));
            report.add(Promise::Attempts, delivery.at, what);
        }
    }
}

/// How many deliveries may have been lost on their way since then.
fn unseen(record: &Record, delivery: &Delivery, since: Time) -> u32 {
    let may_hide = |from: Time, until: Time| {
        from <= delivery.at && since <= until && until <= delivery.at + NOTICED_WITHIN
    };
    let sessions = record.sessions.values().filter(|session| session.group == delivery.group);
    let sessions =
        sessions.filter(|session| session.end.is_some_and(|end| may_hide(session.opened, end.known)));
    let receives = record.lost_receives.get(&delivery.group).into_iter().flatten();
    let receives = receives.filter(|lost| may_hide(lost.invoked, lost.known));
    (sessions.count() + receives.count()) as u32
}

/// The outcome fits the request, counts while the lease is held, and is parked when no retries are left and not
/// before.
fn answers(
    record: &Record,
    group: &Group,
    delivery: &Delivery,
    before: &[Settle],
    settle: &Settle,
    report: &mut Report,
) {
    let (outcome, at) = match settle.answer {
        Answer::Unknown => return,
        Answer::Refused => {
            let what = format!("{}: {:?} was not understood", named(delivery), settle.action);
            report.add(Promise::Answer, settle.invoked, what);
            return;
        }
        Answer::Is(outcome, at) => (outcome, at),
    };
    if delivery.session.is_none() && settle.run != delivery.run && outcome != Outcome::NotYours {
        report.counts.clock_leases_settled_after_a_crash += 1;
    }
    let fits = match settle.action {
        Action::Ack => outcome == Outcome::Acked,
        Action::Retry => matches!(outcome, Outcome::Retrying | Outcome::Parked),
        Action::Park => outcome == Outcome::Parked,
        Action::Skip => outcome == Outcome::Skipped,
        Action::Extend => outcome == Outcome::Extended,
    };
    if outcome == Outcome::NotYours {
        let over = lapsed(record, delivery, before) <= at || asked_to_end(before).is_some();
        if !over {
            let what =
                format!("{}: {:?} was answered {outcome:?}, and it was held", named(delivery), settle.action);
            report.add(Promise::LeaseForgotten, at, what);
        }
    } else if !fits {
        let what = format!("{}: {:?} was answered {outcome:?}", named(delivery), settle.action);
        report.add(Promise::Answer, at, what);
    } else if settle.action == Action::Retry {
        let is_exhausted = group.retries.is_some_and(|retries| delivery.attempt > retries);
        if is_exhausted != (outcome == Outcome::Parked) {
            let what = format!("{}: a retry was answered {outcome:?}", named(delivery));
            report.add(Promise::Attempts, at, what);
        }
    }
}

/// I15: who answers after another has the message changes nothing.
fn stale(delivery: &Delivery, settle: &Settle, later: &[&Delivery], report: &mut Report) {
    let Answer::Is(outcome, at) = settle.answer else { return };
    let Some(other) = later.iter().find(|other| other.at < settle.invoked && other.run <= settle.run) else {
        return;
    };
    if outcome != Outcome::NotYours {
        let what = format!(
            "{}: {:?} was answered {outcome:?}, and {} had come at {}",
            named(delivery),
            settle.action,
            named(other),
            other.at
        );
        report.add(Promise::Stale, at, what);
    }
}

/// I7: a consumer holds no more than its credit.
fn credit(record: &Record, session: &Session, report: &mut Report) {
    let mut held: Vec<Time> = Vec::new();
    for delivery in session.deliveries.iter().map(|&index| &record.deliveries[index]) {
        held.retain(|until| *until > delivery.at);
        held.push(held_until(record, delivery));
        if held.len() > session.credit {
            let what = format!(
                "{}: a consumer with credit {} holds {}",
                named(delivery),
                session.credit,
                held.len()
            );
            report.add(Promise::Credit, delivery.at, what);
        }
    }
}
