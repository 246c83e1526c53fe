//! The native API over HTTP, as the commands of operators use it: one connection, JSON both ways, and
//! problems as errors that a person can read. [`Connection`] is plain HTTP, for other APIs.

mod connection;

use std::fmt;

use anyhow::{Context as _, anyhow};
use bytes::Bytes;
use forebay_wire::problem::{Kind, Problem, Retry};
use http_body_util::Full;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::commands::pairs::flat;
use crate::connect::{Server, runtime, unreachable};
use crate::exit::Exit;
use crate::failure::NO_TOKEN;
use crate::print::{Output, print};
use crate::safe::{printable, printable_bytes};
use crate::units;

pub(crate) use self::connection::Connection;

/// How much is shown of an answer that is not a problem document.
const SHOWN_BYTES_MAX: usize = 200;
/// What a person does who gave the name of a group, or of a stream, that is not there.
pub(crate) const GROUPS_LISTED: &str = "`forebay group list` lists the groups";
const STREAMS_LISTED: &str = "`forebay stream list` lists the streams";
/// Items of a page.
const PAGE: u64 = 500;

/// The native API on one connection.
pub(crate) struct Http {
    /// Host and port.
    address: String,
    connection: Connection,
    /// The value of the header that authenticates each request.
    authorization: Option<HeaderValue>,
}

/// A successful answer.
pub(crate) struct Reply {
    pub(crate) status: u16,
    bytes: Bytes,
}

impl Reply {
    pub(crate) fn read<T: DeserializeOwned>(&self) -> anyhow::Result<T> {
        serde_json::from_slice(&self.bytes).context("the server's answer cannot be understood")
    }

    /// The answer as it came.
    pub(crate) fn print(&self) -> anyhow::Result<()> {
        let text = std::str::from_utf8(&self.bytes).context("the server's answer is not text")?.trim();
        print(&format!("{}\n", if text.is_empty() { "{}" } else { text }))
    }
}

/// The server refused, and why.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) problem: Problem,
    /// The document as it came.
    pub(crate) document: String,
    /// What a person can do about it, as a sentence. Programs are not told.
    pub(crate) advice: Option<String>,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let problem = &self.problem;
        let detail = if problem.detail.is_empty() { &problem.title } else { &problem.detail };
        write!(f, "{}", printable(detail).trim_end_matches('.'))?;
        if let Some(field) = problem.field.as_deref().filter(|field| !detail.contains(*field)) {
            write!(f, ". field=`{}`", printable(field))?;
        }
        match (problem.retry, problem.retry_after) {
            (Retry::Never, _) => Ok(()),
            (Retry::Later, Some(after)) => write!(f, ". Try again in {}", units::age(after)),
            (Retry::Later, None) => f.write_str(". Try again later"),
            (Retry::SameId, _) => f.write_str(". The outcome is unknown; it is safe to repeat"),
        }?;
        self.advice.as_ref().map_or(Ok(()), |advice| write!(f, ". {advice}"))
    }
}

impl std::error::Error for Refused {}

impl Refused {
    fn exit(&self) -> Exit {
        match (self.problem.retry, self.problem.status) {
            (Retry::Later, _) => Exit::Later,
            (Retry::SameId, _) => Exit::Unknown,
            (Retry::Never, 404) => Exit::NotFound,
            (Retry::Never, 401 | 403) => Exit::Denied,
            (Retry::Never, 409 | 412) => Exit::Conflict,
            (Retry::Never, _) => Exit::NotUnderstood,
        }
    }
}

impl Http {
    /// Connects to the first address that answers.
    pub(crate) async fn connect(server: &Server) -> anyhow::Result<Http> {
        let place = server.place()?;
        let authorization = place.token.as_ref().map(|token| {
            let mut value =
                HeaderValue::try_from(format!("Bearer {}", token.0)).expect("a token is visible ASCII");
            value.set_sensitive(true);
            value
        });
        let mut failed = None;
        for of in &place.addresses {
            let address = of.authority.clone();
            match Connection::open_over(&address, place.tls(of)?).await {
                Ok(connection) => return Ok(Http { address, connection, authorization }),
                Err(error) => failed.get_or_insert(unreachable(&address, error.as_ref())),
            };
        }
        Err(failed.unwrap_or_else(|| anyhow!("there is no address")))
    }

    /// Host and port of the server.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) async fn get(&mut self, path: &str) -> anyhow::Result<Reply> {
        self.call(Method::GET, path, Bytes::new()).await
    }

    pub(crate) async fn send(
        &mut self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> anyhow::Result<Reply> {
        let body = serde_json::to_vec(body).context("the request cannot be written")?;
        self.call(method, path, body.into()).await
    }

    pub(crate) async fn call(&mut self, method: Method, path: &str, body: Bytes) -> anyhow::Result<Reply> {
        let mut request = Request::builder().method(method).uri(path).header(HOST, &self.address);
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let request = request.body(Full::new(body)).context(Exit::NotUnderstood)?;
        let (status, bytes) = self.connection.exchange(request).await?;
        if (200..300).contains(&status) {
            return Ok(Reply { status, bytes });
        }
        Err(refused(&self.address, status, &bytes, self.authorization.is_some()))
    }

    /// Everything that a list holds, page by page, up to its limit.
    pub(crate) async fn list(&mut self, of: &Listing<'_>) -> anyhow::Result<List> {
        let mut list = List { field: of.field, items: Vec::new(), next: of.from.map(ToOwned::to_owned) };
        loop {
            let wanted = of.limit.map_or(PAGE, |limit| PAGE.min(limit - list.items.len() as u64));
            let mut query = of.query.clone();
            query.add("limit", Some(wanted));
            query.add(of.cursor, list.next.as_deref());
            let reply = self.get(&format!("{}{query}", of.path)).await?;
            let page: Page = reply.read()?;
            list.next = page.next();
            let items = page.items(of.field).context("the server's answer cannot be understood")?;
            let came = items.len();
            list.items.extend(items);
            let enough = of.limit.is_some_and(|limit| list.items.len() as u64 >= limit);
            if list.next.is_none() || enough || came == 0 {
                return Ok(list);
            }
        }
    }
}

/// A page of a list, with its items as they came.
#[derive(serde::Deserialize)]
#[serde(transparent)]
struct Page(std::collections::BTreeMap<String, Box<RawValue>>);

impl Page {
    fn items(&self, field: &str) -> Option<Vec<Box<RawValue>>> {
        serde_json::from_str(self.0.get(field)?.get()).ok()
    }

    fn next(&self) -> Option<String> {
        serde_json::from_str(self.0.get("next")?.get()).ok()
    }
}

/// What to list.
pub(crate) struct Listing<'a> {
    pub(crate) path: &'a str,
    pub(crate) query: Query,
    /// What the items are called.
    pub(crate) field: &'static str,
    /// The parameter with which a list goes on, and where to begin.
    pub(crate) cursor: &'static str,
    pub(crate) from: Option<&'a str>,
    pub(crate) limit: Option<u64>,
}

/// Items as they came, and where the next ones begin if there are more.
pub(crate) struct List {
    field: &'static str,
    items: Vec<Box<RawValue>>,
    pub(crate) next: Option<String>,
}

impl List {
    pub(crate) fn read<T: DeserializeOwned>(&self) -> anyhow::Result<Vec<T>> {
        let items = self.items.iter().map(|item| serde_json::from_str(item.get()));
        items.collect::<Result<_, _>>().context("the server's answer cannot be understood")
    }

    /// As in the API, in one object.
    pub(crate) fn print(&self) -> anyhow::Result<()> {
        let next = serde_json::Value::from(self.next.clone());
        print(&format!("{{\"{}\":{},\"next\":{next}}}\n", self.field, self.array()))
    }

    /// The items as they came.
    pub(crate) fn array(&self) -> String {
        let items: Vec<&str> = self.items.iter().map(|item| item.get()).collect();
        format!("[{}]", items.join(","))
    }
}

fn refused(address: &str, status: u16, bytes: &[u8], has_token: bool) -> anyhow::Error {
    match serde_json::from_slice::<Problem>(bytes) {
        Ok(mut problem) => {
            let mut document = String::from_utf8_lossy(bytes).trim().to_owned();
            // The server speaks of headers, which the commands send by themselves.
            if problem.status == 401 && !has_token {
                problem.detail = NO_TOKEN.to_owned();
                document = serde_json::to_string(&problem).unwrap_or(document);
            }
            let advice = match problem.kind() {
                Some(Kind::NoSuchGroup) => Some(GROUPS_LISTED.to_owned()),
                Some(Kind::NoSuchStream) => Some(STREAMS_LISTED.to_owned()),
                _ => None,
            };
            let refused = Refused { problem, document, advice };
            let exit = refused.exit();
            anyhow!(refused).context(exit)
        }
        Err(_) => {
            let shown = printable_bytes(&bytes[..bytes.len().min(SHOWN_BYTES_MAX)]);
            anyhow!(
                "the server at {} is not the HTTP API of Forebay, which is on port 7070 unless `listen` says \
                 otherwise. status=`{status}` answer=`{}`",
                printable(address),
                shown.trim_end_matches("\\n")
            )
        }
    }
}

/// Parameters of a request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Query(String);

impl Query {
    /// Adds a parameter, if there is a value.
    pub(crate) fn add(&mut self, name: &str, value: Option<impl fmt::Display>) {
        if let Some(value) = value {
            let mark = if self.0.is_empty() { '?' } else { '&' };
            self.0.push_str(&format!("{mark}{name}={}", encoded(&value.to_string())));
        }
    }
}

impl fmt::Display for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Text as it stands in a path or a parameter.
pub(crate) fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// The error of a call that creates a stream or group which exists with another value of a setting, with the command
/// that changes the setting. `set` is this command without the setting; `settings` are those that were asked for.
pub(crate) fn changeable(
    error: anyhow::Error,
    set: &str,
    settings: &serde_json::Map<String, serde_json::Value>,
) -> anyhow::Error {
    let mut error = error;
    if let Some(refused) = error.downcast_mut::<Refused>()
        && refused.problem.kind() == Some(Kind::SettingsDiffer)
        && let Some(field) = refused.problem.field.as_deref().filter(|field| !field.starts_with("start"))
        && let Some((name, value)) = flat(settings).into_iter().find(|(name, _)| name == field)
    {
        refused.advice = Some(format!("`{set} {name}={}` changes it", printable(&value)));
    }
    error
}

/// Connects, and runs the given work.
pub(crate) fn with<T>(
    server: &Server,
    work: impl AsyncFnOnce(&mut Http) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    runtime()?.block_on(async {
        let mut http = Http::connect(server).await?;
        work(&mut http).await
    })
}

/// Prints an answer as it came, or lets a person read it.
pub(crate) fn show<T: DeserializeOwned>(
    reply: &Reply,
    output: Output,
    tell: impl FnOnce(&T) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    match output {
        Output::Json => reply.print(),
        Output::Text => tell(&reply.read()?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_what_they_are_in_a_path() {
        assert_eq!(encoded("emails"), "emails");
        assert_eq!(encoded("a/b c?ü%"), "a%2Fb%20c%3F%C3%BC%25");
        let mut query = Query::default();
        query.add("from", Some(7));
        query.add("key", None::<&str>);
        query.add("type", Some("a&b"));
        assert_eq!(query.to_string(), "?from=7&type=a%26b");
    }

    #[test]
    fn a_problem_becomes_one_line_and_a_code() {
        let said = |document: &str, status: u16| {
            let error = refused("127.0.0.1:7070", status, document.as_bytes(), false);
            let code = error.downcast_ref::<Exit>().copied();
            (crate::exit::text(&error), code)
        };
        let (text, code) = said(
            r#"{"type":"/problems/too-fast","title":"t","status":429,"detail":"too\u001b fast.","retry":"later",
                "retry_after":1.5}"#,
            429,
        );
        assert_eq!((&*text, code), (r"too\x1b fast. Try again in 1.5s", Some(Exit::Later)));
        let (text, code) = said(
            r#"{"type":"/problems/no-such-stream","title":"t","status":404,"detail":"no such stream","retry":"never"}"#,
            404,
        );
        let expected = "no such stream. `forebay stream list` lists the streams";
        assert_eq!((&*text, code), (expected, Some(Exit::NotFound)));
        let document = r#"{"type":"/problems/unauthenticated","title":"t","status":401,
            "detail":"send `Authorization: Bearer TOKEN`","retry":"never"}"#;
        assert_eq!(said(document, 401), (NO_TOKEN.to_owned(), Some(Exit::Denied)));
        let with_token = refused("127.0.0.1:7070", 401, document.as_bytes(), true);
        assert!(crate::exit::text(&with_token).starts_with("send"), "the server's own sentence");
        let (text, code) = said("<html>\u{1b}", 502);
        assert!(text.contains("502") && text.contains(r"<html>\x1b"), "{text}");
        assert_eq!(code, None);
    }
}
