//! The audit as a file: one line of JSON for each administrative and triage call. A full file is renamed, and the
//! oldest of ten is deleted. And as the stream `$audit`, with the same lines as messages.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use forebay_broker::access::{AUDIT_STREAM, Principal};
use forebay_broker::audit::{AuditOutcome, AuditRecord};
use forebay_broker::batch::{BatchBuilder, ContentType, Message};
use forebay_broker::broker::Entrance;
use forebay_broker::caller::Caller;
use forebay_broker::error::{CallError, PublishError};
use forebay_core::settings::Retention;
use forebay_core::types::StreamName;
use forebay_wire::json::Time;
use serde_json::json;
use tokio::sync::mpsc::Receiver;

use crate::safe::printable;

/// A file of this size is full.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// Full files that are kept.
const FILES_MAX: u32 = 10;
/// Records that are written together.
const TOGETHER: usize = 256;

/// As long, and as much, as the stream keeps. No client can change this: only the server may write to the stream.
const STREAM_AGE_MAX: Duration = Duration::from_secs(90 * 86_400);
const STREAM_BYTES_MAX: u64 = 64 << 20;
/// The type of the messages.
const MESSAGE_TYPE: &str = "forebay.audit";

/// Begins to publish records, if the settings say so.
pub(super) async fn begin_stream(broker: &Entrance, is_wanted: bool) -> anyhow::Result<()> {
    if !is_wanted {
        return Ok(());
    }
    let stream = StreamName::of_system(AUDIT_STREAM).context("the name of the audit")?;
    let server = broker.enter(Principal::server(), None);
    match server.stream(stream.clone()).await {
        Ok(_) => {}
        Err(CallError::NoSuchStream { .. }) => {
            let created = server.create_stream(stream.clone(), |settings| {
                let (max_age, max_bytes) = (Some(STREAM_AGE_MAX), Some(STREAM_BYTES_MAX));
                settings.retention = Retention::Log { max_age, max_bytes, max_messages: None };
            });
            created.await.with_context(|| format!("cannot create the stream {AUDIT_STREAM}"))?;
        }
        Err(error) => {
            return Err(error).with_context(|| format!("cannot look at the stream {AUDIT_STREAM}"));
        }
    }
    if let Some(queue) = broker.audit().begin() {
        tokio::spawn(publish_all(server, Arc::new(stream), queue));
    }
    Ok(())
}

async fn publish_all(server: Caller, stream: Arc<StreamName>, mut queue: Receiver<AuditRecord>) {
    let (mut records, mut is_failing) = (Vec::new(), false);
    while queue.recv_many(&mut records, TOGETHER).await > 0 {
        let lines: Vec<String> = records.drain(..).map(|record| line(&record)).collect();
        let bytes = lines.iter().map(String::len).sum();
        let mut batch = BatchBuilder::with_capacity(lines.len(), bytes);
        for line in &lines {
            let body = line.trim_end().as_bytes();
            let kind = Some(MESSAGE_TYPE);
            batch.push(&Message { kind, body, content_type: ContentType::Json, ..Message::default() });
        }
        let batch = batch.build();
        let room = server.broker().room(&stream, &batch).await;
        match server.publish_to_existing(room, stream.clone(), batch).await {
            Ok(_) => is_failing = false,
            // The file has the last records of a server.
            Err(PublishError::Stopping) => return,
            Err(error) if !is_failing => {
                is_failing = true;
                tracing::error!(%error, "ALARM: the stream of the audit cannot be written, and records are lost");
            }
            Err(_) => {}
        }
    }
}

/// Begins to write, if the settings name a file.
pub(super) fn begin(broker: &Entrance, path: Option<&Path>) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    let shown = printable(&path.display().to_string());
    let mut trail = Trail::open(path).with_context(|| format!("cannot write the audit file {shown}"))?;
    let Some(queue) = broker.audit().begin() else { return Ok(()) };
    std::thread::Builder::new()
        .name("audit".to_owned())
        .spawn(move || trail.write_all(queue))
        .context("cannot start the thread of the audit")?;
    Ok(())
}

struct Trail {
    path: PathBuf,
    file: File,
    bytes: u64,
}

impl Trail {
    fn open(path: &Path) -> io::Result<Trail> {
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
        let bytes = file.metadata()?.len();
        Ok(Trail { path: path.to_owned(), file, bytes })
    }

    fn write_all(&mut self, mut queue: Receiver<AuditRecord>) {
        let (mut records, mut is_failing) = (Vec::new(), false);
        while queue.blocking_recv_many(&mut records, TOGETHER) > 0 {
            let text: String = records.drain(..).map(|record| line(&record)).collect();
            match self.write(&text) {
                Ok(()) => is_failing = false,
                Err(error) if !is_failing => {
                    is_failing = true;
                    tracing::error!(%error, "ALARM: the audit file cannot be written, and records are lost");
                }
                Err(_) => {}
            }
        }
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        if self.bytes > 0 && self.bytes + text.len() as u64 > FILE_BYTES_MAX {
            self.rotate()?;
        }
        self.file.write_all(text.as_bytes())?;
        self.file.sync_data()?;
        self.bytes += text.len() as u64;
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        let name = |n: u32| {
            let mut name = self.path.clone().into_os_string();
            name.push(format!(".{n}"));
            PathBuf::from(name)
        };
        for n in (1..FILES_MAX).rev() {
            match std::fs::rename(name(n), name(n + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        std::fs::rename(&self.path, name(1))?;
        *self = Trail::open(&self.path)?;
        Ok(())
    }
}

fn line(record: &AuditRecord) -> String {
    let AuditRecord { at, who, from, action, verb, what, outcome } = record;
    let (outcome, why) = match outcome {
        AuditOutcome::Done => ("done", None),
        AuditOutcome::Denied => ("denied", None),
        AuditOutcome::Refused(why) => ("refused", Some(why)),
        AuditOutcome::Unknown => ("unknown", None),
    };
    let line = json!({
        "at": Time(at.0).to_string(),
        "who": &**who,
        "from": from.map(|from| from.to_string()),
        "action": action.to_string(),
        "verb": verb,
        "what": what,
        "outcome": outcome,
        "why": why,
    });
    format!("{line}\n")
}

#[cfg(test)]
mod tests {
    use forebay_broker::access::Right;
    use forebay_core::types::Timestamp;

    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("forebay-audit-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("a folder");
        folder
    }

    #[test]
    fn a_record_is_one_line() {
        let record = AuditRecord {
            at: Timestamp(1_000_000),
            who: "ci".into(),
            from: Some(([127, 0, 0, 1], 7).into()),
            action: Right::Delete,
            verb: "delete",
            what: "a\nb".to_owned(),
            outcome: AuditOutcome::Refused("no such stream".to_owned()),
        };
        let line = line(&record);
        assert_eq!(line.lines().count(), 1, "{line}");
        let read: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!((&read["who"], &read["what"]), (&"ci".into(), &"a\nb".into()));
        assert_eq!((&read["action"], &read["verb"]), (&"delete".into(), &"delete".into()));
        assert_eq!((&read["outcome"], &read["why"]), (&"refused".into(), &"no such stream".into()));
    }

    #[test]
    fn a_full_file_is_renamed_and_the_oldest_is_deleted() {
        let folder = folder("rotated");
        let path = folder.join("audit.log");
        let mut trail = Trail::open(&path).expect("a file");
        for n in 0..FILES_MAX + 3 {
            trail.write(&format!("{n}\n")).expect("it is written");
            trail.bytes = FILE_BYTES_MAX;
        }
        let text = |name: &str| std::fs::read_to_string(folder.join(name)).expect(name);
        assert_eq!((text("audit.log"), text("audit.log.1")), ("12\n".to_owned(), "11\n".to_owned()));
        assert_eq!(text("audit.log.10"), "2\n");
        assert!(!folder.join("audit.log.11").exists());
        let _ = std::fs::remove_dir_all(&folder);
    }
}
