//! Streams with limits, with log retention and with a delay, and what must be true of them whatever their groups do.

use std::time::Duration;

use forebay_core::settings::{OnFull, Retention, StreamLimits, StreamSettings};
use forebay_core::shard::Shard;
use forebay_core::types::{GroupId, Seq, StreamId};

use crate::model::StreamModel;
use crate::situation::Situation;
use crate::tale::tell;
use crate::world::World;

/// How many messages a stream with log retention keeps.
pub(super) fn kept_by_log(settings: &StreamSettings) -> Option<u64> {
    match settings.retention {
        Retention::Log { max_messages, .. } => max_messages,
        Retention::Work => None,
    }
}

/// Whether a stream lets go of open messages to make room.
pub(super) fn drops_oldest(settings: &StreamSettings) -> bool {
    settings.limits.max_messages.is_some() && settings.limits.on_full == OnFull::DropOldest
}

impl World {
    /// Settings of a stream of this history.
    pub(super) fn stream_settings(&mut self) -> StreamSettings {
        // Longer than any history, or so short that ids are forgotten in it.
        let is_short = self.dice.chance(1, 3);
        let dedupe_window = Duration::from_secs(if is_short { 1 + self.dice.roll(10) } else { 86_400 * 30 });
        let mut settings = StreamSettings { dedupe_window, ..StreamSettings::default() };
        let most = 15 + self.dice.roll(50);
        let bounded = |on_full| StreamLimits { max_messages: Some(most), on_full, ..StreamLimits::default() };
        match self.dice.roll(8) {
            0 => settings.limits = bounded(OnFull::Reject),
            1 if self.wild => settings.limits = bounded(OnFull::DropOldest),
            2 if self.wild => {
                let max_messages = Some(most);
                settings.retention = Retention::Log { max_age: None, max_bytes: None, max_messages };
            }
            3 if self.wild => settings.delay = Duration::from_millis(100 + self.dice.roll(1_500)),
            _ => {}
        }
        settings
    }

    /// The messages of a stream that count against its limit, if its groups decide how long it keeps them.
    pub(super) fn count_kept(&mut self, stream: StreamId) -> Option<u64> {
        let server = self.server.as_ref().expect("the server is up between steps");
        let shard = server.driver.shard();
        let last = shard.last_given(stream)?;
        let groups = self.groups.iter().filter(|(_, following)| following.stream == stream);
        groups.map(|(&id, _)| open_or_parked(shard, id, last)).max()
    }

    /// A batch of so many messages was stored, or refused because the stream is full. `before` is what counted
    /// before.
    pub(super) fn check_limit(&mut self, stream: StreamId, before: Option<u64>, refused: Option<u64>) {
        let Some(most) = self.streams[&stream].settings.limits.max_messages else {
            assert!(refused.is_none(), "a stream without a limit is never full");
            return;
        };
        let (Some(before), Some(after)) = (before, self.count_kept(stream)) else { return };
        if let Some(messages) = refused {
            self.situations.reached(Situation::StreamFull);
            assert!(before + messages > most, "a stream with {before} of {most} refuses {messages} more");
            assert!(after == before, "a refused batch changes nothing");
        } else if after > before {
            assert!(after <= most, "a stream that may hold {most} messages holds {after}");
        }
    }

    /// An operator changes how long the messages of a stream wait. Those that wait already are moved along.
    pub(super) fn change_delay(&mut self) {
        let delayed = self.streams.iter().filter(|(_, model)| !model.settings.delay.is_zero());
        let delayed: Vec<StreamId> = delayed.map(|(&id, _)| id).collect();
        if delayed.is_empty() {
            return;
        }
        let stream = *self.dice.pick(&delayed);
        let to = Duration::from_millis(100 + self.dice.roll(2_500));
        let settings = StreamSettings { delay: to, ..self.streams[&stream].settings.clone() };
        let from = self.streams[&stream].settings.delay;
        tell(|| format!("{stream:?} delays by {to:?}, not {from:?}"));
        self.decide(|shard, now| shard.change_stream(now, stream, &settings));
        self.situations.reached(Situation::DelayChanged);
        let (now, latest) = (self.now, self.latest.max(self.now));
        let (frame, _) = self.server().driver.frame_numbers();
        let model = self.streams.get_mut(&stream).expect("it was picked from those there");
        model.redelay(now, frame, settings);
        for (&(of, _), (meta, _)) in &mut self.published {
            if of == stream
                && let Some(at) = meta.not_before.filter(|at| *at > now)
            {
                // Between the two times it may have come due, if the clock was set back.
                meta.not_before = (at > latest).then(|| at - from + to);
            }
        }
    }

    /// A stream with log retention keeps as many messages as it says.
    pub(super) fn check_logs(&self, shard: &Shard) {
        for (&id, model) in &self.streams {
            let Some(most) = kept_by_log(&model.settings) else { continue };
            let last = shard.last_seq(id).expect("the stream exists");
            let promised = Seq(last.0.saturating_sub(most)).max(model.purged).next();
            let first = shard.readable(id).map_or(last.next(), |kept| kept.first);
            assert!(first <= promised, "a log of {most} messages begins at {first}, not {promised}");
        }
    }

    /// Counts the logs that have let go of messages.
    pub(super) fn note_full_logs(&mut self) {
        let server = self.server.as_ref().expect("the server is up between steps");
        for (&id, model) in &self.streams {
            let Some(most) = kept_by_log(&model.settings) else { continue };
            let kept = server.driver.shard().readable(id).map_or(0, |kept| kept.count());
            if kept >= most {
                self.situations.reached(Situation::LogFull);
            }
        }
    }
}

fn open_or_parked(shard: &Shard, group: GroupId, last: Seq) -> u64 {
    let counts = |&seq: &Seq| !shard.is_settled(group, seq) || shard.parked(group, seq).is_some();
    (1..=last.0).map(Seq).filter(counts).count() as u64
}

impl StreamModel {
    /// Whether a group may be done with a message because the stream has let go of it.
    pub(super) fn lets_go(&self, shard: &Shard, id: StreamId, seq: Seq) -> bool {
        let cut = kept_by_log(&self.settings).is_some();
        cut && shard.readable(id).is_none_or(|kept| seq < kept.first)
    }
}
