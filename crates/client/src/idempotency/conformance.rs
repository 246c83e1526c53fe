//! The conformance suite of idempotency stores, for the tests of programs with a store of their own. Needs the feature
//! `conformance`.

use std::sync::Arc;
use std::time::Duration;

use super::{Begun, Claim, IdempotencyStore, StoreError};

const SHORT: Duration = Duration::from_millis(50);
/// Longer than the suite takes.
const LONG: Duration = Duration::from_secs(600);
/// How many tasks ask at once.
const CROWD: usize = 40;

/// Checks that a store keeps the contract of [`IdempotencyStore`]. The store must be empty, and takes a second or two.
/// Call it inside a Tokio runtime with its timer enabled.
///
/// # Panics
///
/// At the first promise that the store breaks, with a description.
///
/// ```
/// # #[tokio::main]
/// # async fn main() {
/// use std::sync::Arc;
/// use forebay_client::idempotency::{MemoryStore, conformance};
///
/// conformance::check(Arc::new(MemoryStore::new())).await;
/// # }
/// ```
pub async fn check(store: Arc<dyn IdempotencyStore>) {
    work_is_begun_once_and_stays_done(&store).await;
    work_that_is_given_up_can_be_begun_again(&store).await;
    a_claim_that_lapses_goes_to_another_for_good(&store).await;
    a_claim_that_lapsed_and_that_nobody_took_is_still_good(&store).await;
    a_claim_that_is_renewed_does_not_lapse(&store).await;
    a_mark_is_forgotten_when_its_time_is_over(&store).await;
    one_of_many_begins(&store).await;
    any_text_is_a_key(&store).await;
}

async fn work_is_begun_once_and_stays_done(store: &Arc<dyn IdempotencyStore>) {
    let ours = claim(store.begin("once", LONG).await);
    assert_eq!(ours.key(), "once");
    match store.begin("once", LONG).await {
        Ok(Begun::Busy(left)) => assert!(LONG / 2 < left && left <= LONG, "{left:?}"),
        other => panic!("not busy: {other:?}"),
    }
    store.finish(&ours, LONG).await.expect("it is ours");
    assert_eq!(store.begin("once", LONG).await.ok(), Some(Begun::Done));
    store.finish(&ours, LONG).await.expect("to finish twice does no harm");
    store.abandon(&ours).await.expect("abandoning finished work does nothing");
    store.renew(std::slice::from_ref(&ours), SHORT).await.expect("a mark is left alone");
    tokio::time::sleep(2 * SHORT).await;
    assert_eq!(store.begin("once", LONG).await.ok(), Some(Begun::Done));
}

async fn work_that_is_given_up_can_be_begun_again(store: &Arc<dyn IdempotencyStore>) {
    let first = claim(store.begin("given up", LONG).await);
    store.abandon(&first).await.expect("it is ours");
    let second = claim(store.begin("given up", LONG).await);
    assert_ne!(first, second);
    store.abandon(&first).await.expect("a claim that is not ours any more is left alone");
    assert!(matches!(store.begin("given up", LONG).await, Ok(Begun::Busy(_))));
    assert!(matches!(store.finish(&first, LONG).await, Err(StoreError::Taken { key }) if key == "given up"));
}

async fn a_claim_that_lapses_goes_to_another_for_good(store: &Arc<dyn IdempotencyStore>) {
    let first = claim(store.begin("lapses", SHORT).await);
    let second = begun_in_the_end(store, "lapses").await;
    assert!(matches!(store.finish(&first, LONG).await, Err(StoreError::Taken { .. })));
    store
        .renew(std::slice::from_ref(&first), SHORT)
        .await
        .expect("a claim that is not ours any more is left alone");
    store.abandon(&first).await.expect("likewise");
    tokio::time::sleep(2 * SHORT).await;
    assert!(matches!(store.begin("lapses", LONG).await, Ok(Begun::Busy(_))));
    store.finish(&second, LONG).await.expect("it is ours");
    assert!(matches!(store.finish(&first, LONG).await, Err(StoreError::Taken { .. })));
    assert_eq!(store.begin("lapses", LONG).await.ok(), Some(Begun::Done));
}

async fn a_claim_that_lapsed_and_that_nobody_took_is_still_good(store: &Arc<dyn IdempotencyStore>) {
    let ours = claim(store.begin("late", Duration::from_millis(1)).await);
    tokio::time::sleep(SHORT).await;
    store.finish(&ours, LONG).await.expect("no other worker took it");
    assert_eq!(store.begin("late", LONG).await.ok(), Some(Begun::Done));
}

async fn a_claim_that_is_renewed_does_not_lapse(store: &Arc<dyn IdempotencyStore>) {
    let mut ours = Vec::new();
    for n in 0..5 {
        ours.push(claim(store.begin(&format!("renewed {n}"), LONG / 2).await));
    }
    // One that is not there does not keep the others from being renewed.
    ours.push(Claim::new("never begun", 7));
    store.renew(&ours, LONG).await.expect("they are ours");
    store.renew(&[], LONG).await.expect("nothing to do");
    for n in 0..5 {
        match store.begin(&format!("renewed {n}"), LONG).await {
            Ok(Begun::Busy(left)) => assert!(left > LONG / 2 + LONG / 4, "{left:?}"),
            other => panic!("not busy: {other:?}"),
        }
    }
    claim(store.begin("never begun", LONG).await);
}

async fn a_mark_is_forgotten_when_its_time_is_over(store: &Arc<dyn IdempotencyStore>) {
    let first = claim(store.begin("forgotten", LONG).await);
    store.finish(&first, SHORT).await.expect("it is ours");
    let second = begun_in_the_end(store, "forgotten").await;
    store.finish(&second, LONG).await.expect("it is ours");
    assert_eq!(store.begin("forgotten", LONG).await.ok(), Some(Begun::Done));
}

async fn one_of_many_begins(store: &Arc<dyn IdempotencyStore>) {
    let first = one_of_a_crowd(store, "crowd").await;
    store.abandon(&first).await.expect("it is ours");
    let second = one_of_a_crowd(store, "crowd").await;
    // The same when there is a claim that has lapsed.
    store.renew(std::slice::from_ref(&second), Duration::from_millis(1)).await.expect("it is ours");
    tokio::time::sleep(SHORT).await;
    let third = one_of_a_crowd(store, "crowd").await;
    store.finish(&third, LONG).await.expect("it is ours");
}

/// Many ask at once, and one of them gets the work.
async fn one_of_a_crowd(store: &Arc<dyn IdempotencyStore>, key: &'static str) -> Claim {
    let start = Arc::new(tokio::sync::Barrier::new(CROWD));
    let askers: Vec<_> = (0..CROWD)
        .map(|_| {
            let (store, start) = (Arc::clone(store), Arc::clone(&start));
            tokio::spawn(async move {
                start.wait().await;
                store.begin(key, LONG).await.expect("the store answers")
            })
        })
        .collect();
    let mut winners = Vec::new();
    for asker in askers {
        match asker.await.expect("an answer") {
            Begun::New(claim) => winners.push(claim),
            Begun::Busy(_) => {}
            Begun::Done => panic!("no worker has done it"),
        }
    }
    assert_eq!(winners.len(), 1, "{winners:?}");
    winners.remove(0)
}

async fn any_text_is_a_key(store: &Arc<dyn IdempotencyStore>) {
    let long = "é".repeat(150);
    let (longer, other) = ("x".repeat(5_000), format!("{}y", "x".repeat(4_999)));
    let keys = [
        "",
        " ",
        "\0",
        "a\0b",
        "a\0c",
        "A",
        "a",
        "a ",
        "'; DROP TABLE forebay_done; --",
        "%",
        "_",
        "\\",
        "\\0",
        "{}",
        "*",
        "\r\n",
        "🜲",
        &long,
        &longer,
        &other,
    ];
    for key in keys {
        let ours = claim(store.begin(key, LONG).await);
        assert!(matches!(store.begin(key, LONG).await, Ok(Begun::Busy(_))), "{key:?}");
        store.renew(std::slice::from_ref(&ours), LONG).await.expect("it is ours");
        store.finish(&ours, LONG).await.expect("it is ours");
    }
    for key in keys {
        assert_eq!(store.begin(key, LONG).await.ok(), Some(Begun::Done), "{key:?}");
    }
}

/// Asks until the work is ours.
async fn begun_in_the_end(store: &Arc<dyn IdempotencyStore>, key: &str) -> Claim {
    let patience = tokio::time::timeout(Duration::from_secs(30), async {
        loop {
            if let Begun::New(claim) = store.begin(key, LONG).await.expect("the store answers") {
                return claim;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    patience.await.expect("a lapsed claim can be begun")
}

#[track_caller]
fn claim(begun: Result<Begun, StoreError>) -> Claim {
    match begun {
        Ok(Begun::New(claim)) => claim,
        other => panic!("expected a claim: {other:?}"),
    }
}
