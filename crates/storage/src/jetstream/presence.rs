//! Nodes that tell each other how they stand. Every node, owner or standby, answers a question on a plain subject of
//! NATS, so any of them can describe the whole cluster. Nothing depends on the answers: they are for people.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use forebay_core::types::Epoch;
use serde_json::{Value, json};

use crate::engine::Tenure;
use crate::jetstream::keeper::Shared;
use crate::jetstream::link::Link;
use crate::jetstream::record::Claimant;
use crate::jetstream::tenure::Watched;
use crate::jetstream::wire::Letter;

/// How long answers are collected.
const ANSWERS_WITHIN: Duration = Duration::from_millis(400);
/// Answers that are kept.
const NODES_MAX: usize = 64;
/// Before a question is listened for again, after that was not possible.
const PAUSE: Duration = Duration::from_secs(1);

/// What a node knows about itself.
#[derive(Debug)]
pub(crate) struct Presence {
    claimant: Claimant,
    /// Until when the former owner's tenure counts, as far as it was seen.
    watched: Mutex<Watched>,
    pub(crate) office: OnceLock<Office>,
}

/// The term of an owner.
#[derive(Debug)]
pub(crate) struct Office {
    pub(crate) epoch: Epoch,
    pub(crate) tenure: Tenure,
    pub(crate) shared: Arc<Shared>,
}

/// A node of the cluster, as it describes itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeState {
    pub node: String,
    pub address: String,
    pub version: String,
    pub is_owner: bool,
    /// The last term in which it owned the log since it started; 0 if there was none.
    pub epoch: u32,
    /// How long it may still serve without another sign that it owns the log.
    pub tenure_left: Option<Duration>,
    /// The last record of the log that it has seen.
    pub seen: u64,
    start: u64,
}

impl Presence {
    pub(crate) fn new(claimant: Claimant) -> Presence {
        Presence { claimant, watched: Mutex::default(), office: OnceLock::new() }
    }

    pub(crate) fn watched(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn state(&self) -> NodeState {
        let Claimant { node, address, start, .. } = self.claimant.clone();
        let office = self.office.get();
        let is_owner = office.is_some_and(|office| !office.tenure.is_lost());
        NodeState {
            node,
            address,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            is_owner,
            epoch: office.map_or(0, |office| office.epoch.0),
            tenure_left: office.filter(|_| is_owner).and_then(|office| office.tenure.left()),
            seen: office.map_or_else(|| self.watched().last, |office| office.shared.known().last),
            start,
        }
    }
}

impl NodeState {
    fn encode(&self) -> String {
        json!({
            "node": self.node,
            "address": self.address,
            "version": self.version,
            "owner": self.is_owner,
            "epoch": self.epoch,
            "tenure_left_us": self.tenure_left.map(|left| left.as_micros() as u64),
            "seen": self.seen,
            "start": self.start,
        })
        .to_string()
    }

    fn decode(bytes: &[u8]) -> Option<NodeState> {
        let said: Value = serde_json::from_slice(bytes).ok()?;
        let text = |name: &str| said[name].as_str().map(str::to_owned);
        Some(NodeState {
            node: text("node")?,
            address: text("address")?,
            version: text("version")?,
            is_owner: said["owner"].as_bool()?,
            epoch: said["epoch"].as_u64().and_then(|epoch| epoch.try_into().ok())?,
            tenure_left: said["tenure_left_us"].as_u64().map(Duration::from_micros),
            seen: said["seen"].as_u64()?,
            start: said["start"].as_u64()?,
        })
    }
}

/// Answers questions until it is dropped.
pub(crate) async fn answer(link: Link, presence: Arc<Presence>) {
    loop {
        // The client subscribes again by itself when it has lost its connection.
        if let Ok(mut questions) = link.wire().listen(link.nodes_subject()).await {
            while let Some(question) = questions.next().await {
                if let Some(reply) = question.reply {
                    let _ = link.wire().send(Letter::new(reply, presence.state().encode())).await;
                }
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// All nodes that answer, by name, with this one.
pub(crate) async fn nodes(link: &Link, own: &Presence) -> Vec<NodeState> {
    let mut nodes = vec![own.state()];
    let ask = async {
        let inbox = link.wire().inbox();
        let Ok(mut answers) = link.wire().listen(inbox.clone()).await else { return };
        let question = Letter { reply: Some(inbox), ..Letter::new(link.nodes_subject(), Vec::new()) };
        if link.wire().send(question).await.is_err() {
            return;
        }
        while let Some(answer) = answers.next().await {
            let Some(state) = NodeState::decode(&answer.payload) else { continue };
            let is_known = nodes.iter().any(|node| (&node.node, node.start) == (&state.node, state.start));
            if !is_known && nodes.len() < NODES_MAX {
                nodes.push(state);
            }
        }
    };
    let _ = tokio::time::timeout(ANSWERS_WITHIN, ask).await;
    nodes.sort_by(|a, b| (&a.node, a.start).cmp(&(&b.node, b.start)));
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_describes_itself_in_words_that_others_understand() {
        let claimant =
            Claimant { node: "a".to_owned(), address: "10.0.0.1:7070".to_owned(), ..Claimant::default() };
        let presence = Presence::new(claimant);
        presence.watched().last = 7;
        let state = presence.state();
        assert_eq!((state.is_owner, state.seen, state.tenure_left), (false, 7, None));
        assert_eq!(NodeState::decode(state.encode().as_bytes()), Some(state.clone()));
        let left = Some(Duration::from_micros(1_500));
        let owner = NodeState { is_owner: true, epoch: 3, tenure_left: left, ..state };
        assert_eq!(NodeState::decode(owner.encode().as_bytes()), Some(owner));
        for strange in [&b""[..], b"{}", b"[1]", b"\xff"] {
            assert_eq!(NodeState::decode(strange), None);
        }
    }
}
