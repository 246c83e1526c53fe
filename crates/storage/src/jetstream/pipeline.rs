//! The writer's rule: which acknowledgements count.
//!
//! An owner sends messages without waiting for the ones before, each with the sequence that the stream should end with
//! when it arrives. That expectation alone does not keep a former owner out: a claim takes the place of the first
//! refused message, so that the expectations of the messages behind it are true again, and they are stored and
//! acknowledged. Therefore:
//!
//! - An acknowledgement counts only if its sequence is the one after the last that counted. The own claim is at a known
//!   sequence, and the messages that count follow it without a gap, so there is no place for another claim before them.
//! - The first refusal, time-out or sequence that is off stops the pipeline. The owner reads the stream from the last
//!   sequence that counted. Its own messages, in order, have arrived and count; void ones are passed by; a message of
//!   a later epoch ends the ownership. Then it sends the rest again.
//! - The first message of a later epoch is its claim, unless the next owner has let go of that. What it keeps of the
//!   log begins with a message of its own then, so a later epoch is met before any message of this one.
//! - The first message after the read goes alone until it counts. Messages of the attempt before may still be on
//!   their way, and one that is stored takes the place that the next message expects. If all messages were sent again
//!   at once, the refusal of the first would leave the others to be stored the same way, and that could go on for as
//!   long as reads overtake messages. A message that goes alone leaves none behind, so every refusal uses up a message
//!   of an earlier attempt, of which there are few.
//!
//! A [`Pipeline`] is a plain value. It is told of answers and reads, and says what to send.

use std::collections::VecDeque;

use forebay_core::fault::{Fault, planted};
use forebay_core::types::Epoch;

use crate::jetstream::record::{Header, Kind, Message};

/// How much may be on its way at once. A message that is larger goes alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Window {
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Pipeline {
    epoch: Epoch,
    window: Window,
    /// Every message of the stream up to this sequence is known, and none of them is a newer claim.
    known: u64,
    /// Messages that do not count yet, in order. The first `sent` of them were sent in this attempt.
    queue: VecDeque<Waiting>,
    sent: usize,
    sent_bytes: usize,
    /// How many messages have left the queue.
    left: u64,
    /// Answers to an earlier attempt are ignored.
    attempt: u32,
    state: State,
    /// The next message goes alone, because messages of an earlier attempt may be on their way.
    is_probing: bool,
    /// The first message of the record that the queue begins with, if some of its parts count already.
    begun: Option<u64>,
    /// Planted faults, to show that tests notice.
    #[cfg(test)]
    pub(crate) believes_every_answer: bool,
    #[cfg(test)]
    pub(crate) never_probes: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Waiting {
    message: Message,
    /// The sequence that its acknowledgement named.
    stored: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum State {
    Flowing,
    /// Nothing is sent until the stream was read from `known` on.
    Reading,
    /// Another owner has claimed the log.
    Fenced(Epoch),
}

/// Names one message of one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Token {
    pub(crate) attempt: u32,
    pub(crate) nth: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Sending {
    pub(crate) token: Token,
    /// The stream should end with this sequence.
    pub(crate) after: u64,
    pub(crate) message: Message,
}

/// A record that counts: it is stored, in order, under this owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) number: u64,
    /// The sequence of its first message.
    pub(crate) from: u64,
    pub(crate) sequence: u64,
}

/// The stream ends before a sequence that counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WentBack {
    pub(crate) known: u64,
    pub(crate) found: u64,
}

impl Pipeline {
    /// For the owner of an epoch whose claim is at this sequence, or that has read the stream so far.
    pub(crate) fn new(epoch: Epoch, known: u64, window: Window) -> Pipeline {
        Pipeline {
            epoch,
            window,
            known,
            queue: VecDeque::new(),
            sent: 0,
            sent_bytes: 0,
            left: 0,
            attempt: 0,
            state: State::Flowing,
            is_probing: false,
            begun: None,
            #[cfg(test)]
            believes_every_answer: false,
            #[cfg(test)]
            never_probes: false,
        }
    }

    pub(crate) fn push(&mut self, messages: impl IntoIterator<Item = Message>) {
        self.queue.extend(messages.into_iter().map(|message| Waiting { message, stored: None }));
    }

    pub(crate) fn state(&self) -> State {
        self.state
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Messages that were sent and do not count yet.
    pub(crate) fn is_waiting(&self) -> bool {
        self.sent > 0
    }

    /// The last sequence that counted or was read.
    pub(crate) fn known(&self) -> u64 {
        self.known
    }

    /// The next message to send, if there is one and the window has room.
    pub(crate) fn next_send(&mut self) -> Option<Sending> {
        let next = self.queue.get(self.sent).filter(|_| self.state == State::Flowing)?;
        let bytes = next.message.bytes.len();
        let has_room =
            self.sent < self.window.messages && self.sent_bytes.saturating_add(bytes) <= self.window.bytes;
        if self.sent > 0 && (self.is_probing || !has_room) {
            return None;
        }
        let nth = self.sent as u64;
        let token = Token { attempt: self.attempt, nth: self.left + nth };
        let sending = Sending { token, after: self.known + nth, message: next.message.clone() };
        self.sent += 1;
        self.sent_bytes += bytes;
        Some(sending)
    }

    /// The answer to a message: the sequence at which it is stored, or `None` if it was refused.
    pub(crate) fn answered(&mut self, token: Token, stored: Option<u64>) -> Vec<Counted> {
        let is_current = self.state == State::Flowing && token.attempt == self.attempt;
        let index = token.nth.checked_sub(self.left).filter(|index| is_current && *index < self.sent as u64);
        let Some(index) = index else { return Vec::new() };
        if self.believes() {
            return self.believe(index as usize, stored);
        }
        if stored != Some(self.known + index + 1) {
            self.interrupt();
            return Vec::new();
        }
        self.queue[index as usize].stored = stored;
        let mut counted = Vec::new();
        while let Some(sequence) = self.queue.front().and_then(|first| first.stored) {
            self.count(sequence, &mut counted);
        }
        counted
    }

    /// Takes the first message of the queue for stored.
    fn count(&mut self, sequence: u64, counted: &mut Vec<Counted>) {
        let Some(message) = self.pop(sequence) else { return };
        let from = *self.begun.get_or_insert(sequence);
        if message.kind != Kind::Part {
            self.begun = None;
            counted.push(Counted { number: message.identity.number, from, sequence });
        }
    }

    fn pop(&mut self, sequence: u64) -> Option<Message> {
        let Waiting { message, .. } = self.queue.pop_front()?;
        self.left += 1;
        if self.sent > 0 {
            self.sent -= 1;
            self.sent_bytes -= message.bytes.len();
        }
        (self.known, self.is_probing) = (sequence, false);
        Some(message)
    }

    /// An answer is late, the connection was lost or the leader has changed: the stream has to be read.
    pub(crate) fn interrupt(&mut self) {
        if self.state == State::Flowing {
            self.state = State::Reading;
            self.attempt += 1;
            (self.sent, self.sent_bytes) = (0, 0);
            for waiting in &mut self.queue {
                waiting.stored = None;
            }
        }
    }

    /// Everything that the stream has after [`Pipeline::known`], in order, up to its end.
    pub(crate) fn on_read(
        &mut self,
        found: impl IntoIterator<Item = (u64, Option<Header>)>,
        end: u64,
    ) -> Result<Vec<Counted>, WentBack> {
        let mut counted = Vec::new();
        if self.state != State::Reading {
            return Ok(counted);
        }
        if end < self.known {
            return Err(WentBack { known: self.known, found: end });
        }
        for (sequence, header) in found {
            match header {
                Some(Header { epoch, .. }) if epoch > self.epoch => {
                    self.state = State::Fenced(epoch);
                    return Ok(counted);
                }
                Some(header) if self.is_next(&header) => self.count(sequence, &mut counted),
                // A message of a former owner, or a second copy of one of ours.
                _ => self.known = self.known.max(sequence),
            }
        }
        self.known = self.known.max(end);
        self.state = State::Flowing;
        self.is_probing = true;
        #[cfg(test)]
        if self.never_probes {
            self.is_probing = false;
        }
        Ok(counted)
    }

    fn is_next(&self, header: &Header) -> bool {
        self.queue.front().is_some_and(|first| first.message.identity == header.identity())
    }

    /// Whether the writer's rule is switched off, to show that tests notice.
    pub(crate) fn believes(&self) -> bool {
        #[cfg(test)]
        if self.believes_every_answer {
            return true;
        }
        planted(Fault::AcksBelieved)
    }

    /// The writer's rule switched off: an acknowledgement counts as it comes, whatever sequence it names, and a refusal
    /// is no reason to doubt the acknowledgements behind it.
    fn believe(&mut self, index: usize, stored: Option<u64>) -> Vec<Counted> {
        /// Stands for a message that was refused.
        const REFUSED: u64 = 0;
        let sequence = stored.unwrap_or(REFUSED);
        let waiting = &mut self.queue[index];
        let is_news = waiting.stored.replace(sequence).is_none() && waiting.message.kind != Kind::Part;
        let number = waiting.message.identity.number;
        while let Some(sequence) =
            self.queue.front().and_then(|first| first.stored.filter(|at| *at != REFUSED))
        {
            self.pop(sequence);
        }
        if self.sent > 0 && self.queue.iter().take(self.sent).all(|sent| sent.stored.is_some()) {
            self.interrupt();
        }
        let is_news = is_news && sequence != REFUSED;
        if is_news { vec![Counted { number, from: sequence, sequence }] } else { Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use forebay_core::types::Position;

    use super::*;
    use crate::jetstream::record::{Hash, Scribe};

    fn scribe(epoch: u32) -> Scribe {
        Scribe { epoch: Epoch(epoch), number: 0, chain: Hash::default(), end: Position(1), part_bytes: 64 }
    }

    #[test]
    fn an_owner_whose_successor_has_trimmed_its_claim_has_lost_the_log() {
        let mut pipeline = Pipeline::new(Epoch(4), 859, Window { messages: 32, bytes: 1 << 20 });
        let own = scribe(4).write(Kind::Frame, b"late");
        let (own_header, newer) = (Header::decode(&own[0].bytes), scribe(5).write(Kind::Frame, b"new"));
        pipeline.push(own);
        assert!(pipeline.next_send().is_some());
        pipeline.interrupt();
        // The claim was at 860. The own message was stored behind it, without a look at what it expected.
        let found = [(869, Header::decode(&newer[0].bytes)), (903, own_header)];
        assert_eq!(pipeline.on_read(found, 903), Ok(Vec::new()), "nothing counts behind the claim");
        assert_eq!(pipeline.state(), State::Fenced(Epoch(5)));
        assert!(pipeline.next_send().is_none(), "nothing more is sent");
    }
}
