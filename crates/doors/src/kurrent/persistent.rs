//! Persistent subscriptions: groups of a stream, as Kurrent clients create and consume them.
//!
//! | Module | What it does |
//! | --- | --- |
//! | `settings` | The settings of a subscription, and those of its group. |
//! | `service` | Every operation on subscriptions, for both protocols. |
//! | `info` | What clients are told of one. |
//! | `calls`, `held` | The open calls of consumers, and the events that they hold. |
//! | `measure` | Figures of consumers. |
//! | `consume` | One call of a consumer. |
//! | `parked` | Parked messages, as a stream. |
//! | `http` | All of it over HTTP. |

mod calls;
mod consume;
mod held;
mod http;
mod info;
mod measure;
mod parked;
mod service;
mod settings;
#[cfg(test)]
mod tests;

use forebay_broker::api::{CallError, Caller, MemberRefusal, Work};
use forebay_wire::kurrent::client::{Empty, StreamIdentifier, stream_options};
use forebay_wire::kurrent::persistent_subscriptions as wire;
use tonic::{Request, Response, Status, Streaming};
use wire::persistent_subscriptions_server::PersistentSubscriptions;
use wire::subscription_info::{ConnectionInfo, Measurement};

use super::features::Method;
use super::links::AllTerms;
use super::{KurrentDoor, Replies, status};
use calls::Names;
use info::{At, Connection, Info};
use service::{ALL, Refusal};
use settings::{ConsumerStrategy, Settings, StartFrom, ms_of_ticks};

pub(super) use http::answer_http;
pub(super) use parked::{ParkedRead, is_parked};
pub(super) use service::Subscriptions;

/// The calls that are advertised, each for subscriptions to a stream and to `$all`.
pub(super) const METHODS: &[Method] = &[
    Method { name: "create", features: BOTH },
    Method { name: "update", features: BOTH },
    Method { name: "delete", features: BOTH },
    Method { name: "read", features: BOTH },
    Method { name: "getinfo", features: BOTH },
    Method { name: "replayparked", features: BOTH },
    Method { name: "truncateparked", features: BOTH },
    Method { name: "list", features: BOTH },
    Method { name: "restartsubsystem", features: BOTH },
];
const BOTH: &[&str] = &["stream", "all"];

/// A text that no stream can have as its name stands for an identifier that is not UTF-8.
fn text_of(identifier: Option<&StreamIdentifier>) -> &str {
    identifier.map_or("", |identifier| std::str::from_utf8(&identifier.stream_name).unwrap_or(""))
}

/// The status of a refusal, which names stream and group.
fn refused(refusal: Refusal, stream: &str, group: &str) -> Status {
    match refusal {
        Refusal::Exists => status::group_exists(stream, group),
        Refusal::Missing => status::group_missing(stream, group),
        Refusal::Full => status::group_full(stream, group),
        Refusal::Failed(reason) => status::group_failed(stream, group, &reason),
        Refusal::Tombstone => status::stream_deleted(stream),
        Refusal::Call(CallError::NotAMember(MemberRefusal::CreditTooLarge { limit, .. })) => {
            status::invalid(format!("buffer_size must be at most {limit}"))
        }
        Refusal::Call(error) => status::of_call(&error),
    }
}

/// Names and settings of a request to create or update a subscription.
struct Wish {
    stream: String,
    group: String,
    settings: Result<Settings, Refusal>,
    /// Which events are wanted, of a subscription to `$all`.
    all: Option<AllTerms>,
}

impl Wish {
    fn of(request: wire::CreateReq) -> Result<Wish, Status> {
        use wire::create_req::all_options::{AllOption, FilterOption};
        use wire::create_req::options::StreamOption;
        let Some(options) = request.options else { return Err(status::invalid("options must be set")) };
        let Some(given) = options.settings else { return Err(status::invalid("settings must be set")) };
        let legacy = || (text_of(options.stream_identifier.as_ref()), StartFrom::of_unsigned(given.revision));
        let mut all = None;
        let (stream, start) = match &options.stream_option {
            None => legacy(),
            Some(StreamOption::All(of)) => {
                let filter = match &of.filter_option {
                    Some(FilterOption::Filter(filter)) => Some(filter),
                    Some(FilterOption::NoFilter(_)) | None => None,
                };
                all = Some(AllTerms::read(filter)?);
                let start = match &of.all_option {
                    Some(AllOption::Position(at)) => {
                        StartFrom::Position { commit: at.commit_position, prepare: at.prepare_position }
                    }
                    Some(AllOption::End(_)) => StartFrom::End,
                    Some(AllOption::Start(_)) | None => StartFrom::Start,
                };
                (ALL, start)
            }
            Some(StreamOption::Stream(stream)) => {
                let start = match stream.revision_option {
                    Some(stream_options::RevisionOption::Revision(revision)) => {
                        StartFrom::of_unsigned(revision)
                    }
                    Some(stream_options::RevisionOption::End(_)) => StartFrom::End,
                    Some(stream_options::RevisionOption::Start(_)) | None => StartFrom::Start,
                };
                (text_of(stream.stream_identifier.as_ref()), start)
            }
        };
        let stream = stream.to_owned();
        let settings = settings_of(&given, start);
        Ok(Wish { stream, group: options.group_name, settings, all })
    }
}

fn settings_of(given: &wire::create_req::Settings, start: StartFrom) -> Result<Settings, Refusal> {
    use wire::create_req::settings::{CheckpointAfter, MessageTimeout};
    let strategy = match given.consumer_strategy.as_str() {
        "" => ConsumerStrategy::numbered(given.named_consumer_strategy)?,
        name => ConsumerStrategy::named(name)?,
    };
    Ok(Settings {
        start,
        resolve_links: given.resolve_links,
        extra_statistics: given.extra_statistics,
        message_timeout_ms: match given.message_timeout {
            Some(MessageTimeout::MessageTimeoutTicks(ticks)) => ms_of_ticks(ticks),
            Some(MessageTimeout::MessageTimeoutMs(ms)) => ms,
            None => 0,
        },
        max_retry_count: given.max_retry_count,
        live_buffer_size: given.live_buffer_size,
        history_buffer_size: given.history_buffer_size,
        read_batch_size: given.read_batch_size,
        checkpoint_after_ms: match given.checkpoint_after {
            Some(CheckpointAfter::CheckpointAfterTicks(ticks)) => ms_of_ticks(ticks),
            Some(CheckpointAfter::CheckpointAfterMs(ms)) => ms,
            None => 0,
        },
        min_checkpoint_count: given.min_checkpoint_count,
        max_checkpoint_count: given.max_checkpoint_count,
        max_subscriber_count: given.max_subscriber_count,
        strategy,
    })
}

impl KurrentDoor {
    /// Carries a change of subscriptions out to its end, also if the client has gone meanwhile: notes, groups and the
    /// calls of consumers belong together.
    async fn change<F, T>(&self, change: impl FnOnce(KurrentDoor) -> F) -> Result<T, Refusal>
    where
        F: Future<Output = Result<T, Refusal>> + Send + 'static,
        T: Send + 'static,
    {
        let changed = tokio::spawn(change(self.clone())).await;
        changed.unwrap_or(Err(Refusal::Call(CallError::Unknown)))
    }

    async fn replay(
        &self,
        caller: Caller,
        request: wire::ReplayParkedReq,
        work: Work,
    ) -> Result<Response<wire::ReplayParkedResp>, Status> {
        use wire::replay_parked_req::options::{StopAtOption, StreamOption};
        let Some(options) = request.options else { return Err(status::invalid("options must be set")) };
        let (stream, group) = match &options.stream_option {
            Some(StreamOption::StreamIdentifier(stream)) => (text_of(Some(stream)), &options.group_name),
            Some(StreamOption::All(_)) => (ALL, &options.group_name),
            None => ("", &options.group_name),
        };
        let stop_at = match options.stop_at_option {
            Some(StopAtOption::StopAt(stop_at)) => Some(stop_at),
            Some(StopAtOption::NoLimit(_)) | None => None,
        };
        let names = Names::existing(stream, group).map_err(|refusal| refused(refusal, stream, group))?;
        let started = self.persistent.parked(&caller, names, work, stop_at).await;
        started.map_err(|refusal| refused(refusal, stream, group))?;
        Ok(Response::new(wire::ReplayParkedResp {}))
    }
}

#[tonic::async_trait]
impl PersistentSubscriptions for KurrentDoor {
    async fn create(&self, request: Request<wire::CreateReq>) -> Result<Response<wire::CreateResp>, Status> {
        let caller = self.caller(&request);
        let Wish { stream, group, settings, all } = Wish::of(request.into_inner())?;
        let refused = |refusal| refused(refusal, &stream, &group);
        let names = match &all {
            Some(_) => Names::of_all(&group),
            None => Names::new(&stream, &group),
        };
        let names = names.map_err(refused)?;
        let settings = settings.map_err(refused)?;
        let created = self.change(|door| async move {
            match all {
                Some(terms) => door.persistent.create_of_all(&caller, names, settings, terms).await,
                None => door.persistent.create(&caller, names, settings).await,
            }
        });
        created.await.map_err(refused)?;
        Ok(Response::new(wire::CreateResp {}))
    }

    async fn update(&self, request: Request<wire::CreateReq>) -> Result<Response<wire::CreateResp>, Status> {
        let caller = self.caller(&request);
        // An update keeps the filter.
        let Wish { stream, group, settings, .. } = Wish::of(request.into_inner())?;
        let refused = |refusal| refused(refusal, &stream, &group);
        let names = Names::existing(&stream, &group).map_err(refused)?;
        let settings = settings.map_err(refused)?;
        let updated =
            self.change(|door| async move { door.persistent.update(&caller, names, settings).await });
        updated.await.map_err(refused)?;
        Ok(Response::new(wire::CreateResp {}))
    }

    async fn delete(&self, request: Request<wire::DeleteReq>) -> Result<Response<wire::DeleteResp>, Status> {
        use wire::delete_req::options::StreamOption;
        let caller = self.caller(&request);
        let options = request.into_inner().options.ok_or_else(|| status::invalid("options must be set"))?;
        let stream = match &options.stream_option {
            Some(StreamOption::StreamIdentifier(stream)) => text_of(Some(stream)),
            Some(StreamOption::All(_)) => ALL,
            None => "",
        };
        let refused = |refusal| refused(refusal, stream, &options.group_name);
        let names = Names::existing(stream, &options.group_name).map_err(refused)?;
        let deleted = self.change(|door| async move { door.persistent.delete(&caller, names).await });
        deleted.await.map_err(refused)?;
        Ok(Response::new(wire::DeleteResp {}))
    }

    async fn read(
        &self,
        request: Request<Streaming<wire::ReadReq>>,
    ) -> Result<Response<Replies<wire::ReadResp>>, Status> {
        let call = consume::open(self, request).await?;
        Ok(Response::new(Box::pin(call)))
    }

    async fn get_info(
        &self,
        request: Request<wire::GetInfoReq>,
    ) -> Result<Response<wire::GetInfoResp>, Status> {
        use wire::get_info_req::options::StreamOption;
        let caller = self.caller(&request);
        let options = request.into_inner().options.ok_or_else(|| status::invalid("options must be set"))?;
        let stream = match &options.stream_option {
            Some(StreamOption::StreamIdentifier(stream)) => text_of(Some(stream)),
            Some(StreamOption::All(_)) => ALL,
            None => "",
        };
        let refused = |refusal| refused(refusal, stream, &options.group_name);
        let names = Names::existing(stream, &options.group_name).map_err(refused)?;
        let info = self.persistent.info(&caller, &names).await.map_err(refused)?;
        Ok(Response::new(wire::GetInfoResp { subscription_info: Some(info.into()) }))
    }

    async fn replay_parked(
        &self,
        request: Request<wire::ReplayParkedReq>,
    ) -> Result<Response<wire::ReplayParkedResp>, Status> {
        let caller = self.caller(&request);
        self.replay(caller, request.into_inner(), Work::Replay).await
    }

    async fn truncate_parked(
        &self,
        request: Request<wire::ReplayParkedReq>,
    ) -> Result<Response<wire::ReplayParkedResp>, Status> {
        let caller = self.caller(&request);
        self.replay(caller, request.into_inner(), Work::Discard).await
    }

    async fn list(&self, request: Request<wire::ListReq>) -> Result<Response<wire::ListResp>, Status> {
        use wire::list_req::options::ListOption;
        use wire::list_req::stream_option::StreamOption;
        let caller = self.caller(&request);
        let options = request.into_inner().options.ok_or_else(|| status::invalid("options must be set"))?;
        let stream = match &options.list_option {
            Some(ListOption::ListForStream(of)) => match &of.stream_option {
                Some(StreamOption::Stream(stream)) => Some(text_of(Some(stream))),
                Some(StreamOption::All(_)) => Some(ALL),
                None => Some(""),
            },
            Some(ListOption::ListAllSubscriptions(_)) | None => None,
        };
        let listed = self.persistent.list(&caller, stream).await;
        let listed = listed.map_err(|refusal| refused(refusal, stream.unwrap_or_default(), ""))?;
        let subscriptions = listed.into_iter().map(wire::SubscriptionInfo::from).collect();
        Ok(Response::new(wire::ListResp { subscriptions }))
    }

    async fn restart_subsystem(&self, request: Request<Empty>) -> Result<Response<Empty>, Status> {
        let caller = self.caller(&request);
        self.persistent.restart(&caller).await.map_err(|refusal| refused(refusal, "", ""))?;
        Ok(Response::new(Empty {}))
    }
}

impl From<Info> for wire::SubscriptionInfo {
    fn from(info: Info) -> wire::SubscriptionInfo {
        let settings = info.settings;
        let text = |at: Option<At>| at.map(At::text).unwrap_or_default();
        wire::SubscriptionInfo {
            event_source: info.stream,
            group_name: info.group,
            status: info.status,
            connections: info.connections.into_iter().map(ConnectionInfo::from).collect(),
            average_per_second: info.average_per_second,
            total_items: info.total_items,
            count_since_last_measurement: info.count_since_last_measurement,
            last_checkpointed_event_position: text(info.last_checkpointed),
            last_known_event_position: text(info.last_known),
            resolve_link_tos: settings.resolve_links,
            start_from: info.start_from,
            message_timeout_milliseconds: settings.message_timeout_ms,
            extra_statistics: settings.extra_statistics,
            max_retry_count: settings.max_retry_count,
            live_buffer_size: settings.live_buffer_size,
            buffer_size: settings.history_buffer_size,
            read_batch_size: settings.read_batch_size,
            check_point_after_milliseconds: settings.checkpoint_after_ms,
            min_check_point_count: settings.min_checkpoint_count,
            max_check_point_count: settings.max_checkpoint_count,
            read_buffer_count: info.read_buffer_count,
            // Forebay has no live buffer.
            live_buffer_count: 0,
            retry_buffer_count: info.retry_buffer_count,
            total_in_flight_messages: info.total_in_flight,
            outstanding_messages_count: info.outstanding,
            named_consumer_strategy: settings.strategy.name().to_owned(),
            max_subscriber_count: settings.max_subscriber_count,
            parked_message_count: info.parked,
        }
    }
}

impl From<Connection> for ConnectionInfo {
    fn from(of: Connection) -> ConnectionInfo {
        let measurement = |(key, value): (&str, i64)| Measurement { key: key.to_owned(), value };
        ConnectionInfo {
            from: of.from,
            username: of.user,
            average_items_per_second: of.average_per_second,
            total_items: of.total_items,
            count_since_last_measurement: of.count_since_last_measurement,
            observed_measurements: of.measurements.into_iter().map(measurement).collect(),
            available_slots: of.available_slots,
            in_flight_messages: of.in_flight,
            connection_name: of.name,
        }
    }
}
