//! `forebay ping`: whether a server answers and accepts work. For health checks of containers and scripts.

use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use serde_json::json;

use crate::clock::Clock;
use crate::connect::{Server, runtime};
use crate::exit::Exit;
use crate::http::Http;
use crate::print::{Output, print};
use crate::settings::values::some_duration;
use crate::units;

pub(crate) const EXAMPLES: &str = "\
Exit codes: 0 the server accepts work, 7 it cannot be reached, 10 it is draining or stopping.

Examples:
  forebay ping
  forebay ping --server queue.example.com --timeout 2s
  HEALTHCHECK CMD [\"forebay\", \"ping\"]            in a Containerfile";

#[derive(Debug, Args)]
pub(crate) struct Ping {
    /// How long to wait for the answer.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = some_duration)]
    timeout: Duration,
    #[command(flatten)]
    server: Server,
}

pub(crate) fn run(options: &Ping, output: Output) -> anyhow::Result<()> {
    runtime()?.block_on(async {
        let clock = Clock::start();
        let began = clock.now();
        let asked = tokio::time::timeout(options.timeout, ask(&options.server));
        let address = match asked.await {
            Ok(answered) => answered?,
            Err(_) => {
                let address = options.server.first()?.authority;
                return Err(anyhow!(Exit::Unreachable).context(format!(
                    "the server at {address} did not answer within {}",
                    units::age(options.timeout.as_secs_f64())
                )));
            }
        };
        let took = clock.now().since(began).as_secs_f64();
        match output {
            Output::Json => print(&format!("{}\n", json!({ "server": address, "seconds": took }))),
            Output::Text => print(&format!("{address} is ready ({})\n", units::age(took))),
        }
    })
}

/// The address of the server that is ready.
async fn ask(server: &Server) -> anyhow::Result<String> {
    let mut http = Http::connect(server).await?;
    http.get("/readyz").await?;
    Ok(http.address().to_owned())
}
