//! Reading of the contents to migrate.

use std::collections::{BTreeMap, HashSet};

use super::super::{Contents, in_place};
use crate::repo::alpha::Ancestry;
use crate::repo::history::cycle;
use crate::repo::ref_files::Layout;
use crate::repo::{Generation, MAX_SNAPSHOT, Repository};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_format::format::snapshot_info::SnapshotInfo;

/// Reads everything that the refs of `repository` lead to.
pub(super) async fn contents(repository: &Repository) -> Result<Contents> {
    match &repository.generation {
        Generation::Alpha(layout) => of_alpha(repository, *layout).await,
        Generation::V1(_) => {
            let listed = in_place::snapshots(&**repository.storage()).await?;
            in_place::read_contents(repository, listed.into_iter(), &in_place::MigrationProgress::default()).await
        }
        Generation::V2(_) => {
            Err(Error::invalid(format!("{} is of version 2 already", repository.storage().location())))
        }
    }
}

async fn of_alpha(repository: &Repository, layout: Layout) -> Result<Contents> {
    let storage = &**repository.storage();
    let refs = repository.complete_refs().await?;
    let deleted_tags = layout.deleted_tags(storage).await?;
    let mut contents = Contents { branches: refs.branches, tags: refs.tags, deleted_tags, commits: BTreeMap::new() };
    let tips: Vec<ObjectId> = contents.branches.values().chain(contents.tags.values()).copied().collect();
    for tip in tips {
        let mut ancestry = Ancestry::new(storage, tip);
        let mut path = HashSet::new();
        while ancestry.next_id().is_some_and(|id| !contents.commits.contains_key(&id)) {
            let Some(commit) = ancestry.step().await? else { break };
            path.insert(commit.id);
            contents.commits.insert(commit.id, commit);
        }
        if let Some(id) = ancestry.next_id().filter(|id| path.contains(id)) {
            return Err(cycle(tip, id));
        }
    }
    Ok(contents)
}

/// Reads the snapshot of `commit`; none for an empty first commit, for which alpha 2 wrote no file.
pub(super) async fn snapshot(repository: &Repository, commit: &SnapshotInfo) -> Result<Option<Snapshot>> {
    if repository.is_alpha() && commit.parent.is_none() {
        let key = format!("snapshots/{}", commit.id);
        match repository.storage().get_range(&key, 0, 1).await {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            _ => {}
        }
    }
    repository.snapshot(commit.id, MAX_SNAPSHOT).await.map(Some)
}
