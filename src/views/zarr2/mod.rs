//! The Zarr version 2 view.

use std::sync::Arc;

use async_trait::async_trait;

use super::{Sink, ViewTree};
use crate::error::Result;
use crate::reader::Data;
use crate::tree::directory::Extent;
use crate::tree::{Attributes, Tree};

/// Snapshot as a hierarchy of Zarr version 2.
#[derive(Debug)]
pub struct Zarr2View {
    tree: Arc<Tree>,
}

impl Zarr2View {
    /// Makes the view of `tree`.
    pub async fn new(tree: Arc<Tree>) -> Result<Self> {
        Ok(Zarr2View { tree })
    }
}

#[async_trait]
impl ViewTree for Zarr2View {
    fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    async fn lookup(&self, parent: u64, name: &str) -> Result<Option<Attributes>> {
        self.tree.lookup(parent, name).await
    }

    async fn attributes(&self, inode: u64) -> Result<Attributes> {
        self.tree.attributes(inode).await
    }

    async fn list(&self, inode: u64, offset: u64, extent: Extent, mut sink: &mut Sink<'_>) -> Result<()> {
        self.tree.list(inode, offset, extent, &mut sink).await
    }

    async fn read(&self, inode: u64, offset: u64, size: u32) -> Result<Data> {
        self.tree.read(inode, offset, size).await
    }

    fn native(&self, inode: u64) -> Option<u64> {
        Some(inode)
    }

    fn describe(&self, inode: u64) -> String {
        self.tree.describe(inode)
    }
}
