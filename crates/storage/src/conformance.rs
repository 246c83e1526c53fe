//! The engine contract as tests, for every engine, also one in another crate.
//!
//! A [`Subject`] knows how to make an engine on data that outlives it. Each clause of the contract is one
//! function; [`engine_conforms!`](crate::engine_conforms) makes a test of each. An engine under test takes
//! frames of 12 KiB or more and frees space in units of no more than 64 KiB, or frame by frame.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use bytes::Bytes;
use forebay_core::types::{Epoch, PartKey, Position, Seq, ShardId, StreamId};

use crate::engine::{
    Appended, Engine, Frame, Image, ImagePart, ReadBudget, Run, Saved, StorageError, StoredFrame,
};

/// The shard whose log a subject has.
pub const SHARD: ShardId = ShardId(0);
const ALL: ReadBudget = ReadBudget { bytes_max: usize::MAX, frames_max: usize::MAX, payloads: true };

/// An engine under test, and the data it works on.
pub trait Subject {
    type Engine: Engine;

    /// A subject with an empty log.
    fn new() -> Self;

    /// Whether the servers are there that the engine needs. If not, the subject has said so.
    fn is_there(&self) -> bool {
        true
    }

    /// An engine on the same data. Any earlier one has been dropped.
    fn engine(&self) -> impl Future<Output = Self::Engine>;

    /// An engine on the same data while an earlier one is in use. `None` where the data is locked instead.
    fn second_engine(&self) -> impl Future<Output = Option<Self::Engine>> {
        std::future::ready(None)
    }

    /// How many takeovers the clause on takeovers plays.
    fn takeovers(&self) -> u64 {
        20
    }

    /// What these takeovers were.
    fn played(&self, _takeovers: &Takeovers) {}
}

/// The sum of the takeovers that were played.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Takeovers {
    pub takeovers: u64,
    /// Frames that former owners were told are durable.
    pub reported: u64,
    /// Frames of former owners that no later owner reads. None of them was reported.
    pub void: u64,
}

fn frame(seq: u64, payload: &[u8]) -> Frame {
    Frame {
        shard: SHARD,
        entries: Bytes::from(format!("entry {seq}")),
        payload: Bytes::copy_from_slice(payload),
        runs: vec![Run { stream: StreamId(3), first: Seq(seq), count: 1, copied: false }],
    }
}

fn payload(seq: u64) -> Vec<u8> {
    vec![seq as u8; 3000]
}

async fn put(engine: &impl Engine, seq: u64) -> Position {
    engine.append(frame(seq, &payload(seq))).await.expect("it becomes durable").get()
}

async fn put_many(engine: &impl Engine, count: u64) -> Vec<Position> {
    let appended: Vec<Appended> = (1..=count).map(|seq| engine.append(frame(seq, &payload(seq)))).collect();
    let mut positions = Vec::new();
    for answer in appended {
        positions.push(answer.await.expect("it becomes durable").get());
    }
    positions
}

async fn read(engine: &impl Engine, from: Position, budget: ReadBudget) -> Vec<StoredFrame> {
    engine.read(SHARD, from, budget).await.expect("it can be read")
}

fn positions(frames: &[StoredFrame]) -> Vec<Position> {
    frames.iter().map(|frame| frame.position).collect()
}

fn part(id: u32, through: Position, bytes: Option<&'static str>) -> ImagePart {
    let key = PartKey { kind: 2, id, sub: 0 };
    ImagePart { key, through, bytes: bytes.map(|bytes| Bytes::from_static(bytes.as_bytes())) }
}

async fn save(engine: &impl Engine, parts: Vec<ImagePart>) -> Saved {
    engine.save(SHARD, Image { parts }).await.expect("it is saved")
}

pub async fn frames_keep_their_order_and_their_bytes<S: Subject>(subject: S) {
    let engine = subject.engine().await;
    engine.claim(SHARD).await.expect("it can be claimed");
    let written = put_many(&engine, 60).await;
    assert!(written.is_sorted_by(|one, other| one < other), "positions grow");
    let frames = read(&engine, Position::START, ALL).await;
    assert_eq!(positions(&frames), written);
    for (frame, seq) in frames.iter().zip(1..) {
        assert_eq!(frame.entries, format!("entry {seq}"));
        assert_eq!(frame.payload, payload(seq));
        assert_eq!(frame.runs, [Run { stream: StreamId(3), first: Seq(seq), count: 1, copied: false }]);
        assert_eq!(frame.epoch, Epoch(1));
    }
}

pub async fn an_answer_comes_no_earlier_than_those_before_it<S: Subject>(subject: S) {
    let engine = subject.engine().await;
    engine.claim(SHARD).await.expect("it can be claimed");
    let mut appended: Vec<Appended> = (1..=40).map(|seq| engine.append(frame(seq, &payload(seq)))).collect();
    let last = appended.pop().expect("there are forty").await.expect("it becomes durable").get();
    for mut answer in appended {
        let position = answer.try_take().expect("it was answered before the last").expect("it is durable");
        assert!(position.get() < last);
    }
}

pub async fn a_durable_frame_can_be_read<S: Subject>(subject: S) {
    let engine = subject.engine().await;
    engine.claim(SHARD).await.expect("it can be claimed");
    for seq in 1..=20 {
        let position = put(&engine, seq).await;
        let frames = read(&engine, position, ALL).await;
        assert_eq!(positions(&frames), [position]);
    }
}

pub async fn a_read_keeps_to_its_budget_and_brings_at_least_one<S: Subject>(subject: S) {
    let engine = subject.engine().await;
    engine.claim(SHARD).await.expect("it can be claimed");
    let written = put_many(&engine, 20).await;
    let one = ReadBudget { bytes_max: 1, ..ALL };
    assert_eq!(positions(&read(&engine, written[4], one).await), [written[4]]);
    let three = ReadBudget { frames_max: 3, ..ALL };
    assert_eq!(positions(&read(&engine, Position(written[4].0 + 1), three).await), written[5..8]);
    let bare = ReadBudget { payloads: false, ..ALL };
    assert!(read(&engine, Position::START, bare).await.iter().all(|frame| frame.payload.is_empty()));
    let after = Position(written[19].0 + 1);
    assert!(read(&engine, after, ALL).await.is_empty());
}

pub async fn a_new_owner_finds_everything_and_counts_one_further<S: Subject>(subject: S) {
    let engine = subject.engine().await;
    let claim = engine.claim(SHARD).await.expect("it can be claimed");
    assert_eq!((claim.epoch, claim.parts.len(), claim.runs.len()), (Epoch(1), 0, 0));
    let written = put_many(&engine, 30).await;
    drop(engine);
    let engine = subject.engine().await;
    let claim = engine.claim(SHARD).await.expect("it can be claimed");
    assert_eq!(claim.epoch, Epoch(2));
    assert!(claim.start <= written[0] && written[29] < claim.end);
    assert_eq!(claim.indexed, claim.end);
    let indexed: u64 = claim.runs.iter().map(|run| run.count).sum();
    assert_eq!((indexed, claim.runs[0].first, claim.runs[0].position), (30, Seq(1), written[0]));
    let later = put(&engine, 31).await;
    assert!(later >= claim.end);
    let frames = read(&engine, Position::START, ALL).await;
    assert_eq!(frames.len(), 31);
    assert_eq!((frames[29].epoch, frames[30].epoch), (Epoch(1), Epoch(2)));
}

pub async fn a_new_owner_finds_every_copy_by_itself<S: Subject>(subject: S) {
    let engine = subject.engine().await;
    engine.claim(SHARD).await.expect("it can be claimed");
    let mut copies = Vec::new();
    for seq in 1..=40 {
        let mut frame = frame(seq, &payload(seq));
        let own = frame.runs[0];
        if seq % 3 == 0 {
            // Two that follow each other, and would be joined if they were not copies.
            frame.runs.extend([(seq / 2, 1), (seq / 2 + 1, 2)].map(|(first, count)| Run {
                first: Seq(first),
                count,
                copied: true,
                ..own
            }));
        }
        let runs = frame.runs.clone();
        let position = engine.append(frame).await.expect("it becomes durable").get();
        copies.extend(runs.iter().skip(1).map(|run| (run.first, u64::from(run.count), position)));
        assert_eq!(read(&engine, position, ALL).await[0].runs, runs);
    }
    drop(engine);
    let claim = subject.engine().await.claim(SHARD).await.expect("it can be claimed");
    let copied = claim.runs.iter().filter(|run| run.copied);
    let found: Vec<_> = copied.map(|run| (run.first, run.count, run.position)).collect();
    assert_eq!(found, copies);
    let published: u64 = claim.runs.iter().filter(|run| !run.copied).map(|run| run.count).sum();
    assert_eq!(published, 40);
}

pub async fn a_new_owner_finds_the_newest_image<S: Subject>(subject: S) {
    let engine = subject.engine().await;
    engine.claim(SHARD).await.expect("it can be claimed");
    let at = put_many(&engine, 10).await;
    let saved = save(&engine, vec![part(1, at[3], Some("a")), part(2, at[3], Some("b"))]).await;
    assert_eq!(saved.covered, Position::START, "there is no older one");
    let saved = save(&engine, vec![part(1, at[8], None), part(2, at[7], Some("c"))]).await;
    assert_eq!(saved.covered, at[3]);
    drop(engine);
    let engine = subject.engine().await;
    let claim = engine.claim(SHARD).await.expect("it can be claimed");
    let parts: Vec<_> = claim.parts.iter().map(|part| (part.key.id, part.through, &part.bytes[..])).collect();
    assert_eq!(parts, [(1, at[8], &b"a"[..]), (2, at[7], &b"c"[..])]);
    assert_eq!(claim.covered, at[3]);
    let saved = save(&engine, vec![part(1, at[9], None)]).await;
    assert_eq!(saved.covered, at[7], "what the claim found is now the older one");
    let missing = engine.save(SHARD, Image { parts: vec![part(2, at[9], None)] }).await;
    assert!(matches!(missing, Err(StorageError::NoSuchPart { .. })), "a part that was left out is gone");
}

pub async fn trimming_removes_the_front_and_nothing_else<S: Subject>(subject: S) {
    let engine = subject.engine().await;
    engine.claim(SHARD).await.expect("it can be claimed");
    let at = put_many(&engine, 60).await;
    for _ in 0..2 {
        save(&engine, vec![part(1, at[40], Some("state"))]).await;
    }
    engine.trim(SHARD, at[40]).await.expect("it is trimmed");
    let kept = positions(&read(&engine, Position::START, ALL).await);
    assert!(kept.len() >= 19 && kept.len() < 60, "space returns in whole segments: {}", kept.len());
    assert_eq!(kept[..], at[60 - kept.len()..], "nothing after the position is missing");
    drop(engine);
    let engine = subject.engine().await;
    let claim = engine.claim(SHARD).await.expect("it can be claimed");
    assert!(at[0] < claim.start && claim.start <= kept[0]);
    assert_eq!(positions(&read(&engine, claim.start, ALL).await), kept);
}

pub async fn a_frame_that_is_too_large_is_refused_and_the_log_goes_on<S: Subject>(subject: S) {
    let engine = subject.engine().await;
    let claim = engine.claim(SHARD).await.expect("it can be claimed");
    let first = put(&engine, 1).await;
    let entries = frame(2, b"").entries.len();
    let fits = engine.append(frame(2, &vec![1; claim.frame_bytes_max - entries])).await;
    fits.expect("the largest frame is taken");
    let error = engine.append(frame(3, &vec![1; claim.frame_bytes_max])).await;
    assert!(matches!(error, Err(StorageError::FrameTooLarge { .. })), "{error:?}");
    put(&engine, 3).await;
    assert_eq!(read(&engine, first, ALL).await.len(), 3);
}

pub async fn another_shard_is_not_here<S: Subject>(subject: S) {
    let engine = subject.engine().await;
    engine.claim(SHARD).await.expect("it can be claimed");
    let other = ShardId(9);
    let refused = |error: Option<StorageError>| {
        assert!(matches!(error, Some(StorageError::NoSuchShard { shard }) if shard == other), "{error:?}");
    };
    refused(engine.claim(other).await.err());
    refused(engine.append(Frame { shard: other, ..frame(1, b"x") }).await.err());
    refused(engine.read(other, Position::START, ALL).await.err());
    refused(engine.save(other, Image::default()).await.err());
    refused(engine.trim(other, Position::START).await.err());
}

/// A second claim fences the first owner. Says nothing about an engine whose data is open only once.
pub async fn a_second_claim_fences_the_first_owner<S: Subject>(subject: S) {
    let first = subject.engine().await;
    let Some(second) = subject.second_engine().await else { return };
    first.claim(SHARD).await.expect("it can be claimed");
    put(&first, 1).await;
    let epoch = second.claim(SHARD).await.expect("it can be claimed").epoch;
    let error = first.append(frame(2, b"x")).await;
    assert!(matches!(error, Err(StorageError::Fenced { epoch: by }) if by == epoch), "{error:?}");
    let error = first.save(SHARD, Image::default()).await;
    assert!(matches!(error, Err(StorageError::Fenced { .. })), "{error:?}");
    put(&second, 2).await;
    assert_eq!(read(&second, Position::START, ALL).await.len(), 2);
}

/// A former owner never takes a log that its successor has trimmed for one with a hole.
pub async fn a_former_owner_is_told_that_the_log_is_lost_if_it_was_trimmed<S: Subject>(subject: S) {
    let first = subject.engine().await;
    let Some(second) = subject.second_engine().await else { return };
    first.claim(SHARD).await.expect("it can be claimed");
    let at = put_many(&first, 60).await;
    let epoch = second.claim(SHARD).await.expect("it can be claimed").epoch;
    for _ in 0..2 {
        save(&second, vec![part(1, at[40], Some("state"))]).await;
    }
    second.trim(SHARD, at[40]).await.expect("it is trimmed");
    for from in [Position::START, at[0], at[1]] {
        let error = first.read(SHARD, from, ALL).await;
        assert!(matches!(error, Err(StorageError::Fenced { epoch: by }) if by == epoch), "{error:?}");
    }
    let kept = positions(&read(&second, Position::START, ALL).await);
    assert_eq!(kept.last(), at.last());
}

/// The largest frame comes back whole, however many pieces an engine stores it in.
pub async fn the_largest_frame_comes_back_as_it_was<S: Subject>(subject: S) {
    let engine = subject.engine().await;
    let claim = engine.claim(SHARD).await.expect("it can be claimed");
    let entries = frame(1, b"").entries.len();
    let payload: Vec<u8> = (0..claim.frame_bytes_max - entries).map(|at| (at / 1_000) as u8).collect();
    let position = engine.append(frame(1, &payload)).await.expect("it becomes durable").get();
    let next = put(&engine, 2).await;
    let frames = read(&engine, position, ALL).await;
    assert_eq!(positions(&frames), [position, next]);
    assert!(frames[0].payload == payload, "the payload is as it was");
    drop(engine);
    let engine = subject.engine().await;
    engine.claim(SHARD).await.expect("it can be claimed");
    let frames = read(&engine, Position::START, ALL).await;
    assert!(frames[0].payload == payload, "the next owner finds it too");
}

/// Index runs reach back to the first frame that is kept, also where an image covers it.
pub async fn a_new_owner_is_told_of_every_kept_message<S: Subject>(subject: S) {
    let engine = subject.engine().await;
    engine.claim(SHARD).await.expect("it can be claimed");
    let at = put_many(&engine, 60).await;
    for _ in 0..2 {
        save(&engine, vec![part(1, at[50], Some("state"))]).await;
    }
    engine.trim(SHARD, at[30]).await.expect("it is trimmed");
    let kept = read(&engine, Position::START, ALL).await.len() as u64;
    drop(engine);
    let engine = subject.engine().await;
    let claim = engine.claim(SHARD).await.expect("it can be claimed");
    assert!(claim.indexed > at[50], "the log is read behind the image only");
    let indexed = claim.runs.iter().filter(|run| run.position >= claim.start);
    assert!(indexed.map(|run| run.count).sum::<u64>() >= kept, "every kept frame is in the index");
    assert!(claim.runs.iter().all(|run| run.position < claim.end));
}

/// A takeover from an owner that is alive and busy: no frame that was reported as durable is void, the new owner
/// reads none that is void or was not appended, and nothing of the former owner appears later.
pub async fn takeovers_lose_no_reported_frame<S: Subject>(subject: S) {
    const ON_THEIR_WAY: usize = 32;
    let mut owner = subject.engine().await;
    owner.claim(SHARD).await.expect("it can be claimed");
    let (mut seq, mut log) = (0, Vec::new());
    let mut played = Takeovers::default();
    for round in 0..subject.takeovers() {
        let Some(next) = subject.second_engine().await else { return };
        let (mut reported, mut refused_by, mut late) = (Vec::new(), None, 0);
        let busy = async {
            let mut on_their_way = VecDeque::new();
            loop {
                while refused_by.is_none() && on_their_way.len() < ON_THEIR_WAY {
                    seq += 1;
                    on_their_way.push_back((seq, owner.append(frame(seq, b"x"))));
                }
                let Some((seq, answer)) = on_their_way.pop_front() else { break };
                match answer.await {
                    Ok(position) => {
                        late += u64::from(refused_by.is_some());
                        reported.push((position.get(), format!("entry {seq}")));
                    }
                    Err(StorageError::Fenced { epoch }) => refused_by = Some(epoch),
                    Err(error) => panic!("another owner is the only reason to refuse: {error}"),
                }
            }
        };
        let claim = both(next.claim(SHARD), busy).await.expect("it can be claimed");
        assert_eq!(refused_by, Some(claim.epoch));
        let found = read(&next, Position::START, ALL).await;
        let entries = |frame: &StoredFrame| String::from_utf8_lossy(&frame.entries).into_owned();
        let found: Vec<_> = found.iter().map(|frame| (frame.position, entries(frame))).collect();
        assert!(
            found.starts_with(&log),
            "round {round}: a frame is read that was void when the log was taken"
        );
        let new = &found[log.len()..];
        let void = reported.iter().filter(|frame| !new.contains(frame)).count();
        assert_eq!(void, 0, "round {round}: frames that were reported as durable are void");
        assert_eq!(late, 0, "round {round}: after a refusal nothing is durable");
        // Frames that were not reported may be there: their outcome was unknown. From now on they count.
        assert!(new.starts_with(&reported), "round {round}: reported frames are out of order");
        let first = seq + 1 - (reported.len() + ON_THEIR_WAY) as u64;
        let appended = (first..=seq).map(|seq| format!("entry {seq}"));
        assert!(new.iter().zip(appended).all(|((_, found), appended)| *found == appended));
        assert!(found.iter().all(|(position, _)| *position < claim.end), "nothing comes later");
        assert!(found.is_sorted_by(|one, other| one.0 < other.0), "no position is there twice");
        played.takeovers += 1;
        played.reported += reported.len() as u64;
        played.void += (reported.len() + ON_THEIR_WAY - new.len()) as u64;
        log = found;
        owner = next;
    }
    subject.played(&played);
}

/// Does two things at once, beginning with the first.
async fn both<T>(one: impl Future<Output = T>, other: impl Future<Output = ()>) -> T {
    let (mut one, mut other) = (pin!(one), pin!(other));
    let (mut done, mut is_over) = (None, false);
    poll_fn(|cx| {
        if done.is_none()
            && let Poll::Ready(result) = one.as_mut().poll(cx)
        {
            done = Some(result);
        }
        is_over = is_over || other.as_mut().poll(cx).is_ready();
        if is_over { done.take().map_or(Poll::Pending, Poll::Ready) } else { Poll::Pending }
    })
    .await
}

/// Runs one clause on a runtime of its own.
pub fn run<S: Subject, F: Future<Output = ()>>(clause: impl FnOnce(S) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let subject = S::new();
    if subject.is_there() {
        runtime.block_on(clause(subject));
    }
}

/// Makes a module of tests, one for each clause of the contract, for a type that is a
/// [`Subject`](crate::conformance::Subject).
///
/// ```text
/// forebay_storage::engine_conforms!(memory, Memory);
/// ```
#[macro_export]
macro_rules! engine_conforms {
    ($module:ident, $subject:ty, $($clause:ident),* $(,)?) => {
        mod $module {
            use super::*;
            $(
                #[test]
                fn $clause() {
                    $crate::conformance::run($crate::conformance::$clause::<$subject>);
                }
            )*
        }
    };
    ($module:ident, $subject:ty) => {
        $crate::engine_conforms!(
            $module,
            $subject,
            frames_keep_their_order_and_their_bytes,
            an_answer_comes_no_earlier_than_those_before_it,
            a_durable_frame_can_be_read,
            a_read_keeps_to_its_budget_and_brings_at_least_one,
            a_new_owner_finds_everything_and_counts_one_further,
            a_new_owner_finds_every_copy_by_itself,
            a_new_owner_finds_the_newest_image,
            trimming_removes_the_front_and_nothing_else,
            a_frame_that_is_too_large_is_refused_and_the_log_goes_on,
            another_shard_is_not_here,
            a_second_claim_fences_the_first_owner,
            a_former_owner_is_told_that_the_log_is_lost_if_it_was_trimmed,
            the_largest_frame_comes_back_as_it_was,
            a_new_owner_is_told_of_every_kept_message,
            takeovers_lose_no_reported_frame,
        );
    };
}
