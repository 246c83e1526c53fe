//! Groups: what they are like, how they do, and what operators do to them.

use std::time::{Duration, SystemTime};

use forebay_wire::v1;

use super::settings::{GroupSettings, Start};
use super::{Created, Page, convert};
use crate::client::Client;
use crate::error::{Advice, CallError, ProblemKind};
use crate::message::millis;

impl Client {
    /// Creates a group, and its stream if that is absent. If there is one already whose settings agree with the given
    /// ones, that will do; if one differs, it fails with
    /// `ProblemKind::SettingsDiffer`.
    ///
    /// ```no_run
    /// # async fn example(client: forebay_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use forebay_client::GroupSettings;
    ///
    /// let settings = GroupSettings::new().message_timeout(Duration::from_secs(60)).max_retries(3);
    /// client.create_group("emails", "senders", settings).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn create_group(
        &self,
        stream: &str,
        group: &str,
        settings: GroupSettings,
    ) -> Result<Created, CallError> {
        let request = v1::CreateGroupRequest {
            stream: stream.into(),
            group: group.into(),
            settings: Some((&settings).into()),
            start: settings.start.map(v1::Start::from),
        };
        Ok(Created::of(self.grpc().create_group(request).await?.into_inner().created))
    }

    /// Changes settings of a group while consumers stay connected. Those that are not set stay as they are; those
    /// named in `clear`, as in `rate` or `backoff.max_ms`, go back to their defaults before.
    pub async fn update_group(
        &self,
        stream: &str,
        group: &str,
        settings: GroupSettings,
        clear: &[&str],
    ) -> Result<(), CallError> {
        if settings.start.is_some() {
            return Err(CallError::Refused {
                kind: Some(ProblemKind::InvalidField),
                detail: "start: only a new group begins somewhere; a reset moves one that is there"
                    .to_owned(),
                advice: Advice::FixRequest,
            });
        }
        let request = v1::UpdateGroupRequest {
            stream: stream.into(),
            group: group.into(),
            settings: Some((&settings).into()),
            clear: clear.iter().map(ToString::to_string).chain(settings.cleared()).collect(),
        };
        self.grpc().update_group(request).await?;
        Ok(())
    }

    /// What a group says about itself.
    ///
    /// ```no_run
    /// # async fn example(client: forebay_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let report = client.group("emails", "senders").await?;
    /// println!("{:?}: {} to do, {} parked", report.status, report.lag, report.parked);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn group(&self, stream: &str, group: &str) -> Result<GroupReport, CallError> {
        let request = v1::GetGroupRequest { stream: stream.into(), group: group.into() };
        Ok(self.grpc().get_group(request).await?.into_inner().into())
    }

    /// Groups of one stream or of all, by stream and name, up to a hundred that come after the given stream and
    /// group.
    pub async fn groups_after(
        &self,
        stream: Option<&str>,
        after: Option<(&str, &str)>,
    ) -> Result<Page<GroupReport, (String, String)>, CallError> {
        let request = v1::ListGroupsRequest {
            stream: stream.unwrap_or_default().into(),
            after: after
                .map(|(stream, group)| v1::GroupCursor { stream: stream.into(), group: group.into() }),
            limit: 0,
        };
        let reply = self.grpc().list_groups(request).await?.into_inner();
        let items = reply.groups.into_iter().map(GroupReport::from).collect();
        Ok(Page { items, next: reply.next.map(|next| (next.stream, next.group)) })
    }

    /// Deletes a group. What its consumers hold is nobody's any more.
    pub async fn delete_group(&self, stream: &str, group: &str) -> Result<(), CallError> {
        let request = v1::DeleteGroupRequest { stream: stream.into(), group: group.into() };
        self.grpc().delete_group(request).await?;
        Ok(())
    }

    /// Stops handing out. What consumers hold they may finish.
    pub async fn pause_group(&self, stream: &str, group: &str) -> Result<(), CallError> {
        let request = v1::PauseGroupRequest { stream: stream.into(), group: group.into() };
        self.grpc().pause_group(request).await?;
        Ok(())
    }

    /// Goes on with handing out.
    pub async fn resume_group(&self, stream: &str, group: &str) -> Result<(), CallError> {
        let request = v1::ResumeGroupRequest { stream: stream.into(), group: group.into() };
        self.grpc().resume_group(request).await?;
        Ok(())
    }

    /// Moves the progress of a group, and lets go of what is parked if that is said. Answers up to where everything
    /// now counts as settled.
    pub async fn reset_group(
        &self,
        stream: &str,
        group: &str,
        to: Start,
        drop_parked: bool,
    ) -> Result<u64, CallError> {
        let (stream, group) = (stream.into(), group.into());
        let request = v1::ResetGroupRequest { stream, group, to: Some(to.into()), drop_parked };
        Ok(self.grpc().reset_group(request).await?.into_inner().checkpoint_seq)
    }

    /// How many consumers a group should have, for whoever starts and stops them.
    ///
    /// ```no_run
    /// # async fn example(client: forebay_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use forebay_client::admin::groups::ScalingTarget;
    ///
    /// let target = ScalingTarget { drain: Duration::from_secs(60), min: 1, max: Some(20) };
    /// println!("{} would be right", client.scaling("emails", "senders", target).await?.desired_consumers);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn scaling(
        &self,
        stream: &str,
        group: &str,
        target: ScalingTarget,
    ) -> Result<Scaling, CallError> {
        let request = v1::GetScalingRequest {
            stream: stream.into(),
            group: group.into(),
            target_drain_ms: millis(target.drain),
            min: target.min,
            max: target.max,
        };
        let reply = self.grpc().get_scaling(request).await?.into_inner();
        Ok(Scaling {
            backlog: reply.backlog,
            oldest_age: Duration::from_millis(reply.oldest_age_ms),
            in_flight: reply.in_flight,
            consumers: reply.consumers,
            arrival_rate: reply.arrival_rate,
            service_rate: reply.service_rate,
            drain_time: convert::seconds(reply.drain_seconds),
            desired_consumers: reply.desired_consumers,
        })
    }
}

/// What is wanted of a group's consumers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScalingTarget {
    /// How long the backlog may take. Zero means five minutes.
    pub drain: Duration,
    /// The fewest consumers there may be.
    pub min: u32,
    /// The most. None means a thousand.
    pub max: Option<u32>,
}

/// How many consumers a group should have, and why.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Scaling {
    /// Messages that wait for a consumer.
    pub backlog: u64,
    pub oldest_age: Duration,
    pub in_flight: u64,
    pub consumers: u64,
    /// Messages for each second, over about the last minute.
    pub arrival_rate: f64,
    pub service_rate: f64,
    /// Until the backlog is gone at the present pace. None: it never will be.
    pub drain_time: Option<Duration>,
    pub desired_consumers: u32,
}

/// How a group does. The first that applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum GroupStatus {
    Live,
    CatchingUp,
    Paused,
    /// There is no consumer.
    Idle,
    /// As much is in process as `window_max` allows.
    WindowFull,
    /// As much is parked as `parked_max` allows.
    ParkedFull,
    /// Too much waits for a key that is stuck.
    KeyScanFull,
    /// One that this client does not know.
    Other,
}

/// What a group says about itself.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct GroupReport {
    pub stream: String,
    pub group: String,
    pub status: GroupStatus,
    pub settings: GroupSettings,
    /// The last message of the stream.
    pub last_known_seq: u64,
    /// Everything up to here is settled or parked.
    pub checkpoint_seq: u64,
    /// The highest position that was settled or parked since the server started.
    pub last_processed_seq: u64,
    /// Progress as it was last published, by the group's checkpoint policy.
    pub last_checkpointed_seq: u64,
    /// Messages not yet settled.
    pub lag: u64,
    /// Messages that could go out now.
    pub ready: u64,
    /// Messages that wait for their retry.
    pub waiting: u64,
    /// Messages in the hands of consumers.
    pub in_flight: u64,
    pub parked: u64,
    /// Messages on their way to another stream.
    pub moving: u64,
    /// How long the oldest message that is not settled has been there.
    pub oldest_age: Option<Duration>,
    pub oldest_parked_age: Option<Duration>,
    /// How much longer the group hands out nothing, because a consumer asked it to rest.
    pub resting_for: Option<Duration>,
    /// `KeyScanFull`: how many messages wait for the key that most wait for.
    pub stuck_key_messages: u64,
    /// What it has done since the server started.
    pub counters: v1::Counters,
    /// How often that happens.
    pub throughput: v1::Throughput,
    /// Messages that come into the stream, for each second.
    pub arrivals: v1::Rates,
    /// Until the group has caught up at the present pace. None: it never will.
    pub catch_up_time: Option<Duration>,
    /// From the delivery to the answer. None if nothing was answered yet, or nobody wants to know.
    pub processing_time: Option<ProcessingTime>,
    /// How many consumers there are.
    pub consumers: u32,
    /// The consumers, one by one, up to 1000 of them.
    pub members: Vec<ConsumerReport>,
}

impl From<v1::GetGroupReply> for GroupReport {
    fn from(of: v1::GetGroupReply) -> GroupReport {
        use v1::get_group_reply::Status;
        let status = match of.status() {
            Status::Live => GroupStatus::Live,
            Status::CatchingUp => GroupStatus::CatchingUp,
            Status::Paused => GroupStatus::Paused,
            Status::Idle => GroupStatus::Idle,
            Status::WindowFull => GroupStatus::WindowFull,
            Status::ParkedFull => GroupStatus::ParkedFull,
            Status::KeyScanFull => GroupStatus::KeyScanFull,
            Status::Unspecified => GroupStatus::Other,
        };
        GroupReport {
            stream: of.stream,
            group: of.group,
            status,
            settings: forebay_wire::settings::reported(&of.settings.unwrap_or_default()),
            last_known_seq: of.last_known_seq,
            checkpoint_seq: of.checkpoint_seq,
            last_processed_seq: of.last_processed_seq,
            last_checkpointed_seq: of.last_checkpointed_seq,
            lag: of.lag,
            ready: of.ready,
            waiting: of.waiting,
            in_flight: of.in_flight,
            parked: of.parked,
            moving: of.moving,
            oldest_age: convert::duration(of.oldest_age_ms),
            oldest_parked_age: convert::duration(of.oldest_parked_age_ms),
            resting_for: convert::duration(of.resting_ms),
            stuck_key_messages: of.stuck_key_messages,
            counters: of.counters.unwrap_or_default(),
            throughput: of.throughput.unwrap_or_default(),
            arrivals: of.arrivals.unwrap_or_default(),
            catch_up_time: convert::seconds(of.catch_up_seconds),
            processing_time: of.processing_time.map(ProcessingTime::from),
            consumers: of.consumers,
            members: of.members.into_iter().map(ConsumerReport::from).collect(),
        }
    }
}

/// How long consumers take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProcessingTime {
    pub count: u64,
    pub mean: Duration,
    pub stddev: Duration,
    pub p50: Duration,
    pub p90: Duration,
    pub p95: Duration,
    pub p99: Duration,
    pub p999: Duration,
    pub max: Duration,
}

impl From<v1::ProcessingTime> for ProcessingTime {
    fn from(of: v1::ProcessingTime) -> ProcessingTime {
        ProcessingTime {
            count: of.count,
            mean: Duration::from_micros(of.mean_us),
            stddev: Duration::from_micros(of.stddev_us),
            p50: Duration::from_micros(of.p50_us),
            p90: Duration::from_micros(of.p90_us),
            p95: Duration::from_micros(of.p95_us),
            p99: Duration::from_micros(of.p99_us),
            p999: Duration::from_micros(of.p999_us),
            max: Duration::from_micros(of.max_us),
        }
    }
}

/// One consumer of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConsumerReport {
    pub name: String,
    /// Address and port, if it is known.
    pub address: Option<String>,
    /// Whether it stays connected, or asks again and again.
    pub connected: bool,
    pub joined_at: SystemTime,
    pub in_flight: u64,
    pub credit: u32,
    pub acked: u64,
    pub failed: u64,
    pub processing_time: Option<ProcessingTime>,
}

impl From<v1::Consumer> for ConsumerReport {
    fn from(of: v1::Consumer) -> ConsumerReport {
        ConsumerReport {
            name: of.name,
            address: convert::some_text(of.address),
            connected: of.connected,
            joined_at: convert::time(of.joined_at_us),
            in_flight: of.in_flight,
            credit: of.credit,
            acked: of.acked,
            failed: of.failed,
            processing_time: of.processing_time.map(ProcessingTime::from),
        }
    }
}
