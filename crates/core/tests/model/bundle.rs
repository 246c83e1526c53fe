//! Leases that are settled and messages that are stored together, or not at all.

use forebay_core::entry::MessageMeta;
use forebay_core::group::{Lease, LeaseRun, Settlement, Verb};
use forebay_core::shard::{
    Bundle, BundleRefusal, Publication, PublishOptions, PublishRefusal, Settling, Target,
};

use crate::book::State;
use crate::commands::Wish;
use crate::world::{World, meta};

impl World {
    /// What the check says of a bundle comes true, part by part.
    pub(crate) fn bundle(&mut self, back: u16, count: u8, n: u8, wishes: &[Wish]) {
        let Some((group, leases)) = self.pick(back, count) else { return };
        let (now, stream) = (self.now, self.stream(n));
        let messages: Vec<MessageMeta> = wishes.iter().map(|wish| meta(now, wish)).collect();
        let (runs, settlement) = (LeaseRun::join(leases.iter().copied()), Settlement::from(Verb::Ack));
        let bundle = Bundle {
            publications: vec![Publication {
                target: Target::Id(stream),
                messages: &messages,
                options: PublishOptions::default(),
            }],
            settlements: vec![Settling { group, leases: &runs, settlement: &settlement }],
            ..Bundle::default()
        };
        let book = self.groups.get(&group).map(|of| &of.book);
        let is_held = |lease: &&Lease| {
            let state = book.and_then(|book| book.items.get(&lease.seq)).map(|item| &item.state);
            matches!(state, Some(State::Leased { lease: held, .. }) if held == *lease)
        };
        let over = leases.iter().find(|lease| !is_held(lease)).copied();
        let bytes = match self.shard.check_bundle(now, &bundle) {
            Ok(bytes) => bytes,
            Err(BundleRefusal::NotYours { lease, .. }) => {
                assert_eq!(Some(lease), over, "the first lease that is over is named");
                return;
            }
            Err(BundleRefusal::Publish {
                nth: 0,
                refusal: PublishRefusal::Full { .. } | PublishRefusal::TooFast { .. },
            }) => {
                // Of a batch that is refused by itself too.
                assert!(!self.publish(n, wishes, None, None), "a batch is refused for being in a bundle");
                return;
            }
            Err(other) => panic!("a good bundle was refused: {other}"),
        };
        assert_eq!(over, None, "a bundle with a lease that is over is refused");
        self.shard.write_acks(now, group);
        self.append();
        let written = self.written_bytes();
        assert!(self.publish(n, wishes, None, None), "a batch that was checked is stored");
        self.settle_all(group, &leases, &settlement);
        self.shard.write_acks(now, group);
        self.append();
        let written = self.written_bytes() - written;
        assert!(written <= bytes, "a bundle takes {written} bytes, and {bytes} were counted");
        let unwritten = &self.groups[&group].unwritten;
        assert!(leases.iter().all(|lease| !unwritten.contains_key(&lease.seq)), "every ack is in the log");
    }
}
