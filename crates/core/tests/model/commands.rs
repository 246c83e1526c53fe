//! What may happen, chosen by chance so that it shrinks to something short.

use std::time::Duration;

use forebay_core::pace::Rate;
use forebay_core::settings::{
    Acks, Backoff, Checkpoint, Fairness, GroupSettings, KeyLock, OnEnd, OnExhausted, OnFull, OnParkedKey,
    Retention, Retries, Strategy as Sharing, StreamSettings,
};
use forebay_core::shard::Purge;
use forebay_core::types::StreamName;
use proptest::prelude::*;

/// A message as a command asks for it; zero means absent in all of these.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wish {
    pub(crate) key: u8,
    pub(crate) priority: u8,
    pub(crate) delay: u64,
    pub(crate) ttl: u64,
    pub(crate) id: u8,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Amount {
    Slots(u32),
    Bytes(u32, u64),
    /// Messages, bytes, and milliseconds that the leases last.
    Once(u32, Option<u64>, Option<u64>),
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Answer {
    Ack,
    LateAck,
    Nack,
    NackIn(u64),
    Park(u8),
    Skip,
    Return,
    ReturnFor(u64),
    Rest(u64),
    Move(u8),
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum To {
    Beginning,
    End,
    At(u64),
    Ago(u64),
}

/// What a job does with parked messages.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Triage {
    Replay,
    Discard,
    Move,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Which {
    All,
    Reason(u8),
    Seqs(u64, u64),
}

#[derive(Debug, Clone)]
pub(crate) enum Command {
    Publish {
        stream: u8,
        wishes: Vec<Wish>,
        expect: Option<u64>,
        stamp: Option<(u8, u32, i8)>,
    },
    Join {
        group: u8,
        slot: u8,
        clock: bool,
        credit: Amount,
        /// Its rank, and the length of its leases in milliseconds.
        terms: (i32, Option<u64>),
    },
    Credit {
        group: u8,
        slot: u8,
        credit: Amount,
    },
    Leave {
        group: u8,
        slot: u8,
        goodbye: bool,
    },
    /// Leases are chosen counting back from the last one given.
    Settle {
        back: u16,
        count: u8,
        answer: Answer,
    },
    /// Acks leases and publishes together.
    Bundle {
        back: u16,
        count: u8,
        stream: u8,
        wishes: Vec<Wish>,
    },
    /// Acks all leased messages.
    AckAll {
        group: u8,
    },
    Extend {
        back: u16,
        by: u64,
        /// How long it may last altogether.
        total: Option<u64>,
    },
    Pass {
        millis: u64,
    },
    /// Time passes until the shard wants to be called.
    PassToWake,
    Pause {
        group: u8,
        paused: bool,
    },
    Change {
        group: u8,
        settings: GroupSettings,
    },
    ChangeStream {
        stream: u8,
        settings: StreamSettings,
    },
    Reset {
        group: u8,
        to: To,
        parked: bool,
    },
    Purge {
        stream: u8,
        purge: Purge,
    },
    Truncate {
        stream: u8,
        /// How far before the end of the stream.
        back: u8,
    },
    PurgeReady {
        stream: u8,
    },
    /// Only if it is empty, and only tried if it is not.
    DeleteEmpty {
        stream: u8,
    },
    Job {
        group: u8,
        work: Triage,
        which: Which,
        limit: Option<u64>,
        rate: Option<u32>,
    },
    Move {
        group: u8,
        back: bool,
        rate: Option<u32>,
    },
    Cancel {
        group: u8,
        back: u8,
    },
    Resubmit {
        group: u8,
        nth: u8,
    },
    Delete {
        group: u8,
    },
    Create {
        group: u8,
        settings: GroupSettings,
        to: To,
    },
    PutNote {
        key: u8,
        expected: u8,
        ttl: u64,
    },
    RemoveNote {
        key: u8,
        expected: u8,
    },
    Reader {
        stream: u8,
        name: u8,
        seq: Option<u64>,
    },
    Release,
    CheckPoint,
    TakeParts {
        count: u8,
    },
    Crash {
        image: bool,
    },
}

#[derive(Debug, Clone)]
pub(crate) struct Setup {
    pub(crate) streams: [StreamSettings; 2],
    pub(crate) group: GroupSettings,
}

pub(crate) fn setup() -> impl Strategy<Value = Setup> {
    (stream_settings(), stream_settings(), group_settings())
        .prop_map(|(one, other, group)| Setup { streams: [one, other], group })
}

/// A command, and whether the turn goes on after it.
pub(crate) fn command() -> impl Strategy<Value = (Command, bool)> {
    let group = || prop_oneof![4 => Just(0u8), 1 => 1u8..3];
    let stream = || prop_oneof![4 => Just(0u8), 1 => Just(1u8)];
    let slot = 0u8..4;
    let command = prop_oneof![
        22 => (stream(), prop::collection::vec(wish(), 1..8), expect(), stamp())
            .prop_map(|(stream, wishes, expect, stamp)| Command::Publish { stream, wishes, expect, stamp }),
        10 => (group(), slot.clone(), any::<bool>(), amount(), terms())
            .prop_map(|(group, slot, clock, credit, terms)| Command::Join { group, slot, clock, credit, terms }),
        6 => (group(), slot.clone(), amount())
            .prop_map(|(group, slot, credit)| Command::Credit { group, slot, credit }),
        4 => (group(), slot, any::<bool>())
            .prop_map(|(group, slot, goodbye)| Command::Leave { group, slot, goodbye }),
        24 => (prop_oneof![3 => 0u16..6, 1 => 0u16..60], 1u8..5, answer())
            .prop_map(|(back, count, answer)| Command::Settle { back, count, answer }),
        4 => (0u16..8, 1u8..4, stream(), prop::collection::vec(wish(), 1..4))
            .prop_map(|(back, count, stream, wishes)| Command::Bundle { back, count, stream, wishes }),
        4 => group().prop_map(|group| Command::AckAll { group }),
        2 => (0u16..20, prop::sample::select(vec![0u64, 500, 60_000]), prop::option::of(Just(30_000u64)))
            .prop_map(|(back, by, total)| Command::Extend { back, by, total }),
        8 => prop::sample::select(vec![1u64, 50, 200, 1_000, 10_000, 35_000, 300_000])
            .prop_map(|millis| Command::Pass { millis }),
        8 => Just(Command::PassToWake),
        2 => (group(), any::<bool>()).prop_map(|(group, paused)| Command::Pause { group, paused }),
        2 => (group(), group_settings()).prop_map(|(group, settings)| Command::Change { group, settings }),
        1 => (stream(), stream_settings())
            .prop_map(|(stream, settings)| Command::ChangeStream { stream, settings }),
        1 => (group(), to(), any::<bool>())
            .prop_map(|(group, to, parked)| Command::Reset { group, to, parked }),
        1 => (stream(), any::<bool>(), any::<bool>())
            .prop_map(|(stream, parked, ids)| Command::Purge { stream, purge: Purge { parked, ids } }),
        1 => (stream(), 0u8..20).prop_map(|(stream, back)| Command::Truncate { stream, back }),
        1 => stream().prop_map(|stream| Command::PurgeReady { stream }),
        1 => stream().prop_map(|stream| Command::DeleteEmpty { stream }),
        4 => job(),
        2 => (group(), any::<bool>(), prop::option::of(prop::sample::select(vec![1u32, 50])))
            .prop_map(|(group, back, rate)| Command::Move { group, back, rate }),
        1 => (group(), 0u8..3).prop_map(|(group, back)| Command::Cancel { group, back }),
        1 => (group(), 0u8..4).prop_map(|(group, nth)| Command::Resubmit { group, nth }),
        1 => group().prop_map(|group| Command::Delete { group }),
        3 => (0u8..3, group_settings(), to())
            .prop_map(|(group, settings, to)| Command::Create { group, settings, to }),
        1 => (0u8..3, 0u8..3, prop::sample::select(vec![0u64, 2_000]))
            .prop_map(|(key, expected, ttl)| Command::PutNote { key, expected, ttl }),
        1 => (0u8..3, 0u8..3).prop_map(|(key, expected)| Command::RemoveNote { key, expected }),
        1 => (stream(), 0u8..2, prop::option::of(0u64..40))
            .prop_map(|(stream, name, seq)| Command::Reader { stream, name, seq }),
        1 => Just(Command::Release),
        1 => Just(Command::CheckPoint),
        4 => (1u8..90).prop_map(|count| Command::TakeParts { count }),
        2 => any::<bool>().prop_map(|image| Command::Crash { image }),
    ];
    (command, prop::bool::weighted(0.15))
}

fn wish() -> impl Strategy<Value = Wish> {
    (
        0u8..5,
        prop::sample::select(vec![0u8, 0, 0, 3, 9]),
        prop::sample::select(vec![0u64, 0, 0, 0, 60, 20_000]),
        prop::sample::select(vec![0u64, 0, 0, 0, 700, 40_000]),
        prop::sample::select(vec![0u8, 0, 0, 0, 1, 2, 3]),
    )
        .prop_map(|(key, priority, delay, ttl, id)| Wish { key, priority, delay, ttl, id })
}

fn expect() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![9 => Just(None), 1 => prop::option::of(0u64..2)]
}

/// Producer, epoch, and how far off the number is from the one that comes next.
fn stamp() -> impl Strategy<Value = Option<(u8, u32, i8)>> {
    let offset = prop::sample::select(vec![0i8, 0, 0, -1, -2, -20, 3]);
    prop_oneof![6 => Just(None), 1 => (0u8..2, 0u32..3, offset).prop_map(Some)]
}

fn amount() -> impl Strategy<Value = Amount> {
    prop_oneof![
        4 => (0u32..8).prop_map(Amount::Slots),
        1 => (1u32..8, 50u64..500).prop_map(|(slots, bytes)| Amount::Bytes(slots, bytes)),
        2 => (
            1u32..8,
            prop::option::of(50u64..500),
            prop::option::of(prop::sample::select(vec![3_000u64, 3_000, 0])),
        )
            .prop_map(|(n, bytes, timeout)| Amount::Once(n, bytes, timeout)),
    ]
}

fn answer() -> impl Strategy<Value = Answer> {
    prop_oneof![
        6 => Just(Answer::Ack),
        2 => Just(Answer::LateAck),
        4 => Just(Answer::Nack),
        1 => prop::sample::select(vec![0u64, 300, 20_000]).prop_map(Answer::NackIn),
        3 => (0u8..3).prop_map(Answer::Park),
        1 => Just(Answer::Skip),
        1 => Just(Answer::Return),
        1 => prop::sample::select(vec![0u64, 300, 20_000]).prop_map(Answer::ReturnFor),
        1 => prop::sample::select(vec![0u64, 300, 2_000]).prop_map(Answer::Rest),
        1 => (0u8..3).prop_map(Answer::Move),
    ]
}

fn to() -> impl Strategy<Value = To> {
    prop_oneof![
        2 => Just(To::Beginning),
        1 => Just(To::End),
        1 => (0u64..60).prop_map(To::At),
        1 => (0u64..20_000).prop_map(To::Ago),
    ]
}

fn job() -> impl Strategy<Value = Command> {
    let which = prop_oneof![
        3 => Just(Which::All),
        1 => (0u8..3).prop_map(Which::Reason),
        1 => (1u64..30, 0u64..10).prop_map(|(first, more)| Which::Seqs(first, more)),
    ];
    let limit = prop::option::weighted(0.2, 1u64..4);
    let rate = prop::option::weighted(0.2, prop::sample::select(vec![1u32, 50]));
    let work = prop_oneof![2 => Just(Triage::Replay), 2 => Just(Triage::Discard), 1 => Just(Triage::Move)];
    (0u8..2, work, which, limit, rate).prop_map(|(group, work, which, limit, rate)| Command::Job {
        group,
        work,
        which,
        limit,
        rate,
    })
}

fn terms() -> impl Strategy<Value = (i32, Option<u64>)> {
    (prop::sample::select(vec![0, 0, 0, 1, -1]), prop::option::weighted(0.2, Just(7_000u64)))
}

pub(crate) fn stream_settings() -> impl Strategy<Value = StreamSettings> {
    let retention = prop_oneof![
        6 => Just(Retention::Work),
        1 => Just(Retention::Log { max_age: None, max_bytes: None, max_messages: Some(20) }),
        1 => Just(Retention::Log { max_age: Some(secs(60)), max_bytes: None, max_messages: None }),
    ];
    let messages = prop::option::weighted(0.25, prop::sample::select(vec![3u64, 10, 25]));
    let age = prop::option::weighted(0.15, prop::sample::select(vec![2u64, 100]));
    let ingress = prop::option::weighted(0.1, Just(Rate { per_second: 5.0, burst: 6 }));
    (retention, messages, age, any::<bool>(), ingress, any::<bool>()).prop_map(
        |(retention, max_messages, age, drop, ingress, short)| {
            let mut settings =
                StreamSettings { retention, ingress_rate: ingress, ..StreamSettings::default() };
            settings.limits.max_messages = max_messages;
            settings.limits.max_age = age.map(secs);
            settings.limits.on_full = if drop { OnFull::DropOldest } else { OnFull::Reject };
            if short {
                settings.dedupe_window = secs(5);
            }
            settings
        },
    )
}

pub(crate) fn group_settings() -> impl Strategy<Value = GroupSettings> {
    let sharing = prop::sample::select(vec![
        Sharing::RoundRobin,
        Sharing::Ordered,
        Sharing::Ordered,
        Sharing::Pinned,
        Sharing::Single,
        Sharing::Sole,
    ]);
    let batch = prop::sample::select(vec![1u32, 1, 2, 4]);
    let lock = prop::sample::select(vec![KeyLock::Delivery, KeyLock::Position]);
    let order = (sharing, batch, any::<bool>(), any::<bool>(), lock);
    let small = |n: u32| prop::option::weighted(0.2, 1u32..n);
    let limits = (small(6), small(4), small(5), small(4), prop::sample::select(vec![500u32, 500, 1, 3]));
    let rate = prop::option::weighted(
        0.2,
        prop::sample::select(vec![Rate { per_second: 2.0, burst: 1 }, Rate { per_second: 40.0, burst: 5 }]),
    );
    let failing = (
        prop::sample::select(vec![Some(10u32), Some(0), Some(1), Some(2), None]),
        0u8..5,
        prop::sample::select(vec![30u64, 30, 2]),
        prop::sample::select(vec![0.0f64, 0.0, 0.5]),
        (0u8..6, 0u8..6),
    );
    let other = (
        prop::sample::select(vec![Acks::Journal, Acks::Journal, Acks::Checkpoint]),
        prop::sample::select(vec![60u64, 60, 1, 0]),
        prop::option::weighted(0.15, Just(20u64)),
        any::<bool>(),
    );
    (order, limits, rate, failing, other).prop_map(|(order, limits, rate, failing, other)| {
        let mut settings = GroupSettings { rate, ..GroupSettings::default() };
        let hold = order.2;
        (settings.strategy, settings.key_batch) = (order.0, order.1);
        settings.key_lock = order.4;
        settings.on_parked_key = if hold { OnParkedKey::Hold } else { OnParkedKey::Continue };
        if order.3 && settings.strategy != Sharing::Pinned {
            settings.fairness = Fairness::Key;
        }
        settings.window_max = limits.0.unwrap_or(settings.window_max);
        settings.parked_max = limits.1.unwrap_or(settings.parked_max);
        settings.max_in_flight = limits.2.unwrap_or(settings.max_in_flight);
        settings.max_consumers = limits.3.unwrap_or(0);
        settings.buffer = limits.4;
        settings.max_retries = failing.0.map_or(Retries::Unlimited, Retries::AtMost);
        settings.on_exhausted = match failing.1 {
            0..=2 => OnExhausted::Park,
            3 => OnExhausted::Skip,
            _ => OnExhausted::Move(stream_name(2)),
        };
        let then = |n: u8| match n {
            0 => OnEnd::Move(stream_name(1)),
            1 => OnEnd::Move(stream_name(2)),
            _ => OnEnd::Discard,
        };
        (settings.on_expired, settings.on_dropped) = (then(failing.4.0), then(failing.4.1));
        settings.move_terms.create = other.3;
        settings.message_timeout = secs(failing.2);
        settings.backoff = Backoff { jitter: failing.3, ..Backoff::default() };
        settings.acks = other.0;
        settings.priority_age_step = secs(other.1);
        settings.parked_max_age = other.2.map(secs);
        if other.3 {
            settings.checkpoint = Checkpoint { interval: secs(1), min: 2, max: 4 };
        }
        settings
    })
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub(crate) fn stream_name(n: u8) -> StreamName {
    StreamName::parse(["jobs", "other", "elsewhere"][usize::from(n % 3)]).expect("a good name")
}
