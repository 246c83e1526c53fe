//! Groups: creating, changing, monitoring, and the calls of operators.

use std::time::Duration;

use forebay_broker::api::{
    GroupCursor, GroupReport, GroupSettings, Page, ScalingReport, ScalingTarget, Start,
};
use forebay_core::types::{GroupName, Seq, StreamName};
use forebay_model::GroupPatch;
use forebay_wire::problem::Kind;

use super::reports::as_shown;
use super::{Answer, Service, check_some_duration, fields, page};
use crate::native::limits::{TARGET_CONSUMERS_MAX, TARGET_DRAIN};
use crate::native::problem::Refusal;

impl Service {
    /// Creates a group, and its stream if that is absent. True if it is new; a group that exists must agree with
    /// `patch`.
    pub(in crate::native) async fn create_group(
        &self,
        stream: StreamName,
        group: GroupName,
        patch: GroupPatch,
    ) -> Answer<bool> {
        patch.check().map_err(|error| Refusal::of_settings(&error))?;
        let asked = patch.clone();
        let change = move |settings: &mut _| asked.apply(settings);
        let created = self.caller.create_group(stream.clone(), group.clone(), change).await;
        match self.answer(created) {
            Ok(created) => Ok(created.new),
            Err(refusal) if refusal.kind == Kind::SettingsDiffer => {
                let thing = format!("group {stream}/{group}");
                let is = self.group(stream, group).await?.settings;
                Err(Refusal::differs(thing, patch.difference(&is), &patch, &GroupPatch::from(&is)))
            }
            Err(refusal) => Err(refusal),
        }
    }

    /// Changes settings: first the fields of `clear` go back to their defaults, then the patch applies. A `start` may
    /// only repeat the present one, so that a client can send back the settings that it was told.
    pub(in crate::native) async fn change_group(
        &self,
        stream: StreamName,
        group: GroupName,
        clear: Vec<String>,
        patch: GroupPatch,
    ) -> Answer<()> {
        patch.check().map_err(|error| Refusal::of_settings(&error))?;
        let clear = fields(clear, GroupSettings::FIELDS)?;
        if let Some(start) = patch.start
            && start != self.group(stream.clone(), group.clone()).await?.settings.start
        {
            return Err(Refusal::field("start", "must not change: a reset moves a group that exists"));
        }
        let change = move |settings: &mut GroupSettings| {
            for field in &clear {
                settings.reset(field);
            }
            patch.apply(settings);
        };
        self.answer(self.caller.change_group(stream, group, change).await)
    }

    pub(in crate::native) async fn group(&self, stream: StreamName, group: GroupName) -> Answer<GroupReport> {
        self.answer(self.caller.group(stream, group).await).map(as_shown)
    }

    /// Groups of one stream or of all, by stream and name.
    pub(in crate::native) async fn groups(
        &self,
        stream: Option<StreamName>,
        after: Option<GroupCursor>,
        limit: Option<u64>,
    ) -> Answer<Page<GroupReport, GroupCursor>> {
        let found = self.answer(self.caller.groups(stream, after, page(limit)?).await)?;
        Ok(Page { items: found.items.into_iter().map(as_shown).collect(), next: found.next })
    }

    pub(in crate::native) async fn delete_group(&self, stream: StreamName, group: GroupName) -> Answer<()> {
        self.answer(self.caller.delete_group(stream, group).await)
    }

    /// Stops handing out, or goes on with it.
    pub(in crate::native) async fn pause_group(
        &self,
        stream: StreamName,
        group: GroupName,
        paused: bool,
    ) -> Answer<()> {
        self.answer(self.caller.pause(stream, group, paused).await)
    }

    /// Moves the progress of a group. Answers the position up to which everything counts as settled.
    pub(in crate::native) async fn reset_group(
        &self,
        stream: StreamName,
        group: GroupName,
        to: Option<Start>,
        drop_parked: bool,
    ) -> Answer<Seq> {
        // Without it the group would begin at the beginning, which would be an expensive mistake.
        let to = to.ok_or_else(|| Refusal::field("to", "must be given"))?;
        self.answer(self.caller.reset(stream, group, to, drop_parked).await)
    }

    /// How many consumers a group should have.
    pub(in crate::native) async fn scaling(
        &self,
        stream: StreamName,
        group: GroupName,
        drain: Option<Duration>,
        min: u32,
        max: Option<u32>,
    ) -> Answer<ScalingReport> {
        let drain = check_some_duration("target_drain", drain)?.unwrap_or(TARGET_DRAIN);
        let max = max.unwrap_or(TARGET_CONSUMERS_MAX.max(min));
        if min > max {
            return Err(Refusal::field(
                "min",
                format_args!("must not be above max. min=`{min}` max=`{max}`"),
            ));
        }
        self.answer(self.caller.scaling(stream, group, ScalingTarget { drain, min, max }).await)
    }
}
