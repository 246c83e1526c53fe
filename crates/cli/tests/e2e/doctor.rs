//! `doctor`, `backup` and `restore`, from outside: real folders of the real server, damaged one byte at a time.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use forebay_storage::journal::disk::FolderDisk;
use forebay_storage::journal::{Journal, JournalConfig};
use forebay_wire::v1;
use forebay_wire::v1::outcome_run::Outcome;
use forebay_wire::v1::settlement::Action;
use serde_json::Value;

use crate::grpc::rig::{Server, Session, publish};
use crate::rig::{Folder, Ran, binary, forebay};

fn doctor(folder: &Folder) -> (i32, Value) {
    let ran = forebay(&["doctor", "--data", folder.path(), "-o", "json"], "");
    (ran.code, json(&ran))
}

fn json(ran: &Ran) -> Value {
    serde_json::from_str(&ran.printed).unwrap_or_else(|error| panic!("{error}: {} {}", ran.printed, ran.said))
}

/// Salvages a folder, and sees that the new one is sound and the old one is as it was.
fn salvage(folder: &Folder, to: &Folder) -> Value {
    let before = contents(folder);
    let ran = forebay(&["doctor", "--data", folder.path(), "--salvage", to.path(), "-o", "json"], "");
    assert_eq!(ran.code, 0, "{} {}", ran.printed, ran.said);
    assert!(contents(folder) == before, "the old folder is never changed");
    let report = json(&ran);
    assert_eq!(report["salvaged"]["sound"], true);
    report["lost"].clone()
}

/// Every file but the reserve, with its contents.
fn contents(folder: &Folder) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = std::fs::read_dir(folder.path()).expect("the folder is there");
    let paths = entries.map(|entry| entry.expect("the folder can be listed").path());
    let mut files: Vec<(PathBuf, Vec<u8>)> = paths
        .filter(|path| !path.ends_with("RESERVE"))
        .map(|path| (path.clone(), std::fs::read(path).expect("a file can be read")))
        .collect();
    files.sort();
    files
}

fn copy(folder: &Folder, to: &Folder) {
    std::fs::create_dir_all(to.path()).expect("a folder can be made");
    for (path, bytes) in contents(folder) {
        let name = path.file_name().expect("a file has a name");
        std::fs::write(Path::new(to.path()).join(name), bytes).expect("a file can be written");
    }
}

fn file(folder: &Folder, name: &str) -> PathBuf {
    Path::new(folder.path()).join(name)
}

fn files(folder: &Folder, prefix: &str) -> Vec<String> {
    let names = contents(folder).into_iter().map(|(path, _)| path);
    let names = names.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()));
    names.filter(|name| name.starts_with(prefix)).collect()
}

/// Where a text is: the file and the offset.
fn find(folder: &Folder, text: &str) -> (PathBuf, usize) {
    let found = contents(folder).into_iter().find_map(|(path, bytes)| {
        let at = bytes.windows(text.len()).position(|window| window == text.as_bytes())?;
        Some((path, at))
    });
    found.unwrap_or_else(|| panic!("{text} is nowhere"))
}

fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).expect("the file is there");
    bytes[at] ^= 0x10;
    std::fs::write(path, bytes).expect("the file can be written");
}

fn body(n: u64) -> String {
    format!("message-{n:06}")
}

/// Smaller than usual, so that there are more of them and none takes long to make.
const SEGMENT: u64 = 16 << 20;

/// A folder with small segments.
fn small(name: &str) -> Folder {
    let folder = Folder::new(name);
    let config =
        JournalConfig { segment_bytes: SEGMENT, block_bytes_max: 12 << 20, ..JournalConfig::new(0x5eed) };
    let disk = FolderDisk::new(folder.path()).expect("a folder can be made");
    Journal::open(disk, &config).expect("a journal can be made");
    folder
}

/// Three batches of ten in as many segments, each sealed but the last: 1 to 10, 11 to 20, 21 to 30. The
/// group has settled 1 to 5 and parked 6; 7 was tried once. With small segments there is no image yet; with
/// large ones there are two.
async fn thirty(folder: Folder) -> Folder {
    for round in 0..3u64 {
        let server = Server::start(&folder).await;
        server.create_group("work", "team").await;
        for n in round * 10 + 1..=round * 10 + 10 {
            publish(&server, "work", [body(n)], 1).await;
        }
        if round == 0 {
            let mut consumer = Session::open(&server, "work", "team", 7).await;
            let got = consumer.receive(7).await;
            assert_eq!(consumer.ack(&got, 1..=5).await, [(Outcome::Acked, 5)]);
            assert_eq!(consumer.settle_one(&got, 6, Action::Park, None).await, Outcome::Parked);
        }
        server.stop();
    }
    folder
}

/// What the group gets, one after the other, until there is no more.
async fn drain(server: &Server, group: &str) -> Vec<(u64, String)> {
    let lag = server.figures("work", group).await.expect("the group is there").lag;
    let mut consumer = Session::open(server, "work", group, 1_000).await;
    let got = consumer.receive(usize::try_from(lag).expect("a few")).await;
    assert!(consumer.nothing_comes().await);
    let mut messages: Vec<_> =
        got.messages.iter().map(|message| (message.seq, message.body.clone())).collect();
    messages.sort();
    messages
}

fn expected(seqs: impl IntoIterator<Item = u64>) -> Vec<(u64, String)> {
    seqs.into_iter().map(|n| (n, body(n))).collect()
}

/// Serves a salvaged folder: the group gets these, one that begins anew gets those, and publishing goes on.
async fn serve_salvaged(
    folder: &Folder,
    open: impl IntoIterator<Item = u64>,
    kept: impl IntoIterator<Item = u64>,
) {
    let first = kept_from(folder);
    let server = Server::start(folder).await;
    let figures = server.figures("work", "team").await.expect("the group is there");
    assert_eq!(figures.parked, 1, "what was parked is parked");
    assert_eq!(drain(&server, "team").await, expected(open));
    server.create_group("work", "late").await;
    assert_eq!(drain(&server, "late").await, expected(kept.into_iter().filter(|&n| n >= first)));
    let strategy = v1::group_settings::Strategy::Ordered.into();
    let settings = v1::GroupSettings { strategy, ..Default::default() };
    server.create_group_as("work", "ordered", settings).await.expect("a new group");
    let lag = server.figures("work", "ordered").await.expect("the group is there").lag;
    let mut consumer = Session::open(&server, "work", "ordered", 1_000).await;
    consumer.receive(usize::try_from(lag).expect("a few")).await;
    assert_eq!(publish(&server, "work", ["new"], 1).await, [(31, 1)], "sequences go on");
    server.stop();
    let (code, report) = doctor(folder);
    assert_eq!((code, &report["sound"]), (0, &Value::Bool(true)), "{report}");
}

/// What a salvaged folder says about itself.
fn kept_from(folder: &Folder) -> u64 {
    doctor(folder).1["streams"][0]["first"].as_u64().expect("a number")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sound_folder_is_said_to_be_sound_and_is_not_touched() {
    let folder = thirty(small("doctor-sound")).await;
    let before = contents(&folder);
    let (code, report) = doctor(&folder);
    assert_eq!(code, 0, "{report}");
    assert_eq!((&report["sound"], &report["starts"]), (&Value::Bool(true), &Value::Bool(true)));
    assert_eq!((report["epoch"].as_u64(), report["stopped_cleanly"].as_bool()), (Some(4), Some(true)));
    let stream = &report["streams"][0];
    assert_eq!((stream["last"].as_u64(), stream["groups"][0]["lag"].as_u64()), (Some(30), Some(24)));
    assert_eq!(stream["groups"][0]["parked"], 1);
    let ran = forebay(&["doctor", "--data", folder.path()], "");
    assert!(ran.printed.contains("The folder is sound."), "{}", ran.printed);
    assert!(ran.printed.contains("team: settled through 6, 24 to go, 1 parked"), "{}", ran.printed);
    assert!(contents(&folder) == before, "nothing was changed");

    let server = Server::start(&folder).await;
    assert_eq!(forebay(&["doctor", "--data", folder.path()], "").code, 3);
    server.stop();
    let nothing = forebay(&["doctor", "--data", &format!("{}-not-there", folder.path())], "");
    assert_eq!(nothing.code, 1, "{}", nothing.said);
    let within = format!("{}/inside", folder.path());
    for to in [folder.path(), &within] {
        let refused = forebay(&["doctor", "--data", folder.path(), "--salvage", to], "");
        assert_eq!(refused.code, 1, "{}", refused.said);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_torn_tail_is_harmless() {
    let folder = thirty(small("doctor-torn")).await;
    let server = Server::start(&folder).await;
    publish(&server, "work", [body(31)], 1).await;
    server.kill();
    let (code, report) = doctor(&folder);
    assert_eq!((code, &report["torn_tail"]), (0, &Value::Null), "{report}");
    // What a crash may leave of the next block.
    let end = report["log"]["end"].as_u64().expect("a number");
    // There may be one after it that was made ready.
    let (number, end) = (end / SEGMENT, end % SEGMENT);
    let path = file(&folder, &format!("segment-{number:010}"));
    let mut bytes = std::fs::read(&path).expect("the file is there");
    bytes[usize::try_from(end).expect("a small number")..][..700].fill(7);
    std::fs::write(&path, bytes).expect("the file can be written");
    let (code, report) = doctor(&folder);
    assert_eq!((code, &report["sound"]), (0, &Value::Bool(true)), "{report}");
    assert_eq!(report["torn_tail"]["offset"], end);
    let salvaged = Folder::new("doctor-torn-salvaged");
    assert_eq!(salvage(&folder, &salvaged)["messages"], 0);
    let backup = Folder::new("doctor-torn-backup");
    assert_eq!(forebay(&["backup", "--data", folder.path(), "--to", backup.path()], "").code, 0);
    let restored = Folder::new("doctor-torn-restored");
    assert_eq!(forebay(&["restore", "--from", backup.path(), "--data", restored.path()], "").code, 0);
    for folder in [&folder, &salvaged, &restored] {
        let server = Server::start(folder).await;
        assert_eq!(drain(&server, "team").await, expected(7..=31));
        server.stop();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_content_costs_that_message() {
    let folder = thirty(small("doctor-payload")).await;
    let (path, at) = find(&folder, &body(15));
    flip(&path, at);
    let (code, report) = doctor(&folder);
    assert_eq!(code, 4, "{report}");
    assert_eq!(report["damage"][0]["kind"], "payload");
    assert_eq!(report["damage"][0]["messages"][0]["ranges"], serde_json::json!([[15, 15]]));
    assert_eq!(report["loss"]["streams"][0]["ranges"], serde_json::json!([[15, 15]]));
    assert_eq!(report["loss"]["groups"][0]["unsettled"], 1);
    let text = forebay(&["doctor", "--data", folder.path()], "").printed;
    assert!(text.contains("messages 15 of stream work"), "{text}");
    let salvaged = Folder::new("doctor-payload-salvaged");
    assert_eq!(salvage(&folder, &salvaged)["messages"], 1);
    serve_salvaged(&salvaged, (7..=30).filter(|&n| n != 15), (1..=30).filter(|&n| n != 15)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_parked_message_is_told_of() {
    let folder = thirty(small("doctor-parked")).await;
    let (path, at) = find(&folder, &body(6));
    flip(&path, at);
    let salvaged = Folder::new("doctor-parked-salvaged");
    let lost = salvage(&folder, &salvaged);
    assert_eq!((&lost["groups"][0]["parked"], &lost["groups"][0]["unsettled"]), (&1.into(), &0.into()));
    let server = Server::start(&salvaged).await;
    assert_eq!(server.figures("work", "team").await.expect("the group is there").parked, 0);
    assert_eq!(drain(&server, "team").await, expected(7..=30));
    server.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_entries_cost_the_frame_that_they_are_in() {
    let folder = thirty(small("doctor-entries")).await;
    // The entries end where the content begins, one byte before the body.
    let (path, at) = find(&folder, &body(15));
    flip(&path, at - 3);
    let (code, report) = doctor(&folder);
    assert_eq!((code, &report["starts"]), (4, &Value::Bool(false)), "{report}");
    assert_eq!(report["damage"][0]["kind"], "entries");
    let text = report["refusal"].as_str().expect("a reason");
    assert!(text.contains("segment-0000000003"), "{text}");
    let refused = forebay(&["serve", "--listen", "127.0.0.1:0", "--data", folder.path()], "");
    assert_eq!(refused.code, 4, "{}", refused.said);
    let salvaged = Folder::new("doctor-entries-salvaged");
    assert_eq!(salvage(&folder, &salvaged)["streams"][0]["ranges"], serde_json::json!([[15, 15]]));
    serve_salvaged(&salvaged, (7..=30).filter(|&n| n != 15), (1..=30).filter(|&n| n != 15)).await;
}

/// If an image has the state, old entries are needed only to find messages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_image_covers_is_not_lost_with_the_log() {
    let folder = thirty(Folder::new("doctor-covered")).await;
    for (name, n, lost) in [("entries", 15, 15..=15), ("segment", 8, 6..=10)] {
        let damaged = Folder::new(&format!("doctor-covered-{name}"));
        copy(&folder, &damaged);
        let (path, at) = find(&damaged, &body(n));
        if name == "entries" {
            flip(&path, at - 3);
            let (code, report) = doctor(&damaged);
            assert_eq!((code, &report["starts"]), (4, &Value::Bool(true)), "{report}");
        } else {
            std::fs::remove_file(path).expect("a file can be deleted");
        }
        let salvaged = Folder::new(&format!("doctor-covered-{name}-salvaged"));
        let ranges = salvage(&damaged, &salvaged)["streams"][0]["ranges"].clone();
        assert_eq!(ranges, serde_json::json!([[lost.start(), lost.end()]]));
        let server = Server::start(&salvaged).await;
        assert_eq!(drain(&server, "team").await, expected((7..=30).filter(|n| !lost.contains(n))));
        server.stop();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_block_header_costs_nothing() {
    let folder = thirty(small("doctor-block")).await;
    let (path, at) = find(&folder, &body(15));
    flip(&path, at / 4096 * 4096 + 40);
    let (code, report) = doctor(&folder);
    assert_eq!((code, &report["damage"][0]["kind"]), (4, &"block".into()), "{report}");
    let salvaged = Folder::new("doctor-block-salvaged");
    assert_eq!(salvage(&folder, &salvaged)["messages"], 0);
    serve_salvaged(&salvaged, 7..=30, 1..=30).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_segment_costs_what_was_in_it() {
    let folder = thirty(small("doctor-missing")).await;
    let (path, _) = find(&folder, &body(15));
    std::fs::remove_file(path).expect("a file can be deleted");
    let (code, report) = doctor(&folder);
    assert_eq!((code, &report["damage"][0]["kind"]), (4, &"missing".into()), "{report}");
    let salvaged = Folder::new("doctor-missing-salvaged");
    assert_eq!(salvage(&folder, &salvaged)["streams"][0]["ranges"], serde_json::json!([[11, 20]]));
    let rest = |from: u64| (from..=30).filter(|n| !(11..=20).contains(n));
    serve_salvaged(&salvaged, rest(7), rest(1)).await;
}

/// The first one tells the names of streams and groups, so without it there are only messages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_first_segment_messages_are_under_another_name() {
    let folder = thirty(small("doctor-first")).await;
    let (path, _) = find(&folder, &body(1));
    std::fs::remove_file(path).expect("a file can be deleted");
    let salvaged = Folder::new("doctor-first-salvaged");
    let lost = salvage(&folder, &salvaged);
    assert_eq!(lost["renamed_streams"], serde_json::json!(["salvaged-1"]));
    let server = Server::start(&salvaged).await;
    server.create_group("salvaged-1", "team").await;
    let mut consumer = Session::open(&server, "salvaged-1", "team", 100).await;
    assert_eq!(consumer.receive(20).await.seqs(), (11..=30).collect::<Vec<_>>());
    server.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_segment_costs_what_was_cut_off() {
    let folder = thirty(small("doctor-cut")).await;
    let (path, at) = find(&folder, &body(18));
    let cut = std::fs::OpenOptions::new().write(true).open(path).expect("the file is there");
    cut.set_len(at as u64).expect("a file can be cut");
    let (code, report) = doctor(&folder);
    assert_eq!(code, 4, "{report}");
    let salvaged = Folder::new("doctor-cut-salvaged");
    assert_eq!(salvage(&folder, &salvaged)["streams"][0]["ranges"], serde_json::json!([[18, 20]]));
    let rest = |from: u64| (from..=30).filter(|n| !(18..=20).contains(n));
    serve_salvaged(&salvaged, rest(7), rest(1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_mark_or_format_nothing_is_lost() {
    let folder = thirty(small("doctor-mark")).await;
    for (name, kind) in [("MARK", "mark"), ("FORMAT", "format")] {
        std::fs::remove_file(file(&folder, name)).expect("a file can be deleted");
        let (code, report) = doctor(&folder);
        assert_eq!((code, &report["starts"]), (4, &Value::Bool(false)), "{report}");
        let kinds = report["damage"].as_array().expect("a list").iter().map(|damage| damage["kind"].clone());
        assert!(kinds.into_iter().any(|found| found == kind), "{report}");
        let salvaged = Folder::new(&format!("doctor-{kind}-salvaged"));
        assert_eq!(salvage(&folder, &salvaged)["messages"], 0);
        serve_salvaged(&salvaged, 7..=30, 1..=30).await;
    }
}

/// Blocks that were durable are gone at the end of the log, and nothing after them tells their content.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_lost_end_it_is_said_that_nobody_knows_how_much_was_there() {
    let folder = thirty(small("doctor-end")).await;
    let durable = doctor(&folder).1["log"]["durable_end"].as_u64().expect("a number");
    let (path, at) = find(&folder, &body(28));
    let from = at / 4096 * 4096;
    let mut bytes = std::fs::read(&path).expect("the file is there");
    let noise = (0_u64..).map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8);
    bytes[from..].iter_mut().zip(noise).for_each(|(byte, noise)| *byte = noise);
    std::fs::write(&path, bytes).expect("the file can be written");
    let number: u64 = path.to_str().and_then(|path| path[path.len() - 10..].parse().ok()).expect("a number");
    let unknown = durable - (number * SEGMENT + from as u64);
    let (code, report) = doctor(&folder);
    assert_eq!(code, 4, "{report}");
    assert_eq!(report["loss"]["unknown_end_bytes"], unknown, "{report}");
    let text = forebay(&["doctor", "--data", folder.path()], "").printed;
    assert!(text.contains("and an unknown number of messages and changes in 12.0 KiB at the end"), "{text}");
    assert!(!text.contains("no message that a group still needs"), "{text}");
    let salvaged = Folder::new("doctor-end-salvaged");
    assert_eq!(salvage(&folder, &salvaged)["unknown_end_bytes"], unknown);
    let (code, report) = doctor(&salvaged);
    assert_eq!((code, report["streams"][0]["last"].as_u64()), (0, Some(27)), "{report}");
}

/// How often a salvage is killed, from its first moment to its last.
const KILLS: u32 = 50;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_salvage_that_was_killed_is_refused_unless_it_is_whole() {
    let folder = thirty(small("doctor-killed")).await;
    let began = Instant::now();
    let whole = Folder::new("doctor-killed-not");
    salvage(&folder, &whole);
    let took = began.elapsed();
    let messages = doctor(&whole).1["messages"].clone();
    let (mut halves, mut wholes) = (0, 0);
    for moment in 0..KILLS {
        let to = Folder::new(&format!("doctor-killed-{moment}"));
        let words = ["doctor", "--data", folder.path(), "--salvage", to.path()];
        let mut child = binary()
            .args(words)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary runs");
        std::thread::sleep(took * moment / KILLS);
        child.kill().expect("it can be killed");
        child.wait().expect("it ends");
        let files = std::fs::read_dir(to.path()).map_or(0, Iterator::count);
        let ran = forebay(&["doctor", "--data", to.path(), "-o", "json"], "");
        if files == 0 {
            // There is nothing yet that could be taken for a data folder.
            assert_eq!(ran.code, 1, "{ran:?}");
        } else if ran.code == 0 {
            assert_eq!(json(&ran)["messages"], messages, "moment {moment}");
            wholes += 1;
        } else {
            let texts =
                ["the unfinished result of an interrupted `forebay doctor --salvage`", "Delete the folder"];
            ran.refused(4, &texts);
            let serve = [
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--sqs",
                "none",
                "--kurrent",
                "none",
                "--data",
                to.path(),
            ];
            forebay(&serve, "").refused(4, &texts);
            let nowhere = Folder::new("doctor-killed-nowhere");
            forebay(&["backup", "--data", to.path(), "--to", nowhere.path()], "").refused(4, &texts);
            halves += 1;
        }
    }
    assert!(halves > 0, "a kill hits the middle: {halves} halves, {wholes} whole");
}

/// Publishes and settles until there are two images and the front of the log is gone. Ten are not settled.
async fn with_image(name: &str) -> Folder {
    let folder = small(name);
    let server = Server::start(&folder).await;
    server.create_group("work", "team").await;
    let text = "x".repeat(64 << 10);
    let mut consumer = Session::open(&server, "work", "team", 400).await;
    let mut last = 0;
    while files_now(&folder, "segment-").iter().any(|name| name == "segment-0000000002") {
        publish(&server, "work", (0..100).map(|_| text.clone()), 100).await;
        let got = consumer.receive(100).await;
        consumer.ack(&got, last + 1..=last + 100).await;
        last += 100;
    }
    publish(&server, "work", (last + 1..=last + 10).map(body), 10).await;
    server.stop();
    folder
}

fn files_now(folder: &Folder, prefix: &str) -> Vec<String> {
    let entries = std::fs::read_dir(folder.path()).expect("the folder is there");
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter(|name| name.starts_with(prefix) && !name.ends_with(".tmp")).collect()
}

/// Damages every part of a kind in an image; all of it if no kind is given.
fn damage_image(path: &Path, kind: Option<u8>) {
    let bytes = std::fs::read(path).expect("the file is there");
    let Some(kind) = kind else { return flip(path, 70) };
    let number = |at: usize, len: usize| {
        bytes[at..at + len].iter().rev().fold(0usize, |sum, &byte| sum << 8 | usize::from(byte))
    };
    for part in (0..number(12, 4)).map(|n| 64 + 48 * n) {
        let (file, offset) = (number(part + 24, 8), number(part + 32, 8));
        let name = format!("image-{file:010}");
        if bytes[part] == kind {
            flip(&path.with_file_name(name), offset);
        }
    }
}

const STREAM: u8 = 2;
const GROUP: u8 = 4;

/// The front of the log is gone, so what the images say cannot be had from it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_damaged_image_all_is_kept_that_can_be_had_elsewhere() {
    let folder = with_image("doctor-image").await;
    let images = files(&folder, "image-");
    let newest = &images[images.len() - 1..];
    assert!(images.len() >= 2, "{images:?}");
    for (name, images, kind, starts) in [
        ("newest", newest, None, true),
        ("newest-group", newest, Some(GROUP), true),
        ("both-group", &images[..], Some(GROUP), false),
        ("both-stream", &images[..], Some(STREAM), false),
        ("both", &images[..], None, false),
    ] {
        let damaged = Folder::new(&format!("doctor-image-{name}"));
        copy(&folder, &damaged);
        images.iter().for_each(|image| damage_image(&file(&damaged, image), kind));
        let (code, report) = doctor(&damaged);
        assert_eq!((code, &report["damage"][0]["kind"]), (4, &"image".into()), "{name}: {report}");
        assert_eq!(report["starts"], starts, "{name}: {report}");
        let salvaged = Folder::new(&format!("doctor-image-{name}-salvaged"));
        let lost = salvage(&damaged, &salvaged);
        assert_eq!(lost["messages"], 0, "{name}: {lost}");
        let server = Server::start(&salvaged).await;
        let stream = if name == "both" { "salvaged-1" } else { "work" };
        server.create_group(stream, "team").await;
        let lag = server.figures(stream, "team").await.expect("the group is there").lag;
        let mut consumer = Session::open(&server, stream, "team", 10_000).await;
        let got = consumer.receive(usize::try_from(lag).expect("a few")).await;
        // Nothing that was not settled is missing, and where progress is known nothing comes again.
        let last: Vec<_> = got.messages.iter().rev().take(10).rev().map(|message| message.seq).collect();
        let bodies: Vec<_> = last.iter().map(|&seq| body(seq)).collect();
        let came: Vec<_> = got.messages.iter().rev().take(10).rev().map(|message| &message.body).collect();
        assert_eq!(came, bodies.iter().collect::<Vec<_>>(), "{name}");
        if starts {
            assert_eq!(lag, 10, "{name}");
            assert_eq!(lost["state"], serde_json::json!([]), "{name}");
        }
        let next = publish(&server, stream, ["new"], 1).await;
        assert_eq!(next, [(last[9] + 1, 1)], "{name}: sequences go on");
        server.stop();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_of_a_busy_server_has_everything_that_was_confirmed_before() {
    let folder = small("backup");
    let server = Arc::new(Server::start(&folder).await);
    server.create_group("flood", "team").await;
    server.create_group("work", "team").await;
    let stop = Arc::new(AtomicBool::new(false));
    let flood = tokio::spawn({
        let (server, stop) = (server.clone(), stop.clone());
        async move {
            let mut consumer = Session::open(&server, "flood", "team", 400).await;
            let text = "y".repeat(64 << 10);
            let mut last = 0;
            while !stop.load(Ordering::Relaxed) {
                publish(&server, "flood", (0..100).map(|_| text.clone()), 50).await;
                let got = consumer.receive(100).await;
                consumer.ack(&got, last + 1..=last + 100).await;
                last += 100;
                // Leaves the machine to the copies, and still fills a segment in a second.
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
        }
    });
    // The front of the log goes while it is copied.
    while files_now(&folder, "segment-").iter().any(|name| name == "segment-0000000002") {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let mut confirmed = 0;
    for round in 0..2 {
        publish(&server, "work", (confirmed + 1..=confirmed + 200).map(body), 50).await;
        confirmed += 200;
        let backup = Folder::new(&format!("backup-copy-{round}"));
        let words = ["backup", "--data", folder.path(), "--to", backup.path(), "-o", "json"];
        let words: Vec<String> = words.map(str::to_owned).to_vec();
        let ran = tokio::task::spawn_blocking(move || {
            forebay(&words.iter().map(String::as_str).collect::<Vec<_>>(), "")
        });
        let ran = ran.await.expect("the backup runs");
        assert_eq!(ran.code, 0, "{} {}", ran.printed, ran.said);
        let report = json(&ran);
        assert_eq!((&report["online"], &report["copy"]["sound"]), (&true.into(), &true.into()));
        let again = forebay(&["backup", "--data", folder.path(), "--to", backup.path()], "");
        assert_eq!(again.code, 1, "a backup is not written over: {}", again.said);
        let served = [
            "serve",
            "--data",
            backup.path(),
            "--listen",
            "127.0.0.1:0",
            "--sqs",
            "none",
            "--kurrent",
            "none",
        ];
        forebay(&served, "").refused(4, &["is a backup", "forebay restore"]);

        let restored = Folder::new(&format!("backup-restored-{round}"));
        let ran = forebay(&["restore", "--from", backup.path(), "--data", restored.path()], "");
        assert_eq!(ran.code, 0, "{} {}", ran.printed, ran.said);
        let again = forebay(&["restore", "--from", backup.path(), "--data", restored.path()], "");
        assert_eq!(again.code, 1, "{}", again.said);
        let second = Server::start(&restored).await;
        assert_eq!(drain(&second, "team").await, expected(1..=confirmed));
        let mut consumer = Session::open(&second, "work", "team", 1).await;
        publish(&second, "work", ["more"], 1).await;
        assert!(consumer.receive(1).await.epoch > 1 << 16, "nobody else has such an epoch");
        second.stop();
    }
    stop.store(true, Ordering::Relaxed);
    flood.await.expect("the flood ends");
    let nowhere = Folder::new("backup-nowhere");
    let in_use = forebay(&["restore", "--from", folder.path(), "--data", nowhere.path()], "");
    assert_eq!(in_use.code, 3, "{}", in_use.said);
}
