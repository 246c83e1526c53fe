//! The page in the docs says something of everything that there is.

use crate::sqs::wire::attributes::QueueAttribute;
use crate::sqs::wire::error::TABLE;
use crate::sqs::wire::message::SystemAttribute;
use crate::sqs::wire::protocol::Action;

const PAGE: &str = include_str!("../../../../../../docs/reference/sqs.md");
const STATES: [&str; 3] = ["same", "differs", "not there"];

/// The rows under a heading, as cells.
fn rows(heading: &str) -> Vec<Vec<&'static str>> {
    let section = PAGE.split("\n## ").find(|section| section.starts_with(heading)).expect("the section");
    let lines = section.lines().filter(|line| line.starts_with("| `"));
    lines.map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect()).collect()
}

fn check(heading: &str, state_at: usize, expected: impl Iterator<Item = String>) {
    let rows = rows(heading);
    let named: Vec<String> = rows.iter().map(|cells| cells[0].trim_matches('`').to_owned()).collect();
    assert_eq!(named, expected.collect::<Vec<_>>(), "{heading}: one row for each, in order");
    for cells in rows {
        assert!(STATES.contains(&cells[state_at]), "{cells:?}");
        assert!(
            cells[state_at] == "same" || heading == "Errors" || !cells[state_at + 1].is_empty(),
            "{cells:?}"
        );
    }
}

#[test]
fn every_action_and_every_attribute_has_its_row() {
    check("Actions", 1, Action::ALL.iter().map(|action| action.name().to_owned()));
    let queues = QueueAttribute::ALL.iter().map(|attribute| attribute.name().to_owned());
    check("Attributes of queues", 1, queues);
    let messages = SystemAttribute::ALL.iter().map(|attribute| attribute.name().to_owned());
    check("System attributes of messages", 1, messages);
}

#[test]
fn every_error_has_its_row() {
    check("Errors", 3, TABLE.iter().map(|row| row.code.to_owned()));
    for (cells, row) in rows("Errors").iter().zip(TABLE) {
        assert_eq!(cells[1].trim_matches('`'), row.shape);
        assert_eq!(cells[2], row.status.to_string());
    }
}
