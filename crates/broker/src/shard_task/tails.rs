//! The readers that wait for streams to grow. A durable frame names the streams that it has messages of, and only
//! readers of these are told: the cost does not depend on how many other streams have readers.

use std::collections::HashMap;

use forebay_core::types::StreamId;

use crate::caller::Signal;

#[derive(Default)]
pub(super) struct Tails(HashMap<StreamId, Tail>);

/// The readers of one stream.
#[derive(Default)]
struct Tail {
    readers: Vec<Signal>,
    /// Readers that have gone are looked for once there are so many.
    look_at: usize,
}

/// So many readers of a stream are not looked through for those that have gone.
const FEW: usize = 16;

impl Tails {
    /// The reader is told from now on when the stream grows, for as long as it lives.
    pub(super) fn watch(&mut self, stream: StreamId, reader: Signal) {
        let tail = self.0.entry(stream).or_default();
        // A stream that does not grow tells no reader, and so does not notice those that have gone.
        if tail.readers.len() >= tail.look_at {
            tail.readers.retain(is_there);
            tail.look_at = 2 * tail.readers.len() + FEW;
        }
        tail.readers.push(reader);
    }

    /// These streams have grown.
    pub(super) fn tell(&mut self, grown: &[StreamId]) {
        if self.0.is_empty() {
            return;
        }
        for stream in grown {
            let Some(tail) = self.0.get_mut(stream) else { continue };
            tail.readers.retain(|reader| {
                let _ = reader.send_replace(());
                is_there(reader)
            });
            if tail.readers.is_empty() {
                self.0.remove(stream);
            }
        }
    }

    /// The stream is gone. Its readers are to be told.
    pub(super) fn remove(&mut self, stream: StreamId) -> Vec<Signal> {
        self.0.remove(&stream).map(|tail| tail.readers).unwrap_or_default()
    }
}

fn is_there(reader: &Signal) -> bool {
    reader.receiver_count() > 0
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::watch;

    use super::*;

    #[test]
    fn only_readers_of_streams_that_grew_are_told() {
        let mut tails = Tails::default();
        let (signal, mut one) = watch::channel(());
        let signal = Arc::new(signal);
        tails.watch(StreamId(1), signal.clone());
        tails.watch(StreamId(3), signal);
        let (signal, mut other) = watch::channel(());
        tails.watch(StreamId(2), Arc::new(signal));
        let mut changed = || {
            let changed = [&mut one, &mut other].map(|tail| tail.has_changed().expect("the task lives"));
            one.mark_unchanged();
            other.mark_unchanged();
            changed
        };
        tails.tell(&[StreamId(1)]);
        assert_eq!(changed(), [true, false]);
        tails.tell(&[StreamId(2), StreamId(4)]);
        assert_eq!(changed(), [false, true]);
        tails.tell(&[StreamId(3)]);
        assert_eq!(changed(), [true, false]);
        assert_eq!(tails.remove(StreamId(3)).len(), 1);
        tails.tell(&[StreamId(3)]);
        assert_eq!(changed(), [false, false]);
    }

    #[test]
    fn readers_that_have_gone_do_not_pile_up() {
        let mut tails = Tails::default();
        let (signal, _here) = watch::channel(());
        tails.watch(StreamId(1), Arc::new(signal));
        for _ in 0..10_000 {
            let (signal, _) = watch::channel(());
            tails.watch(StreamId(1), Arc::new(signal));
        }
        assert!(tails.0[&StreamId(1)].readers.len() < 100);
        tails.tell(&[StreamId(1)]);
        assert_eq!(tails.0[&StreamId(1)].readers.len(), 1);
    }
}
