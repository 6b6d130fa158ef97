//! Operations log of a repository, across the files that hold it (format notes 1.6).
//!
//! `repo` holds the newest operations. When it is full, it names the copy of itself, below `overwritten/`, that holds the operations
//! before, and that copy names another. Version 1 keeps no such log.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use super::{Generation, MAX_REPO_FILE, Repository};
use crate::error::{Error, ErrorKind, Result};
use crate::format::operations_log::{self, DisplayedEntry};
use crate::format::repo_info::RepoInfo;
use crate::storage::{Storage, decoded};

/// Operations, newest first, fetched on demand.
#[derive(Debug)]
pub struct Operations {
    storage: Arc<dyn Storage>,
    entries: VecDeque<DisplayedEntry>,
    before: Option<String>,
    /// Names of the files that were read, so that a damaged chain ends.
    seen: HashSet<String>,
    missing: Option<String>,
}

impl Repository {
    /// Returns the operations log as of the repository's opening. Fails with [`ErrorKind::Unsupported`] where there is none: before
    /// version 2.
    pub fn operations(&self) -> Result<Operations> {
        let Generation::V2(info) = &self.generation else {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "{} keeps no log of operations, as only repositories of format version 2 do; `icechunkfs log` shows the \
                     commits of a branch",
                    self.storage.location()
                ),
            ));
        };
        let page = operations_log::read(info);
        Ok(Operations {
            storage: Arc::clone(&self.storage),
            entries: page.entries.into(),
            before: page.previous_file,
            seen: HashSet::new(),
            missing: None,
        })
    }
}

impl Operations {
    /// Returns the next older operation; none at the end.
    pub async fn next(&mut self) -> Result<Option<DisplayedEntry>> {
        loop {
            if let Some(entry) = self.entries.pop_front() {
                return Ok(Some(entry));
            }
            let Some(name) = self.before.take() else { return Ok(None) };
            self.turn_to(name).await?;
        }
    }

    /// Returns the bare names of all files below `overwritten/` in which the log continues.
    pub async fn files(mut self) -> Result<HashSet<String>> {
        while let Some(name) = self.before.take() {
            self.turn_to(name).await?;
        }
        Ok(self.seen)
    }

    /// Returns the key of the file in which the log should continue but which has been removed; the operations before it are unknown.
    pub fn missing(&self) -> Option<&str> {
        self.missing.as_deref()
    }

    async fn turn_to(&mut self, name: String) -> Result<()> {
        let Some(info) = read_copy(&*self.storage, &name, &mut self.seen).await? else {
            self.missing = Some(format!("overwritten/{name}"));
            return Ok(());
        };
        let page = operations_log::read(&info);
        self.entries = page.entries.into();
        self.before = page.previous_file;
        // The newest entry of a file was written before the file had this name.
        if let Some(newest) = self.entries.front_mut() {
            newest.backup_path.get_or_insert(name);
        }
        Ok(())
    }
}

/// Reads the copy of `repo` in which the log continues; none if it has been removed. Adds its name to `seen`, so that a damaged chain ends.
pub(super) async fn read_copy(
    storage: &dyn Storage,
    name: &str,
    seen: &mut HashSet<String>,
) -> Result<Option<RepoInfo>> {
    // A name with a folder would lead outside of `overwritten/`.
    if name.is_empty() || name.contains('/') || name.contains("..") {
        return Err(Error::corrupt(format!("the operations log continues in `{name}`, which is not a bare file name")));
    }
    if !seen.insert(name.to_owned()) {
        return Err(Error::corrupt(format!("the operations log is a cycle: it comes to overwritten/{name} again")));
    }
    match decoded::fixed(storage, &format!("overwritten/{name}"), MAX_REPO_FILE, RepoInfo::decode).await {
        Ok(found) => Ok(Some(found.value)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.context(storage.location())),
    }
}
