//! Histories of a cluster with a fixed number of seeds, and its faults.

use forebay_core::fault::Fault;

use super::*;

#[test]
fn the_same_seed_gives_the_same_history() {
    for seed in 2_000..2_003 {
        assert_eq!(run(seed).expect("the seed passes"), run(seed).expect("the seed passes"));
    }
}

#[test]
fn promises_are_kept() {
    let mut all = Outcome::default();
    for seed in 0..40 {
        match run(seed) {
            Ok(outcome) => all.add(&outcome),
            Err(failure) => {
                panic!("seed {} breaks a promise at step {}: {}", seed, failure.step, failure.text)
            }
        }
    }
    let Outcome { terms, pauses, kills, stops, cuts, elections, void, unchecked, .. } = all;
    let Outcome { letters_lost, proposals_dropped, chunks, purges, sent_again, redeliveries, .. } = all;
    let Outcome { leases_outlived, acks_undone, .. } = all;
    let rare = [
        terms,
        pauses,
        kills,
        stops,
        cuts,
        elections,
        void,
        unchecked,
        letters_lost,
        proposals_dropped,
        chunks,
        purges,
        sent_again,
        redeliveries,
        leases_outlived,
        acks_undone,
    ];
    assert!(rare.iter().all(|count| *count > 0), "each situation is reached: {all:?}");
}

#[test]
fn leases_are_not_ended_early_by_the_time_of_an_image() {
    run(1_008).expect("the seed passes");
}

#[test]
fn a_former_owner_whose_part_of_the_log_was_trimmed_stands_by_again() {
    for seed in [1_069, 1_086, 2_038] {
        run(seed).expect("the seed passes");
    }
}

#[test]
fn a_former_owner_whose_successor_has_trimmed_its_claim_confirms_nothing() {
    run(1_162).expect("the seed passes");
}

#[test]
fn leases_are_not_ended_early_by_an_owner_whose_clock_was_behind_its_date() {
    run(1_267).expect("the seed passes");
}

#[test]
fn every_broken_promise_is_noticed() {
    for fault in Fault::CLUSTER {
        assert!(find_fault(fault, 500).is_some(), "no history notices {fault:?}");
    }
}
