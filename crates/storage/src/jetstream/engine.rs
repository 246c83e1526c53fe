//! The log on JetStream as an [`Engine`].

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use forebay_core::types::{Position, ShardId};
use futures_util::future::{AbortHandle, abortable};
use serde_json::json;
use tokio::sync::{mpsc, oneshot};

use crate::engine::{
    Appended, BoxFuture, Claim, Elapsed, Engine, EngineFigures, Frame, Image, ReadBudget, Saved, SpaceGauge,
    StorageError, StoredFrame, Tenure,
};
use crate::jetstream::JetStreamConfig;
use crate::jetstream::claim::{self, Claimed, Seen};
use crate::jetstream::images::{self, Images};
use crate::jetstream::keeper::{Clock, Keeper, KeeperState, Order, Reply, Shared, WENT_BACK_AFTER};
use crate::jetstream::link::{CallError, Info, Link, Server};
use crate::jetstream::open::{self, JetStreamError};
use crate::jetstream::pipeline::{Pipeline, Window};
use crate::jetstream::presence::{self, NodeState, Office, Presence};
use crate::jetstream::record::{Claimant, Kind, PART_BYTES, Place, Scribe};
use crate::jetstream::tenure::{Watched, silence};
use crate::jetstream::walk::{Step, Walk, WalkedFrame, damaged};
use crate::jetstream::wire::Wire;

/// Frames that may wait in the engine.
const FRAMES_MAX: usize = 64;
/// Messages and bytes that are on their way to the servers at once. More of either only add latency.
const WINDOW: Window = Window { messages: 32, bytes: 4 << 20 };
/// Readers of a log that a replica does not have yet.
const LAG_PAUSE: Duration = Duration::from_millis(10);
const LAG_TRIES: u32 = 1_500;
/// How often a standby looks at the log.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How often the size of the stream is asked for.
const SPACE_EVERY: Duration = Duration::from_secs(2);
/// While a frame is on its way for longer than this, nothing is handed out that depends on owning the log.
const PATIENCE: Duration = Duration::from_millis(500);

/// A log on JetStream, as one node sees it.
pub struct JetStreamEngine {
    config: JetStreamConfig,
    link: Link,
    /// The id of the log's stream.
    id: String,
    presence: Arc<Presence>,
    answers: AbortHandle,
    /// The log as it was when it was found to have no owner. Held for the length of one look.
    free: Mutex<Option<Seen>>,
    owned: OnceLock<Owned>,
}

impl Drop for JetStreamEngine {
    fn drop(&mut self) {
        self.answers.abort();
    }
}

/// What only an owner has.
struct Owned {
    epoch: forebay_core::types::Epoch,
    orders: mpsc::Sender<Order>,
    shared: Arc<Shared>,
    /// One save at a time.
    images: tokio::sync::Mutex<Images>,
    space: AbortHandle,
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.space.abort();
    }
}

/// The owner of a log, as another node sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ownership {
    pub epoch: u32,
    pub owner: Option<Claimant>,
}

/// How a cluster stands, as one node sees it.
#[derive(Debug, Clone, Default)]
pub struct Survey {
    pub ownership: Ownership,
    /// `None` if it cannot be asked for now.
    pub log: Option<LogState>,
    /// All nodes that answered, this one included.
    pub nodes: Vec<NodeState>,
    /// Why something is missing.
    pub problem: Option<String>,
}

/// The log's stream.
#[derive(Debug, Clone, Default)]
pub struct LogState {
    pub stream: String,
    /// The last record.
    pub last: u64,
    pub bytes: u64,
    pub bytes_max: Option<u64>,
    pub servers: Vec<Server>,
}

impl JetStreamEngine {
    /// Connects, checks the servers, and makes the streams where they are missing.
    pub async fn open(config: JetStreamConfig) -> Result<JetStreamEngine, JetStreamError> {
        JetStreamEngine::open_on(open::connect(&config).await?, config).await
    }

    /// The same over a connection that is there. The settings need not name servers then.
    pub async fn open_on(
        wire: Arc<dyn Wire>,
        config: JetStreamConfig,
    ) -> Result<JetStreamEngine, JetStreamError> {
        let (link, id) = open::open(wire, &config).await?;
        let presence = Arc::new(Presence::new(config.claimant.clone()));
        let answers = spawn(&config, presence::answer(link.clone(), presence.clone()));
        let (free, owned) = (Mutex::default(), OnceLock::new());
        Ok(JetStreamEngine { config, link, id, presence, answers, free, owned })
    }

    /// Asks the servers and all nodes how they stand.
    pub async fn survey(&self) -> Survey {
        let log = async {
            let info = self.link.info(&self.link.log).await?;
            let seen = claim::look(&self.link).await?;
            Ok::<_, CallError>((info, Ownership { epoch: seen.epoch.0, owner: seen.owner }))
        };
        let (nodes, log) = tokio::join!(presence::nodes(&self.link, &self.presence), log);
        match log {
            Ok((info, ownership)) => {
                Survey { ownership, log: Some(self.log_state(info)), nodes, problem: None }
            }
            Err(error) => Survey { nodes, problem: Some(error.to_string()), ..Survey::default() },
        }
    }

    fn log_state(&self, info: Info) -> LogState {
        let Info { last, bytes, bytes_max, mut servers, .. } = info;
        if servers.is_empty() {
            // A server without a cluster does not name itself.
            let name = self.link.wire().about().name;
            servers.push(Server {
                name,
                is_leader: true,
                is_online: true,
                is_current: true,
                ..Server::default()
            });
        }
        LogState { stream: self.link.log.clone(), last, bytes, bytes_max, servers }
    }

    /// Resolves when the log may be claimed: it has no owner, its owner has stopped, or nothing was written for so long
    /// that its owner does not serve any more. Silence counts only while the stream's leader answers and hears from a
    /// majority of the servers, so that an election among the servers is no reason for a change of owner.
    pub async fn stand_by(&self, mut tell: impl FnMut(&Ownership)) -> Result<(), StorageError> {
        let (mut told, mut behind_since) = (None, None);
        loop {
            match self.look().await {
                Ok((ownership, is_free)) => {
                    behind_since = None;
                    if told.as_ref() != Some(&ownership) {
                        tell(&ownership);
                        told = Some(ownership);
                    }
                    if is_free {
                        return Ok(());
                    }
                }
                Err(Look::Passing(why)) => {
                    tracing::debug!(why, "the log cannot be watched now");
                    self.watched().since = None;
                }
                Err(Look::Behind { known, found }) => {
                    let now = (self.config.clock)();
                    if now.since(*behind_since.get_or_insert(now)) > WENT_BACK_AFTER {
                        return Err(StorageError::WentBack { known, found });
                    }
                    self.watched().since = None;
                }
                Err(Look::Lasting(error)) => return Err(error),
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn look(&self) -> Result<(Ownership, bool), Look> {
        let info = self.link.info(&self.link.log).await.map_err(Look::from)?;
        let (known, found) = (Position(self.watched().last), Position(info.last));
        if info.id != self.id {
            return Err(Look::Lasting(StorageError::WentBack { known, found }));
        }
        if found < known {
            return Err(Look::Behind { known, found });
        }
        if !info.has_majority() {
            return Err(Look::Passing("the stream's leader does not hear from a majority".to_owned()));
        }
        let seen = claim::look(&self.link).await.map_err(Look::from)?;
        let now = (self.config.clock)();
        let silent = self.watched().look(now, info.last);
        // A claim that came after the end was asked for ends the silence.
        let is_silent = silent >= silence(self.config.tenure) && seen.claim <= info.last;
        let is_free = seen.epoch.0 == 0 || seen.released == Some(info.last) || is_silent;
        *self.free.lock().unwrap_or_else(PoisonError::into_inner) = is_free.then(|| seen.clone());
        Ok((Ownership { epoch: seen.epoch.0, owner: seen.owner }, is_free))
    }

    fn watched(&self) -> MutexGuard<'_, Watched> {
        self.presence.watched()
    }

    /// The epoch in which this node owned the log, if it has claimed it.
    pub fn epoch(&self) -> Option<u32> {
        self.owned.get().map(|owned| owned.epoch.0)
    }

    /// All of the log that this one is to be a copy of is durable here: it may be served from now on.
    pub async fn finish_copy(&self) -> Result<(), StorageError> {
        open::finish_copy(&self.link).await
    }

    /// Makes frames that wait durable and writes down that the owner has stopped, so that the next one need not wait.
    pub async fn close(&self) {
        let Some(owned) = self.owned.get() else { return };
        let (done, stopped) = oneshot::channel();
        if owned.orders.send(Order::Stop(done)).await.is_ok() {
            let _ = stopped.await;
        }
        self.link.wire().flush().await;
    }

    fn check_shard(&self, shard: ShardId) -> Result<(), StorageError> {
        if shard == self.config.shard { Ok(()) } else { Err(StorageError::NoSuchShard { shard }) }
    }

    fn owned(&self, shard: ShardId) -> Result<&Owned, StorageError> {
        self.check_shard(shard)?;
        self.owned.get().ok_or(StorageError::Stopped)
    }

    async fn take(&self, shard: ShardId) -> Result<Claim, StorageError> {
        self.check_shard(shard)?;
        if let Some(owned) = self.owned.get() {
            return Err(StorageError::Fenced { epoch: owned.epoch });
        }
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).take();
        let claimed = claim::claim(&self.link, &self.config, free).await?;
        let Claimed { epoch, sequence, end, .. } = claimed;
        let claimed_at = (self.config.clock)();
        let seen = self.watched().since.map_or(Duration::ZERO, |since| claimed_at.since(since));
        let seen = if claimed.last_of_others <= self.watched().last { seen } else { Duration::ZERO };
        self.wait_out(&claimed).await;
        // Waiting has taken its time too.
        let waited = (self.config.clock)().since(claimed_at);
        let elapsed = Elapsed { stamped: claimed.elapsed + waited, seen: seen + waited };
        let failed = |error| CallError::into_storage(error, "claim the log");
        let inbox = self.link.wire().inbox();
        let answers = self.link.wire().listen(format!("{inbox}.*.*")).await;
        let answers = answers.map_err(|error| failed(CallError::Passing(error)))?;
        let clock: Clock = self.config.clock.clone();
        let tenure = {
            let clock = clock.clone();
            Tenure::limited(PATIENCE, self.config.tenure / 2, move || clock())
        };
        let start = claimed.known.start().position;
        let shared = Arc::new(Shared::new(claimed.known));
        let (orders, queue) = mpsc::channel(FRAMES_MAX);
        #[cfg_attr(not(test), allow(unused_mut, reason = "only a test plants a fault"))]
        let mut pipeline = Pipeline::new(epoch, sequence, WINDOW);
        #[cfg(test)]
        (pipeline.believes_every_answer = self.config.believes_every_answer);
        let keeper = Keeper {
            link: self.link.clone(),
            id: self.id.clone(),
            owner: self.config.claimant.clone(),
            ending: claimed.ending,
            pipeline,
            scribe: Scribe { epoch, number: 0, chain: claimed.chain, end, part_bytes: PART_BYTES },
            index: claimed.index,
            shared: shared.clone(),
            tenure: tenure.clone(),
            tenure_length: self.config.tenure,
            unreachable_max: self.config.unreachable_max,
            clock,
            last_frame: claimed.last_frame,
            inbox,
            answers,
            orders: queue,
            state: KeeperState::default(),
        };
        (self.config.spawn)(Box::pin(keeper.run()));
        let space = SpaceGauge::default();
        let watch = watch_space(self.link.clone(), space.clone(), self.config.reserve_bytes);
        let watch = spawn(&self.config, watch);
        let (newest, parts) =
            claimed.image.map_or((None, Vec::new()), |(manifest, parts)| (Some(manifest), parts));
        let covered = newest.as_ref().map_or(Position::START, |newest| newest.covered);
        let garbage = images::list(&self.link, shard).await.unwrap_or_default();
        let images = tokio::sync::Mutex::new(Images { newest, number: 0, garbage });
        let _ = self.presence.office.set(Office { epoch, tenure: tenure.clone(), shared: shared.clone() });
        let owned = Owned { epoch, orders, shared, images, space: watch };
        if self.owned.set(owned).is_err() {
            return Err(StorageError::Fenced { epoch });
        }
        Ok(Claim {
            epoch,
            start,
            end,
            parts,
            covered,
            runs: claimed.runs,
            indexed: end,
            index_stride: self.config.place_bytes,
            trim_unit: self.config.place_bytes,
            frames_max: FRAMES_MAX,
            frame_bytes_max: self.config.frame_bytes_max,
            space,
            tenure,
            elapsed: Some(elapsed),
            remarks: claimed.remarks,
        })
    }

    /// Waits until the former owner does not serve any more. Its last record may have been seen only now.
    async fn wait_out(&self, claimed: &Claimed) {
        if claimed.was_released {
            return;
        }
        let now = (self.config.clock)();
        let rest = self.watched().rest(now, claimed.last_of_others, self.config.tenure);
        if !rest.is_zero() {
            tracing::info!(
                seconds = rest.as_secs_f64(),
                "waits until the former owner does not serve any more"
            );
            tokio::time::sleep(rest).await;
        }
    }

    async fn order(&self, shard: ShardId, order: impl FnOnce(Reply) -> Order) -> Result<(), StorageError> {
        let owned = self.owned(shard)?;
        let (reply, answer) = oneshot::channel();
        owned.orders.send(order(reply)).await.map_err(|_| StorageError::Stopped)?;
        answer.await.unwrap_or(Err(StorageError::Stopped))
    }

    async fn read_frames(
        &self,
        shard: ShardId,
        from: Position,
        budget: ReadBudget,
    ) -> Result<Vec<StoredFrame>, StorageError> {
        let shared = &self.owned(shard)?.shared;
        let log = &self.link.log;
        let (place, last, end) = {
            let known = shared.known();
            (known.place(from), known.last, known.end)
        };
        let (mut frames, mut bytes) = (Vec::new(), 0);
        if from >= end || budget.frames_max == 0 {
            return Ok(frames);
        }
        let mut walk = Walk::from(log, &place);
        let mut next = place.sequence;
        let mut tries = 0;
        'log: while next <= last {
            let subjects = self.link.all_log_subjects();
            let found = self.link.persist("read the log", || self.link.read(log, &subjects, next)).await?;
            if found.is_empty() {
                tries += 1;
                if tries > LAG_TRIES {
                    return Err(damaged(log, next, "records that were durable are missing"));
                }
                tokio::time::sleep(LAG_PAUSE).await;
                continue;
            }
            tries = 0;
            for stored in found {
                if stored.sequence > next
                    && let Some(place) = self.begins_after(shard, next).await?
                {
                    if !frames.is_empty() {
                        return Ok(frames);
                    }
                    (walk, next) = (Walk::from(log, &place), place.sequence);
                    continue 'log;
                }
                next = stored.sequence + 1;
                if stored.sequence > last {
                    break;
                }
                let Step::Frame(frame) = walk.step(&stored)? else { continue };
                if frame.position < from {
                    continue;
                }
                let WalkedFrame { position, epoch, runs, entries, payload, .. } = frame;
                let payload = if budget.payloads { payload } else { bytes::Bytes::new() };
                bytes += entries.len() + payload.len();
                frames.push(StoredFrame { position, epoch, entries, payload, runs });
                if bytes >= budget.bytes_max || frames.len() >= budget.frames_max {
                    return Ok(frames);
                }
            }
        }
        Ok(frames)
    }

    /// A record that was there is not. The next owner may have let it go, and then this one has lost the log. If this
    /// one still has the log, it has let the record go itself, or a former owner has whose request came late. Returns
    /// the place with which the log begins now, or `None` if it begins earlier.
    async fn begins_after(&self, shard: ShardId, missing: u64) -> Result<Option<Place>, StorageError> {
        self.confirm(shard).await?;
        let info = self.link.persist("read the log", || self.link.info(&self.link.log)).await?;
        if info.first <= missing {
            return Ok(None);
        }
        let place = self.owned(shard)?.shared.known().place_from(info.first);
        let what = "no place is known with which the log begins";
        place.map(Some).ok_or_else(|| damaged(&self.link.log, info.first, what))
    }

    /// Resolves when it is certain that no other node had claimed the log when this was called. The error says why this
    /// node has lost it.
    async fn confirm(&self, shard: ShardId) -> Result<(), StorageError> {
        self.order(shard, |reply| Order::Record(Kind::Beat, Vec::new(), reply)).await
    }

    /// A part of the log that looks damaged to an owner which has lost it may be one that the next owner has let go.
    async fn if_owned<T>(&self, shard: ShardId, done: Result<T, StorageError>) -> Result<T, StorageError> {
        if let Err(StorageError::Damaged { .. }) = &done {
            self.confirm(shard).await?;
        }
        done
    }

    async fn save_image(&self, shard: ShardId, image: Image) -> Result<Saved, StorageError> {
        let owned = self.owned(shard)?;
        let mut images = owned.images.lock().await;
        let end = owned.shared.known().end;
        if let Some(part) = image.parts.iter().find(|part| part.through >= end) {
            return Err(StorageError::NoSuchFrame { position: part.through });
        }
        let renewed = match images.file_to_renew() {
            Some(file) => {
                let newest = images.newest.iter().flat_map(|newest| &newest.parts);
                let of_file = newest.filter(|part| part.file == file);
                let length = of_file.map(|part| part.offset + part.length).max().unwrap_or_default();
                Some((file, images::read(&self.link, shard, file, length).await?))
            }
            None => None,
        };
        let plan = images.plan(owned.epoch, image, renewed)?;
        images::write(&self.link, shard, plan.file, &plan.bytes).await?;
        let body = plan.manifest.encode();
        // If this fails, the file stays without a manifest, and a later save writes over its chunks.
        self.order(shard, |reply| Order::Record(Kind::Image, body, reply)).await?;
        {
            let mut figures = owned.shared.figures();
            figures.images += 1;
            figures.image_bytes += plan.bytes.len() as u64;
        }
        let covered = plan.manifest.covered;
        for file in images.keep(plan) {
            images::purge(&self.link, shard, file).await?;
            images.garbage.remove(&file);
        }
        Ok(Saved { covered })
    }

    async fn trim_log(&self, shard: ShardId, through: Position) -> Result<(), StorageError> {
        let owned = self.owned(shard)?;
        if owned.images.lock().await.newest.is_none() {
            return Ok(());
        }
        let Some(place) = owned.shared.known().place_to_trim(through) else { return Ok(()) };
        // The next owner finds the beginning of the log in the index, and the epoch in a statement of the owner.
        let is_indexed = owned.shared.known().indexed > place.position;
        if !is_indexed {
            self.order(shard, Order::Index).await?;
        }
        if !is_indexed || owned.shared.known().term < place.sequence {
            self.order(shard, Order::Term).await?;
        }
        let known = {
            let known = owned.shared.known();
            known.indexed > place.position && known.term >= place.sequence
        };
        if !known {
            // The frames of the place are not durable yet, so nothing can be let go.
            return Ok(());
        }
        let what = json!({ "seq": place.sequence });
        self.link.persist("trim the log", || self.link.purge(&self.link.log, &what)).await?;
        owned.shared.known().trim(place);
        Ok(())
    }
}

/// Why a look at the log failed.
enum Look {
    Passing(String),
    /// A leader that has just been elected, or that does not know yet that another one was, may not have all of the
    /// log.
    Behind {
        known: Position,
        found: Position,
    },
    Lasting(StorageError),
}

impl From<CallError> for Look {
    fn from(error: CallError) -> Look {
        match error {
            CallError::Passing(why) => Look::Passing(why),
            error => Look::Lasting(error.into_storage("watch the log")),
        }
    }
}

/// Runs a task beside the engine until it is told to end.
fn spawn(config: &JetStreamConfig, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
    let (task, handle) = abortable(task);
    (config.spawn)(Box::pin(async move {
        let _ = task.await;
    }));
    handle
}

/// Keeps the gauge up to date. Publishing stops before the stream is full, so that settling goes on.
async fn watch_space(link: Link, gauge: SpaceGauge, reserve: u64) {
    loop {
        if let Ok(info) = link.info(&link.log).await
            && let Some(most) = info.bytes_max
        {
            let left = most.saturating_sub(info.bytes);
            let reserve = reserve.min(most / 4);
            let is_full = if gauge.is_full() { left < reserve * 2 } else { left < reserve };
            gauge.set_left(left);
            gauge.set_full(is_full);
        }
        tokio::time::sleep(SPACE_EVERY).await;
    }
}

impl Engine for JetStreamEngine {
    fn claim(&self, shard: ShardId) -> BoxFuture<'_, Result<Claim, StorageError>> {
        Box::pin(self.take(shard))
    }

    fn append(&self, frame: Frame) -> Appended {
        let (answer, appended) = oneshot::channel();
        let bytes = frame.entries.len() + frame.payload.len();
        let limit = self.config.frame_bytes_max;
        let owned = match self.owned(frame.shard) {
            Ok(_) if bytes > limit => Err(StorageError::FrameTooLarge { bytes, limit }),
            other => other,
        };
        match owned {
            Ok(owned) => {
                if let Err(refused) = owned.orders.try_send(Order::Append(frame, answer)) {
                    let (order, error) = match refused {
                        mpsc::error::TrySendError::Full(order) => {
                            (order, StorageError::TooManyFrames { limit: FRAMES_MAX })
                        }
                        mpsc::error::TrySendError::Closed(order) => (order, StorageError::Stopped),
                    };
                    if let Order::Append(_, answer) = order {
                        let _ = answer.send(Err(error));
                    }
                }
            }
            Err(error) => drop(answer.send(Err(error))),
        }
        Appended(appended)
    }

    fn read(
        &self,
        shard: ShardId,
        from: Position,
        budget: ReadBudget,
    ) -> BoxFuture<'_, Result<Vec<StoredFrame>, StorageError>> {
        Box::pin(async move {
            let frames = self.read_frames(shard, from, budget).await;
            let frames = self.if_owned(shard, frames).await?;
            let mut figures = self.owned(shard)?.shared.figures();
            figures.reads += 1;
            figures.read_bytes +=
                frames.iter().map(|frame| (frame.entries.len() + frame.payload.len()) as u64).sum::<u64>();
            Ok(frames)
        })
    }

    fn save(&self, shard: ShardId, image: Image) -> BoxFuture<'_, Result<Saved, StorageError>> {
        Box::pin(async move {
            let saved = self.save_image(shard, image).await;
            self.if_owned(shard, saved).await
        })
    }

    fn trim(&self, shard: ShardId, through: Position) -> BoxFuture<'_, Result<(), StorageError>> {
        Box::pin(self.trim_log(shard, through))
    }

    fn figures(&self) -> EngineFigures {
        let Some(owned) = self.owned.get() else { return EngineFigures::default() };
        let tenure = self.presence.office.get().map(|office| &office.tenure);
        EngineFigures {
            terms: self.config.terms_before + 1,
            tenure_left: tenure.and_then(Tenure::left),
            stalls: tenure.map_or(0, Tenure::stalls),
            ..owned.shared.figures().clone()
        }
    }
}
