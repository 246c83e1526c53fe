//! The findings in a data folder, as text for people and as JSON for programs.

use std::fmt::Write as _;

use forebay_broker::salvage::{Diagnosis, Finding, Losses};
use forebay_core::types::SeqRange;
use serde::Serialize;

/// Ranges that are listed one by one for a person.
const RANGES_MAX: usize = 12;

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) folder: String,
    pub(crate) sound: bool,
    /// Whether a server would start, whatever else is wrong.
    pub(crate) starts: bool,
    pub(crate) refusal: Option<String>,
    /// Why only checksums were compared, if a key is missing.
    pub(crate) locked: Option<String>,
    format_version: u32,
    journal: String,
    shard: u32,
    epoch: u32,
    stopped_cleanly: Option<bool>,
    log: Log,
    images: Vec<Image>,
    pub(crate) messages: u64,
    parked: u64,
    streams: Vec<Stream>,
    torn_tail: Option<Damaged>,
    pub(crate) damage: Vec<Damaged>,
    pub(crate) loss: Option<Loss>,
    remarks: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Log {
    segments: u64,
    sealed: u64,
    bytes: u64,
    start: u64,
    end: u64,
    durable_end: Option<u64>,
    blocks: u64,
    frames: u64,
}

#[derive(Debug, Serialize)]
struct Image {
    file: String,
    covers: Option<u64>,
    parts: usize,
    parts_damaged: usize,
}

#[derive(Debug, Serialize)]
struct Stream {
    name: String,
    first: u64,
    last: u64,
    messages: u64,
    bytes: u64,
    groups: Vec<Group>,
}

#[derive(Debug, Serialize)]
struct Group {
    name: String,
    settled_through: u64,
    lag: u64,
    parked: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct Damaged {
    kind: &'static str,
    file: String,
    offset: u64,
    bytes: u64,
    position: Option<u64>,
    what: String,
    /// Messages that lie there, where that can be told.
    messages: Vec<StreamRanges>,
}

#[derive(Debug, Serialize)]
struct StreamRanges {
    stream: String,
    count: u64,
    ranges: Vec<(u64, u64)>,
}

/// The losses: data that cannot be recovered.
#[derive(Debug, Serialize)]
pub(crate) struct Loss {
    pub(crate) messages: u64,
    streams: Vec<StreamRanges>,
    groups: Vec<GroupLoss>,
    state: Vec<String>,
    renamed_streams: Vec<String>,
    /// Entries of the log that are about lost data.
    entries: u64,
    /// Bytes at the end of the log that cannot be read. An unknown number of messages was in them, which `messages`
    /// does not count.
    unknown_end_bytes: u64,
}

#[derive(Debug, Serialize)]
struct GroupLoss {
    stream: String,
    group: String,
    unsettled: u64,
    parked: u64,
}

fn stream_ranges(stream: &str, ranges: &[SeqRange]) -> StreamRanges {
    StreamRanges {
        stream: stream.to_owned(),
        count: ranges.iter().map(SeqRange::count).sum(),
        ranges: ranges.iter().map(|range| (range.first.0, range.last.0)).collect(),
    }
}

impl Damaged {
    fn of(finding: &Finding) -> Damaged {
        let damage = &finding.damage;
        Damaged {
            kind: damage.kind.as_str(),
            file: damage.file.clone(),
            offset: damage.offset,
            bytes: damage.len,
            position: damage.position.map(|position| position.0),
            what: damage.what.clone(),
            messages: finding
                .affected
                .iter()
                .map(|(stream, range)| stream_ranges(stream, std::slice::from_ref(range)))
                .collect(),
        }
    }
}

impl Loss {
    pub(crate) fn of(losses: &Losses) -> Loss {
        Loss {
            messages: losses.messages(),
            streams: losses.streams.iter().map(|loss| stream_ranges(&loss.stream, &loss.seqs)).collect(),
            groups: losses
                .groups
                .iter()
                .map(|loss| GroupLoss {
                    stream: loss.stream.clone(),
                    group: loss.group.clone(),
                    unsettled: loss.open,
                    parked: loss.parked,
                })
                .collect(),
            state: losses.parts.clone(),
            renamed_streams: losses.renamed.clone(),
            entries: losses.entries,
            unknown_end_bytes: losses.end_bytes,
        }
    }
}

impl Report {
    pub(crate) fn of(folder: &str, found: &Diagnosis) -> Report {
        let (torn, damage): (Vec<&Finding>, Vec<&Finding>) =
            found.findings.iter().partition(|finding| finding.damage.kind.is_harmless());
        let streams: Vec<Stream> = found
            .streams
            .iter()
            .map(|stream| Stream {
                name: stream.name.clone(),
                first: stream.first,
                last: stream.last,
                messages: stream.messages,
                bytes: stream.bytes,
                groups: stream
                    .groups
                    .iter()
                    .map(|group| Group {
                        name: group.name.clone(),
                        settled_through: group.settled_through,
                        lag: group.lag,
                        parked: group.parked,
                    })
                    .collect(),
            })
            .collect();
        Report {
            folder: folder.to_owned(),
            sound: found.is_sound(),
            starts: found.refusal.is_none() && found.locked.is_none(),
            refusal: found.refusal.clone(),
            locked: found.locked.clone(),
            format_version: found.facts.version,
            journal: found.facts.fingerprint.clone(),
            shard: found.facts.shard.0,
            epoch: found.epoch.0,
            stopped_cleanly: found.facts.mark.map(|mark| mark.clean_stop),
            log: Log {
                segments: found.facts.segments,
                sealed: found.scanned.sealed,
                bytes: found.facts.bytes,
                start: found.scanned.start.0,
                end: found.scanned.end.0,
                durable_end: found.facts.mark.map(|mark| mark.durable_end.0),
                blocks: found.scanned.blocks,
                frames: found.scanned.frames,
            },
            images: found
                .images
                .iter()
                .map(|image| Image {
                    file: image.name.clone(),
                    covers: image.covered.map(|position| position.0),
                    parts: image.parts.len(),
                    parts_damaged: image.parts.iter().filter(|part| !part.is_good).count(),
                })
                .collect(),
            messages: found.messages(),
            parked: streams.iter().flat_map(|stream| &stream.groups).map(|group| group.parked).sum(),
            streams,
            torn_tail: torn.first().map(|finding| Damaged::of(finding)),
            damage: damage.into_iter().map(Damaged::of).collect(),
            loss: found.losses.as_ref().map(Loss::of),
            remarks: found.remarks.clone(),
        }
    }

    /// For a person to act on.
    pub(crate) fn text(&self) -> String {
        let mut out = String::new();
        self.put_facts(&mut out);
        self.put_streams(&mut out);
        if let Some(torn) = &self.torn_tail {
            let _ = writeln!(
                out,
                "\nharmless: {}. The next start cuts it. {} offset {}, {}",
                torn.what,
                torn.file,
                torn.offset,
                size(torn.bytes)
            );
        }
        for remark in &self.remarks {
            let _ = writeln!(out, "\nnote: {remark}");
        }
        if self.sound {
            let _ = writeln!(out, "\nThe folder is sound.");
            return out;
        }
        if let Some(locked) = &self.locked {
            let _ = writeln!(
                out,
                "\nENCRYPTED. Contents, names and the state were not read: {locked}. The checksums of all segments and \
                 images were compared."
            );
            if self.damage.is_empty() {
                let _ = writeln!(out, "The checksums are good.");
                return out;
            }
        }
        let _ =
            writeln!(out, "\nDAMAGED. {} wrong:", count(self.damage.len() as u64, "thing is", "things are"));
        for damage in &self.damage {
            put_damage(&mut out, damage);
        }
        match &self.refusal {
            Some(refusal) => {
                let _ = writeln!(out, "\nA server would not start: {refusal}");
            }
            None => {
                let _ = writeln!(
                    out,
                    "\nA server would start. It does not deliver damaged messages, and a group that has to read \
                     past them stops there."
                );
            }
        }
        if let Some(loss) = &self.loss {
            out.push_str("\nWhat a salvaged folder would lack:\n");
            loss.put(&mut out);
        }
        let _ = writeln!(
            out,
            "\nWhat to do:\n  1. Keep the folder as it is, and look at the disk.\n  2. Restore a backup: forebay \
             restore --from BACKUP --data NEW\n  3. Or salvage what can be read: forebay doctor --data {} \
             --salvage NEW",
            self.folder
        );
        out
    }

    fn put_facts(&self, out: &mut String) {
        let stopped = match self.stopped_cleanly {
            Some(true) => "stopped cleanly",
            Some(false) => "not stopped cleanly",
            None => "how it was stopped is not known",
        };
        let _ = writeln!(
            out,
            "{}: format {}, journal {}, shard {}, epoch {}, {stopped}",
            self.folder, self.format_version, self.journal, self.shard, self.epoch
        );
        let log = &self.log;
        let _ = writeln!(
            out,
            "log: {} ({} sealed), {}, positions {} to {}, {}, {}",
            count(log.segments, "segment", "segments"),
            log.sealed,
            size(log.bytes),
            log.start,
            log.end,
            count(log.blocks, "block", "blocks"),
            count(log.frames, "frame", "frames")
        );
        if self.images.is_empty() {
            out.push_str("images: none; the state is all in the log\n");
        }
        for image in &self.images {
            let covers = image.covers.map_or("unreadable".to_owned(), |to| format!("covers the log to {to}"));
            let damaged = match image.parts_damaged {
                0 => String::new(),
                n => format!(", {n} damaged"),
            };
            let parts = count(image.parts as u64, "part", "parts");
            let _ = writeln!(out, "image: {}, {covers}, {parts}{damaged}", image.file);
        }
    }

    fn put_streams(&self, out: &mut String) {
        let groups = self.streams.iter().map(|stream| stream.groups.len() as u64).sum();
        let _ = writeln!(
            out,
            "{}, {}, {} kept, {} parked",
            count(self.streams.len() as u64, "stream", "streams"),
            count(groups, "group", "groups"),
            count(self.messages, "message", "messages"),
            self.parked
        );
        for stream in &self.streams {
            let _ = writeln!(
                out,
                "  {}: {} to {}, {}, {}",
                plain(&stream.name),
                stream.first,
                stream.last,
                count(stream.messages, "message", "messages"),
                size(stream.bytes)
            );
            for group in &stream.groups {
                let _ = writeln!(
                    out,
                    "    {}: settled through {}, {} to go, {} parked",
                    plain(&group.name),
                    group.settled_through,
                    group.lag,
                    group.parked
                );
            }
        }
    }
}

fn put_damage(out: &mut String, damage: &Damaged) {
    let _ = write!(out, "  {}: {} offset {}", damage.kind, damage.file, damage.offset);
    if damage.bytes > 0 {
        let _ = write!(out, ", {}", size(damage.bytes));
    }
    if let Some(position) = damage.position {
        let _ = write!(out, ", position {position}");
    }
    let _ = writeln!(out, ": {}", damage.what);
    for messages in &damage.messages {
        let _ =
            writeln!(out, "    messages {} of stream {}", ranges(&messages.ranges), plain(&messages.stream));
    }
}

impl Loss {
    pub(crate) fn put(&self, out: &mut String) {
        let nothing = self.messages == 0
            && self.state.is_empty()
            && self.renamed_streams.is_empty()
            && self.entries == 0
            && self.unknown_end_bytes == 0;
        if nothing {
            out.push_str("  no message that a group still needs\n");
        }
        for loss in &self.streams {
            let _ = writeln!(
                out,
                "  stream {}: {}, {}",
                plain(&loss.stream),
                count(loss.count, "message", "messages"),
                ranges(&loss.ranges)
            );
        }
        for loss in &self.groups {
            let _ = writeln!(
                out,
                "  group {} of {}: {} not settled and {} parked among them",
                plain(&loss.group),
                plain(&loss.stream),
                loss.unsettled,
                loss.parked
            );
        }
        for part in &self.state {
            let _ = writeln!(out, "  {part}");
        }
        for name in &self.renamed_streams {
            let _ = writeln!(out, "  the name and the settings of a stream, which is called {name} now");
        }
        if self.entries > 0 {
            let _ = writeln!(out, "  {} about lost data", count(self.entries, "entry", "entries"));
        }
        if self.unknown_end_bytes > 0 {
            let _ = writeln!(
                out,
                "  and an unknown number of messages and changes in {} at the end of the log, which cannot be read",
                size(self.unknown_end_bytes)
            );
        }
    }
}

fn ranges(ranges: &[(u64, u64)]) -> String {
    let text = |&(first, last): &(u64, u64)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    let mut listed: Vec<String> = ranges.iter().take(RANGES_MAX).map(text).collect();
    if ranges.len() > RANGES_MAX {
        listed.push(format!("and {} more ranges", ranges.len() - RANGES_MAX));
    }
    listed.join(", ")
}

fn count(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// Names come from outside, and a terminal obeys control characters.
fn plain(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match UNITS.iter().find(|(_, unit)| bytes >= *unit) {
        Some((name, unit)) => format!("{:.1} {name}", bytes as f64 / *unit as f64),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_ranges_are_short() {
        assert_eq!(size(512), "512 bytes");
        assert_eq!(size(64 << 20), "64.0 MiB");
        assert_eq!(ranges(&[(1, 1), (5, 9)]), "1, 5-9");
        assert!(ranges(&[(1, 1); 20]).ends_with("and 8 more ranges"));
    }
}
