//! Alphas: repositories of releases before 0.2, and of the first layout. They are read, never
//! written.
//!
//! The first layout ([`first`]) had folders `s/ m/ a/ c/`, all others those of today;
//! [`super::ref_files`] reads the refs. [`icechunkfs_format::format::alpha`] decodes the files; the
//! floors above see snapshots and manifests of version 1.

mod ancestry;
mod first;

use std::collections::HashSet;
use std::sync::Arc;

pub(super) use self::ancestry::Ancestry;
use super::ref_files::Layout;
use super::refs::Damaged;
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_format::format::alpha::attributes::AttributesFile;
use icechunkfs_format::format::alpha::snapshot::AlphaSnapshot;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::snapshot_info::SnapshotInfo;
use icechunkfs_store::storage::{ObjectInfo, Storage, decoded};

/// Detects an alpha in `storage`, whose folder `refs/` contains `objects`. The returned storage
/// presents files under today's keys.
pub(super) async fn detect(
    storage: &Arc<dyn Storage>,
    objects: &[ObjectInfo],
) -> Result<Option<(Layout, Arc<dyn Storage>)>> {
    for layout in [Layout::Dot, Layout::Colon] {
        if objects.iter().any(|object| layout.branch_of(&object.key).is_some()) {
            return Ok(Some((layout, Arc::clone(storage))));
        }
    }
    if !objects.is_empty() {
        return Ok(None);
    }
    let objects = storage.list(Layout::First.folder()).await.context(|| storage.location().to_owned())?;
    let is_one = objects.iter().any(|object| Layout::First.branch_of(&object.key).is_some());
    Ok(is_one.then(|| (Layout::First, first::present_current_keys(Arc::clone(storage)))))
}

/// Returns the error for an attempt to write.
pub(super) fn read_only(location: &str) -> Error {
    Error::new(
        ErrorKind::ReadOnly,
        format!(
            "{location} is of an Icechunk release before 0.2, which is read-only: `icechunkfs migrate {location} --to NEW` \
             makes a repository of the current format from it"
        ),
    )
}

/// Reads snapshot `id` and the attributes stored outside of it; each file may take `limit` bytes of
/// memory.
pub(super) async fn read(storage: &dyn Storage, id: ObjectId, limit: u64) -> Result<AlphaSnapshot> {
    let key = format!("snapshots/{id}");
    let decode = move |file: &[u8]| AlphaSnapshot::decode(file, limit);
    let mut snapshot = decoded::fixed(storage, &key, limit, decode).await?.value;
    if snapshot.commit.id != id {
        return Err(Error::corrupt(format!("{key}: the file states that it is snapshot {}", snapshot.commit.id)));
    }
    for file in snapshot.attribute_files() {
        let key = format!("attributes/{file}");
        let decode = move |file: &[u8]| AttributesFile::decode(file, limit);
        let attributes = decoded::fixed(storage, &key, limit, decode).await;
        let attributes = attributes
            .map_err(|error| error.not_found_as_corrupt(format!("{key}: missing, though snapshot {id} names it")))?;
        snapshot.set_attributes(file, &attributes.value).context(|| key)?;
    }
    Ok(snapshot)
}

/// Returns commit `id` if it is the first of a repository of `layout` and has no file: alpha 2
/// wrote none for the first commit, which is empty. Later snapshots describe it.
pub(super) async fn first_without_file(
    storage: &dyn Storage,
    layout: Layout,
    id: ObjectId,
) -> Result<Option<SnapshotInfo>> {
    let refs = layout.refs(storage, Damaged::LeftOut).await?;
    let mut seen = HashSet::new();
    for tip in refs.branches.into_values().chain(refs.tags.into_values()) {
        let mut ancestry = Ancestry::new(storage, tip);
        while ancestry.next_id().is_some_and(|next| seen.insert(next)) {
            let Some(commit) = ancestry.step().await? else { break };
            if commit.id == id {
                return Ok(Some(commit).filter(|commit| commit.parent.is_none()));
            }
        }
    }
    Ok(None)
}
