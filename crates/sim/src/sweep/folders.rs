//! Finished data folders for the corruption sweep, as different lives leave them.

use forebay_storage::journal::disk::Stage;

use super::witness::{Fallback, Witness};
use super::workload::{Player, Step};
use crate::disk::{Count, SimDisk, Survival};

/// A folder that no journal has open, with everything in it durable.
pub(crate) struct Folder {
    pub(crate) name: String,
    pub(crate) disk: SimDisk,
    pub(crate) witness: Witness,
    /// The folder as it was at earlier moments, for damage that puts old content back.
    pub(crate) past: Vec<SimDisk>,
}

/// How the life of a folder ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    CleanStop,
    Killed,
    /// Power was lost during the last commit, and part of it is there.
    Torn(Survival),
}

/// Fills a little more than a segment and has nothing else to say.
const PLAIN: &[Step] = &[
    Step::Commit { frames: 2 },
    Step::CommitLargest,
    Step::Commit { frames: 4 },
    Step::Chores,
    Step::CommitLargest,
    Step::CommitLargest,
    Step::Commit { frames: 1 },
    Step::CommitLargest,
    Step::Commit { frames: 3 },
];

/// Several segments and two images, none of which lets go of anything.
const IMAGES: &[Step] = &[
    Step::Commit { frames: 2 },
    Step::Save,
    Step::CommitLargest,
    Step::CommitLargest,
    Step::CommitLargest,
    Step::Chores,
    Step::Save,
    Step::CommitLargest,
    Step::Commit { frames: 3 },
    Step::Save,
    Step::Commit { frames: 2 },
];

/// Several lives and segments, images, and a beginning that was let go.
const TRIMMED: &[Step] = &[
    Step::Commit { frames: 2 },
    Step::CommitLargest,
    Step::CommitLargest,
    Step::CommitLargest,
    Step::Chores,
    Step::Save,
    Step::Stop,
    Step::CommitLargest,
    Step::CommitLargest,
    Step::Commit { frames: 3 },
    Step::Save,
    Step::Trim,
    Step::Chores,
    Step::Die,
    Step::CommitLargest,
    Step::Commit { frames: 2 },
    Step::Save,
    Step::Trim,
    Step::Chores,
    Step::Commit { frames: 2 },
];

/// `count` folders of each sort.
pub(crate) fn folders(seed: u64, count: u64, encrypted: bool) -> Vec<Folder> {
    let scripts = [("plain", PLAIN), ("images", IMAGES), ("trimmed", TRIMMED)];
    let endings = [
        Ending::CleanStop,
        Ending::Killed,
        Ending::Torn(Survival::LastSectorsLost),
        Ending::Torn(Survival::FirstSectorsLost),
    ];
    let mut folders = Vec::new();
    for seed in seed..seed + count {
        folders.push(make(format!("fresh, seed {seed}"), &[], Ending::CleanStop, seed, encrypted));
        for (name, script) in scripts {
            for ending in endings {
                folders.push(make(
                    format!("{name}, {ending:?}, seed {seed}"),
                    script,
                    ending,
                    seed,
                    encrypted,
                ));
            }
        }
    }
    folders
}

fn make(name: String, script: &[Step], ending: Ending, seed: u64, encrypted: bool) -> Folder {
    let disk = if encrypted { SimDisk::encrypted() } else { SimDisk::new() };
    let mut player = Player::new(disk, Witness::default(), seed);
    let mut past = Vec::new();
    player.open(Fallback::Never).expect("an empty folder opens");
    for step in script {
        past.push(player.disk.fork());
        player.play(&[*step]).expect("nothing was planted");
    }
    match ending {
        Ending::CleanStop => player.stop().expect("nothing was planted"),
        Ending::Killed => player.die(),
        Ending::Torn(survival) => tear(&mut player, survival),
    }
    // Damage meets a disk that has been at rest, so whatever was left is durable.
    player.disk.lose_power(Survival::KeepAll);
    Folder { name, disk: player.disk, witness: player.witness, past }
}

/// Loses power in the sync of one more commit, so that its block is on the disk in part. It is made in a
/// segment that has just begun, where there is room for it.
fn tear(player: &mut Player, survival: Survival) {
    let before = [Step::Die, Step::Commit { frames: 2 }, Step::Chores];
    player.play(&before).expect("nothing was planted");
    player.disk.crash_at(Count::Changes, 2);
    player.play(&[Step::CommitLargest]).expect_err("the fuse blows within the commit");
    let struck = player.disk.crashed().expect("the fuse blew");
    assert_eq!(struck.stage, Stage::Committing, "a commit writes, and then syncs");
    player.disk.lose_power(survival);
    player.die();
}
