//! KEDA's external scaler: the server's own advice on scaling, in the protocol that KEDA asks for it.
//!
//! One metric is served: the number of consumers that a group should have. A replica counts as one consumer, so the
//! metric's target is 1, and KEDA's replicas are the advice itself.

use std::collections::HashMap;
use std::pin::Pin;
use std::str::FromStr;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use forebay_broker::api::{ScalingReport, Stage};
use forebay_core::types::{GroupName, StreamName};
use forebay_wire::json::Span;
use forebay_wire::keda::external_scaler_server::ExternalScaler;
use forebay_wire::keda::{
    GetMetricSpecResponse, GetMetricsRequest, GetMetricsResponse, IsActiveResponse, MetricSpec, MetricValue,
    ScaledObjectRef,
};
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use super::request::names;
use super::{Answer, NativeDoor, Replies, status};
use crate::native::problem::Refusal;
use crate::native::service::{self, Service};

const METRIC: &str = "desired_consumers";
/// How often a group is looked at for a client that waits for it to become active.
const WATCHED_EVERY: Duration = Duration::from_secs(1);

/// The metadata of a trigger. KEDA adds entries of its own, so unknown ones are not refused.
#[derive(Clone)]
struct Trigger {
    stream: StreamName,
    group: GroupName,
    drain: Option<Duration>,
    min: u32,
    max: Option<u32>,
}

impl Trigger {
    fn read(metadata: &HashMap<String, String>) -> service::Answer<Trigger> {
        let text = |name| metadata.get(name).map(String::as_str);
        let (stream, group) = (text("stream").unwrap_or_default(), text("group").unwrap_or_default());
        let (stream, group) = names(stream, group)?;
        Ok(Trigger {
            stream,
            group,
            drain: text("targetDrain").map(span).transpose()?,
            min: text("min").map(|text| number("min", text)).transpose()?.unwrap_or(0),
            max: text("max").map(|text| number("max", text)).transpose()?,
        })
    }

    async fn ask(&self, service: &Service) -> service::Answer<ScalingReport> {
        service.scaling(self.stream.clone(), self.group.clone(), self.drain, self.min, self.max).await
    }
}

fn span(text: &str) -> service::Answer<Duration> {
    let span = Span::from_str(text).map_err(|error| Refusal::value("targetDrain", error, text))?;
    Ok(span.0)
}

fn number(field: &'static str, text: &str) -> service::Answer<u32> {
    text.parse().map_err(|_| Refusal::value(field, "must be a number between 0 and 4294967295", text))
}

/// A group is active while it has messages to process, or should have consumers anyway.
fn is_active(report: &ScalingReport) -> bool {
    report.backlog > 0 || report.in_flight > 0 || report.advice.desired_consumers > 0
}

#[tonic::async_trait]
impl ExternalScaler for NativeDoor {
    async fn is_active(&self, request: Request<ScaledObjectRef>) -> Answer<IsActiveResponse> {
        self.answer(request, async |service, trigger| {
            let report = Trigger::read(&trigger.scaler_metadata)?.ask(&service).await?;
            Ok(IsActiveResponse { result: is_active(&report) })
        })
        .await
    }

    async fn stream_is_active(&self, request: Request<ScaledObjectRef>) -> Answer<Replies<IsActiveResponse>> {
        let service = self.service(&request);
        let trigger = Trigger::read(&request.get_ref().scaler_metadata);
        let trigger = trigger.map_err(|refusal| status::refused(&refusal))?;
        let draining = Box::pin(self.broker.reached(Stage::Draining));
        let next = Some(Box::pin(changed(service, trigger, None)) as Pin<Box<_>>);
        Ok(Response::new(Box::pin(Watch { next, draining })))
    }

    async fn get_metric_spec(&self, request: Request<ScaledObjectRef>) -> Answer<GetMetricSpecResponse> {
        self.answer(request, async |_, trigger| {
            Trigger::read(&trigger.scaler_metadata)?;
            let spec = MetricSpec { metric_name: METRIC.to_owned(), target_size: 1, target_size_float: 1.0 };
            Ok(GetMetricSpecResponse { metric_specs: vec![spec] })
        })
        .await
    }

    async fn get_metrics(&self, request: Request<GetMetricsRequest>) -> Answer<GetMetricsResponse> {
        self.answer(request, async |service, request| {
            let metadata = request.scaled_object_ref.unwrap_or_default().scaler_metadata;
            let desired = Trigger::read(&metadata)?.ask(&service).await?.advice.desired_consumers;
            let value = MetricValue {
                metric_name: METRIC.to_owned(),
                metric_value: i64::from(desired),
                metric_value_float: f64::from(desired),
            };
            Ok(GetMetricsResponse { metric_values: vec![value] })
        })
        .await
    }
}

type Change = (Service, Trigger, bool);

/// Waits until the group is no longer as it was `told`.
async fn changed(service: Service, trigger: Trigger, told: Option<bool>) -> service::Answer<Change> {
    loop {
        let active = is_active(&trigger.ask(&service).await?);
        if told != Some(active) {
            return Ok((service, trigger, active));
        }
        tokio::time::sleep(WATCHED_EVERY).await;
    }
}

/// Says at once whether the group is active, and again whenever that changes. It ends when the server drains.
struct Watch {
    /// Absent when it has ended.
    next: Option<Pin<Box<dyn Future<Output = service::Answer<Change>> + Send>>>,
    draining: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Stream for Watch {
    type Item = Result<IsActiveResponse, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let watch = self.get_mut();
        let Some(next) = &mut watch.next else { return Poll::Ready(None) };
        if watch.draining.as_mut().poll(cx).is_ready() {
            watch.next = None;
            return Poll::Ready(None);
        }
        match ready!(next.as_mut().poll(cx)) {
            Ok((service, trigger, active)) => {
                watch.next = Some(Box::pin(changed(service, trigger, Some(active))));
                Poll::Ready(Some(Ok(IsActiveResponse { result: active })))
            }
            Err(refusal) => {
                watch.next = None;
                Poll::Ready(Some(Err(status::refused(&refusal))))
            }
        }
    }
}
