//! Walk over changed directories: which are nodes, and which nodes of the snapshot they were.

use std::sync::Arc;

use bytes::Bytes;

use super::chunks::{ArrayContext, is_number};
use super::detection::{Detection, document_name};
use super::documents::{Document, MAX_DOCUMENT};
use super::{DetectedChanges, ForeignChunk, NewIds, below};
use crate::overlay::Base;
use crate::overlay::frozen::{Contents, Frozen, FrozenDirectory, FrozenEntry, FrozenFile};
use crate::scratch::data::{FLUSH_FAILED, LOST};
use crate::scratch::record::Source;
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_format::format::ids::NodeId;
use icechunkfs_format::format::snapshot::NodeData;
use icechunkfs_repo::commit::changes::WrittenNode;
use icechunkfs_tree::tree::nodes::{NodeIndex, TreePlace, ZARR_JSON};

/// Violation of a chunk outside of any array.
const STRAY: &str =
    "it has the name of a chunk, but there is no array above it: write the array's zarr.json, or remove it";

enum DocumentState {
    Absent,
    /// The snapshot's, in its original place.
    Same,
    /// New or moved document, or the reason why it cannot be one.
    Written(Result<Bytes>),
}

/// Detects the changes that `frozen`, relative to `base` and with its bytes in `contents`, would
/// commit.
pub async fn detect_changes(
    base: Arc<Base>,
    contents: &dyn Contents,
    frozen: &Frozen,
    new_ids: &NewIds,
) -> Result<DetectedChanges> {
    let kept = vec![false; base.tree.table().len()];
    let out = DetectedChanges::default();
    let pending = vec![(Frozen::ROOT, "/".to_owned())];
    let (groups_like_chunks, not_text, shared_chunks, shared_directories) = Default::default();
    let mut detection = Detection {
        contents,
        base,
        frozen,
        out,
        new_ids,
        kept,
        pending,
        groups_like_chunks,
        not_text,
        shared_chunks,
        shared_directories,
        taken_ids: None,
    };
    while let Some((position, path)) = detection.pending.pop() {
        detection.walk_directory(position, path).await?;
    }
    detection.add_deleted_nodes();
    detection.out.untracked.sort_by(|a, b| a.path.cmp(&b.path));
    detection.out.violations.sort_by(|a, b| a.path.cmp(&b.path));
    detection.out.violations.dedup();
    Ok(detection.out)
}

impl Detection<'_> {
    /// Walks a directory that is outside any array, or is a node itself.
    async fn walk_directory(&mut self, position: usize, path: String) -> Result<()> {
        let directory = self.get(position)?;
        let lower = directory.base_node();
        let document = self.document(directory, lower).await.context(|| below(&path, ZARR_JSON))?;
        let is_node = !matches!(document, DocumentState::Absent);
        let array = match document {
            DocumentState::Absent => {
                self.without_document(position, &path, lower).await?;
                None
            }
            DocumentState::Same => lower.and_then(|index| {
                self.out.tracked.insert((directory.id, document_name()));
                self.keep(index, &path);
                self.stored_array(index, &path)
            }),
            DocumentState::Written(bytes) => self.written(directory, lower, &path, bytes),
        };
        match array {
            Some(array) => self.walk_chunks(position, array).await,
            None => {
                if is_node && path.ends_with("/c") {
                    self.groups_like_chunks.insert(path.clone());
                }
                self.walk_children(position, &path, lower).await
            }
        }
    }

    async fn document(&self, directory: &FrozenDirectory, lower: Option<NodeIndex>) -> Result<DocumentState> {
        match directory.entries.get(&document_name()) {
            None if lower.is_some_and(|index| self.base.tree.table().is_stored(index)) => Ok(DocumentState::Same),
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

    /// Reads a file that should be a document. The inner error explains why it cannot be one: one
    /// bad file must not prevent looking at the others, nor discarding it.
    async fn bytes(&self, file: &FrozenFile) -> Result<Result<Bytes>> {
        if let Source::Data(number) = file.source {
            if self.contents.changed(number)?.is_none() {
                return Ok(Err(Error::corrupt(LOST)));
            }
            if self.contents.has_flush_failed(number) {
                return Ok(Err(Error::new(ErrorKind::Io, FLUSH_FAILED)));
            }
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

    /// Records a node whose document was written. Returns it if it is an array.
    fn written(
        &mut self,
        directory: &FrozenDirectory,
        lower: Option<NodeIndex>,
        path: &str,
        bytes: Result<Bytes>,
    ) -> Option<ArrayContext> {
        let checked = bytes.and_then(|bytes| Document::check(&bytes).map(|document| (bytes, document)));
        let (bytes, document) = match checked {
            Ok(checked) => checked,
            Err(why) => {
                self.report_violation(below(path, ZARR_JSON), why);
                // The old node is not deleted.
                let index = lower?;
                self.keep(index, path);
                return self.stored_array(index, path);
            }
        };
        if self.not_text.contains(&directory.id) {
            self.report_violation(path, "its name is not UTF-8, as Icechunk requires");
        }
        self.out.tracked.insert((directory.id, document_name()));
        let is_array = document.is_array();
        let same = lower.filter(|&index| self.is_same_node(index, &document));
        let (id, before) = match same {
            Some(index) => {
                self.keep(index, path);
                let node = self.stored(index)?;
                (node.id, Some(node.zarr_json.to_vec()))
            }
            None => match self.new_id(directory, is_array) {
                Ok(new) => (new, None),
                Err(_) => {
                    self.report_violation(path, "the system does not provide random numbers");
                    return None;
                }
            },
        };
        if before.as_deref() != Some(&*bytes) {
            self.out.bytes += bytes.len() as u64;
            let changes = &mut self.out.changes;
            let list = if before.is_some() { &mut changes.updated } else { &mut changes.created };
            list.push(WrittenNode { id, path: path.to_owned(), zarr_json: bytes, is_array });
            self.out.before.extend(before.map(|before| (path.to_owned(), before)));
        }
        match document {
            Document::Group => None,
            Document::Array(metadata) => Some(ArrayContext::new(id, path, same, metadata.grid, metadata.key_encoding)),
        }
    }

    /// Returns the id of the new node in `directory`: a restored one has its own, unless another
    /// node has it.
    fn new_id(&mut self, directory: &FrozenDirectory, is_array: bool) -> Result<NodeId> {
        let restored = directory.restored.filter(|node| node.is_array == is_array).map(|node| node.id);
        if let Some(id) = restored {
            let base = Arc::clone(&self.base);
            let taken =
                self.taken_ids.get_or_insert_with(|| base.tree.snapshot().nodes().map(|node| node.id).collect());
            if taken.insert(id) {
                return Ok(id);
            }
        }
        let new = NodeId::random()?;
        Ok(*self.new_ids.lock().entry((directory.id, is_array)).or_insert(new))
    }

    /// Returns node `index` of the snapshot, now at `path`, if it is an array.
    pub(super) fn stored_array(&self, index: NodeIndex, path: &str) -> Option<ArrayContext> {
        let array = self.base.tree.table().array(index)?;
        Some(ArrayContext::new(array.id, path, Some(index), array.grid.to_vec(), array.encoding.clone()))
    }

    /// Returns true if a node with this document is still the snapshot's node: of the same kind,
    /// and with the same chunk keys.
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

    /// Walks the entries of a directory that is not an array.
    async fn walk_children(&mut self, position: usize, path: &str, lower: Option<NodeIndex>) -> Result<()> {
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
                        self.report_untracked(child, file.id, (directory.id, name.clone()));
                    }
                }
                FrozenEntry::Other(id) => self.report_untracked(child, *id, (directory.id, name.clone())),
            }
        }
        if let Some(index) = lower {
            self.untouched_children(directory, path, index);
        }
        // The array above has dealt with all chunks that a directory of both shows.
        if let Some(place) = directory.lower.as_ref().filter(|_| !self.shared_directories.contains(&directory.id)) {
            for (place, rest) in self.untouched_chunks(directory, place).await? {
                let child = below(path, &rest);
                if self.is_stray(&child) {
                    self.report_violation(child, STRAY);
                } else {
                    self.out.foreign.push(ForeignChunk { place, path: child });
                }
            }
        }
        Ok(())
    }

    /// Returns true if a file has the name of a chunk but no array. A file of a group is never a
    /// chunk, whatever its name.
    fn is_stray(&self, path: &str) -> bool {
        chunk_directory(path).is_some_and(|directory| !self.groups_like_chunks.contains(directory))
    }
}

/// Returns the directory `c` of a path that ends like a chunk's: with `c` and numbers below it.
fn chunk_directory(path: &str) -> Option<&str> {
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
    fn stray_chunks_have_a_directory_c_above_numbers() {
        for path in ["/c/0", "/a/c/0/1", "/a/c/00"] {
            assert!(chunk_directory(path).is_some_and(|directory| directory.ends_with("/c")), "{path}");
        }
        for path in ["/0", "/a/0/1", "/a/c", "/a/c/x", "/a/0.0.0", "/c/x/0"] {
            assert_eq!(chunk_directory(path), None, "{path}");
        }
    }
}
