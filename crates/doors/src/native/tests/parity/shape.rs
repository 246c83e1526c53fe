//! Replies of gRPC as HTTP would write them. Every message is taken apart field by field, so that a new field of the
//! protocol does not compile here before it has its counterpart.

use std::time::Duration;

use forebay_broker::api::Cause;
use forebay_model::{GroupPatch, GroupSettings, StreamPatch, StreamSettings};
use forebay_wire::json::Time;
use forebay_wire::json::body::{Body, to_base64};
use forebay_wire::settings::reported;
use forebay_wire::v1;
use serde_json::{Value, json};

/// A reply over gRPC in the shape of the reply over HTTP. `Null` if the reply says nothing.
pub(super) trait Shape {
    fn shape(self) -> Value;
}

macro_rules! says_nothing {
    ($($reply:ident)*) => {
        $(impl Shape for v1::$reply {
            fn shape(self) -> Value {
                let v1::$reply {} = self;
                Value::Null
            }
        })*
    };
}

says_nothing! {
    UpdateStreamReply DeleteStreamReply UpdateGroupReply DeleteGroupReply PauseGroupReply ResumeGroupReply
    CancelJobReply RevokeCredentialReply
}

impl Shape for v1::CreateCredentialReply {
    fn shape(self) -> Value {
        let v1::CreateCredentialReply { credential, secret } = self;
        json!({ "credential": self::credential(credential.expect("a credential")), "secret": secret })
    }
}

impl Shape for v1::ChangePasswordReply {
    fn shape(self) -> Value {
        let v1::ChangePasswordReply { credential, secret } = self;
        json!({ "credential": self::credential(credential.expect("a credential")), "secret": secret })
    }
}

impl Shape for v1::ListCredentialsReply {
    fn shape(self) -> Value {
        let v1::ListCredentialsReply { credentials, next } = self;
        let credentials: Vec<Value> = credentials.into_iter().map(credential).collect();
        json!({ "credentials": credentials, "next": Some(next).filter(|next| !next.is_empty()) })
    }
}

fn credential(of: v1::Credential) -> Value {
    let kind = of.kind();
    let v1::Credential {
        id,
        kind: _,
        name,
        grants,
        account,
        created_at_us,
        created_by,
        expires_at_us,
        last_used_at_us,
        limits,
        shared_limits,
    } = of;
    json!({
        "id": id,
        "kind": match kind {
            v1::CredentialKind::Unspecified => "none",
            v1::CredentialKind::Token => "token",
            v1::CredentialKind::AccessKey => "access_key",
            v1::CredentialKind::User => "user",
        },
        "name": name,
        "grants": grants,
        "account": Some(account).filter(|account| !account.is_empty()),
        "created_at": Time(created_at_us),
        "created_by": created_by,
        "expires_at": expires_at_us.map(Time),
        "last_used_at": last_used_at_us.map(Time),
        "limits": Some(limits).filter(|limits| !limits.is_empty()),
        "shared_limits": Some(shared_limits).filter(|limits| !limits.is_empty()),
    })
}

impl Shape for v1::CreateStreamReply {
    fn shape(self) -> Value {
        let v1::CreateStreamReply { created } = self;
        json!({ "created": created })
    }
}

impl Shape for v1::CreateGroupReply {
    fn shape(self) -> Value {
        let v1::CreateGroupReply { created } = self;
        json!({ "created": created })
    }
}

impl Shape for v1::StreamReport {
    fn shape(self) -> Value {
        let v1::StreamReport {
            stream,
            settings,
            created_at_us,
            first_seq,
            last_seq,
            messages,
            bytes,
            delayed,
            oldest_age_ms,
            published,
            groups,
        } = self;
        let reported: StreamPatch = reported(&settings.expect("settings"));
        // A setting that has no value is absent over gRPC and `null` over HTTP.
        let mut read = StreamSettings::default();
        reported.apply(&mut read);
        let read = StreamPatch::from(&read);
        json!({
            "stream": stream,
            "settings": read,
            "created_at": Time(created_at_us),
            "first_seq": first_seq,
            "last_seq": last_seq,
            "messages": messages,
            "bytes": bytes,
            "delayed": delayed,
            "oldest_age": oldest_age_ms.map(seconds),
            "groups": groups.len(),
            "group_names": groups,
            "rates": { "published": rates(published) },
        })
    }
}

impl Shape for v1::ListStreamsReply {
    fn shape(self) -> Value {
        let v1::ListStreamsReply { streams, next } = self;
        json!({ "streams": all(streams), "next": text(next) })
    }
}

impl Shape for v1::PurgeStreamReply {
    fn shape(self) -> Value {
        let v1::PurgeStreamReply { messages } = self;
        json!({ "purged": messages })
    }
}

impl Shape for v1::TruncateStreamReply {
    fn shape(self) -> Value {
        let v1::TruncateStreamReply { messages } = self;
        json!({ "truncated": messages })
    }
}

impl Shape for v1::ReadMessagesReply {
    fn shape(self) -> Value {
        let v1::ReadMessagesReply { messages, next, last_seq } = self;
        let next = (1..=last_seq).contains(&next).then(|| next.to_string());
        json!({ "messages": all(messages), "next": next, "last_seq": last_seq })
    }
}

impl Shape for v1::ReadLogReply {
    fn shape(self) -> Value {
        let v1::ReadLogReply { messages, next, last_log_position } = self;
        let next = (1..=last_log_position).contains(&next).then(|| next.to_string());
        json!({ "messages": all(messages), "next": next, "last_log_position": last_log_position })
    }
}

impl Shape for v1::StoredMessage {
    fn shape(self) -> Value {
        let v1::StoredMessage { seq, message, stream } = self;
        let mut value = stored(seq, message.expect("a message"));
        if !stream.is_empty() {
            value["stream"] = stream.into();
        }
        value
    }
}

fn stored(seq: u64, message: v1::Message) -> Value {
    let v1::Message { expires_at_us, log_position, .. } = message;
    let mut value = content(v1::Message { expires_at_us: 0, log_position: 0, ..message });
    value["seq"] = seq.into();
    value["log_position"] = log_position.into();
    if expires_at_us > 0 {
        value["expires_at"] = json!(Time(expires_at_us));
    }
    value
}

/// Content and terms of a message that was stored.
fn content(message: v1::Message) -> Value {
    let v1::Message {
        body,
        id,
        key,
        r#type,
        schema,
        headers,
        priority,
        delay_ms: 0,
        ttl_ms: 0,
        deliver_at_us: 0,
        published_at_us,
        expires_at_us: 0,
        log_position: 0,
        content_type,
        no_body,
        key_bytes,
        source_stream,
        source_seq,
    } = message
    else {
        panic!("a stored message has no terms of a publish: {message:?}")
    };
    let (binary, headers): (Vec<_>, Vec<_>) =
        headers.into_iter().partition(|header| !header.value_bytes.is_empty());
    let headers: serde_json::Map<String, Value> =
        headers.into_iter().map(|header| (header.name, header.value.into())).collect();
    let mut value = json!({
        "published_at": Time(published_at_us),
        "id": text(id),
        "type": text(r#type),
        "key": text(key),
        "headers": headers,
        "priority": priority,
    });
    if !source_stream.is_empty() {
        value["source"] = json!({ "stream": source_stream, "seq": source_seq });
    }
    let shown = Body::of((!no_body).then_some(&body[..]), &content_type);
    for (field, shown) in [
        ("body", shown.body.map(|body| serde_json::from_str(body.get()).expect("JSON"))),
        ("body_text", shown.body_text.map(Value::from)),
        ("body_base64", shown.body_base64.map(Value::from)),
        ("no_body", shown.no_body.then_some(true.into())),
        ("content_type", shown.content_type.map(Value::from)),
        ("key_base64", (!key_bytes.is_empty()).then(|| to_base64(&key_bytes).into())),
    ] {
        if let Some(shown) = shown {
            value[field] = shown;
        }
    }
    for header in binary {
        value["headers_base64"][header.name] = to_base64(&header.value_bytes).into();
    }
    if let Some(schema) = schema {
        value["schema"] = schema.into();
    }
    value
}

impl Shape for v1::GetGroupReply {
    fn shape(self) -> Value {
        let status = word(self.status().as_str_name());
        let v1::GetGroupReply {
            stream,
            group,
            last_known_seq,
            checkpoint_seq,
            lag,
            ready,
            waiting,
            in_flight,
            parked,
            consumers,
            status: _,
            last_processed_seq,
            last_checkpointed_seq,
            oldest_age_ms,
            moving,
            oldest_parked_age_ms,
            counters,
            stuck_key_messages,
            settings,
            throughput,
            arrivals,
            catch_up_seconds,
            processing_time,
            members,
            resting_ms,
            start,
            delayed,
        } = self;
        let start = forebay_wire::settings::start(start.as_ref());
        let mut reported: GroupPatch = reported(&settings.expect("settings"));
        reported.start = start;
        let mut read = GroupSettings::default();
        reported.apply(&mut read);
        let read = GroupPatch::from(&read);
        json!({
            "stream": stream,
            "group": group,
            "status": status,
            "settings": read,
            "last_known_seq": last_known_seq,
            "last_processed_seq": last_processed_seq,
            "last_checkpointed_seq": last_checkpointed_seq,
            "checkpoint_seq": checkpoint_seq,
            "lag": lag,
            "delayed": delayed,
            "oldest_age": oldest_age_ms.map(seconds),
            "in_flight": in_flight,
            "ready": ready,
            "waiting": waiting,
            "parked": parked,
            "oldest_parked_age": oldest_parked_age_ms.map(seconds),
            "moving": moving,
            "resting_for": resting_ms.map(seconds),
            "stuck_key_messages": stuck_key_messages,
            "counters": self::counters(counters.expect("counters")),
            "throughput": self::throughput(throughput.expect("a throughput"), arrivals),
            "catch_up_time": catch_up_seconds,
            "processing_time": processing_time.map(self::processing_time),
            "consumer_count": consumers,
            "consumers": members.into_iter().map(consumer).collect::<Vec<_>>(),
        })
    }
}

fn counters(of: v1::Counters) -> Value {
    let v1::Counters {
        delivered,
        acked,
        retried,
        parked,
        timed_out,
        skipped,
        expired,
        moved,
        dropped,
        returned,
        replayed,
        discarded,
    } = of;
    json!({
        "delivered": delivered, "acked": acked, "retried": retried, "parked": parked, "timed_out": timed_out,
        "skipped": skipped, "expired": expired, "moved": moved, "dropped": dropped, "returned": returned,
        "replayed": replayed, "discarded": discarded,
    })
}

fn throughput(of: v1::Throughput, arrivals: Option<v1::Rates>) -> Value {
    let v1::Throughput {
        delivered,
        settled,
        acked,
        retried,
        parked,
        timed_out,
        skipped,
        expired,
        moved,
        dropped,
    } = of;
    json!({
        "delivered": rates(delivered), "settled": rates(settled), "acked": rates(acked),
        "retried": rates(retried), "parked": rates(parked), "timed_out": rates(timed_out),
        "skipped": rates(skipped), "expired": rates(expired), "moved": rates(moved), "dropped": rates(dropped),
        "arrived": rates(arrivals),
    })
}

fn processing_time(of: v1::ProcessingTime) -> Value {
    let v1::ProcessingTime { count, mean_us, stddev_us, p50_us, p90_us, p95_us, p99_us, p999_us, max_us } =
        of;
    let seconds = |micros| Duration::from_micros(micros).as_secs_f64();
    json!({
        "count": count, "mean": seconds(mean_us), "stddev": seconds(stddev_us), "p50": seconds(p50_us),
        "p90": seconds(p90_us), "p95": seconds(p95_us), "p99": seconds(p99_us), "p999": seconds(p999_us),
        "max": seconds(max_us),
    })
}

fn consumer(of: v1::Consumer) -> Value {
    let v1::Consumer {
        name,
        address,
        connected,
        joined_at_us,
        in_flight,
        credit,
        acked,
        failed,
        processing_time,
    } = of;
    json!({
        "name": name,
        "address": text(address),
        "kind": if connected { "connected" } else { "polling" },
        "connected_at": Time(joined_at_us),
        "in_flight": in_flight,
        "credit": credit,
        "acked": acked,
        "failed": failed,
        "processing_time": processing_time.map(self::processing_time),
    })
}

impl Shape for v1::ListGroupsReply {
    fn shape(self) -> Value {
        let v1::ListGroupsReply { groups, next } = self;
        let next = next.map(|v1::GroupCursor { stream, group }| format!("{stream}/{group}"));
        json!({ "groups": all(groups), "next": next })
    }
}

impl Shape for v1::ResetGroupReply {
    fn shape(self) -> Value {
        let v1::ResetGroupReply { checkpoint_seq } = self;
        json!({ "settled_through": checkpoint_seq })
    }
}

impl Shape for v1::GetScalingReply {
    fn shape(self) -> Value {
        let v1::GetScalingReply {
            backlog,
            oldest_age_ms,
            in_flight,
            consumers,
            arrival_rate,
            service_rate,
            drain_seconds,
            desired_consumers,
        } = self;
        json!({
            "backlog": backlog, "oldest_age": seconds(oldest_age_ms), "in_flight": in_flight,
            "consumers": consumers, "arrival_rate": arrival_rate, "service_rate": service_rate,
            "drain_time": drain_seconds, "desired_consumers": desired_consumers,
        })
    }
}

impl Shape for v1::ReceiveReply {
    fn shape(self) -> Value {
        let v1::ReceiveReply { messages } = self;
        json!({ "messages": all(messages) })
    }
}

impl Shape for v1::Received {
    fn shape(self) -> Value {
        let v1::Received { lease, seq, attempt, deadline_us, message, redelivered } = self;
        let mut value = content(message.expect("a message"));
        value["lease"] = lease.into();
        value["seq"] = seq.into();
        value["attempt"] = attempt.into();
        if redelivered {
            value["redelivered"] = true.into();
        }
        value["deadline"] = json!(Time(deadline_us));
        value
    }
}

impl Shape for v1::SettleReply {
    fn shape(self) -> Value {
        let outcomes: Vec<String> = self.outcomes().map(|outcome| word(outcome.as_str_name())).collect();
        let v1::SettleReply { outcomes: _ } = self;
        json!({ "outcomes": outcomes })
    }
}

impl Shape for v1::ListParkedReply {
    fn shape(self) -> Value {
        let v1::ListParkedReply { parked, next } = self;
        json!({ "parked": all(parked), "next": (next > 0).then(|| next.to_string()) })
    }
}

impl Shape for v1::Parked {
    fn shape(self) -> Value {
        let v1::Parked { seq, message, attempts, reason, parked_at_us, consumer, history } = self;
        json!({
            "seq": seq,
            "message": message.map(|message| stored(seq, message)),
            "attempts": attempts,
            "reason": reason,
            "parked_at": Time(parked_at_us),
            "consumer": text(consumer),
            "history": all(history),
        })
    }
}

impl Shape for v1::Failure {
    fn shape(self) -> Value {
        let words = match self.cause() {
            v1::failure::Cause::Timeout => Cause::Timeout,
            v1::failure::Cause::Lost => Cause::Lost,
            v1::failure::Cause::Damaged => Cause::Damaged,
            _ => Cause::Nack,
        };
        let cause = word(self.cause().as_str_name());
        let v1::Failure { at_us, attempt, cause: _, reason, consumer } = self;
        // HTTP puts the cause into words where the consumer gave no reason.
        let reason = text(reason).unwrap_or_else(|| words.as_str().to_owned());
        json!({
            "at": Time(at_us), "attempt": attempt, "cause": cause, "reason": reason, "consumer": text(consumer),
        })
    }
}

impl Shape for v1::ListParkedReasonsReply {
    fn shape(self) -> Value {
        let v1::ListParkedReasonsReply { reasons } = self;
        let reason = |v1::ReasonCount { reason, count }| json!({ "reason": reason, "count": count });
        json!({ "reasons": reasons.into_iter().map(reason).collect::<Vec<_>>() })
    }
}

impl Shape for v1::ParkedJobReply {
    fn shape(self) -> Value {
        let v1::ParkedJobReply { matched, job } = self;
        json!({ "matched": matched, "job": (job > 0).then_some(job) })
    }
}

impl Shape for v1::ResubmitParkedReply {
    fn shape(self) -> Value {
        let v1::ResubmitParkedReply { seq, duplicate, log_position } = self;
        let mut value = json!({ "seq": seq, "duplicate": duplicate });
        if log_position > 0 {
            value["log_position"] = log_position.into();
        }
        value
    }
}

impl Shape for v1::ListJobsReply {
    fn shape(self) -> Value {
        let v1::ListJobsReply { jobs } = self;
        json!({ "jobs": all(jobs) })
    }
}

impl Shape for v1::Job {
    fn shape(self) -> Value {
        let (work, state) = (word(self.work().as_str_name()), word(self.state().as_str_name()));
        let v1::Job { job, work: _, state: _, started_at_us, ended_at_us, rate, matched, done, failed, to } =
            self;
        let rate =
            rate.map(|v1::Rate { per_second, burst }| json!({ "per_second": per_second, "burst": burst }));
        json!({
            "job": job, "work": work, "state": state, "started_at": Time(started_at_us),
            "ended_at": (ended_at_us > 0).then_some(Time(ended_at_us)), "rate": rate, "matched": matched,
            "done": done, "failed": failed, "to": (!to.is_empty()).then_some(to),
        })
    }
}

impl Shape for v1::CommitReply {
    fn shape(self) -> Value {
        let v1::CommitReply { settled, published, already_committed } = self;
        let settled = settled.into_iter().map(|v1::SettleReply { outcomes }| {
            let outcome = |number| {
                let outcome = v1::outcome_run::Outcome::try_from(number).expect("a known outcome");
                json!({ "outcome": word(outcome.as_str_name()) })
            };
            json!({ "results": outcomes.into_iter().map(outcome).collect::<Vec<_>>() })
        });
        let settled: Vec<Value> = settled.collect();
        let published = published.into_iter().map(|of| {
            let count = of.count as usize + of.duplicates.len();
            let mut of = confirmation(of, &vec![None; count]);
            for result in of["results"].as_array_mut().into_iter().flatten() {
                result.as_object_mut().expect("an object").remove("id");
            }
            of
        });
        let published: Vec<Value> = published.collect();
        json!({ "settled": settled, "published": published, "already_committed": already_committed })
    }
}

/// What became of a batch, for messages with these ids.
pub(super) fn confirmation(of: v1::Confirmation, ids: &[Option<&str>]) -> Value {
    let v1::Confirmation { ticket: _, first_seq, count: _, duplicates, problem, first_log_position } = of;
    assert_eq!(problem, None, "it was stored");
    let (mut next, mut next_in_log) = (first_seq, first_log_position);
    let results = ids.iter().zip(0..).map(|(id, n)| {
        let before = duplicates.iter().find(|v1::Duplicate { index, .. }| *index == n);
        let seq = before.map_or(next, |duplicate| duplicate.seq);
        let mut result = json!({ "seq": seq, "id": id, "duplicate": before.is_some() });
        if before.is_none() {
            result["log_position"] = next_in_log.into();
            (next, next_in_log) = (next + 1, next_in_log + 1);
        }
        result
    });
    json!({ "results": results.collect::<Vec<_>>() })
}

pub(super) fn all<T: Shape>(items: Vec<T>) -> Vec<Value> {
    items.into_iter().map(Shape::shape).collect()
}

fn rates(of: Option<v1::Rates>) -> Value {
    let v1::Rates { second, minute, quarter_hour } = of.expect("rates");
    json!({ "1s": second, "1m": minute, "15m": quarter_hour })
}

fn seconds(millis: u64) -> f64 {
    Duration::from_millis(millis).as_secs_f64()
}

fn text(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

fn word(name: &str) -> String {
    name.to_ascii_lowercase()
}
