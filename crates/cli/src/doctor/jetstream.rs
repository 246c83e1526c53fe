//! `forebay doctor --engine jetstream`: verifies a log on NATS, which is only read.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use forebay_broker::clock::Clock;
use forebay_storage::jetstream::{Claimant, JetStreamConfig, LogDiagnosis};
use serde::Serialize;

use super::Progress;
use super::report::size;
use crate::exit::Exit;
use crate::print::Output;
use crate::serve::{log_config, refused};
use crate::settings::{self, EngineKind, Flags, Settings, Sources};
use crate::units;

/// The settings of `forebay serve` that name a log on NATS.
#[derive(Debug, Args)]
pub(super) struct LogFlags {
    /// jetstream: verify a log on NATS instead of a folder.
    #[arg(long, value_name = "journal|jetstream")]
    engine: Option<String>,
    /// The settings file of a node, which names its log on NATS.
    #[arg(long, value_name = "FILE", conflicts_with = "data")]
    config: Option<PathBuf>,
    /// Addresses of NATS servers, with commas between them.
    #[arg(long, value_name = "URLS")]
    nats: Option<String>,
    /// The name of the cluster.
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    /// File with the certificates of authorities for connections to NATS, which then use TLS.
    #[arg(long, value_name = "FILE")]
    nats_ca: Option<String>,
    /// File with user and password for NATS, USER:PASSWORD in one line.
    #[arg(long, value_name = "FILE")]
    nats_user_file: Option<String>,
}

impl LogFlags {
    /// The settings, if they name a log on NATS.
    pub(super) fn settings(&self) -> anyhow::Result<Option<Settings>> {
        let given = [
            ("engine", &self.engine),
            ("nats", &self.nats),
            ("cluster", &self.cluster),
            ("nats_ca", &self.nats_ca),
            ("nats_user_file", &self.nats_user_file),
        ];
        let given: Vec<(&'static str, String)> =
            given.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))).collect();
        if given.is_empty() && self.config.is_none() {
            return Ok(None);
        }
        let sources = Sources { config: self.config.clone(), flags: Flags(given) };
        let found = settings::gather(&sources, |name| std::env::var(name).ok())?;
        let settings = settings::settle(&found)?;
        if settings.engine == EngineKind::JetStream {
            return Ok(Some(settings));
        }
        let error = "engine must be `jetstream` for a log on NATS; --data names a folder. value=`journal`";
        Err(anyhow::anyhow!(Exit::NotUnderstood).context(error))
    }
}

/// The result, for programs.
#[derive(Debug, Serialize)]
struct Report {
    stream: String,
    sound: bool,
    first_record: u64,
    last_record: u64,
    bytes: u64,
    term: u32,
    owner: Option<String>,
    stopped_cleanly: bool,
    records: u64,
    frames: u64,
    claims: u64,
    void: u64,
    start: u64,
    end: u64,
    image: Option<Image>,
    replicas: usize,
    servers: Vec<Server>,
    damage: Vec<String>,
    remarks: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Image {
    parts: usize,
    covers: u64,
}

#[derive(Debug, Serialize)]
struct Server {
    name: String,
    leader: bool,
    online: bool,
    current: bool,
    records_behind: u64,
}

pub(super) fn run(settings: &Settings, output: Output) -> anyhow::Result<()> {
    let clock = Clock::start();
    let config = JetStreamConfig {
        // A log that is only read needs no proof that servers sync.
        accept_loss: true,
        ..log_config(settings, Claimant { node: "doctor".to_owned(), ..Claimant::default() }, clock)?
    };
    let report = crate::connect::runtime()?.block_on(async {
        let mut progress = None;
        let tell = |passed: u64, all: u64| {
            progress.get_or_insert_with(|| Progress::new("verified", all)).passed(passed);
        };
        LogDiagnosis::of(config, tell).await.map(Report::of).map_err(refused)
    })?;
    super::print(output, &report, || report.text())?;
    if report.sound {
        return Ok(());
    }
    Err(anyhow::Error::new(Exit::DataRefused).context("the log on NATS is damaged"))
}

impl Report {
    fn of(found: LogDiagnosis) -> Report {
        let server = |server: forebay_storage::jetstream::Server| Server {
            name: server.name,
            leader: server.is_leader,
            online: server.is_online,
            current: server.is_current,
            records_behind: server.lag,
        };
        Report {
            sound: found.is_sound(),
            stream: found.stream,
            first_record: found.first,
            last_record: found.last,
            bytes: found.bytes,
            term: found.epoch.0,
            owner: found.owner,
            stopped_cleanly: found.is_released,
            records: found.records,
            frames: found.frames,
            claims: found.claims,
            void: found.void,
            start: found.start.0,
            end: found.end.0,
            image: found.image.map(|(parts, through)| Image { parts, covers: through.0 }),
            replicas: found.replicas,
            servers: found.servers.into_iter().map(server).collect(),
            damage: found.damage,
            remarks: found.remarks,
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let records = units::of(self.records, "record");
        let owner = match (&self.owner, self.stopped_cleanly) {
            (None, _) => "no node has ever owned it".to_owned(),
            (Some(node), true) => format!("term {}, node {node} has stopped cleanly", self.term),
            (Some(node), false) => format!("term {}, last owned by node {node}", self.term),
        };
        let void = match self.void {
            0 => String::new(),
            void => format!(", {} of former owners are void", units::count(void)),
        };
        let image = match &self.image {
            None => "none".to_owned(),
            Some(image) => {
                format!("{}, up to position {}", units::of(image.parts as u64, "part"), image.covers)
            }
        };
        let keeps = |server: &Server| {
            let state = match (server.online, server.current) {
                (false, _) => " (offline)",
                (true, false) => " (behind)",
                (true, true) => "",
            };
            format!("{}{state}", server.name)
        };
        let servers: Vec<String> = self.servers.iter().map(keeps).collect();
        let frames = units::of(self.frames, "frame");
        let size = size(self.bytes);
        let facts = [
            (
                "log",
                format!("{}, {size}, records {} to {}", self.stream, self.first_record, self.last_record),
            ),
            ("owner", owner),
            ("verified", format!("{records}, {frames}, {}{void}", units::of(self.claims, "claim"))),
            ("positions", format!("{} to {}", self.start, self.end)),
            ("image", image),
            ("kept by", if servers.is_empty() { "one NATS server".to_owned() } else { servers.join(", ") }),
        ];
        for (name, value) in facts {
            let _ = writeln!(text, "{name:<10} {value}");
        }
        for (heading, lines) in [("damage", &self.damage), ("remark", &self.remarks)] {
            for line in lines {
                let _ = writeln!(text, "{heading:<10} {line}");
            }
        }
        text.push_str(if self.sound { "The log is sound.\n" } else { "The log is damaged.\n" });
        text
    }
}
