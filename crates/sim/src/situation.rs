//! Rare situations. A simulator that never reaches them proves nothing about them, so each is counted,
//! and in a long run one that was never reached is a failure.

use std::collections::BTreeMap;
use std::fmt;

use forebay_storage::journal::disk::Stage;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Situation {
    CrashInCommit,
    CrashBetweenWriteAndMark,
    CrashInRotation,
    CrashInSeal,
    CrashInPreparing,
    CrashInImage,
    CrashInTrim,
    CrashInRecovery,
    CrashBetweenCalls,
    CleanStop,
    PowerLost,
    WriteFailed,
    NewestImageDamaged,
    ExpiryAndAckInOneTurn,
    DiskFullWhileSettling,
    PublishRefusedDiskFull,
    StaleAnswerAfterMoving,
    DuplicateBeforeFirstSync,
    DuplicateAfterCrash,
    UnknownPublishKept,
    UnknownPublishGone,
    ClockLeaseAcrossCrash,
    ReadBackFromDisk,
    ParkedByRetries,
    GroupCreatedLate,
    ClockSetBack,
    CrashInReclaim,
    ReadBackFromCopy,
    TrimmedPastParked,
    CrashInReplayJob,
    CrashInMove,
    CrashInReset,
    SettingsChangedWhileLeased,
    ParkedFull,
    WindowFull,
    KeyScanFull,
    ClockJumpUnderLeases,
    GoodbyeAgainstTimeout,
    ReplayedAndSettled,
    MovedElsewhere,
    WaitingMoved,
    ParkedMoved,
    CameToRest,
    StreamFull,
    LogFull,
    DelayChanged,
    LeaseForNoTime,
    NoteChanged,
    ReaderMoved,
    GroupDeleted,
    StreamDeleted,
    NumberedSentAgain,
    ReadTriedAgain,
    CommitWaited,
    IdStoredAgain,
    MarkDamaged,
    BundleCommitted,
    BundleWithStaleLease,
    BundleLostInCrash,
    LogReadToItsEnd,
    LogReaderSkippedGone,
    WholeLogReadToItsEnd,
    WholeLogReadFromCopies,
}

impl Situation {
    pub const ALL: [Situation; 63] = [
        Situation::CrashInCommit,
        Situation::CrashBetweenWriteAndMark,
        Situation::CrashInRotation,
        Situation::CrashInSeal,
        Situation::CrashInPreparing,
        Situation::CrashInImage,
        Situation::CrashInTrim,
        Situation::CrashInRecovery,
        Situation::CrashBetweenCalls,
        Situation::CleanStop,
        Situation::PowerLost,
        Situation::WriteFailed,
        Situation::NewestImageDamaged,
        Situation::ExpiryAndAckInOneTurn,
        Situation::DiskFullWhileSettling,
        Situation::PublishRefusedDiskFull,
        Situation::StaleAnswerAfterMoving,
        Situation::DuplicateBeforeFirstSync,
        Situation::DuplicateAfterCrash,
        Situation::UnknownPublishKept,
        Situation::UnknownPublishGone,
        Situation::ClockLeaseAcrossCrash,
        Situation::ReadBackFromDisk,
        Situation::ParkedByRetries,
        Situation::GroupCreatedLate,
        Situation::ClockSetBack,
        Situation::CrashInReclaim,
        Situation::ReadBackFromCopy,
        Situation::TrimmedPastParked,
        Situation::CrashInReplayJob,
        Situation::CrashInMove,
        Situation::CrashInReset,
        Situation::SettingsChangedWhileLeased,
        Situation::ParkedFull,
        Situation::WindowFull,
        Situation::KeyScanFull,
        Situation::ClockJumpUnderLeases,
        Situation::GoodbyeAgainstTimeout,
        Situation::ReplayedAndSettled,
        Situation::MovedElsewhere,
        Situation::WaitingMoved,
        Situation::ParkedMoved,
        Situation::CameToRest,
        Situation::StreamFull,
        Situation::LogFull,
        Situation::DelayChanged,
        Situation::LeaseForNoTime,
        Situation::NoteChanged,
        Situation::ReaderMoved,
        Situation::GroupDeleted,
        Situation::StreamDeleted,
        Situation::NumberedSentAgain,
        Situation::ReadTriedAgain,
        Situation::CommitWaited,
        Situation::IdStoredAgain,
        Situation::MarkDamaged,
        Situation::BundleCommitted,
        Situation::BundleWithStaleLease,
        Situation::BundleLostInCrash,
        Situation::LogReadToItsEnd,
        Situation::LogReaderSkippedGone,
        Situation::WholeLogReadToItsEnd,
        Situation::WholeLogReadFromCopies,
    ];

    pub(crate) fn of_crash(stage: Stage) -> Situation {
        match stage {
            Stage::Committing => Situation::CrashInCommit,
            Stage::Marking => Situation::CrashBetweenWriteAndMark,
            Stage::Rotating => Situation::CrashInRotation,
            Stage::Sealing => Situation::CrashInSeal,
            Stage::Preparing => Situation::CrashInPreparing,
            Stage::Saving => Situation::CrashInImage,
            Stage::Trimming => Situation::CrashInTrim,
            Stage::Recovering => Situation::CrashInRecovery,
            Stage::Idle => Situation::CrashBetweenCalls,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Situation::CrashInCommit => "crash while a block is written or synced",
            Situation::CrashBetweenWriteAndMark => "crash between write and MARK",
            Situation::CrashInRotation => "crash in rotation",
            Situation::CrashInSeal => "crash while a segment is sealed",
            Situation::CrashInPreparing => "crash while the next segment is prepared",
            Situation::CrashInImage => "crash in a snapshot part",
            Situation::CrashInTrim => "crash in trim",
            Situation::CrashInRecovery => "crash in recovery itself",
            Situation::CrashBetweenCalls => "crash between calls",
            Situation::CleanStop => "clean stop and start",
            Situation::PowerLost => "power lost, not only the process",
            Situation::WriteFailed => "a write or sync failed",
            Situation::NewestImageDamaged => "the newest image was damaged",
            Situation::ExpiryAndAckInOneTurn => "expiry and ack in one turn",
            Situation::DiskFullWhileSettling => "disk full while settling",
            Situation::PublishRefusedDiskFull => "publish refused because the disk is full",
            Situation::StaleAnswerAfterMoving => "stale answer after the message moved on",
            Situation::DuplicateBeforeFirstSync => "duplicate publish before the first one's sync",
            Situation::DuplicateAfterCrash => "duplicate publish after a crash",
            Situation::UnknownPublishKept => "a publish of unknown outcome was kept",
            Situation::UnknownPublishGone => "a publish of unknown outcome was not kept",
            Situation::ClockLeaseAcrossCrash => "a lease on the clock went on across a crash",
            Situation::ReadBackFromDisk => "a delivery was read back from disk",
            Situation::ParkedByRetries => "a message was parked after its retries",
            Situation::GroupCreatedLate => "a group was created late",
            Situation::ClockSetBack => "the clock was set back over a restart",
            Situation::CrashInReclaim => "a crash in the middle of reclaim",
            Situation::ReadBackFromCopy => "a copied message was read back from its copy",
            Situation::TrimmedPastParked => "the log was trimmed past a parked message",
            Situation::CrashInReplayJob => "a crash in the middle of a replay job",
            Situation::CrashInMove => "a crash in the middle of a move",
            Situation::CrashInReset => "a crash in the middle of a reset or a purge",
            Situation::SettingsChangedWhileLeased => "settings changed while messages were leased",
            Situation::ParkedFull => "a group had as many parked as it may",
            Situation::WindowFull => "a group had as many in process as it may",
            Situation::KeyScanFull => "a group could not read past more of a stuck key",
            Situation::ClockJumpUnderLeases => "the clock jumped under leases",
            Situation::GoodbyeAgainstTimeout => "a goodbye came together with the timeout",
            Situation::ReplayedAndSettled => "a replayed message was settled",
            Situation::MovedElsewhere => "a message was moved",
            Situation::WaitingMoved => "what waits in a group is moved by a job",
            Situation::ParkedMoved => "parked messages are moved by a job",
            Situation::CameToRest => "the server came to rest",
            Situation::StreamFull => "a publish was refused because the stream is full",
            Situation::LogFull => "a log kept as many messages as it may",
            Situation::DelayChanged => "the delay of a stream was changed",
            Situation::LeaseForNoTime => "a receive asked for leases for no time",
            Situation::NoteChanged => "a note was changed",
            Situation::ReaderMoved => "a reader moved",
            Situation::GroupDeleted => "a group was deleted",
            Situation::StreamDeleted => "a stream was deleted",
            Situation::NumberedSentAgain => "a numbered batch was sent again",
            Situation::ReadTriedAgain => "a read found no descriptor and was tried again",
            Situation::CommitWaited => "a commit waited until the next segment found a descriptor",
            Situation::MarkDamaged => "a slot of MARK was damaged",
            Situation::IdStoredAgain => "an id came again after its window, and was stored",
            Situation::BundleCommitted => "leases were settled and messages stored together",
            Situation::BundleWithStaleLease => "a bundle was refused because a lease is over",
            Situation::BundleLostInCrash => "a crash took a bundle that was not durable",
            Situation::LogReadToItsEnd => "a reader came to the end of a stream",
            Situation::LogReaderSkippedGone => "messages went while a reader was about to read them",
            Situation::WholeLogReadToItsEnd => "a reader of the whole log came to its end",
            Situation::WholeLogReadFromCopies => "a reader of the whole log found messages in copies",
        }
    }
}

impl fmt::Display for Situation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// How often each situation was reached.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Situations(BTreeMap<Situation, u64>);

impl Situations {
    pub fn reached(&mut self, situation: Situation) {
        *self.0.entry(situation).or_default() += 1;
    }

    pub fn count(&self, situation: Situation) -> u64 {
        self.0.get(&situation).copied().unwrap_or_default()
    }

    pub fn add(&mut self, other: &Situations) {
        for (&situation, &count) in &other.0 {
            *self.0.entry(situation).or_default() += count;
        }
    }
}
