//! What the simulated disk promises, and above all what it does not.

use std::io::IoSlice;

use forebay_storage::journal::disk::{Disk, DiskFile};

use super::content::SECTOR;
use super::*;

fn write(file: &SimFile, offset: u64, bytes: &[u8]) {
    file.write_at(&[IoSlice::new(bytes)], offset).expect("nothing was planted");
}

/// A disk with one file `a` of `sectors` sectors of ones, all of it durable.
fn disk_with_ones(sectors: usize) -> (SimDisk, SimFile) {
    let disk = SimDisk::new();
    let file = disk.create("a").expect("the folder is empty");
    write(&file, 0, &vec![1; sectors * SECTOR]);
    file.sync_data().expect("nothing was planted");
    disk.sync_folder().expect("nothing was planted");
    (disk, file)
}

/// The first byte of each sector, which is enough where sectors are filled with one value.
fn sectors(disk: &SimDisk, name: &str) -> Vec<u8> {
    disk.contents(name).expect("the file is there").chunks(SECTOR).map(|sector| sector[0]).collect()
}

#[test]
fn what_is_written_is_read_at_once_and_lost_if_never_synced() {
    let (mut disk, file) = disk_with_ones(4);
    write(&file, 0, &[2; 4 * SECTOR]);
    let mut seen = [0; SECTOR];
    assert_eq!(file.read_at(&mut seen, 0).expect("reads work"), SECTOR);
    assert_eq!(seen[0], 2);
    disk.lose_power(Survival::KeepNone);
    assert_eq!(sectors(&disk, "a"), [1, 1, 1, 1]);
}

#[test]
fn what_is_synced_is_never_lost() {
    for seed in 0..500 {
        let (mut disk, file) = disk_with_ones(4);
        write(&file, 0, &[2; 2 * SECTOR]);
        file.sync_data().expect("nothing was planted");
        write(&file, 2 * SECTOR as u64, &[3; 2 * SECTOR]);
        disk.power_loss(&mut Dice::from(seed));
        assert_eq!(sectors(&disk, "a")[..2], [2, 2]);
    }
}

#[test]
fn an_unsynced_sector_keeps_any_of_its_versions_whatever_its_neighbours_do() {
    let mut seen = BTreeSet::new();
    for seed in 0..500 {
        let (mut disk, file) = disk_with_ones(2);
        write(&file, 0, &[2; 2 * SECTOR]);
        write(&file, 0, &[3; 2 * SECTOR]);
        disk.power_loss(&mut Dice::from(seed));
        seen.insert(sectors(&disk, "a"));
    }
    let all: BTreeSet<Vec<u8>> = (1..=3).flat_map(|a| (1..=3).map(move |b| vec![a, b])).collect();
    assert_eq!(seen, all);
}

#[test]
fn each_shape_keeps_what_its_name_says() {
    let after = |survival| {
        let (mut disk, file) = disk_with_ones(4);
        write(&file, 0, &[2; 4 * SECTOR]);
        disk.lose_power(survival);
        sectors(&disk, "a")
    };
    assert_eq!(after(Survival::KeepAll), [2, 2, 2, 2]);
    assert_eq!(after(Survival::NamesOnly), [1, 1, 1, 1]);
    assert_eq!(after(Survival::ContentsOnly), [2, 2, 2, 2]);
    assert_eq!(after(Survival::FirstSectorsLost), [1, 2, 2, 2]);
    assert_eq!(after(Survival::LastSectorsLost), [2, 2, 2, 1]);
    assert_eq!(after(Survival::FirstSectorsOnly), [2, 1, 1, 1]);
    assert_eq!(after(Survival::EvenSectors), [2, 1, 2, 1]);
    assert_eq!(after(Survival::OddSectors), [1, 2, 1, 2]);
}

#[test]
fn a_killed_process_leaves_its_page_cache_and_no_locks() {
    let (mut disk, file) = disk_with_ones(1);
    let lock = disk.lock("LOCK").expect("nobody has it");
    assert_eq!(disk.lock("LOCK").err().map(|error| error.kind()), Some(ErrorKind::WouldBlock));
    write(&file, 0, &[2; SECTOR]);
    disk.kill();
    assert_eq!(sectors(&disk, "a"), [2]);
    let again = disk.lock("LOCK").expect("the holder is dead");
    drop(lock);
    assert!(disk.lock("LOCK").is_err(), "a dead process releases nothing of its successor's");
    drop(again);
    assert!(disk.lock("LOCK").is_ok());
    assert!(file.size().is_err(), "handles of a dead process do nothing");
}

#[test]
fn what_a_killed_process_did_not_sync_is_lost_with_the_power() {
    let (mut disk, file) = disk_with_ones(1);
    write(&file, 0, &[2; SECTOR]);
    disk.kill();
    disk.lose_power(Survival::KeepNone);
    assert_eq!(sectors(&disk, "a"), [1]);
}

#[test]
fn names_are_durable_after_a_sync_of_the_folder_and_not_before() {
    let (mut disk, file) = disk_with_ones(1);
    disk.create("b").expect("a new name").sync_all().expect("nothing was planted");
    disk.rename("a", "c").expect("a is there");
    file.sync_all().expect("nothing was planted");
    let mut kept = disk.fork();
    kept.sync_folder().expect("nothing was planted");
    disk.lose_power(Survival::KeepNone);
    assert_eq!(disk.files(), ["a"], "syncing a file does not make its name durable");
    kept.lose_power(Survival::KeepNone);
    assert_eq!(kept.files(), ["b", "c"]);
}

#[test]
fn a_rename_that_is_not_synced_is_done_or_undone_but_never_half() {
    let mut seen = BTreeSet::new();
    for seed in 0..300 {
        let (mut disk, _file) = disk_with_ones(1);
        let temp = disk.create("temp").expect("a new name");
        write(&temp, 0, &[2; SECTOR]);
        temp.sync_all().expect("nothing was planted");
        disk.rename("temp", "a").expect("temp is there");
        disk.delete("a").expect("a is there");
        disk.power_loss(&mut Dice::from(seed));
        let content = disk.contents("a").map(|bytes| bytes[0]);
        seen.insert((disk.files(), content));
    }
    let name = |name: &str| name.to_string();
    let expected = BTreeSet::from([
        (vec![name("a")], Some(1)),
        (vec![name("a"), name("temp")], Some(1)),
        (vec![name("a")], Some(2)),
        (vec![], None),
    ]);
    assert_eq!(seen, expected);
}

#[test]
fn a_size_is_durable_after_a_sync_and_any_of_those_since_without() {
    let mut seen = BTreeSet::new();
    for seed in 0..300 {
        let (mut disk, file) = disk_with_ones(2);
        file.truncate(100).expect("cutting works");
        file.allocate(0, 3 * SECTOR as u64).expect("there is room");
        disk.power_loss(&mut Dice::from(seed));
        let bytes = disk.contents("a").expect("the name is durable");
        let ones = bytes.iter().filter(|byte| **byte == 1).count();
        seen.insert((bytes.len(), ones));
    }
    let whole = 2 * SECTOR;
    assert_eq!(seen, BTreeSet::from([(whole, whole), (100, 100), (3 * SECTOR, 100)]));
}

#[test]
fn a_failed_sync_loses_its_pages_behind_the_readers_back() {
    let (mut disk, file) = disk_with_ones(1);
    write(&file, 0, &[2; SECTOR]);
    disk.fail_at(Count::Changes, 1, ErrorKind::Other);
    assert!(file.sync_data().is_err());
    assert_eq!(disk.failed().map(|struck| struck.call), Some("sync a".to_string()));
    file.sync_data().expect("the second sync has nothing left to do, and lies");
    assert_eq!(sectors(&disk, "a"), [2]);
    disk.lose_power(Survival::KeepAll);
    assert_eq!(sectors(&disk, "a"), [1]);
}

#[test]
fn reading_past_the_cache_shows_what_a_failed_sync_lost() {
    let (disk, file) = disk_with_ones(3);
    write(&file, 0, &[2; SECTOR]);
    disk.fail_at(Count::Changes, 1, ErrorKind::Other);
    assert!(file.sync_data().is_err());
    write(&file, SECTOR as u64, &[3; SECTOR]);
    assert_eq!(sectors(&disk, "a"), [2, 3, 1]);
    file.forget_cached().expect("nothing was planted");
    assert_eq!(sectors(&disk, "a"), [1, 3, 1], "what still waits to be written is not forgotten");
}

#[test]
fn a_fuse_stops_everything_from_its_call_on() {
    let (mut disk, file) = disk_with_ones(8);
    disk.at(Stage::Committing);
    disk.crash_at(Count::Changes, 2);
    write(&file, 0, &[2; SECTOR]);
    assert_eq!(file.size().expect("reads are not counted"), 8 * SECTOR as u64);
    assert!(file.write_at(&[IoSlice::new(&[3; 7 * SECTOR])], SECTOR as u64).is_err());
    assert!(file.size().is_err() && disk.list().is_err() && file.sync_data().is_err());
    let struck = disk.crashed().expect("the fuse blew");
    assert_eq!((struck.stage, struck.call.as_str()), (Stage::Committing, "write 3584 bytes at 512 of a"));
    disk.kill();
    let left = sectors(&disk, "a");
    assert_eq!(left[0], 2);
    let landed = left[1..].iter().take_while(|sector| **sector == 3).count();
    assert!(left[1 + landed..].iter().all(|sector| *sector == 1), "what landed is a beginning: {left:?}");
    assert!(disk.list().is_ok());
}

#[test]
fn space_runs_out_where_files_grow_and_nowhere_else() {
    let (disk, file) = disk_with_ones(2);
    disk.set_capacity(3 * SECTOR as u64);
    assert_eq!(disk.free_space().expect("asking works"), SECTOR as u64);
    let full =
        |result: io::Result<()>| result.err().map(|error| error.kind()) == Some(ErrorKind::StorageFull);
    assert!(full(file.allocate(0, 4 * SECTOR as u64)));
    assert!(full(file.write_at(&[IoSlice::new(&[2; SECTOR])], 3 * SECTOR as u64)));
    write(&file, 0, &[2; 3 * SECTOR]);
    disk.set_capacity(0);
    write(&file, 0, &[3; 3 * SECTOR]);
    assert!(full(file.allocate(0, 4 * SECTOR as u64)));
    disk.set_capacity(u64::MAX);
    file.allocate(0, 4 * SECTOR as u64).expect("there is room again");
}

#[test]
fn a_fork_has_a_history_of_its_own() {
    let (disk, file) = disk_with_ones(1);
    write(&file, 0, &[2; SECTOR]);
    let mut fork = disk.fork();
    write(&file, 0, &[3; SECTOR]);
    assert_eq!(sectors(&fork, "a"), [2]);
    fork.lose_power(Survival::KeepNone);
    assert_eq!((sectors(&fork, "a"), sectors(&disk, "a")), (vec![1], vec![3]));
}

#[test]
fn a_deleted_file_can_still_be_read_by_who_has_it_open() {
    let (mut disk, file) = disk_with_ones(1);
    disk.delete("a").expect("a is there");
    assert_eq!(file.size().expect("it is open"), SECTOR as u64);
    disk.lose_power(Survival::KeepNone);
    assert_eq!(sectors(&disk, "a"), [1], "the deletion was not synced");
}

#[test]
fn damage_from_outside_is_durable_and_does_not_count() {
    let (mut disk, _file) = disk_with_ones(2);
    let calls = disk.calls();
    let saved = disk.save("a").expect("a is there");
    disk.patch("a", SECTOR as u64, &[7; 10]);
    disk.copy("a", "b");
    disk.cut("b", 600);
    disk.replace("c", b"new");
    disk.restore("a", &saved);
    assert_eq!(disk.calls(), calls);
    disk.lose_power(Survival::KeepNone);
    assert_eq!(sectors(&disk, "a"), [1, 1]);
    assert_eq!(disk.contents("b").map(|bytes| (bytes.len(), bytes[512])), Some((600, 7)));
    assert_eq!(disk.contents("c").as_deref(), Some(b"new".as_slice()));
    disk.remove("c");
    assert_eq!(disk.files(), ["a", "b"]);
    assert!(disk.is_settled());
}
