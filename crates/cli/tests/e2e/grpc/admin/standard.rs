//! What every gRPC client knows how to ask: which services there are, whether they serve, and traces.

use forebay_wire::v1;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use super::{answer, is_refused, message, of_stream};
use crate::grpc::rig::Server;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reflection_lists_the_services_and_describes_them() {
    let server = Server::start_in_memory().await;
    let mut client = ServerReflectionClient::new(server.channel());
    let ask = |request| ServerReflectionRequest { host: String::new(), message_request: Some(request) };
    let requests = [
        ask(MessageRequest::ListServices(String::new())),
        ask(MessageRequest::FileContainingSymbol("forebay.v1.Forebay".to_owned())),
    ];
    let mut replies = answer(client.server_reflection_info(tokio_stream::iter(requests)).await);
    let mut next =
        async || replies.message().await.expect("it goes on").and_then(|reply| reply.message_response);
    let Some(MessageResponse::ListServicesResponse(list)) = next().await else {
        panic!("a list is asked for")
    };
    let services: Vec<&str> = list.service.iter().map(|service| &service.name[..]).collect();
    let expected = [
        "externalscaler.ExternalScaler",
        "forebay.v1.Forebay",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
    ];
    for service in expected {
        assert!(services.contains(&service), "{service} is missing: {services:?}");
    }
    let Some(MessageResponse::FileDescriptorResponse(file)) = next().await else {
        panic!("a file is asked for")
    };
    let file = &file.file_descriptor_proto[0];
    let has = |text: &str| file.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(has("ReplayParked") && has("FollowStream"));
    server.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_runs_serves() {
    let server = Server::start_in_memory().await;
    let mut client = HealthClient::new(server.channel());
    for service in ["", "forebay.v1.Forebay"] {
        let health = client.check(HealthCheckRequest { service: service.to_owned() }).await;
        assert_eq!(answer(health).status(), ServingStatus::Serving, "{service}");
    }
    let unknown = client.check(HealthCheckRequest { service: "other".to_owned() }).await;
    is_refused(unknown, Code::NotFound, "no-such-path", "no such service. service=`other`");
    server.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_published_belongs_to_the_trace_of_its_call() {
    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let server = Server::start_in_memory().await;
    let own =
        vec![v1::Header { name: "traceparent".to_owned(), value: "mine".to_owned(), ..Default::default() }];
    let messages = vec![message("plain"), v1::Message { headers: own.clone(), ..message("own") }];
    let publish = of_stream!(PublishRequest, "work", messages: messages);
    let mut request = tonic::Request::new(tokio_stream::iter([publish]));
    request.metadata_mut().insert("traceparent", PARENT.parse().expect("text"));
    request.metadata_mut().insert("tracestate", "vendor=1".parse().expect("text"));
    let mut replies = answer(server.client().publish(request).await);
    while replies.message().await.expect("it is stored").is_some() {}
    let read = server.client().read_messages(of_stream!(ReadMessagesRequest, "work")).await;
    let headers: Vec<Vec<v1::Header>> = answer(read)
        .messages
        .into_iter()
        .map(|stored| stored.message.expect("it has a message").headers)
        .collect();
    let of = |name: &str, value: &str| v1::Header {
        name: name.to_owned(),
        value: value.to_owned(),
        ..Default::default()
    };
    assert_eq!(headers, [vec![of("traceparent", PARENT), of("tracestate", "vendor=1")], own]);
    server.stop();
}
