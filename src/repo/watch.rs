//! Looking whether a branch has moved, at the price of one small request.
//!
//! What a branch points to is in one object: `repo`, or in version 1 the branch's own file. It is asked for on the condition
//! that it is another one than last time; where nothing happened, the answer has no body. Before 0.2 every commit added a
//! file, and its name is looked at.

use std::sync::Arc;

use super::{Generation, MAX_REPO_FILE, Repository, alpha, v1};
use crate::error::{Context, ErrorKind, Result};
use crate::format::ids::ObjectId;
use crate::format::repo_info::RepoInfo;
use crate::storage::virtuals::Virtuals;
use crate::storage::{Storage, Version};

/// A branch that is looked at again and again.
#[derive(Debug)]
pub struct Watch {
    storage: Arc<dyn Storage>,
    virtuals: Arc<Virtuals>,
    branch: String,
    place: Place,
    /// The object as it was when the branch was last followed.
    seen: Option<Version>,
    /// As it is now.
    found: Option<Version>,
}

/// Where a branch says what it points to.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// In a folder.
    Alpha(alpha::Layout),
    /// In a file of its own.
    V1,
    /// In `repo`.
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

/// What there is to see.
#[derive(Debug)]
pub enum Look {
    /// Nothing was written.
    Same,
    /// Something was written. The repository as it is now, and the branch's newest commit.
    Tip(Box<Repository>, ObjectId),
    /// There is no such branch.
    Gone,
}

impl Watch {
    /// Looks at `branch` of `repository`. The first look always finds something.
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

    /// Whether anything was written since what [`Watch::followed`] was called for.
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

    /// As [`Watch::look`], in a folder whose files are never changed.
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

    /// What the last look found needs no second one.
    pub fn followed(&mut self) {
        self.seen = self.found.take();
    }

    /// The object is not there: the branch is gone, or the repository is of another version now.
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
