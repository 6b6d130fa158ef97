//! Check of a discard: the changes elsewhere are still there.
//!
//! A discard may drop what is at or below its path, and may put moved nodes back. A chunk or a
//! document that was linked or moved to another node is a change of that node and must stay.

use std::collections::BTreeMap;

use super::changes::DetectedChanges;
use super::rebase::description;
use crate::overlay::Base;
use crate::overlay::listing::join;
use crate::overlay::replace::node_ids;
use crate::overlay::returned::Returned;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::printable;
use icechunkfs_format::format::ids::NodeId;
use icechunkfs_format::zarr::array::ArrayMetadata;
use icechunkfs_repo::commit::changes::{ChangeSet, ChunkChange, WrittenNode};
use icechunkfs_repo::compare::scope::is_below;
use icechunkfs_tree::tree::nodes::{TreePlace, ZARR_JSON};

/// Files that a commit would write, by their present paths.
type Written = BTreeMap<String, WrittenFile>;

struct WrittenFile {
    /// Present path of the node.
    node: String,
    /// Path in the base, unless the node is new.
    before: Option<String>,
    /// Bytes of a document, or description of those of a chunk.
    content: String,
}

/// Checks that all of `before` that is elsewhere than what a discard put back is in `after` too.
/// Deletions may be taken back, since files that were moved to below the path return.
pub(super) fn check_elsewhere(
    before: &DetectedChanges,
    after: &DetectedChanges,
    base: &Base,
    returned: &Returned,
) -> Result<()> {
    let written_after = written(&after.changes, base)?;
    for (path, file) in written(&before.changes, base)? {
        let is_kept = written_after.get(&path).is_some_and(|other| other.content == file.content);
        // Without a document, the files of a node are no chunks and no nodes, but they stay.
        let is_of_document = returned.document_of().is_some_and(|node| is_below(&file.node, node));
        if !is_kept && !is_of_document && !returned.may_drop(&path, file.before.as_deref()) {
            return Err(lost(&path));
        }
    }
    for moved in &before.changes.moved {
        let is_kept = after.changes.moved.iter().any(|other| other.node == moved.node && other.to == moved.to);
        if !is_kept && !returned.may_return(&moved.from, &moved.to) {
            return Err(lost(&moved.to));
        }
    }
    Ok(())
}

fn written(changes: &ChangeSet, base: &Base) -> Result<Written> {
    let tree = &base.tree;
    let ids = node_ids(&base.tree);
    let base_path = |id: &NodeId| ids.get(id).map(|index| tree.path_of(&TreePlace::Directory(*index)));
    let moved: BTreeMap<NodeId, &str> = changes.moved.iter().map(|moved| (moved.node, moved.to.as_str())).collect();
    let documents: BTreeMap<NodeId, &WrittenNode> =
        changes.created.iter().chain(&changes.updated).map(|node| (node.id, node)).collect();
    let mut files = Written::new();
    for (id, node) in &documents {
        let before = base_path(id).map(|path| join(&path, ZARR_JSON));
        let content = String::from_utf8_lossy(&node.zarr_json).into_owned();
        files.insert(join(&node.path, ZARR_JSON), WrittenFile { node: node.path.clone(), before, content });
    }
    for (id, chunks) in &changes.chunks {
        let unknown = || Error::corrupt(format!("array {id} is neither in the base nor new"));
        let index = ids.get(id);
        let array = index.and_then(|index| tree.table().array(*index));
        let (node, encoding) = match (documents.get(id), array) {
            (Some(node), _) => (node.path.clone(), ArrayMetadata::parse(&node.zarr_json)?.key_encoding),
            (None, Some(array)) => {
                let natural = base_path(id).ok_or_else(unknown)?;
                (moved.get(id).map_or(natural, |to| (*to).to_owned()), array.encoding.clone())
            }
            (None, None) => return Err(unknown()),
        };
        for (coords, change) in chunks.iter().filter(|(_, change)| !matches!(change, ChunkChange::Delete)) {
            let before = index.map(|index| tree.path_of(&TreePlace::Chunk(*index, coords.clone())));
            let content = description(change);
            files.insert(join(&node, &encoding.key(coords)), WrittenFile { node: node.clone(), before, content });
        }
    }
    Ok(files)
}

fn lost(path: &str) -> Error {
    let path = printable::line(path);
    Error::new(
        ErrorKind::Stale,
        format!(
            "{path} was moved or linked from what is discarded, and would be lost with it: commit it, move it back or \
             discard it, then discard this; nothing was changed"
        ),
    )
}
