//! The needs of metadata files: the manifests of a snapshot, and the chunk objects of a manifest.

use std::collections::HashSet;

use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_format::format::MAX_FILE;
use icechunkfs_format::format::chunk_payload::ChunkPayload;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::manifest::{Manifest, PayloadKind};
use icechunkfs_format::format::snapshot::{NodeData, Snapshot};

use super::MAX_SNAPSHOT;

/// Part of a chunk object: id, offset and length in bytes.
pub type Part = (ObjectId, u64, u64);

/// Returns the manifests that `file`, snapshot `id`, needs: those that it lists and, in case the
/// list is wrong, those that its arrays name.
///
/// Fails with [`ErrorKind::Unsupported`] for a node of unknown kind, whose needs are not known.
pub fn manifests_in(id: ObjectId, file: &[u8]) -> Result<HashSet<ObjectId>> {
    manifests_of(id, &Snapshot::decode(file, MAX_SNAPSHOT)?)
}

/// Returns the manifests that `snapshot`, the file of snapshot `id`, needs, like [`manifests_in`].
pub fn manifests_of(id: ObjectId, snapshot: &Snapshot) -> Result<HashSet<ObjectId>> {
    if snapshot.id() != id {
        return Err(Error::corrupt(format!("the file states that it is snapshot {}", snapshot.id())));
    }
    let mut all: HashSet<ObjectId> = snapshot.manifests().into_iter().map(|info| info.id).collect();
    for node in snapshot.nodes() {
        match node.data {
            NodeData::Array(array) => all.extend(array.manifests().into_iter().map(|reference| reference.id)),
            NodeData::Group => {}
            NodeData::Unknown(kind) => {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    format!("{} is a node of unknown kind {kind}", node.path),
                ));
            }
        }
    }
    Ok(all)
}

/// Returns the parts of chunk objects that `file`, manifest `id`, refers to, each once and in
/// order.
pub fn chunks_in(id: ObjectId, file: &[u8]) -> Result<Vec<Part>> {
    let manifest = Manifest::decode_with_id(id, file, MAX_FILE)?;
    let mut all = Vec::new();
    for (_, refs) in manifest.iter_arrays() {
        for position in 0..refs.len() {
            // A reference that names an object and another payload counts as native.
            if refs.kind(position) == PayloadKind::Native
                && let ChunkPayload::Native { chunk, offset, length } = refs.payload(position)?
            {
                all.push((chunk, offset, length));
            }
        }
    }
    all.sort_unstable();
    all.dedup();
    Ok(all)
}
