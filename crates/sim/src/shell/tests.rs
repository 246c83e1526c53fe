//! Histories of the shell with a fixed number of seeds, and its faults.

use forebay_core::fault::Fault;

use super::*;

#[test]
fn the_same_seed_gives_the_same_history() {
    for seed in 0..12 {
        assert_eq!(run(seed).expect("the seed passes"), run(seed).expect("the seed passes"));
    }
}

#[test]
fn promises_are_kept() {
    let mut all = Outcome::default();
    for seed in 1_000..1_150 {
        match run(seed) {
            Ok(outcome) => all.add(&outcome),
            Err(failure) => {
                panic!("seed {} breaks a promise at step {}: {}", seed, failure.step, failure.text)
            }
        }
    }
    let Outcome {
        deliveries,
        redeliveries,
        crashes,
        stops,
        abandoned,
        reads,
        saves,
        trims,
        held_back,
        looks,
        copies,
        ..
    } = all;
    let rare =
        [deliveries, redeliveries, crashes, stops, abandoned, reads, saves, trims, held_back, looks, copies];
    assert!(rare.iter().all(|count| *count > 0), "each situation is reached: {all:?}");
}

/// Seeds that once broke a promise.
#[test]
fn messages_of_a_receive_that_was_not_answered_stay_leased_for_as_long_as_it_asked() {
    run(318).expect("the seed passes");
}

#[test]
fn a_read_that_fails_several_times_is_waited_for() {
    for seed in [500_766, 501_712] {
        run(seed).expect("the seed passes");
    }
}

#[test]
fn messages_of_a_dropped_publish_are_finished_too() {
    run(501_507).expect("the seed passes");
}

#[test]
fn every_broken_promise_is_noticed() {
    for fault in Fault::SHELL {
        assert!(find_fault(fault, 500).is_some(), "no history notices {fault:?}");
    }
}
