//! What a run works on: streams, groups, and how many clients of which kind each has.

use forebay_wire::v1;
use forebay_wire::v1::group_settings::{Acks, Strategy};
use serde_json::{Value, json};

use crate::content::Flavour;

/// How a producer makes sure that what it sends again is stored once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Naming {
    Ids,
    /// Producer, epoch and counter.
    Stamps,
    /// Not at all: an unknown outcome stays unknown.
    Nothing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Door {
    Grpc(Naming),
    Http,
}

#[derive(Debug, Clone)]
pub(crate) struct StreamPlan {
    pub(crate) name: &'static str,
    pub(crate) flavour: Flavour,
    pub(crate) producers: Vec<Door>,
    /// How long a producer waits between two batches, in milliseconds, at most.
    pub(crate) gap_ms: u64,
    pub(crate) batch_max: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct GroupPlan {
    pub(crate) stream: &'static str,
    pub(crate) group: &'static str,
    pub(crate) is_ordered: bool,
    pub(crate) is_durable: bool,
    pub(crate) timeout_ms: u64,
    pub(crate) retries: Option<u32>,
    /// Messages a second, and how many at once.
    pub(crate) rate: Option<(f64, u32)>,
    pub(crate) consumers: u32,
    pub(crate) pullers: u32,
}

impl GroupPlan {
    pub(crate) fn name(&self) -> String {
        format!("{}/{}", self.stream, self.group)
    }

    pub(crate) fn settings(&self) -> v1::GroupSettings {
        let retries = match self.retries {
            Some(retries) => v1::retries::Retries::AtMost(retries),
            None => v1::retries::Retries::Unlimited(true),
        };
        let strategy = if self.is_ordered { Strategy::Ordered } else { Strategy::RoundRobin };
        let acks = if self.is_durable { Acks::Durable } else { Acks::Journal };
        v1::GroupSettings {
            message_timeout_ms: Some(self.timeout_ms),
            max_retries: Some(v1::Retries { retries: Some(retries) }),
            backoff: Some(v1::Backoff { min_ms: Some(50), max_ms: Some(400), ..Default::default() }),
            strategy: strategy.into(),
            acks: acks.into(),
            rate: self.rate.map(|(per_second, burst)| v1::Rate { per_second, burst }),
            ..v1::GroupSettings::default()
        }
    }

    /// As the history tells it.
    pub(crate) fn fields(&self) -> Vec<(&'static str, String)> {
        let mut fields = vec![
            ("name", self.name()),
            ("stream", self.stream.to_owned()),
            ("strategy", if self.is_ordered { "ordered" } else { "round_robin" }.to_owned()),
            ("acks", if self.is_durable { "durable" } else { "journal" }.to_owned()),
            ("timeout_ms", self.timeout_ms.to_string()),
        ];
        fields.extend(self.retries.map(|retries| ("retries", retries.to_string())));
        if let Some((per_second, burst)) = self.rate {
            fields.extend([("rate", per_second.to_string()), ("burst", burst.to_string())]);
        }
        fields
    }

    /// The same settings as the HTTP door writes them.
    pub(crate) fn json(&self) -> Value {
        let mut settings = json!({
            "message_timeout": format!("{}ms", self.timeout_ms),
            "max_retries": self.retries.map_or(json!("unlimited"), |retries| json!(retries)),
            "backoff": { "min": "50ms", "max": "400ms" },
            "strategy": if self.is_ordered { "ordered" } else { "round_robin" },
            "acks": if self.is_durable { "durable" } else { "journal" },
        });
        if let Some((per_second, burst)) = self.rate {
            settings["rate"] = json!({ "per_second": per_second, "burst": burst });
        }
        settings
    }
}

/// A queue of SQS.
#[derive(Debug, Clone)]
pub(crate) struct QueuePlan {
    pub(crate) name: &'static str,
    pub(crate) is_fifo: bool,
    /// A whole number of seconds.
    pub(crate) timeout_ms: u64,
    /// How long a producer waits between two sends, in milliseconds, at most.
    pub(crate) gap_ms: u64,
    pub(crate) senders: u32,
    pub(crate) consumers: u32,
}

impl QueuePlan {
    pub(crate) fn attributes(&self) -> Value {
        let mut attributes = json!({ "VisibilityTimeout": (self.timeout_ms / 1_000).to_string() });
        if self.is_fifo {
            attributes["FifoQueue"] = json!("true");
        }
        attributes
    }

    /// As the history tells it.
    pub(crate) fn fields(&self) -> [(&'static str, String); 3] {
        [
            ("name", self.name.to_owned()),
            ("fifo", self.is_fifo.to_string()),
            ("timeout_ms", self.timeout_ms.to_string()),
        ]
    }

    /// Two queues. One sender for a FIFO queue, so that the order of its messages is the order in which they were sent.
    pub(crate) fn all() -> Vec<QueuePlan> {
        let queue = QueuePlan {
            name: "orders",
            is_fifo: false,
            timeout_ms: 3_000,
            gap_ms: 60,
            senders: 2,
            consumers: 3,
        };
        let fifo = QueuePlan { name: "steps.fifo", is_fifo: true, gap_ms: 80, senders: 1, ..queue.clone() };
        vec![queue, fifo]
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) streams: Vec<StreamPlan>,
    pub(crate) groups: Vec<GroupPlan>,
    pub(crate) queues: Vec<QueuePlan>,
}

impl Plan {
    pub(crate) fn new(with_http: bool, with_sqs: bool) -> Plan {
        use Door::{Grpc, Http};
        let http = |count: u32| if with_http { count } else { 0 };
        let group = GroupPlan {
            stream: "plain",
            group: "",
            is_ordered: false,
            is_durable: false,
            timeout_ms: 3_000,
            retries: None,
            rate: None,
            consumers: 2,
            pullers: 0,
        };
        let stream = |name, flavour, mut producers: Vec<Door>, gap_ms, batch_max| {
            producers.retain(|door| with_http || *door != Http);
            StreamPlan { name, flavour, producers, gap_ms, batch_max }
        };
        Plan {
            queues: if with_sqs { QueuePlan::all() } else { Vec::new() },
            streams: vec![
                stream(
                    "plain",
                    Flavour::Plain,
                    vec![Grpc(Naming::Ids), Grpc(Naming::Stamps), Grpc(Naming::Nothing)],
                    120,
                    6,
                ),
                stream("keyed", Flavour::Keyed(16), vec![Grpc(Naming::Stamps), Http], 120, 4),
                stream("paced", Flavour::Plain, vec![Grpc(Naming::Ids)], 500, 12),
                stream("mixed", Flavour::Mixed, vec![Grpc(Naming::Ids), Http], 120, 4),
            ],
            groups: vec![
                GroupPlan { group: "workers", consumers: 3, pullers: http(1), ..group.clone() },
                GroupPlan { group: "sure", is_durable: true, pullers: http(1), ..group.clone() },
                GroupPlan {
                    stream: "keyed",
                    group: "in order",
                    is_ordered: true,
                    timeout_ms: 2_000,
                    consumers: 3,
                    pullers: http(1),
                    ..group.clone()
                },
                GroupPlan { stream: "paced", group: "steady", rate: Some((40.0, 5)), ..group.clone() },
                GroupPlan {
                    stream: "mixed",
                    group: "fussy",
                    timeout_ms: 1_500,
                    retries: Some(3),
                    pullers: http(1),
                    ..group.clone()
                },
                GroupPlan {
                    stream: "mixed",
                    group: "pulled",
                    timeout_ms: 4_000,
                    retries: Some(5),
                    consumers: if with_http { 0 } else { 2 },
                    pullers: http(3),
                    ..group
                },
            ],
        }
    }
}
