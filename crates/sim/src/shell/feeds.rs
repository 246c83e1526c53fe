//! Streams that are fed with copies of messages of others, by the real feeders of the broker.
//!
//! An operator creates them one after the other, and the streams that they are fed from too, switches feeding off and
//! on, and deletes fed streams and creates them again, while the server dies and stops. At the end each of them has a
//! copy of every message that passes its filter, once and in the order of the log. That is known of streams that keep
//! their messages; a message of another stream may have gone before the feeder came to it, and then there is no copy.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use forebay_broker::api::{Caller, Found, Message, Retention, Source, StreamSettings, parse_content};
use forebay_core::types::{Ordinal, Seq, StreamName};

use super::clients::{Shared, pause};
use super::executor::{Whim, at_whim};
use crate::dice::Dice;
use crate::tale::tell;

/// Histories with feeders have dice of their own, so that all others stay as they were.
const SALT: u64 = 0xFEFE << 32;
/// The type that half of the messages have in these histories.
pub(super) const KIND: &str = "order";
/// Messages that are read at a time at the end.
const PAGE: u64 = 100;
/// How often the end looks whether a stream is fed.
const LOOK: Duration = Duration::from_millis(50);
/// All messages of a stream are kept.
const KEPT: Retention = Retention::Log { max_age: None, max_bytes: None, max_messages: None };

/// The streams of a history that are fed, and those that keep their messages and feed them.
#[derive(Debug)]
pub(super) struct Feeds {
    kept: Vec<StreamName>,
    fed: Vec<(StreamName, Source)>,
}

impl Feeds {
    /// Two of five histories have feeders.
    pub(super) fn roll(seed: u64) -> Option<Rc<Feeds>> {
        let mut dice = Dice::from(seed ^ SALT);
        if !dice.chance(2, 5) {
            return None;
        }
        let name = |text: String| StreamName::parse(&text).expect("a name");
        let sources = [
            Source::prefix("kept-"),
            Source::prefix("kept-").kind(KIND),
            Source::prefix(""),
            Source::prefix("").kind(KIND),
            Source::prefix("kept-1"),
        ];
        let kept = (0..1 + dice.roll(3)).map(|n| name(format!("kept-{n}"))).collect();
        let fed =
            (0..1 + dice.roll(2)).map(|n| (name(format!("fed-{n}")), dice.pick(&sources).clone())).collect();
        Some(Rc::new(Feeds { kept, fed }))
    }
}

fn settings(source: Option<Source>) -> impl Fn(&mut StreamSettings) + Send + 'static {
    move |settings| {
        settings.retention = KEPT;
        settings.source.clone_from(&source);
    }
}

/// Creates the streams of the history at some time, and does now and then what operators do with fed streams.
pub(super) async fn operate(shared: Rc<Shared>, feeds: Rc<Feeds>, mut dice: Dice) {
    while let Some(caller) = shared.server(&mut dice).await {
        let whim = Whim::roll(&mut dice, shared.patience);
        let missing = feeds.kept.get(shared.kept.borrow().len()).cloned();
        if let Some(stream) = missing.filter(|_| dice.chance(1, 2)) {
            let created = at_whim(whim, caller.create_stream(stream.clone(), settings(None))).await;
            if matches!(created, Some(Ok(_))) {
                tell(|| format!("{stream} is there"));
                shared.kept.borrow_mut().push(stream);
            }
        } else {
            let (stream, source) = dice.pick(&feeds.fed).clone();
            match dice.roll(10) {
                0..6 => {
                    tell(|| format!("{stream} is to be fed with {source:?}"));
                    drop(at_whim(whim, caller.create_stream(stream, settings(Some(source)))).await);
                }
                6..9 => {
                    let source = dice.chance(2, 3).then_some(source);
                    tell(|| format!("{stream} is to be fed with {source:?} from now on"));
                    drop(at_whim(whim, caller.change_stream(stream, settings(source))).await);
                }
                _ => {
                    tell(|| format!("{stream} is to be deleted"));
                    drop(at_whim(whim, caller.delete_stream(stream, true)).await);
                }
            }
        }
        pause(&mut dice, 100).await;
    }
}

/// A message, and where it is in the log.
struct Stored {
    stream: String,
    seq: Seq,
    ordinal: Option<Ordinal>,
    content: Vec<u8>,
}

impl Stored {
    fn parse(&self) -> Message<'_> {
        parse_content(&self.content).expect("I2: the content can be read")
    }
}

/// All clients have ended. Waits until every fed stream has what it should, and looks at all of them. Returns the
/// number of copies.
pub(super) async fn finish(shared: Rc<Shared>, caller: Caller, feeds: Rc<Feeds>) -> u64 {
    let mut kept = Vec::new();
    let streams = shared.kept.borrow().clone();
    for stream in streams {
        let found = read(&caller, &stream).await;
        shared.model.borrow().check_kept(&stream, &found.iter().map(|found| found.seq).collect());
        kept.extend(found.into_iter().map(|found| Stored {
            stream: stream.as_str().to_owned(),
            seq: found.seq,
            ordinal: Some(found.ordinal),
            content: found.content.to_vec(),
        }));
    }
    kept.sort_by_key(|stored| stored.ordinal);
    let mut copies = 0;
    for (stream, source) in &feeds.fed {
        let created = caller.create_stream(stream.clone(), settings(None)).await;
        // It exists and is fed.
        drop(created);
        let changed = caller.change_stream(stream.clone(), settings(Some(source.clone()))).await;
        changed.expect("the stream is there");
        let end = caller.log_end().await.expect("it answers");
        while caller.links_fed(stream).is_none_or(|place| place < end) {
            tokio::time::sleep(LOOK).await;
        }
        copies += check_fed(&shared, &caller, stream, source, &kept).await;
    }
    copies
}

async fn check_fed(
    shared: &Shared,
    caller: &Caller,
    stream: &StreamName,
    source: &Source,
    kept: &[Stored],
) -> u64 {
    let known: BTreeMap<(&str, Seq), Ordinal> =
        kept.iter().filter_map(|of| Some(((of.stream.as_str(), of.seq), of.ordinal?))).collect();
    let passes = |of: &&Stored| {
        let kind = of.parse().kind.map(str::to_owned);
        of.stream.starts_with(&source.prefix) && (source.kind.is_none() || source.kind == kind)
    };
    let expected: Vec<(&str, Seq)> =
        kept.iter().filter(passes).map(|of| (of.stream.as_str(), of.seq)).collect();
    let (mut from_kept, mut seen, mut last) = (Vec::new(), BTreeSet::new(), Ordinal(0));
    let copies = read(caller, stream).await;
    for copy in &copies {
        let message = parse_content(&copy.content).expect("I2: the content can be read");
        let from = message.copied_from.expect("I23: a fed stream has copies, and nothing else");
        let place = (from.stream.to_owned(), from.seq);
        assert!(seen.insert(place.clone()), "I23: {stream} has two copies of {place:?}");
        let told = shared.model.borrow().check_copy(from.stream, from.seq, &message);
        let ordinal = known.get(&(from.stream, from.seq)).copied().or(told);
        if let Some(ordinal) = ordinal {
            assert!(ordinal > last, "I23: {stream} has {place:?} of {ordinal:?} after {last:?}");
            last = ordinal;
        }
        if known.contains_key(&(from.stream, from.seq)) {
            from_kept.push(place);
        }
    }
    let from_kept: Vec<(&str, Seq)> = from_kept.iter().map(|(of, seq)| (of.as_str(), *seq)).collect();
    let differs = (0..expected.len().max(from_kept.len())).find(|&n| from_kept.get(n) != expected.get(n));
    if let Some(n) = differs {
        let (has, lacks) = (from_kept.get(n), expected.get(n));
        panic!("I23: {stream}, fed with {source:?}, has a copy of {has:?} where {lacks:?} should be");
    }
    copies.len() as u64
}

/// All messages of a stream.
async fn read(caller: &Caller, stream: &StreamName) -> Vec<Found> {
    let (mut all, mut from) = (Vec::new(), Seq(1));
    loop {
        let page = caller.read(stream.clone(), from, PAGE).await.expect("it is read");
        all.extend(page.messages);
        from = page.next;
        if from > page.last {
            return all;
        }
    }
}
