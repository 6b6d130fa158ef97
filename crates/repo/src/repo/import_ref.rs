//! Refs to commits that are stored and not yet listed: of another repository, or made here one
//! after another.
//!
//! The objects of these commits are stored before. One update inserts their records and moves all
//! refs that are where they were, if no garbage was collected since the first object was stored.
//! One update for all: each writes the whole of `repo`, and a log that is cut within a series of
//! updates could not tell any more that no garbage was collected.

use std::sync::Arc;

use super::change_refs::{RefKind, check_new_name, check_target, exists, refs_of, settle, tag_was_deleted};
use super::collect::mark::LogPosition;
use super::flags::FeatureFlag;
use super::history::is_ancestor;
use super::refs::Refs;
use super::update::UpdateOptions;
use super::{Generation, Repository, update, v1};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::times::Clock;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::repo_state::{Operation, RepoState, SnapshotRecord};

/// Commits whose objects are stored.
#[derive(Clone, Copy, Debug)]
pub struct StoredCommits<'a> {
    /// Records of the commits that lead to the new targets, parents first, of which some may be
    /// here; empty in version 1.
    pub records: &'a [(ObjectId, SnapshotRecord)],
    /// Position of the log before the first object was stored; none in version 1.
    pub stored_since: Option<LogPosition>,
    /// True if the commits move nodes, which the repository has to allow.
    pub has_moves: bool,
}

/// Change of a ref.
#[derive(Clone, Copy, Debug)]
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
}

/// Points refs to commits whose objects are stored, and returns an outcome for each: one that
/// has changed does not keep the others from moving. If the call fails, none has moved in
/// version 2.
///
/// Errors of a ref: [`ErrorKind::Stale`] if it is not at `expected` any more,
/// [`ErrorKind::NotFound`] if it was deleted, [`ErrorKind::AlreadyExists`] for a name that is
/// taken or of a deleted tag, [`ErrorKind::NotPermitted`] if the repository forbids it. The
/// call fails with [`ErrorKind::Busy`] if garbage was collected, so that objects may be gone.
pub async fn import_refs(
    repository: &Repository,
    imports: &[RefImport<'_>],
    commits: StoredCommits<'_>,
    clock: Clock,
) -> Result<Vec<Result<()>>> {
    repository.check_changes_allowed().await?;
    for import in imports.iter().filter(|import| import.expected.is_none()) {
        check_new_name(repository, import.kind, import.name)?;
    }
    if let Generation::V1(_) = repository.generation {
        let mut outcomes = Vec::new();
        for import in imports {
            let changed = import_in_v1(repository, import).await;
            match settle(repository, import.kind, import.name, Some(import.target), changed).await {
                Err(error) if !is_of_ref(&error) => return Err(error),
                outcome => outcomes.push(outcome),
            }
        }
        return Ok(outcomes);
    }
    let mut outcomes = Vec::new();
    let change = |state: &mut RepoState| {
        insert(state, commits)?;
        outcomes.clear();
        let mut operations = Vec::new();
        for import in imports {
            match point(state, import) {
                Ok(operation) => {
                    operations.push(operation);
                    outcomes.push(Ok(()));
                }
                Err(error) if is_of_ref(&error) => outcomes.push(Err(error)),
                Err(error) => return Err(error),
            }
        }
        Ok(operations)
    };
    match update::update_all_if(&*repository.storage, clock, UpdateOptions::default(), change).await {
        Ok(_) => Ok(outcomes),
        Err(error) if matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Io) => {
            if are_moved(repository, imports, &outcomes).await.map_err(|_| may_be_moved(&error))? {
                return Ok(outcomes);
            }
            Err(error)
        }
        Err(error) => Err(error),
    }
}

async fn import_in_v1(repository: &Repository, import: &RefImport<'_>) -> Result<()> {
    let RefImport { kind, name, expected, target, is_forward } = *import;
    let Some(from) = expected else { return v1::create_ref(&*repository.storage, kind, name, target).await };
    if is_forward && !is_ancestor(repository, from, target).await? {
        return Err(not_forward(import, from));
    }
    v1::replace_branch(&*repository.storage, name, from, Some(target)).await
}

/// Returns true if the refs that the last attempt moved are where it moved them: then it was
/// written, though its answer was lost.
async fn are_moved(repository: &Repository, imports: &[RefImport<'_>], outcomes: &[Result<()>]) -> Result<bool> {
    let Refs { branches, tags, .. } = Repository::open(Arc::clone(&repository.storage)).await?.refs().await?;
    let is_there = |import: &RefImport<'_>| {
        let refs = if import.kind == RefKind::Branch { &branches } else { &tags };
        refs.get(import.name) == Some(&import.target)
    };
    let mut moved = imports.iter().zip(outcomes).filter(|(_, outcome)| outcome.is_ok()).peekable();
    Ok(moved.peek().is_some() && moved.all(|(import, _)| is_there(import)))
}

/// Returns true for an error that concerns one ref.
fn is_of_ref(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Stale | ErrorKind::NotFound | ErrorKind::AlreadyExists | ErrorKind::NotPermitted)
}

fn may_be_moved(error: &Error) -> Error {
    Error::new(
        error.kind(),
        format!("the storage does not answer, so refs may or may not have moved; list them to see: {error}"),
    )
}

/// Lists the stored commits.
fn insert(state: &mut RepoState, commits: StoredCommits<'_>) -> Result<()> {
    let StoredCommits { records, stored_since, has_moves } = commits;
    if stored_since.is_some_and(|position| position.may_have_collected_since(state)) {
        return Err(Error::new(ErrorKind::Busy, "garbage was collected meanwhile: try again"));
    }
    if has_moves {
        FeatureFlag::MoveNode.check(state, "moving groups and arrays")?;
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
    Ok(())
}

/// Points a ref to a listed commit.
fn point(state: &mut RepoState, import: &RefImport<'_>) -> Result<Operation> {
    let RefImport { kind, name, expected, target, is_forward } = *import;
    let found = refs_of(state, kind).get(name).copied();
    match (expected, found) {
        (None, Some(there)) => return Err(exists(kind, name, there)),
        (Some(expected), found) => check_target(kind, name, found, expected)?,
        (None, None) => {}
    }
    if kind == RefKind::Tag {
        FeatureFlag::CreateTag.check(state, "making tags")?;
        if state.deleted_tags.contains(name) {
            return Err(tag_was_deleted(name));
        }
    }
    if !state.snapshots.contains_key(&target) {
        return Err(Error::corrupt(format!("no record of snapshot {target} came with {kind} `{name}`")));
    }
    // Whatever was said of the history elsewhere: it is this one that the branch has from now on.
    if let Some(expected) = expected.filter(|_| is_forward)
        && !leads_to(state, target, expected)
    {
        return Err(not_forward(import, expected));
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

fn not_forward(RefImport { kind, name, target, .. }: &RefImport<'_>, from: ObjectId) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        format!(
            "{kind} `{name}`: commit {target} should follow {from}, but by the parents stored here it does not: the \
             branch would lose commits, and nothing was changed"
        ),
    )
}

/// Returns true if `ancestor` is `tip` or one of its ancestors.
fn leads_to(state: &RepoState, tip: ObjectId, ancestor: ObjectId) -> bool {
    let parents = std::iter::successors(Some(tip), |id| state.snapshots.get(id).and_then(|record| record.parent));
    // No more than there are, if they form a ring.
    parents.take(state.snapshots.len() + 1).any(|id| id == ancestor)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use super::*;

    fn object_id(n: u8) -> ObjectId {
        ObjectId([n; 12])
    }

    fn record(parent: Option<u8>) -> SnapshotRecord {
        SnapshotRecord {
            parent: parent.map(object_id),
            flushed_at: 1,
            message: String::new(),
            metadata: Vec::new(),
            pruned_ancestor_tx_logs: Vec::new(),
        }
    }

    /// Branch `main` at 3, and 2 beside it, both after 1.
    fn state() -> RepoState {
        let records = [(1, None), (2, Some(1)), (3, Some(1))];
        RepoState {
            snapshots: records.map(|(id, parent)| (object_id(id), record(parent))).into(),
            branches: BTreeMap::from([("main".to_owned(), object_id(3))]),
            ..RepoState::default()
        }
    }

    fn import(state: &mut RepoState, records: &[(ObjectId, SnapshotRecord)]) -> Result<Operation> {
        let import = RefImport {
            kind: RefKind::Branch,
            name: "main",
            expected: Some(object_id(3)),
            target: object_id(4),
            is_forward: true,
        };
        insert(state, StoredCommits { records, stored_since: None, has_moves: false })?;
        point(state, &import)
    }

    #[test]
    fn a_branch_goes_forward_only_by_the_parents_that_are_here() {
        import(&mut state(), &[(object_id(4), record(Some(3)))]).unwrap();
        // The source says that 2 follows 3; here it does not.
        let lie = [(object_id(2), record(Some(3))), (object_id(4), record(Some(2)))];
        assert_eq!(import(&mut state(), &lie).unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(import(&mut state(), &[(object_id(4), record(Some(1)))]).unwrap_err().kind(), ErrorKind::Corrupt);
        let ring = [(object_id(5), record(Some(4))), (object_id(4), record(Some(5)))];
        assert!(import(&mut state(), &ring).is_err());
    }
}
