//! Subscriptions as JSON, under the names that clients and dashboards of Event Store know.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::info::{At, Connection, Info};
use super::super::parked;
use super::super::settings::{ConsumerStrategy, Settings, StartFrom};
use super::{Refused, bad, path_of, segment};

/// The settings of a request. A setting that is not given has its default.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct GivenSettings {
    resolve_linktos: Option<bool>,
    start_from: Option<i64>,
    start_position: Option<String>,
    message_timeout_milliseconds: Option<i32>,
    extra_statistics: Option<bool>,
    max_retry_count: Option<i32>,
    live_buffer_size: Option<i32>,
    buffer_size: Option<i32>,
    read_batch_size: Option<i32>,
    prefer_round_robin: Option<bool>,
    check_point_after_milliseconds: Option<i32>,
    min_check_point_count: Option<i32>,
    max_check_point_count: Option<i32>,
    max_subscriber_count: Option<i32>,
    named_consumer_strategy: Option<String>,
}

/// Settings as they are shown.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownSettings {
    resolve_linktos: bool,
    start_from: i64,
    start_position: String,
    message_timeout_milliseconds: i32,
    extra_statistics: bool,
    max_retry_count: i32,
    live_buffer_size: i32,
    buffer_size: i32,
    read_batch_size: i32,
    prefer_round_robin: bool,
    check_point_after_milliseconds: i32,
    min_check_point_count: i32,
    max_check_point_count: i32,
    max_subscriber_count: i32,
    named_consumer_strategy: &'static str,
}

impl From<&Settings> for ShownSettings {
    fn from(of: &Settings) -> ShownSettings {
        ShownSettings {
            resolve_linktos: of.resolve_links,
            start_from: of.start.number(),
            start_position: of.start.number().to_string(),
            message_timeout_milliseconds: of.message_timeout_ms,
            extra_statistics: of.extra_statistics,
            max_retry_count: of.max_retry_count,
            live_buffer_size: of.live_buffer_size,
            buffer_size: of.history_buffer_size,
            read_batch_size: of.read_batch_size,
            prefer_round_robin: of.strategy == ConsumerStrategy::RoundRobin,
            check_point_after_milliseconds: of.checkpoint_after_ms,
            min_check_point_count: of.min_checkpoint_count,
            max_check_point_count: of.max_checkpoint_count,
            max_subscriber_count: of.max_subscriber_count,
            named_consumer_strategy: of.strategy.name(),
        }
    }
}

pub(super) fn settings_of(body: &[u8]) -> Result<Settings, Refused> {
    let given: GivenSettings = match body.iter().all(u8::is_ascii_whitespace) {
        true => GivenSettings::default(),
        false => serde_json::from_slice(body)
            .map_err(|error| bad(format!("the settings are not as they should be: {error}")))?,
    };
    let usual = Settings::default();
    let number = match (&given.start_position, given.start_from) {
        (Some(text), _) => Some(text.parse().map_err(|_| {
            bad(format!("startPosition must be the number of an event, or -1 for the end. value=`{text}`"))
        })?),
        (None, number) => number,
    };
    let start = match number {
        None => usual.start,
        Some(number) => StartFrom::of_number(number)
            .ok_or_else(|| bad(format!("startFrom must be at least -1. value=`{number}`")))?,
    };
    let strategy = match (given.named_consumer_strategy.as_deref(), given.prefer_round_robin) {
        (Some(name), _) if !name.is_empty() => {
            ConsumerStrategy::named(name).map_err(|invalid| bad(invalid.0))?
        }
        (_, Some(false)) => ConsumerStrategy::DispatchToSingle,
        _ => ConsumerStrategy::RoundRobin,
    };
    let positive = [
        ("bufferSize", given.buffer_size),
        ("liveBufferSize", given.live_buffer_size),
        ("readBatchSize", given.read_batch_size),
    ];
    for (name, value) in positive {
        if let Some(value) = value.filter(|value| *value < 1) {
            return Err(bad(format!("{name} must be at least 1. value=`{value}`")));
        }
    }
    Ok(Settings {
        start,
        resolve_links: given.resolve_linktos.unwrap_or(usual.resolve_links),
        extra_statistics: given.extra_statistics.unwrap_or(usual.extra_statistics),
        message_timeout_ms: given.message_timeout_milliseconds.unwrap_or(usual.message_timeout_ms),
        max_retry_count: given.max_retry_count.unwrap_or(usual.max_retry_count),
        live_buffer_size: given.live_buffer_size.unwrap_or(usual.live_buffer_size),
        history_buffer_size: given.buffer_size.unwrap_or(usual.history_buffer_size),
        read_batch_size: given.read_batch_size.unwrap_or(usual.read_batch_size),
        checkpoint_after_ms: given.check_point_after_milliseconds.unwrap_or(usual.checkpoint_after_ms),
        min_checkpoint_count: given.min_check_point_count.unwrap_or(usual.min_checkpoint_count),
        max_checkpoint_count: given.max_check_point_count.unwrap_or(usual.max_checkpoint_count),
        max_subscriber_count: given.max_subscriber_count.unwrap_or(usual.max_subscriber_count),
        strategy,
    })
}

/// A subscription in a list.
pub(super) fn summary(base: &str, info: &Info) -> Value {
    let own = format!("{base}{}", path_of(&info.stream, &info.group));
    let mut summary = common(base, info);
    merge(
        &mut summary,
        json!({
            "links": [link(&format!("{own}/info"), "detail")],
            "connectionCount": info.connections.len(),
        }),
    );
    summary
}

/// A subscription with everything that is known of it.
pub(super) fn detail(base: &str, info: &Info) -> Value {
    let own = format!("{base}{}", path_of(&info.stream, &info.group));
    let mut detail = common(base, info);
    let connections: Vec<Value> = info.connections.iter().map(connection).collect();
    merge(
        &mut detail,
        json!({
            "links": [link(&format!("{own}/info"), "detail"), link(&format!("{own}/replayParked"), "replayParked")],
            "config": ShownSettings { start_position: info.start_from.clone(), ..(&info.settings).into() },
            "countSinceLastMeasurement": info.count_since_last_measurement,
            "readBufferCount": info.read_buffer_count,
            "liveBufferCount": 0,
            "retryBufferCount": info.retry_buffer_count,
            "outstandingMessagesCount": info.outstanding,
            "parkedMessageCount": info.parked,
            "connections": connections,
        }),
    );
    detail
}

/// The facts that a list and a detail have in common.
fn common(base: &str, info: &Info) -> Value {
    let own = format!("{base}{}", path_of(&info.stream, &info.group));
    let parked = parked::name(&info.stream, &info.group);
    let number = |at: Option<At>| at.map_or(-1, At::number);
    let text = |at: Option<At>| at.map(At::text);
    json!({
        "eventStreamId": info.stream,
        "groupName": info.group,
        "parkedMessageUri": format!("{base}/streams/{}", segment(&parked)),
        "getMessagesUri": format!("{own}/1"),
        "status": info.status,
        "averageItemsPerSecond": info.average_per_second,
        "totalItemsProcessed": info.total_items,
        "lastProcessedEventNumber": number(info.last_checkpointed),
        "lastCheckpointedEventPosition": text(info.last_checkpointed),
        "lastKnownEventNumber": number(info.last_known),
        "lastKnownEventPosition": text(info.last_known),
        "totalInFlightMessages": info.total_in_flight,
    })
}

fn connection(of: &Connection) -> Value {
    let measurement = |(key, value): &(&str, i64)| json!({ "key": key, "value": value });
    json!({
        "from": of.from,
        "username": of.user,
        "averageItemsPerSecond": of.average_per_second,
        "totalItemsProcessed": of.total_items,
        "countSinceLastMeasurement": of.count_since_last_measurement,
        "extraStatistics": of.measurements.iter().map(measurement).collect::<Vec<_>>(),
        "availableSlots": of.available_slots,
        "inFlightMessages": of.in_flight,
        "connectionName": of.name,
    })
}

/// The answer to a change.
pub(super) fn changed(result: &str) -> Value {
    json!({ "correlationId": "", "reason": "", "result": result, "msgTypeId": 0 })
}

pub(super) fn merge(into: &mut Value, more: Value) {
    if let (Value::Object(into), Value::Object(more)) = (into, more) {
        into.extend(more);
    }
}

/// A link of a subscription.
pub(super) fn link(href: &str, rel: &str) -> Value {
    json!({ "href": href, "rel": rel })
}

/// A link of an Atom feed in JSON.
pub(super) fn atom_link(uri: &str, relation: &str) -> Value {
    json!({ "uri": uri, "relation": relation })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_the_names_that_clients_know() {
        let given =
            br#"{"startFrom": 5, "bufferSize": 30, "readBatchSize": 10, "namedConsumerStrategy": "Pinned",
            "messageTimeoutMilliseconds": 7, "resolveLinktos": true, "checkPointAfterMilliseconds": 3}"#;
        let Ok(settings) = settings_of(given) else { panic!("they are valid") };
        assert_eq!(settings.start, StartFrom::Revision(5));
        assert_eq!((settings.history_buffer_size, settings.read_batch_size), (30, 10));
        assert_eq!((settings.message_timeout_ms, settings.checkpoint_after_ms), (7, 3));
        assert_eq!(settings.strategy, ConsumerStrategy::Pinned);
        let shown = json!(ShownSettings::from(&settings));
        let Ok(again) = settings_of(shown.to_string().as_bytes()) else {
            panic!("shown settings are accepted")
        };
        assert_eq!(again, settings);
        let Ok(usual) = settings_of(b" ") else { panic!("nothing is given") };
        assert_eq!(usual, Settings::default());
        let Ok(single) = settings_of(br#"{"preferRoundRobin": false}"#) else { panic!("an old name") };
        assert_eq!(single.strategy, ConsumerStrategy::DispatchToSingle);
    }

    #[test]
    fn refused_settings_name_the_rule() {
        let refused = |body: &str| match settings_of(body.as_bytes()) {
            Err(Refused(status, text)) => (status.as_u16(), text),
            Ok(_) => panic!("they are refused"),
        };
        assert_eq!(
            refused(r#"{"startFrom": -2}"#),
            (400, "startFrom must be at least -1. value=`-2`".to_owned())
        );
        let (_, text) = refused(r#"{"bufferSize": 0}"#);
        assert_eq!(text, "bufferSize must be at least 1. value=`0`");
        assert!(refused("[").1.starts_with("the settings are not as they should be: "));
    }
}
