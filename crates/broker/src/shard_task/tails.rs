//! The readers that wait for streams to grow. A durable frame names the streams that it has messages of, and only
//! readers of these are told: the cost does not depend on how many other streams have readers. Receipts that come
//! together tell each stream's readers once.

use std::collections::HashMap;

use forebay_core::types::StreamId;

use crate::caller::Signal;

#[derive(Default)]
pub(super) struct Tails {
    streams: HashMap<StreamId, Tail>,
    /// The readers of the whole log.
    whole: Tail,
    round: u64,
}

/// The readers of one stream, or of all.
#[derive(Default)]
struct Tail {
    readers: Vec<Signal>,
    /// Readers that have gone are looked for once there are so many.
    look_at: usize,
    /// The round in which they were told last.
    told: u64,
}

impl Tail {
    fn watch(&mut self, reader: Signal) {
        // A stream that does not grow tells no reader, and so does not notice those that have gone.
        if self.readers.len() >= self.look_at {
            self.readers.retain(is_there);
            self.look_at = 2 * self.readers.len() + FEW;
        }
        self.readers.push(reader);
    }

    fn tell(&mut self, round: u64) {
        if self.told != round {
            self.told = round;
            self.readers.retain(|reader| {
                reader.send_replace(());
                is_there(reader)
            });
        }
    }
}

/// So many readers of a stream are not looked through for those that have gone.
const FEW: usize = 16;

impl Tails {
    /// The reader is told from now on when the stream grows, for as long as it lives.
    pub(super) fn watch(&mut self, stream: StreamId, reader: Signal) {
        self.streams.entry(stream).or_default().watch(reader);
    }

    /// The reader is told from now on when any stream grows.
    pub(super) fn watch_whole(&mut self, reader: Signal) {
        self.whole.watch(reader);
    }

    /// Receipts have come. Readers are told once until the next call.
    pub(super) fn begin_round(&mut self) {
        self.round += 1;
    }

    /// These streams have grown.
    pub(super) fn tell(&mut self, grown: &[StreamId]) {
        if !grown.is_empty() && !self.whole.readers.is_empty() {
            self.whole.tell(self.round);
        }
        if self.streams.is_empty() {
            return;
        }
        for stream in grown {
            let Some(tail) = self.streams.get_mut(stream) else { continue };
            tail.tell(self.round);
            if tail.readers.is_empty() {
                self.streams.remove(stream);
            }
        }
    }

    /// The stream is gone. Its readers are to be told.
    pub(super) fn remove(&mut self, stream: StreamId) -> Vec<Signal> {
        self.streams.remove(&stream).map(|tail| tail.readers).unwrap_or_default()
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
        let (signal, mut whole) = watch::channel(());
        tails.watch_whole(Arc::new(signal));
        let mut changed = || {
            let changed =
                [&mut one, &mut other, &mut whole].map(|tail| tail.has_changed().expect("the task lives"));
            one.mark_unchanged();
            other.mark_unchanged();
            whole.mark_unchanged();
            changed
        };
        tails.begin_round();
        tails.tell(&[StreamId(1)]);
        assert_eq!(changed(), [true, false, true]);
        tails.tell(&[StreamId(1)]);
        assert_eq!(changed(), [false; 3], "they were told in this round");
        tails.begin_round();
        tails.tell(&[StreamId(2), StreamId(4)]);
        assert_eq!(changed(), [false, true, true]);
        tails.begin_round();
        tails.tell(&[StreamId(3)]);
        assert_eq!(changed(), [true, false, true]);
        assert_eq!(tails.remove(StreamId(3)).len(), 1);
        tails.begin_round();
        tails.tell(&[]);
        assert_eq!(changed(), [false; 3]);
        tails.tell(&[StreamId(3)]);
        assert_eq!(changed(), [false, false, true]);
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
        assert!(tails.streams[&StreamId(1)].readers.len() < 100);
        tails.begin_round();
        tails.tell(&[StreamId(1)]);
        assert_eq!(tails.streams[&StreamId(1)].readers.len(), 1);
    }
}
