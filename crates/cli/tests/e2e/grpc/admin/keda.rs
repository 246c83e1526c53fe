//! KEDA's external scaler, as KEDA calls it.

use std::collections::HashMap;

use forebay_wire::keda::external_scaler_client::ExternalScalerClient;
use forebay_wire::keda::{GetMetricsRequest, ScaledObjectRef};
use forebay_wire::v1::settlement::Action;
use tonic::Code;

use super::{answer, is_refused, message, of_group};
use crate::grpc::rig::{Server, publish_one};

/// A trigger as KEDA sends it, with an entry of its own.
fn trigger(metadata: &[(&str, &str)]) -> ScaledObjectRef {
    let entries = [("scalerAddress", "forebay:7070")].iter().chain(metadata);
    let scaler_metadata: HashMap<String, String> =
        entries.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    ScaledObjectRef { name: "workers".to_owned(), namespace: "default".to_owned(), scaler_metadata }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keda_scales_with_the_backlog() {
    let server = Server::start_in_memory().await;
    server.create_group("work", "team").await;
    let mut keda = ExternalScalerClient::new(server.channel());
    let team = trigger(&[("stream", "work"), ("group", "team"), ("targetDrain", "1m"), ("max", "5")]);
    let metrics = || GetMetricsRequest {
        scaled_object_ref: Some(team.clone()),
        metric_name: "desired_consumers".to_owned(),
    };

    let spec = answer(keda.get_metric_spec(team.clone()).await).metric_specs;
    assert_eq!((spec.len(), &spec[0].metric_name[..]), (1, "desired_consumers"));
    assert_eq!((spec[0].target_size, spec[0].target_size_float), (1, 1.0));
    assert!(!answer(keda.is_active(team.clone()).await).result);
    let value = answer(keda.get_metrics(metrics()).await).metric_values;
    assert_eq!((value[0].metric_value, value[0].metric_value_float), (0, 0.0));

    let mut watch = answer(keda.stream_is_active(team.clone()).await);
    assert!(!watch.message().await.expect("it goes on").expect("how things are").result);
    publish_one(&server, "work", vec![message("1")]).await;
    assert!(watch.message().await.expect("it goes on").expect("a change").result);
    assert!(answer(keda.is_active(team.clone()).await).result);
    let value = answer(keda.get_metrics(metrics()).await).metric_values;
    assert_eq!(value[0].metric_name, "desired_consumers");
    assert!((1..=5).contains(&value[0].metric_value), "{value:?}");

    // A message that a consumer holds keeps the group active. The last one settled ends it.
    let mut client = server.client();
    let got = answer(client.receive(of_group!(ReceiveRequest, "work", "team", max: 1)).await).messages;
    assert!(answer(keda.is_active(team.clone()).await).result);
    let (leases, action) = (vec![got[0].lease.clone()], Action::Ack.into());
    answer(client.settle(of_group!(SettleRequest, "work", "team", leases: leases, action: action)).await);
    server.terminate();
    server.ended();
}

/// The metadata of a trigger, and how it is refused: code, kind and a part of the text.
type Case = (&'static [(&'static str, &'static str)], Code, &'static str, &'static str);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_trigger_is_refused_by_its_entry() {
    let server = Server::start_in_memory().await;
    server.create_group("work", "team").await;
    let mut keda = ExternalScalerClient::new(server.channel());
    let cases: [Case; 5] = [
        (&[("group", "team")], Code::InvalidArgument, "invalid-name", "stream must"),
        (
            &[("stream", "work"), ("group", "team"), ("max", "many")],
            Code::InvalidArgument,
            "invalid-field",
            "max must be a number",
        ),
        (
            &[("stream", "work"), ("group", "team"), ("targetDrain", "soon")],
            Code::InvalidArgument,
            "invalid-field",
            "targetDrain",
        ),
        (
            &[("stream", "work"), ("group", "team"), ("min", "5"), ("max", "2")],
            Code::InvalidArgument,
            "invalid-field",
            "min must not be above max",
        ),
        (&[("stream", "work"), ("group", "absent")], Code::NotFound, "no-such-group", "no such group"),
    ];
    for (metadata, code, kind, text) in cases {
        is_refused(keda.is_active(trigger(metadata)).await, code, kind, text);
    }
    let absent = trigger(&[("stream", "work"), ("group", "absent")]);
    let mut watch = answer(keda.stream_is_active(absent).await);
    assert_eq!(watch.message().await.expect_err("it is refused").code(), Code::NotFound);
    server.stop();
}
