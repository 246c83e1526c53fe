//! A stream's memory of its producers that number their messages.
//!
//! A producer numbers its messages one after the other and names a batch by the number of its first one.
//! The stream remembers the last few batches of each producer: one that is sent again is answered with the
//! positions it has, and one that does not follow is refused, so that a producer which retries neither
//! doubles nor loses nor reorders anything. A producer that starts again does so with a higher epoch, and
//! whatever an earlier instance still sends is refused from then on.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::codec::{Cursor, DecodeError, put_varint};
use crate::types::{Seq, SeqRange, Timestamp};

/// Batches remembered of a producer: as many as clients keep on their way at once.
const BATCHES_MAX: usize = 5;
/// Producers remembered of a stream. Beyond that, the one that was silent longest is forgotten; silence
/// alone is no reason to forget a producer.
const PRODUCERS_MAX: usize = 10_000;

/// Names a batch: who sent it, and the number of its first message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProducerStamp {
    pub producer: u64,
    pub epoch: u32,
    pub number: u64,
}

/// The kind of a batch that is not refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    New,
    /// It came before, and these are the positions that its messages got. There are fewer of them than
    /// messages if some were known by their ids already.
    Duplicate(Option<SeqRange>),
}

/// Why a producer's batch was refused. Nothing was stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProducerRefusal {
    #[error("a later instance of this producer has taken over. epoch=`{epoch}`")]
    Fenced { epoch: u32 },
    #[error("the batch does not follow the one before it. expected=`{expected}`")]
    Gap { expected: u64 },
    #[error("the batch is older than the oldest remembered batch of this producer. oldest=`{oldest}`")]
    TooOld { oldest: u64 },
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Producers {
    known: BTreeMap<u64, Producer>,
    /// All of them, by the time of their last batch.
    by_silence: BTreeSet<(Timestamp, u64)>,
}

#[derive(Debug, Clone, PartialEq)]
struct Producer {
    epoch: u32,
    /// Of the last batch.
    at: Timestamp,
    /// Consecutive and never empty, the latest at the end.
    batches: VecDeque<Batch>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Batch {
    number: u64,
    /// How many messages it had.
    count: u64,
    /// Where those are that were new.
    seqs: Option<SeqRange>,
}

impl Batch {
    /// The number that comes after it.
    fn end(&self) -> u64 {
        self.number.saturating_add(self.count)
    }
}

impl Producer {
    fn oldest(&self) -> u64 {
        self.batches.front().expect("a producer is known by a batch").number
    }

    fn expected(&self) -> u64 {
        self.batches.back().expect("a producer is known by a batch").end()
    }
}

impl Producers {
    /// Decides about a batch of so many messages. A producer that is not known may begin with any number,
    /// since it may have been forgotten, and so may one with a higher epoch.
    pub(crate) fn admit(&self, stamp: ProducerStamp, count: u64) -> Result<Verdict, ProducerRefusal> {
        let Some(producer) = self.known.get(&stamp.producer) else { return Ok(Verdict::New) };
        if stamp.epoch < producer.epoch {
            return Err(ProducerRefusal::Fenced { epoch: producer.epoch });
        }
        let (oldest, expected) = (producer.oldest(), producer.expected());
        if stamp.epoch > producer.epoch || stamp.number == expected {
            return Ok(Verdict::New);
        }
        let known = producer.batches.iter().find(|batch| batch.number == stamp.number);
        match known.filter(|batch| batch.count == count) {
            Some(batch) => Ok(Verdict::Duplicate(batch.seqs)),
            None if stamp.number < oldest => Err(ProducerRefusal::TooOld { oldest }),
            // Also one that begins where no batch began or has another length: it was made of others.
            None => Err(ProducerRefusal::Gap { expected }),
        }
    }

    /// Remembers a batch of so many messages, with the positions of those that were new. A batch older than the
    /// remembered ones is ignored: after an image that was taken in several turns, recovery may meet batches
    /// that are in it. A batch with a gap before it starts anew: the batches between were lost with a damaged
    /// log.
    pub(crate) fn remember(
        &mut self,
        at: Timestamp,
        stamp: ProducerStamp,
        count: u64,
        seqs: Option<SeqRange>,
    ) {
        let fresh = Producer { epoch: stamp.epoch, at, batches: VecDeque::new() };
        let producer = self.known.entry(stamp.producer).or_insert(fresh);
        let expected = producer.batches.back().map(Batch::end);
        let anew = stamp.epoch > producer.epoch || expected.is_none_or(|expected| stamp.number > expected);
        let before = stamp.epoch < producer.epoch || !anew && Some(stamp.number) != expected;
        if before {
            return;
        }
        if anew {
            producer.batches.clear();
        }
        if producer.batches.len() == BATCHES_MAX {
            producer.batches.pop_front();
        }
        producer.batches.push_back(Batch { number: stamp.number, count, seqs });
        producer.epoch = stamp.epoch;
        self.by_silence.remove(&(producer.at, stamp.producer));
        // Time may step back between two runs of a server.
        producer.at = producer.at.max(at);
        self.by_silence.insert((producer.at, stamp.producer));
        if self.known.len() > PRODUCERS_MAX {
            let (_, silent) = self.by_silence.pop_first().expect("every known producer is in both");
            self.known.remove(&silent);
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    /// `count`, then `producer | epoch | at | batches | number` with the number of the first batch, which the
    /// others follow, and `first | count` of the positions of each. Of one that had messages which were
    /// known already it is `0 | count of messages | first | count`, the last two zero if none was new.
    /// Producers as distances.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.known.len() as u64);
        let mut from = 0;
        for (&id, producer) in &self.known {
            put_varint(out, id - from);
            put_varint(out, producer.epoch.into());
            put_varint(out, producer.at.0);
            put_varint(out, producer.batches.len() as u64);
            put_varint(out, producer.oldest());
            for batch in &producer.batches {
                let (first, count) = batch.seqs.map_or((0, 0), |seqs| (seqs.first.0, seqs.count()));
                if count != batch.count {
                    put_varint(out, 0);
                    put_varint(out, batch.count);
                }
                put_varint(out, first);
                put_varint(out, count);
            }
            from = id;
        }
    }

    pub(crate) fn decode(cursor: &mut Cursor<'_>) -> Result<Producers, DecodeError> {
        let overflow = || DecodeError::OutOfRange("producer");
        let mut producers = Producers::default();
        let mut id = 0u64;
        for _ in 0..cursor.count()? {
            id = id.checked_add(cursor.varint()?).ok_or_else(overflow)?;
            let (epoch, at) = (cursor.varint_u32()?, Timestamp(cursor.varint()?));
            let (count, mut number) = (cursor.count()?, cursor.varint()?);
            if !(1..=BATCHES_MAX).contains(&count) {
                return Err(overflow());
            }
            let mut batches = VecDeque::new();
            for _ in 0..count {
                let (mut first, count) = (cursor.varint()?, cursor.varint()?);
                let mut stored = count;
                if first == 0 {
                    (first, stored) = (cursor.varint()?, cursor.varint()?);
                }
                if count == 0 || stored > count || first.checked_add(stored).is_none() {
                    return Err(overflow());
                }
                let seqs = (stored > 0).then(|| SeqRange::starting(Seq(first), stored));
                let batch = Batch { number, count, seqs };
                number = batch.end();
                batches.push_back(batch);
            }
            if producers.known.insert(id, Producer { epoch, at, batches }).is_some() {
                return Err(DecodeError::Contradiction("a producer is there once"));
            }
            producers.by_silence.insert((at, id));
        }
        if producers.known.len() > PRODUCERS_MAX {
            return Err(overflow());
        }
        Ok(producers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Op {
        /// A batch that continues, `off` numbers away from where it should, in an epoch so much higher.
        Send {
            producer: u64,
            off: i64,
            epoch: i32,
            count: u64,
        },
        /// One of the batches before.
        Again {
            back: usize,
            longer: bool,
        },
        Copy,
    }

    fn op() -> impl Strategy<Value = Op> {
        let off = prop_oneof![8 => Just(0i64), 1 => -20i64..20];
        let epoch = prop_oneof![12 => Just(0), 1 => -1..=1];
        prop_oneof![
            8 => (0u64..3, off, epoch, 1u64..6)
                .prop_map(|(producer, off, epoch, count)| Op::Send { producer, off, epoch, count }),
            6 => (0usize..25, prop::bool::weighted(0.1)).prop_map(|(back, longer)| Op::Again { back, longer }),
            1 => Just(Op::Copy),
        ]
    }

    fn copied(producers: &Producers) -> Producers {
        let mut bytes = Vec::new();
        producers.encode(&mut bytes);
        let mut cursor = Cursor::new(&bytes);
        let copy = Producers::decode(&mut cursor).expect("what was written can be read");
        assert!(cursor.is_at_end());
        copy
    }

    /// Every batch that was ever stored, in order.
    #[derive(Default)]
    struct Plain(Vec<(ProducerStamp, SeqRange)>);

    impl Plain {
        fn admit(&self, stamp: ProducerStamp, count: u64) -> Result<Verdict, ProducerRefusal> {
            let of_producer = || self.0.iter().filter(|one| one.0.producer == stamp.producer);
            let Some(epoch) = of_producer().map(|one| one.0.epoch).max() else { return Ok(Verdict::New) };
            if stamp.epoch != epoch {
                return if stamp.epoch > epoch {
                    Ok(Verdict::New)
                } else {
                    Err(ProducerRefusal::Fenced { epoch })
                };
            }
            let batches: Vec<_> = of_producer().filter(|one| one.0.epoch == epoch).collect();
            let last = batches[batches.len() - 1];
            let expected = last.0.number + last.1.count();
            let remembered = &batches[batches.len().saturating_sub(5)..];
            let oldest = remembered[0].0.number;
            match remembered.iter().find(|one| one.0 == stamp && one.1.count() == count) {
                Some(one) => Ok(Verdict::Duplicate(Some(one.1))),
                None if stamp.number == expected => Ok(Verdict::New),
                None if stamp.number < oldest => Err(ProducerRefusal::TooOld { oldest }),
                None => Err(ProducerRefusal::Gap { expected }),
            }
        }
    }

    proptest! {
        #[test]
        fn agrees_with_a_plain_list(ops in prop::collection::vec(op(), 1..120)) {
            let mut producers = Producers::default();
            let mut plain = Plain::default();
            let mut next = Seq(1);
            for (at, op) in ops.into_iter().enumerate() {
                let (stamp, count) = match op {
                    Op::Send { producer, off, epoch, count } => {
                        let last = plain.0.iter().rfind(|one| one.0.producer == producer);
                        let (known, number) =
                            last.map_or((5, 100), |one| (one.0.epoch, one.0.number + one.1.count()));
                        let epoch = known.saturating_add_signed(epoch);
                        (ProducerStamp { producer, epoch, number: number.saturating_add_signed(off) }, count)
                    }
                    Op::Again { back, longer } => {
                        let Some(one) = plain.0.iter().rev().nth(back) else { continue };
                        (one.0, one.1.count() + u64::from(longer))
                    }
                    Op::Copy => {
                        let copy = copied(&producers);
                        prop_assert_eq!(&copy, &producers);
                        producers = copy;
                        // Recovery may meet everything once more.
                        for &(stamp, seqs) in plain.0.iter().rev().take(5).rev() {
                            producers.remember(Timestamp::ZERO, stamp, seqs.count(), Some(seqs));
                        }
                        prop_assert_eq!(&copied(&producers), &producers);
                        continue;
                    }
                };
                let verdict = producers.admit(stamp, count);
                prop_assert_eq!(&verdict, &plain.admit(stamp, count));
                if verdict == Ok(Verdict::New) {
                    let seqs = SeqRange::starting(next, count);
                    next = next.plus(count);
                    producers.remember(Timestamp(at as u64), stamp, seqs.count(), Some(seqs));
                    plain.0.push((stamp, seqs));
                }
            }
        }

        #[test]
        fn damaged_bytes_do_no_harm(bytes in prop::collection::vec(0u8..10, 0..60)) {
            if let Ok(producers) = Producers::decode(&mut Cursor::new(&bytes)) {
                prop_assert_eq!(producers.known.len(), producers.by_silence.len());
            }
        }
    }

    #[test]
    fn a_batch_that_was_lost_does_not_hold_up_its_producer() {
        let mut producers = Producers::default();
        let stamp = |epoch, number| ProducerStamp { producer: 1, epoch, number };
        producers.remember(Timestamp(1), stamp(4, 10), 5, Some(SeqRange::new(Seq(1), Seq(5))));
        producers.remember(Timestamp(2), stamp(3, 90), 1, Some(SeqRange::one(Seq(6))));
        assert_eq!(producers.admit(stamp(4, 20), 1), Err(ProducerRefusal::Gap { expected: 15 }));
        producers.remember(Timestamp(3), stamp(4, 20), 1, Some(SeqRange::one(Seq(12))));
        assert_eq!(producers.admit(stamp(4, 21), 1), Ok(Verdict::New));
        assert_eq!(producers.admit(stamp(4, 10), 5), Err(ProducerRefusal::TooOld { oldest: 20 }));
        assert_eq!(producers.admit(stamp(3, 21), 1), Err(ProducerRefusal::Fenced { epoch: 4 }));
    }

    #[test]
    fn the_producer_that_was_silent_longest_is_forgotten_first() {
        let mut producers = Producers::default();
        let stamp = |producer, number| ProducerStamp { producer, epoch: 0, number };
        let max = PRODUCERS_MAX as u64;
        for producer in 0..max {
            producers.remember(
                Timestamp(producer),
                stamp(producer, 0),
                1,
                Some(SeqRange::one(Seq(producer + 1))),
            );
        }
        producers.remember(Timestamp(max), stamp(0, 1), 1, Some(SeqRange::one(Seq(max + 1))));
        producers.remember(Timestamp(max + 1), stamp(max, 0), 1, Some(SeqRange::one(Seq(max + 2))));
        assert_eq!(producers.len(), PRODUCERS_MAX);
        assert_eq!(producers.admit(stamp(1, 0), 1), Ok(Verdict::New), "forgotten");
        assert_eq!(producers.admit(stamp(0, 0), 1), Ok(Verdict::Duplicate(Some(SeqRange::one(Seq(1))))));
        assert_eq!(producers.admit(stamp(2, 7), 1), Err(ProducerRefusal::Gap { expected: 1 }));
        assert_eq!(producers.by_silence.len(), PRODUCERS_MAX);
        assert_eq!(copied(&producers), producers);
    }

    #[test]
    fn a_batch_counts_for_all_its_messages_also_those_that_were_known_already() {
        let mut producers = Producers::default();
        let stamp = |number| ProducerStamp { producer: 1, epoch: 0, number };
        producers.remember(Timestamp(1), stamp(0), 3, Some(SeqRange::one(Seq(9))));
        producers.remember(Timestamp(2), stamp(3), 2, None);
        assert_eq!(producers.admit(stamp(5), 1), Ok(Verdict::New));
        assert_eq!(producers.admit(stamp(0), 3), Ok(Verdict::Duplicate(Some(SeqRange::one(Seq(9))))));
        assert_eq!(producers.admit(stamp(3), 2), Ok(Verdict::Duplicate(None)));
        assert_eq!(producers.admit(stamp(4), 1), Err(ProducerRefusal::Gap { expected: 5 }));
        assert_eq!(copied(&producers), producers);
    }
}
