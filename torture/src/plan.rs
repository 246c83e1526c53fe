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

/// How the writers of a log tell where they expect it to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// One writer, which knows each revision: no append is a conflict.
    Exclusive,
    /// Several writers, each with the last revision that it knows: a conflict tells it the next one.
    Contended,
    /// Several writers that expect nothing.
    Any,
}

impl Style {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Style::Exclusive => "exclusive",
            Style::Contended => "contended",
            Style::Any => "any",
        }
    }
}

/// A stream of KurrentDB clients, which keeps every event.
#[derive(Debug, Clone)]
pub(crate) struct LogPlan {
    pub(crate) name: &'static str,
    pub(crate) style: Style,
    pub(crate) writers: u32,
    /// How long a writer waits between two rounds of appends, in milliseconds, at most.
    pub(crate) gap_ms: u64,
    pub(crate) batch_max: u64,
}

impl LogPlan {
    /// As the history tells it.
    pub(crate) fn fields(&self) -> [(&'static str, String); 2] {
        [("name", self.name.to_owned()), ("style", self.style.name().to_owned())]
    }
}

/// The names of all logs begin with this, so that one filter, and one category, has them all.
pub(crate) const LOGS: &str = "book-";

/// What a subscription or a reader of a KurrentDB client is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    Log(&'static str),
    /// The category of all logs, whose links are resolved.
    Category,
    /// `$all`, filtered by the names of the logs.
    All,
}

impl Source {
    /// The name of the stream.
    pub(crate) fn stream(self) -> &'static str {
        match self {
            Source::Log(name) => name,
            Source::Category => "$ce-book",
            Source::All => "$all",
        }
    }

    pub(crate) fn has(self, log: &str) -> bool {
        match self {
            Source::Log(name) => name == log,
            Source::Category | Source::All => true,
        }
    }
}

/// A persistent subscription of KurrentDB clients.
#[derive(Debug, Clone)]
pub(crate) struct SubscriptionPlan {
    pub(crate) source: Source,
    pub(crate) group: &'static str,
    pub(crate) strategy: &'static str,
    pub(crate) timeout_ms: u64,
    pub(crate) retries: u32,
    pub(crate) consumers: u32,
}

impl SubscriptionPlan {
    pub(crate) fn name(&self) -> String {
        format!("{}::{}", self.source.stream(), self.group)
    }

    /// As the history tells it.
    pub(crate) fn fields(&self) -> [(&'static str, String); 4] {
        [
            ("name", self.name()),
            ("source", self.source.stream().to_owned()),
            ("timeout_ms", self.timeout_ms.to_string()),
            ("retries", self.retries.to_string()),
        ]
    }
}

/// The part of a run that KurrentDB clients have.
#[derive(Debug, Clone, Default)]
pub(crate) struct KurrentPlan {
    pub(crate) logs: Vec<LogPlan>,
    pub(crate) subscriptions: Vec<SubscriptionPlan>,
    /// Catch-up subscriptions, from the first event on.
    pub(crate) readers: Vec<Source>,
}

impl KurrentPlan {
    fn all() -> KurrentPlan {
        let log = |name, style, writers| LogPlan { name, style, writers, gap_ms: 160, batch_max: 4 };
        let logs = vec![
            log("book-ledger", Style::Exclusive, 1),
            log("book-shared", Style::Contended, 2),
            log("book-notes", Style::Any, 2),
        ];
        let subscription = |source, group, strategy, consumers| SubscriptionPlan {
            source,
            group,
            strategy,
            timeout_ms: 3_000,
            retries: 10,
            consumers,
        };
        let mut readers: Vec<Source> = logs.iter().map(|log| Source::Log(log.name)).collect();
        readers.push(Source::All);
        KurrentPlan {
            logs,
            subscriptions: vec![
                subscription(Source::Log("book-ledger"), "workers", "RoundRobin", 3),
                subscription(Source::Log("book-shared"), "single", "DispatchToSingle", 2),
                subscription(Source::Log("book-notes"), "pinned", "Pinned", 2),
                subscription(Source::Category, "category", "RoundRobin", 2),
                subscription(Source::All, "everything", "RoundRobin", 2),
            ],
            readers,
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) streams: Vec<StreamPlan>,
    pub(crate) groups: Vec<GroupPlan>,
    pub(crate) queues: Vec<QueuePlan>,
    pub(crate) kurrent: KurrentPlan,
}

impl Plan {
    pub(crate) fn new(with_http: bool, with_sqs: bool, with_kurrent: bool) -> Plan {
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
            kurrent: if with_kurrent { KurrentPlan::all() } else { KurrentPlan::default() },
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
