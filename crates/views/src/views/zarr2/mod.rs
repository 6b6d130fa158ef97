//! The Zarr version 2 view: a snapshot for programs that do not read version 3.
//!
//! Documents are mapped ([`document`], and [`data_type`], [`codecs`], [`fill_value`],
//! [`attributes`] for its parts); chunk files are those of the native tree, by other names: the
//! directories below `c` are directly below the array. Chunks and their directories keep their
//! native inode numbers, documents have their own ([`files`]). [`catalog`] knows which nodes the
//! view has, [`listing`] lists, [`consolidated`] makes `.zmetadata` and the report.
//!
//! A node with the name of a document or of a chunk of the array that it is in is left out, and so
//! is an array that version 2 cannot have, each with all nodes below it: one array that zarr-python
//! 2 cannot open spoils the group for it.

mod attributes;
mod catalog;
mod codecs;
mod consolidated;
mod data_type;
mod document;
mod files;
mod fill_value;
mod listing;
mod numcodecs;

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::OnceCell;

use self::catalog::{Catalog, NodeForm, encoding_of};
use self::files::{DocumentFile, DocumentKind};
use self::listing::{directory, shown_size};
use super::omissions::{LEAVES_OUT, Omissions};
use super::report::{self, Report};
use super::{Sink, ViewTree, no_such, not_a_directory, part};
use crate::control_directory;
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_format::zarr::chunk_key::{Separator, parse_number};
use icechunkfs_format::zarr::{Coords, is_prefix_in_grid};
use icechunkfs_repo::reader::Data;
use icechunkfs_tree::inodes::Ino;
use icechunkfs_tree::tree::directory::Extent;
use icechunkfs_tree::tree::nodes::{NodeIndex, TreePlace};
use icechunkfs_tree::tree::{Attributes, Kind, Tree};

/// Snapshot as a hierarchy of Zarr version 2.
#[derive(Debug)]
pub struct Zarr2View {
    catalog: Arc<Catalog>,
    /// Document `.zmetadata` of the root, once a program asked for it; none if it would be too
    /// large.
    consolidated: OnceCell<Option<Bytes>>,
    report: OnceCell<Report>,
}

impl Zarr2View {
    /// Makes the view of `tree`.
    pub async fn new(tree: Arc<Tree>) -> Result<Self> {
        let catalog = Arc::new(Catalog::new(tree));
        Ok(Zarr2View { catalog, consolidated: OnceCell::new(), report: OnceCell::new() })
    }

    async fn report(&self) -> Result<&Report> {
        self.report.get_or_try_init(|| consolidated::report(&self.catalog)).await
    }

    /// Returns the document `file`; none if it does not exist.
    async fn document(&self, file: DocumentFile) -> Result<Option<Bytes>> {
        if file.kind != DocumentKind::Consolidated {
            return self.catalog.document(file).await;
        }
        if file.node != 0 || self.catalog.form(0).await?.is_none() {
            return Ok(None);
        }
        self.consolidated.get_or_try_init(|| consolidated::make(&self.catalog)).await.cloned()
    }

    async fn lookup_in(&self, parent: Ino, name: &str) -> Result<Option<Attributes>> {
        if report::is_report(parent) || (parent == Ino::ROOT && name == control_directory::NAME) {
            return Ok(self.report().await?.lookup(parent, name));
        }
        match self.place(parent)? {
            TreePlace::Directory(node) => {
                let Some(form) = self.catalog.form(node).await? else { return Ok(None) };
                if let Some(kind) = DocumentKind::from_name(name) {
                    let file = DocumentFile { node, kind };
                    let document = self.document(file).await?;
                    let size = |document: Bytes| document.len() as u64;
                    return Ok(document.map(size).map(|size| Attributes {
                        inode: file.inode(),
                        kind: Kind::File,
                        size,
                    }));
                }
                if let Some(child) = self.tree().table().child(node, name) {
                    let is_shown = self.catalog.form(child).await?.is_some();
                    // A node that is left out may have the name of a chunk.
                    if is_shown {
                        return Ok(Some(directory(self.tree().table().inode(&TreePlace::Directory(child)))));
                    }
                }
                match form {
                    NodeForm::Group => Ok(None),
                    NodeForm::Array { has_checksum } => self.lookup_chunk(node, &[], has_checksum, name).await,
                }
            }
            TreePlace::Chunk(node, prefix) if self.tree().table().is_chunk_directory(node, &prefix) => {
                self.lookup_chunk(node, &prefix, self.has_checksum(node).await?, name).await
            }
            _ => Err(not_a_directory(parent)),
        }
    }

    /// Looks up the chunk or directory of chunks `name` below `prefix`, whose place is in array
    /// `node`.
    async fn lookup_chunk(
        &self,
        node: NodeIndex,
        prefix: &[u32],
        has_checksum: bool,
        name: &str,
    ) -> Result<Option<Attributes>> {
        let Some(array) = self.tree().table().array(node) else { return Ok(None) };
        let encoding = encoding_of(array);
        let coords = match encoding.separator {
            Separator::Slash => parse_number(name).map(|number| {
                let mut coords = Coords::from_slice(prefix);
                coords.push(number);
                coords
            }),
            Separator::Dot => encoding.parse_flat(name, array.grid.len()).map(Coords::from_vec),
        };
        let Some(coords) = coords.filter(|coords| is_prefix_in_grid(coords, &array.grid)) else { return Ok(None) };
        if coords.len() < array.grid.len() {
            let place = TreePlace::Chunk(node, coords);
            return Ok(self.tree().has(&place).await?.then(|| directory(self.tree().table().inode(&place))));
        }
        self.chunk_attributes(node, coords, has_checksum).await
    }

    async fn chunk_attributes(
        &self,
        node: NodeIndex,
        coords: Coords,
        has_checksum: bool,
    ) -> Result<Option<Attributes>> {
        let Some(chunks) = self.tree().chunks(node) else { return Ok(None) };
        let Some(found) = chunks.find(&coords).await? else { return Ok(None) };
        let inode = self.tree().table().inode(&TreePlace::Chunk(node, coords));
        Ok(Some(Attributes { inode, kind: Kind::File, size: shown_size(found.known_length()?, has_checksum) }))
    }

    async fn has_checksum(&self, node: NodeIndex) -> Result<bool> {
        Ok(self.catalog.form(node).await? == Some(NodeForm::Array { has_checksum: true }))
    }

    async fn attributes_of(&self, inode: Ino) -> Result<Attributes> {
        if report::is_report(inode) {
            return self.report().await?.attributes(inode).ok_or_else(|| no_such(inode));
        }
        if let Some(file) = DocumentFile::from_inode(inode) {
            let document = self.document(file).await?.ok_or_else(|| no_such(inode))?;
            return Ok(Attributes { inode, kind: Kind::File, size: document.len() as u64 });
        }
        match self.place(inode)? {
            TreePlace::Directory(_) => Ok(directory(inode)),
            TreePlace::Metadata(_) => Err(no_such(inode)),
            TreePlace::Chunk(node, coords) if self.tree().table().is_chunk_directory(node, &coords) => {
                Ok(directory(inode))
            }
            TreePlace::Chunk(node, coords) => {
                let has_checksum = self.has_checksum(node).await?;
                self.chunk_attributes(node, coords, has_checksum).await?.ok_or_else(|| no_such(inode))
            }
        }
    }

    async fn list_in(&self, inode: Ino, offset: u64, extent: Extent, sink: &mut Sink<'_>) -> Result<()> {
        if report::is_report(inode) {
            let is_directory = self.report().await?.list(inode, offset, sink);
            return if is_directory { Ok(()) } else { Err(not_a_directory(inode)) };
        }
        match self.place(inode)? {
            TreePlace::Directory(node) => match self.catalog.form(node).await? {
                Some(form) => self.list_node(node, form, offset, extent, sink).await,
                None => Ok(()),
            },
            TreePlace::Chunk(node, prefix) if self.tree().table().is_chunk_directory(node, &prefix) => {
                let has_checksum = self.has_checksum(node).await?;
                self.list_chunks(node, &prefix, has_checksum, offset, extent, sink).await
            }
            _ => Err(not_a_directory(inode)),
        }
    }

    async fn read_from(&self, inode: Ino, offset: u64, size: u32) -> Result<Data> {
        if report::is_report(inode) {
            return self
                .report()
                .await?
                .read(inode, offset, size)
                .map(Data::Bytes)
                .ok_or_else(|| is_a_directory(inode));
        }
        if let Some(file) = DocumentFile::from_inode(inode) {
            let document = self.document(file).await?.ok_or_else(|| no_such(inode))?;
            return Ok(Data::Bytes(part(&document, offset, size)));
        }
        let TreePlace::Chunk(node, coords) = self.place(inode)? else { return Err(no_such(inode)) };
        if !self.has_checksum(node).await? || self.tree().table().is_chunk_directory(node, &coords) {
            return self.tree().read(inode, offset, size).await;
        }
        let shown = self.chunk_attributes(node, coords, true).await?.ok_or_else(|| no_such(inode))?;
        let left = u32::try_from(shown.size.saturating_sub(offset)).unwrap_or(u32::MAX);
        self.tree().read(inode, offset, size.min(left)).await
    }

    fn place(&self, inode: Ino) -> Result<TreePlace> {
        self.tree().table().place(inode).ok_or_else(|| no_such(inode))
    }
}

#[async_trait]
impl ViewTree for Zarr2View {
    fn tree(&self) -> &Arc<Tree> {
        self.catalog.tree()
    }

    async fn lookup(&self, parent: Ino, name: &str) -> Result<Option<Attributes>> {
        self.lookup_in(parent, name).await.context(|| format!("{}: `{name}`", self.describe(parent)))
    }

    async fn attributes(&self, inode: Ino) -> Result<Attributes> {
        self.attributes_of(inode).await.context(|| self.describe(inode))
    }

    async fn list(&self, inode: Ino, offset: u64, extent: Extent, sink: &mut Sink<'_>) -> Result<()> {
        self.list_in(inode, offset, extent, sink).await.context(|| self.describe(inode))
    }

    async fn read(&self, inode: Ino, offset: u64, size: u32) -> Result<Data> {
        self.read_from(inode, offset, size).await.context(|| self.describe(inode))
    }

    fn native(&self, inode: Ino) -> Option<Ino> {
        let TreePlace::Chunk(node, coords) = self.tree().table().place(inode)? else { return None };
        let is_whole = matches!(self.catalog.form_now(node), Ok(Some(NodeForm::Array { has_checksum: false })));
        (is_whole && !self.tree().table().is_chunk_directory(node, &coords)).then_some(inode)
    }

    fn omissions(&self) -> Omissions {
        let end = |node| *self.tree().table().subtree(node).end();
        let reason = |node| Some((end(node), self.catalog.reason(node).ok()?.err()?));
        let found = Omissions::find(self.tree(), LEAVES_OUT, reason);
        if found.is_any() {
            self.catalog.mark_as_warned();
        }
        found
    }

    fn describe(&self, inode: Ino) -> String {
        let table = self.tree().table();
        let join = |node, name: &str| match table.path(node).as_str() {
            "" => format!("/{name}"),
            path => format!("/{path}/{name}"),
        };
        if let Some(file) = DocumentFile::from_inode(inode) {
            return join(file.node, file.kind.name());
        }
        match table.place(inode) {
            Some(TreePlace::Chunk(node, coords)) => match table.array(node).map(encoding_of) {
                Some(encoding) => join(node, &encoding.key(&coords)),
                None => join(node, ""),
            },
            Some(TreePlace::Directory(node)) => format!("/{}", table.path(node)),
            _ => inode.to_string(),
        }
    }
}

fn is_a_directory(inode: Ino) -> Error {
    Error::new(ErrorKind::IsADirectory, format!("{inode} is a directory"))
}
