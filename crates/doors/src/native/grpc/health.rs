//! `grpc.health.v1`: whether the server serves. It does until it drains: then calls under way may finish,
//! but a client should send no new ones.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use forebay_broker::api::{Entrance, Stage};
use forebay_wire::v1::forebay_server;
use tokio_stream::Stream;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::status;

pub(super) fn service(broker: Entrance) -> HealthServer<HealthDoor> {
    HealthServer::new(HealthDoor { broker })
}

pub(super) struct HealthDoor {
    broker: Entrance,
}

/// An empty name asks for the server as a whole.
fn is_ours(service: &str) -> bool {
    service.is_empty() || service == forebay_server::SERVICE_NAME
}

fn status_of(stage: Stage) -> ServingStatus {
    match stage {
        Stage::Running => ServingStatus::Serving,
        Stage::Draining | Stage::Stopping => ServingStatus::NotServing,
    }
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

#[tonic::async_trait]
impl Health for HealthDoor {
    type WatchStream = Watch;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let service = &request.get_ref().service;
        if !is_ours(service) {
            return Err(status::no_such_service(service));
        }
        Ok(Response::new(response(status_of(self.broker.stage()))))
    }

    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Watch>, Status> {
        let next = match is_ours(&request.get_ref().service) {
            true => status_of(self.broker.stage()),
            false => ServingStatus::ServiceUnknown,
        };
        let draining = Box::pin(self.broker.reached(Stage::Draining));
        let stopping = Box::pin(self.broker.stopping());
        Ok(Response::new(Watch { told: None, next, draining, stopping }))
    }
}

/// Says at once how things are, and once more when that changes.
pub(super) struct Watch {
    told: Option<ServingStatus>,
    next: ServingStatus,
    draining: Pin<Box<dyn Future<Output = ()> + Send>>,
    stopping: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Stream for Watch {
    type Item = Result<HealthCheckResponse, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let watch = self.get_mut();
        if watch.told == Some(ServingStatus::Serving) {
            ready!(watch.draining.as_mut().poll(cx));
            watch.next = ServingStatus::NotServing;
        }
        if watch.told != Some(watch.next) {
            watch.told = Some(watch.next);
            return Poll::Ready(Some(Ok(response(watch.next))));
        }
        ready!(watch.stopping.as_mut().poll(cx));
        Poll::Ready(None)
    }
}
