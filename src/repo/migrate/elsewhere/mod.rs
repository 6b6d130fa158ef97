//! An older repository becomes a new one of version 2, in another place.
//!
//! This is the only way for releases before 0.2, whose files nobody reads any more, and a possible one for version 1. The old
//! repository is read and nothing else. Commits keep their ids, times, messages and metadata, objects of chunks theirs; what is
//! made anew is what describes them:
//!
//! * snapshots, in today's format;
//! * manifests, one for each array, and only where its references are others than its parent's ([`arrays`]);
//! * transaction logs, which say how a snapshot differs from its parent: older ones did not have all that is needed;
//! * `repo`, with the operations log that [`super::operations`] makes up.
//!
//! `repo` is written last: until then there is no repository in the new place. All names there follow from the old repository, so that a
//! migration that was killed finds what it had done and goes on ([`objects`]). A note at the root says meanwhile what is going on; without
//! it, a place that is not empty is left alone.

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
use self::nodes::{Done, Names};
use self::objects::Objects;
use super::{Contents, in_place};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::failpoints;
use crate::format::config_edit::encode;
use crate::format::draft::{SnapshotDraft, TransactionLogDraft};
use crate::format::envelope::SpecVersion;
use crate::format::ids::ObjectId;
use crate::format::repo_info::SnapshotInfo;
use crate::format::repo_state::RawItem;
use crate::repo::update::Clock;
use crate::repo::{MAX_REPO_FILE, Repository, v1};
use crate::storage::{Condition, Storage};

/// The note at the root of a place in which a migration is going on.
const NOTE: &str = "unfinished-migration.json";
/// Bytes of the note.
const MAX_NOTE: u64 = 1 << 16;

/// What is known of a migration's progress.
#[derive(Debug, Default)]
pub struct Progress {
    /// Commits there are; 0 while that is not known.
    pub commits: AtomicU64,
    /// Those that are done.
    pub commits_done: AtomicU64,
    /// Bytes of chunks that are in the new place.
    pub bytes: AtomicU64,
}

/// What a migration does, or did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// What the new repository has.
    pub contents: Contents,
    /// Manifests that were made.
    pub manifests: u64,
    /// Objects of chunks in the new place, and their bytes.
    pub chunks: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Of those objects, the ones that were there from an earlier try.
    pub found: u64,
    /// Of those objects, the ones that share their bytes with the old repository's.
    pub linked: u64,
    /// Of those objects, the ones that the store has copied by itself.
    pub in_store: u64,
    /// Objects of chunks that the old repository refers to and does not have. The new one does not have them either.
    pub missing: u64,
    /// References to chunks of no bytes, which cannot be kept: no program reads a value out of one.
    pub empty: u64,
    /// Whether `repo` was there before: this only took the note away.
    pub finished: bool,
}

/// Migrates `repository` to `destination`. With `dry_run` nothing is written, and what would be done is returned; then there
/// need not be a destination yet.
///
/// Errors: [`ErrorKind::AlreadyExists`] if there is anything else in the new place, [`ErrorKind::Corrupt`] if a document of the old
/// repository is missing or damaged.
pub async fn migrate(
    repository: &Repository,
    destination: Option<&Arc<dyn Storage>>,
    clock: Clock,
    dry_run: bool,
    progress: &Progress,
) -> Result<Summary> {
    if let Some(destination) = destination {
        if let (Some(why), false) = (destination.read_only(), dry_run) {
            return Err(Error::new(ErrorKind::ReadOnly, format!("{}: {why}", destination.location())));
        }
        if is_finished(&**destination).await? {
            if !dry_run {
                destination.delete(&[NOTE.to_owned()]).await?;
            }
            return Ok(Summary { finished: true, ..Summary::default() });
        }
    }
    let contents = gather::contents(repository).await?;
    contents.main()?;
    let config = config(repository).await?;
    // What would be refused at the end is refused now.
    let state = in_place::describe(&contents, config, clock)?;
    let file = state.encode()?;
    progress.commits.store(contents.commits.len() as u64, Ordering::Relaxed);
    if let (Some(destination), false) = (destination, dry_run) {
        begin(&**destination, repository.storage().location()).await?;
        failpoints::reach("migrate.to.begun")?;
    }
    let written = destination.filter(|_| !dry_run);
    let mut objects = Objects::new(Arc::clone(repository.storage()), written.map(Arc::clone)).await?;
    Migration { repository, manifests: Manifests::new(repository.storage()), names: Names::default(), progress }
        .all(&contents, &mut objects)
        .await?;
    if let Some(destination) = written {
        destination.sync(&["chunks", "manifests", "snapshots", "transactions"]).await?;
        if let Some(root) = contents.main()?.last() {
            destination.check_conditions(&format!("transactions/{}", root.id), MAX_REPO_FILE).await?;
        }
        failpoints::reach("migrate.to.repo")?;
        let put = destination.put("repo", file.into(), Condition::Absent).await;
        put.context(|| destination.location().to_owned())?;
        failpoints::reach("migrate.to.repo.done")?;
        destination.delete(&[NOTE.to_owned()]).await?;
        failpoints::reach("migrate.to.done")?;
    }
    Ok(objects.summary(contents))
}

/// Whether `destination` holds the repository already, and only the note is left to be removed. An error if there is
/// anything in it that no migration has left there.
async fn is_finished(destination: &dyn Storage) -> Result<bool> {
    let has = |found: Result<_>| match found {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error.context(destination.location())),
    };
    let is_noted = has(destination.get(NOTE, MAX_NOTE).await.map(drop))?;
    let is_repository = has(destination.get("repo", MAX_REPO_FILE).await.map(drop))?;
    let occupied = |what: &str| {
        Err(Error::new(
            ErrorKind::AlreadyExists,
            format!("{} {what}: a repository is migrated to an empty place only", destination.location()),
        ))
    };
    match (is_noted, is_repository) {
        (true, is_repository) => Ok(is_repository),
        (false, true) => occupied("holds a repository already"),
        (false, false) => match destination.any().await? {
            Some(key) => occupied(&format!("is not empty (there is `{key}`)")),
            None => Ok(false),
        },
    }
}

/// Leaves the note that a migration from `source` is going on, or makes sure that the one that is there says so.
async fn begin(destination: &dyn Storage, source: &str) -> Result<()> {
    let note = json!({"what": "icechunkfs migrate", "from": source}).to_string();
    match destination.put(NOTE, note.into(), Condition::Absent).await {
        Err(error) if error.kind() == ErrorKind::Contended => {}
        other => return other,
    }
    let found = destination.get(NOTE, MAX_NOTE).await?;
    let found: Value = serde_json::from_slice(&found).unwrap_or_default();
    match found.get("from").and_then(Value::as_str) {
        Some(from) if from == source => Ok(()),
        other => Err(Error::new(
            ErrorKind::AlreadyExists,
            format!(
                "{}: an unfinished migration of {} is in it; finish that, or empty the place",
                destination.location(),
                other.unwrap_or("another repository")
            ),
        )),
    }
}

/// The configuration of the new repository.
///
/// That of a release before 0.2 is read for what is a number in all of them: today's programs refuse to open a repository whose
/// configuration has a word that they do not know.
async fn config(repository: &Repository) -> Result<Option<Vec<u8>>> {
    let Some(config) = v1::config(&**repository.storage()).await? else { return Ok(None) };
    let mut members = config.members().clone();
    if repository.is_before_0_2() {
        const THRESHOLD: &str = "inline_chunk_threshold_bytes";
        members.retain(|name, value| name == THRESHOLD && value.as_u64().is_some_and(|n| u16::try_from(n).is_ok()));
    }
    if members.is_empty() {
        return Ok(None);
    }
    encode::flexbuffer(&members).map(Some)
}

/// A migration on its way.
struct Migration<'a> {
    repository: &'a Repository,
    manifests: Manifests<'a>,
    names: Names,
    progress: &'a Progress,
}

impl Migration<'_> {
    /// All commits, parents before their children. What a commit has is kept until its last child is done.
    async fn all(&mut self, contents: &Contents, objects: &mut Objects) -> Result<()> {
        let commits = &contents.commits;
        let mut children: BTreeMap<Option<ObjectId>, Vec<ObjectId>> = BTreeMap::new();
        for commit in commits.values() {
            let parent = commit.parent.filter(|parent| commits.contains_key(parent));
            children.entry(parent).or_default().push(commit.id);
        }
        let nothing: Rc<Done> = Rc::default();
        let roots = children.remove(&None).unwrap_or_default();
        let mut open: Vec<(ObjectId, Rc<Done>)> = roots.into_iter().map(|id| (id, Rc::clone(&nothing))).collect();
        let mut left = commits.len();
        while let Some((id, parent)) = open.pop() {
            let Some(commit) = commits.get(&id) else { continue };
            let done = self.one(commit, &parent, objects).await.context(|| format!("snapshot {id}"))?;
            let done = Rc::new(done);
            open.extend(children.remove(&Some(id)).unwrap_or_default().into_iter().map(|id| (id, Rc::clone(&done))));
            self.progress.commits_done.fetch_add(1, Ordering::Relaxed);
            left -= 1;
        }
        if left > 0 {
            return Err(Error::corrupt(format!("{left} commits have no beginning: their history is a cycle")));
        }
        Ok(())
    }

    /// One commit: its chunks, its manifests, its log, its snapshot.
    async fn one(&mut self, commit: &SnapshotInfo, parent: &Done, objects: &mut Objects) -> Result<Done> {
        let snapshot = gather::snapshot(self.repository, commit).await?;
        let mut done = match &snapshot {
            Some(snapshot) => self.names.of(snapshot)?,
            None => Done::default(),
        };
        let of_parent = parent.by_id();
        let mut log = TransactionLogDraft::default();
        let mut infos = HashMap::new();
        for (path, node) in &mut done.nodes {
            let before = of_parent.get(&node.id).copied();
            let (new, updated) = match node.array {
                Some(_) => (&mut log.new_arrays, &mut log.updated_arrays),
                None => (&mut log.new_groups, &mut log.updated_groups),
            };
            match before {
                None => new.push(node.id),
                Some(before) if before.zarr_json != node.zarr_json => updated.push(node.id),
                Some(_) => {}
            }
            let (id, old_id) = (node.id, node.old_id);
            let Some(array) = &mut node.array else { continue };
            let known = before.and_then(|before| before.array.as_ref().map(|array| (before.old_id, array)));
            let work = arrays::Work { commit: commit.id, node: id, old_node: old_id, before: known };
            let changed = self.manifests.array(work, array, objects).await.context(|| path.clone())?;
            self.progress.bytes.store(objects.bytes(), Ordering::Relaxed);
            if !changed.is_empty() {
                log.updated_chunks.push((id, changed));
            }
            infos.extend(array.new.iter().map(|(_, info)| (info.id, *info)));
        }
        let ids = done.by_id();
        for node in parent.nodes.values().filter(|node| !ids.contains_key(&node.id)) {
            let deleted = if node.array.is_some() { &mut log.deleted_arrays } else { &mut log.deleted_groups };
            deleted.push(node.id);
        }
        drop(ids);
        let metadata = commit.metadata.iter().map(|(name, value)| RawItem::from_json(name, value));
        let draft = SnapshotDraft {
            id: commit.id,
            flushed_at: commit.flushed_at,
            version: SpecVersion::V2,
            parent: None,
            message: commit.message.clone(),
            metadata: metadata.collect::<Result<_>>()?,
            nodes: done.drafts(),
            manifests: infos.into_values().collect(),
        };
        let log = log.encode(commit.id, SpecVersion::V2)?;
        objects.put(&format!("transactions/{}", commit.id), log).await?;
        failpoints::reach("migrate.to.log.done")?;
        objects.put(&format!("snapshots/{}", commit.id), draft.encode()?).await?;
        failpoints::reach("migrate.to.snapshot.done")?;
        Ok(done)
    }
}
