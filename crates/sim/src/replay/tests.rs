use std::io::IoSlice;
use std::path::PathBuf;

use forebay_storage::journal::disk::{Disk as _, DiskFile as _, FolderDisk};
use forebay_storage::journal::recorded::{Recorded, Recorder};

use super::Twin;

/// A scratch folder, gone with this value.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("forebay-replay-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a folder");
        Scratch(path)
    }

    fn disk(&self) -> Recorded<FolderDisk> {
        let recorder = Recorder::new(std::fs::File::create(self.0.join("calls")).expect("a recording"));
        Recorded::new(FolderDisk::new(self.0.join("data")).expect("a folder"), Some(recorder))
    }

    fn calls(&self) -> Vec<u8> {
        std::fs::read(self.0.join("calls")).expect("the recording")
    }

    fn text(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.0.join("data").join(name)).ok()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_recording_tells_all_that_happened_to_a_folder() {
    let scratch = Scratch::new("whole");
    let disk = scratch.disk();
    let lock = disk.lock("LOCK").expect("a lock");
    let file = disk.create("a").expect("a file");
    file.allocate(0, 200_000).expect("room");
    file.write_at(&[IoSlice::new(&vec![0; 150_000])], 0).expect("zeros");
    file.write_at(&[IoSlice::new(b"some"), IoSlice::new(b"thing")], 70_000).expect("a write");
    file.truncate(100_000).expect("a cut");
    disk.rename("a", "b").expect("a rename");
    let gone = disk.create("gone").expect("a file");
    gone.write_at(&[IoSlice::new(b"x")], 0).expect("a write");
    disk.delete("gone").expect("a deletion");
    // Goes on although the file has another name now.
    file.write_at(&[IoSlice::new(b"more")], 10).expect("a write");
    drop(lock);

    let mut twin = Twin::new();
    twin.take_in(&scratch.calls()).expect("a recording");
    assert_eq!(twin.difference(&scratch.0.join("data")).expect("both can be read"), None);
    std::fs::write(scratch.0.join("data/b"), "other").expect("a write");
    assert!(twin.difference(&scratch.0.join("data")).expect("both can be read").is_some());
}

#[test]
fn power_takes_at_most_the_calls_since_the_last_sync() {
    for seed in 0..50 {
        let scratch = Scratch::new("power");
        let disk = scratch.disk();
        let file = disk.create("a").expect("a file");
        file.write_at(&[IoSlice::new(b"first")], 0).expect("a write");
        file.sync_data().expect("a sync");
        disk.sync_folder().expect("a sync");
        file.write_at(&[IoSlice::new(b"FIRST")], 0).expect("a write");
        drop(disk.create("b").expect("a file"));

        let mut twin = Twin::new();
        twin.take_in(&scratch.calls()).expect("a recording");
        twin.lose_power(seed);
        twin.put_into(&scratch.0.join("data")).expect("a folder");
        let a = scratch.text("a").expect("a file that was synced");
        assert!(a == "first" || a == "FIRST", "{a}");
        assert!(scratch.text("b").is_none_or(|b| b.is_empty()));
    }
}

#[test]
fn a_call_that_was_not_written_down_to_its_end_was_not_made() {
    let scratch = Scratch::new("cut");
    let disk = scratch.disk();
    let file = disk.create("a").expect("a file");
    file.sync_data().expect("a sync");
    disk.sync_folder().expect("a sync");
    let whole = scratch.calls().len();
    file.write_at(&[IoSlice::new(b"text")], 0).expect("a write");
    let calls = scratch.calls();
    for end in whole..calls.len() {
        let mut twin = Twin::new();
        twin.take_in(&calls[..end]).expect("a recording");
        twin.put_into(&scratch.0.join("data")).expect("a folder");
        assert_eq!(scratch.text("a").as_deref(), Some(""));
    }
}
