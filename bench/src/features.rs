//! What a message costs with each feature in use, beside one that uses none, in the same run: the shard
//! alone, batches of 64.

use std::error::Error;
use std::time::Duration;

use forebay_core::entry::MessageMeta;
use forebay_core::group::Verb;
use forebay_core::settings::{Fairness, GroupSettings, Strategy, StreamSettings};
use forebay_core::shard::Start;
use forebay_core::types::{GroupName, Seq, StreamName};

use crate::cost::{ROUNDS, Subject, rate_of};
use crate::measure::median;
use crate::stage::{Stage, many_keys, plain};

const BATCH: u64 = 64;
/// Slots of all consumers together.
const SLOTS: u32 = 4_096;
const CONSUMERS: u32 = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Feature {
    Plain,
    Ordered,
    Pinned,
    Fair,
    TenGroups,
    Priorities,
    Backlog(u64),
    IdleGroups,
}

const FEATURES: [Feature; 9] = [
    Feature::Plain,
    Feature::Ordered,
    Feature::Pinned,
    Feature::Fair,
    Feature::TenGroups,
    Feature::Priorities,
    Feature::Backlog(10_000),
    Feature::Backlog(10_000_000),
    Feature::IdleGroups,
];

/// Streams with idle groups, and groups of each.
const IDLE_STREAMS: u32 = 40;
const IDLE_GROUPS: u32 = 250;

impl Feature {
    fn name(self) -> String {
        match self {
            Feature::Plain => "plain".to_owned(),
            Feature::Ordered => "ordered by 100,000 keys".to_owned(),
            Feature::Pinned => "pinned, 100,000 keys".to_owned(),
            Feature::Fair => "fairness by key, 100,000 keys".to_owned(),
            Feature::TenGroups => "ten groups on one stream, each gets it".to_owned(),
            Feature::Priorities => "priorities in use, 0 to 9".to_owned(),
            Feature::Backlog(messages) => format!("behind a backlog of {messages}"),
            Feature::IdleGroups => "beside 10,000 idle groups".to_owned(),
        }
    }

    fn message(self) -> fn(Seq) -> MessageMeta {
        match self {
            Feature::Ordered | Feature::Pinned | Feature::Fair => many_keys,
            Feature::Priorities => |seq| MessageMeta { priority: (seq.0 % 10) as u8, ..plain(seq) },
            _ => plain,
        }
    }

    fn settings(self) -> GroupSettings {
        let mut settings = GroupSettings::default();
        match self {
            Feature::Ordered => settings.strategy = Strategy::Ordered,
            Feature::Pinned => settings.strategy = Strategy::Pinned,
            Feature::Fair => settings.fairness = Fairness::Key,
            _ => {}
        }
        settings
    }
}

struct Featured {
    feature: Feature,
    stage: Stage,
    /// How often each message is handed out.
    groups: u64,
}

impl Featured {
    fn new(feature: Feature) -> Result<Featured, Box<dyn Error>> {
        let mut stage = Stage::new(feature.message())?;
        if let Feature::Backlog(messages) = feature {
            stage.fill(messages)?;
        }
        let groups = if feature == Feature::TenGroups { 10 } else { 1 };
        // Behind a backlog as much is to be handed out as comes in.
        let slots = if matches!(feature, Feature::Backlog(_)) { BATCH as u32 } else { SLOTS };
        for n in 0..groups {
            let group = stage.group(&format!("workers-{n}"), &feature.settings())?;
            for _ in 0..CONSUMERS {
                stage.join(group, slots / CONSUMERS)?;
            }
        }
        if feature == Feature::IdleGroups {
            add_idle_groups(&mut stage)?;
        }
        while stage.is_busy() {
            stage.turn();
        }
        Ok(Featured { feature, stage, groups })
    }
}

fn add_idle_groups(stage: &mut Stage) -> Result<(), Box<dyn Error>> {
    for n in 0..IDLE_STREAMS {
        let name = StreamName::parse(&format!("idle-{n}"))?;
        let stream = stage.shard.create_stream(stage.now, &name, &StreamSettings::default())?;
        for m in 0..IDLE_GROUPS {
            let name = GroupName::parse(&format!("group-{m}"))?;
            let settings = GroupSettings::default();
            let group = stage.shard.create_group(stage.now, stream, &name, &settings, Start::Beginning)?;
            stage.join(group, 100)?;
        }
    }
    Ok(())
}

impl Subject for Featured {
    fn name(&self) -> String {
        self.feature.name()
    }

    fn batch(&self) -> u64 {
        BATCH
    }

    fn run(&mut self, messages: u64) -> Result<(), Box<dyn Error>> {
        let stage = &mut self.stage;
        for _ in 0..messages / BATCH {
            stage.now.0 += 10;
            stage.publish(BATCH)?;
            stage.turn();
            // Ten groups have more to do than one turn allows.
            let mut acked = 0;
            loop {
                acked += stage.answer_all(&Verb::Ack.into());
                stage.turn();
                if acked >= BATCH * self.groups {
                    break;
                }
                assert!(stage.is_busy() || !stage.delivered.is_empty(), "a cycle delivers what it published");
            }
        }
        Ok(())
    }
}

/// Measures all features in turns, and prints medians.
pub(crate) fn compare(each: Duration) -> Result<(), Box<dyn Error>> {
    let mut subjects = FEATURES.into_iter().map(Featured::new).collect::<Result<Vec<_>, _>>()?;
    let slice = each / ROUNDS;
    let mut rates = vec![Vec::new(); subjects.len()];
    let mut ratios = vec![Vec::new(); subjects.len()];
    // The first round warms up and does not count.
    for round in 0..=ROUNDS {
        let mut standard = 0.0;
        for (n, subject) in subjects.iter_mut().enumerate() {
            let rate = rate_of(slice, subject)?;
            if subject.feature == Feature::Plain {
                standard = rate.cpu;
            }
            if round > 0 {
                rates[n].push(rate.wall);
                ratios[n].push(rate.cpu / standard);
            }
        }
    }
    println!("the shard alone, batches of {BATCH}, {CONSUMERS} consumers a group");
    println!("{:44} {:>11} {:>15}", "", "msg/s", "ratio to plain");
    for ((subject, rates), ratios) in subjects.iter().zip(&mut rates).zip(&mut ratios) {
        println!("{:44} {:>9.3} M {:>15.3}", subject.name(), median(rates) / 1e6, median(ratios));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_feature_hands_out_what_is_published() -> Result<(), Box<dyn Error>> {
        for feature in FEATURES.into_iter().filter(|feature| *feature != Feature::Backlog(10_000_000)) {
            let mut featured = Featured::new(feature)?;
            featured.run(64 * 50)?;
            let last = featured.stage.last();
            let backlog = if let Feature::Backlog(messages) = feature { messages } else { 0 };
            assert_eq!(last.0, backlog + 64 * 50);
            let group =
                featured.stage.shard.group_named(featured.stage.stream, &GroupName::parse("workers-0")?);
            let figures = featured.stage.figures(group.ok_or("no group")?)?;
            assert_eq!(figures.lag, backlog, "{feature:?}");
        }
        Ok(())
    }
}
