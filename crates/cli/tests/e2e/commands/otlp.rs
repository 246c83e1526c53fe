//! Metrics and spans at a real listener, in the protobuf of the OpenTelemetry protocol.

use std::net::TcpListener;
use std::time::Duration;

use forebay_doors::native::otlp::wire::{
    CUMULATIVE, Data, ExportMetrics, ExportSpans, KeyValue, Metric, SERVER, Span,
};
use prost::Message as _;
use serde_json::json;

use crate::commands::receiver::{Request, listen};
use crate::commands::rig::Server;
use crate::rig::run;
use crate::sqs::rig::Client;

/// Long enough for anything that happens at all.
const PATIENCE: Duration = Duration::from_secs(60);

fn read(request: &Request) -> (Vec<KeyValue>, Vec<Metric>) {
    assert_eq!((&*request.path, request.header("content-type")), ("/v1/metrics", "application/x-protobuf"));
    let mut export = ExportMetrics::decode(&request.body[..]).expect("protobuf");
    let of = export.resources.pop().expect("one resource");
    let metrics = of.scopes.into_iter().flat_map(|scope| scope.metrics).collect();
    (of.resource.expect("it says whose").attributes, metrics)
}

fn text<'a>(attributes: &'a [KeyValue], key: &str) -> Option<&'a str> {
    let found = attributes.iter().find(|one| one.key == key)?;
    found.value.as_ref()?.text.as_deref()
}

fn find<'a>(metrics: &'a [Metric], name: &str) -> &'a Data {
    let metric = metrics.iter().find(|metric| metric.name == name);
    metric.and_then(|metric| metric.data.as_ref()).unwrap_or_else(|| panic!("no {name}"))
}

#[test]
fn metrics_are_sent_to_a_collector_and_a_collector_that_is_down_costs_only_exports() {
    // A port that refuses connections until the test listens on it.
    let port = TcpListener::bind("127.0.0.1:0").expect("a port is free").local_addr().expect("an address");
    let endpoint = format!("http://{port}/otlp/");
    let server = Server::start_with(&["--memory", "--otlp-endpoint", &endpoint, "--otlp-interval", "1s"]);
    server.run(&["group", "create", "orders/billing"]).good();
    server.run(&["pub", "orders", "a", "b", "c"]).good();
    server.run(&["sub", "orders/billing", "--ack", "--max", "2"]).good();
    std::thread::sleep(Duration::from_millis(2_500));
    let came = listen(TcpListener::bind(port).expect("the port is free"), vec![503]);
    let refused = came.recv_timeout(PATIENCE).expect("an export comes when the collector is back");
    assert_eq!(refused.path, "/otlp/v1/metrics");
    let (resource, metrics) = {
        let mut next = came.recv_timeout(PATIENCE).expect("the next one comes");
        next.path = next.path.trim_start_matches("/otlp").to_owned();
        read(&next)
    };
    assert_eq!(text(&resource, "service.name"), Some("forebay"));
    assert!(text(&resource, "service.instance.id").is_some());
    let Data::Gauge(lag) = find(&metrics, "forebay_group_lag") else { panic!("a gauge") };
    let lag = lag.points.iter().find(|point| text(&point.attributes, "group") == Some("billing"));
    assert_eq!(lag.expect("the group has a point").value, Some(1.0));
    let Data::Sum(acked) = find(&metrics, "forebay_group_acked_total") else { panic!("a sum") };
    assert!(acked.is_monotonic && acked.temporality == CUMULATIVE);
    let point = &acked.points[0];
    assert_eq!(point.value, Some(2.0));
    assert!(point.start_ns > 0 && point.time_ns > point.start_ns);
    let Data::Histogram(syncs) = find(&metrics, "forebay_storage_sync_seconds") else {
        panic!("a histogram")
    };
    let point = &syncs.points[0];
    assert_eq!(point.buckets.len(), point.bounds.len() + 1);
    assert_eq!(point.buckets.iter().sum::<u64>(), point.count);
    for (name, count) in [("forebay_group_processing_seconds", 2), ("forebay_group_end_to_end_seconds", 2)] {
        let Data::Histogram(times) = find(&metrics, name) else { panic!("a histogram") };
        let point = &times.points[0];
        assert_eq!((text(&point.attributes, "group"), point.count), (Some("billing"), count), "{name}");
        assert_eq!(point.buckets.iter().sum::<u64>(), point.count);
    }
    let Data::Histogram(commits) = find(&metrics, "forebay_commit_seconds") else { panic!("a histogram") };
    assert!(commits.points[0].count > 0);
    let Data::Sum(exports) = find(&metrics, "forebay_otlp_exports_total") else { panic!("a sum") };
    let dropped = exports.points.iter().find(|point| text(&point.attributes, "result") == Some("dropped"));
    assert!(dropped.and_then(|point| point.value).is_some_and(|count| count >= 1.0), "{exports:?}");
    let log = server.stop();
    let lines: Vec<&str> = log.iter().filter_map(|line| line["message"].as_str()).collect();
    let said = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    assert_eq!((said("do not reach the collector"), said("reach the collector again")), (1, 1), "{lines:?}");
}

const PRODUCER: &str = "00f067aa0ba902b7";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The next spans that the collector is sent, so many of them.
fn spans(came: &std::sync::mpsc::Receiver<Request>, count: usize) -> Vec<Span> {
    let mut all = Vec::new();
    while all.len() < count {
        let request = came.recv_timeout(PATIENCE).expect("an export comes");
        if request.path != "/v1/traces" {
            continue;
        }
        assert_eq!(request.header("content-type"), "application/x-protobuf");
        for of in ExportSpans::decode(&request.body[..]).expect("protobuf").resources {
            let resource = of.resource.expect("it says whose").attributes;
            assert_eq!(text(&resource, "service.name"), Some("forebay"));
            all.extend(of.scopes.into_iter().flat_map(|scope| scope.spans));
        }
    }
    assert_eq!(all.len(), count, "{all:#?}");
    all
}

/// The three spans of a message, which one trace has in this order, under the span of its producer.
fn check_trace(spans: &[Span], trace: &str) {
    let of: Vec<&Span> = spans.iter().filter(|span| hex(&span.trace_id) == trace).collect();
    let named = |name: &str| *of.iter().find(|span| span.name == name).unwrap_or_else(|| panic!("no {name}"));
    let [publish, deliver, settle] = ["publish orders", "deliver orders", "settle orders"].map(named);
    assert_eq!(of.len(), 3, "{of:#?}");
    assert_eq!((&*hex(&publish.parent_span_id), &*hex(&deliver.parent_span_id)), (PRODUCER, PRODUCER));
    assert_eq!(settle.parent_span_id, deliver.span_id, "the answer belongs to its delivery");
    assert!(publish.start_ns <= publish.end_ns && deliver.end_ns == settle.start_ns, "{of:#?}");
    let operations = [(publish, "send"), (deliver, "receive"), (settle, "settle")];
    for (span, kind) in operations {
        assert_eq!((span.kind, span.span_id.len()), (SERVER, 8));
        assert!(span.start_ns > 1_600_000_000_000_000_000 && span.start_ns <= span.end_ns, "{span:?}");
        let attribute = |name| text(&span.attributes, name);
        assert_eq!(attribute("messaging.system"), Some("forebay"));
        assert_eq!(attribute("messaging.destination.name"), Some("orders"));
        assert_eq!(attribute("messaging.operation.type"), Some(kind));
        let group = (kind != "send").then_some("queue");
        assert_eq!(attribute("messaging.consumer.group.name"), group);
        let outcome = (kind == "settle").then_some("acked");
        assert_eq!(attribute("forebay.message.outcome"), outcome);
    }
}

#[test]
fn a_trace_joins_a_producer_over_one_door_to_a_consumer_over_another() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
    let came = listen(listener, Vec::new());
    let server = Server::start_with(&[
        "--memory",
        "--sqs",
        "127.0.0.1:0",
        "--otlp-endpoint",
        &endpoint,
        "--otlp-interval",
        "1h",
        "--otlp-traces",
    ]);
    let (first, second, third) = (
        "4bf92f3577b34da6a3ce929d0e0e4736",
        "5759e988bd862e3fe1be46a994272793",
        "1111111111111111aaaaaaaaaaaaaaaa",
    );
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let native = Client::new(&server.address);
        let sqs = Client::new(server.first["sqs"].as_str().expect("it says where SQS is"));
        let queue = sqs.create("orders", json!({})).await;
        let publish = async |trace: &str, flags: &str, id: &str| {
            let parent = format!("00-{trace}-{PRODUCER}-{flags}");
            let headers = [("content-type", "application/json"), ("traceparent", parent.as_str())];
            let body = json!({ "messages": [{ "id": id, "body_text": id }] }).to_string();
            let answer = native.send("POST", "/streams/orders/messages", &headers, &body).await;
            assert_eq!(answer.status, 201, "{}", answer.body);
        };
        // One that is not sampled, and then one that is, from HTTP to SQS.
        publish(third, "00", "unsampled").await;
        publish(first, "01", "sampled").await;
        for id in ["unsampled", "sampled"] {
            let received = sqs.ask("ReceiveMessage", json!({ "QueueUrl": queue })).await.json();
            let message = &received["Messages"][0];
            assert_eq!(message["Body"], id, "{received}");
            let receipt = json!({ "QueueUrl": queue, "ReceiptHandle": message["ReceiptHandle"] });
            assert_eq!(sqs.ask("DeleteMessage", receipt).await.status, 200);
        }
        // And from SQS, with the header of X-Ray, to gRPC.
        let header = format!("Root=1-{}-{};Parent={PRODUCER};Sampled=1", &second[..8], &second[8..]);
        let send = json!({ "QueueUrl": queue, "MessageBody": "x-ray",
            "MessageSystemAttributes": { "AWSTraceHeader": { "DataType": "String", "StringValue": header } } });
        assert_eq!(sqs.ask("SendMessage", send).await.status, 200);
    });
    server.run(&["sub", "orders/queue", "--ack", "--max", "1"]).good();
    let spans = spans(&came, 6);
    check_trace(&spans, first);
    check_trace(&spans, second);
    let ids: Vec<_> = spans.iter().filter(|span| hex(&span.trace_id) == first).collect();
    assert!(
        ids.iter().all(|span| text(&span.attributes, "messaging.message.id") == Some("sampled")),
        "{ids:#?}"
    );
    let metrics = runtime.block_on(Client::new(&server.address).send("GET", "/metrics", &[], "")).body;
    assert!(metrics.contains("forebay_otlp_spans_total{result=\"dropped\"} 0"), "{metrics}");
}

#[test]
fn wrong_settings_of_the_export_are_refused_before_anything_starts() {
    for (flag, value, said) in [
        ("--otlp-endpoint", "ftp://host", "http://127.0.0.1:4318"),
        ("--otlp-endpoint", "http://user:secret@host", "a user or a password"),
        ("--otlp-interval", "10ms", "at least 1s"),
    ] {
        run(&["config", "check", flag, value], "", &[]).refused(2, &[said]);
    }
}
