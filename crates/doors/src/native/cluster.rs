//! How the cluster stands that this server is a node of, as the program around the doors tells.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use forebay_wire::json::ClusterReport;

type Reporting = Pin<Box<dyn Future<Output = ClusterReport> + Send>>;

/// Asks how the cluster stands.
#[derive(Clone)]
pub struct ClusterReporter(Arc<dyn Fn() -> Reporting + Send + Sync>);

impl std::fmt::Debug for ClusterReporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ClusterReporter(..)")
    }
}

impl ClusterReporter {
    pub fn new<F>(report: impl Fn() -> F + Send + Sync + 'static) -> ClusterReporter
    where
        F: Future<Output = ClusterReport> + Send + 'static,
    {
        ClusterReporter(Arc::new(move || Box::pin(report())))
    }

    pub(crate) async fn report(&self) -> ClusterReport {
        (self.0)().await
    }
}
