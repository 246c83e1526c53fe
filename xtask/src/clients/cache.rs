//! Where packages are kept from one run to the next: a folder of the user's cache, outside of the tree.
//!
//! Installed clients lie in a folder that is named after everything it was made from, so that a change makes a new
//! folder, and two branches can have theirs side by side. A folder that was not used for a month is removed.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Written last, when all is there, and touched with every use.
const COMPLETE: &str = "complete";
const FORGET_AFTER: Duration = Duration::from_hours(30 * 24);

pub(crate) struct Cache {
    folder: PathBuf,
    /// Held while we prepare: two of us do not install at once.
    _lock: File,
}

impl Cache {
    /// The cache of one command.
    pub(crate) fn open(command: &str) -> Result<Cache, String> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let user = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
        let folder = user.unwrap_or_else(std::env::temp_dir).join("forebay").join(command);
        Cache::at(folder)
    }

    fn at(folder: PathBuf) -> Result<Cache, String> {
        let opened = std::fs::create_dir_all(&folder).and_then(|()| {
            let lock = File::create(folder.join("lock"))?;
            lock.lock()?;
            Ok(lock)
        });
        let lock =
            opened.map_err(|error| format!("cannot use the cache in {}: {error}", folder.display()))?;
        let cache = Cache { folder, _lock: lock };
        cache.forget(SystemTime::now());
        Ok(cache)
    }

    /// A folder that keeps what it has.
    pub(crate) fn folder(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// A folder that was made from these ingredients; it is made now, if it is not there. A half-made folder is
    /// made again.
    pub(crate) fn made_from(
        &self,
        name: &str,
        ingredients: &[&str],
        make: impl FnOnce(&Path) -> Result<(), String>,
    ) -> Result<PathBuf, String> {
        let folder = self.folder.join(format!("{name}-{:016x}", hash(ingredients)));
        let cannot = |error: std::io::Error| format!("cannot write in {}: {error}", folder.display());
        let complete = folder.join(COMPLETE);
        if !complete.is_file() {
            if folder.exists() {
                std::fs::remove_dir_all(&folder).map_err(cannot)?;
            }
            std::fs::create_dir(&folder).map_err(cannot)?;
            eprintln!("xtask: installing what {name} needs");
            make(&folder)?;
        }
        std::fs::write(&complete, "").map_err(cannot)?;
        Ok(folder)
    }

    fn forget(&self, now: SystemTime) {
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        for folder in entries.map(|entry| entry.path()) {
            let used = std::fs::metadata(folder.join(COMPLETE)).and_then(|about| about.modified());
            let age = used.ok().and_then(|used| now.duration_since(used).ok());
            if age.is_some_and(|age| age > FORGET_AFTER) {
                // It is only a cache, and the next one tries again.
                let _ = std::fs::remove_dir_all(&folder);
            }
        }
    }
}

/// FNV-1a: the same for the same text, with every compiler.
fn hash(parts: &[&str]) -> u64 {
    let bytes = parts.iter().flat_map(|part| part.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cache in a temporary folder, which goes with it.
    struct Trial(PathBuf);

    impl Trial {
        fn new(name: &str) -> Trial {
            Trial(std::env::temp_dir().join(format!("forebay-cache-{name}-{}", std::process::id())))
        }

        fn make(&self, ingredients: &[&str]) -> (PathBuf, bool) {
            let mut was_made = false;
            let cache = Cache::at(self.0.clone()).expect("a cache");
            let folder = cache.made_from("x", ingredients, |_| {
                was_made = true;
                Ok(())
            });
            (folder.expect("a folder"), was_made)
        }
    }

    impl Drop for Trial {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn what_was_made_is_made_once() {
        let trial = Trial::new("once");
        let (first, was_made) = trial.make(&["a", "b"]);
        assert!(was_made);
        assert_eq!(trial.make(&["a", "b"]), (first.clone(), false));
        for other in [&["ab"][..], &["a", "c"], &["a", "b", ""]] {
            assert_ne!(trial.make(other).0, first, "{other:?}");
        }
    }

    #[test]
    fn what_is_half_done_is_done_again() {
        let trial = Trial::new("half");
        let cache = Cache::at(trial.0.clone()).expect("a cache");
        let failed = cache.made_from("x", &["a"], |folder| {
            std::fs::write(folder.join("rest"), "").expect("a file");
            Err("no network".to_owned())
        });
        assert_eq!(failed, Err("no network".to_owned()));
        drop(cache);
        let (folder, was_made) = trial.make(&["a"]);
        assert!(was_made && !folder.join("rest").exists());
    }

    #[test]
    fn what_nobody_uses_is_forgotten() {
        let trial = Trial::new("old");
        let (folder, _) = trial.make(&["a"]);
        let cache = Cache::at(trial.0.clone()).expect("a cache");
        cache.forget(SystemTime::now());
        assert!(folder.exists());
        cache.forget(SystemTime::now() + FORGET_AFTER + Duration::from_mins(1));
        assert!(!folder.exists() && trial.0.exists());
    }
}
