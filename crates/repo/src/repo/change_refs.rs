//! Creation, deletion and reset of branches and tags (format notes 1.5; 4 for version 1).
//!
//! Preconditions are checked at the moment of writing: in version 2 inside the loop that replaces
//! `repo`, in version 1 by the condition under which the ref's small file is written. The check
//! therefore sees concurrent changes. A caller that deletes or resets a branch names the commit
//! that the branch must still point to, so that no concurrent commit is lost unnoticed.
//!
//! The name of a deleted tag is never free again, in any version: readers may remember its target.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::flags::FeatureFlag;
use super::history::is_on_a_ref;
use super::ref_files::Layout;
use super::refs::{DEFAULT_BRANCH, RefSpec};
use super::revision::is_revision_of_another;
use super::update;
use super::verify::{self, VerifyOptions};
use super::{Generation, MAX_SNAPSHOT, Repository, check_storage_writable, v1};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::memory::{Meter, Metered};
use icechunkfs_base::shell;
use icechunkfs_base::times::Clock;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::repo_state::{Operation, RepoState};

/// Rules of [`verify`] whose errors mean that data cannot be read.
const UNREADABLE: [&str; 5] = ["snapshot", "manifest", "chunk", "chunk-missing", "chunk-short"];

/// Kind of a ref.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RefKind {
    /// A ref that moves with each commit.
    Branch,
    /// A ref that never moves.
    Tag,
}

impl std::fmt::Display for RefKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            RefKind::Branch => "branch",
            RefKind::Tag => "tag",
        })
    }
}

impl RefKind {
    /// Returns the specification of the ref of this kind named `name`.
    pub fn named(self, name: &str) -> RefSpec {
        match self {
            RefKind::Branch => RefSpec::Branch(name.to_owned()),
            RefKind::Tag => RefSpec::Tag(name.to_owned()),
        }
    }
}

impl Repository {
    /// Creates branch or tag `name` with the given target.
    ///
    /// Fails with [`ErrorKind::AlreadyExists`] if the ref exists or the name is a deleted tag's,
    /// with [`ErrorKind::NotFound`] if there is no such snapshot, with [`ErrorKind::InvalidInput`]
    /// for an invalid name, and with [`ErrorKind::NotPermitted`] if the repository has disabled
    /// creating tags.
    pub async fn create_ref(&self, kind: RefKind, name: &str, target: ObjectId, clock: Clock) -> Result<()> {
        if is_revision_of_another(name) {
            return Err(Error::invalid(format!(
                "`{name}` cannot be the name of a {kind}: it already means a commit, like an id, `main~1` or \
                 `branch/NAME`"
            )));
        }
        self.recreate_ref(kind, name, target, clock).await
    }

    /// Creates a ref like [`Repository::create_ref`], also one that another program may have
    /// called by a name that means another commit here.
    pub(super) async fn recreate_ref(&self, kind: RefKind, name: &str, target: ObjectId, clock: Clock) -> Result<()> {
        check_new_name(self, kind, name)?;
        let change = |state: &mut RepoState| {
            if kind == RefKind::Tag {
                FeatureFlag::CreateTag.check(state, "making tags")?;
                if state.deleted_tags.contains(name) {
                    return Err(tag_was_deleted(name));
                }
            }
            let refs = refs_of(state, kind);
            if let Some(there) = refs.get(name) {
                return Err(exists(kind, name, *there));
            }
            refs.insert(name.to_owned(), target);
            let name = name.to_owned();
            Ok(match kind {
                RefKind::Branch => Operation::BranchCreated { name },
                RefKind::Tag => Operation::TagCreated { name },
            })
        };
        let in_v1 = v1::create_ref(&*self.storage, kind, name, target);
        RefChange { kind, name, target: Some(target) }.make(self, clock, in_v1, change).await
    }

    /// Deletes branch or tag `name` if it points to `expected`. Commits stay until they are
    /// garbage-collected.
    ///
    /// Fails with [`ErrorKind::NotFound`] if there is no such ref, with [`ErrorKind::Stale`] if it
    /// points elsewhere, and with [`ErrorKind::NotPermitted`] for branch `main`, and for tags if
    /// the repository has disabled deleting them.
    pub async fn delete_ref(&self, kind: RefKind, name: &str, expected: ObjectId, clock: Clock) -> Result<()> {
        if kind == RefKind::Branch && name == DEFAULT_BRANCH {
            return Err(no_deletion_of_main());
        }
        let change = |state: &mut RepoState| {
            if kind == RefKind::Tag {
                FeatureFlag::DeleteTag.check(state, "deleting tags")?;
            }
            let refs = refs_of(state, kind);
            check_target(kind, name, refs.get(name).copied(), expected)?;
            refs.remove(name);
            let name = name.to_owned();
            let previous = expected;
            Ok(match kind {
                RefKind::Branch => Operation::BranchDeleted { name, previous },
                RefKind::Tag => {
                    state.deleted_tags.insert(name.clone());
                    Operation::TagDeleted { name, previous }
                }
            })
        };
        let in_v1 = async {
            match kind {
                RefKind::Branch => v1::replace_branch(&*self.storage, name, expected, None).await,
                RefKind::Tag => v1::delete_tag(&*self.storage, name, expected).await,
            }
        };
        RefChange { kind, name, target: None }.make(self, clock, in_v1, change).await
    }

    /// Resets branch `name` to `to` if it points to `expected`.
    ///
    /// Fails with [`ErrorKind::NotFound`] if there is no such branch or snapshot, with
    /// [`ErrorKind::Stale`] if it points elsewhere.
    pub async fn reset_branch(&self, name: &str, to: ObjectId, expected: ObjectId, clock: Clock) -> Result<()> {
        let change = |state: &mut RepoState| {
            check_target(RefKind::Branch, name, state.branches.get(name).copied(), expected)?;
            state.branches.insert(name.to_owned(), to);
            Ok(Operation::BranchReset { name: name.to_owned(), previous: expected })
        };
        let in_v1 = v1::replace_branch(&*self.storage, name, expected, Some(to));
        RefChange { kind: RefKind::Branch, name, target: Some(to) }.make(self, clock, in_v1, change).await
    }

    /// Returns the names of deleted tags, which must not be used again.
    pub async fn deleted_tags(&self) -> Result<Metered<Vec<String>>> {
        let of_files = match &self.generation {
            Generation::Alpha(layout) => layout.deleted_tags(&*self.storage).await?,
            Generation::V1(_) => Layout::V1.deleted_tags(&*self.storage).await?,
            Generation::V2(info) => {
                let mut meter = Meter::new("the names of deleted tags");
                let mut names = Vec::new();
                for name in info.deleted_tags() {
                    meter.count_items::<String>(1)?;
                    meter.count(name.len() as u64)?;
                    names.push(name.to_owned());
                }
                return Ok(meter.finish(names));
            }
        };
        Ok(Metered::own(of_files.into_keys().collect()))
    }

    /// Fails if nothing may be changed: the repository is set read-only, the storage takes no
    /// writes, or the store ignores the conditions that a safe change relies on.
    pub async fn check_changes_allowed(&self) -> Result<()> {
        self.check_writable()?;
        check_storage_writable(&*self.storage)?;
        // In version 1, a ref has a directory of its own.
        let is_closed = self.storage.local_files().is_some_and(|local| local.is_read_only());
        if is_closed && matches!(self.generation, Generation::V2(_)) {
            let place = self.storage.location();
            return Err(Error::new(ErrorKind::PermissionDenied, format!("{place}: this user may not write to it")));
        }
        if let Generation::V1(_) = self.generation {
            // It has rules for what is written. One that cannot be read is reported where it is
            // needed.
            let _ = self.config().await;
        }
        self.check_store(DEFAULT_BRANCH).await
    }
}

/// Change after which a ref points to `target`, or is gone.
struct RefChange<'a> {
    kind: RefKind,
    name: &'a str,
    target: Option<ObjectId>,
}

impl RefChange<'_> {
    /// Makes the change by `change` in version 2 and by `in_v1` in version 1.
    async fn make(
        self,
        repository: &Repository,
        clock: Clock,
        in_v1: impl Future<Output = Result<()>>,
        mut change: impl FnMut(&mut RepoState) -> Result<Operation>,
    ) -> Result<()> {
        let RefChange { kind, name, target } = self;
        repository.check_changes_allowed().await?;
        let changed = if let Generation::V1(_) = repository.generation {
            if let Some(target) = target {
                check_snapshot(repository, target, clock).await?;
            }
            in_v1.await
        } else {
            let change = |state: &mut RepoState| match target {
                Some(target) if !state.snapshots.contains_key(&target) => Err(no_snapshot(target)),
                _ => change(state),
            };
            update::update(&*repository.storage, clock, change).await.map(drop)
        };
        settle(repository, kind, name, target, changed).await
    }
}

/// Returns the outcome of a change after which a ref points to `target`. If its answer was lost
/// and the ref can be read, its current target shows whether the change was made.
pub(super) async fn settle(
    repository: &Repository,
    kind: RefKind,
    name: &str,
    target: Option<ObjectId>,
    changed: Result<()>,
) -> Result<()> {
    let error = match changed {
        Err(error) if matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Io) => error,
        other => return other,
    };
    match current_target(repository, kind, name).await {
        Ok(found) if found == target => Ok(()),
        Ok(_) => Err(error),
        Err(_) => Err(error.context(format!(
            "{kind} `{name}`: the storage does not answer, so it may or may not have changed; list the {kind}s to see"
        ))),
    }
}

/// Fails unless snapshot `id` can be read with everything that it needs: in version 1, nothing
/// else detects a dangling ref, and a collection of garbage may have removed a part of what a
/// snapshot on no branch or tag needs. (In version 2, a collection first removes such snapshots
/// from the list in `repo`.)
async fn check_snapshot(repository: &Repository, id: ObjectId, clock: Clock) -> Result<()> {
    match repository.storage.get_range(&format!("snapshots/{id}"), 0, 1).await {
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(no_snapshot(id)),
        Err(error) => return Err(error),
        Ok(_) => drop(repository.snapshot(id, MAX_SNAPSHOT).await?),
    }
    if is_on_a_ref(repository, id).await? {
        return Ok(());
    }
    let options = VerifyOptions { snapshot: Some(id), chunks: true, virtuals: None };
    let report = verify::verify(&repository.storage, options, clock(), &Arc::default()).await?;
    match report.findings.iter().find(|finding| UNREADABLE.contains(&finding.rule)) {
        None => Ok(()),
        Some(finding) => {
            let node = match (&finding.node, finding.chunks.first()) {
                (Some(node), Some(coords)) => format!("chunk {coords:?} of {node}: "),
                (Some(node), None) => format!("{node}: "),
                (None, _) => String::new(),
            };
            let object = &finding.object;
            let why = &finding.message;
            Err(Error::corrupt(format!(
                "a part of snapshot {id} is gone ({object}: {node}{why}), perhaps because garbage was collected: no \
                 branch or tag was found that leads to it. Nothing was changed; `icechunkfs verify` has details, \
                 `export --skip-unreadable` saves the rest"
            )))
        }
    }
}

async fn current_target(repository: &Repository, kind: RefKind, name: &str) -> Result<Option<ObjectId>> {
    let refs = Repository::open(Arc::clone(&repository.storage)).await?.refs().await?;
    let names = match kind {
        RefKind::Branch => refs.branches,
        RefKind::Tag => refs.tags,
    };
    Ok(names.get(name).copied())
}

/// Fails for a name that could not be used afterwards. Only new names are checked: existing
/// refs can be deleted whatever their names.
pub(crate) fn check_new_name(repository: &Repository, kind: RefKind, name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(Error::invalid(format!("a {kind} needs a name")));
    }
    if let Some(c) = name.chars().find(|c| c.is_control()) {
        return Err(Error::invalid(format!(
            "{name:?} cannot be the name of a {kind}: it has the control character {c:?} in it"
        )));
    }
    if matches!(repository.generation, Generation::V1(_)) && name.contains('/') {
        return Err(Error::invalid(format!(
            "`{name}` cannot be the name of a {kind}: names in repositories of version 1 cannot contain `/`"
        )));
    }
    Ok(())
}

pub(super) fn refs_of(state: &mut RepoState, kind: RefKind) -> &mut BTreeMap<String, ObjectId> {
    match kind {
        RefKind::Branch => &mut state.branches,
        RefKind::Tag => &mut state.tags,
    }
}

/// Fails unless a ref points to `expected`.
pub(super) fn check_target(kind: RefKind, name: &str, found: Option<ObjectId>, expected: ObjectId) -> Result<()> {
    match found {
        Some(found) if found == expected => Ok(()),
        Some(found) => Err(Error::new(
            ErrorKind::Stale,
            format!(
                "{kind} `{name}` points to {found} now, not to {expected}: it changed concurrently, and nothing was \
                 done; check it, and try again if it is still right"
            ),
        )),
        None => Err(ref_not_found(kind, name)),
    }
}

/// Returns the error for an attempt to delete branch `main`.
pub fn no_deletion_of_main() -> Error {
    Error::new(ErrorKind::NotPermitted, format!("branch `{DEFAULT_BRANCH}` cannot be deleted: every repository has it"))
}

pub(super) fn ref_not_found(kind: RefKind, name: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no {kind} `{name}` any more"))
}

pub(super) fn exists(kind: RefKind, name: &str, there: ObjectId) -> Error {
    let help = match kind {
        RefKind::Branch => format!("`icechunkfs branch REPO reset {} --to REF` moves it", shell::quote(name)),
        RefKind::Tag => "tags never change".to_owned(),
    };
    Error::new(ErrorKind::AlreadyExists, format!("there is a {kind} `{name}` already, at {there}; {help}"))
}

pub(super) fn tag_was_deleted(name: &str) -> Error {
    Error::new(
        ErrorKind::AlreadyExists,
        format!("there was a tag `{name}`, and names of deleted tags cannot be used again: choose another"),
    )
}

fn no_snapshot(id: ObjectId) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no snapshot {id} in the repository"))
}
