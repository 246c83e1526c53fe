//! Every call, once: its path, its handler, its call of `forebay.v1`, and what the OpenAPI document says of it. The
//! router and the document are made from the same list. A test compares the list with the calls of gRPC.

use std::collections::BTreeMap;

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

use super::failure::Failure;
use super::{Door, consume, credentials, groups, live, parked, streams};
use crate::telemetry::CallName;

const STREAM: &str = "/streams/{stream}";
const GROUP: &str = "/subscriptions/{stream}/{group}";

/// All calls.
pub(in crate::native) fn calls() -> Api {
    let mut api = Api::default();
    stream_calls(&mut api);
    group_calls(&mut api);
    consumer_calls(&mut api);
    parked_calls(&mut api);
    credential_calls(&mut api);
    live_calls(&mut api);
    api
}

fn stream_calls(api: &mut Api) {
    let stream = |method, what| Call::new(method, STREAM, what).gives::<json::StreamReport>(200);
    let create = "Create a stream. 200 if it exists and the supplied settings agree; 409 if one differs.";
    api.add(
        stream(Method::PUT, create).takes::<json::schema::StreamSettings>().or(201).grpc("CreateStream"),
        streams::create,
    );
    let change = "Change settings. A setting that is left out keeps its value.";
    api.add(
        stream(Method::PATCH, change).takes::<json::schema::StreamSettings>().grpc("UpdateStream"),
        streams::change,
    );
    api.add(stream(Method::GET, "Settings and figures of a stream.").grpc("GetStream"), streams::get);
    let delete = "Delete a stream with its groups. 409 while groups have consumers, unless forced.";
    let force = [("force", "true deletes it while groups have consumers")];
    api.add(
        Call::new(Method::DELETE, STREAM, delete).query(&force).gives_nothing().grpc("DeleteStream"),
        streams::delete,
    );
    let list = Call::new(Method::GET, "/streams", "Settings and figures of streams, by name.").query(&PAGE);
    api.add(list.gives::<json::StreamList>(200).grpc("ListStreams"), streams::list);
    let publish = "Publish one message or many, stored whole or not at all. Answered after the sync. A stream that \
                   does not exist is created.";
    let publish = Call::new(Method::POST, "/streams/{stream}/messages", publish);
    api.add(
        publish.takes::<json::PublishRequest>().gives::<json::PublishReply>(201).grpc("Publish"),
        streams::publish,
    );
    let browse =
        Call::new(Method::GET, "/streams/{stream}/messages", "Look at messages; nothing is disturbed.");
    let parameters = [
        ("from", "the first position; 1 if it is left out"),
        ("limit", "how many at most, from 1 to 1000; 100 if it is left out"),
        ("key", "only messages of this key"),
        ("type", "only messages of this type"),
    ];
    api.add(browse.query(&parameters).gives::<json::MessageList>(200).grpc("ReadMessages"), streams::browse);
    let purge = "Drop everything ready, delayed and leased, and with `parked` also the parked messages.";
    let purge = Call::new(Method::POST, "/streams/{stream}/purge", purge);
    api.add(
        purge.takes::<json::PurgeRequest>().gives::<json::PurgeReply>(200).grpc("PurgeStream"),
        streams::purge,
    );
    let follow = "Messages in order as they come, as server-sent events. The id of an event is the position, so \
                  that Last-Event-ID resumes.";
    let parameters = [
        ("from", "`beginning`, `end` or a position; the beginning if it is left out"),
        ("key", "only messages of this key"),
        ("type", "only messages of this type"),
    ];
    let follow = Call::new(Method::GET, "/streams/{stream}/follow", follow).query(&parameters);
    api.add(follow.gives_text(200, "text/event-stream").grpc("FollowStream"), streams::follow);
}

const PAGE: [(&str, &str); 2] = [
    ("limit", "how many at most, from 1 to 1000; 100 if it is left out"),
    ("after", "where to go on: `next` of the page before"),
];

fn group_calls(api: &mut Api) {
    let group = |method, what| Call::new(method, GROUP, what).gives::<json::GroupReport>(200);
    let create = "Create a group, and its stream if that is absent. 200 if it exists and the supplied settings \
                  agree; 409 if one differs.";
    api.add(
        group(Method::PUT, create).takes::<json::schema::GroupSettings>().or(201).grpc("CreateGroup"),
        groups::create,
    );
    let change =
        "Change settings while consumers stay connected. A setting that is left out keeps its value.";
    api.add(
        group(Method::PATCH, change).takes::<json::schema::GroupSettings>().grpc("UpdateGroup"),
        groups::change,
    );
    api.add(group(Method::GET, "Monitoring of a group.").grpc("GetGroup"), groups::get);
    api.add(
        Call::new(Method::DELETE, GROUP, "Delete a group.").gives_nothing().grpc("DeleteGroup"),
        groups::delete,
    );
    let all =
        Call::new(Method::GET, "/subscriptions", "Monitoring of groups, by stream and name.").query(&PAGE);
    api.add(all.gives::<json::GroupList>(200).grpc("ListGroups"), groups::list);
    let some =
        Call::new(Method::GET, "/subscriptions/{stream}", "Monitoring of a stream's groups.").query(&PAGE);
    api.add(some.gives::<json::GroupList>(200).grpc("ListGroups"), groups::list_of_stream);
    let at = |path, what| Call::new(Method::POST, path, what).gives::<json::PausedReply>(200);
    api.add(
        at("/subscriptions/{stream}/{group}/pause", "Stop handing out.").grpc("PauseGroup"),
        groups::pause,
    );
    api.add(
        at("/subscriptions/{stream}/{group}/resume", "Go on with handing out.").grpc("ResumeGroup"),
        groups::resume,
    );
    let reset = "Move the group's progress, forward or back.";
    let reset = Call::new(Method::POST, "/subscriptions/{stream}/{group}/reset", reset);
    api.add(
        reset.takes::<json::ResetRequest>().gives::<json::ResetReply>(200).grpc("ResetGroup"),
        groups::reset,
    );
    let scaling = "How many consumers the group should have, and the figures that this is computed from.";
    let parameters = [
        ("target_drain", "how long the backlog may take; 5m if it is left out"),
        ("min", "no fewer than this; 0 if it is left out"),
        ("max", "no more than this; 1000 if it is left out"),
    ];
    let scaling =
        Call::new(Method::GET, "/subscriptions/{stream}/{group}/scaling", scaling).query(&parameters);
    api.add(scaling.gives::<json::Scaling>(200).grpc("GetScaling"), groups::scaling);
}

fn consumer_calls(api: &mut Api) {
    let receive = "Take messages, on leases that last until their deadline whatever becomes of the connection or \
                   the server. With `wait`, a long poll.";
    let receive = Call::new(Method::POST, "/subscriptions/{stream}/{group}/receive", receive);
    api.add(
        receive.takes::<json::ReceiveRequest>().gives::<json::ReceiveReply>(200).grpc("Receive"),
        consume::receive,
    );
    let settle = |path, what| Call::new(Method::POST, path, what).gives::<json::SettleReply>(200);
    let ack = settle("/subscriptions/{stream}/{group}/ack", "The messages are done.");
    api.add(ack.takes::<json::AckRequest>().grpc("Settle"), consume::ack);
    let nack = settle("/subscriptions/{stream}/{group}/nack", "The messages are not done.");
    api.add(nack.takes::<json::NackRequest>().grpc("Settle"), consume::nack);
    let extend = settle("/subscriptions/{stream}/{group}/extend", "More time, counted from now.");
    api.add(extend.takes::<json::ExtendRequest>().grpc("Settle"), consume::extend);
}

fn parked_calls(api: &mut Api) {
    let list = "Parked messages, by position.";
    let parameters = [
        ("limit", "how many at most, from 1 to 1000; 100 if it is left out"),
        ("after", "only positions after this one: `next` of the page before"),
        ("reason", "only those with this reason"),
        ("key", "only messages of this key"),
        ("type", "only messages of this type"),
    ];
    let list = Call::new(Method::GET, "/subscriptions/{stream}/{group}/parked", list).query(&parameters);
    api.add(list.gives::<json::ParkedList>(200).grpc("ListParked"), parked::list);
    let reasons = "How many messages are parked for each reason.";
    let reasons = Call::new(Method::GET, "/subscriptions/{stream}/{group}/parked/reasons", reasons);
    api.add(reasons.gives::<json::ReasonList>(200).grpc("ListParkedReasons"), parked::reasons);
    let one = Call::new(Method::GET, "/subscriptions/{stream}/{group}/parked/{seq}", "One parked message.");
    api.add(one.gives::<json::Parked>(200).grpc("GetParked"), parked::get);
    let work = |path, what| {
        Call::new(Method::POST, path, what).takes::<json::SelectRequest>().gives::<json::SelectReply>(200)
    };
    let replay = "Bring parked messages back. An empty selection is refused; `all` means all.";
    api.add(
        work("/subscriptions/{stream}/{group}/parked/replay", replay).grpc("ReplayParked"),
        parked::replay,
    );
    let discard = "Let go of parked messages. An empty selection is refused; `all` means all.";
    api.add(
        work("/subscriptions/{stream}/{group}/parked/discard", discard).grpc("DiscardParked"),
        parked::discard,
    );
    let resubmit = "Publish an edited copy of a parked message and settle the message, in one step. A field \
                    that is left out keeps its value, except the id: the copy has an id only if one is given.";
    let resubmit = Call::new(Method::POST, "/subscriptions/{stream}/{group}/parked/{seq}/resubmit", resubmit);
    api.add(
        resubmit.takes::<json::Message>().gives::<json::PublishResult>(201).grpc("ResubmitParked"),
        parked::resubmit,
    );
    let jobs = Call::new(Method::GET, "/subscriptions/{stream}/{group}/jobs", "Replay and discard jobs.");
    api.add(jobs.gives::<json::JobList>(200).grpc("ListJobs"), parked::jobs);
    let job = |method, what| Call::new(method, "/subscriptions/{stream}/{group}/jobs/{job}", what);
    api.add(job(Method::GET, "One job.").gives::<json::Job>(200).grpc("GetJob"), parked::job);
    api.add(
        job(Method::DELETE, "Cancel a job. Messages that it has handled stay as they are.")
            .gives_nothing()
            .grpc("CancelJob"),
        parked::cancel,
    );
}

fn credential_calls(api: &mut Api) {
    let create = "Create a token or an access key. The answer has its secret, which is not told again. For \
                  administrators, as the next two.";
    let create = Call::new(Method::POST, "/credentials", create);
    api.add(
        create
            .takes::<json::CreateCredentialRequest>()
            .gives::<json::CreateCredentialReply>(201)
            .grpc("CreateCredential"),
        credentials::create,
    );
    let parameters = [
        ("kind", "`token` or `access_key`; both if it is left out"),
        ("limit", "how many at most, from 1 to 1000; 100 if it is left out"),
        ("after", "where to go on: `next` of the page before"),
    ];
    let list =
        Call::new(Method::GET, "/credentials", "Tokens and access keys, by id, without their secrets.");
    api.add(
        list.query(&parameters).gives::<json::CredentialList>(200).grpc("ListCredentials"),
        credentials::list,
    );
    let revoke = "Revoke a token or an access key. Everything that runs in its name ends.";
    let revoke = Call::new(Method::DELETE, "/credentials/{id}", revoke);
    api.add(revoke.gives_nothing().grpc("RevokeCredential"), credentials::revoke);
}

fn live_calls(api: &mut Api) {
    let get = |path, what| Call::new(Method::GET, path, what);
    api.add(get("/livez", "200 while the server runs.").gives_text(200, "text/plain"), live::livez);
    let ready = "200 while the server takes work; 503 while it drains or stops.";
    api.add(get("/readyz", ready).gives_text(200, "text/plain"), live::readyz);
    let metrics = "Figures in the text format of Prometheus.";
    api.add(get("/metrics", metrics).gives_text(200, "text/plain"), live::metrics);
    api.add(get("/openapi.json", "This document.").gives_text(200, "application/json"), live::openapi);
    let events = "Changes in the server, at most once a second, as server-sent events: `server`, `stream` and \
                  `group` with what they report, `gone` for a deleted one, `lost` for a listener that is too slow.";
    api.add(get("/events", events).gives_text(200, "text/event-stream"), live::events);
    api.add(get("/", "The calls, for people.").gives_text(200, "text/html"), live::index);
}

/// One call, as it is documented.
struct Call {
    method: Method,
    path: &'static str,
    what: &'static str,
    /// The call of `forebay.v1` that does the same, if there is one.
    grpc: Option<&'static str>,
    query: Vec<(&'static str, &'static str)>,
    takes: Option<Shape>,
    statuses: Vec<u16>,
    gives: Gives,
}

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
    fn new(method: Method, path: &'static str, what: &'static str) -> Call {
        let (query, takes, statuses, gives) = (Vec::new(), None, vec![204], Gives::Nothing);
        Call { method, path, what, grpc: None, query, takes, statuses, gives }
    }

    fn grpc(self, call: &'static str) -> Call {
        Call { grpc: Some(call), ..self }
    }

    fn query(self, query: &[(&'static str, &'static str)]) -> Call {
        Call { query: query.to_vec(), ..self }
    }

    fn takes<T: ToSchema>(self) -> Call {
        Call { takes: Some(Shape::of::<T>()), ..self }
    }

    fn gives<T: ToSchema>(self, status: u16) -> Call {
        Call { gives: Gives::Json(Shape::of::<T>()), statuses: vec![status], ..self }
    }

    fn gives_text(self, status: u16, media_type: &'static str) -> Call {
        Call { gives: Gives::Text(media_type), statuses: vec![status], ..self }
    }

    fn gives_nothing(self) -> Call {
        self
    }

    /// It may answer the same with another status.
    fn or(mut self, status: u16) -> Call {
        self.statuses.push(status);
        self
    }

    /// Names of what stands in braces in the path.
    fn variables(&self) -> impl Iterator<Item = &'static str> {
        self.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
    }

    fn operation(&self) -> Value {
        let in_path = self.variables().map(|name| {
            let kind = if matches!(name, "seq" | "job") { "integer" } else { "string" };
            json!({ "name": name, "in": "path", "required": true, "schema": { "type": kind } })
        });
        let in_query = self.query.iter().map(|(name, what)| {
            json!({ "name": name, "in": "query", "description": what, "schema": { "type": "string" } })
        });
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
        let problem = json!({ MEDIA_TYPE: { "schema": { "$ref": "#/components/schemas/Problem" } } });
        responses.insert("default".to_owned(), json!({ "description": "A problem.", "content": problem }));
        let mut operation = json!({
            "summary": self.what, "operationId": self.id(), "parameters": parameters, "responses": responses,
        });
        if let Some(call) = self.grpc {
            operation["x-grpc"] = call.into();
        }
        if let Some(shape) = &self.takes {
            operation["requestBody"] = json!({ "content": { "application/json": shape.reference() } });
        }
        operation
    }

    /// As `put_streams_stream`.
    fn id(&self) -> String {
        let words = self.path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        let words: Vec<&str> = words.collect();
        format!("{}_{}", self.method.as_str().to_ascii_lowercase(), words.join("_"))
    }
}

/// The calls that have been listed so far.
#[derive(Default)]
pub(in crate::native) struct Api {
    router: Router<Door>,
    paths: BTreeMap<&'static str, Map<String, Value>>,
    schemas: BTreeMap<String, Value>,
}

impl Api {
    fn add<H, T>(&mut self, call: Call, handler: H)
    where
        H: Handler<T, Door>,
        T: 'static,
    {
        let filter = MethodFilter::try_from(call.method.clone()).expect("the calls have common methods");
        let router = std::mem::take(&mut self.router);
        let name = CallName(call.id().into());
        let named = map_response(move |mut answer: Response<Body>| {
            answer.extensions_mut().insert(name.clone());
            std::future::ready(answer)
        });
        self.router = router.route(call.path, on(filter, handler).route_layer(named));
        let method = call.method.as_str().to_ascii_lowercase();
        let known = self.paths.entry(call.path).or_default().insert(method, call.operation());
        assert!(known.is_none(), "a call is listed once");
        let gives = match call.gives {
            Gives::Json(shape) => Some(shape),
            Gives::Nothing | Gives::Text(_) => None,
        };
        for shape in call.takes.into_iter().chain(gives) {
            self.schemas.extend(shape.schemas);
        }
    }

    /// The OpenAPI document.
    pub(in crate::native) fn document(&self) -> Bytes {
        let mut schemas = self.schemas.clone();
        schemas.extend(Shape::of::<Problem>().schemas);
        // Schemas that only events use.
        schemas.extend(Shape::of::<json::ServerReport>().schemas);
        let document = json!({
            "openapi": "3.1.0",
            "info": {
                "title": "Forebay",
                "version": env!("CARGO_PKG_VERSION"),
                "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
                "description": "Durable streams, and groups of competing consumers that work through them.",
            },
            "paths": self.paths,
            "components": { "schemas": schemas },
        });
        serde_json::to_vec(&document).expect("the document can be written").into()
    }

    pub(super) fn into_router(self, door: Door) -> Router {
        self.router
            .fallback(async |uri: Uri| {
                Failure::new(
                    Kind::NoSuchPath,
                    format!("there is nothing at this path. path=`{}`", uri.path()),
                )
            })
            .method_not_allowed_fallback(async |method: Method, uri: Uri| {
                let detail =
                    format!("the path does not have this method. method=`{method}` path=`{}`", uri.path());
                Failure::new(Kind::MethodNotAllowed, detail)
            })
            .with_state(door)
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

    #[test]
    fn calls_have_names_of_their_own() {
        let document: Value = serde_json::from_slice(&calls().document()).expect("it is JSON");
        let paths = document["paths"].as_object().expect("paths");
        let mut ids: Vec<&str> = paths
            .values()
            .flat_map(|methods| methods.as_object().expect("methods").values())
            .map(|operation| operation["operationId"].as_str().expect("an id"))
            .collect();
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count);
    }
}
