//! The longest turn of everything that could take long.
//!
//! Each case is set up, then requested, and then turns are made until no work is left. The report is the
//! longest single call into the shard: the request itself, the end of a turn, and taking in read messages.
//! Three repetitions, and of each kind of call the shortest of the three longest, since a neighbour on the
//! machine can make any turn long, but not the same one three times.
//!
//! Messages in process do not form runs: every other message is acked first. That is the worst case.

use std::error::Error;
use std::time::Duration;

use forebay_core::entry::{Selection, Work};
use forebay_core::group::{Departure, Settlement, Verb};
use forebay_core::settings::{GroupSettings, Retries, Strategy};
use forebay_core::shard::{Purge, Start};
use forebay_core::types::{ConsumerId, GroupId};

use crate::arguments::Arguments;
use crate::measure::Took;
use crate::stage::{Longest, Stage, many_keys, plain};

const BAR: Duration = Duration::from_micros(500);
const REPETITIONS: u32 = 3;

const LEASES: u64 = 10_000;
const IN_PROCESS: u64 = 100_000;
const PARKED: u64 = 1_000_000;
const DELAYED: u64 = 1_000_000;
/// What one consumer holds at most.
const SLOTS: u64 = 20_000;

type Case = fn(u64) -> Result<Stage, Box<dyn Error>>;

const CASES: [(&str, Case); 15] = [
    ("10,000 leases of a lost consumer", |n| lost(n, Some(10))),
    ("10,000 leases of a lost consumer, parked", |n| lost(n, Some(0))),
    ("10,000 leases lapse", |n| lapse(n, Some(10))),
    ("10,000 leases lapse, parked", |n| lapse(n, Some(0))),
    ("reset with 100,000 in process", reset),
    ("purge with 100,000 in process", purge),
    ("replay by reason, of 1,000,000 parked", |n| job(n, Work::Replay, true)),
    ("replay of 1,000,000 parked", |n| job(n, Work::Replay, false)),
    ("discard of 1,000,000 parked", |n| job(n, Work::Discard, false)),
    ("deleting a group with 1,000,000 parked", delete),
    ("1,000,000 messages due at once", due),
    ("round robin to ordered, 100,000 in process", |n| strategy(n, Strategy::Ordered)),
    ("round robin to pinned, 100,000 in process", |n| strategy(n, Strategy::Pinned)),
    ("a batch of 10,000 is stored", |n| arrive(n, |longest| longest.publish)),
    ("a batch of 10,000 comes to an ordered group", |n| arrive(n, |longest| longest.arrived)),
];

pub(crate) fn run(mut arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let only: Option<String> = arguments.take("only")?;
    let divide = arguments.number("divide", 1)?;
    arguments.finish()?;
    println!("{:44} {:>21} {:>21} {:>21}", "longest, of 3 the best: wall (CPU), µs", "call", "turn", "read");
    for (name, case) in CASES {
        if only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
            continue;
        }
        let mut best: Option<Longest> = None;
        let mut turns = 0;
        for _ in 0..REPETITIONS {
            let stage = case(divide)?;
            turns = stage.turns;
            best = Some(best.map_or(stage.longest, |best| best.best(stage.longest)));
        }
        let best = best.ok_or("nothing was measured")?;
        let micros = |took: Took| {
            format!("{:.0} ({:.0})", took.wall.as_secs_f64() * 1e6, took.cpu.as_secs_f64() * 1e6)
        };
        let verdict = match best.any() {
            any if any.wall <= BAR => "met",
            any if any.cpu <= BAR => "met in CPU time, a neighbour took the rest",
            _ => "MISSED",
        };
        println!(
            "{name:44} {:>21} {:>21} {:>21}  {verdict}: at most {BAR:?}; {turns} turns",
            micros(best.call),
            micros(best.turn),
            micros(best.read),
        );
    }
    Ok(())
}

fn settings(retries: Option<u32>) -> GroupSettings {
    GroupSettings {
        max_retries: retries.map_or(Retries::Unlimited, Retries::AtMost),
        window_max: 400_000,
        max_in_flight: 400_000,
        parked_max: 2_000_000,
        message_timeout: Duration::from_secs(3_600),
        ..GroupSettings::default()
    }
}

/// A group in which so many messages are leased, each by itself.
fn in_process(messages: u64, settings: &GroupSettings) -> Result<(Stage, GroupId), Box<dyn Error>> {
    let mut stage = Stage::new(many_keys)?;
    let group = stage.group("workers", settings)?;
    for _ in 0..(2 * messages).div_ceil(SLOTS) {
        stage.join(group, SLOTS as u32)?;
    }
    stage.fill(2 * messages)?;
    stage.settle_down();
    for consumer in 1..=(2 * messages).div_ceil(SLOTS) {
        let credit = forebay_core::group::Credit::slots(0);
        stage.shard.credit(stage.now, group, ConsumerId(consumer), credit)?;
    }
    stage.answer(|seq| seq.0 % 2 == 0, &Verb::Ack.into());
    stage.settle_down();
    let figures = stage.figures(group)?;
    assert_eq!(figures.in_flight, messages, "every other message is leased");
    measure_from_here(&mut stage);
    Ok((stage, group))
}

fn measure_from_here(stage: &mut Stage) {
    stage.longest = Longest::default();
    stage.turns = 0;
}

fn lost(divide: u64, retries: Option<u32>) -> Result<Stage, Box<dyn Error>> {
    let (mut stage, group) = in_process(LEASES / divide, &settings(retries))?;
    stage.call(|shard, _| shard.leave(group, ConsumerId(1), Departure::Lost));
    stage.settle_down();
    assert_eq!(stage.figures(group)?.in_flight, 0, "nobody holds anything any more");
    Ok(stage)
}

fn lapse(divide: u64, retries: Option<u32>) -> Result<Stage, Box<dyn Error>> {
    let (mut stage, group) = in_process(LEASES / divide, &settings(retries))?;
    stage.passes(Duration::from_secs(3_601));
    stage.settle_down();
    assert_eq!(stage.figures(group)?.in_flight, 0, "nobody holds anything any more");
    Ok(stage)
}

fn reset(divide: u64) -> Result<Stage, Box<dyn Error>> {
    let (mut stage, group) = in_process(IN_PROCESS / divide, &settings(None))?;
    stage.call(|shard, now| shard.reset(now, group, Start::End, false))?;
    stage.settle_down();
    assert_eq!(stage.figures(group)?.lag, 0, "nothing is left");
    Ok(stage)
}

fn purge(divide: u64) -> Result<Stage, Box<dyn Error>> {
    let (mut stage, group) = in_process(IN_PROCESS / divide, &settings(None))?;
    let stream = stage.stream;
    stage.call(|shard, now| shard.purge(now, stream, Purge::default()))?;
    stage.settle_down();
    assert_eq!(stage.figures(group)?.lag, 0, "nothing is left");
    Ok(stage)
}

/// A group with parked messages, for two reasons in turn.
fn parked(messages: u64) -> Result<(Stage, GroupId), Box<dyn Error>> {
    let mut stage = Stage::new(plain)?;
    let group = stage.group("workers", &settings(None))?;
    let consumer = stage.join(group, SLOTS as u32)?;
    let reason = |reason: &str| Settlement { reason: Some(reason.to_owned()), ..Verb::Park.into() };
    let mut left = messages;
    while left > 0 {
        let some = left.min(10_000);
        stage.publish(some)?;
        stage.settle_down();
        let again = stage.delivered.clone();
        stage.answer(|seq| seq.0 % 2 == 0, &reason("no such address"));
        stage.delivered = again;
        stage.answer(|seq| seq.0 % 2 == 1, &reason("mailbox full"));
        stage.settle_down();
        left -= some;
    }
    stage.shard.leave(group, consumer, Departure::Goodbye);
    stage.settle_down();
    assert_eq!(stage.figures(group)?.parked, messages, "all are parked");
    measure_from_here(&mut stage);
    Ok((stage, group))
}

fn job(divide: u64, work: Work, by_reason: bool) -> Result<Stage, Box<dyn Error>> {
    let (mut stage, group) = parked(PARKED / divide)?;
    let selection = if by_reason { Selection::Reason("mailbox full".into()) } else { Selection::All };
    let (_, matched) = stage.call(|shard, now| shard.start_job(now, group, work, selection, None, None))?;
    stage.settle_down();
    assert_eq!(stage.figures(group)?.parked + matched, PARKED / divide, "the job has done its work");
    Ok(stage)
}

fn delete(divide: u64) -> Result<Stage, Box<dyn Error>> {
    let (mut stage, group) = parked(PARKED / divide)?;
    stage.call(|shard, _| shard.delete_group(group))?;
    stage.settle_down();
    Ok(stage)
}

fn due(divide: u64) -> Result<Stage, Box<dyn Error>> {
    let mut stage = Stage::new(|seq| {
        let not_before =
            Some(forebay_core::types::Timestamp(1_700_000_000_000_000) + Duration::from_secs(60));
        forebay_core::entry::MessageMeta { not_before, ..plain(seq) }
    })?;
    let group = stage.group("workers", &settings(None))?;
    stage.join(group, SLOTS as u32)?;
    stage.fill(DELAYED / divide)?;
    stage.settle_down();
    assert!(stage.delivered.is_empty(), "nothing goes before its time");
    measure_from_here(&mut stage);
    stage.passes(Duration::from_secs(61));
    loop {
        stage.settle_down();
        if stage.answer_all(&Verb::Ack.into()) == 0 {
            break;
        }
    }
    assert_eq!(stage.figures(group)?.lag, 0, "all were handed out");
    Ok(stage)
}

fn strategy(divide: u64, strategy: Strategy) -> Result<Stage, Box<dyn Error>> {
    let before = settings(None);
    let (mut stage, group) = in_process(IN_PROCESS / divide, &before)?;
    let after = GroupSettings { strategy, ..before };
    stage.call(|shard, now| shard.change_group(now, group, &after))?;
    stage.settle_down();
    assert_eq!(stage.figures(group)?.in_flight, IN_PROCESS / divide, "leases stay as they are");
    Ok(stage)
}

/// Batches as large as they may be come to an ordered group that keeps up.
fn arrive(divide: u64, which: fn(&Longest) -> Took) -> Result<Stage, Box<dyn Error>> {
    let mut stage = Stage::new(many_keys)?;
    let ordered = GroupSettings { strategy: Strategy::Ordered, ..settings(None) };
    let group = stage.group("workers", &ordered)?;
    stage.join(group, SLOTS as u32)?;
    stage.settle_down();
    measure_from_here(&mut stage);
    stage.times_publish = true;
    for _ in 0..20 {
        stage.publish(LEASES / divide)?;
        loop {
            stage.timed_turn();
            if stage.answer_all(&Verb::Ack.into()) == 0 && !stage.is_busy() {
                break;
            }
        }
    }
    assert_eq!(stage.figures(group)?.lag, 0, "all were handed out");
    stage.longest.call = which(&stage.longest);
    Ok(stage)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_comes_to_its_end() -> Result<(), Box<dyn Error>> {
        for (_, case) in CASES {
            case(100)?;
        }
        Ok(())
    }
}
