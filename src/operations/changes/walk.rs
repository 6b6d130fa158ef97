//! Walk over changed directories: which are nodes, and which nodes of the snapshot they were.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;

use super::chunks::ArrayContext;
use super::documents::{Document, MAX_DOCUMENT};
use super::{DetectedChanges, Untracked, Violation, below};
use crate::commit::changes::{DeletedNode, WrittenNode};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::format::ids::NodeId;
use crate::format::snapshot::{Node as SnapshotNode, NodeData};
use crate::format::transaction_log::Move;
use crate::overlay::frozen::{Contents, Frozen, FrozenDirectory, FrozenEntry, FrozenFile};
use crate::overlay::{Base, WorkingTree};
use crate::scratch::data::LOST;
use crate::scratch::record::{EntryId, Name, Source};
use crate::tree::nodes::{NodeIndex, TreePlace, ZARR_JSON};

/// Violation of a chunk outside of any array.
const STRAY: &str =
    "it has the name of a chunk, but there is no array above it: write the array's zarr.json, or remove it";

/// IDs of nodes created here, by the directory's inode and whether it is an array: repeated detection gives the same IDs.
pub type NewIds = parking_lot::Mutex<HashMap<(EntryId, bool), NodeId>>;

/// Detection in progress.
pub(super) struct Walk<'a> {
    pub(super) contents: &'a dyn Contents,
    pub(super) base: Arc<Base>,
    pub(super) frozen: &'a Frozen,
    pub(super) out: DetectedChanges,
    new_ids: &'a NewIds,
    /// True for each node of the snapshot that still exists, by index.
    kept: Vec<bool>,
    /// Directories still to be walked, with their paths.
    pending: Vec<(usize, String)>,
    /// Groups with the name of an array's chunk directory.
    groups_like_chunks: HashSet<String>,
    /// Directories whose path has a name that is not UTF-8. Printed, it looks like another one.
    not_text: HashSet<EntryId>,
    /// Chunks that an array has in the directory of a node below it, by directory and name: they are not files of that node.
    pub(super) shared_chunks: HashSet<(EntryId, Name)>,
}

enum DocumentState {
    Absent,
    /// The snapshot's, in its original place.
    Same,
    /// New or moved document, or the reason why it cannot be one.
    Written(Result<Bytes>),
}

/// Detects the changes that `frozen`, a state of `working`, would commit.
pub async fn detect_changes(working: &WorkingTree, frozen: &Frozen, new_ids: &NewIds) -> Result<DetectedChanges> {
    detect_changes_in(working.base(), working, frozen, new_ids).await
}

/// Detects the changes that `frozen`, relative to `base` and with its bytes in `contents`, would commit.
pub async fn detect_changes_in(
    base: Arc<Base>,
    contents: &dyn Contents,
    frozen: &Frozen,
    new_ids: &NewIds,
) -> Result<DetectedChanges> {
    let kept = vec![false; base.tree.table().len()];
    let (out, pending) = (DetectedChanges::default(), vec![(Frozen::ROOT, "/".to_owned())]);
    let (groups_like_chunks, not_text, shared_chunks) = Default::default();
    let mut walk =
        Walk { contents, base, frozen, out, new_ids, kept, pending, groups_like_chunks, not_text, shared_chunks };
    while let Some((position, path)) = walk.pending.pop() {
        walk.directory(position, path).await?;
    }
    walk.deleted();
    walk.out.untracked.sort_by(|a, b| a.path.cmp(&b.path));
    walk.out.violations.sort_by(|a, b| a.path.cmp(&b.path));
    walk.out.violations.dedup();
    Ok(walk.out)
}

impl<'a> Walk<'a> {
    pub(super) fn get(&self, position: usize) -> Result<&'a FrozenDirectory> {
        self.frozen.get(position).ok_or_else(|| Error::corrupt("a directory without entries"))
    }

    pub(super) fn report_violation(&mut self, path: impl Into<String>, why: impl ToString) {
        self.out.violations.push(Violation { path: path.into(), why: why.to_string() });
    }

    pub(super) fn untracked(&mut self, path: String, id: EntryId, entry: (EntryId, Name)) {
        self.out.untracked.push(Untracked { path, id, entry });
    }

    fn stored(&self, index: NodeIndex) -> Option<SnapshotNode<'_>> {
        let at = self.base.tree.table().get(index)?.stored?;
        self.base.tree.snapshot().node(at as usize)
    }

    /// Walks a directory that is outside any array, or is a node itself.
    async fn directory(&mut self, position: usize, path: String) -> Result<()> {
        let directory = self.get(position)?;
        let lower = match directory.lower {
            Some(TreePlace::Directory(index)) => Some(index),
            _ => None,
        };
        let document = self.document(directory, lower).await.context(|| below(&path, ZARR_JSON))?;
        let is_node = !matches!(document, DocumentState::Absent);
        let node = match document {
            DocumentState::Absent => {
                self.without_document(position, &path, lower).await?;
                None
            }
            DocumentState::Same => lower.and_then(|index| {
                self.out.tracked.insert((directory.id, document_name()));
                self.keep(index, &path);
                let node = self.stored(index)?;
                node.is_array().then_some((node.id, Some(index)))
            }),
            DocumentState::Written(bytes) => self.written(directory, lower, &path, bytes),
        };
        match node {
            Some((id, index)) => self.array(position, &path, id, index).await,
            None => {
                if is_node && path.ends_with("/c") {
                    self.groups_like_chunks.insert(path.clone());
                }
                self.children(position, &path, lower).await
            }
        }
    }

    async fn document(&self, directory: &FrozenDirectory, lower: Option<NodeIndex>) -> Result<DocumentState> {
        let has = |index| self.base.tree.table().get(index).is_some_and(|node| node.stored.is_some());
        match directory.entries.get(&document_name()) {
            None if lower.is_some_and(has) => Ok(DocumentState::Same),
            None | Some(FrozenEntry::Whiteout | FrozenEntry::Other(_) | FrozenEntry::Directory(_)) => {
                Ok(DocumentState::Absent)
            }
            Some(FrozenEntry::File(file)) => {
                let own = lower.is_some() && file.lower == lower.map(TreePlace::Metadata);
                if own && file.source == Source::Lower {
                    return Ok(DocumentState::Same);
                }
                self.bytes(file).await.map(DocumentState::Written)
            }
        }
    }

    /// Reads a file that should be a document. The inner error explains why it cannot be one: one bad file must not prevent
    /// looking at the others, nor discarding it.
    async fn bytes(&self, file: &FrozenFile) -> Result<Result<Bytes>> {
        if let Source::Data(number) = file.source
            && self.contents.changed(number)?.is_none()
        {
            return Ok(Err(Error::corrupt(LOST)));
        }
        match self.contents.whole(file, MAX_DOCUMENT).await {
            Err(error) if error.kind() != ErrorKind::OutOfMemory => Err(error),
            read => Ok(read),
        }
    }

    /// Reports a directory that has lost its document but still shows chunks.
    async fn without_document(&mut self, position: usize, path: &str, lower: Option<NodeIndex>) -> Result<()> {
        let Some(index) = lower else { return Ok(()) };
        let was_array = self.stored(index).is_some_and(|node| node.is_array());
        if was_array && self.any_chunk_left(position, index).await? {
            self.report_violation(
                path,
                "its zarr.json is gone while chunks are still there: an editor may be saving it; restore it, or remove the array",
            );
        }
        Ok(())
    }

    /// Records a node whose document was written. Returns its ID and its index in the snapshot if it is an array.
    fn written(
        &mut self,
        directory: &FrozenDirectory,
        lower: Option<NodeIndex>,
        path: &str,
        bytes: Result<Bytes>,
    ) -> Option<(NodeId, Option<NodeIndex>)> {
        let checked = bytes.and_then(|bytes| Document::check(&bytes).map(|document| (bytes, document)));
        let (bytes, document) = match checked {
            Ok(checked) => checked,
            Err(why) => {
                self.report_violation(below(path, ZARR_JSON), why);
                // The old node is not deleted.
                let index = lower?;
                self.keep(index, path);
                let node = self.stored(index)?;
                return node.is_array().then_some((node.id, Some(index)));
            }
        };
        if self.not_text.contains(&directory.id) {
            self.report_violation(path, "its name is not UTF-8, which Icechunk needs");
        }
        self.out.tracked.insert((directory.id, document_name()));
        let is_array = document.is_array();
        let same = lower.filter(|&index| self.is_same_node(index, &document));
        if let Some(index) = same {
            let (node_id, changed) = {
                let node = self.stored(index)?;
                let changed = node.zarr_json != &*bytes;
                let before = changed.then(|| node.zarr_json.to_vec());
                (node.id, before)
            };
            self.keep(index, path);
            if let Some(before) = changed {
                self.out.bytes += bytes.len() as u64;
                self.out.before.push((path.to_owned(), before));
                let written = WrittenNode { id: node_id, path: path.to_owned(), zarr_json: bytes, is_array };
                self.out.changes.updated.push(written);
            }
            return is_array.then_some((node_id, Some(index)));
        }
        let new_id = {
            let mut ids = self.new_ids.lock();
            match ids.get(&(directory.id, is_array)) {
                Some(id) => *id,
                None => {
                    let Ok(id) = NodeId::random() else {
                        drop(ids);
                        self.report_violation(path, "the system has no random numbers");
                        return None;
                    };
                    ids.insert((directory.id, is_array), id);
                    id
                }
            }
        };
        self.out.bytes += bytes.len() as u64;
        let written = WrittenNode { id: new_id, path: path.to_owned(), zarr_json: bytes, is_array };
        self.out.changes.created.push(written);
        is_array.then_some((new_id, None))
    }

    /// Returns true if a node with this document is still the snapshot's node: of the same kind, and with the same chunk keys.
    fn is_same_node(&self, index: NodeIndex, document: &Document) -> bool {
        let Some(node) = self.stored(index) else { return false };
        match (&node.data, document) {
            (NodeData::Group, Document::Group) => true,
            (NodeData::Array(_), Document::Array(metadata)) => {
                self.base.tree.table().array(index).is_some_and(|array| {
                    array.grid.len() == metadata.grid.len() && array.encoding == metadata.key_encoding
                })
            }
            _ => false,
        }
    }

    /// Records that node `index` of the snapshot still exists, at `path`.
    fn keep(&mut self, index: NodeIndex, path: &str) {
        if let Some(kept) = self.kept.get_mut(index as usize) {
            *kept = true;
        }
        let moved = self.stored(index).filter(|node| node.path != path).map(|node| Move {
            from: node.path.to_owned(),
            to: path.to_owned(),
            node: node.id,
            is_array: node.is_array(),
        });
        self.out.changes.moved.extend(moved);
    }

    /// Walks the entries of a directory that is not an array.
    async fn children(&mut self, position: usize, path: &str, lower: Option<NodeIndex>) -> Result<()> {
        let directory = self.get(position)?;
        for (name, entry) in &directory.entries {
            let child = below(path, &name.to_string());
            match entry {
                FrozenEntry::Whiteout => {}
                FrozenEntry::Directory(below) => {
                    self.note_name(directory.id, name, *below);
                    self.pending.push((*below, child));
                }
                FrozenEntry::File(_) if name.text() == Some(ZARR_JSON) => {}
                FrozenEntry::File(_) if self.shared_chunks.contains(&(directory.id, name.clone())) => {}
                FrozenEntry::File(file) => {
                    if self.is_stray(&child) {
                        self.report_violation(child, STRAY);
                    } else {
                        self.untracked(child, file.id, (directory.id, name.clone()));
                    }
                }
                FrozenEntry::Other(id) => self.untracked(child, *id, (directory.id, name.clone())),
            }
        }
        if let Some(index) = lower {
            self.untouched_children(directory, path, index);
        }
        if let Some(place) = &directory.lower {
            let mut stray = Vec::new();
            for (place, rest) in self.untouched_chunks(directory, place).await? {
                let child = below(path, &rest);
                if self.is_stray(&child) {
                    self.report_violation(child, STRAY);
                } else {
                    stray.push(place);
                }
            }
            if !stray.is_empty() {
                self.out.foreign.push((directory.id, stray));
            }
        }
        Ok(())
    }

    /// Records directory `position` if its path is not UTF-8.
    pub(super) fn note_name(&mut self, parent: EntryId, name: &Name, position: usize) {
        if (self.not_text.contains(&parent) || name.text().is_none())
            && let Some(directory) = self.frozen.get(position)
        {
            self.not_text.insert(directory.id);
        }
    }

    /// Returns true if a file has the name of a chunk but no array. A file of a group is never a chunk, whatever its name.
    fn is_stray(&self, path: &str) -> bool {
        chunk_directory(path).is_some_and(|directory| !self.groups_like_chunks.contains(directory))
    }

    /// Keeps the nodes below `index` of the snapshot that `directory` still shows unchanged.
    pub(super) fn untouched_children(&mut self, directory: &FrozenDirectory, path: &str, index: NodeIndex) {
        let base = Arc::clone(&self.base);
        let table = base.tree.table();
        for &child in table.children(index) {
            let name = table.name(child);
            if directory.entries.contains_key(&Name::new(name.as_bytes())) {
                continue;
            }
            self.keep_subtree(child, &below(path, name));
        }
    }

    fn keep_subtree(&mut self, top: NodeIndex, path: &str) {
        let base = Arc::clone(&self.base);
        let table = base.tree.table();
        let old = format!("/{}", table.path(top));
        if old == path {
            for index in table.subtree(top) {
                if let Some(kept) = self.kept.get_mut(index as usize) {
                    *kept = true;
                }
            }
            return;
        }
        for index in table.subtree(top) {
            let at = format!("/{}", table.path(index));
            let rest = at.strip_prefix(&old).unwrap_or_default();
            self.keep(index, &format!("{path}{rest}"));
        }
    }

    /// Queues a directory within an array that is a node itself.
    pub(super) fn nested(&mut self, position: usize, path: String) {
        self.pending.push((position, path));
    }

    /// Adds the nodes of the snapshot that were not kept to the deletions.
    fn deleted(&mut self) {
        let gone = (0..self.kept.len()).filter(|&at| !self.kept.get(at).copied().unwrap_or(true));
        let gone: Vec<DeletedNode> = gone
            .filter_map(|at| self.stored(NodeIndex::try_from(at).ok()?))
            .map(|node| DeletedNode { id: node.id, path: node.path.to_owned(), is_array: node.is_array() })
            .collect();
        self.out.changes.deleted = gone;
    }

    async fn array(&mut self, position: usize, path: &str, id: NodeId, index: Option<NodeIndex>) -> Result<()> {
        let created = self.out.changes.created.iter().rev().chain(self.out.changes.updated.iter().rev());
        let document = created.into_iter().find(|node| node.id == id).map(|node| node.zarr_json.clone());
        let document = document.or_else(|| Some(Bytes::copy_from_slice(self.stored(index?)?.zarr_json)));
        let array = match document.as_deref().map(Document::check) {
            Some(Ok(Document::Array(metadata))) => ArrayContext::new(id, path.to_owned(), index, &metadata),
            // The metadata of this array of the snapshot cannot be read: chunk keys are those of the snapshot's tree.
            _ => match index.and_then(|index| self.base.tree.table().array(index).map(|array| (index, array))) {
                Some((index, array)) => ArrayContext::of(id, path.to_owned(), index, array),
                None => return self.children(position, path, index).await,
            },
        };
        self.chunks(position, array).await
    }
}

fn document_name() -> Name {
    Name::new(ZARR_JSON.as_bytes())
}

/// Returns the directory `c` of a path that ends like a chunk's: with `c` and numbers below it.
fn chunk_directory(path: &str) -> Option<&str> {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let (mut rest, last) = path.rsplit_once('/')?;
    if !is_number(last) {
        return None;
    }
    loop {
        let (above, name) = rest.rsplit_once('/')?;
        if name == "c" {
            return Some(rest);
        }
        if !is_number(name) {
            return None;
        }
        rest = above;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stray_chunks_are_told_by_a_directory_c_above_numbers() {
        for path in ["/c/0", "/a/c/0/1", "/a/c/00"] {
            assert!(chunk_directory(path).is_some_and(|directory| directory.ends_with("/c")), "{path}");
        }
        for path in ["/0", "/a/0/1", "/a/c", "/a/c/x", "/a/0.0.0", "/c/x/0"] {
            assert_eq!(chunk_directory(path), None, "{path}");
        }
    }
}
