//! A stream and a group of it, arranged together: each is created, or changed if it is there.

use crate::settings::{GroupSettings, StreamSettings};
use crate::shard::admin::check_group;
use crate::shard::{CreateRefusal, Shard};
use crate::types::{GroupName, StreamId, StreamName, Timestamp};

/// What a stream and a group of it should be like.
#[derive(Debug, Clone, Copy)]
pub struct Arrangement<'a> {
    pub stream: (&'a StreamName, &'a StreamSettings),
    pub group: Option<(&'a GroupName, &'a GroupSettings)>,
}

impl Shard {
    /// Whether [`Shard::arrange`] would succeed. Changes nothing.
    pub fn check_arrangement(&self, arrangement: Arrangement<'_>) -> Result<(), CreateRefusal> {
        let (name, settings) = arrangement.stream;
        settings.check().map_err(CreateRefusal::Settings)?;
        let stream = self.stream_named(name);
        if stream.is_none() && self.streams.len() >= self.limits.streams_max as usize {
            return Err(CreateRefusal::TooMany { limit: self.limits.streams_max });
        }
        let Some((group, settings)) = arrangement.group else { return Ok(()) };
        check_group(name, settings).map_err(CreateRefusal::Settings)?;
        let groups = stream.map_or(0, |stream| self.streams[&stream].groups.len());
        let is_new = stream.is_none_or(|stream| self.group_named(stream, group).is_none());
        if is_new && groups >= self.limits.groups_per_stream_max as usize {
            return Err(CreateRefusal::TooMany { limit: self.limits.groups_per_stream_max });
        }
        Ok(())
    }

    /// Creates the stream and the group, or changes their settings, by entries that follow each other.
    /// Settings that are already as wished are left alone. Returns the stream, and whether it is new.
    pub fn arrange(
        &mut self,
        now: Timestamp,
        arrangement: Arrangement<'_>,
    ) -> Result<(StreamId, bool), CreateRefusal> {
        self.check_arrangement(arrangement)?;
        let (name, settings) = arrangement.stream;
        let known = self.stream_named(name);
        let stream = match known {
            None => self.create_stream(now, name, settings)?,
            Some(stream) => {
                if self.stream_settings(stream) != Some(settings) {
                    self.change_stream(now, stream, settings).expect("it was checked just now");
                }
                stream
            }
        };
        if let Some((group, settings)) = arrangement.group {
            match self.group_named(stream, group) {
                None => drop(self.create_group(now, stream, group, settings, settings.start)?),
                Some(group) if self.group_settings(group) != Some(settings) => {
                    self.change_group(now, group, settings).expect("it was checked just now");
                }
                Some(_) => {}
            }
        }
        Ok((stream, known.is_none()))
    }
}
