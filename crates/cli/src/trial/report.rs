//! The accounts of a trial.

use std::time::Duration;

use serde_json::{Value, json};

use super::Fault;
use super::ledger::Counts;
use crate::print::{Colour, Output, Table, colours, print, print_facts};
use crate::units;

/// A fault, and how long it was felt.
#[derive(Debug, Clone)]
pub(super) struct Event {
    pub(super) at: Duration,
    pub(super) fault: Fault,
    pub(super) target: String,
    /// The owner before and after it, and their terms.
    pub(super) owners: (&'static str, &'static str),
    pub(super) terms: (u32, u32),
    pub(super) delivery: Duration,
    pub(super) confirmation: Duration,
}

impl Event {
    /// What should not have happened.
    pub(super) fn problem(&self) -> Option<String> {
        let (before, after) = self.terms;
        let expected = u32::from(self.fault.changes_owner());
        (after - before != expected).then(|| {
            let what = match after - before {
                0 => "did not change the owner",
                1 => "changed the owner",
                _ => "changed the owner more than once",
            };
            format!("{} {what} ({}, term {before} to {after})", self.fault.name(), self.target)
        })
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "elapsed": self.at.as_secs_f64(),
            "fault": self.fault.name(),
            "target": self.target,
            "owner_before": self.owners.0,
            "owner_after": self.owners.1,
            "term_before": self.terms.0,
            "term_after": self.terms.1,
            "first_delivery": self.delivery.as_secs_f64(),
            "first_confirmation": self.confirmation.as_secs_f64(),
        })
    }
}

#[derive(Debug, Clone)]
pub(super) struct Accounts {
    pub(super) counts: Counts,
    /// Deliveries of messages that were never sent.
    pub(super) unknown: u64,
    /// Messages that the stream holds, or held.
    pub(super) stored: u64,
    /// Messages that are not settled.
    pub(super) waiting: u64,
    /// The first and the last term.
    pub(super) terms: (u32, u32),
    pub(super) events: Vec<Event>,
    pub(super) problems: Vec<String>,
}

impl Accounts {
    /// Adds these problems, and those that the figures show.
    pub(super) fn with(mut self, problems: Vec<String>) -> Accounts {
        self.problems = problems;
        let Counts { published, confirmed, given_up, lost, .. } = self.counts;
        let twice = self.stored_twice();
        let found = [
            (lost, format!("{} lost", units::of(lost, "message"))),
            (given_up, format!("{} given up by the client library", units::of(given_up, "message"))),
            (
                published - confirmed - given_up.min(published - confirmed),
                "messages without an answer".to_owned(),
            ),
            (twice, format!("{} stored twice", units::of(twice, "message"))),
            (self.unknown, format!("{} that no producer sent", units::of(self.unknown, "message"))),
            (self.waiting, format!("{} unsettled", units::of(self.waiting, "message"))),
        ];
        self.problems.extend(found.into_iter().filter(|(count, _)| *count > 0).map(|(_, text)| text));
        self
    }

    pub(super) fn problems(&self) -> &[String] {
        &self.problems
    }

    fn stored_twice(&self) -> u64 {
        self.stored.saturating_sub(self.counts.confirmed)
    }

    fn changes(&self) -> u32 {
        self.terms.1 - self.terms.0
    }

    /// The times of each kind of fault.
    fn times(&self) -> Vec<Times> {
        let mut faults: Vec<Fault> = self.events.iter().map(|event| event.fault).collect();
        faults.sort_unstable();
        faults.dedup();
        let times = |fault: Fault| {
            let events: Vec<&Event> = self.events.iter().filter(|event| event.fault == fault).collect();
            Times {
                fault,
                count: events.len(),
                delivery: Spread::of(events.iter().map(|event| event.delivery)),
                confirmation: Spread::of(events.iter().map(|event| event.confirmation)),
            }
        };
        faults.into_iter().map(times).collect()
    }

    pub(super) fn print(&self, output: Output) -> anyhow::Result<()> {
        if output == Output::Json {
            return print(&format!("{}\n", self.json()));
        }
        let Counts { published, confirmed, delivered, again, lost, .. } = self.counts;
        let facts = [
            ("published", units::count(published)),
            ("confirmed", units::count(confirmed)),
            ("delivered", format!("{}, and {} once more", units::count(delivered), units::count(again))),
            ("lost", units::count(lost)),
            ("stored twice", units::count(self.stored_twice())),
            ("changes of owner", format!("{} (term {} to {})", self.changes(), self.terms.0, self.terms.1)),
        ];
        print("\n")?;
        print_facts(&facts.map(|(name, value)| (name.to_owned(), value)))?;
        let mut table = Table::new(&[
            "FAULT",
            "COUNT",
            "FIRST DELIVERY AFTER",
            "MEDIAN",
            "FIRST CONFIRMATION AFTER",
            "MEDIAN",
        ]);
        for Times { fault, count, delivery, confirmation } in self.times() {
            let [delivered, confirmed] = [delivery, confirmation].map(Spread::shown);
            let name = fault.name().to_owned();
            table.row([name, count.to_string(), delivered.0, delivered.1, confirmed.0, confirmed.1]);
        }
        print("\n")?;
        table.print()?;
        if self.problems.is_empty() {
            print(&format!("\n{}\n", Colour::Green.paint("Nothing was lost.", colours())))?;
        }
        Ok(())
    }

    fn json(&self) -> Value {
        let Counts { published, confirmed, given_up, delivered, again, lost } = self.counts;
        let times = self.times().into_iter().map(|times| {
            json!({
                "fault": times.fault.name(),
                "count": times.count,
                "first_delivery": times.delivery.json(),
                "first_confirmation": times.confirmation.json(),
            })
        });
        json!({
            "published": published,
            "confirmed": confirmed,
            "given_up": given_up,
            "delivered": delivered,
            "delivered_again": again,
            "lost": lost,
            "stored_twice": self.stored_twice(),
            "changes_of_owner": self.changes(),
            "times": times.collect::<Vec<_>>(),
            "problems": self.problems,
        })
    }
}

struct Times {
    fault: Fault,
    count: usize,
    delivery: Spread,
    confirmation: Spread,
}

/// The shortest, the middle and the longest of some times.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Spread {
    min: f64,
    median: f64,
    max: f64,
}

impl Spread {
    fn of(times: impl Iterator<Item = Duration>) -> Spread {
        let mut times: Vec<f64> = times.map(|time| time.as_secs_f64()).collect();
        times.sort_unstable_by(f64::total_cmp);
        let at = |index: usize| times.get(index).copied().unwrap_or_default();
        Spread { min: at(0), median: at(times.len() / 2), max: at(times.len().saturating_sub(1)) }
    }

    /// From the shortest to the longest, and the one in the middle.
    fn shown(self) -> (String, String) {
        let Spread { min, median, max } = self;
        let range = if min == max { format!("{min:.2}s") } else { format!("{min:.2}s to {max:.2}s") };
        (range, format!("{median:.2}s"))
    }

    fn json(self) -> Value {
        json!({ "min": self.min, "median": self.median, "max": self.max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(fault: Fault, terms: (u32, u32), delivery: u64) -> Event {
        Event {
            at: Duration::ZERO,
            fault,
            target: "node a".to_owned(),
            owners: ("a", "b"),
            terms,
            delivery: Duration::from_secs(delivery),
            confirmation: Duration::from_secs(delivery + 1),
        }
    }

    fn accounts(counts: Counts, stored: u64, events: Vec<Event>) -> Accounts {
        let accounts =
            Accounts { counts, unknown: 0, stored, waiting: 0, terms: (1, 3), events, problems: Vec::new() };
        accounts.with(Vec::new())
    }

    #[test]
    fn an_owner_changes_if_it_is_killed_and_not_by_an_election() {
        assert_eq!(event(Fault::OwnerKilled, (1, 2), 4).problem(), None);
        assert_eq!(event(Fault::NatsLeaderKilled, (1, 1), 4).problem(), None);
        let problem = event(Fault::OwnerKilled, (1, 1), 4).problem();
        assert!(problem.is_some_and(|text| text.contains("did not change the owner")));
        let problem = event(Fault::OwnerKilled, (1, 3), 4).problem();
        assert!(problem.is_some_and(|text| text.contains("more than once")));
        let problem = event(Fault::NatsLeaderKilled, (1, 2), 4).problem();
        assert!(problem.is_some_and(|text| text.contains("nats-leader-killed changed the owner")));
    }

    #[test]
    fn accounts_that_do_not_add_up_are_problems() {
        let good = Counts { published: 5, confirmed: 5, delivered: 5, ..Counts::default() };
        assert_eq!(accounts(good, 5, Vec::new()).problems(), [""; 0]);
        assert_eq!(accounts(good, 6, Vec::new()).problems(), ["1 message stored twice"]);
        let lost = Counts { delivered: 3, lost: 2, ..good };
        assert_eq!(accounts(lost, 5, Vec::new()).problems(), ["2 messages lost"]);
        let open = Counts { confirmed: 4, delivered: 4, ..good };
        assert_eq!(accounts(open, 4, Vec::new()).problems(), ["messages without an answer"]);
    }

    #[test]
    fn times_are_gathered_by_fault() {
        let good = Counts { published: 5, confirmed: 5, delivered: 5, ..Counts::default() };
        let events = [4, 6, 5].map(|delivery| event(Fault::OwnerKilled, (1, 2), delivery));
        let json = accounts(good, 5, events.to_vec()).json();
        let times = &json["times"][0];
        assert_eq!((&times["fault"], &times["count"]), (&json!("owner-killed"), &json!(3)));
        assert_eq!(times["first_delivery"], json!({ "min": 4.0, "median": 5.0, "max": 6.0 }));
        assert_eq!((&json["lost"], &json["changes_of_owner"]), (&json!(0), &json!(2)));
    }
}
