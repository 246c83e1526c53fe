//! Promises that can be broken on purpose, so that the simulator can show that it would notice.
//!
//! Without the feature `planted-faults` the question is answered `false` when the program is compiled,
//! and nothing of this is left in the product.

/// A promise, and the way it is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// The journal acknowledges a block that it has not synced.
    NoSync,
    /// A producer is answered when its frame is appended rather than when it is durable.
    AnswerBeforeReceipt,
    /// A leased message is offered to a second consumer.
    LeaseTwice,
    /// A grant is given to two leases.
    GrantReused,
    /// The floor moves past a message that is not settled.
    FloorPastUnsettled,
    /// Recovery takes a message that was handed out for one that never was.
    AttemptsForgotten,
    /// A message that was handed out before is delivered as a new one.
    RedeliveryUnmarked,
    /// An image leaves out messages that are settled above the floor.
    SettledForgotten,
    /// The log is trimmed to the newer image instead of the older.
    TrimPastOlderImage,
    /// After a retry the next message of a key goes before the one that failed.
    KeyOrderBroken,
    /// A key that is locked is given to a second consumer.
    KeyLockedTwice,
    /// A restart forgets the ids that were seen.
    DedupeForgotten,
    /// The ids of a quiet stream are forgotten before their window is over.
    IdsForgottenEarly,
    /// A replay loses some of the messages it brings back.
    ReplayLoses,
    /// A move settles the message without publishing it.
    MoveLoses,
    /// A message that expires or is dropped vanishes, although its group sends it to another stream.
    EndsVanish,
    /// The log is trimmed past a message that still has to be brought to another stream.
    SentForgotten,
    /// A group with the strategy `sole` serves other consumers too.
    SoleShares,
    /// A consumer is served although one of a higher rank has room.
    RankIgnored,
    /// A delayed message is handed out before its time.
    DeliveredEarly,
    /// The pace of a group is not kept.
    PaceExceeded,
    /// Waiting does not raise a message's priority.
    PriorityStarves,
    /// Changing one group's settings changes another's.
    SettingsLeak,
    /// An answer to an earlier lease of a message counts for the present one.
    StaleAckCounts,
    /// The log is trimmed past a parked message that was not copied.
    ReclaimForgetsWanted,
    /// A copy says that its message was published when it was copied.
    CopyLosesTime,
    /// All messages of a batch are shown with the position in the log that the first one has.
    PositionInLogNotCounted,
    /// A read that a turn leaves over waits until something else brings about a turn.
    ReadLeftOver,
    /// A group that locks keys by position hands out the message behind a leased one.
    PositionLockSkips,
    /// A lease for no time lasts as long as any other of its group.
    LeaseForNoTimeLasts,
    /// The delay of a stream does not hold its messages back.
    StreamDelayIgnored,
    /// A job that moves messages settles some of them without publishing them.
    MoveJobLoses,
    /// A full stream takes more messages.
    StreamLimitIgnored,
    /// Cutting a stream before a position takes the message at the position along.
    CutTooFar,
    /// A purge of messages that no consumer holds takes leased ones along.
    PurgeTakesLeased,
    /// A stream that is deleted only if it is empty is deleted with its messages.
    DeletedThoughNotEmpty,
    /// A stream with log retention lets go of messages that it has to keep.
    LogCutShort,
    /// Messages are let go that a reader has not read.
    ReaderForgotten,
    /// A restart brings back notes that were removed.
    RemovedNoteBack,
    /// A restart forgets the numbers of producers.
    ProducersForgotten,
    /// A restart brings back groups and streams that were deleted.
    DeletedBack,
    /// A reader of the whole log passes over messages of which only copies are there.
    WholeReaderPassesCopies,
    /// The messages of a bundle and its settlements are in two frames.
    BundleTorn,
    /// A reader of a log shows messages that are not durable yet.
    ReaderSeesUndurable,
    /// A reader of a log goes on where it finds later messages, without asking where the missing ones are.
    ReaderPassesGap,
    /// A publish that its caller does not wait for keeps its room.
    RoomKept,
    /// Messages that are not taken out of the answer to a receive stay leased.
    UntakenKept,
    /// A receive that its caller does not wait for goes on waiting.
    CallOffLost,
    /// A connected consumer that is dropped stays a member.
    DepartureLost,
    /// The contents in the queue of a consumer that is gone count as handed out for ever.
    HandedOutForgotten,
    /// A consumer that was held back is given nothing more.
    HeldBackForGood,
    /// The copies of a fed stream are stored before the place up to which the log was copied, in another frame.
    FeedPlaceApart,
    /// The place that is stored with the copies is one message further than the copies.
    FeedPlaceAhead,
    /// The owner of a log on JetStream believes each acknowledgement as it comes, whatever sequence it names.
    AcksBelieved,
    /// Frames that a former owner got into the log behind the claim of its successor are read.
    StraysRead,
    /// An owner serves although its tenure is over.
    ServesWithoutTenure,
    /// A node takes the log over, and frees the leases of connected consumers, without waiting for the tenure of its
    /// owner to end.
    TakesOverAtOnce,
    /// A new owner ends leases by its own date instead of the time of the former owner.
    DeadlinesByOwnDate,
}

impl Fault {
    pub const ALL: [Fault; 45] = [
        Fault::NoSync,
        Fault::AnswerBeforeReceipt,
        Fault::LeaseTwice,
        Fault::GrantReused,
        Fault::FloorPastUnsettled,
        Fault::AttemptsForgotten,
        Fault::RedeliveryUnmarked,
        Fault::SettledForgotten,
        Fault::TrimPastOlderImage,
        Fault::KeyOrderBroken,
        Fault::KeyLockedTwice,
        Fault::DedupeForgotten,
        Fault::IdsForgottenEarly,
        Fault::ReplayLoses,
        Fault::MoveLoses,
        Fault::EndsVanish,
        Fault::SentForgotten,
        Fault::SoleShares,
        Fault::RankIgnored,
        Fault::DeliveredEarly,
        Fault::PaceExceeded,
        Fault::PriorityStarves,
        Fault::SettingsLeak,
        Fault::StaleAckCounts,
        Fault::ReclaimForgetsWanted,
        Fault::CopyLosesTime,
        Fault::PositionInLogNotCounted,
        Fault::ReadLeftOver,
        Fault::PositionLockSkips,
        Fault::LeaseForNoTimeLasts,
        Fault::StreamDelayIgnored,
        Fault::MoveJobLoses,
        Fault::StreamLimitIgnored,
        Fault::CutTooFar,
        Fault::PurgeTakesLeased,
        Fault::DeletedThoughNotEmpty,
        Fault::LogCutShort,
        Fault::ReaderForgotten,
        Fault::RemovedNoteBack,
        Fault::ProducersForgotten,
        Fault::DeletedBack,
        Fault::BundleTorn,
        Fault::ReaderSeesUndurable,
        Fault::ReaderPassesGap,
        Fault::WholeReaderPassesCopies,
    ];

    /// Faults that histories of the shard task and its callers must notice. Some are in these two alone, and no history
    /// of the driver could show them.
    pub const SHELL: [Fault; 12] = [
        Fault::RoomKept,
        Fault::UntakenKept,
        Fault::CallOffLost,
        Fault::DepartureLost,
        Fault::HandedOutForgotten,
        Fault::HeldBackForGood,
        Fault::FeedPlaceApart,
        Fault::FeedPlaceAhead,
        Fault::AnswerBeforeReceipt,
        Fault::LeaseTwice,
        Fault::StaleAckCounts,
        Fault::KeyLockedTwice,
    ];

    /// Faults that histories of two nodes on one log must notice.
    pub const CLUSTER: [Fault; 5] = [
        Fault::AcksBelieved,
        Fault::StraysRead,
        Fault::ServesWithoutTenure,
        Fault::TakesOverAtOnce,
        Fault::DeadlinesByOwnDate,
    ];
}

#[cfg(feature = "planted-faults")]
mod switch {
    use super::Fault;
    use std::cell::Cell;
    use std::sync::OnceLock;

    thread_local! {
        static PLANTED: Cell<Option<Fault>> = const { Cell::new(None) };
    }

    /// For a whole process, which has many threads.
    static EVERYWHERE: OnceLock<Fault> = OnceLock::new();

    /// Breaks one promise, or none, for everything that this thread does from now on.
    pub fn plant(fault: Option<Fault>) {
        PLANTED.set(fault);
    }

    /// Breaks one promise for everything that this process does from now on. Only the first call counts.
    pub fn plant_everywhere(fault: Fault) {
        let _ = EVERYWHERE.set(fault);
    }

    pub fn planted(fault: Fault) -> bool {
        PLANTED.get() == Some(fault) || EVERYWHERE.get() == Some(&fault)
    }
}

#[cfg(feature = "planted-faults")]
pub use switch::{plant, plant_everywhere, planted};

#[cfg(not(feature = "planted-faults"))]
pub const fn planted(_: Fault) -> bool {
    false
}
