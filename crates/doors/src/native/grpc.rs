//! `forebay.v1` over gRPC, for programs, with the standard services for health and reflection beside it.
//!
//! Each `Publish` and `Consume` is one state machine that the connection polls: requests are read,
//! handed to the broker and answered in the same task. A second task would cost a hand-off in each
//! direction, and with small batches hand-offs are what a message costs. Everything else is a question with
//! one answer.
//!
//! | Module | Has |
//! | --- | --- |
//! | `publish`, `consume`, `follow` | the streaming calls |
//! | `receive`, `transact`, `streams`, `groups`, `parked`, `credentials` | calls with one answer |
//! | `request` | what all of these read out of requests, and the size of replies |
//! | `convert`, `settings`, `report` | between the types of the wire and those of the broker |
//! | `encode` | stored messages straight into replies, for the streaming calls |
//! | `status` | a refusal in gRPC's words |
//! | `health` | whether the server serves |
//! | `keda` | advice on scaling, for KEDA |

mod consume;
pub(super) mod convert;
mod credentials;
mod encode;
mod follow;
mod groups;
mod health;
mod keda;
mod parked;
mod publish;
mod receive;
mod report;
mod request;
pub(super) mod settings;
pub(super) mod status;
mod streams;
mod transact;

use std::pin::Pin;
use std::sync::Arc;

use forebay_broker::api::{Entrance, Hold, Principal, Share};
use forebay_wire::keda::external_scaler_server::ExternalScalerServer;
use forebay_wire::v1;
use forebay_wire::v1::forebay_server::{Forebay, ForebayServer};
use tokio_stream::Stream;
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};

use super::Client;
use super::service::{self, Service, Triage};
use super::trace::Trace;

/// The bytes that a request may have beside the contents of a batch: fields, lengths, ids.
const REQUEST_OVERHEAD: usize = 4 << 20;

/// The services, to be served beside whatever else is on the port. `unknown` is the client of a request of which the
/// connection does not say whose it is.
pub(super) fn routes(broker: Entrance, unknown: Principal) -> Routes {
    let request_bytes_max = broker.limits().batch_bytes_max as usize + REQUEST_OVERHEAD;
    let health = health::service(broker.clone());
    let scaler = ExternalScalerServer::new(NativeDoor { broker: broker.clone(), unknown: unknown.clone() });
    let service =
        ForebayServer::new(NativeDoor { broker, unknown }).max_decoding_message_size(request_bytes_max);
    let described = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(v1::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(forebay_wire::keda::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    // Tools of some age know reflection by its first name only.
    let reflection = described().build_v1().expect("the build wrote these descriptors");
    let reflection_alpha = described().build_v1alpha().expect("the build wrote these descriptors");
    Routes::new(service)
        .add_service(health)
        .add_service(scaler)
        .add_service(reflection)
        .add_service(reflection_alpha)
}

type Replies<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
type Answer<T> = Result<Response<T>, Status>;

struct NativeDoor {
    broker: Entrance,
    unknown: Principal,
}

impl NativeDoor {
    fn service<T>(&self, request: &Request<T>) -> Service {
        let share = request.extensions().get::<Share>().cloned();
        let share = share.unwrap_or_else(|| self.broker.memory().share());
        let who = request.extensions().get::<Client>().map_or(&self.unknown, |client| &client.0);
        Service::new(self.broker.enter(who.clone(), request.remote_addr()), share)
    }

    /// A question whose answer has contents in it, and room for them.
    async fn answer_held<Q, A, F>(&self, request: Request<Q>, call: impl FnOnce(Service, Q) -> F) -> Answer<A>
    where
        F: Future<Output = service::Answer<(A, Hold)>>,
    {
        let service = self.service(&request);
        let answered = call(service, request.into_inner()).await;
        let (answer, hold) = answered.map_err(|refusal| status::refused(&refusal))?;
        let mut response = Response::new(answer);
        response.extensions_mut().insert(Arc::new(hold));
        Ok(response)
    }

    /// A question with one answer.
    async fn answer<Q, A, F>(&self, request: Request<Q>, call: impl FnOnce(Service, Q) -> F) -> Answer<A>
    where
        F: Future<Output = service::Answer<A>>,
    {
        let service = self.service(&request);
        let answered = call(service, request.into_inner()).await;
        answered.map(Response::new).map_err(|refusal| status::refused(&refusal))
    }
}

fn trace_of<T>(request: &Request<T>) -> Trace {
    Trace::read(|name| request.metadata().get(name).and_then(|value| value.to_str().ok()))
}

#[tonic::async_trait]
impl Forebay for NativeDoor {
    async fn publish(
        &self,
        request: Request<Streaming<v1::PublishRequest>>,
    ) -> Answer<Replies<v1::PublishReply>> {
        let (service, trace) = (self.service(&request), trace_of(&request));
        Ok(Response::new(Box::pin(publish::Publish::new(service, trace, request.into_inner()))))
    }

    async fn publish_once(&self, request: Request<v1::PublishRequest>) -> Answer<v1::Confirmation> {
        let trace = trace_of(&request);
        self.answer(request, |service, request| publish::once(service, request, trace)).await
    }

    async fn consume(
        &self,
        request: Request<Streaming<v1::ConsumeRequest>>,
    ) -> Answer<Replies<v1::ConsumeReply>> {
        let (service, trace) = (self.service(&request), trace_of(&request));
        let call = consume::Consume::open(&service, trace, request.into_inner()).await?;
        Ok(Response::new(Box::pin(call)))
    }

    async fn follow_stream(
        &self,
        request: Request<v1::FollowStreamRequest>,
    ) -> Answer<Replies<v1::FollowStreamReply>> {
        let opened = follow::follow_stream(self.service(&request), request.into_inner()).await;
        Ok(Response::new(Box::pin(opened.map_err(|refusal| status::refused(&refusal))?)))
    }

    async fn follow_log(
        &self,
        request: Request<v1::FollowLogRequest>,
    ) -> Answer<Replies<v1::FollowLogReply>> {
        let opened = follow::follow_log(self.service(&request), request.into_inner()).await;
        Ok(Response::new(Box::pin(opened.map_err(|refusal| status::refused(&refusal))?)))
    }

    async fn receive(&self, request: Request<v1::ReceiveRequest>) -> Answer<v1::ReceiveReply> {
        self.answer_held(request, receive::receive).await
    }

    async fn settle(&self, request: Request<v1::SettleRequest>) -> Answer<v1::SettleReply> {
        self.answer(request, receive::settle).await
    }

    async fn commit(&self, request: Request<v1::CommitRequest>) -> Answer<v1::CommitReply> {
        let trace = trace_of(&request);
        self.answer(request, |service, request| transact::commit(service, request, trace)).await
    }

    async fn create_stream(
        &self,
        request: Request<v1::CreateStreamRequest>,
    ) -> Answer<v1::CreateStreamReply> {
        self.answer(request, streams::create).await
    }

    async fn update_stream(
        &self,
        request: Request<v1::UpdateStreamRequest>,
    ) -> Answer<v1::UpdateStreamReply> {
        self.answer(request, streams::update).await
    }

    async fn get_stream(&self, request: Request<v1::GetStreamRequest>) -> Answer<v1::StreamReport> {
        self.answer(request, streams::get).await
    }

    async fn list_streams(&self, request: Request<v1::ListStreamsRequest>) -> Answer<v1::ListStreamsReply> {
        self.answer(request, streams::list).await
    }

    async fn delete_stream(
        &self,
        request: Request<v1::DeleteStreamRequest>,
    ) -> Answer<v1::DeleteStreamReply> {
        self.answer(request, streams::delete).await
    }

    async fn purge_stream(&self, request: Request<v1::PurgeStreamRequest>) -> Answer<v1::PurgeStreamReply> {
        self.answer(request, streams::purge).await
    }

    async fn truncate_stream(
        &self,
        request: Request<v1::TruncateStreamRequest>,
    ) -> Answer<v1::TruncateStreamReply> {
        self.answer(request, streams::truncate).await
    }

    async fn read_messages(
        &self,
        request: Request<v1::ReadMessagesRequest>,
    ) -> Answer<v1::ReadMessagesReply> {
        self.answer_held(request, streams::read).await
    }

    async fn read_log(&self, request: Request<v1::ReadLogRequest>) -> Answer<v1::ReadLogReply> {
        self.answer_held(request, streams::read_log).await
    }

    async fn create_group(&self, request: Request<v1::CreateGroupRequest>) -> Answer<v1::CreateGroupReply> {
        self.answer(request, groups::create).await
    }

    async fn update_group(&self, request: Request<v1::UpdateGroupRequest>) -> Answer<v1::UpdateGroupReply> {
        self.answer(request, groups::update).await
    }

    async fn get_group(&self, request: Request<v1::GetGroupRequest>) -> Answer<v1::GetGroupReply> {
        self.answer(request, groups::get).await
    }

    async fn list_groups(&self, request: Request<v1::ListGroupsRequest>) -> Answer<v1::ListGroupsReply> {
        self.answer(request, groups::list).await
    }

    async fn delete_group(&self, request: Request<v1::DeleteGroupRequest>) -> Answer<v1::DeleteGroupReply> {
        self.answer(request, groups::delete).await
    }

    async fn pause_group(&self, request: Request<v1::PauseGroupRequest>) -> Answer<v1::PauseGroupReply> {
        self.answer(request, groups::pause).await
    }

    async fn resume_group(&self, request: Request<v1::ResumeGroupRequest>) -> Answer<v1::ResumeGroupReply> {
        self.answer(request, groups::resume).await
    }

    async fn reset_group(&self, request: Request<v1::ResetGroupRequest>) -> Answer<v1::ResetGroupReply> {
        self.answer(request, groups::reset).await
    }

    async fn get_scaling(&self, request: Request<v1::GetScalingRequest>) -> Answer<v1::GetScalingReply> {
        self.answer(request, groups::scaling).await
    }

    async fn list_parked(&self, request: Request<v1::ListParkedRequest>) -> Answer<v1::ListParkedReply> {
        self.answer_held(request, parked::list).await
    }

    async fn get_parked(&self, request: Request<v1::GetParkedRequest>) -> Answer<v1::Parked> {
        self.answer(request, parked::get).await
    }

    async fn list_parked_reasons(
        &self,
        request: Request<v1::ListParkedReasonsRequest>,
    ) -> Answer<v1::ListParkedReasonsReply> {
        self.answer(request, parked::reasons).await
    }

    async fn replay_parked(&self, request: Request<v1::ParkedJobRequest>) -> Answer<v1::ParkedJobReply> {
        self.answer(request, |service, request| parked::start(service, request, Triage::Replay)).await
    }

    async fn discard_parked(&self, request: Request<v1::ParkedJobRequest>) -> Answer<v1::ParkedJobReply> {
        self.answer(request, |service, request| parked::start(service, request, Triage::Discard)).await
    }

    async fn move_parked(&self, request: Request<v1::ParkedJobRequest>) -> Answer<v1::ParkedJobReply> {
        self.answer(request, |service, request| parked::start(service, request, Triage::Move)).await
    }

    async fn resubmit_parked(
        &self,
        request: Request<v1::ResubmitParkedRequest>,
    ) -> Answer<v1::ResubmitParkedReply> {
        let trace = trace_of(&request);
        self.answer(request, |service, request| parked::resubmit(service, request, trace)).await
    }

    async fn list_jobs(&self, request: Request<v1::ListJobsRequest>) -> Answer<v1::ListJobsReply> {
        self.answer(request, parked::jobs).await
    }

    async fn get_job(&self, request: Request<v1::GetJobRequest>) -> Answer<v1::Job> {
        self.answer(request, parked::job).await
    }

    async fn cancel_job(&self, request: Request<v1::CancelJobRequest>) -> Answer<v1::CancelJobReply> {
        self.answer(request, parked::cancel).await
    }

    async fn create_credential(
        &self,
        request: Request<v1::CreateCredentialRequest>,
    ) -> Answer<v1::CreateCredentialReply> {
        self.answer(request, credentials::create).await
    }

    async fn list_credentials(
        &self,
        request: Request<v1::ListCredentialsRequest>,
    ) -> Answer<v1::ListCredentialsReply> {
        self.answer(request, credentials::list).await
    }

    async fn change_password(
        &self,
        request: Request<v1::ChangePasswordRequest>,
    ) -> Answer<v1::ChangePasswordReply> {
        self.answer(request, credentials::change_password).await
    }

    async fn revoke_credential(
        &self,
        request: Request<v1::RevokeCredentialRequest>,
    ) -> Answer<v1::RevokeCredentialReply> {
        self.answer(request, credentials::revoke).await
    }
}
