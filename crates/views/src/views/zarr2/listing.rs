//! Listings of a Zarr version 2 view, page by page, without state between pages, as
//! [`icechunkfs_tree::tree::directory`] has them.
//!
//! | offset | entry |
//! |---|---|
//! | 1, 2 | `.` and `..` |
//! | 4 + i | child i of the node |
//! | 2^60 + k | document of kind k |
//! | 2^61 + n | place n of the array's chunks |

use super::Zarr2View;
use super::catalog::{NodeForm, encoding_of};
use super::codecs::CHECKSUM;
use super::files::DocumentFile;
use crate::views::{Sink, ViewTree};
use icechunkfs_base::error::Result;
use icechunkfs_format::zarr::Coords;
use icechunkfs_format::zarr::chunk_key::Separator;
use icechunkfs_tree::inodes::Ino;
use icechunkfs_tree::tree::chunks::known;
use icechunkfs_tree::tree::directory::{Entry, Extent};
use icechunkfs_tree::tree::nodes::{NodeIndex, TreePlace};
use icechunkfs_tree::tree::{Attributes, Kind};

const DOT: u64 = 1;
const DOT_DOT: u64 = 2;
const FIRST_CHILD: u64 = 4;
const CHUNKS: u64 = 1 << 61;
/// Entries found at a time.
const PAGE: usize = 1024;

/// Returns the attributes of a directory.
pub(super) fn directory(inode: Ino) -> Attributes {
    Attributes { inode, kind: Kind::Directory, size: 0 }
}

impl Zarr2View {
    /// Lists `.` and `..`. Returns false if the sink is full.
    fn list_dots(&self, inode: Ino, parent: &TreePlace, offset: u64, sink: &mut Sink<'_>) -> bool {
        let dots = [(DOT, ".", inode), (DOT_DOT, "..", self.tree().table().inode(parent))];
        dots.into_iter()
            .filter(|(at, ..)| *at > offset)
            .all(|(at, name, inode)| sink(Entry::new(name, directory(inode), at)))
    }

    /// Lists the directory of `node`, which has `form`.
    pub(super) async fn list_node(
        &self,
        node: NodeIndex,
        form: NodeForm,
        offset: u64,
        extent: Extent,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        let table = self.tree().table();
        let inode = table.inode(&TreePlace::Directory(node));
        let parent = TreePlace::Directory(table.get(node).map_or(0, |entry| entry.parent));
        if !self.list_dots(inode, &parent, offset, sink) {
            return Ok(());
        }
        let first = usize::try_from(offset.saturating_sub(FIRST_CHILD - 1)).unwrap_or(usize::MAX);
        for (at, &child) in table.children(node).iter().enumerate().skip(first) {
            if self.catalog.form(child).await?.is_none() {
                continue;
            }
            let attributes = directory(table.inode(&TreePlace::Directory(child)));
            if !sink(Entry::new(table.name(child), attributes, FIRST_CHILD + at as u64)) {
                return Ok(());
            }
        }
        // The sizes of documents may need manifests.
        if extent == Extent::BeforeChunks {
            return Ok(());
        }
        for &kind in self.catalog.kinds(node, form).iter().filter(|kind| kind.offset() > offset) {
            let file = DocumentFile { node, kind };
            let size = match extent {
                Extent::Names => 0,
                _ => match self.document(file).await? {
                    Some(document) => document.len() as u64,
                    None => continue,
                },
            };
            let attributes = Attributes { inode: file.inode(), kind: Kind::File, size };
            if !sink(Entry::new(kind.name(), attributes, kind.offset())) {
                return Ok(());
            }
        }
        let NodeForm::Array { has_checksum } = form else { return Ok(()) };
        self.list_entries(node, &[], has_checksum, offset, sink).await
    }

    /// Lists the directory of the chunks of array `node` that begin with `prefix`.
    pub(super) async fn list_chunks(
        &self,
        node: NodeIndex,
        prefix: &[u32],
        has_checksum: bool,
        offset: u64,
        extent: Extent,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        let table = self.tree().table();
        let inode = table.inode(&TreePlace::Chunk(node, Coords::from_slice(prefix)));
        let parent = match prefix.split_last() {
            Some((_, [])) | None => TreePlace::Directory(node),
            Some((_, shorter)) => TreePlace::Chunk(node, Coords::from_slice(shorter)),
        };
        let are_chunks = table.array(node).is_some_and(|array| array.grid.len() == prefix.len() + 1);
        if !self.list_dots(inode, &parent, offset, sink) || (are_chunks && extent == Extent::BeforeChunks) {
            return Ok(());
        }
        self.list_entries(node, prefix, has_checksum, offset, sink).await
    }

    /// Lists the chunks of array `node` below `prefix`, or the directories of chunks.
    async fn list_entries(
        &self,
        node: NodeIndex,
        prefix: &[u32],
        has_checksum: bool,
        offset: u64,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        let table = self.tree().table();
        let (Some(array), Some(chunks)) = (table.array(node), self.tree().chunks(node)) else { return Ok(()) };
        let rank = array.grid.len();
        let encoding = encoding_of(array);
        let depth = match encoding.separator {
            Separator::Slash => prefix.len() + 1,
            Separator::Dot => rank,
        };
        let mut after = None;
        if offset >= CHUNKS {
            match array.at_position(offset - CHUNKS) {
                Some(coords) => after = Some(coords),
                None => return Ok(()),
            }
        }
        loop {
            let page = chunks.page(prefix, depth, after.as_deref(), PAGE).await?;
            for (coords, size) in &page {
                let name = match coords.last() {
                    Some(last) if coords.len() < rank => last.to_string(),
                    _ => encoding.file_name(coords),
                };
                let inode = table.inode(&TreePlace::Chunk(node, coords.clone()));
                let offset = CHUNKS + array.position(coords);
                let size = known(*size).map(|size| shown_size(size, has_checksum));
                let is_shown = if coords.len() < rank {
                    sink(Entry::new(&name, directory(inode), offset))
                } else {
                    sink(Entry::file(&name, inode, size, offset))
                };
                if !is_shown {
                    return Ok(());
                }
            }
            match page.last() {
                Some((last, _)) if page.len() == PAGE => after = Some(last.clone()),
                _ => return Ok(()),
            }
        }
    }
}

/// Returns the bytes of a chunk in the view.
pub(super) fn shown_size(stored: u64, has_checksum: bool) -> u64 {
    if has_checksum { stored.saturating_sub(CHECKSUM) } else { stored }
}
