//! The subject under test: a mount, or, to test the harness, a plain directory in its place.

use std::io::Write;
use std::path::{Path, PathBuf};

use super::ops::{Op, bytes};
use super::tree;
use super::zarr::{self, Encoding, Key, Keys, array_document, group_document};
use crate::common::random::Random;

/// Nodes of the other writer are below this name, which no operation of ours touches.
pub const OTHERS: &str = "others";

pub trait Subject {
    /// Returns the root for programs.
    fn root(&self) -> PathBuf;
    /// Commits; returns an errno when it is refused. `open`: files are open for writing, for a
    /// subject that cannot know.
    fn commit(&mut self, how: &str, open: bool) -> Result<(), i32>;
    /// Returns the subject's reason for refusing a commit.
    fn reason(&self) -> String {
        String::new()
    }
    fn discard(&mut self) -> Result<(), i32>;
    fn discard_below(&mut self, path: &str) -> Result<(), i32>;
    fn refresh(&mut self) -> Result<(), i32>;
    fn remount(&mut self);
    fn kill(&mut self);
    /// Commits by another writer; returns the keys that it set.
    fn others(&mut self, seed: u64) -> Keys;
    /// Returns the branch's newest commit, as a fresh mount and the reference show it, and the
    /// length of the history.
    fn committed(&self) -> Committed;
    /// Reports life before an operation that a defective mount may never answer.
    fn alive(&self) {}
    /// Applies a defect to an operation for the subject alone: none by default.
    fn spoil(&self, op: &Op) -> Option<Op> {
        Some(op.clone())
    }
}

pub struct Committed {
    /// By the names in the tree; None where only one of the two views exists.
    pub shown: std::collections::BTreeMap<String, Vec<u8>>,
    /// By canonical names.
    pub listed: std::collections::BTreeMap<String, Vec<u8>>,
    pub commits: usize,
}

/// Returns the content of the other writer's commits: a group, an array, chunks; small and large.
pub fn of_others(seed: u64) -> Keys {
    let mut random = Random::new(seed ^ 0x6f74_6865_7273);
    let mut keys = Keys::new();
    let array = format!("{OTHERS}/n{}", random.below(8));
    let mut set = |name: String, content: Vec<u8>| {
        keys.insert(name.clone(), Key { canonical: name, bytes: content });
    };
    set(format!("{OTHERS}/zarr.json"), group_document(seed).into_bytes());
    set(format!("{array}/zarr.json"), array_document(&[8], &[1], Encoding::DefaultSlash, seed).into_bytes());
    for _ in 0..random.below(4) {
        let len = 1 + random.below(2000);
        set(format!("{array}/c/{}", random.below(8)), bytes(random.next(), len));
    }
    keys
}

pub fn write_keys(root: &Path, keys: &Keys) {
    for (name, key) in keys {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        // A new inode each: a link to the old one would belong to another file.
        let _ = std::fs::remove_file(&path);
        std::fs::File::create(&path).unwrap().write_all(&key.bytes).unwrap();
    }
}

/// A defect for the harness to find.
#[derive(Clone, Copy, PartialEq)]
pub enum Defect {
    None,
    /// A write at some distance lacks its last byte.
    ShortWrite,
    /// A commit forgets the last chunk.
    CommitForgets,
}

/// A plain directory in the place of a mount.
pub struct Plain {
    directory: tempfile::TempDir,
    base: Keys,
    tip: Keys,
    commits: usize,
    defect: Defect,
}

impl Plain {
    pub fn new(defect: Defect) -> Plain {
        let directory = tempfile::tempdir().unwrap();
        Plain { directory, base: Keys::new(), tip: Keys::new(), commits: 1, defect }
    }

    fn restore(&self, keep: impl Fn(&str) -> bool) {
        let now = zarr::view(&tree::scan(&self.root()).unwrap(), &self.base);
        for name in now.keys.keys().filter(|name| !keep(name)) {
            std::fs::remove_file(self.root().join(name)).unwrap();
        }
        let old: Keys =
            self.base.iter().filter(|(name, _)| !keep(name)).map(|(name, key)| (name.clone(), key.clone())).collect();
        write_keys(&self.root(), &old);
    }
}

impl Subject for Plain {
    fn root(&self) -> PathBuf {
        self.directory.path().to_owned()
    }

    fn commit(&mut self, _how: &str, open: bool) -> Result<(), i32> {
        if open {
            return Err(libc::EBUSY);
        }
        let view = zarr::view(&tree::scan(&self.root()).unwrap(), &self.base);
        if !view.faults.is_empty() || !view.unclear.is_empty() {
            return Err(libc::EINVAL);
        }
        let mut keys = view.keys;
        if keys == self.base {
            return Ok(());
        }
        // Committed files are no longer linked with anything.
        write_keys(&self.root(), &keys);
        for (name, key) in &self.tip {
            if name.starts_with(OTHERS) {
                keys.insert(name.clone(), key.clone());
            }
        }
        let theirs: Keys = keys.iter().filter(|(name, _)| name.starts_with(OTHERS)).map(clone).collect();
        write_keys(&self.root(), &theirs);
        if self.defect == Defect::CommitForgets {
            let last = keys.keys().rfind(|name| !name.ends_with("zarr.json")).cloned();
            last.and_then(|name| keys.remove(&name));
        }
        self.tip = keys.clone();
        self.base = keys;
        self.commits += 1;
        Ok(())
    }

    fn discard(&mut self) -> Result<(), i32> {
        self.base.keys().for_each(|name| make_way(&self.root(), name));
        self.restore(|_| false);
        Ok(())
    }

    fn discard_below(&mut self, path: &str) -> Result<(), i32> {
        let below = format!("{path}/");
        let mine = |name: &str| name == path || name.starts_with(&below);
        if self.base.keys().any(|name| mine(name) && blocked(&self.root(), name)) {
            return Err(libc::EEXIST);
        }
        self.restore(|name| !mine(name));
        Ok(())
    }

    fn refresh(&mut self) -> Result<(), i32> {
        let theirs: Keys = self.tip.iter().filter(|(name, _)| name.starts_with(OTHERS)).map(clone).collect();
        write_keys(&self.root(), &theirs);
        self.base.extend(theirs);
        Ok(())
    }

    fn remount(&mut self) {}

    fn kill(&mut self) {}

    fn others(&mut self, seed: u64) -> Keys {
        let keys = of_others(seed);
        self.tip.extend(keys.clone());
        self.commits += 1;
        keys
    }

    fn committed(&self) -> Committed {
        Committed {
            shown: self.tip.iter().map(|(name, key)| (name.clone(), key.bytes.clone())).collect(),
            listed: self.tip.values().map(|key| (key.canonical.clone(), key.bytes.clone())).collect(),
            commits: self.commits,
        }
    }

    fn spoil(&self, op: &Op) -> Option<Op> {
        match (self.defect, op) {
            (Defect::ShortWrite, Op::Pwrite { slot, at, len, seed }) if *at > 2000 && *len > 1000 => {
                Some(Op::Pwrite { slot: *slot, at: *at, len: len - 1, seed: *seed })
            }
            _ => Some(op.clone()),
        }
    }
}

fn clone((name, key): (&String, &Key)) -> (String, Key) {
    (name.clone(), key.clone())
}

/// Removes entries in the place where a key must come back.
fn make_way(root: &Path, name: &str) {
    let path = root.join(name);
    for above in path.ancestors().skip(1).take_while(|above| *above != root) {
        if above.symlink_metadata().is_ok_and(|found| !found.is_dir()) {
            std::fs::remove_file(above).unwrap();
        }
    }
    match path.symlink_metadata() {
        Ok(found) if found.is_dir() => std::fs::remove_dir_all(path).unwrap(),
        Ok(found) if !found.is_file() => std::fs::remove_file(path).unwrap(),
        _ => {}
    }
}

/// Returns true if another entry is in the place where a key must come back.
fn blocked(root: &Path, name: &str) -> bool {
    let path = root.join(name);
    path.symlink_metadata().is_ok_and(|found| !found.is_file())
        || path
            .ancestors()
            .skip(1)
            .take_while(|above| *above != root)
            .any(|above| above.symlink_metadata().is_ok_and(|found| !found.is_dir()))
}
