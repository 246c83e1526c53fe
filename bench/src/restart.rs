//! A long backlog, a server that is killed, and how soon it hands out again.
//!
//! Millions of messages are published through the real door, the server is killed with SIGKILL, and the clock
//! runs from the start of the new process to the first message in a consumer's hands. Then a part of the
//! backlog is worked through, to see that memory follows the window and not the backlog.

use std::error::Error;
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_wire::v1;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;

use crate::arguments::Arguments;
use crate::e2e::clients::{connect, open};
use crate::server::{self, Server};

const BATCH: u64 = 500;
/// Batches that are on their way at a time.
const WINDOW: u64 = 32;
/// Messages that are worked through after each restart.
const DRAINED: u64 = 500_000;
const CREDIT: u32 = 2_000;

pub(crate) fn run(mut arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let messages = arguments.number("messages", 5_000_000)?;
    let size = arguments.number("body", 100)? as usize;
    let rounds = arguments.number("rounds", 3)?;
    let program = server::program(&mut arguments)?;
    let folder = arguments.folder()?;
    arguments.finish()?;
    let _ = std::fs::remove_dir_all(&folder);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;

    let server = Server::serve(&program, &folder)?;
    let started = Instant::now();
    runtime.block_on(fill(&server.address, messages, size))?;
    let memory = server.memory()?;
    println!(
        "{messages} messages of {size} bytes published in {:.1} s; the server has {} MiB, at most {} MiB",
        started.elapsed().as_secs_f64(),
        memory.resident >> 10,
        memory.peak >> 10
    );
    drop(server);
    println!("{:>6} {:>20} {:>14} {:>14} {:>16}", "round", "first delivery", "then", "at most", "drained");
    for round in 1..=rounds {
        let started = Instant::now();
        let server = Server::serve(&program, &folder)?;
        let first = runtime.block_on(first_delivery(&server.address, started))?;
        let then = server.memory()?.resident >> 10;
        let begun = Instant::now();
        runtime.block_on(drain(&server.address, DRAINED.min(messages / (rounds + 1))))?;
        let rate = DRAINED.min(messages / (rounds + 1)) as f64 / begun.elapsed().as_secs_f64();
        let peak = server.memory()?.peak >> 10;
        let first = format!("{:.0} ms", first.as_secs_f64() * 1e3);
        println!(
            "{round:>6} {first:>20} {:>14} {:>14} {:>16}",
            format!("{then} MiB"),
            format!("{peak} MiB"),
            format!("{rate:.0}/s")
        );
    }
    let _ = std::fs::remove_dir_all(&folder);
    Ok(())
}

async fn fill(address: &str, messages: u64, size: usize) -> Result<(), Box<dyn Error>> {
    let mut client = connect(address).await?;
    let (stream, group) = ("bench".to_owned(), "bench".to_owned());
    client.create_group(v1::CreateGroupRequest { stream, group, ..Default::default() }).await?;
    let (requests, sent) = mpsc::unbounded_channel();
    let message = v1::Message { body: Bytes::from(vec![b'x'; size]), ..Default::default() };
    let batches = messages.div_ceil(BATCH);
    let batch = |ticket| v1::PublishRequest {
        stream: "bench".to_owned(),
        messages: vec![message.clone(); BATCH as usize],
        ticket,
        ..Default::default()
    };
    for ticket in 0..WINDOW.min(batches) {
        requests.send(batch(ticket))?;
    }
    let mut replies = client.publish(UnboundedReceiverStream::new(sent)).await?.into_inner();
    let (mut sent, mut confirmed) = (WINDOW.min(batches), 0);
    while confirmed < batches {
        let reply = replies.message().await?.ok_or("the server closed the call")?;
        for confirmation in reply.confirmations {
            if let Some(problem) = confirmation.problem {
                return Err(problem.detail.into());
            }
            confirmed += 1;
            if sent < batches {
                requests.send(batch(sent))?;
                sent += 1;
            }
        }
    }
    Ok(())
}

/// From the start of the process to the first message.
async fn first_delivery(address: &str, started: Instant) -> Result<Duration, Box<dyn Error>> {
    let (_requests, mut replies) = open(connect(address).await?, 1).await?;
    loop {
        let reply = replies.message().await?.ok_or("the server closed the call")?;
        if reply.deliveries.is_some() {
            return Ok(started.elapsed());
        }
    }
}

async fn drain(address: &str, messages: u64) -> Result<(), Box<dyn Error>> {
    let (requests, mut replies) = open(connect(address).await?, CREDIT).await?;
    let mut drained = 0;
    while drained < messages {
        let reply = replies.message().await?.ok_or("the server closed the call")?;
        let Some(deliveries) = reply.deliveries else { continue };
        drained += deliveries.messages.len() as u64;
        let leases = deliveries.runs.iter().map(|run| v1::LeaseRun {
            first_seq: run.first_seq,
            first_grant: run.first_grant,
            count: run.count,
        });
        let settlement = v1::Settlement {
            action: v1::settlement::Action::Ack.into(),
            epoch: deliveries.epoch,
            leases: leases.collect(),
            ..Default::default()
        };
        requests.send(v1::ConsumeRequest { settlements: vec![settlement], ..Default::default() })?;
    }
    Ok(())
}
