//! Reports as the API shows them.

use std::time::Duration;

use forebay_broker::api::{GroupCursor, GroupReport, ServerReport, StreamReport};
use forebay_core::types::StreamName;

use super::{Answer, Service};
use crate::native::limits::{CONSUMERS_LISTED_MAX, OVERVIEW_MAX};

/// Reports that an overview asks for at a time: the shard makes them in one turn.
const STEP: usize = 125;
const _: () = assert!(OVERVIEW_MAX.is_multiple_of(STEP));

/// A group's report, the same for both protocols.
pub(super) fn as_shown(mut report: GroupReport) -> GroupReport {
    let figures = &mut report.figures;
    // The counter begins anew with the server; everything up to the floor was processed before.
    figures.counters.last_processed = figures.counters.last_processed.max(figures.floor);
    figures.consumers = report.consumers.len();
    report.consumers.truncate(CONSUMERS_LISTED_MAX);
    report.processing =
        report.settings.extra_statistics.then(|| report.processing.take().unwrap_or_default());
    let consumers = report.consumers.iter_mut().filter_map(|consumer| consumer.processing.as_mut());
    for summary in consumers.chain(report.processing.as_mut()) {
        summary.mean = whole_micros(summary.mean);
        summary.stddev = whole_micros(summary.stddev);
    }
    report
}

/// Times are shown in whole microseconds.
fn whole_micros(time: Duration) -> Duration {
    Duration::from_micros(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}

/// The first streams and groups by name, and the server as a whole.
pub(in crate::native) struct Overview {
    pub(in crate::native) server: ServerReport,
    pub(in crate::native) streams: Vec<StreamReport>,
    pub(in crate::native) groups: Vec<GroupReport>,
}

impl Service {
    /// Streams by name for `/metrics`, and the last one if there are more.
    pub(in crate::native) async fn page_of_streams(
        &self,
        after: Option<StreamName>,
        count: usize,
    ) -> Answer<(Vec<StreamReport>, Option<StreamName>)> {
        let page = self.answer(self.caller.streams(after, count).await)?;
        Ok((page.items, page.next))
    }

    /// The same for groups.
    pub(in crate::native) async fn page_of_groups(
        &self,
        after: Option<GroupCursor>,
        count: usize,
    ) -> Answer<(Vec<GroupReport>, Option<GroupCursor>)> {
        let page = self.answer(self.caller.groups(None, after, count).await)?;
        Ok((page.items.into_iter().map(as_shown).collect(), page.next))
    }

    pub(in crate::native) async fn server(&self) -> Answer<ServerReport> {
        self.answer(self.caller.server().await)
    }

    /// For `/events`.
    pub(in crate::native) async fn overview(&self) -> Answer<Overview> {
        let server = self.server().await?;
        let streams = self.overview_of_streams().await?;
        let groups = self.overview_of_groups().await?;
        Ok(Overview { server, streams, groups })
    }

    async fn overview_of_streams(&self) -> Answer<Vec<StreamReport>> {
        let (mut streams, mut after) = (Vec::new(), None);
        loop {
            let (page, next) = self.page_of_streams(after, STEP).await?;
            streams.extend(page);
            after = next;
            if after.is_none() || streams.len() >= OVERVIEW_MAX {
                return Ok(streams);
            }
        }
    }

    async fn overview_of_groups(&self) -> Answer<Vec<GroupReport>> {
        let (mut groups, mut after) = (Vec::new(), None);
        loop {
            let (page, next) = self.page_of_groups(after, STEP).await?;
            groups.extend(page);
            after = next;
            if after.is_none() || groups.len() >= OVERVIEW_MAX {
                return Ok(groups);
            }
        }
    }
}
