//! Trees whose chunk files are not the stored chunks: inner chunks of shards as chunks, or chunks
//! as inner chunks of shards.
//!
//! Such a tree is made from the stored one, with other documents and grids
//! ([`icechunkfs_format::zarr::reshard`]); names, inode numbers and listings follow from those as
//! in any tree. Only lookups differ, and only those of arrays with a [`ChunkForm`]: [`Chunks`]
//! finds inner chunks through the indexes of their shards ([`inner`]), and computes the indexes of
//! shards that do not exist ([`packed`]), which [`packed_read`] reads. Both have the same walk
//! through a directory's names ([`walk`]).
//!
//! A tree like this is read-only: a working tree is laid over stored chunks.
//!
//! [`Chunks`]: super::chunks::Chunks

pub(super) mod inner;
pub(super) mod packed;
mod packed_read;
pub(super) mod packed_stream;
#[cfg(test)]
mod tests;
mod walk;

use std::collections::HashMap;
use std::sync::Arc;

use self::inner::InnerChunks;
use self::packed::PackedChunks;
use self::packed_stream::PackedStreams;
use super::Tree;
use super::array::Array;
use super::nodes::{NodeIndex, NodeTable};
use super::numbering::Numbering;
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{Context, Result};
use icechunkfs_base::memory::{self, Meter, Reservation};
use icechunkfs_format::format::snapshot::{ArrayData, Node};
use icechunkfs_format::zarr::{document, reshard};
use icechunkfs_repo::cache::Owner;

/// Most findings that are kept.
const MAX_FINDINGS: usize = 10_000;
/// Bytes of memory that are reserved at a time.
const STEP: u64 = 1 << 20;
/// Purpose of the reserved memory, for messages.
const WHAT: &str = "the table of arrays with other chunks";

/// Other units of chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resharding {
    /// Inner chunks of shards as chunks.
    Unshard,
    /// Chunks in shards of this many chunks per dimension; for another rank, see [`reshard::pack`].
    Pack(Box<[u64]>),
}

/// Files of an array that are not its stored chunks.
#[derive(Debug)]
pub(super) enum ChunkForm {
    /// Inner chunks of the stored shards.
    Inner(InnerChunks),
    /// Shards of the stored chunks.
    Packed(PackedChunks),
}

impl ChunkForm {
    /// Returns the grid of the stored chunks.
    pub(super) fn stored_grid(&self) -> &[u32] {
        match self {
            ChunkForm::Inner(inner) => &inner.stored_grid,
            ChunkForm::Packed(packed) => &packed.stored_grid,
        }
    }
}

/// Node that is shown as stored, or with something left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReshardFinding {
    /// The node.
    pub node: NodeIndex,
    /// True if the array is shown as stored.
    pub is_stored: bool,
    /// The reason, or what is left out.
    pub reason: String,
}

/// Parts of a tree that differ from the stored one.
#[derive(Debug)]
pub struct Resharded {
    /// Documents that differ from those of the snapshot.
    documents: HashMap<NodeIndex, Box<[u8]>>,
    findings: Vec<ReshardFinding>,
    /// Number of findings beyond those that are kept.
    more: u64,
    /// Readers of made shards.
    pub(super) streams: PackedStreams,
    _memory: Reservation,
}

impl Resharded {
    /// Returns the document of `node` if it differs from the stored one.
    pub(super) fn document(&self, node: NodeIndex) -> Option<&[u8]> {
        self.documents.get(&node).map(|document| &**document)
    }

    /// Returns the nodes that are shown as stored or with something left out, and the number of
    /// those that are not kept.
    pub fn findings(&self) -> (&[ReshardFinding], u64) {
        (&self.findings, self.more)
    }

    /// Returns the reason why the array at `node` is shown as stored, if it is among those kept.
    pub fn reason(&self, node: NodeIndex) -> Option<&str> {
        // Nodes are looked at in their order.
        let first = self.findings.partition_point(|finding| finding.node < node);
        let mut own = self.findings.iter().skip(first).take_while(|finding| finding.node == node);
        own.find(|finding| finding.is_stored).map(|finding| finding.reason.as_str())
    }
}

impl Tree {
    /// Returns a tree of the same snapshot with other units of chunks.
    pub async fn reshard(self: &Arc<Self>, wanted: Resharding) -> Result<Arc<Tree>> {
        let tree = Arc::clone(self);
        blocking(move || {
            let mut resharder = Resharder::new(&wanted)?;
            let numbering = &mut Numbering::default();
            let root = tree.table().root();
            let table = NodeTable::build_resharded(tree.snapshot(), numbering, root, &mut resharder)?;
            let resharded = resharder.finish(&table)?;
            let made = Tree::new(Arc::clone(tree.snapshot()), table, Arc::clone(tree.reader()));
            Ok(Arc::new(Tree { resharded: Some(Box::new(resharded)), ..made }))
        })
        .await
    }
}

/// Maker of documents and arrays with other chunks, one node after another.
pub(super) struct Resharder<'a> {
    wanted: &'a Resharding,
    owner: Owner,
    documents: HashMap<NodeIndex, Box<[u8]>>,
    findings: Vec<ReshardFinding>,
    more: u64,
    bytes: u64,
    memory: Reservation,
}

impl<'a> Resharder<'a> {
    fn new(wanted: &'a Resharding) -> Result<Self> {
        let documents = HashMap::new();
        let findings = Vec::new();
        let owner = Owner::unique();
        let memory = memory::reserve_blocking(STEP, WHAT)?;
        Ok(Resharder { wanted, owner, documents, findings, more: 0, bytes: 0, memory })
    }

    /// Makes a group's document.
    pub(super) fn group(&mut self, node: NodeIndex, zarr_json: &[u8]) -> Result<()> {
        let held = document::reserve_members(zarr_json)?;
        let Some(document) = reshard::without_consolidated(zarr_json) else { return Ok(()) };
        drop(held);
        self.add(node, false, "consolidated metadata left out: it describes chunks as stored".to_owned());
        self.keep(node, document)
    }

    /// Makes an array, and its document if it differs from the stored one.
    pub(super) fn array(&mut self, index: NodeIndex, node: &Node<'_>, data: &ArrayData<'_>) -> Result<Array> {
        let Node { id, path, zarr_json, .. } = *node;
        let stored = Array::new(path, id, zarr_json, data)?;
        let mut room = document::reserve_members(zarr_json).context(|| format!("array {path:?}"))?;
        let made = match self.wanted {
            Resharding::Unshard => self.unshard(index, zarr_json, &stored.grid, &mut room),
            Resharding::Pack(shape) => self.pack(zarr_json, shape, &stored.grid, &mut room).map(Some),
        };
        let (document, form) = match made {
            Ok(Some(made)) => made,
            Ok(None) => return Ok(stored),
            Err(reason) => {
                self.add(index, true, reason);
                return Ok(stored);
            }
        };
        drop(room);
        let mut array = Array::new(path, id, document.as_bytes(), data)?;
        if array.has_long_names && !stored.has_long_names {
            self.add(index, true, "names of its chunks would be too long".to_owned());
            return Ok(stored);
        }
        if matches!(form, ChunkForm::Packed(_)) {
            // These shards are not stored: no index of them can be read.
            array.sharding = None;
        }
        array.form = Some(Box::new(form));
        self.keep(index, document)?;
        Ok(array)
    }

    fn unshard(
        &mut self,
        node: NodeIndex,
        zarr_json: &[u8],
        grid: &[u32],
        room: &mut Meter,
    ) -> Result<Option<(String, ChunkForm)>, String> {
        let Some(made) = reshard::unshard(zarr_json, room)? else { return Ok(None) };
        for loss in made.losses {
            self.add(node, false, loss);
        }
        let inner = InnerChunks::new(grid, made.levels).ok_or("its shards have another number of dimensions")?;
        Ok(Some((made.zarr_json, ChunkForm::Inner(inner))))
    }

    fn pack(
        &self,
        zarr_json: &[u8],
        shape: &[u64],
        grid: &[u32],
        room: &mut Meter,
    ) -> Result<(String, ChunkForm), String> {
        let made = reshard::pack(zarr_json, shape, room)?;
        if grid.len() != made.per_shard.len() {
            return Err("its grid of chunks is not known".to_owned());
        }
        let packed = PackedChunks { owner: self.owner, stored_grid: grid.into(), per_shard: made.per_shard };
        Ok((made.zarr_json, ChunkForm::Packed(packed)))
    }

    fn add(&mut self, node: NodeIndex, is_stored: bool, reason: String) {
        if self.findings.len() < MAX_FINDINGS {
            self.findings.push(ReshardFinding { node, is_stored, reason });
        } else {
            self.more += 1;
        }
    }

    fn keep(&mut self, node: NodeIndex, document: String) -> Result<()> {
        self.bytes += document.len() as u64 + size_of::<(NodeIndex, Box<[u8]>)>() as u64;
        if self.bytes > self.memory.bytes() {
            self.memory.resize(self.bytes.next_multiple_of(STEP), WHAT)?;
        }
        self.documents.insert(node, document.into_bytes().into());
        Ok(())
    }

    fn finish(mut self, table: &NodeTable) -> Result<Resharded> {
        self.memory.resize(self.bytes + table.size(), WHAT)?;
        let Resharder { documents, findings, more, memory, .. } = self;
        Ok(Resharded { documents, findings, more, streams: PackedStreams::default(), _memory: memory })
    }
}
