//! The page in the docs says something of everything that there is.

use super::features::SERVICES;

const PAGE: &str = include_str!("../../../../docs/reference/kurrent.md");
const STATES: [&str; 3] = ["same", "differs", "not there"];

/// The rows under a heading, as cells.
fn rows(heading: &str) -> Vec<Vec<&'static str>> {
    let section = PAGE.split("\n## ").find(|section| section.starts_with(heading)).expect("the section");
    let lines = section.lines().filter(|line| line.starts_with("| `"));
    lines.map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect()).collect()
}

#[test]
fn calls_that_are_advertised_are_there_and_others_are_not() {
    let mut listed: Vec<String> = Vec::new();
    for cells in rows("Calls") {
        assert!(STATES.contains(&cells[1]), "{cells:?}");
        assert!(cells[1] != "differs" || !cells[2].is_empty(), "{cells:?}");
        if cells[1] != "not there" {
            listed.push(cells[0].trim_matches('`').to_lowercase());
        }
    }
    let mut advertised: Vec<String> = SERVICES
        .iter()
        .flat_map(|(service, methods)| {
            let service = service.rsplit('.').next().unwrap_or_default();
            methods.iter().map(move |method| format!("{service}.{}", method.name))
        })
        .collect();
    listed.sort();
    advertised.sort();
    assert_eq!(listed, advertised);
}

#[test]
fn every_row_has_a_state() {
    for heading in ["Options of `Read`", "Categories and types", "Metadata of streams", "HTTP"] {
        for cells in rows(heading) {
            assert!(STATES.contains(&cells[1]), "{cells:?}");
            assert!(cells[1] == "same" || cells[1] == "not there" || !cells[2].is_empty(), "{cells:?}");
        }
    }
}

#[test]
fn every_exception_has_its_row() {
    let source = include_str!("status.rs");
    let source = source.split("mod tests").next().unwrap_or_default();
    let listed: Vec<&str> = rows("Errors").iter().map(|cells| cells[0].trim_matches('`')).collect();
    for name in &listed {
        assert!(source.contains(&format!("\"{name}\"")), "{name}");
    }
    // The names of exceptions stand alone on their lines, or after the message.
    for name in
        ["stream-deleted", "wrong-expected-version", "access-denied", "persistent-subscription-dropped"]
    {
        assert!(listed.contains(&name), "{name}");
    }
}
