//! Millions of messages in the way of what matters.
//!
//! The shard alone, in memory. Each case runs in a process of its own, so that memory is its own too.

use std::error::Error;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_core::entry::MessageMeta;
use forebay_core::group::Verb;
use forebay_core::settings::{GroupSettings, Retries, Strategy};
use forebay_core::types::{GroupId, KeyHash, Seq, Timestamp};

use crate::arguments::Arguments;
use crate::measure::Memory;
use crate::stage::{Stage, many_keys, plain};

type Case = fn(Option<u64>) -> Result<(), Box<dyn Error>>;

const CASES: [(&str, Case); 8] = [
    ("stuck-key-seen", |messages| stuck_key(messages, true)),
    ("stuck-key-read", |messages| stuck_key(messages, false)),
    ("priority", |messages| priority(messages, Strategy::RoundRobin)),
    ("priority-pinned", |messages| priority(messages, Strategy::Pinned)),
    ("priority-ordered", |messages| priority(messages, Strategy::Ordered)),
    ("delayed", delayed),
    ("outage", |messages| outage(messages, Strategy::RoundRobin)),
    ("outage-ordered", |messages| outage(messages, Strategy::Ordered)),
];

const IN_THE_WAY: u64 = 5_000_000;

pub(crate) fn run(mut arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let only: Option<String> = arguments.take("only")?;
    let messages: Option<u64> = arguments.take("messages")?;
    arguments.finish()?;
    if let Some(only) = only {
        let case = CASES.iter().find(|(name, _)| *name == only);
        let (_, case) = case.ok_or_else(|| format!("no such case. case=`{only}`"))?;
        return case(messages);
    }
    for (name, _) in CASES {
        let mut child = Command::new(std::env::current_exe()?);
        child.args(["deep", "--only", name]);
        if let Some(messages) = messages {
            child.args(["--messages", &messages.to_string()]);
        }
        let status = child.status()?;
        if !status.success() {
            return Err(format!("`{name}` failed ({status})").into());
        }
    }
    Ok(())
}

fn mebibytes() -> Result<f64, Box<dyn Error>> {
    Ok(Memory::now()?.resident as f64 / 1_024.0)
}

/// The key that is stuck comes first; those behind it are of others.
fn stuck_message(seq: Seq) -> MessageMeta {
    let behind = seq.0 > stuck_count();
    let key = if behind { KeyHash(seq.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)) } else { KeyHash(7) };
    MessageMeta { key: Some(key), ..plain(seq) }
}

static STUCK: AtomicU64 = AtomicU64::new(IN_THE_WAY);

fn stuck_count() -> u64 {
    STUCK.load(Ordering::Relaxed)
}

/// Messages of other keys that come behind.
const OTHERS: u64 = 10_000;

/// `live`: the group sees the messages come. Otherwise they are there before it, and it reads past them.
fn stuck_key(messages: Option<u64>, live: bool) -> Result<(), Box<dyn Error>> {
    STUCK.store(messages.unwrap_or(IN_THE_WAY), Ordering::Relaxed);
    let before = mebibytes()?;
    let mut stage = Stage::new(stuck_message)?;
    let settings = GroupSettings {
        strategy: Strategy::Ordered,
        message_timeout: Duration::from_secs(86_400),
        ..GroupSettings::default()
    };
    let begin = |stage: &mut Stage| -> Result<GroupId, Box<dyn Error>> {
        let group = stage.group("workers", &settings)?;
        for _ in 0..4 {
            stage.join(group, 100)?;
        }
        Ok(group)
    };
    let mut group = None;
    if live {
        group = Some(begin(&mut stage)?);
        let mut left = stuck_count();
        while left > 0 {
            let some = left.min(1_000);
            stage.publish(some)?;
            stage.timed_turn();
            left -= some;
        }
        stage.settle_down();
        assert_eq!(stage.delivered.len(), 1, "one of the key goes, and the others wait for it");
    } else {
        stage.fill(stuck_count())?;
    }
    stage.fill(OTHERS)?;
    let watch = Instant::now();
    let group = match group {
        Some(group) => group,
        None => begin(&mut stage)?,
    };
    let (reads, turns) = (stage.reads, stage.turns);
    let mut first = None;
    let mut handed = 0;
    loop {
        stage.timed_turn();
        let of_others = |stage: &Stage| stage.delivered.iter().any(|run| run.seqs.last.0 > stuck_count());
        if first.is_none() && of_others(&stage) {
            first = Some(watch.elapsed());
        }
        // The first message is never settled.
        handed += stage.answer(|seq| seq.0 > 1, &Verb::Ack.into());
        if handed >= OTHERS {
            break;
        }
        if !stage.is_busy() && stage.delivered.is_empty() {
            let status = stage.figures(group)?.status;
            println!("stuck key: STOPPED after {handed} of {OTHERS}, {status:?}");
            return Ok(());
        }
    }
    let all = watch.elapsed();
    let figures = stage.figures(group)?;
    assert_eq!((figures.lag, figures.in_flight), (stuck_count(), 1), "only the key waits");
    println!(
        "stuck key, {} of it in front, {}: first of {OTHERS} others after {:.1} ms, all after {:.1} ms \
         ({} turns, {} reads; longest turn {:.0} µs, read {:.0} µs), {:+.1} MiB",
        stuck_count(),
        if live { "seen as they came" } else { "read past" },
        first.unwrap_or(all).as_secs_f64() * 1e3,
        all.as_secs_f64() * 1e3,
        stage.turns - turns,
        stage.reads - reads,
        stage.longest.turn.wall.as_secs_f64() * 1e6,
        stage.longest.read.wall.as_secs_f64() * 1e6,
        mebibytes()? - before,
    );
    Ok(())
}

fn priority(messages: Option<u64>, strategy: Strategy) -> Result<(), Box<dyn Error>> {
    let messages = messages.unwrap_or(IN_THE_WAY);
    let before = mebibytes()?;
    let mut stage = Stage::new(many_keys)?;
    let group = stage.group("workers", &GroupSettings { strategy, ..GroupSettings::default() })?;
    stage.join(group, 10)?;
    stage.fill(messages)?;
    stage.settle_down();
    let urgent = stage.last().next();
    stage.publish_one(MessageMeta { priority: 9, ..many_keys(urgent) })?;
    let watch = Instant::now();
    let mut passed = 0;
    while passed < 100_000 {
        passed += stage.answer_all(&Verb::Ack.into());
        stage.timed_turn();
        if stage.delivered.iter().any(|run| run.seqs.contains(urgent)) {
            break;
        }
    }
    let before_it: u64 = {
        let ahead = stage.delivered.iter().take_while(|run| !run.seqs.contains(urgent));
        ahead.map(|run| run.seqs.count()).sum()
    };
    let went = stage.delivered.iter().any(|run| run.seqs.contains(urgent));
    println!(
        "priority 9 behind {messages}, {strategy:?}: {} ({before_it} went before it, after {:.0} µs), {:+.1} MiB",
        if went { "went with the next delivery" } else { "MISSED: did not go within 100,000 messages" },
        watch.elapsed().as_secs_f64() * 1e6,
        mebibytes()? - before,
    );
    Ok(())
}

/// All are due within the same minute.
fn delayed_message(seq: Seq) -> MessageMeta {
    let due = Timestamp(1_700_000_000_000_000) + Duration::from_secs(3_600);
    let spread = Duration::from_micros(seq.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 60_000_000);
    MessageMeta { not_before: Some(due + spread), ..plain(seq) }
}

fn delayed(messages: Option<u64>) -> Result<(), Box<dyn Error>> {
    let messages = messages.unwrap_or(1_000_000);
    const GROUPS: u64 = 10;
    let mut stage = Stage::new(delayed_message)?;
    let mut groups = Vec::new();
    for n in 0..GROUPS {
        let settings = GroupSettings::default();
        let group = stage.group(&format!("workers-{n}"), &settings)?;
        stage.join(group, 1_000)?;
        groups.push(group);
    }
    stage.settle_down();
    let before = mebibytes()?;
    stage.fill(messages)?;
    stage.settle_down();
    assert!(stage.delivered.is_empty(), "nothing goes before its time");
    println!(
        "{messages} delayed, seen by {GROUPS} groups: {:+.1} MiB while they wait",
        mebibytes()? - before
    );
    stage.longest = crate::stage::Longest::default();
    stage.passes(Duration::from_secs(3_700));
    let watch = Instant::now();
    let mut handed = 0;
    loop {
        stage.timed_turn();
        let some = stage.answer_all(&Verb::Ack.into());
        handed += some;
        if some == 0 && !stage.is_busy() {
            break;
        }
    }
    let took = watch.elapsed();
    assert_eq!(handed, messages * GROUPS, "every group gets every message");
    for group in groups {
        assert_eq!(stage.figures(group)?.lag, 0);
    }
    println!(
        "all due: {handed} handed out and acked in {:.2} s, {:.2} M a second, longest turn {:.0} µs, \
         longest read {:.0} µs; {:+.1} MiB then",
        took.as_secs_f64(),
        handed as f64 / took.as_secs_f64() / 1e6,
        stage.longest.turn.wall.as_secs_f64() * 1e6,
        stage.longest.read.wall.as_secs_f64() * 1e6,
        mebibytes()? - before,
    );
    Ok(())
}

/// An hour in which every message fails, while a thousand more come every second.
fn outage(messages: Option<u64>, strategy: Strategy) -> Result<(), Box<dyn Error>> {
    const STEP: Duration = Duration::from_millis(100);
    const WINDOW: u32 = 10_000;
    // A smaller version is a shorter outage.
    const EACH_STEP: u64 = 100;
    let steps = messages.map_or(36_000, |messages| messages / EACH_STEP);
    let mut stage = Stage::new(many_keys)?;
    let settings = GroupSettings {
        strategy,
        window_max: WINDOW,
        max_retries: Retries::Unlimited,
        ..GroupSettings::default()
    };
    let group = stage.group("workers", &settings)?;
    for _ in 0..4 {
        stage.join(group, 250)?;
    }
    let (mut most, mut failed) = (0, 0);
    let mut memory = Vec::new();
    for step in 0..steps {
        stage.passes(STEP);
        stage.publish(EACH_STEP)?;
        for _ in 0..100 {
            stage.timed_turn();
            failed += stage.answer_all(&Verb::Retry { delay: None }.into());
            if !stage.is_busy() && stage.delivered.is_empty() {
                break;
            }
        }
        let figures = stage.figures(group)?;
        most = most.max(figures.waiting + figures.in_flight + figures.ready);
        if step % (steps / 6) == steps / 6 - 1 {
            memory.push(format!("{:.1}", mebibytes()?));
        }
    }
    let figures = stage.figures(group)?;
    println!(
        "outage of {:?}, {strategy:?}: {} came, {failed} failures, at most {most} in process of {WINDOW} \
         ({}), {:?}; MiB at each sixth of it: {}; longest turn {:.0} µs",
        STEP * steps as u32,
        stage.last(),
        if most <= u64::from(WINDOW) { "met" } else { "MISSED" },
        figures.status,
        memory.join(", "),
        stage.longest.turn.wall.as_secs_f64() * 1e6,
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_comes_to_its_end() -> Result<(), Box<dyn Error>> {
        for (_, case) in CASES {
            case(Some(40_000))?;
        }
        Ok(())
    }
}
