//! Restore: makes a part of the tree what a plan ([`icechunkfs_repo::restore`]) says, without any
//! bytes: files become references.
//!
//! The state begins as that of a discard, so that below the path there are only entries of the base
//! and untracked files. Moved directories are then taken out of their places, deleted ones get
//! whiteouts, and both moved and new ones get their places from the top down; documents and chunks
//! follow. A replaced file is another inode: handles that are open keep the bytes that they had.
//!
//! Nothing here decides whether the result is right: the layer above detects the changes in it and
//! compares them with the plan.

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::sync::Arc;

use bytes::Bytes;

use super::Base;
use super::invalidation::Invalidation;
use super::listing::join;
use super::node::{Directory, Entry, Inode, RestoredNode};
use super::rebase::Candidate;
use super::rebase::TreeMoves;
use super::replace::{TreeGuard, node_ids};
use super::state::{State, numbered};
use crate::scratch::journal::MOST_INLINE;
use crate::scratch::record::{Body, DataFileId, EntryId, Meta, Name, ROOT, Source, Stored, Time};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::printable;
use icechunkfs_format::format::chunk_payload::ChunkPayload;
use icechunkfs_format::format::ids::NodeId;
use icechunkfs_format::format::transaction_log::Move;
use icechunkfs_format::zarr::array::ArrayMetadata;
use icechunkfs_format::zarr::chunk_key::KeyEncoding;
use icechunkfs_repo::commit::changes::{ChangeSet, ChunkChange, WrittenNode};
use icechunkfs_repo::compare::scope::is_below;
use icechunkfs_repo::restore::Plan;
use icechunkfs_tree::tree::nodes::{NodeIndex, TreePlace, ZARR_JSON};

/// Untracked files that a message lists.
const LISTED: usize = 5;

/// State that a restore changes.
struct Edit<'a> {
    moves: &'a TreeMoves,
    base: Arc<Base>,
    state: State,
    invalidations: Vec<Invalidation>,
    new_data: Vec<DataFileId>,
    now: Time,
}

/// Node that gets a place: a moved directory, or a new one.
enum Placed<'a> {
    Moved(EntryId),
    Created(&'a WrittenNode),
}

impl TreeMoves {
    /// Plans to restore what is at and below `path`, as `plan` says, which was made for the base.
    /// Files of `untracked` stay.
    ///
    /// Errors: those of [`TreeMoves::plan_discard`], and [`ErrorKind::Stale`] if untracked files
    /// are in the way.
    pub async fn plan_restore(
        &self,
        guard: &TreeGuard<'_>,
        path: &str,
        untracked: &HashSet<(EntryId, Name)>,
        plan: &Plan,
    ) -> Result<Candidate> {
        let mut kept = untracked.clone();
        let mut candidate = self.plan_discard(guard, path, &mut kept).await?;
        // A discard removes those that are in the place of an entry of the base; nobody has said
        // that their bytes are not needed.
        if kept.len() != untracked.len() {
            let state = self.snapshot().0;
            let path_of =
                |(parent, name): &(EntryId, Name)| join(&state.path(*parent).unwrap_or_default(), &name.to_string());
            let lost = untracked.difference(&kept).map(path_of).filter(|lost| is_below(lost, path));
            let mut lost: Vec<String> = lost.collect();
            if !lost.is_empty() {
                self.abandon(candidate);
                lost.sort_unstable();
                return Err(untracked_in_the_way(&lost));
            }
        }
        let mut edit = Edit {
            moves: self,
            base: Arc::clone(&candidate.base),
            state: std::mem::take(&mut candidate.state),
            invalidations: std::mem::take(&mut candidate.invalidations),
            new_data: std::mem::take(&mut candidate.new_data),
            now: Time::now(),
        };
        let outcome = edit.apply(&plan.changes, &plan.notes.parents).await;
        candidate.state = edit.state;
        candidate.invalidations = edit.invalidations;
        candidate.new_data = edit.new_data;
        match outcome {
            Ok(()) => Ok(candidate),
            Err(error) => {
                self.abandon(candidate);
                Err(error)
            }
        }
    }
}

impl Edit<'_> {
    async fn apply(&mut self, changes: &ChangeSet, parents: &[String]) -> Result<()> {
        let places = node_ids(&self.base.tree);
        let detached = self.detach_moved(&changes.moved, &changes.deleted_paths(), &places)?;
        self.hide_deleted(changes, &detached)?;
        let mut placed: Vec<(&str, Placed<'_>)> =
            detached.iter().map(|(moved, id)| (moved.to.as_str(), Placed::Moved(*id))).collect();
        placed.extend(changes.created.iter().map(|node| (node.path.as_str(), Placed::Created(node))));
        // Parents come first.
        placed.sort_by_key(|(path, _)| path.split('/').filter(|part| !part.is_empty()).count());
        for (path, node) in placed {
            match node {
                Placed::Moved(id) => self.attach(path, id).await?,
                Placed::Created(node) => self.create(node, parents).await?,
            }
        }
        for node in &changes.updated {
            let directory = self.directory_at(&node.path).await?;
            self.put_document(directory, &node.zarr_json).await?;
        }
        self.put_chunks(changes, &places).await
    }

    /// Takes the directories of moved nodes out of their places, unless they move with the
    /// directory above. Returns them.
    fn detach_moved<'a>(
        &mut self,
        moved: &'a [Move],
        deleted: &HashSet<String>,
        places: &HashMap<NodeId, NodeIndex>,
    ) -> Result<Vec<(&'a Move, EntryId)>> {
        let to: HashMap<&str, &str> = moved.iter().map(|one| (one.from.as_str(), one.to.as_str())).collect();
        let comes_along = |one: &Move| {
            let Some((above, name)) = one.from.rsplit_once('/') else { return true };
            let above = if above.is_empty() { "/" } else { above };
            let above = to.get(above).copied().or((!deleted.contains(above)).then_some(above));
            above.is_some_and(|above| join(above, name) == one.to)
        };
        // All are promoted where they are, before any leaves its place.
        let mut detached = Vec::new();
        for one in moved.iter().filter(|one| !comes_along(one)) {
            let index =
                places.get(&one.node).ok_or_else(|| Error::corrupt(format!("{} is not in the base", one.from)))?;
            detached.push((one, self.promote(&TreePlace::Directory(*index))?));
        }
        for (_, id) in &detached {
            let name = self.state.get(*id).and_then(|inode| inode.names.first().cloned());
            let (parent, name) = name.ok_or_else(|| Error::corrupt("a moved directory without a name"))?;
            self.hide(parent, &name);
        }
        Ok(detached)
    }

    /// Hides deleted nodes, those below a deleted node with it.
    fn hide_deleted(&mut self, changes: &ChangeSet, detached: &[(&Move, EntryId)]) -> Result<()> {
        let tree = Arc::clone(&self.base.tree);
        let gone: HashSet<&str> = changes.deleted.iter().map(|node| node.path.as_str()).collect();
        let mut paths: Vec<&str> = gone.iter().copied().collect();
        paths.sort_unstable();
        let mut hidden: Vec<&str> = Vec::new();
        let mut in_the_way = Vec::new();
        for path in paths {
            if path == "/" {
                self.hide(ROOT, &Name::new(ZARR_JSON.as_bytes()));
                continue;
            }
            if hidden.iter().any(|above| is_below(path, above)) {
                continue;
            }
            hidden.push(path);
            let place = tree.place_of(path).ok_or_else(|| Error::corrupt(format!("{path} is not in the base")))?;
            let remains = |other: &str| {
                let has_left = detached.iter().any(|(moved, _)| is_below(other, &moved.from));
                is_below(other, path) && !gone.contains(other) && !has_left
            };
            if let Some(node) = tree.snapshot().nodes().find(|node| remains(node.path)) {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    format!(
                        "{path} has to be removed, but not {} in it: restore in the repository, without a mount",
                        node.path
                    ),
                ));
            }
            if let Some(id) = self.state.at_place(&tree, &place) {
                in_the_way.extend(self.files_below(id));
                self.drop_directory(id);
            }
            let (above, name) = tree.parent_of(&place).ok_or_else(|| Error::corrupt("a place without a parent"))?;
            let parent = self.promote(&above)?;
            self.hide(parent, &Name::new(name.as_bytes()));
        }
        if in_the_way.is_empty() { Ok(()) } else { Err(untracked_in_the_way(&in_the_way)) }
    }

    /// Gives a moved directory its place.
    async fn attach(&mut self, path: &str, id: EntryId) -> Result<()> {
        let (above, name) = split(path);
        let parent = self.directory_at(above).await?;
        let name = Name::new(name.as_bytes());
        if self.entry(parent, &name).is_some_and(|entry| entry.id.is_some()) {
            return Err(untracked_in_the_way(&[path.to_owned()]));
        }
        self.state.put_entry(parent, name.clone(), Some(id), true, None);
        self.touched(parent, name);
        Ok(())
    }

    /// Creates a node, unless it is one of `parents` and there already, though not in the base.
    async fn create(&mut self, node: &WrittenNode, parents: &[String]) -> Result<()> {
        let directory = self.directory_at(&node.path).await?;
        let name = Name::new(ZARR_JSON.as_bytes());
        let is_there = self.entry(directory, &name).is_some_and(|entry| entry.id.is_some());
        if is_there && parents.contains(&node.path) {
            return Ok(());
        }
        self.state.set_restored(directory, RestoredNode { id: node.id, is_array: node.is_array });
        self.put_document(directory, &node.zarr_json).await
    }

    async fn put_chunks(&mut self, changes: &ChangeSet, places: &HashMap<NodeId, NodeIndex>) -> Result<()> {
        let tree = Arc::clone(&self.base.tree);
        let created: HashMap<NodeId, &WrittenNode> = changes.created.iter().map(|node| (node.id, node)).collect();
        let moved: HashMap<NodeId, &str> = changes.moved.iter().map(|one| (one.node, one.to.as_str())).collect();
        for (id, chunks) in &changes.chunks {
            let unknown = || Error::corrupt(format!("array {id} is neither in the base nor new"));
            let (path, encoding): (String, KeyEncoding) = match (created.get(id), places.get(id)) {
                (Some(node), _) => (node.path.clone(), ArrayMetadata::parse(&node.zarr_json)?.key_encoding),
                (None, Some(index)) => {
                    let array = tree.table().array(*index).ok_or_else(unknown)?;
                    let natural = tree.path_of(&TreePlace::Directory(*index));
                    (moved.get(id).map_or(natural, |to| (*to).to_owned()), array.encoding.clone())
                }
                (None, None) => return Err(unknown()),
            };
            let array = self.directory_at(&path).await?;
            for (coords, change) in chunks {
                let key = encoding.key(coords);
                let (above, name) = key.rsplit_once('/').unwrap_or(("", &key));
                let mut directory = array;
                for part in above.split('/').filter(|part| !part.is_empty()) {
                    directory = self.enter(directory, part).await?;
                }
                let name = Name::new(name.as_bytes());
                match change {
                    ChunkChange::Stored(payload) => {
                        self.put_file(directory, name, Source::Stored(Stored(payload.clone()))).await?;
                    }
                    ChunkChange::Delete => self.hide(directory, &name),
                    ChunkChange::File(_) | ChunkChange::Made(_) => {
                        return Err(Error::corrupt("a restored chunk that is not stored"));
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the directory at `path`; creates it where it is missing.
    async fn directory_at(&mut self, path: &str) -> Result<EntryId> {
        let mut at = ROOT;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            at = self.enter(at, part).await?;
        }
        Ok(at)
    }

    /// Returns the directory `name` of `parent`; creates it if it is missing.
    async fn enter(&mut self, parent: EntryId, name: &str) -> Result<EntryId> {
        let tree = Arc::clone(&self.base.tree);
        let text = name;
        let name = Name::new(name.as_bytes());
        let entry = self.entry(parent, &name);
        if let Some(id) = entry.and_then(|entry| entry.id) {
            return if self.state.get(id).is_some_and(Inode::is_directory) {
                Ok(id)
            } else {
                Err(untracked_in_the_way(&[self.path_in(parent, &name)]))
            };
        }
        if entry.is_none()
            && let Some(place) = self.natural(parent, text)
            && tree.is_directory_place(&place)
            && tree.has(&place).await?
        {
            let meta = self.base.meta_of(&place);
            return Ok(self.state.make_directory(parent, name, meta, Some(numbered(&tree, place))));
        }
        let id = self.state.fresh.next_entry();
        let meta = self.meta(&TreePlace::Directory(0));
        self.state.insert_bare(id, id.ino(), Body::Directory, meta, 0);
        self.state.put_entry(parent, name.clone(), Some(id), entry.is_some_and(|entry| entry.covers), None);
        self.touched(parent, name);
        Ok(id)
    }

    async fn put_document(&mut self, directory: EntryId, zarr_json: &Bytes) -> Result<()> {
        let source = if zarr_json.len() <= MOST_INLINE {
            Source::Stored(Stored(ChunkPayload::Inline(zarr_json.clone())))
        } else {
            let data = self.state.fresh.next_data_file();
            let mut file = self.moves.upper.files.create(data)?;
            self.new_data.push(data);
            // The journal that names the file is durable at once.
            let written = file.write_all(zarr_json).and_then(|()| file.sync_data());
            written.map_err(|e| Error::io("a document in the scratch directory", e))?;
            Source::Data(data)
        };
        self.put_file(directory, Name::new(ZARR_JSON.as_bytes()), source).await
    }

    /// Puts a new file over what the base has under the name.
    async fn put_file(&mut self, directory: EntryId, name: Name, source: Source) -> Result<()> {
        let covers = match self.entry(directory, &name) {
            Some(Entry { id: Some(_), .. }) => {
                return Err(untracked_in_the_way(&[self.path_in(directory, &name)]));
            }
            Some(whiteout) => whiteout.covers,
            None => match name.text().and_then(|text| self.natural(directory, text)) {
                Some(place) => self.base.tree.has(&place).await?,
                None => false,
            },
        };
        let id = self.state.fresh.next_entry();
        let meta = self.meta(&TreePlace::Metadata(0));
        self.state.insert_bare(id, id.ino(), Body::File(source), meta, 0);
        self.state.put_entry(directory, name.clone(), Some(id), covers, None);
        self.touched(directory, name);
        Ok(())
    }

    /// Hides the base's entry of a name, and takes the name from the inode that has it.
    fn hide(&mut self, directory: EntryId, name: &Name) {
        self.state.leave(directory, name);
        self.state.put_entry(directory, name.clone(), None, true, None);
        self.touched(directory, name.clone());
    }

    /// Drops a directory that shows the base, and everything below it.
    fn drop_directory(&mut self, id: EntryId) {
        let mut pending = vec![id];
        while let Some(id) = pending.pop() {
            let below = self.state.get(id).and_then(Inode::directory).into_iter().flat_map(Directory::entries);
            pending.extend(below.filter_map(|(_, entry)| entry.id));
            if let Some((parent, name)) = self.state.get(id).and_then(|inode| inode.names.first().cloned()) {
                self.state.leave(parent, &name);
            }
            self.state.drop_inode(id);
        }
    }

    /// Returns the paths of the files below a directory that are not the base's.
    fn files_below(&self, id: EntryId) -> Vec<String> {
        let mut files = Vec::new();
        let mut pending = vec![id];
        while let Some(at) = pending.pop() {
            for (name, entry) in self.state.get(at).and_then(Inode::directory).into_iter().flat_map(Directory::entries)
            {
                match entry.id {
                    Some(id) if self.state.get(id).is_some_and(Inode::is_directory) => pending.push(id),
                    Some(_) => files.push(self.path_in(at, name)),
                    None => {}
                }
            }
        }
        files
    }

    /// Returns the inode of a directory of the base, promoted with all above it.
    fn promote(&mut self, place: &TreePlace) -> Result<EntryId> {
        let tree = Arc::clone(&self.base.tree);
        let mut missing = Vec::new();
        let mut at = place.clone();
        let mut parent = loop {
            if let Some(id) = self.state.at_place(&tree, &at) {
                break id;
            }
            let (above, name) = tree.parent_of(&at).ok_or_else(|| Error::corrupt("a place without a parent"))?;
            missing.push((std::mem::replace(&mut at, above), name));
        };
        for (place, name) in missing.into_iter().rev() {
            let name = Name::new(name.as_bytes());
            if self.entry(parent, &name).is_some() {
                return Err(Error::new(
                    ErrorKind::Stale,
                    format!("{} was deleted or replaced here: discard that, then restore", self.path_in(parent, &name)),
                ));
            }
            let meta = self.base.meta_of(&place);
            parent = self.state.make_directory(parent, name, meta, Some(numbered(&tree, place)));
        }
        Ok(parent)
    }

    fn entry(&self, directory: EntryId, name: &Name) -> Option<Entry> {
        self.state.get(directory)?.directory()?.get(name)
    }

    /// Returns the place of the base that shows under a name, if it has no entry of its own.
    fn natural(&self, directory: EntryId, name: &str) -> Option<TreePlace> {
        let lower = self.state.get(directory)?.lower.as_ref()?;
        self.base.tree.child_place(lower, name)
    }

    /// Returns the attributes of a new inode like `place`.
    fn meta(&self, place: &TreePlace) -> Meta {
        Meta { atime: self.now, mtime: self.now, ctime: self.now, ..self.base.meta_of(place) }
    }

    fn path_in(&self, directory: EntryId, name: &Name) -> String {
        join(&self.state.path(directory).unwrap_or_default(), &name.to_string())
    }

    /// Notes that an entry of a directory has another meaning now.
    fn touched(&mut self, directory: EntryId, name: Name) {
        let now = self.now;
        if let Some(inode) = self.state.get_mut(directory) {
            (inode.meta.mtime, inode.meta.ctime) = (now, now);
            let number = inode.number;
            self.invalidations.push(Invalidation::Entry(number, name));
        }
    }
}

/// Splits an absolute path into the path above and the name.
fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

fn untracked_in_the_way(paths: &[String]) -> Error {
    let named: Vec<&str> = paths.iter().map(String::as_str).take(LISTED).collect();
    Error::new(
        ErrorKind::Stale,
        format!(
            "untracked names are where the restore has to remove or create something ({}: {}): move them away, then restore; nothing was \
             changed",
            paths.len(),
            printable::line(&named.join(", "))
        ),
    )
}
