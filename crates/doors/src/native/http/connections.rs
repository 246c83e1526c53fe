//! Calls on connections.

use axum::http::StatusCode;
use forebay_broker::api::ConnectionReport;
use forebay_wire::json::{self, Time};

use super::failure::{Failure, in_query};
use super::live::Reply;
use super::request::{Entered, InPath, NoQuery, Query};

pub(super) async fn list(
    Entered(service): Entered,
    mut query: Query,
) -> Result<Reply<json::ConnectionList>, Failure> {
    let (limit, after) = (query.number("limit")?, query.text("after"));
    query.end()?;
    let page = service.connections(after.as_deref(), limit).map_err(in_query)?;
    let connections = page.items.iter().map(report).collect();
    let next = page.next.map(|next| next.to_string());
    Ok(Reply(StatusCode::OK, json::ConnectionList { connections, next }))
}

pub(super) async fn close(
    Entered(service): Entered,
    InPath(id): InPath,
    _: NoQuery,
) -> Result<StatusCode, Failure> {
    service.close_connection(&id)?;
    Ok(StatusCode::NO_CONTENT)
}

fn report(of: &ConnectionReport) -> json::Connection {
    json::Connection {
        id: of.id.to_string(),
        api: of.door.to_owned(),
        address: of.address.to_string(),
        since: Time(of.since.0),
        client: of.who.as_deref().map(str::to_owned),
        requests: of.requests,
        received_bytes: of.read,
        sent_bytes: of.written,
        consumers: of.consumers,
    }
}
