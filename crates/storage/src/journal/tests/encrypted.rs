//! The stories once more, in encrypted folders. The rules of recovery, reading, sealing, scrubbing and salvage are the
//! same there.

#![allow(clippy::duplicate_mod, reason = "the same stories are told twice")]

#[path = "engine.rs"]
mod engine;
#[path = "faults.rs"]
mod faults;
#[path = "inspect.rs"]
mod inspect;
#[path = "recovery.rs"]
mod recovery;
#[path = "service.rs"]
mod service;

pub(super) use super::*;

/// Each look at an encrypted folder takes longer.
pub(super) const FLIP_STEP: usize = 2_003;

pub(super) fn config() -> JournalConfig {
    JournalConfig { keys: Some(crypt::keyring(&[1])), ..super::config() }
}

pub(super) fn try_open(folder: &TempFolder) -> Result<Bench, OpenError> {
    let disk = FolderDisk::new(folder.path()).expect("the folder is there");
    Bench::open(disk, &config())
}

#[track_caller]
pub(super) fn open(folder: &TempFolder) -> Bench {
    try_open(folder).unwrap_or_else(|error| panic!("the journal opens: {error}"))
}

#[track_caller]
pub(super) fn refused_by(rule: &str, folder: &TempFolder) -> String {
    match try_open(folder) {
        Err(error @ OpenError::Refused { rule: found, .. }) => {
            assert_eq!(found, rule, "{error}");
            error.to_string()
        }
        Err(error) => panic!("refused for another reason: {error}"),
        Ok(_) => panic!("it was opened"),
    }
}

/// Takes a folder to look at it, with its keys.
pub(super) fn look_into<D: Disk>(disk: D) -> Result<Inspection<D>, OpenError> {
    Inspection::open_with(disk, config().keys.as_ref())
}
