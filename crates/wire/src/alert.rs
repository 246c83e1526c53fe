//! Alerts: when a group crosses a threshold and when it is well again, decided without a clock or a socket.
//!
//! [`Rules`] say which thresholds count for which groups. [`Watch`] is shown the figures of all groups every now and
//! then and answers with the alerts that begin and end. It has two guards against flapping: a condition has to last
//! before an alert fires and has to be over as long before it clears ([`Watch::new`]), and a figure has to fall
//! well below its threshold to count as over ([`CLEARS_AT`]). [`Notification`] is what receivers are sent.

mod notification;
mod rules;

use std::collections::HashMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::notification::{ALERTS_MAX, Notification};
pub use self::rules::{BadRules, RULES_MAX, Rules, Thresholds};
use crate::attention::{GroupFacts, age, count, count_of};
use crate::json::{GroupStatus, Time};

/// An alert clears when its figure is below this share of the threshold.
pub const CLEARS_AT: f64 = 0.8;

/// What an alert is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AlertKind {
    /// The oldest message that is due and not settled is too old.
    Age,
    /// Too many messages are due and not settled.
    Lag,
    /// Too many messages are parked.
    Parked,
    /// Messages are due, and there is no consumer.
    NoConsumers,
}

impl AlertKind {
    pub const ALL: [AlertKind; 4] =
        [AlertKind::Age, AlertKind::Lag, AlertKind::Parked, AlertKind::NoConsumers];

    /// As rules and notifications name it.
    pub fn as_str(self) -> &'static str {
        match self {
            AlertKind::Age => "age",
            AlertKind::Lag => "lag",
            AlertKind::Parked => "parked",
            AlertKind::NoConsumers => "no_consumers",
        }
    }

    /// Whether its threshold is a time, in seconds, and not a number of messages.
    pub fn is_time(self) -> bool {
        matches!(self, AlertKind::Age | AlertKind::NoConsumers)
    }

    /// The figure that is compared with the threshold.
    fn figure(self, of: &GroupFacts) -> f64 {
        match self {
            AlertKind::Age => of.oldest_age,
            AlertKind::Lag => of.due as f64,
            AlertKind::Parked => of.parked as f64,
            // An operator who paused a group knows that nothing is consumed.
            AlertKind::NoConsumers if of.consumers == 0 && of.due > 0 && of.status != GroupStatus::Paused => {
                of.oldest_age
            }
            AlertKind::NoConsumers => 0.0,
        }
    }
}

/// Whether an alert begins or ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    Fired,
    Cleared,
}

/// An alert, at the moment it began or ended, or as it is now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Alert {
    pub event: Event,
    pub alert: AlertKind,
    pub stream: String,
    pub group: String,
    /// The figure, in messages or seconds.
    pub value: f64,
    /// The threshold that it crossed.
    pub threshold: f64,
    /// When it fired.
    pub since: Time,
    /// The sentence after its subject, which is the group.
    pub text: String,
}

/// How far a condition has come.
#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    /// Over the threshold, not for long enough.
    Rising { from: u64 },
    /// Fired.
    Firing { since: u64 },
    /// Fired, and well again, not for long enough.
    Falling { since: u64, from: u64 },
}

/// Which alerts are active. It remembers only groups that are over a threshold or were lately.
#[derive(Debug)]
pub struct Watch {
    rules: Rules,
    hold: u64,
    states: HashMap<(String, String), [Option<State>; AlertKind::ALL.len()]>,
    firing: Vec<Alert>,
}

impl Watch {
    /// A condition counts after it lasted for `hold`, and is over after it was over for as long.
    pub fn new(rules: Rules, hold: Duration) -> Watch {
        let hold = u64::try_from(hold.as_micros()).unwrap_or(u64::MAX);
        Watch { rules, hold, states: HashMap::new(), firing: Vec::new() }
    }

    /// The alerts that are active, by the names of their groups, with the figures of the last look.
    pub fn firing(&self) -> &[Alert] {
        &self.firing
    }

    /// Looks at all groups, at `now` in microseconds, and answers with the alerts that began or ended.
    pub fn observe<'a>(&mut self, now: u64, groups: impl IntoIterator<Item = &'a GroupFacts>) -> Vec<Alert> {
        let mut before = std::mem::take(&mut self.states);
        let (mut changes, mut firing) = (Vec::new(), Vec::new());
        for group in groups {
            let thresholds = self.rules.of(&group.stream, &group.group);
            let name = (group.stream.clone(), group.group.clone());
            let mut states = before.remove(&name).unwrap_or_default();
            for (kind, state) in AlertKind::ALL.into_iter().zip(&mut states) {
                let threshold = thresholds.get(kind);
                let (next, event) = step(*state, now, self.hold, kind.figure(group), threshold);
                let alert = |event, since| alert(event, kind, since, group, threshold.unwrap_or_default());
                match (*state, event) {
                    (_, Some(Event::Fired)) => changes.push(alert(Event::Fired, now)),
                    (Some(State::Firing { since } | State::Falling { since, .. }), Some(Event::Cleared)) => {
                        changes.push(alert(Event::Cleared, since));
                    }
                    _ => {}
                }
                if let Some(State::Firing { since } | State::Falling { since, .. }) = next {
                    firing.push(alert(Event::Fired, since));
                }
                *state = next;
            }
            if states.iter().any(Option::is_some) {
                self.states.insert(name, states);
            }
        }
        for ((stream, group), states) in before {
            changes.extend(gone(&stream, &group, &states));
        }
        let order = |alert: &Alert| (alert.stream.clone(), alert.group.clone(), alert.alert);
        changes.sort_by_cached_key(order);
        firing.sort_by_cached_key(order);
        self.firing = firing;
        changes
    }
}

/// The next state of a condition, and whether its alert begins or ends with it.
fn step(
    state: Option<State>,
    now: u64,
    hold: u64,
    figure: f64,
    threshold: Option<f64>,
) -> (Option<State>, Option<Event>) {
    let is_over = threshold.is_some_and(|threshold| figure >= threshold);
    let is_well = threshold.is_none_or(|threshold| figure < threshold * CLEARS_AT);
    let has_lasted = |from: u64| now.saturating_sub(from) >= hold;
    match state {
        None if is_over && hold == 0 => (Some(State::Firing { since: now }), Some(Event::Fired)),
        None => (is_over.then_some(State::Rising { from: now }), None),
        Some(State::Rising { .. }) if !is_over => (None, None),
        Some(State::Rising { from }) if has_lasted(from) => {
            (Some(State::Firing { since: now }), Some(Event::Fired))
        }
        Some(State::Firing { .. }) if is_well && hold == 0 => (None, Some(Event::Cleared)),
        Some(State::Firing { since }) if is_well => (Some(State::Falling { since, from: now }), None),
        Some(State::Falling { since, .. }) if !is_well => (Some(State::Firing { since }), None),
        Some(State::Falling { from, .. }) if has_lasted(from) => (None, Some(Event::Cleared)),
        Some(state) => (Some(state), None),
    }
}

/// The ends of the alerts of a group that was deleted.
fn gone(
    stream: &str,
    group: &str,
    states: &[Option<State>; AlertKind::ALL.len()],
) -> impl Iterator<Item = Alert> {
    let states = AlertKind::ALL.into_iter().zip(*states);
    states.filter_map(move |(kind, state)| match state {
        Some(State::Firing { since } | State::Falling { since, .. }) => Some(Alert {
            event: Event::Cleared,
            alert: kind,
            stream: stream.to_owned(),
            group: group.to_owned(),
            value: 0.0,
            threshold: 0.0,
            since: Time(since),
            text: "does not exist any more".to_owned(),
        }),
        _ => None,
    })
}

fn alert(event: Event, kind: AlertKind, since: u64, of: &GroupFacts, threshold: f64) -> Alert {
    Alert {
        event,
        alert: kind,
        stream: of.stream.clone(),
        group: of.group.clone(),
        value: kind.figure(of),
        threshold,
        since: Time(since),
        text: match event {
            Event::Fired => fired(kind, of, threshold),
            Event::Cleared => cleared(kind, of),
        },
    }
}

fn fired(kind: AlertKind, of: &GroupFacts, threshold: f64) -> String {
    match kind {
        AlertKind::Age => {
            format!("is {} behind; the limit is {}", age(of.oldest_age), age(threshold))
        }
        AlertKind::Lag => {
            format!("has {} waiting; the limit is {}", messages(of.due), count(threshold as u64))
        }
        AlertKind::Parked => format!("has {} parked", messages(of.parked)),
        AlertKind::NoConsumers => {
            let wait = if of.due == 1 { "waits" } else { "wait" };
            format!("has no consumers: {} {wait}, the oldest for {}", messages(of.due), age(of.oldest_age))
        }
    }
}

fn cleared(kind: AlertKind, of: &GroupFacts) -> String {
    match kind {
        AlertKind::Age => format!("is {} behind again", age(of.oldest_age)),
        AlertKind::Lag => format!("has {} waiting again", messages(of.due)),
        AlertKind::Parked => format!("has {} parked again", messages(of.parked)),
        AlertKind::NoConsumers if of.consumers > 0 => {
            format!("has {} again", count_of(of.consumers, "consumer"))
        }
        AlertKind::NoConsumers => "has nothing to consume any more".to_owned(),
    }
}

fn messages(n: u64) -> String {
    count_of(n, "message")
}

#[cfg(test)]
mod tests;
