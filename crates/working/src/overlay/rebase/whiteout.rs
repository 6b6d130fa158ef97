//! Whiteouts over another base: each hides the entries that it hid when it was made, and nothing
//! else.
//!
//! A whiteout stands for everything that the old base had under a name: whole nodes by id and,
//! where only chunks of an array were removed, those chunks by coordinates. A snapshot never
//! changes, so a name over the old base describes this exactly.

use std::collections::{HashMap, HashSet};

use crate::overlay::replace::node_id;
use icechunkfs_base::error::Result;
use icechunkfs_format::format::ids::NodeId;
use icechunkfs_format::zarr::Coords;
use icechunkfs_repo::compare::chunks::ChunkDifferences;
use icechunkfs_tree::tree::Tree;
use icechunkfs_tree::tree::nodes::{NodeIndex, TreePlace};

/// Chunks listed at once.
const PAGE: usize = 4096;

/// Visible part of a place of the new base, if the old base's place under the same name was hidden.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Visibility {
    /// Nothing is visible: all of it was there before, and hidden.
    Nothing,
    /// All is visible: nothing that was hidden is there.
    All,
    /// A part is visible.
    Some,
}

/// Comparison of two bases at the same place of the working tree.
pub(super) struct Whiteouts<'a> {
    from: &'a Tree,
    to: &'a Tree,
    /// Arrays of the old base.
    old_arrays: HashMap<NodeId, NodeIndex>,
}

/// Hidden parts of the old base.
struct HiddenKeys {
    /// Nodes with their documents and chunks.
    nodes: HashSet<NodeId>,
    /// Node of which only the document is hidden.
    document: Option<NodeId>,
    /// Array of which the chunks below some coordinates are hidden.
    chunks: Option<(NodeId, Coords)>,
}

/// Results so far.
#[derive(Default)]
struct Tally {
    hidden: bool,
    shown: bool,
}

impl Tally {
    fn is_decided(&self) -> bool {
        self.hidden && self.shown
    }
}

impl<'a> Whiteouts<'a> {
    pub(super) fn new(from: &'a Tree, to: &'a Tree) -> Self {
        let indices = (0..from.table().len()).filter_map(|at| NodeIndex::try_from(at).ok());
        let old_arrays = indices.filter_map(|index| Some((from.table().array(index)?.id, index))).collect();
        Whiteouts { from, to, old_arrays }
    }

    /// Returns the visible part of `new`, a place that exists in the new base, if everything at
    /// `old` was hidden.
    pub(super) async fn visibility(&self, old: Option<&TreePlace>, new: &TreePlace) -> Result<Visibility> {
        let Some(old) = old else { return Ok(Visibility::All) };
        let keys = self.keys_at(old);
        let mut tally = Tally::default();
        match new {
            TreePlace::Metadata(index) => {
                if let Some(id) = node_id(self.to, *index) {
                    self.document(&keys, id, &mut tally);
                }
            }
            TreePlace::Chunk(index, prefix) => self.chunks(&keys, *index, prefix, &mut tally).await?,
            TreePlace::Directory(top) => {
                for index in self.to.table().subtree(*top) {
                    if let Some(id) = node_id(self.to, index) {
                        self.document(&keys, id, &mut tally);
                    }
                    if self.to.table().array(index).is_some() && !tally.is_decided() {
                        self.chunks(&keys, index, &Coords::new(), &mut tally).await?;
                    }
                    if tally.is_decided() {
                        break;
                    }
                }
                if let Some((owner, prefix)) = self.to.table().shared_chunk_dir(*top)
                    && !tally.is_decided()
                {
                    self.chunks(&keys, *owner, prefix, &mut tally).await?;
                }
            }
        }
        Ok(match (tally.hidden, tally.shown) {
            (_, false) => Visibility::Nothing,
            (false, true) => Visibility::All,
            (true, true) => Visibility::Some,
        })
    }

    fn keys_at(&self, old: &TreePlace) -> HiddenKeys {
        let mut nodes = HashSet::new();
        let mut document = None;
        let mut chunks = None;
        match old {
            TreePlace::Metadata(index) => document = node_id(self.from, *index),
            TreePlace::Chunk(index, prefix) => {
                chunks = self.from.table().array(*index).map(|array| (array.id, prefix.clone()));
            }
            TreePlace::Directory(top) => {
                nodes.extend(self.from.table().subtree(*top).filter_map(|index| node_id(self.from, index)));
                let shared = self.from.table().shared_chunk_dir(*top);
                chunks = shared.and_then(|(owner, prefix)| Some((self.from.table().array(*owner)?.id, prefix.clone())));
            }
        }
        HiddenKeys { nodes, document, chunks }
    }

    fn document(&self, keys: &HiddenKeys, id: NodeId, tally: &mut Tally) {
        if keys.document == Some(id) || keys.nodes.contains(&id) {
            tally.hidden = true;
        } else {
            tally.shown = true;
        }
    }

    /// Examines the chunks of array `index` of the new base below `prefix`.
    async fn chunks(&self, keys: &HiddenKeys, index: NodeIndex, prefix: &Coords, tally: &mut Tally) -> Result<()> {
        let (Some(array), Some(chunks)) = (self.to.table().array(index), self.to.chunks(index)) else { return Ok(()) };
        let is_file = prefix.len() == array.grid.len();
        let any = if is_file { chunks.find(prefix).await?.is_some() } else { chunks.any_below(prefix).await? };
        if !any {
            return Ok(());
        }
        if keys.nodes.contains(&array.id) {
            // The whole node is gone or elsewhere: chunks of a concurrent commit go with it, or are
            // a conflict.
            tally.hidden = true;
            return Ok(());
        }
        let were_hidden =
            keys.chunks.as_ref().is_some_and(|(id, hidden)| *id == array.id && prefix.starts_with(hidden));
        let before = self.old_arrays.get(&array.id).and_then(|old| Some((*old, self.from.table().array(*old)?)));
        let Some((old, before)) = before.filter(|_| were_hidden) else {
            tally.shown = true;
            return Ok(());
        };
        if before.manifests == array.manifests && before.grid == array.grid {
            tally.hidden = true;
            return Ok(());
        }
        let old_chunks = self.from.chunks(old);
        let was_there = async |coords: &Coords| match &old_chunks {
            Some(chunks) => chunks.find(coords).await.map(|found| found.is_some()),
            None => Ok(false),
        };
        if is_file {
            if was_there(prefix).await? {
                tally.hidden = true
            } else {
                tally.shown = true
            }
            return Ok(());
        }
        let mut differences = ChunkDifferences::new(self.from.chunk_list(before), self.to.chunk_list(array));
        'shown: while let Some(page) = differences.page().await? {
            for chunk in page {
                if chunk.coords.starts_with(prefix) && chunk.before.is_none() {
                    tally.shown = true;
                    break 'shown;
                }
            }
        }
        let mut after: Option<Coords> = None;
        while !tally.hidden {
            let page = chunks.page(prefix, array.grid.len(), after.as_deref(), PAGE).await?;
            for (coords, _) in &page {
                if was_there(coords).await? {
                    tally.hidden = true;
                    break;
                }
            }
            match page.last() {
                Some((last, _)) if page.len() == PAGE => after = Some(last.clone()),
                _ => break,
            }
        }
        Ok(())
    }
}
