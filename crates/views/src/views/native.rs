//! The native view: the Zarr version 3 hierarchy, byte for byte.

use std::sync::Arc;

use async_trait::async_trait;

use super::{Sink, ViewTree};
use icechunkfs_base::error::Result;
use icechunkfs_repo::reader::Data;
use icechunkfs_tree::inodes::Ino;
use icechunkfs_tree::tree::directory::Extent;
use icechunkfs_tree::tree::{Attributes, Tree};

/// Tree of a snapshot as it is stored.
#[derive(Debug)]
pub struct NativeView(pub Arc<Tree>);

#[async_trait]
impl ViewTree for NativeView {
    fn tree(&self) -> &Arc<Tree> {
        &self.0
    }

    async fn lookup(&self, parent: Ino, name: &str) -> Result<Option<Attributes>> {
        self.0.lookup(parent, name).await
    }

    async fn attributes(&self, inode: Ino) -> Result<Attributes> {
        self.0.attributes(inode).await
    }

    async fn list(&self, inode: Ino, offset: u64, extent: Extent, mut sink: &mut Sink<'_>) -> Result<()> {
        self.0.list(inode, offset, extent, &mut sink).await
    }

    async fn read(&self, inode: Ino, offset: u64, size: u32) -> Result<Data> {
        self.0.read(inode, offset, size).await
    }

    fn native(&self, inode: Ino) -> Option<Ino> {
        Some(inode)
    }

    fn describe(&self, inode: Ino) -> String {
        self.0.describe(inode)
    }
}
