//! A producer that numbers its messages. It keeps a few batches under way, and after a crash, or if it did not hear
//! the answer, it sends again from the first that was not confirmed.

use std::collections::VecDeque;

use forebay_broker::batch::{Batch, BatchBuilder, Message};
use forebay_broker::driver::Ticket;
use forebay_core::producers::{ProducerRefusal, ProducerStamp};
use forebay_core::shard::{PublishOptions, PublishRefusal};
use forebay_core::types::StreamId;

use crate::model::Uid;
use crate::situation::Situation;
use crate::tale::tell;
use crate::world::World;

/// Batches that are not confirmed; the server remembers one more.
const OPEN_MAX: usize = 4;

#[derive(Debug)]
pub(super) struct Numbered {
    producer: u64,
    epoch: u32,
    next: u64,
    /// Not confirmed, in order.
    open: VecDeque<Sending>,
    /// The last one that was.
    confirmed: Option<Sending>,
}

#[derive(Debug, Clone)]
struct Sending {
    number: u64,
    uids: Vec<Uid>,
    batch: Batch,
    contents: Vec<Vec<u8>>,
    /// Its answer is on its way.
    sent: bool,
    /// It was sent before.
    again: bool,
}

impl World {
    pub(super) fn publish_numbered(&mut self, stream: StreamId) {
        let mut of = match self.numbered.remove(&stream) {
            Some(of) => of,
            None => Numbered {
                producer: self.number(),
                epoch: 0,
                next: 0,
                open: VecDeque::new(),
                confirmed: None,
            },
        };
        let name = (of.producer, of.epoch);
        let unsent = of.open.iter().position(|sending| !sending.sent);
        match (unsent, self.dice.roll(12)) {
            (_, 0) if of.confirmed.is_some() => self.break_rules(stream, &of),
            (_, 1) if of.confirmed.is_some() && of.open.len() < OPEN_MAX => {
                let mut last = of.confirmed.clone().expect("it is there");
                last.again = true;
                self.send(stream, name, &mut last);
            }
            (Some(at), _) => self.send(stream, name, &mut of.open[at]),
            (None, 2) if of.open.is_empty() => {
                // Another instance takes over.
                (of.epoch, of.next, of.confirmed) = (of.epoch + 1, 0, None);
            }
            (None, _) if of.open.len() < OPEN_MAX => {
                let mut sending = self.compose(of.next);
                self.send(stream, name, &mut sending);
                if sending.sent {
                    of.next += sending.uids.len() as u64;
                    of.open.push_back(sending);
                }
            }
            _ => {}
        }
        self.numbered.insert(stream, of);
    }

    fn compose(&mut self, number: u64) -> Sending {
        let mut builder = BatchBuilder::default();
        let (mut uids, mut contents) = (Vec::new(), Vec::new());
        for _ in 0..1 + self.dice.roll(4) {
            let uid = Uid(self.number());
            let mut body = uid.0.to_le_bytes().to_vec();
            body.extend(self.dice.bytes(20));
            let keys: [&[u8]; 3] = [b"a", b"b", b"c"];
            let key = self.wild.then(|| *self.dice.pick(&keys));
            let message = Message { key, body: &body, ..Message::default() };
            builder.push(&message);
            let mut alone = BatchBuilder::default();
            alone.push(&message);
            contents.push(alone.build().contents().to_vec());
            uids.push(uid);
        }
        Sending { number, uids, batch: builder.build(), contents, sent: false, again: false }
    }

    fn send(&mut self, stream: StreamId, (producer, number_epoch): (u64, u32), sending: &mut Sending) {
        let (now, epoch) = (self.now, self.epoch());
        let model = self.streams.get_mut(&stream).expect("the stream exists");
        if sending.again {
            self.situations.reached(Situation::NumberedSentAgain);
            sending.uids.iter().for_each(|&uid| model.sends_again(uid, now));
        } else {
            for (&uid, content) in sending.uids.iter().zip(&sending.contents) {
                model.sends_numbered(uid, content.clone(), now, epoch);
            }
        }
        let stamp = ProducerStamp { producer, epoch: number_epoch, number: sending.number };
        let options = PublishOptions { stamp: Some(stamp), ..PublishOptions::default() };
        let ticket = Ticket(self.number());
        let kept = self.count_kept(stream);
        let published = self.driver().publish(now, stream, &sending.batch, options, ticket);
        tell(|| format!("publish {:?} to {stream:?} as {stamp:?}: {published:?}", sending.uids));
        match published {
            Ok(published) => {
                self.publishes.insert(ticket, (stream, sending.uids.clone(), published));
                self.check_limit(stream, kept, None);
                (sending.sent, sending.again) = (true, true);
            }
            Err(PublishRefusal::StorageFull | PublishRefusal::Full { .. }) => {
                let model = self.streams.get_mut(&stream).expect("the stream exists");
                sending.uids.iter().for_each(|&uid| model.not_sent(uid, sending.again));
            }
            Err(error) => panic!("I11: a numbered batch that follows is refused: {error}"),
        }
    }

    /// What does not follow, and what an earlier instance sends, is refused.
    fn break_rules(&mut self, stream: StreamId, of: &Numbered) {
        let strange = self.compose(of.next + 5);
        let now = self.now;
        let (epoch, number) = match of.epoch {
            0 => (0, of.next + 5),
            epoch if self.dice.chance(1, 2) => (epoch - 1, of.next),
            epoch => (epoch, of.next + 5),
        };
        let stamp = ProducerStamp { producer: of.producer, epoch, number };
        let options = PublishOptions { stamp: Some(stamp), ..PublishOptions::default() };
        let ticket = Ticket(self.number());
        let refused = self.driver().publish(now, stream, &strange.batch, options, ticket);
        let is_right = match &refused {
            Err(PublishRefusal::StorageFull) => true,
            Err(PublishRefusal::Producer(ProducerRefusal::Gap { .. })) => epoch == of.epoch,
            Err(PublishRefusal::Producer(ProducerRefusal::Fenced { .. })) => epoch < of.epoch,
            _ => false,
        };
        assert!(is_right, "I11: a batch that does not follow is answered with {refused:?}");
    }

    /// The server has answered. The producer may not hear it.
    pub(super) fn heard(&mut self, stream: StreamId, uids: &[Uid]) {
        let lost = self.dice.chance(1, 5);
        let Some(of) = self.numbered.get_mut(&stream) else { return };
        let Some(at) = of.open.iter().position(|sending| sending.uids == uids) else { return };
        if lost || at > 0 {
            of.open[at].sent = false;
        } else {
            of.confirmed = of.open.pop_front();
        }
    }

    /// The connection broke, and everything that is not confirmed is sent again.
    pub(super) fn send_all_again(&mut self) {
        for of in self.numbered.values_mut() {
            of.open.iter_mut().for_each(|sending| sending.sent = false);
        }
    }
}
