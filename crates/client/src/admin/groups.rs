//! Groups: creating, changing and watching them.

use std::time::{Duration, SystemTime};

use forebay_wire::v1;

use super::settings::{GroupSettings, Start};
use super::{Created, Items, Page, convert};
use crate::client::Client;
use crate::error::{Advice, CallError, ProblemKind};
use crate::message::millis;

impl Client {
    /// Creates a group, and its stream if that does not exist. Succeeds if the group exists with the same settings;
    /// fails with [`ProblemKind::SettingsDiffer`] if one of the given settings differs.
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
        Ok(Created::from_wire(self.grpc().create_group(request).await?.into_inner().created))
    }

    /// Changes settings of a group while consumers stay connected. Settings that are not set stay as they are. Settings
    /// named in `clear`, such as `rate` or `backoff.max_ms`, go back to their defaults first.
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
                detail: "start can only be set for a new group; use `reset_group` for an existing one"
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

    /// The state of a group.
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

    /// All groups of one stream or of all streams, ordered by stream and name.
    pub fn groups(&self, stream: Option<&str>) -> Items<GroupReport> {
        let (client, stream) = (self.clone(), stream.map(str::to_owned));
        Items::of(move |after: Option<(String, String)>| {
            let (client, stream) = (client.clone(), stream.clone());
            async move {
                let after = after.as_ref().map(|(stream, group)| (&**stream, &**group));
                client.groups_after(stream.as_deref(), after).await
            }
        })
    }

    /// Groups of one stream or of all streams, ordered by stream and name: up to a hundred after the given stream and
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

    /// Deletes a group. Its consumers are disconnected.
    pub async fn delete_group(&self, stream: &str, group: &str) -> Result<(), CallError> {
        let request = v1::DeleteGroupRequest { stream: stream.into(), group: group.into() };
        self.grpc().delete_group(request).await?;
        Ok(())
    }

    /// Pauses a group: nothing more is delivered. Consumers may settle the messages they hold.
    pub async fn pause_group(&self, stream: &str, group: &str) -> Result<(), CallError> {
        let request = v1::PauseGroupRequest { stream: stream.into(), group: group.into() };
        self.grpc().pause_group(request).await?;
        Ok(())
    }

    /// Resumes a paused group.
    pub async fn resume_group(&self, stream: &str, group: &str) -> Result<(), CallError> {
        let request = v1::ResumeGroupRequest { stream: stream.into(), group: group.into() };
        self.grpc().resume_group(request).await?;
        Ok(())
    }

    /// Moves the position of a group, and discards its parked messages if `drop_parked` is set. Returns the position
    /// up to which everything counts as settled now.
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

    /// How many consumers a group should have, for autoscaling.
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

/// The goal for the number of a group's consumers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScalingTarget {
    /// How long the backlog may take to be worked off. Zero means five minutes.
    pub drain: Duration,
    /// The fewest consumers.
    pub min: u32,
    /// The most consumers. `None` means 1,000.
    pub max: Option<u32>,
}

/// How many consumers a group should have, and why.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Scaling {
    /// Messages that wait for a consumer.
    pub backlog: u64,
    /// The age of the oldest of them.
    pub oldest_age: Duration,
    /// Messages that consumers hold.
    pub in_flight: u64,
    /// Consumers at present.
    pub consumers: u64,
    /// Messages published per second, over about the last minute.
    pub arrival_rate: f64,
    /// Messages settled per second, over about the last minute.
    pub service_rate: f64,
    /// How long the backlog lasts at the present rates. `None`: it grows.
    pub drain_time: Option<Duration>,
    /// How many consumers the group should have.
    pub desired_consumers: u32,
}

/// The status of a group: the first that applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum GroupStatus {
    /// Messages are delivered as they are published.
    Live,
    /// The group works through a backlog.
    CatchingUp,
    /// The group is paused.
    Paused,
    /// The group has no consumers.
    Idle,
    /// The limit `window_max` is reached.
    WindowFull,
    /// The limit `parked_max` is reached.
    ParkedFull,
    /// Too many messages wait for a key that makes no progress.
    KeyScanFull,
    /// A status that this version of the SDK does not know.
    Other,
}

/// The state of a group.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct GroupReport {
    /// The stream's name.
    pub stream: String,
    /// The group's name.
    pub group: String,
    /// The status.
    pub status: GroupStatus,
    /// The settings, with defaults filled in.
    pub settings: GroupSettings,
    /// The last message of the stream.
    pub last_known_seq: u64,
    /// Every message up to this position is settled or parked.
    pub checkpoint_seq: u64,
    /// The highest position that was settled or parked since the server started.
    pub last_processed_seq: u64,
    /// The progress that was last written down, by the group's checkpoint policy.
    pub last_checkpointed_seq: u64,
    /// Messages that are neither settled nor parked.
    pub lag: u64,
    /// Those of them that are not due yet.
    pub delayed: u64,
    /// Messages that could be delivered now.
    pub ready: u64,
    /// Messages that wait for their retry.
    pub waiting: u64,
    /// Messages that consumers hold.
    pub in_flight: u64,
    /// Messages that were set aside.
    pub parked: u64,
    /// Messages on their way to another stream.
    pub moving: u64,
    /// The age of the oldest message that is due and not settled. A delayed message ages from the time it is due.
    pub oldest_age: Option<Duration>,
    /// How long the oldest parked message has been parked.
    pub oldest_parked_age: Option<Duration>,
    /// How much longer the group delivers nothing, because a consumer asked for a pause.
    pub resting_for: Option<Duration>,
    /// For [`GroupStatus::KeyScanFull`]: the messages that wait for the key with the most of them.
    pub stuck_key_messages: u64,
    /// Counters since the server started.
    pub counters: Counters,
    /// The same as rates.
    pub throughput: Throughput,
    /// Messages published to the stream.
    pub arrivals: Rates,
    /// How long the group takes to catch up at the present rates. `None`: the backlog grows.
    pub catch_up_time: Option<Duration>,
    /// The time from a delivery to its answer. `None` without answers, or if the group keeps no statistics.
    pub processing_time: Option<ProcessingTime>,
    /// How many consumers the group has.
    pub consumers: u32,
    /// The consumers, up to 1,000 of them.
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
            delayed: of.delayed,
            ready: of.ready,
            waiting: of.waiting,
            in_flight: of.in_flight,
            parked: of.parked,
            moving: of.moving,
            oldest_age: convert::duration(of.oldest_age_ms),
            oldest_parked_age: convert::duration(of.oldest_parked_age_ms),
            resting_for: convert::duration(of.resting_ms),
            stuck_key_messages: of.stuck_key_messages,
            counters: of.counters.unwrap_or_default().into(),
            throughput: of.throughput.unwrap_or_default().into(),
            arrivals: of.arrivals.unwrap_or_default().into(),
            catch_up_time: convert::seconds(of.catch_up_seconds),
            processing_time: of.processing_time.map(ProcessingTime::from),
            consumers: of.consumers,
            members: of.members.into_iter().map(ConsumerReport::from).collect(),
        }
    }
}

/// Messages per second, averaged over three periods.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct Rates {
    /// Over the last second.
    pub second: f64,
    /// Over the last minute.
    pub minute: f64,
    /// Over the last fifteen minutes.
    pub quarter_hour: f64,
}

impl From<v1::Rates> for Rates {
    fn from(of: v1::Rates) -> Rates {
        Rates { second: of.second, minute: of.minute, quarter_hour: of.quarter_hour }
    }
}

/// Declares a struct with a field for each kind of event, and its conversion from the wire.
macro_rules! per_event {
    (
        $(#[$doc:meta])*
        $name:ident: $type:ty { $($(#[$field_doc:meta])* $field:ident)* } from |$value:ident| $convert:expr
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq)]
        #[non_exhaustive]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl From<v1::$name> for $name {
            fn from(of: v1::$name) -> $name {
                $name {
                    $($field: { let $value = of.$field; $convert },)*
                }
            }
        }
    };
}

per_event! {
    /// Counters of a group since the server started.
    Counters: u64 {
        /// Deliveries.
        delivered
        /// Messages that were acked.
        acked
        /// Failures that lead to another delivery.
        retried
        /// Messages that were parked.
        parked
        /// Leases that ran out.
        timed_out
        /// Messages that were skipped.
        skipped
        /// Messages whose time to live was over.
        expired
        /// Messages that were moved to another stream.
        moved
        /// Messages that were dropped to make room in their stream.
        dropped
        /// Messages that were given back.
        returned
        /// Parked messages that were replayed.
        replayed
        /// Parked messages that were discarded.
        discarded
    } from |count| count
}

per_event! {
    /// Rates of a group.
    Throughput: Rates {
        /// Deliveries.
        delivered
        /// Messages that were settled in any way.
        settled
        /// Messages that were acked.
        acked
        /// Failures that lead to another delivery.
        retried
        /// Messages that were parked.
        parked
        /// Leases that ran out.
        timed_out
        /// Messages that were skipped.
        skipped
        /// Messages whose time to live was over.
        expired
        /// Messages that were moved to another stream.
        moved
        /// Messages that were dropped to make room in their stream.
        dropped
    } from |rates| rates.unwrap_or_default().into()
}

/// How long consumers take for a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProcessingTime {
    /// How many messages were measured.
    pub count: u64,
    /// The mean.
    pub mean: Duration,
    /// The standard deviation.
    pub stddev: Duration,
    /// The median.
    pub p50: Duration,
    /// The 90th percentile.
    pub p90: Duration,
    /// The 95th percentile.
    pub p95: Duration,
    /// The 99th percentile.
    pub p99: Duration,
    /// The 99.9th percentile.
    pub p999: Duration,
    /// The maximum.
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
    /// The consumer's name.
    pub name: String,
    /// Address and port, if they are known.
    pub address: Option<String>,
    /// Whether it has a connection, rather than polling.
    pub connected: bool,
    /// When it joined the group.
    pub joined_at: SystemTime,
    /// Messages that it holds.
    pub in_flight: u64,
    /// Messages that it may hold.
    pub credit: u32,
    /// Messages that it acked.
    pub acked: u64,
    /// Messages that it failed.
    pub failed: u64,
    /// The time from a delivery to its answer.
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
