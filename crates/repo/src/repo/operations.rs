//! Operations log of a repository, across the files that hold it (format notes 1.6).
//!
//! `repo` holds the newest operations. When it is full, it names the copy of itself, below
//! `overwritten/`, that holds the operations before, and that copy names another. Version 1 keeps
//! no such log.

use std::collections::HashSet;
use std::sync::Arc;

use super::{Generation, MAX_REPO_FILE, Repository};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::memory::Meter;
use icechunkfs_format::format::envelope::SpecVersion;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::operations_log::{self, DisplayedEntry};
use icechunkfs_format::format::repo_info::RepoInfo;
use icechunkfs_format::format::repo_state::Operation;
use icechunkfs_store::storage::{Storage, decoded};

/// Operations, newest first, fetched on demand.
#[derive(Debug)]
pub struct Operations {
    storage: Arc<dyn Storage>,
    /// File whose entries come next, and the position of the next one.
    file: Arc<RepoInfo>,
    at: usize,
    /// Name of that file; none for `repo` itself.
    name: Option<String>,
    is_last: bool,
    /// Names of the files that were read, so that a damaged chain ends.
    seen: HashSet<String>,
    missing: Option<String>,
}

impl Repository {
    /// Returns the operations log as of the repository's opening. Fails with
    /// [`ErrorKind::Unsupported`] where there is none: before version 2.
    pub fn operations(&self) -> Result<Operations> {
        let Generation::V2(info) = &self.generation else {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "{} does not have an operations log, as only repositories of format version 2 do; `icechunkfs log` \
                     shows the commits of a branch",
                    self.storage.location()
                ),
            ));
        };
        Ok(Operations {
            storage: Arc::clone(&self.storage),
            file: Arc::clone(info),
            at: 0,
            name: None,
            is_last: false,
            seen: HashSet::new(),
            missing: None,
        })
    }
}

/// Returns the commits that were amended since the time `since`, each with the commit before,
/// newest first; none before version 2, which has no amended commits. `meter` counts them. The
/// log does not tell of what happened in other repositories.
pub async fn amended_since(
    repository: &Repository,
    since: u64,
    meter: &mut Meter,
) -> Result<Vec<(ObjectId, ObjectId)>> {
    if repository.version() != SpecVersion::V2 {
        return Ok(Vec::new());
    }
    let mut operations = repository.operations()?;
    let mut amended = Vec::new();
    while let Some(entry) = operations.next().await?.filter(|entry| entry.updated_at >= since) {
        if let Ok(Operation::CommitAmended { previous, new, .. }) = entry.operation {
            meter.count_items::<(ObjectId, ObjectId)>(1)?;
            amended.push((new, previous));
        }
    }
    Ok(amended)
}

impl Operations {
    /// Returns the next older operation; none at the end.
    pub async fn next(&mut self) -> Result<Option<DisplayedEntry>> {
        loop {
            if let Some(mut entry) = operations_log::entry(&self.file, self.at).filter(|_| !self.is_last) {
                self.at += 1;
                // The newest entry of a file was written before the file had this name.
                if let Some(name) = self.name.take() {
                    entry.backup_path.get_or_insert(name);
                }
                return Ok(Some(entry));
            }
            if !self.turn().await? {
                return Ok(None);
            }
        }
    }

    /// Returns the bare names of all files below `overwritten/` in which the log continues.
    pub async fn files(mut self) -> Result<HashSet<String>> {
        while self.turn().await? {}
        Ok(self.seen)
    }

    /// Returns the location of the repository.
    pub fn location(&self) -> &str {
        self.storage.location()
    }

    /// Returns the key of the file in which the log should continue but which has been removed; the
    /// operations before it are unknown.
    pub fn missing(&self) -> Option<&str> {
        self.missing.as_deref()
    }

    /// Turns to the file with the operations before. Returns false if there is none.
    async fn turn(&mut self) -> Result<bool> {
        let before = operations_log::previous_file(&self.file).filter(|_| !self.is_last).map(str::to_owned);
        self.is_last = true;
        let Some(name) = before else { return Ok(false) };
        let Some(info) = read_copy(&*self.storage, &name, &mut self.seen).await? else {
            self.missing = Some(format!("overwritten/{name}"));
            return Ok(false);
        };
        self.file = Arc::new(info);
        (self.at, self.is_last) = (0, false);
        self.name = Some(name);
        Ok(true)
    }
}

/// Reads the copy of `repo` in which the log continues; none if it has been removed. Adds its name
/// to `seen`, so that a damaged chain ends.
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
