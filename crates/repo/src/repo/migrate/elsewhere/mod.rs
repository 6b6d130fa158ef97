//! Migration of an older repository to a new one of version 2 in another location.
//!
//! This is the only way for releases before 0.2, whose files current programs do not read, and a
//! possible one for version 1. The old repository is only read. Commits keep their ids, times,
//! messages and metadata, and chunk objects keep theirs. Made anew are snapshots, manifests, one
//! for each array and only where its references differ from its parent's ([`arrays`]), transaction
//! logs, because older ones lacked some of what is needed, and `repo`, with the operations log that
//! [`super::operations`] reconstructs.
//!
//! `repo` is written last: until then there is no repository in the new location. All names there
//! are derived from the old repository, so that a migration that was killed finds its earlier work
//! and continues ([`objects`]). Meanwhile a note at the root marks the unfinished migration;
//! without it, a location that is not empty is left alone.

mod arrays;
mod gather;
mod nodes;
mod objects;

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use self::arrays::Manifests;
use self::nodes::{MigratedNodes, NodeIds};
use self::objects::Destination;
use super::{Contents, in_place};
use crate::repo::create::refuse_occupied;
use crate::repo::{MAX_REPO_FILE, Repository, check_storage_writable, v1};
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::failpoints;
use icechunkfs_base::memory::Meter;
use icechunkfs_base::times::Clock;
use icechunkfs_format::format::config_edit::encode;
use icechunkfs_format::format::draft::{SnapshotDraft, TransactionLogDraft};
use icechunkfs_format::format::envelope::{Compression, SpecVersion};
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::snapshot_info::SnapshotInfo;
use icechunkfs_format::format::transaction_log::NodeChange;
use icechunkfs_store::storage::{Condition, Storage};

/// Key of the note that marks an unfinished migration.
const NOTE: &str = "unfinished-migration.json";
/// Maximum size of the note, in bytes.
const MAX_NOTE: u64 = 1 << 16;

/// Progress of a migration.
#[derive(Debug, Default)]
pub struct CopyProgress {
    /// Number of commits; 0 while unknown.
    pub commits: AtomicU64,
    /// Number of migrated commits.
    pub commits_done: AtomicU64,
    /// Bytes of chunks in the new location.
    pub bytes: AtomicU64,
}

/// Result of a migration, or of its dry run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// Contents of the new repository.
    pub contents: Contents,
    /// Number of manifests made.
    pub manifests: u64,
    /// Number of chunk objects in the new location.
    pub chunks: u64,
    /// Total size of these chunk objects, in bytes.
    pub bytes: u64,
    /// Number of these chunk objects that an earlier attempt had left.
    pub found: u64,
    /// Number of these chunk objects that share their bytes with the old repository's.
    pub linked: u64,
    /// Number of these chunk objects that the store itself copied.
    pub store_address: u64,
    /// Number of chunk objects that the old repository refers to and lacks. The new one lacks them
    /// too.
    pub missing: u64,
    /// References to empty chunks, which are dropped: no program reads a value out of one.
    pub empty: u64,
    /// True if `repo` existed before, and only the note was removed.
    pub was_completed: bool,
}

/// Migrates `repository` to `destination`. With `dry_run` nothing is written, the planned result is
/// returned, and no destination is needed.
///
/// Fails with [`ErrorKind::AlreadyExists`] if the new location holds anything else, and with
/// [`ErrorKind::Corrupt`] if a document of the old repository is missing or damaged.
pub async fn migrate(
    repository: &Repository,
    destination: Option<&Arc<dyn Storage>>,
    clock: Clock,
    dry_run: bool,
    progress: &CopyProgress,
) -> Result<Summary> {
    if let Some(destination) = destination {
        if !dry_run {
            check_storage_writable(&**destination)?;
        }
        if is_finished(&**destination).await? {
            if !dry_run {
                destination.delete(&[NOTE.to_owned()]).await?;
            }
            return Ok(Summary { was_completed: true, ..Summary::default() });
        }
    }
    let contents = gather::contents(repository).await?;
    contents.main()?;
    let config = config(repository).await?;
    // Built first, so that its errors come before anything is written.
    let state = in_place::build_repo(&contents, config, clock)?;
    let file = state.encode()?;
    progress.commits.store(contents.commits.len() as u64, Ordering::Relaxed);
    if let (Some(destination), false) = (destination, dry_run) {
        begin(&**destination, repository.storage().location()).await?;
        failpoints::pass("migrate.to.begun")?;
    }
    let written = destination.filter(|_| !dry_run);
    let mut objects = Destination::new(Arc::clone(repository.storage()), written.map(Arc::clone)).await?;
    Migration { repository, manifests: Manifests::new(repository.storage()), names: NodeIds::default(), progress }
        .migrate_all(&contents, &mut objects)
        .await?;
    if let Some(destination) = written {
        objects.flush_found().await?;
        destination.sync(&["chunks", "manifests", "snapshots", "transactions"]).await?;
        if let Some(root) = contents.main()?.last() {
            destination.check_conditions(&format!("transactions/{}", root.id), MAX_REPO_FILE).await?;
        }
        failpoints::pass("migrate.to.repo")?;
        let put = destination.put("repo", file.into(), Condition::Absent).await;
        put.context(|| destination.location().to_owned())?;
        failpoints::pass("migrate.to.repo.done")?;
        destination.delete(&[NOTE.to_owned()]).await?;
        failpoints::pass("migrate.to.done")?;
    }
    Ok(Summary { contents, ..objects.counted })
}

/// Returns true if only the note is left to remove. Fails if `destination` holds anything but an
/// unfinished migration.
async fn is_finished(destination: &dyn Storage) -> Result<bool> {
    let has = |found: Result<_>| match found {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error.context(destination.location())),
    };
    if has(destination.get(NOTE, MAX_NOTE).await)? {
        return has(destination.get("repo", MAX_REPO_FILE).await);
    }
    refuse_occupied(destination, "migrated to").await?;
    Ok(false)
}

/// Writes the note of a migration from `source`. Fails if a note of a migration from another source
/// exists.
async fn begin(destination: &dyn Storage, source: &str) -> Result<()> {
    let note = json!({"what": "icechunkfs migrate", "from": source}).to_string();
    match destination.put(NOTE, note.into(), Condition::Absent).await {
        Err(error) if error.kind() == ErrorKind::Contended => {}
        other => return other,
    }
    let found = destination.get(NOTE, MAX_NOTE).await?;
    let found: Value = icechunkfs_format::format::json::parse(&found, &mut Meter::brief("a note")).unwrap_or_default();
    match found.get("from").and_then(Value::as_str) {
        Some(from) if from == source => Ok(()),
        other => Err(Error::new(
            ErrorKind::AlreadyExists,
            format!(
                "{}: it has an unfinished migration of {}; finish that, or empty the place",
                destination.location(),
                other.unwrap_or("another repository")
            ),
        )),
    }
}

/// Returns the configuration of the new repository.
///
/// From an alpha only the inline threshold is taken, which is a number in all of them: current
/// programs refuse to open a repository whose configuration contains a word that they do not know.
async fn config(repository: &Repository) -> Result<Option<Vec<u8>>> {
    let Some(config) = v1::config(&**repository.storage()).await? else { return Ok(None) };
    let mut members = config.members().clone();
    if repository.is_alpha() {
        const THRESHOLD: &str = "inline_chunk_threshold_bytes";
        members.retain(|name, value| name == THRESHOLD && value.as_u64().is_some_and(|n| u16::try_from(n).is_ok()));
    }
    if members.is_empty() {
        return Ok(None);
    }
    encode::flexbuffer(&members).map(Some)
}

struct Migration<'a> {
    repository: &'a Repository,
    manifests: Manifests<'a>,
    names: NodeIds,
    progress: &'a CopyProgress,
}

impl Migration<'_> {
    /// Migrates all commits, parents before their children. The result of a commit is kept until
    /// its last child is done.
    async fn migrate_all(&mut self, contents: &Contents, objects: &mut Destination) -> Result<()> {
        let commits = &contents.commits;
        let mut children: BTreeMap<Option<ObjectId>, Vec<ObjectId>> = BTreeMap::new();
        for commit in commits.values() {
            let parent = commit.parent.filter(|parent| commits.contains_key(parent));
            children.entry(parent).or_default().push(commit.id);
        }
        let nothing: Rc<MigratedNodes> = Rc::default();
        let roots = children.remove(&None).unwrap_or_default();
        let mut open: Vec<(ObjectId, Rc<MigratedNodes>)> =
            roots.into_iter().map(|id| (id, Rc::clone(&nothing))).collect();
        let mut left = commits.len();
        while let Some((id, parent)) = open.pop() {
            let Some(commit) = commits.get(&id) else { continue };
            let done = self.migrate_commit(commit, &parent, objects).await.context(|| format!("snapshot {id}"))?;
            let done = Rc::new(done);
            open.extend(children.remove(&Some(id)).unwrap_or_default().into_iter().map(|id| (id, Rc::clone(&done))));
            self.progress.commits_done.fetch_add(1, Ordering::Relaxed);
            left -= 1;
        }
        if left > 0 {
            return Err(Error::corrupt(format!("the history of {left} commits is a cycle")));
        }
        Ok(())
    }

    /// Migrates one commit: its chunks, its manifests, its log, its snapshot.
    async fn migrate_commit(
        &mut self,
        commit: &SnapshotInfo,
        parent: &MigratedNodes,
        objects: &mut Destination,
    ) -> Result<MigratedNodes> {
        let snapshot = gather::snapshot(self.repository, commit).await?;
        let mut done = match &snapshot {
            Some(snapshot) => self.names.of(snapshot)?,
            None => MigratedNodes::default(),
        };
        let of_parent = parent.by_id();
        let mut log = TransactionLogDraft::default();
        let mut infos = HashMap::new();
        for (path, node) in &mut done.nodes {
            let before = of_parent.get(&node.id).copied();
            let change = match before {
                None => Some(NodeChange::creation(node.array.is_some())),
                Some(before) if before.zarr_json != node.zarr_json => Some(NodeChange::update(node.array.is_some())),
                Some(_) => None,
            };
            log.nodes.extend(change.map(|change| (node.id, change)));
            let id = node.id;
            let old_id = node.old_id;
            let Some(array) = &mut node.array else { continue };
            let known = before.and_then(|before| before.array.as_ref().map(|array| (before.old_id, array)));
            let work = arrays::ArrayTask { commit: commit.id, node: id, old_node: old_id, before: known };
            let changed = self.manifests.array(work, array, objects).await.context(|| path.clone())?;
            self.progress.bytes.store(objects.counted.bytes, Ordering::Relaxed);
            if !changed.is_empty() {
                log.updated_chunks.push((id, changed));
            }
            infos.extend(array.new.iter().map(|(_, info)| (info.id, *info)));
        }
        let ids = done.by_id();
        for node in parent.nodes.values().filter(|node| !ids.contains_key(&node.id)) {
            log.nodes.insert(node.id, NodeChange::deletion(node.array.is_some()));
        }
        drop(ids);
        let mut meter = Meter::new("the metadata of a commit");
        let draft = SnapshotDraft {
            metadata: commit.text.metadata_for_repo(&mut meter)?,
            nodes: done.drafts(),
            manifests: infos.into_values().collect(),
            ..SnapshotDraft::new(commit.id, commit.flushed_at, commit.message())
        };
        let log = log.encode(commit.id, SpecVersion::V2, Compression::default())?;
        objects.put(&format!("transactions/{}", commit.id), log).await?;
        failpoints::pass("migrate.to.log.done")?;
        objects.put(&format!("snapshots/{}", commit.id), draft.encode()?).await?;
        failpoints::pass("migrate.to.snapshot.done")?;
        Ok(done)
    }
}
