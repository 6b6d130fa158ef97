//! Refs of version 1 beside `repo`: a migration in place was killed before it removed them, was
//! told to keep them, or a program that has the repository open as version 1 has written them
//! since.
//!
//! Version 2 does not read them. One is *settled* if `repo` has all that it says: the ref is there
//! at its target or at a later commit, or version 2 has had it there and has then moved or deleted
//! it. Whatever leads to other commits must not be removed, and neither must those commits.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};

use crate::repo::change_refs::RefKind;
use crate::repo::ref_files::{Layout, MAX_REF_FILE, REFS_AT_ONCE, is_absence, tombstone};
use crate::repo::refs::Damaged;
use crate::repo::{Generation, Repository, v1};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::repo_state::{Operation, RepoState};
use icechunkfs_format::format::snapshot_info::SnapshotInfo;
use icechunkfs_store::storage::{Storage, Version};

/// Ref of version 1 and its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::repo) struct OldRef {
    pub(in crate::repo) key: String,
    pub(in crate::repo) kind: RefKind,
    pub(in crate::repo) name: String,
    pub(in crate::repo) target: ObjectId,
    /// Version of the file.
    pub(in crate::repo) version: Version,
}

impl OldRef {
    /// Returns the name of the branch that keeps what the ref leads to if version 2 has something
    /// else under its own name.
    pub(in crate::repo) fn other_name(&self) -> String {
        format!("{}-v1", self.name)
    }
}

/// All refs of version 1.
#[derive(Debug, Default)]
pub(in crate::repo) struct OldRefs {
    pub(in crate::repo) refs: Vec<OldRef>,
    /// Tags that are deleted, as far as their files say what they led to.
    pub(super) deleted_tags: Vec<OldRef>,
    /// Markers of deleted tags, and the files of those tags.
    pub(super) deleted: Vec<String>,
}

impl OldRefs {
    /// Reads the refs of version 1. Fails if one is damaged, because what it leads to is not known.
    pub(in crate::repo) async fn read(storage: &dyn Storage) -> Result<Self> {
        let objects = storage.list("refs/").await?;
        let keys: HashSet<&str> = objects.iter().map(|object| object.key.as_str()).collect();
        let mut refs = Vec::new();
        let mut deleted_tags = Vec::new();
        let mut deleted = Vec::new();
        for key in keys.iter().copied() {
            match Layout::V1.name_of(key) {
                _ if key.ends_with("/ref.json.deleted") => deleted.push(key.to_owned()),
                Some((RefKind::Tag, name)) if keys.contains(tombstone(key).as_str()) => {
                    deleted.push(key.to_owned());
                    deleted_tags.push((key, RefKind::Tag, name));
                }
                Some((kind, name)) => refs.push((key, kind, name)),
                // No program reads it as a ref.
                None => {}
            }
        }
        let refs = Self::read_files(storage, refs, Damaged::Refused).await?;
        // Nothing depends on where a deleted one led.
        let deleted_tags = Self::read_files(storage, deleted_tags, Damaged::LeftOut).await?;
        Ok(OldRefs { refs, deleted_tags, deleted })
    }

    async fn read_files(
        storage: &dyn Storage,
        named: Vec<(&str, RefKind, String)>,
        damaged: Damaged,
    ) -> Result<Vec<OldRef>> {
        let read = async |(key, kind, name): (&str, RefKind, String)| {
            let file = match storage.get_versioned(key, MAX_REF_FILE).await {
                Ok((bytes, version)) => v1::parse_ref(key, &bytes).map(|target| Some((target, version))),
                Err(error) if is_absence(&error) => Ok(None),
                Err(error) => Err(error.context(storage.location())),
            };
            let found = damaged.treat_file(file)?;
            Ok::<_, Error>(found.map(|(target, version)| OldRef { key: key.to_owned(), kind, name, target, version }))
        };
        let reads: Vec<_> = named.into_iter().map(read).collect();
        let read: Vec<_> = stream::iter(reads).buffer_unordered(REFS_AT_ONCE).try_collect().await?;
        let mut all: Vec<OldRef> = read.into_iter().flatten().collect();
        all.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(all)
    }

    /// Returns the number of files.
    pub(super) fn len(&self) -> usize {
        self.refs.len() + self.deleted.len()
    }
}

/// Treatment of an old ref by a migration.
#[derive(Debug)]
pub(super) enum Verdict {
    /// `repo` has all that it says.
    Settled,
    /// `repo` lacks it: it is to be created at its target, or moved there from the given one. The
    /// commits are those to list first.
    Missing(Option<ObjectId>, Vec<SnapshotInfo>),
    /// It cannot be both that and what version 2 has under its name. The commits are those that
    /// `repo` lacks; none if they cannot be read. The text is the reason.
    Left(Option<Vec<SnapshotInfo>>, String),
}

/// State of `repo` that old refs are compared with.
#[derive(Debug)]
pub(in crate::repo) struct Migrated<'a> {
    state: &'a RepoState,
}

impl<'a> Migrated<'a> {
    pub(in crate::repo) fn new(state: &'a RepoState) -> Self {
        Migrated { state }
    }

    /// Returns true if version 2 has `old`, or has had it and has moved or deleted it; or if it was
    /// kept under [`OldRef::other_name`].
    pub(in crate::repo) fn has(&self, old: &OldRef) -> bool {
        let leads = |branch: &str| self.state.branches.get(branch).is_some_and(|tip| self.leads(*tip, old.target));
        let is_there = match old.kind {
            RefKind::Branch => leads(&old.name),
            RefKind::Tag => self.state.tags.get(&old.name) == Some(&old.target),
        };
        is_there || leads(&old.other_name()) || self.since_migration().any(|operation| self.gave_up(operation, old))
    }

    /// Returns true if `operation` took `old` from where it was.
    fn gave_up(&self, operation: &Operation, old: &OldRef) -> bool {
        let (kind, name, previous) = match operation {
            Operation::BranchReset { name, previous } | Operation::BranchDeleted { name, previous } => {
                (RefKind::Branch, name, *previous)
            }
            Operation::CommitAmended { branch, previous, .. } => (RefKind::Branch, branch, *previous),
            Operation::TagDeleted { name, previous } => (RefKind::Tag, name, *previous),
            _ => return false,
        };
        kind == old.kind && *name == old.name && self.leads(previous, old.target)
    }

    /// Returns the operations since the migration, newest first, as far as `repo` itself has them.
    fn since_migration(&self) -> impl Iterator<Item = &Operation> {
        let operations = self.state.updates.iter().map(|update| &update.operation);
        operations.take_while(|operation| !matches!(operation, Operation::RepoMigrated { .. }))
    }

    /// Returns true if `repo` itself has all operations since the migration.
    fn remembers_migration(&self) -> bool {
        self.state.updates.iter().any(|update| matches!(update.operation, Operation::RepoMigrated { .. }))
    }

    /// Returns true if `target` is `tip` or an ancestor of it. An expired ancestor counts.
    fn leads(&self, tip: ObjectId, target: ObjectId) -> bool {
        let mut next = Some(tip);
        let mut seen = HashSet::new();
        while let Some(id) = next.filter(|id| seen.insert(*id)) {
            if id == target {
                return true;
            }
            let Some(record) = self.state.snapshots.get(&id) else { return false };
            if record.pruned_ancestor_tx_logs.contains(&target) {
                return true;
            }
            next = record.parent;
        }
        false
    }

    /// Decides about `old`.
    pub(super) async fn judge(&self, storage: &Arc<dyn Storage>, old: &OldRef) -> Result<Verdict> {
        if self.has(old) {
            return Ok(Verdict::Settled);
        }
        let new = match self.unlisted(storage, old.target).await {
            Ok(new) => new,
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                return Ok(Verdict::Left(None, format!("its commits cannot be read: {error}")));
            }
            Err(error) => return Err(error),
        };
        let kind = old.kind;
        let there = match kind {
            RefKind::Branch => self.state.branches.get(&old.name).copied(),
            RefKind::Tag => self.state.tags.get(&old.name).copied(),
        };
        Ok(match there {
            Some(tip) if kind == RefKind::Branch && self.follows(&new, old.target, tip) => {
                Verdict::Missing(Some(tip), new)
            }
            Some(there) => {
                Verdict::Left(Some(new), format!("version 2 has {kind} `{}` at {there}, elsewhere", old.name))
            }
            None if kind == RefKind::Tag && self.state.deleted_tags.contains(&old.name) => {
                Verdict::Left(Some(new), format!("version 2 has deleted a tag `{}`", old.name))
            }
            None if self.remembers_migration() => Verdict::Missing(None, new),
            None => Verdict::Left(
                Some(new),
                format!("version 2 does not have the {kind} `{}`, nor a record of its deletion", old.name),
            ),
        })
    }

    /// Returns true if `tip` is an ancestor of `target`, whose commits `new` are not listed.
    pub(super) fn follows(&self, new: &[SnapshotInfo], target: ObjectId, tip: ObjectId) -> bool {
        let listed = new.first().map_or(Some(target), |oldest| oldest.parent);
        listed.is_some_and(|listed| self.leads(listed, tip))
    }

    /// Returns those of `target` and its ancestors that `repo` does not list, oldest first.
    pub(super) async fn unlisted(&self, storage: &Arc<dyn Storage>, target: ObjectId) -> Result<Vec<SnapshotInfo>> {
        let mut new = Vec::new();
        if self.state.snapshots.contains_key(&target) {
            return Ok(new);
        }
        let old = Repository::new(Arc::clone(storage), Generation::V1(None));
        old.walk(target, |commit| {
            let goes_on = commit.parent.is_some_and(|parent| !self.state.snapshots.contains_key(&parent));
            new.push(commit);
            goes_on
        })
        .await?;
        new.reverse();
        Ok(new)
    }
}
