//! Running histories: one, many, and with a promise broken on purpose.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::LocalKey;

use forebay_core::fault::{Fault, plant};

use crate::disk::SimDisk;
use crate::situation::Situations;
use crate::world::World;

/// Steps of a history before everything is healed and drained.
pub const STEPS: u32 = 600;

/// What a history that kept every promise came to.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The same for the same seed, always.
    pub trace: u64,
    pub crashes: u32,
    pub situations: Situations,
}

/// A broken promise.
#[derive(Debug, Clone)]
pub struct Failure {
    pub seed: u64,
    pub step: u32,
    pub text: String,
}

thread_local! {
    static STEP: RefCell<u32> = const { RefCell::new(0) };
    static PLACE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Whether places of the disk go bad in every history of this process.
static READS_FAIL: AtomicBool = AtomicBool::new(false);

/// From now on places of the disk may go bad, once or for ever, in every history. Off by default: a server that does
/// not get along with that stops.
pub fn let_reads_fail() {
    READS_FAIL.store(true, Ordering::Relaxed);
}

/// Runs one history. A panic anywhere in it is a failure of its seed.
pub fn run(seed: u64, steps: u32) -> Result<Outcome, Failure> {
    run_on(SimDisk::new(), seed, steps, READS_FAIL.load(Ordering::Relaxed))
}

fn run_on(disk: SimDisk, seed: u64, steps: u32, bad_places: bool) -> Result<Outcome, Failure> {
    keep_panics_quiet();
    let history = AssertUnwindSafe(|| {
        let mut world = World::new(seed, disk, bad_places);
        for step in 0..steps {
            STEP.with(|at| *at.borrow_mut() = step);
            world.step();
        }
        world.heal_and_drain();
        Outcome { trace: world.trace(), crashes: world.crashes, situations: world.situations }
    });
    panic::catch_unwind(history).map_err(|payload| Failure {
        seed,
        step: STEP.with(|at| *at.borrow()),
        text: format!("{} ({})", message(payload.as_ref()), PLACE.with(|place| place.borrow().clone())),
    })
}

/// Runs a part of a history. A panic in it comes back in words, with its place.
pub(crate) fn caught<T>(part: impl FnOnce() -> T) -> Result<T, String> {
    keep_panics_quiet();
    panic::catch_unwind(AssertUnwindSafe(part)).map_err(|payload| {
        format!("{} ({})", message(payload.as_ref()), PLACE.with(|place| place.borrow().clone()))
    })
}

/// Runs a history of tasks, on a runtime of one thread whose time only the history moves. A panic anywhere in it is a
/// failure of its seed.
pub(crate) fn run_tasks<T, F: Future<Output = T>>(
    seed: u64,
    step: &'static LocalKey<Cell<u32>>,
    live: impl FnOnce() -> F,
) -> Result<T, Failure> {
    step.set(0);
    let history = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without threads and sockets can be made");
        runtime.block_on(async { live().await })
    };
    caught(history).map_err(|text| Failure { seed, step: step.get(), text })
}

/// Runs histories with one promise broken until one of them notices, and says which.
pub fn find_fault(fault: Fault, seeds_max: u64, steps: u32) -> Option<Failure> {
    first_that_notices(fault, seeds_max, |seed| run(seed, steps))
}

/// The same for histories of any kind.
pub(crate) fn first_that_notices<T>(
    fault: Fault,
    seeds_max: u64,
    run: impl Fn(u64) -> Result<T, Failure>,
) -> Option<Failure> {
    plant(Some(fault));
    let found = (0..seeds_max).find_map(|seed| run(seed).err());
    plant(None);
    found
}

/// Runs all these histories with one promise broken, and counts by what each of them notices it.
pub fn count_fault(fault: Fault, seeds: u64, steps: u32) -> BTreeMap<String, u64> {
    plant(Some(fault));
    let mut counts = BTreeMap::new();
    for failure in (0..seeds).filter_map(|seed| run(seed, steps).err()) {
        // A check begins with the invariant it is about, or with what it is about.
        let what = failure.text.split(':').next().unwrap_or_default().to_owned();
        *counts.entry(what).or_default() += 1;
    }
    plant(None);
    counts
}

fn message(payload: &(dyn Any + Send)) -> String {
    payload
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "a panic without words".to_owned())
}

/// A failing history is reported once, by its seed; the place of the panic goes with it.
fn keep_panics_quiet() {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let in_history = std::thread::current().name().is_some_and(|name| name.starts_with("history"));
            if in_history || cfg!(not(test)) {
                let place = info.location().map(ToString::to_string).unwrap_or_default();
                PLACE.with(|at| *at.borrow_mut() = place);
            } else {
                before(info);
            }
        }));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_history() {
        for seed in 0..8 {
            let first = run(seed, STEPS).expect("the seed passes");
            let second = run(seed, STEPS).expect("the seed passes");
            assert_eq!(first.trace, second.trace);
            assert_eq!(first.situations, second.situations);
        }
    }

    #[test]
    fn promises_are_kept() {
        for seed in 1_000..1_200 {
            if let Err(failure) = run(seed, STEPS) {
                panic!("seed {} breaks a promise at step {}: {}", failure.seed, failure.step, failure.text);
            }
        }
    }

    #[test]
    fn promises_are_kept_in_an_encrypted_folder_and_its_history_is_the_same_again() {
        for seed in 3_000..3_060 {
            let outcome = run_on(SimDisk::encrypted(), seed, STEPS, false);
            let outcome = outcome.unwrap_or_else(|failure| {
                panic!("seed {} breaks a promise at step {}: {}", failure.seed, failure.step, failure.text)
            });
            if seed < 3_004 {
                let again = run_on(SimDisk::encrypted(), seed, STEPS, false).expect("the seed passes");
                assert_eq!(outcome.trace, again.trace);
            }
        }
    }

    /// Seeds that once broke a promise.
    #[test]
    fn a_reader_keeps_what_it_has_not_read_when_reclaim_has_copied_it() {
        for seed in [98, 439] {
            run(seed, STEPS).expect("the seed passes");
        }
    }

    #[test]
    fn leases_for_no_time_count_in_the_order_of_their_grants() {
        for seed in [5_007, 9_146] {
            run(seed, STEPS).expect("the seed passes");
        }
    }

    #[test]
    fn an_ordered_group_delivers_nothing_that_it_passed_over() {
        for seed in [1, 77] {
            run_on(SimDisk::new(), seed, STEPS, true).expect("the seed passes");
        }
    }

    #[test]
    fn a_numbered_message_that_is_sent_again_has_the_delay_of_then() {
        run(500_132, STEPS).expect("the seed passes");
    }

    #[test]
    fn a_reader_of_the_whole_log_passes_messages_whose_acks_a_crash_takes_back() {
        run(4_000_320, STEPS).expect("the seed passes");
    }

    #[test]
    fn ids_of_messages_stay_known_when_the_clock_is_set_back() {
        run(7_018_902, STEPS).expect("the seed passes");
    }

    #[test]
    fn a_message_of_a_torn_bundle_may_be_parked_again() {
        for seed in [7_003_713, 7_012_683] {
            run(seed, STEPS).expect("the seed passes");
        }
        run_on(SimDisk::new(), 7_103_285, STEPS, true).expect("the seed passes");
    }

    #[test]
    fn a_crash_may_take_back_a_reset_and_the_bundle_after_it() {
        run(9_106_214, STEPS).expect("the seed passes");
    }

    #[test]
    fn messages_that_are_dropped_before_they_are_durable_go_as_soon_as_they_are() {
        run(9_102_780, STEPS).expect("the seed passes");
    }

    #[test]
    fn copies_are_damaged_one_at_a_time() {
        for seed in [7_012_614, 7_013_076] {
            run(seed, STEPS).expect("the seed passes");
        }
    }

    #[test]
    fn reclaim_comes_to_an_end() {
        for seed in [7_000_858, 7_014_929] {
            run(seed, STEPS).expect("the seed passes");
        }
    }

    #[test]
    fn a_message_beside_the_copies_that_were_asked_for_is_found() {
        run(9_004_680, STEPS).expect("the seed passes");
    }

    #[test]
    fn a_note_is_there_again_when_the_clock_is_set_back() {
        run(9_017_994, STEPS).expect("the seed passes");
    }

    #[test]
    fn every_broken_promise_is_noticed() {
        for fault in Fault::ALL {
            assert!(find_fault(fault, 500, STEPS).is_some(), "nobody notices {fault:?}");
        }
    }
}
