//! The calls about parked messages and jobs.

use forebay_broker::api::{Hold, JobTerms, ParkedReport, Rate};
use forebay_wire::v1;

use super::request::{Budget, given, names, some};
use super::{convert, report};
use crate::native::problem::Refusal;
use crate::native::service::{Answer, ParkedFilter, Placed, Selection, Service, Triage, check_rate};
use crate::native::trace::Trace;

pub(super) async fn list(
    service: Service,
    request: v1::ListParkedRequest,
) -> Answer<(v1::ListParkedReply, Hold)> {
    let (stream, group) = names(&request.stream, &request.group)?;
    let filter = filter(request.filter.unwrap_or_default());
    let (page, hold) =
        service.parked(stream, group, request.after, some(request.limit.into()), filter).await?;
    let mut reply = v1::ListParkedReply::default();
    let mut budget = Budget::new();
    for parked in &page.items {
        let parked = one(parked)?;
        if !budget.take(&parked) {
            reply.next = reply.parked.last().map_or(0, |last| last.seq);
            return Ok((reply, hold));
        }
        reply.parked.push(parked);
    }
    reply.next = page.next.map_or(0, |next| next.0);
    Ok((reply, hold))
}

fn filter(wire: v1::ParkedFilter) -> ParkedFilter {
    let v1::ParkedFilter { reason, key, r#type: kind } = wire;
    ParkedFilter { reason: Some(reason), key: Some(key), kind: Some(kind) }
}

pub(super) async fn get(service: Service, request: v1::GetParkedRequest) -> Answer<v1::Parked> {
    let (stream, group) = names(&request.stream, &request.group)?;
    one(&service.parked_one(stream, group, given("seq", request.seq)?).await?)
}

fn one(of: &ParkedReport) -> Answer<v1::Parked> {
    let message = of.message.as_ref().map(convert::found).transpose()?;
    Ok(report::parked(of, message))
}

pub(super) async fn reasons(
    service: Service,
    request: v1::ListParkedReasonsRequest,
) -> Answer<v1::ListParkedReasonsReply> {
    let (stream, group) = names(&request.stream, &request.group)?;
    let reasons = service.parked_reasons(stream, group).await?;
    let reasons =
        reasons.iter().map(|(reason, count)| v1::ReasonCount { reason: reason.to_string(), count: *count });
    Ok(v1::ListParkedReasonsReply { reasons: reasons.collect() })
}

pub(super) async fn start(
    service: Service,
    request: v1::ParkedJobRequest,
    triage: Triage,
) -> Answer<v1::ParkedJobReply> {
    use v1::parked_job_request::Select;
    let (stream, group) = names(&request.stream, &request.group)?;
    let terms = JobTerms {
        limit: some(request.limit),
        rate: check_rate(request.rate.map(Rate::from))?,
        dry_run: request.dry_run,
    };
    let mut selection = Selection::default();
    match request.select {
        Some(Select::All(all)) => selection.all = all,
        Some(Select::Seqs(v1::Seqs { seqs })) => selection.seqs = Some(seqs),
        Some(Select::Filter(wire)) => selection.filter = Some(filter(wire)),
        None => {}
    }
    let work = (triage, Some(request.to));
    let selected = service.start_job(stream, group, work, selection, terms).await?;
    Ok(v1::ParkedJobReply { matched: selected.matched, job: selected.job.map_or(0, |job| job.0) })
}

pub(super) async fn resubmit(
    service: Service,
    request: v1::ResubmitParkedRequest,
    trace: Trace,
) -> Answer<v1::ResubmitParkedReply> {
    let (stream, group) = names(&request.stream, &request.group)?;
    let seq = given("seq", request.seq)?;
    let message = request.message.ok_or_else(|| Refusal::field("message", "must be given"))?;
    let edits = convert::edits(&message, &request.clear)?;
    let resubmitted = service.resubmit(stream, group, seq, &edits, &trace).await;
    let Placed { seq, duplicate, log_position } = resubmitted.map_err(|refusal| refusal.within("message"))?;
    Ok(v1::ResubmitParkedReply { seq, duplicate, log_position: log_position.unwrap_or(0) })
}

pub(super) async fn jobs(service: Service, request: v1::ListJobsRequest) -> Answer<v1::ListJobsReply> {
    let (stream, group) = names(&request.stream, &request.group)?;
    let jobs = service.jobs(stream, group).await?;
    Ok(v1::ListJobsReply { jobs: jobs.iter().map(report::job).collect() })
}

pub(super) async fn job(service: Service, request: v1::GetJobRequest) -> Answer<v1::Job> {
    let (stream, group) = names(&request.stream, &request.group)?;
    Ok(report::job(&service.job(stream, group, given("job", request.job)?).await?))
}

pub(super) async fn cancel(service: Service, request: v1::CancelJobRequest) -> Answer<v1::CancelJobReply> {
    let (stream, group) = names(&request.stream, &request.group)?;
    service.cancel_job(stream, group, given("job", request.job)?).await?;
    Ok(v1::CancelJobReply {})
}
