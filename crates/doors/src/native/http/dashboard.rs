//! The dashboard: pages for people, at `/` and below `/ui`.
//!
//! A page is HTML that the server writes from the reports of the API; the figures on it are those of the API. Scripts
//! keep it up to date and send the calls of operators, which are calls of the HTTP API like those of any client,
//! under the same checks of origin. The text of messages, names and reasons is hostile: it is written by a template
//! that escapes it, and the content security policy allows no script or style but the files of [`assets`].
//!
//! | Module | Has |
//! | --- | --- |
//! | `sampler` | one look at the server a second, for all open pages |
//! | `history`, `keep` | figures of the past, and across restarts |
//! | `past` | the same for clients of the API |
//! | `view`, `layout` | a page that is being written, and the frame around it |
//! | `live` | updates of an open page |
//! | `chart`, `format` | pictures, and figures as text |
//! | `pages` | the pages |
//! | `sign_in` | for a server that asks for a token |
//! | `assets` | scripts and styles |

mod assets;
mod chart;
mod format;
mod history;
mod keep;
mod layout;
mod live;
mod pages;
pub(super) mod past;
mod sampler;
mod sign_in;
mod view;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::body::Body;
use axum::extract::{FromRequestParts, Path, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::map_response;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use forebay_broker::api::Principal;
use forebay_wire::problem::Kind;
use tokio::sync::watch;

use super::Door;
use super::failure::Failure;
use super::request::{Entered, Query};
use crate::native::service::Service;
use crate::telemetry::CallName;
use history::History;
use pages::Route;
use sampler::Snapshot;
use view::View;

/// Nothing comes from elsewhere, nothing is inline, and no other page may show this one in a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// The state of the dashboard.
pub(super) struct Dashboard {
    latest: watch::Sender<Option<Arc<Snapshot>>>,
    /// Locked to add a sample and to read points, never across a wait.
    history: Mutex<History>,
    is_started: AtomicBool,
    keeps_history: bool,
    rooms: live::Rooms,
}

impl Dashboard {
    pub(super) fn new(keeps_history: bool) -> Dashboard {
        Dashboard {
            latest: watch::Sender::new(None),
            history: Mutex::new(History::default()),
            is_started: AtomicBool::new(false),
            keeps_history,
            rooms: live::Rooms::default(),
        }
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time of the last snapshot, in microseconds since 1970.
    fn newest(&self) -> u64 {
        self.latest.borrow().as_ref().map_or(0, |snapshot| snapshot.at.0)
    }

    /// Begins to take snapshots, if that has not begun. A server that keeps no history waits for the first page.
    pub(super) fn start(door: &Door) {
        if door.dashboard().is_started.swap(true, Ordering::Relaxed) {
            return;
        }
        let share = door.0.broker.memory().share();
        let service = Service::new(door.0.broker.enter(Principal::owner(), None), share);
        tokio::spawn(sampler::run(door.clone(), service));
    }

    /// The last snapshot. Waits for the first one.
    async fn snapshot(door: &Door) -> Result<Arc<Snapshot>, Failure> {
        Dashboard::start(door);
        let mut latest = door.dashboard().latest.subscribe();
        let first = latest.wait_for(Option::is_some);
        let first = tokio::time::timeout(live::FIRST_SNAPSHOT, first).await;
        let stopping = || Failure::new(Kind::NotReady, "the server is stopping");
        let Ok(Ok(first)) = first else { return Err(stopping()) };
        first.clone().ok_or_else(stopping)
    }
}

/// Adds the pages to the router.
pub(super) fn mount(router: Router<Door>) -> Router<Door> {
    let name = CallName("dashboard".into());
    let named = map_response(move |mut answer: Response<Body>| {
        answer.extensions_mut().insert(name.clone());
        std::future::ready(answer)
    });
    router.merge(
        Router::new()
            .route("/ui/assets/{file}", get(asset))
            .route(sign_in::SIGN_IN, get(sign_in::show).post(sign_in::sign_in))
            .route(sign_in::SIGN_OUT, post(sign_in::sign_out))
            .route("/ui", get(page))
            .route("/ui/{*page}", get(page))
            .layer(named),
    )
}

/// Paths that need no credential: signing in and out, and the files of the pages.
pub(super) fn is_public(path: &str) -> bool {
    [sign_in::SIGN_IN, sign_in::SIGN_OUT].contains(&path) || path.starts_with("/ui/assets/")
}

/// Whether a request without a credential comes from a person who opens a page.
pub(super) fn is_for_people<B>(request: &Request<B>) -> bool {
    let path = request.uri().path();
    let is_page = path == "/" || path == "/ui" || path.starts_with("/ui/");
    let accepts = request.headers().get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    request.method() == Method::GET
        && is_page
        && accepts.is_some_and(|accept| accept.contains("text/html"))
        && !request.headers().contains_key(header::AUTHORIZATION)
}

/// The page to sign in, in place of the page at this path.
pub(super) fn asks_for_token(door: &Door, path: &str) -> Response {
    sign_in::asks(door, path, StatusCode::UNAUTHORIZED, None)
}

/// Whether a request is for a page. A link from another site may lead here, as to any site: the request is then a
/// navigation, and the page that it came from sees nothing of the answer.
pub(super) fn is_visit<B>(request: &Request<B>) -> bool {
    let path = request.uri().path();
    let says = |name: &str, value: &str| request.headers().get(name).is_some_and(|said| said == value);
    let is_page =
        path == "/" || path == "/ui" || (path.starts_with("/ui/") && !path.starts_with("/ui/assets/"));
    request.method() == Method::GET
        && is_page
        && says("sec-fetch-mode", "navigate")
        && says("sec-fetch-dest", "document")
        && request.headers().get(header::ORIGIN).is_none()
}

async fn asset(Path(file): Path<String>) -> Response {
    assets::response(&file)
        .unwrap_or_else(|| Failure::new(Kind::NoSuchPath, "there is no such file").into_response())
}

/// Any page: as HTML, or as a stream of its updates.
pub(super) async fn page(State(door): State<Door>, request: Request) -> Response {
    let (mut parts, _) = request.into_parts();
    let path = parts.uri.path().to_owned();
    let Ok(Entered(service)) = Entered::from_request_parts(&mut parts, &door).await;
    // A person who needs no credential has not signed in.
    let who = service.caller().principal();
    let who = who.may_end().then(|| who.name().to_owned());
    let visit = match Query::from_request_parts(&mut parts, &door).await {
        Ok(query) => Route::parse(&path, query).map(|route| Visit {
            door: door.clone(),
            service,
            path: path.clone(),
            address: parts.uri.path_and_query().map_or_else(|| path.clone(), ToString::to_string),
            route,
            is_update: false,
        }),
        Err(failure) => Err(failure),
    };
    let accepts = parts.headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let wants_updates = accepts.is_some_and(|accept| accept.contains("text/event-stream"));
    match visit {
        Ok(visit) if wants_updates => live::stream(visit).await.unwrap_or_else(Failure::into_response),
        Ok(visit) => match visit.write().await {
            Ok((page, view)) => html(StatusCode::OK, layout::whole(&view, &page, &door, who.as_deref())),
            Err(failure) => refused(&door, &path, &failure, who.as_deref()),
        },
        Err(failure) if wants_updates => failure.into_response(),
        Err(failure) => refused(&door, &path, &failure, who.as_deref()),
    }
}

/// One request for a page.
struct Visit {
    door: Door,
    service: Service,
    path: String,
    /// The path with its query.
    address: String,
    route: Route,
    /// Only the live parts are wanted. Lists of messages are not among them, and are not read again.
    is_update: bool,
}

impl Visit {
    /// Writes the page as it is now.
    async fn write(&self) -> Result<(view::Page, View), Failure> {
        pages::write(self).await
    }

    /// For a page that is written now.
    fn view(&self) -> View {
        View::new(&self.path, self.service.now().0)
    }

    /// The last snapshot, as far as the client may see it. The snapshot itself is taken in the name of the server.
    async fn snapshot(&self) -> Result<Arc<Snapshot>, Failure> {
        let caller = self.service.caller();
        // A client that may see nothing at all is refused.
        self.service.streams(None, Some(1)).await?;
        Ok(Dashboard::snapshot(&self.door).await?.seen_by(caller))
    }

    /// Refuses a client that may not see figures of the whole server.
    async fn sees_server(&self) -> Result<(), Failure> {
        self.service.server().await?;
        Ok(())
    }
}

fn refused(door: &Door, path: &str, failure: &Failure, who: Option<&str>) -> Response {
    let view = View::new(path, door.broker().clock().now().0);
    let problem = failure.problem();
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    html(status, layout::whole(&view, &pages::problem(&view, problem), door, who))
}

fn html(status: StatusCode, text: String) -> Response {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    let mut set = |name, value| headers.insert(name, HeaderValue::from_static(value));
    set(header::CONTENT_TYPE, "text/html; charset=utf-8");
    set(header::CONTENT_SECURITY_POLICY, POLICY);
    set(header::CACHE_CONTROL, "no-store");
    set(header::VARY, "accept");
    set(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(header::REFERRER_POLICY, "same-origin");
    response
}

#[cfg(test)]
mod tests;
