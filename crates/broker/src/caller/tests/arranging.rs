//! Changes that belong together, and what doors note.

use forebay_core::notes::{Expected, NoteRefusal};
use forebay_core::shard::ChangeRefusal;

use super::*;

const DOOR: Door = Door::TEST;

/// A note that is to be written whatever is there, or removed.
pub(super) fn wish(key: &[u8], value: Option<&[u8]>) -> NoteWish {
    let (key, value) = (key.to_vec(), value.map(<[u8]>::to_vec));
    NoteWish { door: DOOR, key, value, expected: Expected::Any, expires: None }
}

async fn value(caller: &Caller, key: &[u8]) -> Option<Vec<u8>> {
    caller.note(&stream(), DOOR, key.to_vec()).await.expect("it is looked up").map(|note| note.value)
}

#[tokio::test]
async fn a_stream_its_group_and_notes_are_there_together_and_gone_together() {
    let engine = engine();
    let again = engine.another();
    let (caller, running) = open_with(engine, BrokerConfig::new([7; 32])).await;
    let first = NoteWish { expected: Expected::Absent, ..wish(b"queue", Some(b"one")) };
    let queue = |first: &NoteWish, batch: u32| {
        Bundle::beside(stream())
            .stream(stream(), |settings| settings.dedupe_max = 5)
            .group(stream(), group(), move |settings| settings.key_batch = batch)
            .note(first.clone())
    };
    let arranged = caller.commit(queue(&first, 7)).await.expect("it is arranged");
    let report = caller.stream(stream()).await.expect("it is there");
    assert_eq!(arranged.streams, [(report.id, true)]);
    let version = arranged.versions[0].expect("it was written");
    assert_eq!(report.settings.dedupe_max, 5);
    assert_eq!(caller.group(stream(), group()).await.expect("it is there").settings.key_batch, 7);

    let refused = caller.commit(queue(&first, 9)).await;
    assert!(matches!(refused, Err(CallError::Note(NoteRefusal::Mismatch { .. }))), "{refused:?}");
    assert_eq!(caller.group(stream(), group()).await.expect("it is there").settings.key_batch, 7);
    let next = NoteWish { expected: Expected::Version(version), ..wish(b"queue", Some(b"two")) };
    let arranged = caller.commit(queue(&next, 9)).await.expect("it is as it was expected");
    assert_eq!(arranged.streams, [(report.id, false)]);
    let other = StreamName::parse("other").expect("a name");
    let absent = |stream| CallError::NoSuchStream { stream };
    let alone = Bundle::beside(stream()).group(other.clone(), group(), |_| {});
    assert_eq!(caller.commit(alone).await, Err(absent(other.clone())), "a group is a stream's");

    caller.broker().owner().stop();
    running.await.expect("no panic").expect("it stopped as asked");
    let (caller, _running) = open_with(again, BrokerConfig::new([7; 32])).await;
    assert_eq!(value(&caller, b"queue").await.as_deref(), Some(&b"two"[..]));
    assert_eq!(caller.group(stream(), group()).await.expect("it is there").settings.key_batch, 9);

    let missing =
        caller.commit(Bundle::beside(stream()).delete(other.clone()).note(wish(b"queue", None))).await;
    assert_eq!(missing, Err(absent(other)));
    assert!(value(&caller, b"queue").await.is_some(), "nothing of it was done");
    let waiting = tokio::spawn({
        let caller = caller.clone();
        async move { caller.receive(stream(), group(), super::wish(1, SOON)).await.map(|_| ()) }
    });
    while caller.server().await.expect("it answers").waiting == 0 {
        tokio::task::yield_now().await;
    }
    let refused = caller.delete_stream(stream(), false).await;
    assert!(matches!(refused, Err(CallError::NotChanged(ChangeRefusal::InUse { .. }))), "{refused:?}");
    let gone = Bundle::beside(stream()).delete(stream());
    let gone = gone.note(wish(b"queue", None)).note(wish(b"grave", Some(b"now")));
    caller.commit(gone).await.expect("it is deleted although it has consumers");
    assert_eq!(waiting.await.expect("no panic"), Err(CallError::GroupGone));
    assert_eq!(caller.stream(stream()).await.map(|_| ()), Err(absent(stream())));
    assert_eq!(value(&caller, b"queue").await, None);
    assert!(value(&caller, b"grave").await.is_some());
}

#[tokio::test]
async fn notes_are_listed_by_key_a_page_at_a_time() {
    let (caller, _running) = open().await;
    let mut notes = Bundle::beside(stream());
    for key in ["q/a", "q/b", "q/c", "r/a"] {
        notes = notes.note(wish(key.as_bytes(), Some(b"v")));
    }
    caller.commit(notes).await.expect("they are written");
    let large = vec![0; 60 << 10];
    for n in 0..80u8 {
        let note = wish(&[b'x', n], Some(&large));
        caller.commit(Bundle::beside(stream()).note(note)).await.expect("it is written");
    }
    let list = |prefix: &str, after: Option<Vec<u8>>, limit| {
        let (caller, prefix) = (caller.clone(), prefix.as_bytes().to_vec());
        async move {
            let page = caller.notes(DOOR, prefix, after, limit).await.expect("they are listed");
            let keys: Vec<_> = page.items.into_iter().map(|(key, _)| key).collect();
            (keys, page.next)
        }
    };
    let keys = |keys: &[&str]| keys.iter().map(|key| key.as_bytes().to_vec()).collect::<Vec<_>>();
    let (first, next) = list("q/", None, 2).await;
    assert_eq!((first, next.clone()), (keys(&["q/a", "q/b"]), Some(b"q/b".to_vec())));
    assert_eq!(list("q/", next, 2).await, (keys(&["q/c"]), None));
    assert_eq!(list("q/", None, 3).await, (keys(&["q/a", "q/b", "q/c"]), None));
    let (some, next) = list("x", None, 1_000).await;
    assert!(some.len() < 80, "no more than a page has: {}", some.len());
    assert_eq!(some.len() + list("x", next, 1_000).await.0.len(), 80);
    assert_eq!(list("none", None, 9).await, (Vec::new(), None));
}
