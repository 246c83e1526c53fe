//! Streams: creating, changing, listing, purging, deleting.

use forebay_broker::api::{DeleteIf, Page, Purge, StreamReport, StreamSettings};
use forebay_core::types::StreamName;
use forebay_model::StreamPatch;
use forebay_wire::problem::Kind;

use super::{Answer, Service, fields, page, position};
use crate::native::problem::Refusal;

impl Service {
    /// Creates a stream. True if it is new; a stream that exists must agree with `patch`.
    pub(in crate::native) async fn create_stream(
        &self,
        stream: StreamName,
        patch: StreamPatch,
    ) -> Answer<bool> {
        patch.check().map_err(|error| Refusal::of_settings(&error))?;
        let asked = patch.clone();
        let change = move |settings: &mut _| asked.apply(settings);
        match self.answer(self.caller.create_stream(stream.clone(), change).await) {
            Ok(created) => Ok(created.new),
            Err(refusal) if refusal.kind == Kind::SettingsDiffer => {
                let thing = format!("stream {stream}");
                let is = self.stream(stream).await?.settings;
                Err(Refusal::differs(thing, patch.difference(&is), &patch, &StreamPatch::from(&is)))
            }
            Err(refusal) => Err(refusal),
        }
    }

    /// Changes settings: first the fields of `clear` go back to their defaults, then the patch applies.
    pub(in crate::native) async fn change_stream(
        &self,
        stream: StreamName,
        clear: Vec<String>,
        patch: StreamPatch,
    ) -> Answer<()> {
        patch.check().map_err(|error| Refusal::of_settings(&error))?;
        let clear = fields(clear, StreamSettings::FIELDS)?;
        let change = move |settings: &mut StreamSettings| {
            for field in &clear {
                settings.reset(field);
            }
            patch.apply(settings);
        };
        self.answer(self.caller.change_stream(stream, change).await)
    }

    pub(in crate::native) async fn stream(&self, stream: StreamName) -> Answer<StreamReport> {
        self.answer(self.caller.stream(stream).await)
    }

    /// Streams by name, after the one of this name.
    pub(in crate::native) async fn streams(
        &self,
        after: Option<&str>,
        limit: Option<u64>,
    ) -> Answer<Page<StreamReport, StreamName>> {
        let limit = page(limit)?;
        let after = after.map(StreamName::of_any).transpose();
        let after = after.map_err(|error| Refusal::name("after", &error))?;
        self.answer(self.caller.streams(after, limit).await)
    }

    pub(in crate::native) async fn delete_stream(
        &self,
        stream: StreamName,
        force: bool,
        if_empty: bool,
    ) -> Answer<()> {
        let condition = DeleteIf { unused: !force, empty: if_empty };
        self.answer(self.caller.delete_stream_if(stream, condition).await)
    }

    /// How many messages were dropped.
    pub(in crate::native) async fn purge_stream(
        &self,
        stream: StreamName,
        parked: bool,
        ready_only: bool,
    ) -> Answer<u64> {
        match (parked, ready_only) {
            (true, true) => Err(Refusal::field("ready_only", "must not be given together with `parked`")),
            (false, true) => self.answer(self.caller.purge_ready(stream).await),
            (parked, false) => self.answer(self.caller.purge(stream, Purge { parked, ids: false }).await),
        }
    }

    /// How many messages were dropped.
    pub(in crate::native) async fn truncate_stream(&self, stream: StreamName, before: u64) -> Answer<u64> {
        if before == 0 {
            return Err(Refusal::value("before", "must be a position, from 1", before));
        }
        self.answer(self.caller.truncate(stream, position(before)).await)
    }
}
