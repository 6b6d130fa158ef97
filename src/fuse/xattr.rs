//! Extended attributes that tell where a file comes from: `getfattr -n user.icechunk.chunk FILE`.
//!
//! | name | value |
//! |---|---|
//! | `user.icechunk.snapshot` | id of the snapshot that the file is of; in a writable mount that of the base |
//! | `user.icechunk.ref` | ref of the mount, such as `tag v1.0` |
//! | `user.icechunk.node_id` | id of the array or group |
//! | `user.icechunk.chunk` | `native OBJECT OFFSET LENGTH`, `virtual URL OFFSET LENGTH`, `inline LENGTH`, or `uncommitted` |
//!
//! A list of a file's names has those that it has a value of, so that `getfattr -d` and
//! `tar --xattrs` show and keep them.

use icechunkfs_base::error::Result;
use icechunkfs_format::format::chunk_payload::ChunkPayload;
use icechunkfs_tree::inodes::Ino;
use icechunkfs_tree::tree::Tree;

/// Beginning of all names.
const PREFIX: &str = "user.icechunk.";

/// Extended attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Xattr {
    Snapshot,
    Ref,
    NodeId,
    Chunk,
}

impl Xattr {
    /// All attributes.
    pub(super) const ALL: [Xattr; 4] = [Xattr::Snapshot, Xattr::Ref, Xattr::NodeId, Xattr::Chunk];

    /// Returns the attribute called `name`; none for those that no file has.
    pub(super) fn named(name: &str) -> Option<Self> {
        let end = name.strip_prefix(PREFIX)?;
        Self::ALL.into_iter().find(|xattr| xattr.end() == end)
    }

    /// Adds the name to a list of names, each of which has a zero byte after it.
    pub(super) fn add_to(self, names: &mut String) {
        names.extend([PREFIX, self.end(), "\0"]);
    }

    /// Returns the name after [`PREFIX`].
    fn end(self) -> &'static str {
        match self {
            Xattr::Snapshot => "snapshot",
            Xattr::Ref => "ref",
            Xattr::NodeId => "node_id",
            Xattr::Chunk => "chunk",
        }
    }
}

/// Returns the value of `xattr` for file `inode` of `tree`, which is mounted as `reference`; none
/// if the file has none.
pub(super) async fn value(xattr: Xattr, tree: &Tree, inode: Ino, reference: &str) -> Result<Option<String>> {
    Ok(match xattr {
        Xattr::Snapshot => Some(tree.snapshot().id().to_string()),
        Xattr::Ref => Some(reference.to_owned()),
        Xattr::NodeId => tree.node_id(inode).map(|id| id.to_string()),
        Xattr::Chunk => match tree.attributes(inode).await?.kind {
            icechunkfs_tree::tree::Kind::Directory => None,
            icechunkfs_tree::tree::Kind::File => tree.stored(inode).await?.map(|payload| text(&payload)),
        },
    })
}

/// Returns the location of a chunk.
pub(super) fn text(payload: &ChunkPayload) -> String {
    match payload {
        ChunkPayload::Inline(bytes) => format!("inline {}", bytes.len()),
        ChunkPayload::Native { chunk, offset, length } => format!("native {chunk} {offset} {length}"),
        ChunkPayload::Virtual { location, offset, length, .. } => format!("virtual {location} {offset} {length}"),
    }
}
