//! Every operation on persistent subscriptions, for gRPC and HTTP alike. A subscription is a group, so every door sees
//! it, and this one sees the groups of every other.

use std::collections::HashMap;

use forebay_broker::api::{
    Bundle, CallError, Caller, Door, GroupReport, GroupSettings, JobTerms, MemberRefusal, Purge, Retention,
    Right, Select, Settlement, Start, StreamSettings, Verb, Work,
};
use forebay_core::types::{GroupName, Ordinal, StreamName};
use tokio::sync::Mutex;

use super::super::links::{self, AllTerms};
use super::super::marks::{self, Mark};
use super::super::places;
use super::super::streams::write::new_stream as new_stream_settings;
use super::calls::{Calls, Names};
use super::info::{AllProgress, Info};
use super::settings::{self, ConsumerStrategy, Invalid, NOTE_PREFIX, Noted, Settings, StartFrom};

/// Groups and notes that are asked for at a time.
const PAGE: usize = 1_000;
/// The stream of all events.
pub(crate) const ALL: &str = "$all";

/// Why something was not done to a subscription.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Refusal {
    Exists,
    Missing,
    /// It has as many consumers as it may.
    Full,
    /// The request breaks a rule, which is named.
    Failed(String),
    /// The stream was tombstoned.
    Tombstone,
    Call(CallError),
}

impl From<Invalid> for Refusal {
    fn from(invalid: Invalid) -> Refusal {
        Refusal::Failed(invalid.0)
    }
}

impl From<CallError> for Refusal {
    fn from(error: CallError) -> Refusal {
        match error {
            CallError::NoSuchStream { .. }
            | CallError::NoSuchGroup { .. }
            | CallError::StreamGone
            | CallError::GroupGone => Refusal::Missing,
            CallError::NotAMember(MemberRefusal::NoSuchGroup) => Refusal::Missing,
            CallError::NotAMember(MemberRefusal::TooManyConsumers { .. }) => Refusal::Full,
            CallError::NotCreated(error) => Refusal::Failed(error.to_string()),
            CallError::NotChanged(error) => Refusal::Failed(error.to_string()),
            CallError::Job(error) => Refusal::Failed(error.to_string()),
            error => Refusal::Call(error),
        }
    }
}

/// A name, as a client writes it.
fn stream_name(text: &str) -> Result<StreamName, Refusal> {
    match text {
        "" => Err(Refusal::Failed("the stream name must not be empty".to_owned())),
        text if text == ALL || text.starts_with(links::OF_ALL) => Err(Refusal::Failed(format!(
            "the stream name must not be $all or begin with {}. value=`{text}`",
            links::OF_ALL
        ))),
        text => StreamName::of_any(text)
            .map_err(|error| Refusal::Failed(format!("the stream name {error}. value=`{text}`"))),
    }
}

impl Names {
    /// Of a subscription that is to be created.
    pub(crate) fn new(stream: &str, group: &str) -> Result<Names, Refusal> {
        let stream = stream_name(stream)?;
        let group = GroupName::parse(group)
            .map_err(|error| Refusal::Failed(format!("the group name {error}. value=`{group}`")))?;
        Ok(Names { stream, group })
    }

    /// Of a subscription to `$all`.
    pub(crate) fn of_all(group: &str) -> Result<Names, Refusal> {
        let failed = |error: &dyn std::fmt::Display| {
            Refusal::Failed(format!("the group name {error}. value=`{group}`"))
        };
        let name = GroupName::parse(group).map_err(|error| failed(&error))?;
        let stream = links::stream_of_all(group).ok_or_else(|| failed(&"is too long for $all"))?;
        Ok(Names { stream, group: name })
    }

    /// Of a subscription that should be there. One with a name that no subscription can have is not.
    pub(crate) fn existing(stream: &str, group: &str) -> Result<Names, Refusal> {
        let names = if stream == ALL { Names::of_all(group) } else { Names::new(stream, group) };
        names.map_err(|refusal| match refusal {
            Refusal::Failed(_) => Refusal::Missing,
            refusal => refusal,
        })
    }
}

/// What to do with an event, as a client says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Ack,
    Unknown,
    Park,
    Retry,
    Skip,
    Stop,
}

impl Action {
    /// By its name in a query. Any other word leaves the decision to the server.
    pub(crate) fn named(name: &str) -> Action {
        let is = |word: &str| name.eq_ignore_ascii_case(word);
        match () {
            () if is("park") => Action::Park,
            () if is("retry") => Action::Retry,
            () if is("skip") => Action::Skip,
            () if is("stop") => Action::Stop,
            () => Action::Unknown,
        }
    }

    pub(crate) fn settlement(self, reason: &str) -> Settlement {
        let verb = match self {
            Action::Ack => Verb::Ack,
            // The pause before a retry is the group's, and zero unless it was set through the native API.
            Action::Unknown | Action::Retry => Verb::Retry { delay: None },
            Action::Park => Verb::Park,
            Action::Skip | Action::Stop => Verb::Skip,
        };
        let reason = Some(reason.to_owned()).filter(|reason| !reason.is_empty());
        Settlement { reason, late: true, ..verb.into() }
    }
}

/// The persistent subscriptions of the door.
pub(crate) struct Subscriptions {
    /// The door itself. Notes are its own, whichever rights a client has.
    own: Caller,
    pub(crate) calls: Calls,
    /// Subscriptions are created, changed and deleted one at a time.
    changing: Mutex<()>,
}

/// A stream that comes about with a subscription keeps every event.
fn shape_stream(settings: &mut StreamSettings) {
    *settings = new_stream_settings();
}

/// Whether the name of a stream cannot be used again.
async fn is_tombstone(caller: &Caller, stream: &StreamName) -> Result<bool, CallError> {
    let mark = marks::note(stream, Some(Mark::Tombstone));
    let note = caller.note(stream, Door::KURRENT, mark.key).await?;
    Ok(note.is_some_and(|note| Some(note.value) == mark.value))
}

impl Subscriptions {
    /// Of a door that opens. Notes of groups that are gone are removed.
    pub(crate) async fn open(own: &Caller) -> Result<Subscriptions, CallError> {
        let subscriptions =
            Subscriptions { own: own.clone(), calls: Calls::default(), changing: Mutex::default() };
        subscriptions.sweep().await?;
        Ok(subscriptions)
    }

    /// The door's own handle, for what it has to know of a group that a client may use.
    pub(crate) fn own(&self) -> &Caller {
        &self.own
    }

    pub(crate) async fn create(&self, caller: &Caller, names: Names, given: Settings) -> Result<(), Refusal> {
        given.check()?;
        let _changing = self.changing.lock().await;
        let Names { stream, group } = names;
        caller.check(Right::Create, &stream, &group)?;
        if links::is_named(&stream) {
            if is_tombstone(&self.own, &stream).await? {
                return Err(Refusal::Tombstone);
            }
            links::ready(&self.own, &stream).await?;
        }
        let is_new = match self.own.stream(stream.clone()).await {
            Ok(report) if report.groups.contains(&group) => return Err(Refusal::Exists),
            Ok(_) => false,
            Err(CallError::NoSuchStream { .. }) if is_tombstone(&self.own, &stream).await? => {
                return Err(Refusal::Tombstone);
            }
            Err(CallError::NoSuchStream { .. }) => true,
            Err(error) => return Err(error.into()),
        };
        let mut bundle = Bundle::beside(stream.clone()).note(Noted::new(given.clone()).note(&stream, &group));
        if is_new {
            bundle = bundle.stream(stream.clone(), shape_stream);
        }
        let bundle = bundle.group(stream, group, move |settings| given.shape(settings));
        caller.commit(bundle).await?;
        Ok(())
    }

    /// Creates a subscription to `$all`: a stream of links to the events that it wants, and a group on it.
    pub(crate) async fn create_of_all(
        &self,
        caller: &Caller,
        names: Names,
        given: Settings,
        mut terms: AllTerms,
    ) -> Result<(), Refusal> {
        given.check()?;
        let _changing = self.changing.lock().await;
        let Names { stream, group } = names;
        caller.check(Right::Create, &stream, &group)?;
        match self.own.stream(stream.clone()).await {
            Ok(_) => return Err(Refusal::Exists),
            Err(CallError::NoSuchStream { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let seen = self.seen_before(given.start).await?;
        // There may be a feeder of a subscription of this name that another door has deleted.
        self.own.stop_links(&stream).await?;
        let before = self.own.link_stream(Door::KURRENT, &stream).await?;
        terms.by_correlation = given.strategy == ConsumerStrategy::PinnedByCorrelation;
        let terms = terms.to_vec();
        let bundle = Bundle::beside(stream.clone())
            // Links are removed when they are settled.
            .stream(stream.clone(), |settings| settings.retention = Retention::Work)
            .links(Door::KURRENT, &stream, seen, &terms, before.as_ref())
            .note(Noted::of_all(given.clone()).note(&stream, &group));
        let shape = move |settings: &mut GroupSettings| {
            given.shape(settings);
            settings.start = Start::Beginning;
        };
        caller.commit(bundle.group(stream.clone(), group, shape)).await?;
        links::feed(&self.own, &stream, &terms)?;
        Ok(())
    }

    /// The last event that a subscription to `$all` is not given.
    async fn seen_before(&self, start: StartFrom) -> Result<Ordinal, Refusal> {
        let end = self.own.log_end().await?;
        match start {
            StartFrom::Start | StartFrom::Revision(_) => Ok(Ordinal(0)),
            StartFrom::End => Ok(end),
            StartFrom::Position { commit, .. } => {
                let at = places::ordinal(commit);
                if at > end {
                    let end = places::commit(end);
                    let reason = format!("commit_position must be at most {end}. value=`{commit}`");
                    return Err(Refusal::Failed(reason));
                }
                Ok(Ordinal(at.0.saturating_sub(1)))
            }
        }
    }

    /// Lets a subscription to `$all` that has done nothing begin elsewhere.
    async fn begin_again(&self, stream: &StreamName, seen: Ordinal) -> Result<(), Refusal> {
        self.own.stop_links(stream).await?;
        let Some(links) = self.own.link_stream(Door::KURRENT, stream).await? else { return Ok(()) };
        // In this order a crash in between leaves links twice, and loses none.
        let bundle = Bundle::beside(stream.clone());
        self.own.commit(bundle.links(Door::KURRENT, stream, seen, &links.terms, Some(&links))).await?;
        self.own.purge(stream.clone(), Purge::default()).await?;
        links::feed(&self.own, stream, &links.terms)?;
        Ok(())
    }

    /// Changes settings, and then ends the calls of its consumers, which connect again.
    pub(crate) async fn update(&self, caller: &Caller, names: Names, asked: Settings) -> Result<(), Refusal> {
        asked.check()?;
        let _changing = self.changing.lock().await;
        let Names { stream, group } = names.clone();
        caller.check(Right::Change, &stream, &group)?;
        let report = self.own.group(stream.clone(), group.clone()).await?;
        let noted = self.noted(&names).await?;
        let start = asked.start;
        let begins_elsewhere = Settings::shown(&report.settings, noted.as_ref()).start != start;
        let counters = &report.figures.counters;
        let is_untouched = counters.settled() + counters.parked == 0;
        let is_moved = begins_elsewhere && is_untouched;
        let seen = match names.is_all() && is_moved {
            true => Some(self.seen_before(start).await?),
            false => None,
        };
        let note = Noted::updated(asked.clone(), noted.as_ref(), &report.settings).note(&stream, &group);
        let change = move |settings: &mut _| asked.change(noted.as_ref(), settings);
        let bundle = Bundle::beside(stream.clone()).group(stream.clone(), group.clone(), change).note(note);
        caller.commit(bundle).await?;
        // Another start counts as long as there is no checkpoint.
        if let Some(seen) = seen {
            self.begin_again(&stream, seen).await?;
        } else if is_moved {
            match self.own.reset(stream.clone(), group.clone(), start.to_group(), false).await {
                // Beyond the end of the stream, which then is where it begins.
                Err(CallError::NotChanged(_)) => self.own.reset(stream, group, Start::End, false).await?,
                moved => moved?,
            };
        }
        self.calls.drop_group(&names);
        Ok(())
    }

    pub(crate) async fn delete(&self, caller: &Caller, names: Names) -> Result<(), Refusal> {
        let _changing = self.changing.lock().await;
        let Names { stream, group } = &names;
        if names.is_all() {
            caller.check(Right::Delete, stream, group)?;
            self.own.figures(stream.clone(), group.clone()).await?;
            self.own.stop_links(stream).await?;
            let bundle = links::deletion(stream).note(settings::no_note(stream, group));
            let deleted = caller.commit(bundle).await;
            if deleted.is_err() {
                self.resume(stream).await?;
            }
            self.calls.forget(&names);
            deleted?;
            return Ok(());
        }
        caller.delete_group(stream.clone(), group.clone()).await?;
        let gone = settings::no_note(stream, group);
        // A note that stays behind is removed at the next start.
        let removed = self.own.commit(Bundle::beside(stream.clone()).note(gone)).await;
        self.calls.forget(&names);
        removed?;
        Ok(())
    }

    /// Feeds a link stream again that is still there.
    async fn resume(&self, stream: &StreamName) -> Result<(), CallError> {
        match self.own.link_stream(Door::KURRENT, stream).await? {
            Some(links) => links::feed(&self.own, stream, &links.terms),
            None => Ok(()),
        }
    }

    /// How far a subscription to `$all` is.
    async fn progress(&self, report: &GroupReport) -> Result<AllProgress, CallError> {
        let stream = &report.stream;
        let known = match self.own.links_fed(stream) {
            Some(place) => place,
            None => {
                let links = self.own.link_stream(Door::KURRENT, stream).await?;
                links.map_or(Ordinal(0), |links| links.place)
            }
        };
        // Everything before the first event that is not done with, whether it was wanted or not.
        let next = report.figures.checkpoint.next();
        let page = self.own.read(stream.clone(), next, 1).await?;
        let open = page.messages.first().and_then(|found| links::place_of_target(&found.content));
        let done = open.map_or(known, |place| Ordinal(place.0.saturating_sub(1)));
        Ok(AllProgress { done, known })
    }

    pub(crate) async fn noted(&self, names: &Names) -> Result<Option<Noted>, Refusal> {
        let key = settings::note_key(&names.stream, &names.group);
        let note = self.own.note(&names.stream, Door::KURRENT, key).await?;
        Ok(note.and_then(|note| Noted::read(&note.value)))
    }

    pub(crate) async fn info(&self, caller: &Caller, names: &Names) -> Result<Info, Refusal> {
        let report = caller.group(names.stream.clone(), names.group.clone()).await?;
        let noted = self.noted(names).await?;
        self.info_of(&report, noted.as_ref()).await
    }

    async fn info_of(&self, report: &GroupReport, noted: Option<&Noted>) -> Result<Info, Refusal> {
        let names = Names { stream: report.stream.clone(), group: report.name.clone() };
        let jobs = match report.figures.counters.parked {
            // It has never had anything to replay.
            0 => Vec::new(),
            _ => self.own.jobs(names.stream.clone(), names.group.clone()).await.unwrap_or_default(),
        };
        let all = match names.is_all() {
            true => Some(self.progress(report).await?),
            false => None,
        };
        let calls = self.calls.find(&names);
        Ok(Info::of(self.own.broker().clock().now(), report, noted, calls.as_deref(), &jobs, all))
    }

    /// The subscriptions to one stream, or all. A stream that does not exist has none, and that is a refusal.
    pub(crate) async fn list(&self, caller: &Caller, stream: Option<&str>) -> Result<Vec<Info>, Refusal> {
        let of_all = stream == Some(ALL);
        let stream = match stream.filter(|_| !of_all).map(stream_name).transpose() {
            Err(Refusal::Failed(_)) => return Err(Refusal::Missing),
            stream => stream?,
        };
        if let Some(stream) = &stream {
            caller.stream(stream.clone()).await?;
        }
        let notes = self.notes().await?;
        let mut all = Vec::new();
        let mut after = None;
        loop {
            let page = caller.groups(stream.clone(), after, PAGE).await?;
            for report in &page.items {
                let names = Names { stream: report.stream.clone(), group: report.name.clone() };
                if of_all && !names.is_all() {
                    continue;
                }
                let noted = notes.get(&(report.stream.clone(), report.name.clone()));
                all.push(self.info_of(report, noted).await?);
            }
            after = page.next;
            if after.is_none() {
                if of_all && all.is_empty() {
                    return Err(Refusal::Missing);
                }
                return Ok(all);
            }
        }
    }

    /// The notes of all subscriptions.
    async fn notes(&self) -> Result<HashMap<(StreamName, GroupName), Noted>, CallError> {
        let mut notes = HashMap::new();
        let mut after = None;
        loop {
            let page = self.own.notes(Door::KURRENT, vec![NOTE_PREFIX], after, PAGE).await?;
            for (key, note) in page.items {
                if let (Some(names), Some(noted)) = (settings::of_note_key(&key), Noted::read(&note.value)) {
                    notes.insert(names, noted);
                }
            }
            after = page.next;
            if after.is_none() {
                return Ok(notes);
            }
        }
    }

    /// Removes notes of groups that were deleted through another door.
    async fn sweep(&self) -> Result<(), CallError> {
        let _changing = self.changing.lock().await;
        for (stream, group) in self.notes().await?.into_keys() {
            match self.own.figures(stream.clone(), group.clone()).await {
                Err(CallError::NoSuchStream { .. } | CallError::NoSuchGroup { .. }) => {
                    let gone = settings::no_note(&stream, &group);
                    self.own.commit(Bundle::beside(stream).note(gone)).await?;
                }
                found => {
                    found?;
                }
            }
        }
        // The links of a subscription to `$all` are for its group alone.
        for links in self.own.link_streams(Door::KURRENT).await? {
            let Some(group) = links.stream.as_str().strip_prefix(links::OF_ALL) else { continue };
            let group = GroupName::stored(group);
            if let Err(CallError::NoSuchGroup { .. }) = self.own.figures(links.stream.clone(), group).await {
                self.own.stop_links(&links.stream).await?;
                self.own.commit(links::deletion(&links.stream)).await?;
            }
        }
        links::start(&self.own).await
    }

    /// Brings parked events back, or discards them: all, or so many of the oldest. Answers how many there are.
    pub(crate) async fn parked(
        &self,
        caller: &Caller,
        names: Names,
        work: Work,
        stop_at: Option<i64>,
    ) -> Result<u64, Refusal> {
        let limit = match stop_at.map(u64::try_from) {
            None => None,
            Some(Ok(limit)) => Some(limit),
            Some(Err(_)) => {
                let value = stop_at.unwrap_or_default();
                return Err(Refusal::Failed(format!("stop_at must be at least 0. value=`{value}`")));
            }
        };
        let Names { stream, group } = names;
        if limit == Some(0) {
            // Nothing to do, but only for a subscription that is there.
            caller.check(Right::Triage, &stream, &group)?;
            self.own.figures(stream, group).await?;
            return Ok(0);
        }
        let terms = JobTerms { limit, ..JobTerms::default() };
        let selected = caller.start_job(stream, group, work, Select::All, terms).await?;
        Ok(selected.matched)
    }

    /// Ends all calls of consumers. They connect again.
    pub(crate) async fn restart(&self, caller: &Caller) -> Result<(), Refusal> {
        // Of everything, so a client must be allowed to see everything.
        caller.server().await?;
        self.sweep().await?;
        self.calls.drop_all();
        Ok(())
    }
}
