//! Chunks of an array: which files are chunks, and how they differ from the snapshot's.
//!
//! A directory is *in place* if it shows the directory of the snapshot that belongs there; its
//! untouched entries are then unchanged, and are not looked at. Otherwise it was moved there: every
//! chunk that it shows becomes a reference to the same stored bytes under other coordinates, and
//! the chunks that belong there are deleted.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::detection::{Detection, document_name};
use super::documents::MAX_DOCUMENT;
use super::{ForeignChunk, Untracked, below, join_key};
use crate::overlay::frozen::{FrozenDirectory, FrozenEntry, FrozenFile};
use crate::scratch::data::{FLUSH_FAILED, LOST};
use crate::scratch::record::{DataFileId, EntryId, Name, Source};
use icechunkfs_base::error::{Context, Result};
use icechunkfs_base::printable;
use icechunkfs_format::format::chunk_payload::ChunkPayload;
use icechunkfs_format::format::ids::NodeId;
use icechunkfs_format::zarr::chunk_key::{KeyEncoding, Separator, parse_number};
use icechunkfs_format::zarr::{Coords, is_in_grid};
use icechunkfs_repo::commit::changes::ChunkChange;
use icechunkfs_tree::tree::nodes::{NodeIndex, TreePlace, ZARR_JSON};

/// Reason for which a chunk of a replaced array is a violation.
const REPLACED: &str = "it is a chunk by the names that the array had: its rank or chunk_key_encoding has changed; give it its new name, or \
    remove it";
/// References that are listed at a time.
const PAGE: usize = 4096;

/// Array whose files are examined.
#[derive(Clone, Debug)]
pub(super) struct ArrayContext {
    id: NodeId,
    path: String,
    /// Index in the snapshot, if the array is there.
    index: Option<NodeIndex>,
    grid: Vec<u32>,
    encoding: KeyEncoding,
    /// Rank and chunk names of the array that this one replaced in its directory.
    replaced: Option<(usize, KeyEncoding)>,
}

/// Role of a file in its array.
enum FileRole {
    Chunk(Coords),
    /// Looks like a chunk and cannot be one.
    Wrong(String),
    Nothing,
}

impl ArrayContext {
    /// Returns the array `id`, at `path` now, which is node `index` of the snapshot if it is there.
    pub(super) fn new(id: NodeId, path: &str, index: Option<NodeIndex>, grid: Vec<u32>, encoding: KeyEncoding) -> Self {
        ArrayContext { id, path: path.to_owned(), index, grid, encoding, replaced: None }
    }

    /// Returns true if `key` was a chunk's name in the array that this one replaced. Leaving such a
    /// file out as any file without a place in Zarr would lose the data of an array whose document
    /// a user has edited. Any other name is one that a user chose, whatever the bytes are.
    fn is_of_replaced(&self, key: &str) -> bool {
        self.replaced.as_ref().is_some_and(|(rank, encoding)| coords_of(encoding, *rank, key).is_some())
    }

    /// Classifies the file at `key`, relative to the array.
    fn role_of(&self, key: &str) -> FileRole {
        let rank = self.grid.len();
        let coords = coords_of(&self.encoding, rank, key);
        match coords {
            Some(coords) if is_in_grid(&coords, &self.grid) => FileRole::Chunk(coords),
            Some(_) => FileRole::Wrong(format!("it is outside the array's grid of {:?} chunks", self.grid)),
            None if self.looks_like_a_chunk(key) => FileRole::Wrong(format!(
                "this name is not a valid chunk name: chunks of this array are named like {}",
                self.encoding.key(&vec![0; rank])
            )),
            None => FileRole::Nothing,
        }
    }

    /// Returns what a name with numbers, which is no chunk's, may have been meant to be.
    fn misspelled(&self, key: &str) -> Option<String> {
        let first = self.encoding.key(&vec![0; self.grid.len()]);
        let path = printable::line(&self.path);
        key.split(['/', '.']).any(is_number).then(|| format!("chunks of {path} are named like {first}"))
    }

    /// Returns true if `key` has numbers where the encoding has them, but too many, too few, or in
    /// another spelling.
    fn looks_like_a_chunk(&self, key: &str) -> bool {
        let KeyEncoding { prefixed, separator, suffix } = &self.encoding;
        let separator = if *separator == Separator::Slash { '/' } else { '.' };
        let numbers = key
            .strip_suffix(suffix.as_str())
            .and_then(|key| if *prefixed { key.strip_prefix('c')?.strip_prefix(separator) } else { Some(key) });
        numbers.is_some_and(|numbers| numbers.split(separator).all(is_number))
    }
}

/// Returns true if `name` has digits only.
pub(super) fn is_number(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit())
}

impl Detection<'_> {
    /// Detects the chunk changes in the directory of `array`, at `position`.
    pub(super) async fn walk_chunks(&mut self, position: usize, array: ArrayContext) -> Result<()> {
        let base = Arc::clone(&self.base);
        let tree = &base.tree;
        let owner = self.get(position)?.base_node().filter(|owner| Some(*owner) != array.index);
        let replaced = owner.and_then(|owner| tree.table().array(owner));
        let replaced = replaced.map(|replaced| (replaced.grid.len(), replaced.encoding.clone()));
        let array = ArrayContext { replaced, ..array };
        let place = array.index.map(TreePlace::Directory);
        let mut changes = BTreeMap::new();
        // Directories still to be examined: position, path below the array, place of the snapshot
        // that belongs there, and whether a node below the array shares the directory. Files there
        // that are not chunks belong to that node.
        let mut pending = vec![(position, String::new(), place, false)];
        while let Some((position, relative, natural, is_shared)) = pending.pop() {
            let directory = self.get(position)?;
            if is_shared {
                self.shared_directories.insert(directory.id);
            }
            let lower =
                directory.lower.as_ref().map(|place| tree.shared_chunks(place).unwrap_or_else(|| place.clone()));
            let in_place = natural.is_some() && lower == natural;
            if let (Some(natural), false) = (&natural, in_place) {
                self.delete_below(natural, &mut changes).await?;
            }
            for (name, entry) in &directory.entries {
                let key = join_key(&relative, &name.to_string());
                if key == ZARR_JSON {
                    continue;
                }
                let home = natural.as_ref().and_then(|place| {
                    let step =
                        tree.child_place(place, name.text()?).map(|place| tree.shared_chunks(&place).unwrap_or(place));
                    step.filter(|place| is_of(place, array.index))
                });
                let here = home.clone().filter(|_| in_place);
                match entry {
                    FrozenEntry::Whiteout | FrozenEntry::Other(_) => {
                        if let Some(place) = here {
                            self.delete_below(&place, &mut changes).await?;
                        }
                        if let (FrozenEntry::Other(id), false) = (entry, is_shared) {
                            self.report_untracked(below(&array.path, &key), *id, (directory.id, name.clone()));
                        }
                    }
                    FrozenEntry::Directory(child) => {
                        self.note_name(directory.id, name, *child);
                        let is_node = self.is_node(*child)?;
                        if is_node {
                            self.nested_node(*child, &array, &key, is_shared)?;
                        }
                        pending.push((*child, key, here, is_shared || is_node));
                    }
                    FrozenEntry::File(_) if is_shared && !matches!(array.role_of(&key), FileRole::Chunk(_)) => {}
                    FrozenEntry::File(file) => {
                        if is_shared {
                            self.shared_chunks.insert((directory.id, name.clone()));
                        }
                        let entry = (directory.id, name.clone());
                        self.walk_file(&array, &key, file, entry, home, &mut changes).await?;
                    }
                }
            }
            // Nodes below an array, which old repositories may have, are kept if they are
            // untouched.
            if !is_shared && let Some(index) = directory.base_node() {
                let path = if relative.is_empty() { array.path.clone() } else { below(&array.path, &relative) };
                self.untouched_children(directory, &path, index);
                if array.index.is_none() {
                    self.refuse_children(directory, &path, index);
                }
            }
            if !in_place && let Some(place) = &lower {
                self.adopt_chunks(&array, &relative, directory, place, &mut changes).await?;
            }
        }
        self.report_out_of_grid(&array, &changes).await?;
        if !changes.is_empty() {
            self.out.changes.chunks.insert(array.id, changes);
        }
        Ok(())
    }

    /// Reports nodes that were below a group which is an array now.
    fn refuse_children(&mut self, directory: &FrozenDirectory, at: &str, index: NodeIndex) {
        let base = Arc::clone(&self.base);
        let table = base.tree.table();
        let top = format!("/{}", table.path(index));
        for &child in table.children(index) {
            if directory.entries.contains_key(&Name::new(table.name(child).as_bytes())) {
                continue;
            }
            for node in table.subtree(child) {
                if table.is_stored(node) {
                    let path = format!("/{}", table.path(node));
                    let rest = path.strip_prefix(&top).unwrap_or(&path);
                    let path = below(at.trim_end_matches('/'), rest.trim_start_matches('/'));
                    self.report_violation(
                        below(&path, ZARR_JSON),
                        "a group or array below an array, which Zarr does not allow",
                    );
                }
            }
        }
    }

    /// Reports chunks of the snapshot outside a grid that shrank. A commit would drop them; the
    /// user has to remove them.
    async fn report_out_of_grid(
        &mut self,
        array: &ArrayContext,
        changes: &BTreeMap<Coords, ChunkChange>,
    ) -> Result<()> {
        let Some(index) = array.index else { return Ok(()) };
        let Some(old) = self.base.tree.table().array(index) else { return Ok(()) };
        if std::iter::zip(&old.grid, &array.grid).all(|(old, new)| old <= new) {
            return Ok(());
        }
        for coords in self.chunks_below(&TreePlace::Directory(index)).await? {
            if !is_in_grid(&coords, &array.grid) && !changes.contains_key(&coords) {
                let why = format!(
                    "it is outside the array's grid of {:?} chunks, to which zarr.json shrank it: correct zarr.json, \
                     or remove the chunk first",
                    array.grid
                );
                self.report_violation(below(&array.path, &array.encoding.key(&coords)), why);
            }
        }
        Ok(())
    }

    /// Classifies one file below an array. `home` is the chunk of the snapshot that has this name.
    async fn walk_file(
        &mut self,
        array: &ArrayContext,
        key: &str,
        file: &FrozenFile,
        entry: (EntryId, Name),
        home: Option<TreePlace>,
        changes: &mut BTreeMap<Coords, ChunkChange>,
    ) -> Result<()> {
        let path = below(&array.path, key);
        let coords = match array.role_of(key) {
            FileRole::Chunk(coords) => coords,
            FileRole::Wrong(why) => {
                self.report_violation(path, why);
                return Ok(());
            }
            FileRole::Nothing => {
                if array.is_of_replaced(key) {
                    self.report_violation(path, REPLACED);
                } else {
                    let why = array.misspelled(key);
                    self.out.untracked.push(Untracked { path, id: file.id, entry, why });
                }
                return Ok(());
            }
        };
        self.out.tracked.insert(entry);
        let change = match &file.source {
            Source::Lower if home.is_some() && file.lower == home => {
                // A directory that is not in its place takes its chunks away, but this one is.
                changes.remove(&coords);
                return Ok(());
            }
            Source::Lower => match self.stored_at(file.lower.as_ref()).await? {
                Some(change) => change,
                // The file is a document under a chunk's name.
                None => ChunkChange::Stored(ChunkPayload::Inline(self.contents.whole(file, MAX_DOCUMENT).await?)),
            },
            Source::Stored(stored) => ChunkChange::Stored(stored.0.clone()),
            Source::Data(number) => match self.new_chunk(*number, &path)? {
                Some(change) => change,
                None => return Ok(()),
            },
        };
        if change.length() == Some(0) {
            self.report_violation(path, "the chunk file is empty: wait for its writer, or remove it");
        }
        changes.insert(coords, change);
        Ok(())
    }

    /// Returns the chunk with bytes of its own; none if these are lost, which is a violation.
    fn new_chunk(&mut self, number: DataFileId, path: &str) -> Result<Option<ChunkChange>> {
        if let Some(made) = self.contents.made(number) {
            self.out.bytes += made.length();
            return Ok(Some(ChunkChange::Made(made)));
        }
        let Some(file) = self.contents.changed(number).context(|| path.to_owned())? else {
            self.report_violation(path.to_owned(), LOST);
            return Ok(None);
        };
        if self.contents.has_flush_failed(number) {
            self.report_violation(path.to_owned(), FLUSH_FAILED);
        }
        self.out.bytes += file.length;
        Ok(Some(ChunkChange::File(file)))
    }

    async fn stored_at(&self, place: Option<&TreePlace>) -> Result<Option<ChunkChange>> {
        let Some(place @ TreePlace::Chunk(..)) = place else { return Ok(None) };
        let stored = self.base.tree.stored(self.base.tree.table().inode(place)).await?;
        Ok(stored.map(ChunkChange::Stored))
    }

    /// Deletes every chunk of the snapshot at or below `place`.
    async fn delete_below(&self, place: &TreePlace, changes: &mut BTreeMap<Coords, ChunkChange>) -> Result<()> {
        for coords in self.chunks_below(place).await? {
            changes.entry(coords).or_insert(ChunkChange::Delete);
        }
        Ok(())
    }

    /// Returns the chunks of the snapshot at or below `place`.
    async fn chunks_below(&self, place: &TreePlace) -> Result<Vec<Coords>> {
        let (index, prefix) = match place {
            TreePlace::Directory(index) => (*index, Coords::new()),
            TreePlace::Chunk(index, coords) => (*index, coords.clone()),
            TreePlace::Metadata(_) => return Ok(Vec::new()),
        };
        let (Some(array), Some(chunks)) = (self.base.tree.table().array(index), self.base.tree.chunks(index)) else {
            return Ok(Vec::new());
        };
        let rank = array.grid.len();
        if prefix.len() == rank {
            return Ok(chunks.find(&prefix).await?.map(|_| prefix).into_iter().collect());
        }
        let mut found = Vec::new();
        let mut after: Option<Coords> = None;
        loop {
            let page = chunks.page(&prefix, rank, after.as_deref(), PAGE).await?;
            let full = page.len() == PAGE;
            found.extend(page.into_iter().map(|(coords, _)| coords));
            match found.last() {
                Some(last) if full => after = Some(last.clone()),
                _ => return Ok(found),
            }
        }
    }

    /// Makes the chunks that `directory` shows of `place`, where they do not belong, chunks of
    /// `array`. They are classified like files that are inodes of the working tree: the kernel, and
    /// earlier commits, decide which are.
    async fn adopt_chunks(
        &mut self,
        array: &ArrayContext,
        relative: &str,
        directory: &FrozenDirectory,
        place: &TreePlace,
        changes: &mut BTreeMap<Coords, ChunkChange>,
    ) -> Result<()> {
        for (place, rest) in self.untouched_chunks(directory, place).await? {
            let key = join_key(relative, &rest);
            let path = below(&array.path, &key);
            match (array.role_of(&key), self.stored_at(Some(&place)).await?) {
                (FileRole::Chunk(coords), Some(change)) => drop(changes.insert(coords, change)),
                _ if array.is_of_replaced(&key) => self.report_violation(path, REPLACED),
                (FileRole::Wrong(why), _) => self.report_violation(path, why),
                (FileRole::Chunk(_) | FileRole::Nothing, _) => self.out.foreign.push(ForeignChunk { place, path }),
            }
        }
        Ok(())
    }

    /// Returns the chunks of the snapshot below `place` that `directory`, which shows it, has not
    /// replaced, with relative paths.
    pub(super) async fn untouched_chunks(
        &self,
        directory: &FrozenDirectory,
        place: &TreePlace,
    ) -> Result<Vec<(TreePlace, String)>> {
        let tree = &self.base.tree;
        let top = tree.path_of(place);
        let mut found = Vec::new();
        for coords in self.chunks_below(place).await? {
            let chunk = TreePlace::Chunk(place.node(), coords);
            let path = tree.path_of(&chunk);
            let Some(rest) = path.strip_prefix(&top).map(|rest| rest.trim_start_matches('/')) else { continue };
            let first = rest.split('/').next().unwrap_or_default();
            if !rest.is_empty() && !directory.entries.contains_key(&Name::new(first.as_bytes())) {
                found.push((chunk, rest.to_owned()));
            }
        }
        Ok(found)
    }

    /// Returns true if a directory has a document, new or of the snapshot.
    fn is_node(&self, position: usize) -> Result<bool> {
        let directory = self.get(position)?;
        Ok(match directory.entries.get(&document_name()) {
            Some(entry) => matches!(entry, FrozenEntry::File(_)),
            None => directory.base_node().is_some_and(|index| self.base.tree.table().is_stored(index)),
        })
    }

    /// Checks and queues a node below an array. If a node shares the parent directory, the walk of
    /// that node queues it.
    fn nested_node(&mut self, position: usize, array: &ArrayContext, key: &str, is_shared: bool) -> Result<()> {
        let path = below(&array.path, key);
        let base_node = self.get(position)?.base_node();
        let was_there = base_node.is_some_and(|index| format!("/{}", self.base.tree.table().path(index)) == path);
        // Old repositories may have such nodes, but not below a group that has become an array.
        if !was_there || array.index.is_none() {
            self.report_violation(
                below(&path, ZARR_JSON),
                "a group or array below an array, which Zarr does not allow",
            );
        }
        if !is_shared {
            self.pending.push((position, path));
        }
        Ok(())
    }

    /// Returns true if a directory that was array `index` still shows any chunk.
    pub(super) async fn any_chunk_left(&self, position: usize, index: NodeIndex) -> Result<bool> {
        let Some(array) = self.stored_array(index, "") else { return Ok(false) };
        let mut pending = vec![(position, String::new(), true)];
        while let Some((position, relative, in_place)) = pending.pop() {
            let directory = self.get(position)?;
            let place = directory.lower.as_ref().filter(|_| in_place);
            if let Some(place) = place
                && !self.untouched_chunks(directory, place).await?.is_empty()
            {
                return Ok(true);
            }
            for (name, entry) in &directory.entries {
                let key = join_key(&relative, &name.to_string());
                match entry {
                    FrozenEntry::File(_) if matches!(array.role_of(&key), FileRole::Chunk(_)) => return Ok(true),
                    FrozenEntry::Directory(child) => {
                        let natural = place.and_then(|place| self.base.tree.child_place(place, name.text()?));
                        let in_place = natural.is_some() && natural == self.get(*child)?.lower;
                        pending.push((*child, key, in_place));
                    }
                    _ => {}
                }
            }
        }
        Ok(false)
    }
}

/// Returns true if `key`, relative to an array with this grid and encoding, names one of its
/// chunks.
pub fn is_chunk(grid: &[u32], encoding: &KeyEncoding, key: &str) -> bool {
    coords_of(encoding, grid.len(), key).is_some_and(|coords| is_in_grid(&coords, grid))
}

/// Parses `key` as coordinates in an array of `rank` dimensions, in its grid or not.
fn coords_of(encoding: &KeyEncoding, rank: usize, key: &str) -> Option<Coords> {
    let numbers = key.strip_suffix(encoding.suffix.as_str())?.split(['/', '.']).skip(encoding.prefixed.into());
    let mut coords: Coords = numbers.map(parse_number).collect::<Option<_>>()?;
    if rank == 0 {
        coords.clear();
    }
    (coords.len() == rank && encoding.key(&coords) == key).then_some(coords)
}

/// Returns true if a place is a chunk or chunk directory of array `index`.
fn is_of(place: &TreePlace, index: Option<NodeIndex>) -> bool {
    matches!(place, TreePlace::Chunk(owner, _) if Some(*owner) == index)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(grid: &[u32], encoding: KeyEncoding) -> ArrayContext {
        ArrayContext::new(icechunkfs_format::format::testing::node_id(1), "/a", None, grid.to_vec(), encoding)
    }

    fn role(array: &ArrayContext, key: &str) -> &'static str {
        match array.role_of(key) {
            FileRole::Chunk(_) => "chunk",
            FileRole::Wrong(_) => "wrong",
            FileRole::Nothing => "nothing",
        }
    }

    #[test]
    fn names_below_an_array_are_chunks_or_wrong_or_nothing() {
        let slashes = array(&[2, 3], KeyEncoding::default());
        for (key, expected) in [
            ("c/0/0", "chunk"),
            ("c/1/2", "chunk"),
            ("c/2/0", "wrong"),
            ("c/0", "wrong"),
            ("c/0/0/0", "wrong"),
            ("c/00/0", "wrong"),
            ("c/0/0.partial", "nothing"),
            ("c/x", "nothing"),
            ("0/0", "nothing"),
            ("notes.txt", "nothing"),
        ] {
            assert_eq!(role(&slashes, key), expected, "{key}");
        }
        let dots = array(&[5], KeyEncoding { prefixed: false, separator: Separator::Dot, suffix: String::new() });
        for (key, expected) in [("0", "chunk"), ("4913", "wrong"), ("0.0", "wrong"), ("c/0", "nothing")] {
            assert_eq!(role(&dots, key), expected, "{key}");
        }
        let scalar = array(&[], KeyEncoding::default());
        assert_eq!(role(&scalar, "c"), "chunk");
    }

    #[test]
    fn only_the_names_of_a_replaced_array_are_of_it() {
        let dots = KeyEncoding { prefixed: false, separator: Separator::Dot, suffix: String::new() };
        let array = ArrayContext { replaced: Some((2, KeyEncoding::default())), ..array(&[2], dots) };
        for key in ["c/0/0", "c/7/9"] {
            assert!(array.is_of_replaced(key), "{key}");
        }
        for key in [".zarr.json.swp", "old/0/0", "c/0", "c/0/0.partial", "0"] {
            assert!(!array.is_of_replaced(key), "{key}");
        }
    }
}
