//! Tests of both protocols together.

mod parity;

/// The names of all calls: over HTTP method and path, and those of gRPC.
pub(crate) fn calls() -> (Vec<String>, Vec<String>) {
    let http = parity::http_calls().into_keys().map(|(method, path)| format!("{method} {path}"));
    (http.collect(), parity::grpc_calls().into_iter().collect())
}
