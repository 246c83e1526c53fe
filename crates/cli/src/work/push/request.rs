//! The request that a message becomes.

use anyhow::{Context as _, anyhow};
use bytes::Bytes;
use forebay_wire::json::body::Body;
use http_body_util::Full;
use hyper::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING, UPGRADE,
    USER_AGENT,
};
use hyper::http::uri::Scheme;
use hyper::{Method, Request, Uri};

use crate::exit::Exit;
use crate::safe::printable;
use crate::work::task::Task;

/// The size limit of a file of headers.
const FILE_BYTES_MAX: u64 = 64 << 10;
const AGENT: HeaderValue = HeaderValue::from_static(concat!("forebay/", env!("CARGO_PKG_VERSION")));
/// The name of a message's header follows this.
const HEADER: &str = "forebay-header-";
/// Of a message's headers, so many go with it. Few servers take as many.
const HEADERS_MAX: usize = 1_000;
/// Headers of a trace go by their own names, so that the receiving service continues it.
const TRACE: [&str; 2] = ["traceparent", "tracestate"];

/// Where messages go: a URL with a host, and no password in it, which any list of processes would show.
pub(in crate::work) fn target(text: &str) -> Result<Uri, String> {
    let expected = "expected an address such as https://example.com/hook";
    let uri: Uri = text.parse().map_err(|_| expected.to_owned())?;
    let known = uri.scheme() == Some(&Scheme::HTTP) || uri.scheme() == Some(&Scheme::HTTPS);
    let authority = uri.authority().filter(|authority| known && !authority.host().is_empty());
    let authority = authority.ok_or_else(|| expected.to_owned())?;
    if authority.as_str().contains('@') {
        return Err(
            "an address with a password in it is refused; --header @FILE takes an Authorization".to_owned()
        );
    }
    Ok(uri)
}

/// Headers that go with every request, as the command line has them.
#[derive(Debug, Clone, Default)]
pub(in crate::work) struct Headers(pub(super) HeaderMap);

impl Headers {
    /// Each is `NAME: VALUE`, or `@FILE` with one on each line.
    pub(in crate::work) fn read(given: &[String]) -> anyhow::Result<Headers> {
        let mut headers = HeaderMap::new();
        for text in given {
            match text.strip_prefix('@') {
                None => add(&mut headers, text).map_err(|why| not_understood(&why))?,
                Some(path) => {
                    let content = read_file(path)?;
                    for (number, line) in
                        (1..).zip(content.lines()).filter(|(_, line)| !line.trim().is_empty())
                    {
                        let wrong =
                            |why: String| not_understood(&format!("{why}. file=`{path}` line=`{number}`"));
                        add(&mut headers, line).map_err(wrong)?;
                    }
                }
            }
        }
        Ok(Headers(headers))
    }

    pub(super) fn request(&self, target: &Uri, task: &Task<'_>) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(task.body.clone()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = target.clone();
        let headers = request.headers_mut();
        fields(task, headers);
        for name in self.0.keys() {
            headers.remove(name);
        }
        headers.extend(self.0.iter().map(|(name, value)| (name.clone(), value.clone())));
        request
    }
}

fn not_understood(why: &str) -> anyhow::Error {
    anyhow!(Exit::NotUnderstood).context(format!("--header cannot be understood: {}", printable(why)))
}

fn read_file(path: &str) -> anyhow::Result<String> {
    use std::io::Read as _;
    let mut text = String::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text))
        .context(Exit::NotUnderstood)
        .with_context(|| format!("cannot read the headers in {}", printable(path)))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(not_understood(&format!("the file is too large. file=`{path}`")));
    }
    Ok(text)
}

/// The error does not repeat the value, which may be a secret.
fn add(headers: &mut HeaderMap, text: &str) -> Result<(), String> {
    let (name, value) = text.split_once(':').ok_or("expected NAME: VALUE, or @FILE with one on each line")?;
    let name: HeaderName = name
        .trim()
        .parse()
        .map_err(|_| format!("the name of a header is invalid. name=`{}`", name.trim()))?;
    if [CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING, UPGRADE].contains(&name) {
        return Err(format!("this header belongs to the connection. name=`{name}`"));
    }
    let mut value = HeaderValue::from_str(value.trim())
        .map_err(|_| format!("the value has characters that no header may have. name=`{name}`"))?;
    value.set_sensitive(true);
    headers.append(name, value);
    Ok(())
}

/// All properties of a message as headers. A value that cannot stand in a header is left out.
fn fields(task: &Task<'_>, headers: &mut HeaderMap) {
    let mut set = |name: &'static str, text: Option<&str>| {
        if let Some(value) = text.and_then(value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    };
    let of_task = format!("{}/{}/{}", task.stream, task.group, task.seq);
    set("forebay-stream", Some(task.stream));
    set("forebay-group", Some(task.group));
    set("forebay-seq", Some(&task.seq.to_string()));
    set("forebay-attempt", Some(&task.attempt.to_string()));
    set("forebay-id", task.id);
    set("forebay-key", task.key);
    set("forebay-key-base64", task.key_base64.as_deref());
    set("forebay-type", task.kind);
    set("forebay-schema", task.schema.map(|schema| schema.to_string()).as_deref());
    set("forebay-priority", Some(&task.priority.to_string()));
    set("forebay-published-at", Some(&task.published_at.to_string()));
    set("idempotency-key", Some(task.id.filter(|id| value(id).is_some()).unwrap_or(&of_task)));
    for name in TRACE {
        set(name, task.header(name));
    }
    headers.insert(USER_AGENT, AGENT);
    headers.insert(CONTENT_TYPE, content_type(task));
    for (name, text) in task.headers.iter().take(HEADERS_MAX) {
        let name = HeaderName::try_from(format!("{HEADER}{name}")).ok().filter(|_| !name.is_empty());
        if let Some((name, value)) = name.zip(value(text)) {
            headers.append(name, value);
        }
    }
}

fn value(text: &str) -> Option<HeaderValue> {
    HeaderValue::from_bytes(text.as_bytes()).ok()
}

/// The content type of the message, or else its header of that name, or else as the API shows the body.
fn content_type(task: &Task<'_>) -> HeaderValue {
    let given = task.content_type.or(task.header("content-type").filter(|given| !given.is_empty()));
    if let Some(given) = given.and_then(value) {
        return given;
    }
    let shown = Body::of(Some(task.body), "");
    HeaderValue::from_static(match (shown.body, shown.body_text) {
        (Some(_), _) => "application/json",
        (None, Some(_)) => "text/plain; charset=utf-8",
        (None, None) => "application/octet-stream",
    })
}
