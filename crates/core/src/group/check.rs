//! Facts that hold whenever a turn is over.
//!
//! [`Group::check`] adds up running sums that are kept in different places. It takes a few comparisons, so it runs at
//! the end of every turn, in release builds too. [`Group::check_all`] looks at every message and is for tests, the
//! model and the simulator, which call [`crate::shard::Shard::check`].

use crate::group::Group;
use crate::group::standing::State;
use crate::stream::Stream;
use crate::types::Seq;

impl Group {
    pub(super) fn check(&self) {
        let standing = self.ledger.standing();
        self.timers.check(standing);
        self.members.check(standing.leased());
        if self.ledger.sweeps_through().is_none() {
            let moving = self.ledger.moving().len() as u64;
            assert_eq!(standing.moving(), moving, "every message on its way has a route");
        }
    }

    /// As `check`, message by message.
    pub(crate) fn check_all(&self, stream: &Stream) {
        self.check();
        self.ledger.standing().check();
        self.timers.check_all(self.ledger.standing());
        // Until a sweep is over, state that it has ended lies beside the state that goes on.
        if self.ledger.sweeps_through().is_some() {
            return;
        }
        self.members.check_all(self.ledger.standing());
        for (run, state) in self.ledger.standing().runs() {
            assert!(run.last <= stream.last, "only messages that were published are in process");
            for seq in run.seqs() {
                assert!(!self.ledger.is_settled(seq), "a message in process is not settled");
                let is_moving = matches!(state, State::Moving { .. });
                assert_eq!(
                    self.ledger.moving().contains_key(&seq),
                    is_moving,
                    "a moving message has a route"
                );
                let is_offered = self.candidates.contains(stream, seq);
                let may_go = matches!(state, State::Ready { .. });
                assert!(may_go || !is_offered, "a message that is leased, waiting or moving is not on offer");
            }
        }
        for run in self.ledger.parked().positions().runs() {
            let is_settled = run.seqs().all(|seq| self.ledger.progress().is_settled(seq));
            assert!(is_settled, "a parked message counts as settled");
        }
        for run in self.ledger.outgoing().runs_from(Seq::START) {
            let is_settled = run.seqs().all(|seq| self.ledger.progress().is_settled(seq));
            assert!(is_settled, "a message that expired or was dropped counts as settled");
        }
        assert!(
            self.ledger.progress().floor() <= stream.last.max(stream.gone),
            "the floor lies within the stream"
        );
        let floor = self.ledger.progress().floor();
        let above = self.ledger.progress().above().first();
        assert!(above.is_none_or(|above| above > floor.next()), "settled positions lie above the floor");
        // Messages may be dropped before they are durable, and then the group has come past them.
        assert!(self.candidates.arrived() <= stream.last.max(floor), "only published messages have arrived");
    }
}
