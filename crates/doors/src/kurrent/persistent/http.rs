//! Persistent subscriptions over HTTP, as version 4 of Event Store has them: settings as JSON, figures under their
//! known names, and events that are pulled and answered by the addresses that come with them.

mod json;

use std::sync::Arc;

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use forebay_broker::api::{CallError, Caller, Delivered, Receive, Right, Work};
use forebay_core::types::Timestamp;
use forebay_wire::kurrent::client::MetadataEntry;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde_json::{Value, json};

use super::super::event::Stored;
use super::super::ids::{EventId, Form};
use super::super::places;
use super::calls::{Answered, Names};
use super::held::{HeldEvent, Proof};
use super::info::Info;
use super::parked::{self, ParkedStream};
use super::service::{ALL, Action, Refusal, Subscriptions};
use json::{atom_link, changed, detail, link, merge, settings_of, summary};

/// The media type of pulled events.
const COMPETING: &str = "application/vnd.eventstore.competingatom+json";
/// Events that one request pulls, at most.
const PULL_MAX: u32 = 100;
/// Bytes of contents that one request pulls, at most, unless a single event has more.
const PULL_BYTES_MAX: u64 = 4 << 20;
/// The name of the consumer that pulls.
const PULLER: &str = "http";
/// Characters of a name that are written as they are in a path.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'$');

/// A request about subscriptions, of which only the address is known.
struct Ask<'a> {
    method: &'a Method,
    path: &'a str,
    query: &'a str,
    headers: &'a HeaderMap,
    /// The beginning of this server's addresses, as the client calls it.
    base: String,
}

/// What a request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Route {
    List,
    ListOf(String),
    Restart,
    Create(String, String),
    Update(String, String),
    Delete(String, String),
    Info(String, String),
    Pull(String, String, Option<String>),
    /// The group, the id in the path, and whether it is a refusal.
    Answer(String, String, Option<String>, bool),
    Replay(String, String),
    Truncate(String, String),
    /// The group, the number of the first entry, whether forwards, and how many.
    ViewParked(String, String, String, bool, String),
}

impl Route {
    /// `Err` with the methods that the path allows, or with an empty text for an unknown path.
    fn of(method: &Method, path: &str) -> Result<Route, &'static str> {
        let parts: Option<Vec<String>> = path
            .trim_matches('/')
            .split('/')
            .map(|part| percent_decode_str(part).decode_utf8().ok().map(std::borrow::Cow::into_owned))
            .collect();
        let parts = parts.unwrap_or_default();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let own = |text: &str| text.to_owned();
        let (get, post) = (method == Method::GET, method == Method::POST);
        match parts.as_slice() {
            ["subscriptions"] if get => Ok(Route::List),
            ["subscriptions"] => Err("GET"),
            ["subscriptions", "restart"] if post => Ok(Route::Restart),
            ["subscriptions", stream] if get => Ok(Route::ListOf(own(stream))),
            ["subscriptions", _] => Err("GET"),
            [
                "subscriptions",
                "viewparkedmessages",
                stream,
                group,
                from,
                way @ ("backward" | "forward"),
                count,
            ] if get => {
                let forward = *way == "forward";
                Ok(Route::ViewParked(own(stream), own(group), own(from), forward, own(count)))
            }
            ["subscriptions", stream, group] => match *method {
                Method::GET => Ok(Route::Pull(own(stream), own(group), None)),
                Method::PUT => Ok(Route::Create(own(stream), own(group))),
                Method::POST => Ok(Route::Update(own(stream), own(group))),
                Method::DELETE => Ok(Route::Delete(own(stream), own(group))),
                _ => Err("GET, PUT, POST, DELETE"),
            },
            ["subscriptions", stream, group, "info"] if get => Ok(Route::Info(own(stream), own(group))),
            ["subscriptions", stream, group, "replayParked"] if post => {
                Ok(Route::Replay(own(stream), own(group)))
            }
            ["subscriptions", stream, group, "truncateParked"] if post => {
                Ok(Route::Truncate(own(stream), own(group)))
            }
            ["subscriptions", stream, group, word @ ("ack" | "nack")] if post => {
                Ok(Route::Answer(own(stream), own(group), None, *word == "nack"))
            }
            ["subscriptions", stream, group, word @ ("ack" | "nack"), id] if post => {
                Ok(Route::Answer(own(stream), own(group), Some(own(id)), *word == "nack"))
            }
            ["subscriptions", _, _, "replayParked" | "truncateParked" | "ack" | "nack"] => Err("POST"),
            ["subscriptions", _, _, "ack" | "nack", _] => Err("POST"),
            ["subscriptions", stream, group, count] if get => {
                Ok(Route::Pull(own(stream), own(group), Some(own(count))))
            }
            ["subscriptions", _, _, _] => Err("GET"),
            _ => Err(""),
        }
    }

    /// The name under which calls are counted.
    fn name(&self) -> &'static str {
        match self {
            Route::List | Route::ListOf(_) => "list_subscriptions",
            Route::Restart => "restart_subscriptions",
            Route::Create(..) => "create_subscription",
            Route::Update(..) => "update_subscription",
            Route::Delete(..) => "delete_subscription",
            Route::Info(..) => "subscription_info",
            Route::Pull(..) => "pull_events",
            Route::Answer(_, _, _, false) => "ack_events",
            Route::Answer(_, _, _, true) => "nack_events",
            Route::Replay(..) => "replay_parked",
            Route::Truncate(..) => "truncate_parked",
            Route::ViewParked(..) => "view_parked",
        }
    }
}

/// A refusal with its status.
struct Refused(StatusCode, String);

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Refused {
        let (status, text) = match refusal {
            Refusal::Exists => (StatusCode::CONFLICT, "the subscription group already exists".to_owned()),
            Refusal::Missing => (StatusCode::NOT_FOUND, "the subscription group does not exist".to_owned()),
            Refusal::Full => (
                StatusCode::SERVICE_UNAVAILABLE,
                "the subscription has as many consumers as it may".to_owned(),
            ),
            Refusal::Failed(reason) => (StatusCode::BAD_REQUEST, reason),
            Refusal::Tombstone => (StatusCode::GONE, "the stream was deleted for ever".to_owned()),
            Refusal::Call(error) => (status_of(&error), error.to_string()),
        };
        Refused(status, text)
    }
}

impl From<CallError> for Refused {
    fn from(error: CallError) -> Refused {
        Refusal::from(error).into()
    }
}

fn status_of(error: &CallError) -> StatusCode {
    match error {
        CallError::Denied(_) => StatusCode::UNAUTHORIZED,
        CallError::Stopping
        | CallError::TooManyWaiting { .. }
        | CallError::TooManyBytes
        | CallError::OverLimit(_)
        | CallError::Note(_) => StatusCode::SERVICE_UNAVAILABLE,
        CallError::Unknown => StatusCode::INTERNAL_SERVER_ERROR,
        _ => StatusCode::BAD_REQUEST,
    }
}

fn bad(text: impl Into<String>) -> Refused {
    Refused(StatusCode::BAD_REQUEST, text.into())
}

/// Answers a request about subscriptions, with the name under which it is counted.
pub(in super::super) async fn answer_http(
    subscriptions: &Arc<Subscriptions>,
    caller: Caller,
    base: String,
    parts: &Parts,
    body: &[u8],
) -> (&'static str, Response<Body>) {
    let ask = Ask {
        base,
        method: &parts.method,
        path: parts.uri.path(),
        query: parts.uri.query().unwrap_or_default(),
        headers: &parts.headers,
    };
    answer(subscriptions, caller, ask, body).await
}

async fn answer(
    subscriptions: &Arc<Subscriptions>,
    caller: Caller,
    ask: Ask<'_>,
    body: &[u8],
) -> (&'static str, Response<Body>) {
    let route = match Route::of(ask.method, ask.path) {
        Ok(route) => route,
        Err("") => {
            let message = format!("there is nothing at this path. path=`{}`", ask.path);
            return (crate::telemetry::UNKNOWN, text(StatusCode::NOT_FOUND, &message));
        }
        Err(allowed) => {
            let message = format!("the path does not allow this method. allowed=`{allowed}`");
            let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, &message);
            answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allowed));
            return (crate::telemetry::UNKNOWN, answer);
        }
    };
    let name = route.name();
    let asked = Asked { subscriptions, caller, query: Query::of(ask.query), base: ask.base };
    let answered = asked.answer(route, ask.headers, body).await;
    (name, answered.unwrap_or_else(|Refused(status, message)| text(status, &message)))
}

struct Asked<'a> {
    subscriptions: &'a Arc<Subscriptions>,
    caller: Caller,
    query: Query,
    base: String,
}

/// A subscription that should be there, to a stream: those to `$all` are used over gRPC.
fn of_stream(stream: &str, group: &str) -> Result<Names, Refused> {
    if stream == ALL {
        return Err(bad("a subscription to $all is created, changed, deleted and consumed over gRPC only"));
    }
    Ok(Names::existing(stream, group)?)
}

impl Asked<'_> {
    async fn answer(
        &self,
        route: Route,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<Response<Body>, Refused> {
        match route {
            Route::List => self.list(None).await,
            Route::ListOf(stream) => self.list(Some(&stream)).await,
            Route::Restart => {
                self.subscriptions.restart(&self.caller).await?;
                Ok(json_answer(StatusCode::OK, &json!({})))
            }
            Route::Create(stream, group) => {
                let (names, settings) = (Names::new(&stream, &group)?, settings_of(body)?);
                self.change(|of, caller| async move { of.create(&caller, names, settings).await }).await?;
                let mut answer = json_answer(StatusCode::CREATED, &changed("Success"));
                let location = format!("{}{}", self.base, path_of(&stream, &group));
                if let Ok(location) = HeaderValue::try_from(location) {
                    answer.headers_mut().insert(header::LOCATION, location);
                }
                Ok(answer)
            }
            Route::Update(stream, group) => {
                let (names, settings) = (of_stream(&stream, &group)?, settings_of(body)?);
                self.change(|of, caller| async move { of.update(&caller, names, settings).await }).await?;
                Ok(json_answer(StatusCode::OK, &changed("Success")))
            }
            Route::Delete(stream, group) => {
                let names = of_stream(&stream, &group)?;
                self.change(|of, caller| async move { of.delete(&caller, names).await }).await?;
                Ok(json_answer(StatusCode::OK, &changed("Success")))
            }
            Route::Info(stream, group) => {
                let names = Names::existing(&stream, &group)?;
                let info = self.subscriptions.info(&self.caller, &names).await?;
                Ok(json_answer(StatusCode::OK, &detail(&self.base, &info)))
            }
            Route::Pull(stream, group, count) => self.pull(&stream, &group, count.as_deref(), headers).await,
            Route::Answer(stream, group, id, refuses) => {
                let names = of_stream(&stream, &group)?;
                self.settle(names, id.as_deref(), refuses).await
            }
            Route::Replay(stream, group) => self.parked(&stream, &group, Work::Replay).await,
            Route::Truncate(stream, group) => self.parked(&stream, &group, Work::Discard).await,
            Route::ViewParked(stream, group, from, forward, count) => {
                self.view_parked(&stream, &group, &from, forward, &count).await
            }
        }
    }

    /// Carries a change out to its end, also if the client has gone meanwhile.
    async fn change<F>(&self, change: impl FnOnce(Arc<Subscriptions>, Caller) -> F) -> Result<(), Refusal>
    where
        F: Future<Output = Result<(), Refusal>> + Send + 'static,
    {
        let changed = tokio::spawn(change(self.subscriptions.clone(), self.caller.clone())).await;
        changed.unwrap_or(Err(Refusal::Call(CallError::Unknown)))
    }

    async fn list(&self, stream: Option<&str>) -> Result<Response<Body>, Refused> {
        let listed = self.subscriptions.list(&self.caller, stream).await?;
        if stream.is_some() && listed.is_empty() {
            return Err(Refusal::Missing.into());
        }
        let (offset, count) = (self.query.number("offset")?, self.query.number("count")?);
        let summaries =
            |some: &[Info]| -> Vec<Value> { some.iter().map(|info| summary(&self.base, info)).collect() };
        if offset.is_none() && count.is_none() {
            return Ok(json_answer(StatusCode::OK, &json!(summaries(&listed))));
        }
        let Some(count) = count.filter(|count| *count >= 1) else {
            return Err(bad("count must be at least 1, and given together with offset"));
        };
        let (offset, count) = (offset.unwrap_or(0).max(0) as usize, count as usize);
        let page = &listed[offset.min(listed.len())..offset.saturating_add(count).min(listed.len())];
        let page = json!({
            "links": [link(&format!("{}/subscriptions?offset={offset}&count={count}", self.base), "self")],
            "offset": offset,
            "count": count,
            "total": listed.len(),
            "subscriptions": summaries(page),
        });
        Ok(json_answer(StatusCode::OK, &page))
    }

    async fn parked(&self, stream: &str, group: &str, work: Work) -> Result<Response<Body>, Refused> {
        let names = Names::existing(stream, group)?;
        let stop_at = self.query.number("stopAt")?;
        self.subscriptions.parked(&self.caller, names, work, stop_at).await?;
        Ok(json_answer(StatusCode::OK, &changed("Success")))
    }

    async fn pull(
        &self,
        stream: &str,
        group: &str,
        count: Option<&str>,
        headers: &HeaderMap,
    ) -> Result<Response<Body>, Refused> {
        let names = of_stream(stream, group)?;
        if !takes_competing(headers) {
            let message = format!("events are pulled as {COMPETING}");
            return Err(Refused(StatusCode::NOT_ACCEPTABLE, message));
        }
        let max = match count.map(str::parse::<u32>) {
            None => 1,
            Some(Ok(max)) if (1..=PULL_MAX).contains(&max) => max,
            Some(_) => {
                let value = count.unwrap_or_default();
                return Err(bad(format!("count must be between 1 and {PULL_MAX}. value=`{value}`")));
            }
        };
        let embed = Embed::of(self.query.get("embed"))?;
        let bytes = Some(PULL_BYTES_MAX);
        let request = Receive { consumer: PULLER.to_owned(), max, bytes, ..Receive::default() };
        let received = self.caller.receive(names.stream.clone(), names.group.clone(), request).await?;
        let clock = self.caller.broker().clock();
        let now = clock.now();
        let calls = self.subscriptions.calls.of(&names);
        let mut entries = Vec::new();
        let mut ids = Vec::new();
        for (receipt, message) in received.take() {
            let stored = stored(&names, &message);
            let id = stored
                .id()
                .map_err(|status| Refused(StatusCode::INTERNAL_SERVER_ERROR, status.message().to_owned()))?;
            let held = HeldEvent {
                seq: message.lease.seq,
                proof: Proof::Receipt(receipt),
                deadline: message.deadline,
                sent: now,
                call: None,
            };
            calls.sent(now, id.0, held);
            entries.push(self.entry(&names, id, &message, embed));
            ids.push(id.to_string());
        }
        drop(calls);
        self.subscriptions.calls.tidy(&names);
        let own = format!("{}{}", self.base, path_of(stream, group));
        let mut links = Vec::new();
        if !ids.is_empty() {
            links.push(atom_link(&format!("{own}/ack?ids={}", ids.join(",")), "ackAll"));
            links.push(atom_link(&format!("{own}/nack?ids={}", ids.join(",")), "nackAll"));
        }
        links.push(atom_link(&format!("{own}/{max}?embed={}", embed.name()), "previous"));
        links.push(atom_link(&own, "self"));
        let feed = json!({
            "title": format!("Persistent Subscription {group} on {stream}"),
            "id": own,
            "updated": time(clock.date()),
            "author": { "name": "EventStore" },
            "headOfStream": false,
            "links": links,
            "entries": entries,
        });
        let mut answer = json_answer(StatusCode::OK, &feed);
        answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(COMPETING));
        Ok(answer)
    }

    /// One pulled event, with the addresses that answer for it.
    fn entry(&self, names: &Names, id: EventId, message: &Delivered, embed: Embed) -> Value {
        let (stream, group) = (names.stream.as_str(), names.group.as_str());
        let mut entry = self.event(&stored(names, message), stream, embed);
        let own = format!("{}{}", self.base, path_of(stream, group));
        if let Some(links) = entry.get_mut("links").and_then(Value::as_array_mut) {
            links.push(atom_link(&format!("{own}/ack/{id}"), "ack"));
            links.push(atom_link(&format!("{own}/nack/{id}"), "nack"));
        }
        if embed != Embed::None {
            entry["retryCount"] = json!(message.attempt.0.saturating_sub(1));
        }
        entry
    }

    /// An event in Atom's JSON form.
    fn event(&self, stored: &Stored<'_>, stream: &str, embed: Embed) -> Value {
        let revision = places::revision(stored.seq).unwrap_or_default();
        let event = stored.recorded(Form::Text).ok();
        let kind = event.as_ref().and_then(|event| MetadataEntry::find(&event.metadata, "type"));
        let kind = kind.unwrap_or_default().to_owned();
        let at = format!("{}/streams/{}/{revision}", self.base, segment(stream));
        let mut entry = json!({
            "title": format!("{revision}@{stream}"),
            "id": at,
            "updated": time(stored.published),
            "author": { "name": "EventStore" },
            "summary": kind,
            "links": [atom_link(&at, "edit"), atom_link(&at, "alternate")],
        });
        let (Some(event), true) = (event, embed != Embed::None) else { return entry };
        let is_json = MetadataEntry::find(&event.metadata, "content-type") == Some("application/json");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let id = EventId::read(event.id.as_ref()).unwrap_or_default();
        let more = json!({
            "eventId": id.to_string(),
            "eventType": kind,
            "eventNumber": revision,
            "streamId": stream,
            "isJson": is_json,
            "isMetaData": !event.custom_metadata.is_empty(),
            "isLinkMetaData": false,
            "positionEventNumber": revision,
            "positionStreamId": stream,
        });
        merge(&mut entry, more);
        match embed {
            Embed::None | Embed::Rich => {}
            Embed::Content => {
                let data = if is_json { serde_json::from_slice(&event.data).ok() } else { None };
                merge(
                    &mut entry,
                    json!({ "content": {
                    "eventStreamId": stream,
                    "eventNumber": revision,
                    "eventType": kind,
                    "data": data.unwrap_or_else(|| Value::String(text(&event.data))),
                    "metadata": text(&event.custom_metadata),
                } }),
                );
            }
            Embed::Body => {
                merge(&mut entry, json!({ "data": text(&event.data) }));
                if !event.custom_metadata.is_empty() {
                    merge(&mut entry, json!({ "metaData": text(&event.custom_metadata) }));
                }
            }
        }
        entry
    }

    /// Acks and nacks by id. Like the ids of an answer over gRPC, those that are not known are ignored.
    async fn settle(&self, names: Names, id: Option<&str>, refuses: bool) -> Result<Response<Body>, Refused> {
        let given = match id {
            Some(id) => id,
            None => self.query.get("ids").ok_or_else(|| bad("ids must be given"))?,
        };
        let parse = |text: &str| {
            EventId::parse(text.trim()).ok_or_else(|| bad(format!("an id must be a UUID. value=`{text}`")))
        };
        let ids: Vec<EventId> = given.split(',').map(parse).collect::<Result<_, _>>()?;
        let action = match refuses {
            true => Action::named(self.query.get("action").unwrap_or_default()),
            false => Action::Ack,
        };
        // A subscription that is not there is not silently answered for.
        self.caller.check(Right::Consume, &names.stream, &names.group)?;
        self.subscriptions.own().figures(names.stream.clone(), names.group.clone()).await?;
        if let Some(calls) = self.subscriptions.calls.find(&names) {
            let settlement = action.settlement("");
            let Answered { leases, receipts } =
                calls.answered(self.caller.broker().clock().now(), ids.into_iter().map(|id| id.0));
            for (lease, call) in leases {
                if let Some(answers) = call.as_ref().and_then(|call| call.answers.as_ref()) {
                    let _ = answers.send((vec![lease], settlement.clone()));
                }
            }
            if !receipts.is_empty() {
                let Names { stream, group } = names.clone();
                self.caller.settle(stream, group, &receipts, settlement).await?;
            }
            drop(calls);
            self.subscriptions.calls.tidy(&names);
        }
        Ok(text(StatusCode::ACCEPTED, ""))
    }

    async fn view_parked(
        &self,
        stream: &str,
        group: &str,
        from: &str,
        forward: bool,
        count: &str,
    ) -> Result<Response<Body>, Refused> {
        let names = Names::existing(stream, group)?;
        self.caller.figures(names.stream.clone(), names.group.clone()).await?;
        let count: usize = match count.parse() {
            Ok(count @ 1..=1_000) => count,
            _ => return Err(bad(format!("count must be between 1 and 1000. value=`{count}`"))),
        };
        let from = match from {
            "head" => u64::MAX,
            number => number
                .parse()
                .map_err(|_| bad(format!("event must be a number or `head`. value=`{number}`")))?,
        };
        let name = parked::name(stream, group);
        let embed = Embed::of(self.query.get("embed"))?;
        let mut entries = Vec::new();
        if let Some(mut parked) = ParkedStream::open(&self.caller, &name).await? {
            let found = match forward {
                false => parked.backwards(from, count).await?,
                true => parked.forwards(from, count).await?,
            };
            for entry in found {
                let Some(message) = &entry.report.message else { continue };
                let stored = Stored::found(&entry.stream, message);
                let mut shown = self.event(&stored, entry.stream.as_str(), embed);
                if embed != Embed::None {
                    shown["positionEventNumber"] = json!(entry.revision);
                    shown["positionStreamId"] = json!(name);
                    shown["linkMetaData"] = json!(entry.metadata);
                    shown["isLinkMetaData"] = json!(true);
                }
                entries.push(shown);
            }
        }
        let own = format!("{}/streams/{}", self.base, segment(&name));
        let feed = json!({
            "title": format!("Event stream '{name}'"),
            "id": own,
            "updated": time(self.caller.broker().clock().date()),
            "streamId": name,
            "author": { "name": "EventStore" },
            "headOfStream": from == u64::MAX,
            "selfUrl": own,
            "links": [atom_link(&own, "self")],
            "entries": entries,
        });
        let mut answer = json_answer(StatusCode::OK, &feed);
        let atom = HeaderValue::from_static("application/vnd.eventstore.atom+json");
        answer.headers_mut().insert(header::CONTENT_TYPE, atom);
        Ok(answer)
    }
}

fn stored<'a>(names: &'a Names, message: &'a Delivered) -> Stored<'a> {
    Stored {
        stream: &names.stream,
        seq: message.lease.seq,
        ordinal: message.ordinal,
        published: message.published,
        content: &message.content,
    }
}

/// How much of an event an entry has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Embed {
    None,
    Content,
    Rich,
    Body,
}

impl Embed {
    fn of(name: Option<&str>) -> Result<Embed, Refused> {
        match name.map(str::to_ascii_lowercase).as_deref() {
            None | Some("none") => Ok(Embed::None),
            Some("content") => Ok(Embed::Content),
            Some("rich") => Ok(Embed::Rich),
            Some("body" | "prettybody" | "tryharder") => Ok(Embed::Body),
            Some(name) => Err(bad(format!(
                "embed must be one of None, Content, Rich, Body, PrettyBody, TryHarder. value=`{name}`"
            ))),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Embed::None => "None",
            Embed::Content => "Content",
            Embed::Rich => "Rich",
            Embed::Body => "Body",
        }
    }
}

fn segment(name: &str) -> String {
    utf8_percent_encode(name, SEGMENT).to_string()
}

fn path_of(stream: &str, group: &str) -> String {
    format!("/subscriptions/{}/{}", segment(stream), segment(group))
}

/// A date.
fn time(at: Timestamp) -> String {
    forebay_model::text::Time(at.0).to_string()
}

/// Whether a client takes pulled events in the form that there is.
fn takes_competing(headers: &HeaderMap) -> bool {
    let mut accepted =
        headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).peekable();
    if accepted.peek().is_none() {
        return true;
    }
    let types = accepted.flat_map(|value| value.split(','));
    let mut names = types.map(|one| one.split(';').next().unwrap_or_default().trim().to_ascii_lowercase());
    names.any(|name| matches!(name.as_str(), COMPETING | "application/json" | "application/*" | "*/*"))
}

/// The parameters of an address.
struct Query(Vec<(String, String)>);

impl Query {
    fn of(query: &str) -> Query {
        let decode =
            |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        Query(
            pairs
                .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
                .map(|(k, v)| (decode(k), decode(v)))
                .collect(),
        )
    }

    /// Names are taken without regard to case.
    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    fn number(&self, name: &str) -> Result<Option<i64>, Refused> {
        let parse = |text: &str| {
            text.parse().map_err(|_| bad(format!("{name} must be a whole number. value=`{text}`")))
        };
        self.get(name).map(parse).transpose()
    }
}

fn json_answer(status: StatusCode, value: &Value) -> Response<Body> {
    let mut answer = Response::new(Body::from(value.to_string()));
    *answer.status_mut() = status;
    let json = HeaderValue::from_static("application/json; charset=utf-8");
    answer.headers_mut().insert(header::CONTENT_TYPE, json);
    answer
}

fn text(status: StatusCode, message: &str) -> Response<Body> {
    super::super::http::text(status, message)
}

/// What tests of the whole use.
#[cfg(test)]
pub(crate) mod test {
    use super::*;

    /// How many names requests are counted under.
    pub(crate) const ROUTES: usize = 12;
    /// The address by which the server is called.
    pub(in super::super) const BASE: &str = "https://events.example:2113";

    pub(crate) fn route_name(method: &Method, path: &str) -> Option<&'static str> {
        Route::of(method, path).ok().map(|route| route.name())
    }

    pub(in super::super) async fn answer(
        subscriptions: &Arc<Subscriptions>,
        caller: Caller,
        method: &Method,
        address: &str,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Response<Body> {
        let (path, query) = address.split_once('?').unwrap_or((address, ""));
        let base = BASE.to_owned();
        super::answer(subscriptions, caller, Ask { method, path, query, headers, base }, body).await.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_told_apart() {
        let route = |method: Method, path: &str| Route::of(&method, path);
        let (s, g) = (|| "a b".to_owned(), || "g".to_owned());
        assert_eq!(route(Method::GET, "/subscriptions"), Ok(Route::List));
        assert_eq!(route(Method::GET, "/subscriptions/a%20b"), Ok(Route::ListOf(s())));
        assert_eq!(route(Method::PUT, "/subscriptions/a%20b/g"), Ok(Route::Create(s(), g())));
        assert_eq!(route(Method::GET, "/subscriptions/a%20b/g/info"), Ok(Route::Info(s(), g())));
        let pull = Route::Pull(s(), g(), Some("20".to_owned()));
        assert_eq!(route(Method::GET, "/subscriptions/a%20b/g/20"), Ok(pull));
        let nack = Route::Answer(s(), g(), Some("x".to_owned()), true);
        assert_eq!(route(Method::POST, "/subscriptions/a%20b/g/nack/x"), Ok(nack));
        assert_eq!(route(Method::POST, "/subscriptions/restart"), Ok(Route::Restart));
        let view = Route::ViewParked(s(), g(), "head".to_owned(), false, "5".to_owned());
        assert_eq!(route(Method::GET, "/subscriptions/viewparkedmessages/a%20b/g/head/backward/5"), Ok(view));
        assert_eq!(route(Method::PATCH, "/subscriptions/s/g"), Err("GET, PUT, POST, DELETE"));
        assert_eq!(route(Method::GET, "/subscriptions/s/g/ack"), Err("POST"));
        assert_eq!(route(Method::GET, "/subscriptions/s/g/a/b/c"), Err(""));
    }

    #[test]
    fn queries_are_decoded() {
        let query = Query::of("ids=a%2Cb&Action=Park&x");
        assert_eq!(
            (query.get("ids"), query.get("action"), query.get("x")),
            (Some("a,b"), Some("Park"), Some(""))
        );
        assert!(query.number("ids").is_err());
        assert!(matches!(Query::of("").number("stopAt"), Ok(None)));
    }

    #[test]
    fn a_client_that_wants_xml_is_told() {
        let headers = |accept: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
            headers
        };
        assert!(takes_competing(&HeaderMap::new()));
        assert!(takes_competing(&headers("text/html, */*;q=0.1")));
        assert!(takes_competing(&headers(COMPETING)));
        assert!(!takes_competing(&headers("application/vnd.eventstore.competingatom+xml")));
    }
}
