//! Every call, once: its path, its handler, its call of `forebay.v1`, and what the OpenAPI document says of it. The
//! router and the document are made from the same list. A test compares the list with the calls of gRPC.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::handler::Handler;
use axum::http::{Method, Response, Uri};
use axum::middleware::map_response;
use axum::routing::{MethodFilter, on};
use bytes::Bytes;
use forebay_wire::json;
use forebay_wire::problem::{Kind, MEDIA_TYPE, Problem};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

#[cfg(feature = "dashboard")]
use super::dashboard;
use super::document::{self, Parameter};
use super::failure::Failure;
use super::{Door, connections, consume, credentials, groups, live, log, parked, streams, transact};
use crate::telemetry::CallName;

const STREAM: &str = "/streams/{stream}";
const GROUP: &str = "/streams/{stream}/groups/{group}";
/// The other form of [`GROUP`].
const SUBSCRIPTION: &str = "/subscriptions/{stream}/{group}";

macro_rules! in_group {
    ($rest:literal) => {
        concat!("/streams/{stream}/groups/{group}", $rest)
    };
}

/// All calls.
pub(in crate::native) fn calls() -> Api {
    let mut api = Api::default();
    stream_calls(&mut api);
    message_calls(&mut api);
    life_calls(&mut api);
    log_calls(&mut api);
    group_calls(&mut api);
    consumer_calls(&mut api);
    parked_calls(&mut api);
    job_calls(&mut api);
    credential_calls(&mut api);
    connection_calls(&mut api);
    #[cfg(feature = "dashboard")]
    history_calls(&mut api);
    live_calls(&mut api);
    api
}

fn key_and_type() -> [Parameter; 2] {
    [
        Parameter::text("key", "Only messages with this key."),
        Parameter::text("type", "Only messages of this type."),
    ]
}

/// Parameters of a list.
fn page() -> [Parameter; 2] {
    [Parameter::limit(), Parameter::text("after", "`next` of the page before.")]
}

fn stream_calls(api: &mut Api) {
    let of = |method, id, what| Call::new(method, STREAM, id, what).tag("streams");
    let stream = |method, id, what| of(method, id, what).gives::<json::StreamReport>(200);
    let create = "Create a stream. 200 if it exists and the given settings agree; 409 if one differs.";
    api.add(
        stream(Method::PUT, "createStream", create)
            .takes::<json::schema::StreamSettings>(
                json!({ "dedupe_window": "1h", "limits": { "max_messages": 100_000 } }),
            )
            .or(201)
            .fails(&[409])
            .grpc("CreateStream"),
        streams::create,
    );
    let change = "Change settings of a stream. Settings that are left out keep their values.";
    api.add(
        stream(Method::PATCH, "updateStream", change)
            .takes::<json::schema::StreamSettings>(
                json!({ "ingress_rate": { "per_second": 500, "burst": 50 } }),
            )
            .fails(&[404])
            .grpc("UpdateStream"),
        streams::change,
    );
    api.add(
        stream(Method::GET, "getStream", "Settings and statistics of a stream.")
            .fails(&[404])
            .grpc("GetStream"),
        streams::get,
    );
    let delete =
        "Delete a stream with its messages and groups. 409 while groups have consumers, unless forced.";
    api.add(
        of(Method::DELETE, "deleteStream", delete)
            .query([
                Parameter::flag("force", "Delete it although groups have consumers."),
                Parameter::flag("if_empty", "Delete it only if no message is left, parked ones included."),
            ])
            .fails(&[404, 409])
            .grpc("DeleteStream"),
        streams::delete,
    );
    let list =
        Call::new(Method::GET, "/streams", "listStreams", "Settings and statistics of streams, by name.");
    api.add(
        list.tag("streams").query(page()).gives::<json::StreamList>(200).grpc("ListStreams"),
        streams::list,
    );
    let purge = "Drop all messages that are ready, delayed or leased, for every group; with `parked` also parked ones. \
                 With `ready_only` leased messages stay.";
    api.add(
        Call::new(Method::POST, "/streams/{stream}/purge", "purgeStream", purge)
            .tag("streams")
            .takes::<json::PurgeRequest>(json!({ "parked": false }))
            .gives::<json::PurgeReply>(200)
            .fails(&[404])
            .grpc("PurgeStream"),
        streams::purge,
    );
    let truncate =
        "Drop all messages before a position, for groups and readers. Leases on them end, parked ones stay.";
    api.add(
        Call::new(Method::POST, "/streams/{stream}/truncate", "truncateStream", truncate)
            .tag("streams")
            .takes::<json::TruncateRequest>(json!({ "before": 1000 }))
            .gives::<json::TruncateReply>(200)
            .fails(&[404, 409])
            .grpc("TruncateStream"),
        streams::truncate,
    );
}

fn message_calls(api: &mut Api) {
    let of = |method, path, id, what| Call::new(method, path, id, what).tag("streams");
    let publish = "Publish one message or many, stored all or none. Answered after they are synced to disk. A stream \
                   that does not exist is created.";
    let example = json!({ "messages": [
        { "id": "email-17", "type": "email.send", "key": "user-4", "body": { "to": "a@example.com" } },
    ] });
    api.add(
        of(Method::POST, "/streams/{stream}/messages", "publish", publish)
            .takes::<json::PublishRequest>(example)
            .gives::<json::PublishReply>(201)
            .fails(&[404, 409, 429, 507])
            .grpc("PublishOnce"),
        streams::publish,
    );
    let browse = "Read messages of a stream without a group. Nothing is changed.";
    api.add(
        of(Method::GET, "/streams/{stream}/messages", "readMessages", browse)
            .query([
                Parameter::position(
                    "from",
                    "Position of the first message. Default: 1, or the last with `order=desc`.",
                ),
                Parameter::text("order", "`asc`, or `desc`: the newest messages first, from `from` back."),
                Parameter::limit(),
            ])
            .query(key_and_type())
            .gives::<json::MessageList>(200)
            .fails(&[404])
            .grpc("ReadMessages"),
        streams::browse,
    );
    let follow = "Messages of a stream as they arrive, as server-sent events. The id of an event is the position, so \
                  the header Last-Event-ID resumes.";
    api.add(
        of(Method::GET, "/streams/{stream}/follow", "followStream", follow)
            .query([Parameter::place("from", "`beginning`, `end`, or a position.")])
            .query(key_and_type())
            .gives_text(200, "text/event-stream")
            .fails(&[404])
            .grpc("FollowStream"),
        streams::follow,
    );
}

fn life_calls(api: &mut Api) {
    let life = "What became of a message in each group: its state, attempts, who has it until when, and its failures. \
                Failures need a right to see parked messages.";
    api.add(
        Call::new(Method::GET, "/streams/{stream}/messages/{seq}/life", "getMessageLife", life)
            .tag("streams")
            .gives::<json::MessageLife>(200)
            .fails(&[404, 409]),
        streams::life,
    );
}

fn log_calls(api: &mut Api) {
    let of = |path, id, what| Call::new(Method::GET, path, id, what).tag("log");
    let filter = || {
        let prefix =
            "Only messages of streams whose names begin with this. Default: all but names with `$` first.";
        let wanted = [
            Parameter::text("prefix", prefix),
            Parameter::text("type_prefix", "Only messages whose types begin with this."),
        ];
        wanted.into_iter().chain(key_and_type())
    };
    let read = "Read messages of all streams in the order in which they were published. Nothing is changed.";
    api.add(
        of("/log", "readLog", read)
            .query([
                Parameter::position(
                    "from",
                    "Position in the log of the first message. Default: 1, or the last with `order=desc`.",
                ),
                Parameter::text("order", "`asc`, or `desc`: the newest messages first, from `from` back."),
                Parameter::limit(),
            ])
            .query(filter())
            .gives::<json::LogList>(200)
            .grpc("ReadLog"),
        log::read,
    );
    let follow = "Messages of all streams as they arrive, as server-sent events. The id of an event is the position in \
                  the log, so the header Last-Event-ID resumes.";
    api.add(
        of("/log/follow", "followLog", follow)
            .query([Parameter::place("from", "`beginning`, `end`, or a position in the log.")])
            .query(filter())
            .gives_text(200, "text/event-stream")
            .grpc("FollowLog"),
        log::follow,
    );
}

fn group_calls(api: &mut Api) {
    let of = |method, path, id, what| Call::new(method, path, id, what).tag("groups");
    let group = |method, id, what| of(method, GROUP, id, what).gives::<json::GroupReport>(200);
    let create = "Create a group, and its stream if that does not exist. 200 if it exists and the given settings \
                  agree; 409 if one differs.";
    api.add(
        group(Method::PUT, "createGroup", create)
            .takes::<json::schema::GroupSettings>(
                json!({ "message_timeout": "45s", "max_retries": 3, "backoff": { "min": "1s" } }),
            )
            .or(201)
            .fails(&[409])
            .grpc("CreateGroup"),
        groups::create,
    );
    let change = "Change settings of a group while consumers stay connected. Settings that are left out keep their \
                  values.";
    api.add(
        group(Method::PATCH, "updateGroup", change)
            .takes::<json::schema::GroupSettings>(json!({ "rate": { "per_second": 1000, "burst": 100 } }))
            .fails(&[404])
            .grpc("UpdateGroup"),
        groups::change,
    );
    api.add(
        group(Method::GET, "getGroup", "Settings and statistics of a group.").fails(&[404]).grpc("GetGroup"),
        groups::get,
    );
    let delete = "Delete a group with its progress and its parked messages.";
    api.add(
        of(Method::DELETE, GROUP, "deleteGroup", delete).fails(&[404]).grpc("DeleteGroup"),
        groups::delete,
    );
    let list = |path, id, what| of(Method::GET, path, id, what).query(page()).gives::<json::GroupList>(200);
    api.add(
        list("/groups", "listGroups", "Settings and statistics of groups, by stream and name.")
            .grpc("ListGroups"),
        groups::list,
    );
    api.alias("/subscriptions", Method::GET, "listGroups", groups::list_subscriptions);
    let some = "Settings and statistics of the groups of a stream, by name.";
    api.add(
        list("/streams/{stream}/groups", "listGroupsOfStream", some).fails(&[404]).grpc("ListGroups"),
        groups::list_of_stream,
    );
    api.alias(
        "/subscriptions/{stream}",
        Method::GET,
        "listGroupsOfStream",
        groups::list_subscriptions_of_stream,
    );
    let pause =
        |path, id, what| of(Method::POST, path, id, what).gives::<json::PausedReply>(200).fails(&[404]);
    let what = "Stop delivering. Consumers may settle the messages that they hold.";
    api.add(pause(in_group!("/pause"), "pauseGroup", what).grpc("PauseGroup"), groups::pause);
    api.add(pause(in_group!("/resume"), "resumeGroup", "Deliver again.").grpc("ResumeGroup"), groups::resume);
    let reset = "Move the progress of a group, forward or back. Its leases end.";
    api.add(
        of(Method::POST, in_group!("/reset"), "resetGroup", reset)
            .takes::<json::ResetRequest>(json!({ "to": { "seq": 100 }, "parked": "keep" }))
            .gives::<json::ResetReply>(200)
            .fails(&[404, 409])
            .grpc("ResetGroup"),
        groups::reset,
    );
    let scaling = "How many consumers the group should have, and the figures from which this is computed.";
    api.add(
        of(Method::GET, in_group!("/scaling"), "getScaling", scaling)
            .query([
                Parameter::target_drain(),
                Parameter::consumers("min", "Minimum number of consumers to recommend.", 0),
                Parameter::consumers_max(),
            ])
            .gives::<json::Scaling>(200)
            .fails(&[404])
            .grpc("GetScaling"),
        groups::scaling,
    );
}

/// The history is recorded for the dashboard.
#[cfg(feature = "dashboard")]
fn history_calls(api: &mut Api) {
    let what = "Rates, backlog and age over time, from the history that the server keeps: an hour by the second and a \
                week by the minute. A point without a record is null.";
    api.add(
        Call::new(Method::GET, "/history", "getHistory", what)
            .tag("server")
            .query([Parameter::span("At most a week."), Parameter::points()])
            .gives::<json::History>(200),
        dashboard::past::server,
    );
    let what = "The same for a group: an hour by ten seconds. Up to 2,000 groups are recorded, and all points of \
                another group are null.";
    api.add(
        Call::new(Method::GET, in_group!("/history"), "getGroupHistory", what)
            .tag("groups")
            .query([Parameter::span("At most an hour."), Parameter::points()])
            .gives::<json::History>(200)
            .fails(&[404]),
        dashboard::past::group,
    );
}

fn consumer_calls(api: &mut Api) {
    let of = |path, id, what| Call::new(Method::POST, path, id, what).tag("consumers");
    let receive = "Lease messages until their deadline, also if the connection breaks or the server restarts. With \
                   `wait`, a long poll.";
    api.add(
        of(in_group!("/receive"), "receive", receive)
            .takes::<json::ReceiveRequest>(json!({ "max": 10, "wait": "5s", "consumer": "worker-1" }))
            .gives::<json::ReceiveReply>(200)
            .fails(&[404, 429])
            .grpc("Receive"),
        consume::receive,
    );
    let settle =
        |path, id, what| of(path, id, what).gives::<json::SettleReply>(200).fails(&[404]).grpc("Settle");
    let leases = || json!(["AwAAAAEAAAABAAAAAAAAAAgAAAAAAAAAfsIMZelkNOr-Msur"]);
    let ack = settle(in_group!("/ack"), "ack", "The messages are done.");
    api.add(ack.takes::<json::AckRequest>(json!({ "leases": leases() })), consume::ack);
    let nack =
        settle(in_group!("/nack"), "nack", "The messages failed: retry, park, skip, return or move them.");
    let example = json!({ "leases": leases(), "action": "retry", "delay": "5s", "reason": "smtp down" });
    api.add(nack.takes::<json::NackRequest>(example), consume::nack);
    let extend = settle(in_group!("/extend"), "extend", "Move the deadline of leases, counted from now.");
    api.add(extend.takes::<json::ExtendRequest>(json!({ "leases": leases(), "by": "30s" })), consume::extend);
    let commit = "Settle leases and publish messages in one transaction: all of it is done and durable, or nothing is. \
                  Every lease has to be current. Without leases, publish to several streams at once.";
    let example = json!({
        "settle": [{ "stream": "orders", "group": "billing", "leases": leases() }],
        "publish": [{ "stream": "invoices", "messages": [{ "id": "invoice-of-17", "body": { "order": 17 } }] }],
    });
    api.add(
        of("/transactions", "commit", commit)
            .takes::<json::TransactionRequest>(example)
            .gives::<json::TransactionReply>(200)
            .fails(&[404, 409, 413, 429, 507])
            .grpc("Commit"),
        transact::commit,
    );
}

fn parked_calls(api: &mut Api) {
    let of = |method, path, id, what| Call::new(method, path, id, what).tag("parked").fails(&[404]);
    let list = "Parked messages (dead letters), by position.";
    api.add(
        of(Method::GET, in_group!("/parked"), "listParked", list)
            .query([
                Parameter::limit(),
                Parameter::position("after", "Only positions after this one: `next` of the page before."),
                Parameter::text("reason", "Only messages with exactly this reason."),
            ])
            .query(key_and_type())
            .gives::<json::ParkedList>(200)
            .grpc("ListParked"),
        parked::list,
    );
    let reasons = "How many messages are parked for each reason.";
    api.add(
        of(Method::GET, in_group!("/parked/reasons"), "listParkedReasons", reasons)
            .gives::<json::ReasonList>(200)
            .grpc("ListParkedReasons"),
        parked::reasons,
    );
    api.add(
        of(Method::GET, in_group!("/parked/{seq}"), "getParked", "One parked message with its failures.")
            .gives::<json::Parked>(200)
            .grpc("GetParked"),
        parked::get,
    );
    let work = |path, id, what, example| {
        of(Method::POST, path, id, what)
            .takes::<json::SelectRequest>(example)
            .gives::<json::SelectReply>(200)
            .fails(&[429])
    };
    let replay = "Offer parked messages again, with all their retries. An empty selection is refused; `all` selects \
                  all.";
    let example = json!({ "filter": { "reason": "smtp down" }, "rate": { "per_second": 50 } });
    api.add(
        work(in_group!("/parked/replay"), "replayParked", replay, example).grpc("ReplayParked"),
        parked::replay,
    );
    let discard = "Discard parked messages. An empty selection is refused; `all` selects all.";
    api.add(
        work(in_group!("/parked/discard"), "discardParked", discard, json!({ "seqs": [17, 18] }))
            .grpc("DiscardParked"),
        parked::discard,
    );
    let relocate = "Move parked messages to another stream, which must exist. Each is published there and leaves the \
                    group in one step. Needs the right to publish to that stream too.";
    let example = json!({ "filter": { "reason": "smtp down" }, "to": "quarantine" });
    api.add(
        work(in_group!("/parked/move"), "moveParked", relocate, example).grpc("MoveParked"),
        parked::relocate,
    );
    let resubmit = "Publish an edited copy of a parked message and settle the message, in one step. Fields that are \
                    left out are copied, except the id: the copy has an id only if one is given.";
    api.add(
        of(Method::POST, in_group!("/parked/{seq}/resubmit"), "resubmitParked", resubmit)
            .takes::<json::Message>(json!({ "body": { "to": "b@example.com" } }))
            .gives::<json::PublishResult>(201)
            .fails(&[409, 429, 507])
            .grpc("ResubmitParked"),
        parked::resubmit,
    );
}

fn job_calls(api: &mut Api) {
    let of = |method, path, id, what| Call::new(method, path, id, what).tag("parked").fails(&[404]);
    let jobs = "Jobs of a group: replays, discards and moves.";
    api.add(
        of(Method::GET, in_group!("/jobs"), "listJobs", jobs).gives::<json::JobList>(200).grpc("ListJobs"),
        parked::jobs,
    );
    api.add(
        of(Method::GET, in_group!("/jobs/{job}"), "getJob", "One job.")
            .gives::<json::Job>(200)
            .grpc("GetJob"),
        parked::job,
    );
    let cancel = "Cancel a job. Messages that it has processed stay as they are.";
    api.add(
        of(Method::DELETE, in_group!("/jobs/{job}"), "cancelJob", cancel).grpc("CancelJob"),
        parked::cancel,
    );
}

fn credential_calls(api: &mut Api) {
    let of = |method, path, id, what| Call::new(method, path, id, what).tag("credentials");
    let create = "Create a token, an access key or a user. The answer has its secret, which is not told again. For \
                  administrators, as the next three.";
    api.add(
        of(Method::POST, "/credentials", "createCredential", create)
            .takes::<json::CreateCredentialRequest>(
                json!({ "kind": "token", "name": "ci", "grants": "publish:orders-*", "expires_in": "90d" }),
            )
            .gives::<json::CreateCredentialReply>(201)
            .fails(&[409])
            .grpc("CreateCredential"),
        credentials::create,
    );
    let list = "Tokens, access keys and users, by id, without their secrets.";
    let kind = Parameter::text("kind", "`token`, `access_key` or `user`. Default: all.");
    api.add(
        of(Method::GET, "/credentials", "listCredentials", list)
            .query(std::iter::once(kind).chain(page()))
            .gives::<json::CredentialList>(200)
            .grpc("ListCredentials"),
        credentials::list,
    );
    let change = "Change the password of a user. Everything that runs with the old one ends. Without `password` the \
                  server draws one, which the answer has and no other.";
    api.add(
        of(Method::PUT, "/credentials/{id}/password", "changePassword", change)
            .takes::<json::ChangePasswordRequest>(json!({ "password": "correct horse battery" }))
            .gives::<json::CreateCredentialReply>(200)
            .fails(&[404])
            .grpc("ChangePassword"),
        credentials::change_password,
    );
    let revoke = "Revoke a token, an access key or a user. Everything that runs in its name ends.";
    api.add(
        of(Method::DELETE, "/credentials/{id}", "revokeCredential", revoke)
            .fails(&[404])
            .grpc("RevokeCredential"),
        credentials::revoke,
    );
}

fn connection_calls(api: &mut Api) {
    let of = |method, path, id, what| Call::new(method, path, id, what).tag("server");
    let list = "Connections of clients that are open, on all ports, the oldest first.";
    api.add(
        of(Method::GET, "/connections", "listConnections", list)
            .query(page())
            .gives::<json::ConnectionList>(200),
        connections::list,
    );
    let close = "Close a connection. Its requests end without an answer, and its consumers leave their groups. For \
                 operators of the whole server.";
    api.add(
        of(Method::DELETE, "/connections/{connection}", "closeConnection", close).fails(&[404]),
        connections::close,
    );
}

fn live_calls(api: &mut Api) {
    let get = |path, id, what| Call::new(Method::GET, path, id, what).tag("server");
    let server = "Version, stage and counts of the server.";
    api.add(get("/server", "getServer", server).gives::<json::ServerReport>(200), live::server);
    api.add(
        get("/livez", "isAlive", "200 while the server runs.").gives_text(200, "text/plain"),
        live::livez,
    );
    let cluster = "The owner of the log, the nodes of the cluster, and the NATS servers that keep the log.";
    api.add(get("/cluster", "getCluster", cluster).gives::<json::ClusterReport>(200), live::cluster);
    let ready = "200 while the server accepts work, and on a standby that reaches the owner; 503 while it drains or \
                 stops.";
    api.add(get("/readyz", "isReady", ready).gives_text(200, "text/plain"), live::readyz);
    let metrics = "Metrics in the text format of Prometheus.";
    api.add(get("/metrics", "getMetrics", metrics).gives_text(200, "text/plain"), live::metrics);
    api.add(
        get("/openapi.json", "getOpenapi", "This document.").gives_text(200, "application/json"),
        live::openapi,
    );
    let events = "Changes in the server, at most once a second, as server-sent events: `server`, `stream` and \
                  `group` with their reports, `gone` after a deletion, `lost` for a listener that is too slow.";
    api.add(get("/events", "listen", events).gives_text(200, "text/event-stream"), live::events);
    let problem = "The meaning of a problem. The `type` of every problem is a path like this one.";
    api.add(
        get("/problems/{kind}", "getProblem", problem).gives_text(200, "text/html").fails(&[404]),
        live::problem,
    );
    let index = "The dashboard, for people.";
    #[cfg(feature = "dashboard")]
    api.add(get("/", "getIndex", index).gives_text(200, "text/html"), dashboard::page);
    #[cfg(not(feature = "dashboard"))]
    api.add(get("/", "getIndex", index).gives_text(200, "text/html"), live::index);
}

/// One call, as it is documented.
struct Call {
    method: Method,
    path: &'static str,
    id: &'static str,
    what: &'static str,
    tag: &'static str,
    /// The call of `forebay.v1` that does the same, if there is one.
    grpc: Option<&'static str>,
    query: Vec<Parameter>,
    takes: Option<(Shape, Value)>,
    statuses: Vec<u16>,
    /// Statuses of the problems that it may answer with, beside those of every call.
    problems: Vec<u16>,
    gives: Gives,
}

/// Statuses of problems that any call may answer with, and of those that have to do with its body.
const PROBLEMS: [u16; 5] = [400, 401, 403, 500, 503];
const PROBLEMS_OF_BODIES: [u16; 3] = [408, 413, 415];

enum Gives {
    Nothing,
    Text(&'static str),
    Json(Shape),
}

/// A type's name, and its schema with all that it refers to.
struct Shape {
    name: String,
    schemas: Vec<(String, Value)>,
}

impl Shape {
    fn of<T: ToSchema>() -> Shape {
        let mut inner = Vec::new();
        T::schemas(&mut inner);
        let name = T::name().into_owned();
        inner.push((name.clone(), T::schema()));
        let written = |schema| serde_json::to_value(schema).expect("a schema can be written");
        Shape { name, schemas: inner.into_iter().map(|(name, schema)| (name, written(schema))).collect() }
    }

    fn reference(&self) -> Value {
        json!({ "schema": { "$ref": format!("#/components/schemas/{}", self.name) } })
    }
}

impl Call {
    fn new(method: Method, path: &'static str, id: &'static str, what: &'static str) -> Call {
        let (query, takes, statuses, gives) = (Vec::new(), None, vec![204], Gives::Nothing);
        Call {
            method,
            path,
            id,
            what,
            tag: "server",
            grpc: None,
            query,
            takes,
            statuses,
            problems: vec![],
            gives,
        }
    }

    fn tag(self, tag: &'static str) -> Call {
        Call { tag, ..self }
    }

    fn grpc(self, call: &'static str) -> Call {
        Call { grpc: Some(call), ..self }
    }

    fn query(mut self, query: impl IntoIterator<Item = Parameter>) -> Call {
        self.query.extend(query);
        self
    }

    /// A body of this type, such as the example.
    fn takes<T: ToSchema>(self, example: Value) -> Call {
        Call { takes: Some((Shape::of::<T>(), example)), ..self }
    }

    fn gives<T: ToSchema>(self, status: u16) -> Call {
        Call { gives: Gives::Json(Shape::of::<T>()), statuses: vec![status], ..self }
    }

    fn gives_text(self, status: u16, media_type: &'static str) -> Call {
        Call { gives: Gives::Text(media_type), statuses: vec![status], ..self }
    }

    /// It may answer the same with another status.
    fn or(mut self, status: u16) -> Call {
        self.statuses.push(status);
        self
    }

    fn fails(mut self, statuses: &[u16]) -> Call {
        self.problems.extend(statuses);
        self
    }

    /// Names of what stands in braces in the path.
    fn variables(&self) -> impl Iterator<Item = &'static str> {
        self.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
    }

    /// The other path under which the call is known.
    fn alias(&self) -> Option<String> {
        Some(format!("{SUBSCRIPTION}{}", self.path.strip_prefix(GROUP)?))
    }

    fn operation(&self) -> Value {
        let in_path = self.variables().map(document::path_variable);
        let in_query = self.query.iter().map(Parameter::document);
        let parameters: Vec<Value> = in_path.chain(in_query).collect();
        let mut responses = Map::new();
        for status in &self.statuses {
            let mut response = json!({ "description": "Done." });
            match &self.gives {
                Gives::Nothing => {}
                Gives::Text(media_type) => {
                    response["content"] = json!({ *media_type: { "schema": { "type": "string" } } });
                }
                Gives::Json(shape) => {
                    response["content"] = json!({ "application/json": shape.reference() });
                }
            }
            responses.insert(status.to_string(), response);
        }
        let of_body: &[u16] = if self.takes.is_some() { &PROBLEMS_OF_BODIES } else { &[] };
        for status in PROBLEMS.iter().chain(of_body).chain(&self.problems) {
            responses.insert(status.to_string(), document::problem_reference(*status));
        }
        let problem = json!({ MEDIA_TYPE: { "schema": { "$ref": "#/components/schemas/Problem" } } });
        responses.insert("default".to_owned(), json!({ "description": "A problem.", "content": problem }));
        let mut operation = json!({
            "summary": self.what, "operationId": self.id, "tags": [self.tag], "parameters": parameters,
            "responses": responses,
        });
        if let Some(call) = self.grpc {
            operation["x-grpc"] = call.into();
        }
        if let Some((shape, example)) = &self.takes {
            let mut content = shape.reference();
            content["example"] = example.clone();
            operation["requestBody"] = json!({ "content": { "application/json": content } });
        }
        operation
    }
}

/// The calls that have been listed so far.
#[derive(Default)]
pub(in crate::native) struct Api {
    router: Router<Door>,
    paths: BTreeMap<&'static str, Map<String, Value>>,
    /// The methods of every path, also of those that have no place in the document.
    methods: BTreeMap<String, Vec<Method>>,
    schemas: BTreeMap<String, Value>,
}

impl Api {
    fn add<H, T>(&mut self, call: Call, handler: H)
    where
        H: Handler<T, Door>,
        T: 'static,
    {
        if let Some(alias) = call.alias() {
            self.alias(&alias, call.method.clone(), call.id, handler.clone());
        }
        self.alias(call.path, call.method.clone(), call.id, handler);
        let method = call.method.as_str().to_ascii_lowercase();
        let known = self.paths.entry(call.path).or_default().insert(method, call.operation());
        assert!(known.is_none(), "a call is listed once");
        let gives = match call.gives {
            Gives::Json(shape) => Some(shape),
            Gives::Nothing | Gives::Text(_) => None,
        };
        for shape in call.takes.map(|(shape, _)| shape).into_iter().chain(gives) {
            self.schemas.extend(shape.schemas);
        }
    }

    /// Answers at a path, without a place in the document.
    fn alias<H, T>(&mut self, path: &str, method: Method, id: &str, handler: H)
    where
        H: Handler<T, Door>,
        T: 'static,
    {
        self.methods.entry(path.to_owned()).or_default().push(method.clone());
        let filter = MethodFilter::try_from(method).expect("the calls have common methods");
        let name = CallName(id.into());
        let named = map_response(move |mut answer: Response<Body>| {
            answer.extensions_mut().insert(name.clone());
            std::future::ready(answer)
        });
        let router = std::mem::take(&mut self.router);
        self.router = router.route(path, on(filter, handler).route_layer(named));
    }

    /// The OpenAPI document.
    pub(in crate::native) fn document(&self) -> Bytes {
        let mut schemas: Map<String, Value> = self.schemas.clone().into_iter().collect();
        schemas.extend(Shape::of::<Problem>().schemas);
        document::refine(&mut schemas);
        let tags = document::TAGS.map(|(name, what)| json!({ "name": name, "description": what }));
        let mut document = json!({
            "openapi": "3.1.0",
            "info": {
                "title": "Forebay",
                "version": env!("CARGO_PKG_VERSION"),
                "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
                "description": "A durable message queue: streams, and groups of competing consumers with retries and \
                                dead letters. `/subscriptions/{stream}/{group}` is another form of \
                                `/streams/{stream}/groups/{group}`.",
            },
            "servers": [{ "url": "/", "description": "The server that serves this document." }],
            "tags": tags,
            "paths": self.paths,
            // A server may ask for a token, or do without.
            "security": [{}, { "token": [] }],
            "components": {
                "schemas": schemas,
                "responses": document::problem_responses(),
                "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            },
        });
        document::rename(&mut document, "BTreeMap", "Headers");
        let document = serde_json::to_string(&document).expect("the document can be written") + "\n";
        document.into()
    }

    pub(super) fn into_router(self, door: Door) -> Router {
        #[cfg(feature = "dashboard")]
        let router = dashboard::mount(self.router);
        #[cfg(not(feature = "dashboard"))]
        let router = self.router;
        let list = |mut methods: Vec<Method>| {
            methods.sort_by(|a, b| a.as_str().cmp(b.as_str()));
            methods.iter().map(Method::as_str).collect::<Vec<_>>().join(", ")
        };
        let allowed: Arc<[(String, String)]> =
            self.methods.into_iter().map(|(path, methods)| (path, list(methods))).collect();
        router
            .fallback(async |uri: Uri| {
                Failure::new(
                    Kind::NoSuchPath,
                    format!("there is nothing at this path. path=`{}`", uri.path()),
                )
            })
            .method_not_allowed_fallback(async move |method: Method, uri: Uri| {
                let path = uri.path();
                let mut detail =
                    format!("the path does not have this method. method=`{method}` path=`{path}`");
                if let Some((_, methods)) = allowed.iter().find(|(pattern, _)| is_at(pattern, path)) {
                    detail += &format!(" allowed=`{methods}`");
                }
                Failure::new(Kind::MethodNotAllowed, detail)
            })
            .with_state(door)
    }
}

/// Whether a path fits a pattern, such as `/streams/{stream}`.
fn is_at(pattern: &str, path: &str) -> bool {
    let (mut pattern, mut path) = (pattern.split('/'), path.split('/'));
    loop {
        match (pattern.next(), path.next()) {
            (None, None) => return true,
            (Some(part), Some(of)) if part == of || part.starts_with('{') => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn references(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(map) => {
                for (name, value) in map {
                    match value.as_str().filter(|_| name == "$ref") {
                        Some(reference) => found.push(reference.to_owned()),
                        None => references(value, found),
                    }
                }
            }
            Value::Array(values) => values.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }

    #[test]
    fn the_document_has_every_type_that_it_refers_to() {
        let document: Value = serde_json::from_slice(&calls().document()).expect("it is JSON");
        assert_eq!(document["openapi"], "3.1.0");
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(found.len() > 100, "{}", found.len());
        for reference in found {
            let pointer = reference.strip_prefix('#').expect("it is in the document");
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
    }

    fn operations(document: &Value) -> Vec<(String, &Value)> {
        let paths = document["paths"].as_object().expect("paths");
        let all = paths.iter().flat_map(|(path, methods)| {
            let methods = methods.as_object().expect("methods").iter();
            methods.map(move |(method, operation)| (format!("{method} {path}"), operation))
        });
        all.collect()
    }

    #[test]
    fn every_call_has_a_name_a_tag_typed_parameters_and_its_problems() {
        let document: Value = serde_json::from_slice(&calls().document()).expect("it is JSON");
        let mut ids = Vec::new();
        for (call, operation) in operations(&document) {
            let id = operation["operationId"].as_str().expect("an id");
            assert!(id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{call}: {id}");
            ids.push(id.to_owned());
            let tag = operation["tags"][0].as_str().expect("a tag");
            assert!(document::TAGS.iter().any(|(name, _)| *name == tag), "{call}: {tag}");
            for parameter in operation["parameters"].as_array().expect("a list") {
                let schema = &parameter["schema"];
                assert!(
                    schema["type"].is_string() && parameter["description"].is_string(),
                    "{call}: {parameter}"
                );
            }
            for status in ["400", "403", "503", "default"] {
                assert!(!operation["responses"][status].is_null(), "{call} has no {status}");
            }
            if let Some(body) = operation.get("requestBody") {
                assert!(body["content"]["application/json"]["example"].is_object(), "{call} has no example");
            }
        }
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count);
        let schemas = document["components"]["schemas"].as_object().expect("schemas");
        assert!(!schemas.contains_key("BTreeMap") && schemas.contains_key("Headers"));
        assert_eq!(schemas["Message"]["properties"]["priority"]["maximum"], 9);
    }

    /// The examples are requests that the types take.
    #[test]
    fn examples_of_requests_are_read() {
        fn read<T: serde::de::DeserializeOwned>(example: &Value) {
            json::read::<T>(example.to_string().as_bytes())
                .unwrap_or_else(|wrong| panic!("{example}: {wrong}"));
        }
        let document: Value = serde_json::from_slice(&calls().document()).expect("it is JSON");
        let mut count = 0;
        for (call, operation) in operations(&document) {
            let Some(body) = operation.pointer("/requestBody/content/application~1json") else { continue };
            let (example, schema) = (&body["example"], body["schema"]["$ref"].as_str().expect("a reference"));
            match schema.rsplit('/').next().expect("a name") {
                "StreamSettings" => read::<json::StreamSettings>(example),
                "GroupSettings" => read::<json::GroupSettings>(example),
                "PurgeRequest" => read::<json::PurgeRequest>(example),
                "TruncateRequest" => read::<json::TruncateRequest>(example),
                "TransactionRequest" => read::<json::TransactionRequest>(example),
                "PublishRequest" => read::<json::PublishRequest>(example),
                "ResetRequest" => read::<json::ResetRequest>(example),
                "ReceiveRequest" => read::<json::ReceiveRequest>(example),
                "AckRequest" => read::<json::AckRequest>(example),
                "NackRequest" => read::<json::NackRequest>(example),
                "ExtendRequest" => read::<json::ExtendRequest>(example),
                "SelectRequest" => read::<json::SelectRequest>(example),
                "Message" => read::<json::Message>(example),
                "ChangePasswordRequest" => read::<json::ChangePasswordRequest>(example),
                "CreateCredentialRequest" => read::<json::CreateCredentialRequest>(example),
                other => panic!("{call} takes {other}"),
            }
            count += 1;
        }
        assert!(count >= 14, "{count}");
    }
}
