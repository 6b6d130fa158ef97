//! The subject and the model side by side: each operation on both, and the comparison afterwards.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::SystemTime;

use super::apply::{Outcome, Seen, Side};
use super::ops::Op;
use super::subject::{OTHERS, Subject, write_keys};
use super::tree::{self, Content, Tree};
use super::zarr::{self, Keys, View};

/// A failure. `kind` identifies the comparison, so that shrinking stays with it.
#[derive(Clone, Debug)]
pub struct Failure {
    pub kind: &'static str,
    pub text: String,
}

type Checked = Result<(), Failure>;

fn fail<T>(kind: &'static str, text: impl Into<String>) -> Result<T, Failure> {
    Err(Failure { kind, text: text.into() })
}

pub struct World<S: Subject> {
    pub subject: S,
    ours: Side,
    model: Side,
    /// The working tree's base: the state after a discard.
    base: Keys,
    /// Commits of the other writer that the working tree does not show yet.
    pending: Keys,
    commits: usize,
    /// True if anything was renamed since the last commit or discard.
    moved: bool,
    pub statistics: Statistics,
    _directory: tempfile::TempDir,
}

#[derive(Default, Debug)]
pub struct Statistics {
    pub operations: usize,
    pub succeeded: usize,
    pub commits: usize,
    pub refused: usize,
    pub keys_compared: usize,
    /// For each kind of operation, their number and the number of those that had a target.
    pub kinds: BTreeMap<String, (usize, usize)>,
}

impl Statistics {
    pub fn add(&mut self, other: &Statistics) {
        self.operations += other.operations;
        self.succeeded += other.succeeded;
        self.commits += other.commits;
        self.refused += other.refused;
        self.keys_compared += other.keys_compared;
        for (kind, (all, done)) in &other.kinds {
            self.count(kind, *all, *done);
        }
    }

    fn count(&mut self, kind: &str, all: usize, done: usize) {
        let counts = self.kinds.entry(kind.to_owned()).or_default();
        *counts = (counts.0 + all, counts.1 + done);
    }
}

impl<S: Subject> World<S> {
    pub fn new(subject: S) -> World<S> {
        let directory = tempfile::tempdir().unwrap();
        let ours = Side::new(subject.root());
        let model = Side::new(directory.path().to_owned());
        let commits = subject.committed().commits;
        World {
            subject,
            ours,
            model,
            base: Keys::new(),
            pending: Keys::new(),
            commits,
            moved: false,
            statistics: Statistics::default(),
            _directory: directory,
        }
    }

    /// Returns the model's tree and its Zarr view, for the generator.
    pub fn look(&self) -> (Tree, View) {
        let tree = tree::scan(&self.model.root).unwrap();
        let view = zarr::view(&tree, &self.base);
        (tree, view)
    }

    pub fn open_slots(&self) -> Vec<usize> {
        let slots = self.model.slots.iter().enumerate();
        slots.filter(|(_, handle)| handle.is_some()).map(|(slot, _)| slot).collect()
    }

    pub fn step(&mut self, op: &Op) -> Checked {
        self.subject.alive();
        self.statistics.operations += 1;
        match op {
            Op::Commit { how } => self.commit(how),
            Op::Discard => self.discard(None),
            Op::DiscardBelow { path } => self.discard(Some(path)),
            Op::Refresh => self.refresh(),
            Op::Remount | Op::Kill => {
                self.close_all();
                if *op == Op::Kill {
                    self.subject.kill()
                } else {
                    self.subject.remount()
                }
                self.adopt_pending_if_shown();
                self.check()
            }
            Op::Others { seed } => {
                let keys = self.subject.others(*seed);
                self.pending.extend(keys);
                self.commits += 1;
                self.check()
            }
            Op::Check => self.check(),
            _ => self.ordinary(op),
        }
    }

    fn ordinary(&mut self, op: &Op) -> Checked {
        self.moved |= matches!(op, Op::Rename { .. });
        let shown = self.subject.spoil(op).map_or(Ok(Seen::Nothing), |op| self.ours.apply(&op));
        if let (Op::Fallocate { mode, .. }, Err(libc::EOPNOTSUPP)) = (op, &shown) {
            // The one operation that a file system may decline; allocation itself must work.
            if mode == "zero" {
                return Ok(());
            }
        }
        let expected = self.model.apply(op);
        let done = expected.as_ref().is_ok_and(|seen| *seen != Seen::Text("no handle".into()));
        self.statistics.succeeded += usize::from(done);
        self.statistics.count(&op.kind(), 1, usize::from(done));
        if class(&shown) == class(&expected) {
            return Ok(());
        }
        fail(
            "result",
            format!("{op}\n  the mount: {}\n  the model: {}", describe_outcome(&shown), describe_outcome(&expected)),
        )
    }

    fn close_all(&mut self) {
        self.ours.close_all();
        self.model.close_all();
    }

    /// Compares the whole tree.
    fn check(&mut self) -> Checked {
        let ours = tree::scan(&self.ours.root).or_else(|text| fail("tree", text))?;
        let model = tree::scan(&self.model.root).unwrap();
        let lines = tree::differences(&ours, &model);
        if lines.is_empty() { Ok(()) } else { fail("tree", lines.join("\n")) }
    }

    /// Returns inodes of the model that a handle may write to.
    fn written(&self) -> BTreeSet<u64> {
        let open = self.model.slots.iter().flatten().filter(|handle| handle.writes);
        open.map(|handle| handle.file.metadata().unwrap().ino()).collect()
    }

    fn commit(&mut self, how: &str) -> Checked {
        let (tree, view) = self.look();
        let written = self.written();
        let busy = |name: &String| written.contains(&tree[name].inode);
        let busy_key = view.keys.keys().any(busy);
        let busy_other = tree.iter().any(|(_, entry)| written.contains(&entry.inode));
        let outcome = self.subject.commit(how, busy_other);
        match outcome {
            Err(libc::EBUSY) if busy_other => return self.refused(),
            Err(libc::EINVAL) if !view.faults.is_empty() || !view.unclear.is_empty() => return self.refused(),
            Err(libc::ESTALE) if self.removed_root_group() => return self.refused(),
            Err(errno) => {
                let reason = self.subject.reason();
                return fail(
                    "commit",
                    format!("refused with {}, for no reason the model knows: {reason}", name_of(errno)),
                );
            }
            Ok(()) if busy_key => return fail("commit", "done although files were open for writing"),
            Ok(()) if !view.faults.is_empty() => {
                return fail("commit", format!("done in spite of {:?}", view.faults));
            }
            Ok(()) => {}
        }
        let changed = view.keys != self.base;
        self.statistics.commits += usize::from(changed);
        let committed = self.subject.committed();
        let grown = committed.commits - self.commits;
        self.commits = committed.commits;
        if grown > 1 || (changed && grown == 0) {
            return fail("history", format!("one commit made the history grow by {grown}, changed: {changed}"));
        }
        if changed {
            self.adopt_pending();
        } else {
            self.adopt_pending_if_shown();
        }
        // Handles that only read stay open, here and there.
        self.close_all();
        let mut expected = view.keys.clone();
        expected
            .extend(self.base.iter().filter(|(name, _)| name.starts_with(OTHERS)).map(|(n, k)| (n.clone(), k.clone())));
        self.base = expected.clone();
        expected.extend(self.pending.clone());
        self.compare_keys(&expected, &committed)?;
        self.settle(&view, false)?;
        self.moved = false;
        self.check()
    }

    fn refused(&mut self) -> Checked {
        self.statistics.refused += 1;
        self.check()
    }

    fn compare_keys(&mut self, expected: &Keys, committed: &super::subject::Committed) -> Checked {
        self.statistics.keys_compared += expected.len();
        let names: BTreeSet<&String> = expected.keys().collect();
        let shown: BTreeSet<&String> = committed.shown.keys().collect();
        if names != shown {
            let more: Vec<_> = shown.difference(&names).collect();
            let less: Vec<_> = names.difference(&shown).collect();
            return fail("keys", format!("a fresh mount has {more:?} too many and lacks {less:?}"));
        }
        let mut canonical = BTreeSet::new();
        for (name, key) in expected {
            if committed.shown[name] != key.bytes {
                return fail("keys", format!("a fresh mount has other bytes in {name}"));
            }
            match committed.listed.get(&key.canonical) {
                Some(bytes) if *bytes == key.bytes => canonical.insert(&key.canonical),
                Some(_) => return fail("keys", format!("the reference has other bytes in {}", key.canonical)),
                None => return fail("keys", format!("the reference lacks {}", key.canonical)),
            };
        }
        if let Some(name) = committed.listed.keys().find(|name| !canonical.contains(name)) {
            return fail("keys", format!("the reference has {name}, which nobody committed"));
        }
        Ok(())
    }

    /// Applies the effects of a commit on files: links among keys and time stamps end, the mode is
    /// the mount's.
    fn settle(&mut self, view: &View, keep_links: bool) -> Checked {
        let ours = tree::scan(&self.ours.root).or_else(|text| fail("tree", text))?;
        for (name, entry) in tree::scan(&self.model.root).unwrap() {
            let path = self.model.root.join(&name);
            let directory = matches!(entry.content, Content::Directory);
            if !directory && !view.keys.contains_key(&name) && !name.starts_with(OTHERS) {
                continue;
            }
            if !directory
                && !keep_links
                && let Content::File(bytes) = &entry.content
            {
                std::fs::remove_file(&path).unwrap();
                std::fs::write(&path, bytes).unwrap();
            }
            if ours.contains_key(&name) {
                let mode = self.ours.root.join(&name).symlink_metadata().map_or(0o644, |found| found.mode() & 0o7777);
                std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            }
            std::fs::File::open(&path).unwrap().set_modified(SystemTime::now()).unwrap();
        }
        Ok(())
    }

    fn adopt_pending(&mut self) {
        let keys = std::mem::take(&mut self.pending);
        if keys.is_empty() {
            return;
        }
        write_keys(&self.model.root, &keys);
        for name in keys.keys().flat_map(|name| std::path::Path::new(name).ancestors()) {
            let theirs = self.ours.root.join(name);
            if let (false, Ok(found)) = (name.as_os_str().is_empty(), theirs.symlink_metadata()) {
                let mode = std::fs::Permissions::from_mode(found.mode() & 0o7777);
                std::fs::set_permissions(self.model.root.join(name), mode).unwrap();
            }
        }
        self.base.extend(keys);
    }

    /// If the contract does not define whether the mount moves to the newest commit, it must do so
    /// for all of it or nothing.
    fn adopt_pending_if_shown(&mut self) {
        let shown = self
            .pending
            .iter()
            .any(|(name, key)| std::fs::read(self.ours.root.join(name)).is_ok_and(|bytes| bytes == key.bytes));
        if shown {
            self.adopt_pending();
        }
    }

    fn discard(&mut self, path: Option<&str>) -> Checked {
        self.close_all();
        let (before, view) = self.look();
        let done = match path {
            None => self.subject.discard(),
            Some(path) => self.subject.discard_below(path),
        };
        if let Err(errno) = done {
            let Some(path) = path else { return fail("discard", format!("refused with {}", name_of(errno))) };
            // Entries above the path that are in the way of old files are not removed by discarding
            // below it, and changes elsewhere that would be lost with a moved directory are not
            // either.
            let is_of_a_move = self.moved && errno == libc::ESTALE;
            return if is_of_a_move || self.base.keys().any(|name| name.starts_with(path)) || self.never_was(path) {
                self.check()
            } else {
                fail("discard", format!("below {path}, refused with {}", name_of(errno)))
            };
        }
        self.adopt_pending_if_shown();
        let mine = |name: &str| path.is_none_or(|path| name == path || name.starts_with(&format!("{path}/")));
        let shown = tree::scan(&self.ours.root).or_else(|text| fail("tree", text))?;
        // Below: exactly the last commit's keys, and untracked files that were there before.
        for (name, entry) in shown.iter().filter(|(name, _)| mine(name)) {
            match (&entry.content, self.base.get(name)) {
                (Content::File(bytes), Some(key)) if *bytes == key.bytes => {}
                (_, Some(_)) => return fail("discard", format!("{name} is not as committed")),
                (Content::Directory, None) => {}
                (_, None) if before.contains_key(name) && !view.keys.contains_key(name) => {}
                // It went back with its directory.
                (content, None)
                    if before
                        .iter()
                        .any(|(other, entry)| may_have_moved_along(other, name) && entry.content == *content) => {}
                // It is as committed, where its directory was moved to.
                (Content::File(bytes), None) if self.moved && self.was_committed_elsewhere(name, bytes) => {}
                (_, None) => return fail("discard", format!("{name} is still there")),
            }
        }
        if let Some(name) = self.base.keys().find(|name| mine(name) && !shown.contains_key(*name)) {
            return fail("discard", format!("{name} did not come back"));
        }
        // The model takes over the state that was just checked; the rest of the tree must be as
        // before, except that moved entries return to their old places, from and to places that are
        // not below the path.
        let redone = |name: &str| mine(name) || self.moved;
        for name in before.keys().rev().filter(|name| redone(name)) {
            let place = self.model.root.join(name);
            let _ = std::fs::remove_dir(&place).or_else(|_| std::fs::remove_file(&place));
        }
        let others = shown.iter().filter(|(name, entry)| !redone(name) && !matches!(entry.content, Content::Directory));
        let mut inodes: HashMap<u64, &String> = others.map(|(name, entry)| (entry.inode, name)).collect();
        for (name, entry) in shown.iter().filter(|(name, _)| redone(name)) {
            let place = self.model.root.join(name);
            std::fs::create_dir_all(place.parent().unwrap()).unwrap();
            if let Some(linked) = inodes.insert(entry.inode, name) {
                std::fs::hard_link(self.model.root.join(linked), &place).unwrap();
                continue;
            }
            match &entry.content {
                Content::Directory => std::fs::create_dir_all(&place).unwrap(),
                Content::Link(target) => std::os::unix::fs::symlink(target, &place).unwrap(),
                Content::File(bytes) => std::fs::write(&place, bytes).unwrap(),
            }
        }
        self.copy_modes(&shown, redone);
        self.check()
    }

    fn was_committed_elsewhere(&self, name: &str, bytes: &[u8]) -> bool {
        self.base.iter().any(|(other, key)| may_have_moved_along(other, name) && key.bytes == bytes)
    }

    fn never_was(&self, path: &str) -> bool {
        self.model.root.join(path).symlink_metadata().is_err()
    }

    fn copy_modes(&self, shown: &Tree, mine: impl Fn(&str) -> bool) {
        for (name, entry) in shown {
            // A directory that came back because of a file below it has a default mode.
            let touched = mine(name) || matches!(entry.content, Content::Directory);
            if touched && !matches!(entry.content, Content::Link(_)) {
                let mode = self.ours.root.join(name).symlink_metadata().unwrap().mode() & 0o7777;
                let _ = std::fs::set_permissions(self.model.root.join(name), std::fs::Permissions::from_mode(mode));
            }
        }
    }

    fn refresh(&mut self) -> Checked {
        self.close_all();
        match self.subject.refresh() {
            Ok(()) => {
                self.adopt_pending();
                self.check()
            }
            Err(libc::ESTALE) if self.removed_root_group() || self.has_violations() => self.refused(),
            Err(errno) => fail("refresh", format!("refused with {}: {}", name_of(errno), self.subject.reason())),
        }
    }

    /// Returns true if something cannot be committed: its state on another base is not defined.
    fn has_violations(&self) -> bool {
        let (_, view) = self.look();
        (!view.faults.is_empty() || !view.unclear.is_empty()) && self.subject.reason().contains("resolve what cannot")
    }

    /// Returns true if the other writer made nodes in the root group, which is deleted or no group
    /// here: that is a conflict.
    fn removed_root_group(&self) -> bool {
        let ours = std::fs::read(self.model.root.join("zarr.json")).ok();
        let base = self.base.get("zarr.json").map(|key| &key.bytes);
        !self.pending.is_empty() && base.is_some() && base != ours.as_ref()
    }

    /// Ends a run: everything is closed and compared once more.
    pub fn finish(&mut self) -> Checked {
        self.close_all();
        self.check()
    }
}

/// Groups errors that mean the same to a program.
fn class(outcome: &Outcome) -> Outcome {
    match outcome {
        Err(libc::ENOTEMPTY) => Err(libc::EEXIST),
        other => other.clone(),
    }
}

fn name_of(errno: i32) -> String {
    std::io::Error::from_raw_os_error(errno).to_string()
}

fn describe_outcome(outcome: &Outcome) -> String {
    match outcome {
        Err(errno) => name_of(*errno),
        Ok(Seen::Bytes(bytes)) => format!("{} bytes, {:?}...", bytes.len(), &bytes[..bytes.len().min(16)]),
        Ok(seen) => format!("{seen:?}"),
    }
}

/// Returns true if a file could have come from `other` to `name` with a directory that was moved.
fn may_have_moved_along(other: &str, name: &str) -> bool {
    other.rsplit('/').next() == name.rsplit('/').next()
}
