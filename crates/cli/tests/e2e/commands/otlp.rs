//! Metrics at a real listener, in the protobuf of the OpenTelemetry protocol.

use std::net::TcpListener;
use std::time::Duration;

use forebay_doors::native::otlp::wire::{CUMULATIVE, Data, ExportMetrics, KeyValue, Metric};
use prost::Message as _;

use crate::commands::receiver::{Request, listen};
use crate::commands::rig::Server;
use crate::rig::run;

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
    let Data::Sum(exports) = find(&metrics, "forebay_otlp_exports_total") else { panic!("a sum") };
    let dropped = exports.points.iter().find(|point| text(&point.attributes, "result") == Some("dropped"));
    assert!(dropped.and_then(|point| point.value).is_some_and(|count| count >= 1.0), "{exports:?}");
    let log = server.stop();
    let lines: Vec<&str> = log.iter().filter_map(|line| line["message"].as_str()).collect();
    let said = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    assert_eq!((said("do not reach the collector"), said("reach the collector again")), (1, 1), "{lines:?}");
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
