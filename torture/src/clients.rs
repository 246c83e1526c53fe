//! Producers and consumers, each a task, each on a connection of its own. They find the server again by
//! themselves, and write down all that they do and see.

mod consume;
pub(crate) mod kurrent;
mod produce;
mod pull;
mod push;
pub(crate) mod queue;
#[cfg(test)]
mod tests;

use std::time::Duration;

use anyhow::Context as _;
use forebay_wire::v1::forebay_client::ForebayClient;
use tonic::transport::Channel;

use crate::content::{Content, Draft};
use crate::history::Phase;
use crate::world::{Server, World};

pub(crate) use consume::consume;
pub(crate) use produce::produce;
pub(crate) use pull::pull;
pub(crate) use push::push;

/// How long a client waits for a connection. A server that is held still does not make one.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// Before a client tries again what did not work.
const AGAIN: Duration = Duration::from_millis(25);
/// Longer than a server is ever held still, and longer than any long poll.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(20);

pub(crate) async fn connect(server: Server) -> anyhow::Result<ForebayClient<Channel>> {
    let endpoint = Channel::from_shared(format!("http://{}", server.address)).context("no address")?;
    let channel = endpoint.tcp_nodelay(true).connect_timeout(CONNECT_WITHIN).connect().await?;
    Ok(ForebayClient::new(channel).max_decoding_message_size(64 << 20))
}

/// A message as it came, through whichever door.
struct Arrived {
    seq: u64,
    attempt: u32,
    /// In microseconds since 1970.
    deadline: u64,
    published: u64,
    content: Content,
    session: Option<u64>,
}

/// Writes down that a message came. Its number among all deliveries, or none if it is not of this run.
fn write_delivery(world: &World, process: u32, group: &str, run: u32, arrived: &Arrived) -> Option<u64> {
    let Some(number) = arrived.content.number() else {
        world.trouble(process, format!("{group} {} is no message of this run", arrived.seq));
        return None;
    };
    world.came(group, arrived.seq);
    let delivery = world.number();
    let mut fields = vec![
        ("delivery", delivery.to_string()),
        ("group", group.to_owned()),
        ("seq", arrived.seq.to_string()),
        ("n", number.to_string()),
        ("content", arrived.content.digest().to_string()),
        ("attempt", arrived.attempt.to_string()),
        ("deadline", world.history.time_of(arrived.deadline).to_string()),
        // Not every door tells more than milliseconds.
        ("published", (arrived.published / 1_000).to_string()),
        ("run", run.to_string()),
    ];
    fields.extend(arrived.session.map(|session| ("session", session.to_string())));
    world.write(process, Phase::Ok, "deliver", &fields);
    Some(delivery)
}

fn write_publish(world: &World, process: u32, stream: &str, draft: &Draft) {
    let mut fields = vec![
        ("stream", stream.to_owned()),
        ("n", draft.number.to_string()),
        ("content", draft.content.digest().to_string()),
    ];
    if !draft.content.key.is_empty() {
        fields.push(("key", draft.content.key.clone()));
    }
    if draft.delay_ms > 0 {
        fields.push(("delay_ms", draft.delay_ms.to_string()));
    }
    world.write(process, Phase::Invoke, "publish", &fields);
}

fn write_confirmed(world: &World, process: u32, draft: &Draft, seq: u64) {
    let fields = [("n", draft.number.to_string()), ("seq", seq.to_string())];
    world.write(process, Phase::Ok, "publish", &fields);
}

/// What a client can do about a publish that was not confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Retry {
    Never,
    Later,
    SameId,
}

fn write_unconfirmed(world: &World, process: u32, drafts: &[Draft], retry: Retry, why: &str) {
    for draft in drafts {
        let number = ("n", draft.number.to_string());
        let why = ("why", why.to_owned());
        match retry {
            Retry::Never => {
                world.write(process, Phase::Fail, "publish", &[number, ("retry", "never".to_owned()), why])
            }
            Retry::Later => world.write(process, Phase::Fail, "publish", &[number, why]),
            Retry::SameId => world.write(process, Phase::Info, "publish", &[number]),
        };
    }
}
