//! Detection of a moved branch tip at the cost of one small request.
//!
//! The target of a branch is in one object: `repo`, or in version 1 the branch's own file. Each request for it is conditional on a change
//! since the last one; if nothing changed, the answer has no body. Before 0.2 every commit added a file, and the check compares the
//! newest file's name.

use std::sync::Arc;

use super::{Generation, MAX_REPO_FILE, Repository, alpha, v1};
use crate::error::{Context, ErrorKind, Result};
use crate::format::ids::ObjectId;
use crate::format::repo_info::RepoInfo;
use crate::storage::virtuals::Virtuals;
use crate::storage::{Storage, Version};

/// A branch that is checked repeatedly for a new tip.
#[derive(Debug)]
pub struct Watch {
    storage: Arc<dyn Storage>,
    virtuals: Arc<Virtuals>,
    branch: String,
    place: Place,
    /// Version of the object when the branch was last followed.
    seen: Option<Version>,
    /// Version of the object at the last check.
    found: Option<Version>,
}

/// Location of a branch's target.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// A folder of numbered files.
    Alpha(alpha::Layout),
    /// The branch's own file.
    V1,
    /// The object `repo`.
    V2,
}

impl Place {
    fn of(generation: &Generation) -> Self {
        match generation {
            Generation::Alpha(layout) => Place::Alpha(*layout),
            Generation::V1(_) => Place::V1,
            Generation::V2(_) => Place::V2,
        }
    }
}

/// Result of a check.
#[derive(Debug)]
pub enum Look {
    /// Nothing was written.
    Same,
    /// Something was written. Holds the repository in its new state and the branch tip.
    Tip(Box<Repository>, ObjectId),
    /// The branch or the repository does not exist.
    Gone,
}

impl Watch {
    /// Starts watching `branch` of `repository`. The first check never returns [`Look::Same`].
    pub fn new(repository: &Repository, branch: &str) -> Self {
        Watch {
            storage: Arc::clone(&repository.storage),
            virtuals: Arc::clone(&repository.virtuals),
            branch: branch.to_owned(),
            place: Place::of(&repository.generation),
            seen: None,
            found: None,
        }
    }

    /// Checks for writes since the state that [`Watch::followed`] confirmed.
    pub async fn look(&mut self) -> Result<Look> {
        let (key, limit) = match self.place {
            Place::Alpha(layout) => return self.look_into(layout).await,
            Place::V1 => (v1::branch_key(&self.branch), v1::MAX_REF_FILE),
            Place::V2 => ("repo".to_owned(), MAX_REPO_FILE),
        };
        let asked = match &self.seen {
            Some(seen) => self.storage.get_changed(&key, limit, seen).await,
            None => self.storage.get_versioned(&key, limit).await.map(Some),
        };
        let (bytes, version) = match asked {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(Look::Same),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                (self.seen, self.found) = (None, None);
                return self.look_anew().await;
            }
            Err(error) => return Err(error.context(self.storage.location())),
        };
        self.found = Some(version);
        let (generation, tip) = if let Place::V1 = self.place {
            (Generation::V1(v1::Layout::default()), Some(v1::parse_ref(&key, &bytes)?))
        } else {
            let info = RepoInfo::decode(&bytes).context(|| format!("{}: repo", self.storage.location()))?;
            let tip = info.branch(&self.branch).transpose()?;
            (Generation::V2(info), tip)
        };
        let (storage, virtuals) = (Arc::clone(&self.storage), Arc::clone(&self.virtuals));
        let repository = Repository { storage, generation, virtuals };
        Ok(tip.map_or(Look::Gone, |tip| Look::Tip(Box::new(repository), tip)))
    }

    /// Does the same as [`Watch::look`] for an alpha, whose ref files never change.
    async fn look_into(&mut self, layout: alpha::Layout) -> Result<Look> {
        let Some(key) = layout.branch_file(&*self.storage, &self.branch).await? else {
            (self.seen, self.found) = (None, None);
            return self.look_anew().await;
        };
        let version = Version { e_tag: Some(key), version: None };
        if self.seen.as_ref() == Some(&version) {
            return Ok(Look::Same);
        }
        let key = version.e_tag.clone().unwrap_or_default();
        let Some(tip) = alpha::read_ref(&*self.storage, &key).await? else { return Ok(Look::Gone) };
        self.found = Some(version);
        let (storage, virtuals) = (Arc::clone(&self.storage), Arc::clone(&self.virtuals));
        let repository = Repository { storage, generation: Generation::Alpha(layout), virtuals };
        Ok(Look::Tip(Box::new(repository), tip))
    }

    /// Confirms the last result, so that the next check reports only later writes.
    pub fn followed(&mut self) {
        self.seen = self.found.take();
    }

    /// Opens the repository again after the object was not found: the branch is gone, or the repository has another version now.
    async fn look_anew(&mut self) -> Result<Look> {
        let repository = match Repository::open(Arc::clone(&self.storage)).await {
            Ok(repository) => repository.with_virtuals(Arc::clone(&self.virtuals)),
            Err(error) if error.kind() == ErrorKind::NotARepository => return Ok(Look::Gone),
            Err(error) => return Err(error),
        };
        self.place = Place::of(&repository.generation);
        let tip = repository.branch_tip(&self.branch).await?;
        Ok(tip.map_or(Look::Gone, |tip| Look::Tip(Box::new(repository), tip)))
    }
}
