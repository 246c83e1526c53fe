//! The engines of this crate, held to the contract from outside, as an engine of another crate would be.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_storage::conformance::{SHARD, Subject};
use forebay_storage::engine_conforms;
use forebay_storage::journal::crypt::{Keyring, MasterKey};
use forebay_storage::journal::disk::FolderDisk;
use forebay_storage::journal::{JournalConfig, JournalEngine};
use forebay_storage::memory::{MemoryEngine, MemoryLog};

struct Memory(MemoryEngine);

impl Subject for Memory {
    type Engine = MemoryEngine;

    fn new() -> Memory {
        Memory(MemoryEngine::new(MemoryLog::new(SHARD, 12 << 10)))
    }

    async fn engine(&self) -> MemoryEngine {
        self.0.another()
    }

    async fn second_engine(&self) -> Option<MemoryEngine> {
        Some(self.0.another())
    }
}

/// A journal in a folder that is gone when the test is over.
struct OnDisk(PathBuf);

impl Subject for OnDisk {
    type Engine = JournalEngine;

    fn new() -> OnDisk {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        OnDisk(std::env::temp_dir().join(format!("forebay-conformance-{}-{number}", std::process::id())))
    }

    async fn engine(&self) -> JournalEngine {
        let disk = FolderDisk::new(&self.0).expect("the folder is there");
        JournalEngine::open(disk, &JournalConfig::small(7)).expect("the journal opens")
    }
}

impl Drop for OnDisk {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The same, encrypted.
struct Encrypted(OnDisk);

impl Subject for Encrypted {
    type Engine = JournalEngine;

    fn new() -> Encrypted {
        Encrypted(OnDisk::new())
    }

    async fn engine(&self) -> JournalEngine {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let entropy = |bytes: &mut [u8]| {
            for byte in bytes {
                *byte =
                    (NEXT.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
            }
            Ok(())
        };
        let keys = Keyring::new(vec![MasterKey::new(&[7; 32])], entropy).expect("there is one key");
        let disk = FolderDisk::new(&self.0.0).expect("the folder is there");
        let config = JournalConfig { keys: Some(keys), ..JournalConfig::small(7) };
        JournalEngine::open(disk, &config).expect("the journal opens")
    }
}

engine_conforms!(memory, Memory);
engine_conforms!(journal, OnDisk);
engine_conforms!(encrypted_journal, Encrypted);
