//! Refs to commits that are stored and not yet listed: of another repository, or made here one after another.
//!
//! The objects of these commits are stored before. One update inserts their records and moves the ref, if it is where it was and no
//! garbage was collected since the first object was stored.

use super::change_refs::{RefKind, check_target, exists, refs_of, tag_was_deleted};
use super::collect::mark::LogPosition;
use super::flags::FeatureFlag;
use super::{Generation, Repository, update, v1};
use crate::error::{Error, ErrorKind, Result};
use crate::format::ids::ObjectId;
use crate::format::repo_state::{Operation, RepoState, SnapshotRecord};
use crate::times::Clock;

/// Ref, and the commits that it needs here.
#[derive(Debug)]
pub struct RefImport<'a> {
    /// Kind of the ref.
    pub kind: RefKind,
    /// Name of the ref.
    pub name: &'a str,
    /// Present target of the ref; none if it is to be created.
    pub expected: Option<ObjectId>,
    /// New target of the ref.
    pub target: ObjectId,
    /// True if the new target follows the present one.
    pub is_forward: bool,
    /// True if the commits move nodes, which the repository has to allow.
    pub has_moves: bool,
    /// Records of the commits that lead to the target, of which some may be here; empty in version 1.
    pub records: &'a [(ObjectId, SnapshotRecord)],
    /// Position of the log before the first object was stored; none in version 1.
    pub stored_since: Option<LogPosition>,
}

impl Repository {
    /// Points a ref to a commit whose objects are stored.
    ///
    /// Errors: [`ErrorKind::Stale`] if the ref is not at `expected` any more, [`ErrorKind::Busy`] if garbage was collected, so that objects
    /// may be gone, [`ErrorKind::AlreadyExists`] for the name of a deleted tag.
    pub async fn import_ref(&self, import: &RefImport<'_>, clock: Clock) -> Result<()> {
        let RefImport { kind, name, expected, target, .. } = *import;
        self.check_changes_allowed().await?;
        if expected.is_none() {
            self.check_name(kind, name)?;
        }
        let changed = match (&self.generation, expected) {
            (Generation::V1(_), None) => v1::create_ref(&*self.storage, kind, name, target).await,
            (Generation::V1(_), Some(from)) => v1::replace_branch(&*self.storage, name, from, Some(target)).await,
            _ => update::update(&*self.storage, clock, |state| insert(state, import)).await.map(drop),
        };
        self.settle(kind, name, Some(target), changed).await
    }
}

fn insert(state: &mut RepoState, import: &RefImport<'_>) -> Result<Operation> {
    let RefImport { kind, name, expected, target, is_forward, has_moves, records, stored_since } = *import;
    if stored_since.is_some_and(|position| position.may_have_collected_since(state)) {
        return Err(Error::new(ErrorKind::Busy, "garbage was collected meanwhile: try again"));
    }
    let found = refs_of(state, kind).get(name).copied();
    match (expected, found) {
        (None, Some(there)) => return Err(exists(kind, name, there)),
        (Some(expected), found) => check_target(kind, name, found, expected)?,
        (None, None) => {}
    }
    if has_moves {
        FeatureFlag::MoveNode.check(state, "moving groups and arrays")?;
    }
    if kind == RefKind::Tag {
        FeatureFlag::CreateTag.check(state, "making tags")?;
        if state.deleted_tags.contains(name) {
            return Err(tag_was_deleted(name));
        }
    }
    for (id, record) in records {
        // A record that is here stays as it is: expiration may have given it another parent.
        if state.snapshots.contains_key(id) {
            continue;
        }
        if let Some(parent) = record.parent
            && !state.snapshots.contains_key(&parent)
        {
            return Err(Error::new(
                ErrorKind::Busy,
                format!("commit {parent} has expired or was collected meanwhile: try again"),
            ));
        }
        state.snapshots.insert(*id, record.clone());
    }
    if !state.snapshots.contains_key(&target) {
        return Err(Error::corrupt(format!("no record of snapshot {target} came with {kind} `{name}`")));
    }
    refs_of(state, kind).insert(name.to_owned(), target);
    let name = name.to_owned();
    Ok(match (kind, expected) {
        (RefKind::Tag, _) => Operation::TagCreated { name },
        (RefKind::Branch, None) => Operation::BranchCreated { name },
        (RefKind::Branch, Some(_)) if is_forward => Operation::NewCommit { branch: name, new: target },
        (RefKind::Branch, Some(previous)) => Operation::BranchReset { name, previous },
    })
}
