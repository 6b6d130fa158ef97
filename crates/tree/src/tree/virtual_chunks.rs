//! Virtual chunks of the arrays below a node.

use icechunkfs_base::error::{Context, Result};
use icechunkfs_format::format::chunk_payload::{Checksum, ChunkPayload};
use icechunkfs_format::zarr::Coords;

use super::Tree;
use super::nodes::NodeIndex;

/// Virtual chunk of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualChunk {
    /// Array.
    pub node: NodeIndex,
    /// Place in its grid.
    pub coords: Coords,
    /// URL of the file.
    pub location: String,
    /// Position in the file, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// Condition under which the file is unchanged.
    pub checksum: Option<Checksum>,
}

impl Tree {
    /// Calls `visit` once for each virtual chunk of `start` and of all arrays below it, and ends
    /// with its first error.
    pub async fn each_virtual(
        &self,
        start: NodeIndex,
        mut visit: impl FnMut(VirtualChunk) -> Result<()> + Send,
    ) -> Result<()> {
        for node in self.table().subtree(start) {
            let Some(chunks) = self.chunks(node) else { continue };
            let mut done = Ok(());
            let walked = chunks.each(|refs, at| {
                if done.is_err() {
                    return;
                }
                done = refs.payload(at).and_then(|payload| match payload {
                    ChunkPayload::Virtual { location, offset, length, checksum } => {
                        let coords = refs.coords(at).iter().collect();
                        visit(VirtualChunk { node, coords, location, offset, length, checksum })
                    }
                    ChunkPayload::Inline(_) | ChunkPayload::Native { .. } => Ok(()),
                });
            });
            walked.await.and(done).context(|| format!("/{}", self.table().path(node)))?;
        }
        Ok(())
    }
}
