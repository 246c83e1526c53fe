//! The work that the driver leaves to the shell, and the tickets and places that answers to callers are made of.

use forebay_core::Admission;
use forebay_core::types::{ConsumerId, GroupId, Ordinal, Position, SeqRange};
use forebay_storage::engine::{Durable, Frame, Image, ReadBudget};

use crate::driver::Delivery;
#[cfg(doc)]
use crate::driver::Driver;
use crate::window::Found;

/// Names a request to the shell, which answers it when the driver gives the ticket back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// Where the messages of a batch are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Published {
    /// All of them are new. `ordinal` is the position in the shard's log of the first; the others follow.
    Stored { seqs: SeqRange, ordinal: Ordinal },
    /// Some were stored before, under the same id or by their number; one admission for each message. The positions in
    /// the log of the new ones are consecutive, starting with `ordinal`.
    Mixed { admissions: Vec<Admission>, ordinal: Ordinal },
}

impl Published {
    /// Where each message of the batch is, in their order, and its position in the shard's log unless it was stored
    /// before.
    pub fn each(&self) -> impl Iterator<Item = (Admission, Option<Ordinal>)> + '_ {
        let (stored, mixed, mut next) = match self {
            Published::Stored { seqs, ordinal } => (Some(*seqs), &[][..], *ordinal),
            Published::Mixed { admissions, ordinal } => (None, &admissions[..], *ordinal),
        };
        let stored = stored.into_iter().flat_map(|seqs| seqs.seqs());
        let stored = stored.map(|seq| Admission { seq, duplicate: false });
        stored.chain(mixed.iter().copied()).map(move |admission| {
            let ordinal = (!admission.duplicate).then_some(next);
            next = next.plus(u64::from(!admission.duplicate));
            (admission, ordinal)
        })
    }
}

/// Frames that are wanted from the engine. The read frames are handed to [`Driver::on_read`].
#[derive(Debug, Clone, Copy)]
pub struct Read {
    pub id: u64,
    pub from: Position,
    pub budget: ReadBudget,
}

/// The work that the shell has to do, in any order, except that frames are appended in theirs.
#[derive(Debug, Default)]
pub struct Outbox {
    pub frames: Vec<Frame>,
    /// Tickets of [`Driver::publish`] and [`Driver::confirm`]: everything that was decided until then is durable.
    pub durable: Vec<(Ticket, Durable<()>)>,
    pub deliveries: Vec<Delivery>,
    /// Messages that were asked for with [`Driver::fetch`].
    pub fetched: Vec<(Ticket, Vec<Found>)>,
    /// Consumers that are members no longer, although they have not left.
    pub departed: Vec<(GroupId, ConsumerId)>,
    /// Consumers without a connection who have got all that was leased to them.
    pub served: Vec<ConsumerId>,
    pub reads: Vec<Read>,
    /// To be saved; [`Driver::on_saved`] follows.
    pub image: Option<Image>,
    /// Everything up to here may be trimmed.
    pub trim: Option<Position>,
}

impl Outbox {
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
            && self.durable.is_empty()
            && self.deliveries.is_empty()
            && self.fetched.is_empty()
            && self.departed.is_empty()
            && self.served.is_empty()
            && self.reads.is_empty()
            && self.image.is_none()
            && self.trim.is_none()
    }
}
