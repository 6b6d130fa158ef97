//! Detection of a moved branch tip at the cost of one small request.
//!
//! The target of a branch is in one object: `repo`, or in version 1 the branch's own file. Each
//! request for it is conditional on a change since the last one; if nothing changed, the answer has
//! no body. Before 0.2 every commit added a file, and the check compares the newest file's name.

use std::sync::Arc;

use super::allowed::AllowedVirtuals;
use super::ref_files::{Layout, MAX_REF_FILE, branch_key};
use super::update::RepoFile;
use super::{Generation, MAX_REPO_FILE, Repository, v1};
use icechunkfs_base::error::{Context, ErrorKind, Result};
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::repo_info::RepoInfo;
use icechunkfs_store::storage::{Storage, Version};

/// A branch that is checked repeatedly for a new tip.
#[derive(Debug)]
pub struct BranchWatch {
    storage: Arc<dyn Storage>,
    allowed: Arc<AllowedVirtuals>,
    branch: String,
    /// Layout of the files of refs; none if the target is in `repo`.
    layout: Option<Layout>,
    /// Version of the object when the branch was last followed.
    seen: Option<Version>,
    /// Version of the object at the last check.
    found: Option<Version>,
}

/// Result of a check.
#[derive(Debug)]
pub enum CheckResult {
    /// Nothing was written.
    Unchanged,
    /// Something was written. Holds the repository in its new state and the branch tip.
    Changed(Box<Repository>, ObjectId),
    /// The branch or the repository does not exist.
    NotFound,
}

impl BranchWatch {
    /// Starts watching `branch` of `repository`. The first check never returns
    /// [`CheckResult::Unchanged`].
    pub fn new(repository: &Repository, branch: &str) -> Self {
        BranchWatch {
            storage: Arc::clone(&repository.storage),
            allowed: Arc::clone(&repository.allowed),
            branch: branch.to_owned(),
            layout: repository.generation.layout(),
            seen: None,
            found: None,
        }
    }

    /// Checks for writes since the state that [`BranchWatch::confirm`] confirmed.
    pub async fn check(&mut self) -> Result<CheckResult> {
        let (key, limit) = match self.layout {
            Some(Layout::V1) => (branch_key(&self.branch), MAX_REF_FILE),
            Some(layout) => return self.check_alpha(layout).await,
            None => ("repo".to_owned(), MAX_REPO_FILE),
        };
        let asked = match &self.seen {
            Some(seen) => self.storage.get_changed(&key, limit, seen).await,
            None => self.storage.get_versioned(&key, limit).await.map(Some),
        };
        let (bytes, version) = match asked {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(CheckResult::Unchanged),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                (self.seen, self.found) = (None, None);
                return self.reopen().await;
            }
            Err(error) => return Err(error.context(self.storage.location())),
        };
        self.found = Some(version.clone());
        if self.layout == Some(Layout::V1) {
            let tip = v1::parse_ref(&key, &bytes)?;
            let branch = v1::BranchFile { name: self.branch.clone(), tip, version: Some(version) };
            return Ok(self.result(Repository::of_branch(Arc::clone(&self.storage), branch), Some(tip)));
        }
        let info = RepoInfo::decode(&bytes).context(|| format!("{}: repo", self.storage.location()))?;
        let tip = info.branch(&self.branch).transpose()?;
        let file = RepoFile::new(Arc::new(info), bytes, version);
        Ok(self.result(Repository::of_file(Arc::clone(&self.storage), file), tip))
    }

    /// Does the same as [`BranchWatch::check`] for an alpha, whose ref files never change.
    async fn check_alpha(&mut self, layout: Layout) -> Result<CheckResult> {
        let Some(key) = layout.branch_file(&*self.storage, &self.branch).await? else {
            (self.seen, self.found) = (None, None);
            return self.reopen().await;
        };
        let version = Version { e_tag: Some(key), version: None };
        if self.seen.as_ref() == Some(&version) {
            return Ok(CheckResult::Unchanged);
        }
        let key = version.e_tag.clone().unwrap_or_default();
        let tip = layout.read(&*self.storage, &key).await?;
        self.found = Some(version);
        Ok(self.result(Repository::new(Arc::clone(&self.storage), Generation::Alpha(layout)), tip))
    }

    /// Confirms the last result, so that the next check reports only later writes.
    pub fn confirm(&mut self) {
        self.seen = self.found.take();
    }

    /// Opens the repository again after the object was not found: the branch is gone, or the
    /// repository has another version now.
    async fn reopen(&mut self) -> Result<CheckResult> {
        let repository = match Repository::open(Arc::clone(&self.storage)).await {
            Ok(repository) => repository,
            Err(error) if error.kind() == ErrorKind::NotARepository => return Ok(CheckResult::NotFound),
            Err(error) => return Err(error),
        };
        self.layout = repository.generation.layout();
        let tip = repository.branch_tip(&self.branch).await?;
        Ok(self.result(repository, tip))
    }

    fn result(&self, repository: Repository, tip: Option<ObjectId>) -> CheckResult {
        let repository = Repository { allowed: Arc::clone(&self.allowed), ..repository };
        tip.map_or(CheckResult::NotFound, |tip| CheckResult::Changed(Box::new(repository), tip))
    }
}
