//! Which groups and streams need an operator, decided in one place for the dashboard, `forebay top` and alerts.
//!
//! [`attention`] is a pure function from figures to sentences. A sentence names its subject apart from its text, so
//! that a page can make a link of it: `orders/billing` + `is 12 minutes behind and falling further: …`. The most
//! urgent sentence is the first.

use forebay_model::Retention;

use crate::json::{GroupReport, GroupStatus, StreamReport};

/// A group may be this far behind, in seconds, before that is worth a sentence.
pub const BEHIND_AFTER: f64 = 60.0;
/// Messages may wait this long, in seconds, for the first consumer of a group.
pub const ABANDONED_AFTER: f64 = 30.0;
/// A group that catches up is a warning from this age on, in seconds, and a notice before.
const FAR_BEHIND: f64 = 600.0;
/// Arrivals exceed settlements by more than this share before a group counts as falling further behind.
const FALLING: f64 = 1.02;
/// The share of deliveries that fail before the consumers count as failing.
const FAILING: f64 = 0.25;
/// Fewer deliveries a second than this say nothing about the consumers.
const DELIVERIES_MIN: f64 = 0.05;
/// More parked messages a second than this count as growth: one in five minutes.
const PARKING: f64 = 1.0 / 300.0;
/// A share of a limit from which on it is nearly used up.
const NEARLY: f64 = 0.9;
/// Free space in bytes under which the disk is nearly full.
const FREE_BYTES_LOW: u64 = 1 << 30;
/// Streams without a group that get a sentence each. If there are more, one sentence counts them.
const STREAMS_NAMED: usize = 3;
/// Characters of a reason in a sentence.
const REASON_CHARS: usize = 60;

/// How urgent a sentence is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Messages are not processed, or will not be for long.
    Critical,
    /// It gets worse without an operator.
    Warning,
    /// Worth knowing.
    Notice,
}

impl Severity {
    pub fn as_str(self) -> &'static str {
        match self {
            Severity::Critical => "critical",
            Severity::Warning => "warning",
            Severity::Notice => "notice",
        }
    }
}

/// The condition behind a sentence. Alerts are named after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Concern {
    StorageFull,
    StorageDamaged,
    DiskLow,
    ConnectionsFull,
    FilesFull,
    Stopping,
    FallingBehind,
    Stuck,
    CatchingUp,
    NoConsumers,
    StuckKey,
    ParkedFull,
    WindowFull,
    Failing,
    Parking,
    Parked,
    Paused,
    Resting,
    NoGroup,
}

impl Concern {
    /// As alerts and links name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Concern::StorageFull => "storage_full",
            Concern::StorageDamaged => "storage_damaged",
            Concern::DiskLow => "disk_low",
            Concern::ConnectionsFull => "connections_full",
            Concern::FilesFull => "files_full",
            Concern::Stopping => "stopping",
            Concern::FallingBehind => "falling_behind",
            Concern::Stuck => "stuck",
            Concern::CatchingUp => "catching_up",
            Concern::NoConsumers => "no_consumers",
            Concern::StuckKey => "stuck_key",
            Concern::ParkedFull => "parked_full",
            Concern::WindowFull => "window_full",
            Concern::Failing => "failing",
            Concern::Parking => "parking",
            Concern::Parked => "parked",
            Concern::Paused => "paused",
            Concern::Resting => "resting",
            Concern::NoGroup => "no_group",
        }
    }
}

/// The figures of a server that matter here.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ServerFacts {
    pub is_stopping: bool,
    pub storage_full: bool,
    pub free_bytes: Option<u64>,
    pub damaged_places: u64,
    pub connections: u64,
    pub connections_max: Option<u64>,
    pub open_files: Option<u64>,
    pub open_files_max: Option<u64>,
}

/// The figures of a group that matter here. Rates are for each second, over about a minute; ages are seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupFacts {
    pub stream: String,
    pub group: String,
    pub status: GroupStatus,
    /// Messages that are due and not settled.
    pub due: u64,
    /// How long the oldest of them has been due.
    pub oldest_age: f64,
    pub in_flight: u64,
    pub consumers: u64,
    pub arrived: f64,
    pub settled: f64,
    pub delivered: f64,
    pub retried: f64,
    pub timed_out: f64,
    pub parking: f64,
    pub parked: u64,
    pub parked_max: u64,
    pub oldest_parked_age: f64,
    /// The most frequent reason of the parked messages, where it is known.
    pub parked_reason: Option<String>,
    /// The pace that the settings allow.
    pub pace: Option<f64>,
    pub window_max: u64,
    pub resting_for: Option<f64>,
    pub stuck_key_messages: u64,
    /// Seconds until the group has caught up at the present pace.
    pub catch_up_time: Option<f64>,
}

impl From<&StreamReport> for StreamFacts {
    fn from(of: &StreamReport) -> StreamFacts {
        StreamFacts {
            stream: of.stream.clone(),
            messages: of.messages,
            groups: of.groups,
            is_work: of.settings.retention == Some(Retention::Work),
            copies: of.settings.source.clone().flatten().map(|source| source.prefix),
        }
    }
}

impl From<&GroupReport> for GroupFacts {
    fn from(of: &GroupReport) -> GroupFacts {
        GroupFacts {
            stream: of.stream.clone(),
            group: of.group.clone(),
            status: of.status,
            due: of.due(),
            oldest_age: of.oldest_age.unwrap_or(0.0),
            in_flight: of.in_flight,
            consumers: of.consumer_count.max(of.consumers.len() as u64),
            arrived: of.throughput.arrived.minute,
            settled: of.throughput.settled.minute,
            delivered: of.throughput.delivered.minute,
            retried: of.throughput.retried.minute,
            timed_out: of.throughput.timed_out.minute,
            parking: of.throughput.parked.minute,
            parked: of.parked,
            parked_max: of.settings.parked_max.map_or(u64::MAX, u64::from),
            oldest_parked_age: of.oldest_parked_age.unwrap_or(0.0),
            parked_reason: None,
            pace: of.settings.rate.flatten().map(|rate| rate.per_second),
            window_max: of.settings.window_max.map_or(u64::MAX, u64::from),
            resting_for: of.resting_for,
            stuck_key_messages: of.stuck_key_messages,
            catch_up_time: of.catch_up_time,
        }
    }
}

/// The figures of a stream that matter here.
#[derive(Debug, Clone, PartialEq)]
pub struct StreamFacts {
    pub stream: String,
    pub messages: u64,
    pub groups: u64,
    /// Messages are kept until groups have settled them, and are there for groups alone.
    pub is_work: bool,
    /// It gets copies of the messages of all streams whose names begin with this.
    pub copies: Option<String>,
}

/// What a sentence is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// The server as a whole.
    Server,
    Stream(String),
    /// Stream and group.
    Group(String, String),
}

/// One sentence.
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    pub severity: Severity,
    pub concern: Concern,
    pub subject: Subject,
    /// The sentence after its subject.
    pub text: String,
    /// Among equally urgent sentences the one with more weight comes first.
    weight: f64,
}

impl Attention {
    /// `orders/billing`, `orders`, or `the server`.
    pub fn subject_text(&self) -> String {
        match &self.subject {
            Subject::Group(stream, group) => format!("{stream}/{group}"),
            Subject::Stream(stream) => stream.clone(),
            Subject::Server => "the server".to_owned(),
        }
    }
}

/// Everything that needs an operator, the most urgent first.
pub fn attention<'a>(
    server: &ServerFacts,
    streams: impl IntoIterator<Item = StreamFacts>,
    groups: impl IntoIterator<Item = &'a GroupFacts>,
) -> Vec<Attention> {
    let mut found = Vec::new();
    of_server(server, &mut found);
    of_streams(streams, &mut found);
    for group in groups {
        of_group(group, &mut found);
    }
    found.sort_by(|a, b| {
        let by_weight = b.weight.total_cmp(&a.weight);
        a.severity.cmp(&b.severity).then(by_weight).then_with(|| a.subject.cmp(&b.subject))
    });
    found
}

fn of_server(of: &ServerFacts, found: &mut Vec<Attention>) {
    let mut say = |severity, concern, text: String| {
        found.push(Attention { severity, concern, subject: Subject::Server, text, weight: f64::MAX });
    };
    if of.storage_full {
        let text = "has no space left: it accepts no messages until some are settled or the disk grows";
        say(Severity::Critical, Concern::StorageFull, text.to_owned());
    } else if let Some(free) = of.free_bytes.filter(|free| *free < FREE_BYTES_LOW) {
        say(Severity::Warning, Concern::DiskLow, format!("has {} of disk space left", bytes(free)));
    }
    if of.damaged_places > 0 {
        let text = format!(
            "found {} of the stored data damaged; `forebay doctor` names them",
            count_of(of.damaged_places, "place")
        );
        say(Severity::Critical, Concern::StorageDamaged, text);
    }
    if of.is_stopping {
        say(Severity::Notice, Concern::Stopping, "is stopping and accepts nothing".to_owned());
    }
    if let Some(max) = of.connections_max
        && is_nearly(of.connections, max)
    {
        let text = format!("has {} of {} connections", count(of.connections), count(max));
        say(Severity::Warning, Concern::ConnectionsFull, text);
    }
    if let (Some(open), Some(max)) = (of.open_files, of.open_files_max)
        && is_nearly(open, max)
    {
        say(
            Severity::Warning,
            Concern::FilesFull,
            format!("has {} of {} files open", count(open), count(max)),
        );
    }
}

/// Messages that no consumer gets, since their stream has no group: often its name is a typing mistake.
fn of_streams(streams: impl IntoIterator<Item = StreamFacts>, found: &mut Vec<Attention>) {
    let streams: Vec<StreamFacts> = streams.into_iter().collect();
    let copied: Vec<&String> = streams.iter().filter_map(|of| of.copies.as_ref()).collect();
    let is_copied = |of: &StreamFacts| copied.iter().any(|prefix| of.stream.starts_with(prefix.as_str()));
    let is_alone = |of: &&StreamFacts| of.is_work && of.groups == 0 && of.messages > 0 && !is_copied(of);
    let alone: Vec<&StreamFacts> = streams.iter().filter(is_alone).collect();
    let mut say = |subject, text: String| {
        let (severity, concern) = (Severity::Notice, Concern::NoGroup);
        found.push(Attention { severity, concern, subject, text, weight: 0.0 });
    };
    if alone.len() > STREAMS_NAMED {
        let text =
            format!("has {} with messages and without a group", count_of(alone.len() as u64, "stream"));
        return say(Subject::Server, text);
    }
    for of in alone {
        say(
            Subject::Stream(of.stream.clone()),
            format!("has {} and no group", count_of(of.messages, "message")),
        );
    }
}

fn is_nearly(now: u64, max: u64) -> bool {
    now as f64 >= max as f64 * NEARLY
}

fn of_group(of: &GroupFacts, found: &mut Vec<Attention>) {
    if let Some((severity, concern, text)) = progress(of) {
        found.push(sentence(of, severity, concern, text, of.oldest_age));
    }
    if let Some((severity, concern, text)) = failures(of) {
        found.push(sentence(of, severity, concern, text, of.retried + of.timed_out));
    }
    if let Some((severity, concern, text)) = parked(of) {
        found.push(sentence(of, severity, concern, text, of.parked as f64));
    }
}

fn sentence(of: &GroupFacts, severity: Severity, concern: Concern, text: String, weight: f64) -> Attention {
    let subject = Subject::Group(of.stream.clone(), of.group.clone());
    Attention { severity, concern, subject, text, weight }
}

type Said = Option<(Severity, Concern, String)>;

/// Whether the group moves on. The first reason that applies is the only one that is told.
fn progress(of: &GroupFacts) -> Said {
    let waiting = || {
        let be = if of.due == 1 { "waits" } else { "wait" };
        format!("{} {be}, the oldest for {}", count_of(of.due, "message"), age(of.oldest_age))
    };
    if of.status == GroupStatus::Paused {
        return Some(match of.due {
            0 => (Severity::Notice, Concern::Paused, "is paused".to_owned()),
            _ => (Severity::Warning, Concern::Paused, format!("is paused: {}", waiting())),
        });
    }
    if of.status == GroupStatus::ParkedFull {
        let text = format!("has stopped: {} are parked, as many as may be", count_of(of.parked, "message"));
        return Some((Severity::Critical, Concern::ParkedFull, text));
    }
    if of.status == GroupStatus::KeyScanFull {
        let text = format!("has stopped: {} wait for one key", count_of(of.stuck_key_messages, "message"));
        return Some((Severity::Critical, Concern::StuckKey, text));
    }
    if of.consumers == 0 && of.due > 0 && of.oldest_age >= ABANDONED_AFTER {
        return Some((Severity::Critical, Concern::NoConsumers, format!("has no consumers: {}", waiting())));
    }
    if of.status == GroupStatus::WindowFull {
        let text = format!(
            "reads no further: {} are in process, as many as window_max allows",
            count_of(of.window_max, "message")
        );
        return Some((Severity::Warning, Concern::WindowFull, text));
    }
    if let Some(rest) = of.resting_for.filter(|rest| *rest > 0.0) {
        let text = format!("rests for another {}, as a consumer asked", age(rest));
        return Some((Severity::Notice, Concern::Resting, text));
    }
    if of.due == 0 || of.oldest_age < BEHIND_AFTER || of.consumers == 0 {
        return None;
    }
    let behind = age(of.oldest_age);
    let consumers = count_of(of.consumers, "consumer");
    let flow = match of.pace {
        Some(pace) if of.settled >= pace * NEARLY => {
            format!("its pace is limited to {}, {} in", rate(pace), rate(of.arrived))
        }
        _ => format!("{consumers}, {} out, {} in", rate(of.settled), rate(of.arrived)),
    };
    if of.settled < 0.005 {
        let held = count_of(of.in_flight, "message");
        let hold = if of.consumers == 1 { "holds" } else { "hold" };
        let text = format!("is {behind} behind and settles nothing: {consumers} {hold} {held}");
        return Some((Severity::Critical, Concern::Stuck, text));
    }
    if of.arrived > of.settled * FALLING {
        let text = format!("is {behind} behind and falling further: {flow}");
        return Some((Severity::Critical, Concern::FallingBehind, text));
    }
    let done = match of.catch_up_time.filter(|time| time.is_finite() && *time > 0.0) {
        Some(time) => format!(", done in about {}", age(time)),
        None => String::new(),
    };
    let severity = if of.oldest_age < FAR_BEHIND { Severity::Notice } else { Severity::Warning };
    Some((severity, Concern::CatchingUp, format!("is {behind} behind and catching up{done}: {flow}")))
}

/// Whether consumers fail more often than now and then.
fn failures(of: &GroupFacts) -> Said {
    let failed = of.retried + of.parking;
    if of.delivered < DELIVERIES_MIN || failed < of.delivered * FAILING {
        return None;
    }
    let share = (failed / of.delivered * 100.0).min(100.0);
    let (much, what) =
        if of.retried >= of.parking { (of.retried, "retried") } else { (of.parking, "parked") };
    let mut text = format!("fails {share:.0}% of its deliveries: {} {what}", rate(much));
    if of.timed_out >= 0.005 {
        text += &format!(", {} timed out", rate(of.timed_out));
    }
    Some((Severity::Warning, Concern::Failing, text))
}

fn parked(of: &GroupFacts) -> Said {
    if of.parked == 0 || of.status == GroupStatus::ParkedFull {
        return None;
    }
    let reason = match &of.parked_reason {
        Some(reason) => format!(", most often “{}”", shortened(reason)),
        None => String::new(),
    };
    if is_nearly(of.parked, of.parked_max) {
        let text = format!(
            "has {} of {} parked messages and will stop{reason}",
            count(of.parked),
            count(of.parked_max)
        );
        return Some((Severity::Warning, Concern::Parking, text));
    }
    if of.parking >= PARKING {
        let text = format!(
            "parks {} a minute; {} {} parked now{reason}",
            short(of.parking * 60.0),
            count_of(of.parked, "message"),
            if of.parked == 1 { "is" } else { "are" }
        );
        return Some((Severity::Warning, Concern::Parking, text));
    }
    let text = format!(
        "has {} parked, the oldest for {}{reason}",
        count_of(of.parked, "message"),
        age(of.oldest_parked_age)
    );
    Some((Severity::Notice, Concern::Parked, text))
}

/// The beginning of a reason, on one line.
fn shortened(reason: &str) -> String {
    let line: String =
        reason.chars().map(|char| if char.is_control() { ' ' } else { char }).take(REASON_CHARS).collect();
    if reason.chars().count() > REASON_CHARS { format!("{}…", line.trim_end()) } else { line }
}

/// `1,234`
pub(crate) fn count(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `1 message`, `2 messages`
pub(crate) fn count_of(n: u64, one: &str) -> String {
    format!("{} {one}{}", count(n), if n == 1 { "" } else { "s" })
}

/// `0.4`, `12`, `1,234`
fn short(value: f64) -> String {
    if value < 9.95 {
        let text = format!("{value:.1}");
        text.strip_suffix(".0").unwrap_or(&text).to_owned()
    } else {
        count(value.round() as u64)
    }
}

/// `0.4/s`, `12/s`; a slow one by the minute.
fn rate(per_second: f64) -> String {
    match per_second {
        rate if rate.is_nan() || rate < 0.000_5 => "0/s".to_owned(),
        rate if rate < 0.095 => format!("{}/min", short(rate * 60.0)),
        rate => format!("{}/s", short(rate)),
    }
}

/// `40 seconds`, `12 minutes`, `3 hours`, `5 days`: one unit, and never fewer than two of it where a smaller one says
/// more.
pub(crate) fn age(seconds: f64) -> String {
    let (value, unit) = match seconds {
        s if s < 120.0 => (s, "second"),
        s if s < 7_200.0 => (s / 60.0, "minute"),
        s if s < 172_800.0 => (s / 3_600.0, "hour"),
        s => (s / 86_400.0, "day"),
    };
    count_of((value.max(0.0)).round() as u64, unit)
}

fn bytes(bytes: u64) -> String {
    const STEPS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut step) = (bytes as f64, 0);
    while value >= 1_023.5 && step + 1 < STEPS.len() {
        value /= 1_024.0;
        step += 1;
    }
    format!("{value:.0} {}", STEPS[step])
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    /// Groups as lines of `name figure=value …`, and the sentences about them.
    #[track_caller]
    fn check(script: &str, expected: Expect) {
        let groups: Vec<GroupFacts> =
            script.lines().map(str::trim).filter(|line| !line.is_empty()).map(group).collect();
        expected.assert_eq(&told(&attention(&ServerFacts::default(), [], &groups)));
    }

    fn told(found: &[Attention]) -> String {
        found
            .iter()
            .map(|one| format!("{:<8} {} {}\n", one.severity.as_str(), one.subject_text(), one.text))
            .collect()
    }

    fn group(line: &str) -> GroupFacts {
        let (name, figures) = line.split_once(' ').unwrap_or((line, ""));
        let (stream, group) = name.split_once('/').expect("a stream and a group");
        let mut of = GroupFacts {
            stream: stream.to_owned(),
            group: group.to_owned(),
            status: GroupStatus::Live,
            due: 0,
            oldest_age: 0.0,
            in_flight: 0,
            consumers: 3,
            arrived: 0.0,
            settled: 0.0,
            delivered: 0.0,
            retried: 0.0,
            timed_out: 0.0,
            parking: 0.0,
            parked: 0,
            parked_max: 1_000_000,
            oldest_parked_age: 0.0,
            parked_reason: None,
            pace: None,
            window_max: 100_000,
            resting_for: None,
            stuck_key_messages: 0,
            catch_up_time: None,
        };
        for figure in figures.split_whitespace() {
            let (name, value) = figure.split_once('=').expect("a figure and its value");
            let number = || value.parse::<f64>().expect("a number");
            match name {
                "due" => of.due = number() as u64,
                "oldest" => of.oldest_age = number(),
                "held" => of.in_flight = number() as u64,
                "consumers" => of.consumers = number() as u64,
                "in" => of.arrived = number(),
                "out" => of.settled = number(),
                "delivered" => of.delivered = number(),
                "retried" => of.retried = number(),
                "timed_out" => of.timed_out = number(),
                "parking" => of.parking = number(),
                "parked" => of.parked = number() as u64,
                "parked_max" => of.parked_max = number() as u64,
                "parked_for" => of.oldest_parked_age = number(),
                "reason" => of.parked_reason = Some(value.replace('_', " ")),
                "pace" => of.pace = Some(number()),
                "rest" => of.resting_for = Some(number()),
                "stuck" => of.stuck_key_messages = number() as u64,
                "catch_up" => of.catch_up_time = Some(number()),
                "status" => {
                    of.status = serde_json::from_str(&format!("\"{value}\"")).expect("a status");
                }
                other => panic!("no such figure: {other}"),
            }
        }
        of
    }

    #[test]
    fn a_server_that_is_well_says_nothing() {
        check("orders/billing due=40 oldest=3 in=90 out=90 delivered=90", expect![""]);
        check("orders/idle consumers=0 status=idle", expect![""]);
        check("orders/young consumers=0 status=idle due=3 oldest=29", expect![""]);
    }

    #[test]
    fn a_group_that_falls_behind_comes_first() {
        check(
            "
            orders/mail     due=4 oldest=0 status=paused
            orders/billing  due=9000 oldest=720 in=90 out=40 delivered=40
            o/log           due=9 oldest=700 in=1 out=4 consumers=1
            o/b             due=9 oldest=70 in=1 out=4 catch_up=9 consumers=1
            ",
            expect![[r#"
                critical orders/billing is 12 minutes behind and falling further: 3 consumers, 40/s out, 90/s in
                warning  o/log is 12 minutes behind and catching up: 1 consumer, 4/s out, 1/s in
                warning  orders/mail is paused: 4 messages wait, the oldest for 0 seconds
                notice   o/b is 70 seconds behind and catching up, done in about 9 seconds: 1 consumer, 4/s out, 1/s in
            "#]],
        );
    }

    #[test]
    fn the_cause_is_named_where_it_is_known() {
        check(
            "
            orders/paced    due=9000 oldest=720 in=90 out=40 delivered=40 pace=40
            orders/hung     due=9000 oldest=7200 in=90 held=30
            orders/alone    due=9000 oldest=86400 in=90 consumers=0 status=idle
            orders/one      due=1 oldest=40 consumers=0 status=idle
            orders/key      due=9000 oldest=720 status=key_scan_full stuck=5000
            orders/resting  due=90 oldest=100 rest=12
            orders/window   due=200000 oldest=100 out=1 delivered=1 status=window_full
            ",
            expect![[r#"
                critical orders/alone has no consumers: 9,000 messages wait, the oldest for 24 hours
                critical orders/hung is 2 hours behind and settles nothing: 3 consumers hold 30 messages
                critical orders/key has stopped: 5,000 messages wait for one key
                critical orders/paced is 12 minutes behind and falling further: its pace is limited to 40/s, 90/s in
                critical orders/one has no consumers: 1 message waits, the oldest for 40 seconds
                warning  orders/window reads no further: 100,000 messages are in process, as many as window_max allows
                notice   orders/resting rests for another 12 seconds, as a consumer asked
            "#]],
        );
    }

    #[test]
    fn failures_and_parked_messages_are_told_apart() {
        check(
            "
            orders/card     delivered=10 retried=5 timed_out=1 parking=1 parked=340 reason=card_declined
            orders/old      delivered=10 out=10 in=10 parked=7 parked_for=259200 reason=bad_address
            orders/near     delivered=10 out=10 in=10 parked=95 parked_max=100
            orders/full     status=parked_full parked=100 parked_max=100
            orders/rare     delivered=10 out=10 in=10 retried=1
            ",
            expect![[r#"
                critical orders/full has stopped: 100 messages are parked, as many as may be
                warning  orders/card parks 60 a minute; 340 messages are parked now, most often “card declined”
                warning  orders/near has 95 of 100 parked messages and will stop
                warning  orders/card fails 60% of its deliveries: 5/s retried, 1/s timed out
                notice   orders/old has 7 messages parked, the oldest for 3 days, most often “bad address”
            "#]],
        );
    }

    #[test]
    fn messages_time_out_and_are_parked_no_less_often_than_they_are_told_to() {
        check(
            "orders/slow delivered=2 retried=0.2 timed_out=0.3 parking=0.3 parked=1",
            expect![[r#"
                warning  orders/slow parks 18 a minute; 1 message is parked now
                warning  orders/slow fails 25% of its deliveries: 0.3/s parked, 0.3/s timed out
            "#]],
        );
    }

    #[test]
    fn messages_that_are_not_due_are_no_backlog() {
        let report = |delayed: u64, oldest_age: Option<f64>| -> GroupReport {
            let report = serde_json::json!({
                "stream": "later", "group": "g", "status": "idle", "settings": {}, "last_known_seq": 1,
                "last_processed_seq": 0, "last_checkpointed_seq": 0, "lag": 2, "delayed": delayed,
                "oldest_age": oldest_age, "in_flight": 0, "ready": 0, "waiting": 0, "parked": 0,
                "oldest_parked_age": null, "moving": 0, "throughput": {}, "catch_up_time": null,
                "processing_time": null, "consumers": [],
            });
            serde_json::from_value(report).expect("a report")
        };
        let told = |report: &GroupReport| told(&attention(&ServerFacts::default(), [], [&report.into()]));
        assert_eq!(told(&report(2, None)), "");
        assert_eq!(told(&report(1, Some(20.0))), "");
        expect![[r#"
            critical later/g has no consumers: 1 message waits, the oldest for 40 seconds
        "#]]
        .assert_eq(&told(&report(1, Some(40.0))));
    }

    #[test]
    fn messages_of_a_stream_without_a_group_are_worth_a_notice() {
        let stream = |stream: &str, messages, groups, is_work| StreamFacts {
            stream: stream.to_owned(),
            messages,
            groups,
            is_work,
            copies: (stream == "all").then(|| "orders-".to_owned()),
        };
        let few = [
            stream("emials", 1, 0, true),
            stream("emails", 9, 1, true),
            stream("events", 9, 0, false),
            stream("empty", 0, 0, true),
            stream("all", 9, 1, true),
            stream("orders-17", 9, 0, true),
        ];
        expect![[r#"
            notice   emials has 1 message and no group
        "#]]
        .assert_eq(&told(&attention(&ServerFacts::default(), few, [])));
        let many = (0..40).map(|n| stream(&format!("s{n}"), 1, 0, true));
        expect![[r#"
            notice   the server has 40 streams with messages and without a group
        "#]]
        .assert_eq(&told(&attention(&ServerFacts::default(), many, [])));
    }

    #[test]
    fn a_long_reason_is_cut_and_stays_on_one_line() {
        assert_eq!(shortened("a\nb\u{1b}[0m"), "a b [0m");
        assert_eq!(shortened(&"é".repeat(61)), format!("{}…", "é".repeat(60)));
        assert_eq!(shortened(&"é".repeat(60)), "é".repeat(60));
    }

    #[test]
    fn the_server_itself_comes_before_its_groups() {
        let server = ServerFacts {
            is_stopping: true,
            storage_full: true,
            free_bytes: Some(0),
            damaged_places: 2,
            connections: 95,
            connections_max: Some(100),
            open_files: Some(1_000),
            open_files_max: Some(1_024),
        };
        let group = group("orders/alone due=9000 oldest=86400 consumers=0 status=idle");
        expect![[r#"
            critical the server has no space left: it accepts no messages until some are settled or the disk grows
            critical the server found 2 places of the stored data damaged; `forebay doctor` names them
            critical orders/alone has no consumers: 9,000 messages wait, the oldest for 24 hours
            warning  the server has 95 of 100 connections
            warning  the server has 1,000 of 1,024 files open
            notice   the server is stopping and accepts nothing
        "#]]
        .assert_eq(&told(&attention(&server, [], [&group])));
        let low = ServerFacts { free_bytes: Some(300 << 20), ..ServerFacts::default() };
        expect![[r#"
            warning  the server has 300 MiB of disk space left
        "#]]
        .assert_eq(&told(&attention(&low, [], [])));
    }
}
