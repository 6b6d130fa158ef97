//! Copies of `repo` below `overwritten/`: every update leaves one, so that their size grows with
//! the square of a history's length.
//!
//! An entry of the operations log names the copy that ended with it. Neither the format nor the
//! reference implementation needs that name: a migrated repository has entries without one, and the
//! log is read without opening those copies. The log needs only the few copies in which it
//! continues (`repo_before_updates`). A collection therefore keeps every operation and removes the
//! copies' names from the log: in `repo` by the update that it makes anyway, and in the files in
//! which the log continues by rewriting them under other names. Copies that are then unnamed and
//! old enough are removed, including those that lost races left.
//!
//! All names go, those of young copies too. A full log is cut before an entry that names a copy and
//! continues in that copy: a copy from before the collection would lead to removed files. For the
//! same reason the copy that the collection itself makes is not named. Without a place to cut,
//! `repo` would grow from collection to collection; a log of twice the usual length is therefore
//! cut here, and continues in a file written for it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use super::sweep::{BATCH, Object};
use super::{Count, is_older};
use crate::repo::operations::read_copy;
use crate::repo::update::{backup_name, updates_per_file};
use icechunkfs_base::error::Result;
use icechunkfs_format::format::repo_state::RepoState;
use icechunkfs_store::storage::{Condition, Storage};

const FOLDER: &str = "overwritten/";
/// Number of removable copies that justifies an update of `repo` by itself, since that update
/// leaves another copy.
pub(super) const MIN_REMOVABLE: usize = 10;

/// Listed copies, and the plan of a log without their names.
#[derive(Debug)]
pub(super) struct Copies {
    listed: BTreeMap<String, Object>,
    older_than: u64,
    /// File in which the log continues.
    before: Option<String>,
    /// File in which the log will continue.
    new_before: Option<String>,
    /// Files in which the log will continue and that have to be written, with their names.
    written: Vec<(String, RepoState)>,
    /// Names of all files in which the log will continue.
    kept: HashSet<String>,
    /// Time of the newest entry that is moved from `repo` to a written file.
    moved: Option<u64>,
}

impl Copies {
    /// Lists the copies, and plans the log of `state` without their names.
    pub(super) async fn find(storage: &Arc<dyn Storage>, state: &RepoState, older_than: u64) -> Result<Self> {
        let mut listed = BTreeMap::new();
        for object in storage.list(FOLDER).await? {
            if let Some(name) = object.key.strip_prefix(FOLDER).filter(|name| name.starts_with("repo.")) {
                listed.insert(name.to_owned(), Object { size: object.size, stored: object.modified });
            }
        }
        let mut copies = Copies {
            listed,
            older_than,
            before: state.repo_before_updates.clone(),
            new_before: None,
            written: Vec::new(),
            kept: HashSet::new(),
            moved: None,
        };
        // Oldest first: each file contains the name of the one before.
        for (name, mut file) in chain(storage, state.repo_before_updates.clone()).await?.into_iter().rev() {
            let has_names = forget(&mut file);
            if has_names || file.repo_before_updates != copies.new_before {
                copies.add(file)?;
            } else {
                copies.kept.insert(name.clone());
                copies.new_before = Some(name);
            }
        }
        let per_file = updates_per_file(state.config.as_deref());
        if state.updates.len() >= per_file.saturating_mul(2) {
            let mut file = state.clone();
            file.updates.drain(..per_file);
            forget(&mut file);
            copies.moved = file.updates.first().map(|newest| newest.updated_at);
            copies.add(file)?;
        }
        Ok(copies)
    }

    fn add(&mut self, mut file: RepoState) -> Result<()> {
        let name = backup_name("repo", file.updates.first().map_or(0, |newest| newest.updated_at))?;
        file.repo_before_updates = self.new_before.replace(name.clone());
        self.kept.insert(name.clone());
        self.written.push((name, file));
        Ok(())
    }

    /// Writes the files in which the log will continue.
    pub(super) async fn write(&self, storage: &Arc<dyn Storage>) -> Result<()> {
        for (name, file) in &self.written {
            storage.put(&format!("{FOLDER}{name}"), file.encode()?.into(), Condition::Always).await?;
        }
        Ok(())
    }

    /// Removes the names of copies from the log of `state`. A log that has been cut since the plan
    /// is left as it is.
    pub(super) fn shorten(&self, state: &mut RepoState) {
        let cut = match self.moved {
            None => Some(state.updates.len()),
            Some(moved) => state.updates.iter().position(|update| update.updated_at == moved),
        };
        let Some(cut) = cut.filter(|_| state.repo_before_updates == self.before) else { return };
        state.updates.truncate(cut);
        forget(state);
        state.repo_before_updates.clone_from(&self.new_before);
    }

    /// Returns the copies that can be removed once the log is shortened.
    pub(super) fn expected(&self) -> BTreeSet<&str> {
        self.unnamed(&self.kept)
    }

    /// Returns the copies to remove, now that `state` is written.
    pub(super) async fn garbage(&self, storage: &Arc<dyn Storage>, state: &RepoState) -> Result<BTreeSet<&str>> {
        let mut named = names(state);
        for (_, file) in chain(storage, state.repo_before_updates.clone()).await? {
            named.extend(names(&file));
        }
        Ok(self.unnamed(&named))
    }

    fn unnamed(&self, named: &HashSet<String>) -> BTreeSet<&str> {
        let old = self.listed.iter().filter(|(_, copy)| is_older(copy.stored, self.older_than));
        old.map(|(name, _)| name.as_str()).filter(|name| !named.contains(*name)).collect()
    }

    pub(super) fn count(&self, copies: &BTreeSet<&str>) -> Count {
        let mut count = Count::default();
        copies.iter().filter_map(|name| self.listed.get(*name)).for_each(|copy| count.add(copy.size));
        count
    }
}

pub(super) async fn remove(storage: &Arc<dyn Storage>, copies: &BTreeSet<&str>) -> Result<()> {
    let keys: Vec<String> = copies.iter().map(|name| format!("{FOLDER}{name}")).collect();
    for batch in keys.chunks(BATCH) {
        storage.delete(batch).await?;
    }
    Ok(())
}

/// Removes all names of copies from the entries of `file`; returns true if there were any.
fn forget(file: &mut RepoState) -> bool {
    let mut any = false;
    for update in &mut file.updates {
        any |= update.backup_path.take().is_some();
    }
    any
}

/// Returns all names in the log of `state`.
fn names(state: &RepoState) -> HashSet<String> {
    let entries = state.updates.iter().filter_map(|update| update.backup_path.clone());
    entries.chain(state.repo_before_updates.clone()).collect()
}

/// Reads the files in which the log continues from `head`, newest first.
async fn chain(storage: &Arc<dyn Storage>, head: Option<String>) -> Result<Vec<(String, RepoState)>> {
    let mut files = Vec::new();
    let mut seen = HashSet::new();
    let mut next = head;
    while let Some(name) = next.take() {
        // A file that has been removed ends the log.
        let Some(info) = read_copy(&**storage, &name, &mut seen).await? else { break };
        let file = RepoState::from_info(&info)?;
        next.clone_from(&file.repo_before_updates);
        files.push((name, file));
    }
    Ok(files)
}
