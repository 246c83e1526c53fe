//! The calls about parked messages, and about the jobs that bring them back or let them go.

use std::cmp::Reverse;

use forebay_broker::caller::{Caller, JobTerms, Select};
use forebay_broker::driver::Published;
use forebay_broker::report::ParkedReport;
use forebay_core::entry::Work;
use forebay_core::types::{GroupName, JobId, Seq, StreamName};
use forebay_wire::v1;
use tonic::Status;

use super::request::{Budget, filter, limit, names, position, refused, text};
use super::trace::Trace;
use super::{convert, report, settings, status};

/// Positions that one selection names.
const SEQS_MAX: usize = 10_000;

pub(super) async fn list(
    caller: Caller,
    request: v1::ListParkedRequest,
) -> Result<v1::ListParkedReply, Status> {
    let (stream, group) = names(&request.stream, &request.group)?;
    let limit = limit(request.limit)? as usize;
    let v1::ParkedFilter { reason, key, r#type } = request.filter.unwrap_or_default();
    let page = caller
        .parked(stream, group, position(request.after), limit, text(reason), &filter(key, r#type))
        .await
        .map_err(refused)?;
    let mut reply = v1::ListParkedReply::default();
    let mut budget = Budget::new();
    for parked in &page.items {
        let parked = one(parked)?;
        if !budget.take(&parked) {
            reply.next = reply.parked.last().map_or(0, |last| last.seq);
            return Ok(reply);
        }
        reply.parked.push(parked);
    }
    reply.next = page.next.map_or(0, |next| next.0);
    Ok(reply)
}

pub(super) async fn get(caller: Caller, request: v1::GetParkedRequest) -> Result<v1::Parked, Status> {
    let (stream, group) = names(&request.stream, &request.group)?;
    one(&caller.parked_one(stream, group, seq(request.seq)?).await.map_err(refused)?)
}

fn seq(seq: u64) -> Result<Seq, Status> {
    if seq == 0 {
        return Err(status::invalid("seq: positions begin with 1".to_owned()));
    }
    Ok(position(seq))
}

fn one(of: &ParkedReport) -> Result<v1::Parked, Status> {
    let message = of.message.as_ref().map(convert::found).transpose()?;
    Ok(report::parked(of, message))
}

pub(super) async fn reasons(
    caller: Caller,
    request: v1::ListParkedReasonsRequest,
) -> Result<v1::ListParkedReasonsReply, Status> {
    let (stream, group) = names(&request.stream, &request.group)?;
    let mut reasons = caller.parked_reasons(stream, group).await.map_err(refused)?;
    reasons.sort_unstable_by(|(a, a_count), (b, b_count)| (Reverse(a_count), a).cmp(&(Reverse(b_count), b)));
    let reasons =
        reasons.iter().map(|(reason, count)| v1::ReasonCount { reason: reason.to_string(), count: *count });
    Ok(v1::ListParkedReasonsReply { reasons: reasons.collect() })
}

pub(super) async fn start(
    caller: Caller,
    request: v1::ParkedJobRequest,
    work: Work,
) -> Result<v1::ParkedJobReply, Status> {
    let (stream, group) = names(&request.stream, &request.group)?;
    let terms = JobTerms {
        limit: Some(request.limit).filter(|limit| *limit > 0),
        rate: settings::rate("rate", request.rate)?,
        dry_run: request.dry_run,
    };
    let select = select(request.select)?;
    let selected = caller.start_job(stream, group, work, select, terms).await.map_err(refused)?;
    Ok(v1::ParkedJobReply { matched: selected.matched, job: selected.job.map_or(0, |job| job.0) })
}

/// Nothing stands for everything: that must be said.
fn select(wire: Option<v1::parked_job_request::Select>) -> Result<Select, Status> {
    use v1::parked_job_request::Select as Wire;
    match wire {
        Some(Wire::All(true)) => Ok(Select::All),
        Some(Wire::Seqs(v1::Seqs { seqs })) if seqs.len() > SEQS_MAX => {
            Err(status::invalid(format!("seqs: at most {SEQS_MAX}. seqs=`{}`", seqs.len())))
        }
        Some(Wire::Seqs(v1::Seqs { seqs })) if !seqs.is_empty() => {
            Ok(Select::Seqs(seqs.into_iter().map(position).collect()))
        }
        Some(Wire::Filter(v1::ParkedFilter { reason, key, r#type })) => {
            let (reason, filter) = (text(reason), filter(key, r#type));
            if reason.is_none() && filter.is_empty() {
                return Err(status::empty_selection());
            }
            Ok(Select::Filter { reason, filter })
        }
        None | Some(Wire::All(false) | Wire::Seqs(_)) => Err(status::empty_selection()),
    }
}

pub(super) async fn resubmit(
    caller: Caller,
    request: v1::ResubmitParkedRequest,
    trace: Trace,
) -> Result<v1::ResubmitParkedReply, Status> {
    let (stream, group) = names(&request.stream, &request.group)?;
    let seq = seq(request.seq)?;
    let message = request.message.ok_or_else(|| status::invalid("message: the edited copy".to_owned()))?;
    let batch = convert::batch(caller.broker().clock().now(), &[message], &trace)
        .map_err(|problem| status::invalid(format!("message.{}", problem.detail)))?;
    let published = caller.resubmit(stream, group, seq, batch).await.map_err(refused)?;
    Ok(match published {
        Published::Stored(range) => v1::ResubmitParkedReply { seq: range.first.0, duplicate: false },
        Published::Mixed(admissions) => {
            let first = admissions.first();
            v1::ResubmitParkedReply {
                seq: first.map_or(0, |first| first.seq.0),
                duplicate: first.is_some_and(|first| first.duplicate),
            }
        }
    })
}

pub(super) async fn jobs(caller: Caller, request: v1::ListJobsRequest) -> Result<v1::ListJobsReply, Status> {
    let (stream, group) = names(&request.stream, &request.group)?;
    let jobs = caller.jobs(stream, group).await.map_err(refused)?;
    Ok(v1::ListJobsReply { jobs: jobs.iter().map(report::job).collect() })
}

pub(super) async fn job(caller: Caller, request: v1::GetJobRequest) -> Result<v1::Job, Status> {
    let (stream, group, job) = which(&request.stream, &request.group, request.job)?;
    Ok(report::job(&caller.job(stream, group, job).await.map_err(refused)?))
}

pub(super) async fn cancel(
    caller: Caller,
    request: v1::CancelJobRequest,
) -> Result<v1::CancelJobReply, Status> {
    let (stream, group, job) = which(&request.stream, &request.group, request.job)?;
    caller.cancel_job(stream, group, job).await.map_err(refused)?;
    Ok(v1::CancelJobReply {})
}

fn which(stream: &str, group: &str, job: u32) -> Result<(StreamName, GroupName, JobId), Status> {
    let (stream, group) = names(stream, group)?;
    if job == 0 {
        return Err(status::invalid("job: which one".to_owned()));
    }
    Ok((stream, group, JobId(job)))
}
