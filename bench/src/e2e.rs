//! The whole server over gRPC: publish, deliver, ack, with clients in this process and the server in
//! another.
//!
//! Two producers keep 1,024 messages unconfirmed each, in batches; four consumers ack everything they
//! get. Beside it, in the same run and with the same clients, stands a bare pass-through: the same
//! service without storage or leases, which passes published messages to the consumers through a channel.
//! The distance to it is the cost of Forebay; the pass-through itself is the cost of gRPC.

pub(crate) mod clients;
mod passthrough;

use std::error::Error;
use std::time::Duration;

use crate::arguments::Arguments;
use crate::server::{self, Server};
use clients::Workload;

/// The name under which this program runs as the pass-through.
pub(crate) const CHILD: &str = "e2e-passthrough";

pub(crate) fn run(mut arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let seconds = arguments.seconds(3.0)?;
    let batches = arguments.take("batch")?.map_or(vec![1, 8, 64], |batch| vec![batch]);
    let sizes = arguments.take("body")?.map_or(vec![100, 1024], |size| vec![size]);
    let credits = arguments.take("credit")?.map_or(vec![256, 2048], |credit| vec![credit]);
    let program = server::program(&mut arguments)?;
    let folder = arguments.folder()?;
    arguments.finish()?;
    let own = std::env::current_exe()?;
    println!("messages a second through publish, deliver and ack; server CPU for each");
    println!(
        "{:>6} {:>6} {:>7} | {:>22} {:>22} {:>22} | {:>6}",
        "body", "batch", "credit", "journal", "memory", "pass-through", "ratio"
    );
    for &size in &sizes {
        for &credit in &credits {
            for &batch in &batches {
                let workload = Workload { size, batch, credit, lasts: Duration::from_secs_f64(seconds) };
                let _ = std::fs::remove_dir_all(&folder);
                let journal = measure(Server::serve(&program, &folder)?, &workload)?;
                let in_memory =
                    ["serve", "--listen", "127.0.0.1:0", "--sqs", "none", "--kurrent", "none", "--memory"];
                let memory = measure(Server::start(&program, &in_memory)?, &workload)?;
                let bare = measure(Server::start(&own, &[CHILD])?, &workload)?;
                println!(
                    "{size:>6} {batch:>6} {credit:>7} | {journal:>22} {memory:>22} {bare:>22} | {:>6.2}",
                    journal.rate / bare.rate
                );
            }
        }
    }
    let _ = std::fs::remove_dir_all(&folder);
    Ok(())
}

pub(crate) fn run_child(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    arguments.finish()?;
    passthrough::serve()
}

/// The measurements of one server.
struct Figure {
    rate: f64,
    /// Processor time of the server for each message, in microseconds.
    cpu: f64,
}

impl std::fmt::Display for Figure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&format!("{:.0}/s {:.2} µs", self.rate, self.cpu))
    }
}

fn measure(server: Server, workload: &Workload) -> Result<Figure, Box<dyn Error>> {
    let measured = clients::run(&server.address, workload, || server.cpu_seconds())?;
    Ok(Figure {
        rate: measured.acked as f64 / measured.took.as_secs_f64(),
        cpu: measured.cpu * 1e6 / measured.acked as f64,
    })
}
