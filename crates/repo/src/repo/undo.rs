//! The newest operation on a ref, and what takes it back (`icechunkfs undo`).
//!
//! The operations log names what an operation did; the operation on the branch before it, or the
//! copy of `repo` from before it, says where the branch was (format notes 1.6, 1.7). A parent would
//! not do: one update of `repo` may bring many commits, and expiration changes parents.

use std::collections::HashSet;

use super::Repository;
use super::change_refs::RefKind;
use super::operations::{self, Operations};
use super::refs::{RefSpec, Refs};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::times::Clock;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::operations_log::DisplayedEntry;
use icechunkfs_format::format::repo_state::Operation;

/// Operation on a branch that can be taken back, with where the branch is and was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undo {
    /// The operation.
    pub operation: Operation,
    /// Time of the operation, in microseconds since 1970.
    pub at: u64,
    /// Name of the branch.
    pub branch: String,
    /// Its target now; none if the operation deleted it.
    pub now: Option<ObjectId>,
    /// Its target before the operation; none if the operation created it.
    pub before: Option<ObjectId>,
}

impl Undo {
    /// Finds the newest operation on a ref, or on branch `only`. Operations that change no ref are
    /// passed over: configuration, detached snapshots, garbage, expiration.
    ///
    /// Fails with [`ErrorKind::NotFound`] if there is none, with [`ErrorKind::NotPermitted`] if it
    /// is one on a tag, whose name can be used only once, with [`ErrorKind::Stale`] if the branch
    /// is not where the operation left it, and with [`ErrorKind::Unsupported`] before version 2 and
    /// for operations of newer programs.
    pub async fn find(repository: &Repository, only: Option<&str>) -> Result<Self> {
        let mut log = repository.operations()?;
        let refs = repository.refs().await?;
        while let Some(entry) = log.next().await? {
            let operation = entry.operation.map_err(|kind| {
                let why = "a newer program wrote it: `icechunkfs branch REPO reset` moves a branch";
                Error::new(ErrorKind::Unsupported, format!("the newest operation is of unknown kind {kind}; {why}"))
            })?;
            // A migration makes up the log before it.
            if matches!(operation, Operation::RepoMigrated { .. }) {
                break;
            }
            let Some(branch) = branch_of(&operation, only)? else { continue };
            let branch = branch.to_owned();
            let before = match &operation {
                Operation::BranchDeleted { previous, .. }
                | Operation::BranchReset { previous, .. }
                | Operation::CommitAmended { previous, .. } => Some(*previous),
                Operation::NewCommit { new, .. } => target_before(repository, &mut log, &branch, *new).await?,
                _ => None,
            };
            let now = target_after(&refs, &operation, &branch)?;
            if let Some(before) = before {
                repository.resolve(&RefSpec::Snapshot(before)).await?;
            }
            return Ok(Undo { operation, at: entry.updated_at, branch, now, before });
        }
        let of = only.map_or_else(|| "a branch".to_owned(), |name| format!("branch `{name}`"));
        let until = log.missing().map(|key| format!(" (it continues in {key}, which no longer exists)"));
        let until = until.unwrap_or_default();
        Err(Error::new(ErrorKind::NotFound, format!("the operations log has no operation on {of} to take back{until}")))
    }

    /// Puts the branch where it was. Fails with [`ErrorKind::Stale`] if it has moved since it was
    /// looked at, with [`ErrorKind::NotFound`] if garbage collection has removed where it was.
    pub async fn apply(&self, repository: &Repository, clock: Clock) -> Result<()> {
        let branch = &self.branch;
        match (self.now, self.before) {
            (Some(now), Some(before)) => repository.reset_branch(branch, before, now, clock).await,
            (Some(now), None) => repository.delete_ref(RefKind::Branch, branch, now, clock).await,
            (None, Some(before)) => repository.recreate_ref(RefKind::Branch, branch, before, clock).await,
            (None, None) => Err(Error::corrupt(format!("branch `{branch}` neither exists nor existed"))),
        }
    }
}

/// Returns the branch that an operation changed, if that is `only` or any is meant; none for one
/// that changes no branch.
fn branch_of<'a>(operation: &'a Operation, only: Option<&str>) -> Result<Option<&'a str>> {
    let branch = match operation {
        Operation::NewCommit { branch: name, .. }
        | Operation::CommitAmended { branch: name, .. }
        | Operation::BranchCreated { name }
        | Operation::BranchDeleted { name, .. }
        | Operation::BranchReset { name, .. } => name,
        Operation::TagCreated { name } if only.is_none() => {
            return Err(of_a_tag(&format!(
                "created tag `{name}`: the name of a deleted tag can never be used again; `icechunkfs tag delete REPO \
                 {name}` deletes it"
            )));
        }
        Operation::TagDeleted { name, previous } if only.is_none() => {
            return Err(of_a_tag(&format!(
                "deleted tag `{name}`, and the name of a deleted tag can never be used again; `icechunkfs tag create \
                 REPO NEW-NAME --at {previous}` gives its snapshot another name"
            )));
        }
        _ => return Ok(None),
    };
    Ok(only.is_none_or(|only| only == branch).then_some(branch))
}

fn of_a_tag(what: &str) -> Error {
    let text = format!("the newest operation {what}. --branch NAME takes back the newest operation on a branch");
    Error::new(ErrorKind::NotPermitted, text)
}

/// Returns where `branch` is after the newest operation on it.
fn target_after(refs: &Refs, operation: &Operation, branch: &str) -> Result<Option<ObjectId>> {
    let now = refs.branches.get(branch).copied();
    let is_as_left = match operation {
        Operation::NewCommit { new, .. } | Operation::CommitAmended { new, .. } => now == Some(*new),
        Operation::BranchDeleted { .. } => now.is_none(),
        _ => now.is_some(),
    };
    if is_as_left {
        return Ok(now);
    }
    let place = now.map_or_else(|| "does not exist".to_owned(), |id| format!("points to {id}"));
    Err(Error::new(
        ErrorKind::Stale,
        format!(
            "branch `{branch}` {place}, which is not what the newest operation on it left: nothing is taken back; \
             `icechunkfs branch REPO reset` moves a branch"
        ),
    ))
}

/// Returns the target that `branch` had before the operation that `log` has just given brought
/// `new`. None if there was no such branch.
///
/// The operation on the branch before it says so, or the first copy of `repo` that comes before an
/// operation on other things. A copy that garbage collection made of the present is none.
async fn target_before(
    repository: &Repository,
    log: &mut Operations,
    branch: &str,
    new: ObjectId,
) -> Result<Option<ObjectId>> {
    let unknown = || {
        let what = format!("it is not known where branch `{branch}` was before {new}: the copy of that state is gone");
        let next = "`icechunkfs log` lists its commits, and `icechunkfs branch REPO reset` moves it";
        Error::new(ErrorKind::NotFound, format!("{what}; {next}"))
    };
    while let Some(DisplayedEntry { operation, backup_path, .. }) = log.next().await? {
        // The names of a creation and a reset tell no target.
        let is_target_unnamed = match operation {
            Ok(Operation::NewCommit { branch: name, new } | Operation::CommitAmended { branch: name, new, .. })
                if name == branch =>
            {
                return Ok(Some(new));
            }
            Ok(Operation::BranchDeleted { name, .. }) if name == branch => return Ok(None),
            Ok(Operation::RepoMigrated { .. }) | Err(_) => return Err(unknown()),
            Ok(Operation::BranchCreated { name } | Operation::BranchReset { name, .. }) => name == branch,
            Ok(_) => false,
        };
        if let Some(copy) = backup_path {
            let storage = &**repository.storage();
            let before = operations::read_copy(storage, &copy, &mut HashSet::new()).await?.ok_or_else(unknown)?;
            let before = before.branch(branch).transpose()?;
            return if before == Some(new) { Err(unknown()) } else { Ok(before) };
        }
        if is_target_unnamed {
            return Err(unknown());
        }
    }
    Err(unknown())
}
