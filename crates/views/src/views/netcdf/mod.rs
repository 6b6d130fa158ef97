//! The NetCDF view: one NetCDF-4 (HDF5) file for each group with arrays, made while it is read.
//!
//! The layout of a file follows from the `zarr.json` of its arrays alone: its header is made in
//! memory when the file is first looked at, the nodes of its B-trees are computed from their
//! addresses, and its data are the decoded chunks of the arrays. So a byte range costs only the
//! chunks that it touches. [`hdf5`] lays files out, [`group`] describes a group as one,
//! [`variable`] an array, [`decode`] has the codecs, [`chunks`] the decoded chunks, [`partition`]
//! those that are cut from stored ones.
//!
//! Files are read-only and never change. The file of group `a/b` is `a/b.nc`, beside the group's
//! directory, that of the root `REPOSITORY.nc`; directories show only groups that have subgroups.
//! With nested groups there is one file, that of the root, which has the others in it. What is left
//! out, renamed or widened is listed in the report (`.icechunk/netcdf`) and counted once in the
//! log; a bad array never spoils its file.

mod access;
mod assembly;
mod attribute_values;
mod attributes;
mod chunks;
mod data_type;
mod datasets;
mod decode;
mod decoders;
mod dimensions;
mod document;
mod file_chunks;
mod fill_value;
mod group;
mod growing_unit;
pub mod hdf5;
mod layouts;
mod look;
mod members;
mod names;
mod own_attributes;
mod partition;
mod processors;
mod record_dimension;
mod rows;
mod stored;
mod times;
pub mod values;
mod variable;

use std::num::NonZeroUsize;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use lru::LruCache;
use parking_lot::Mutex;
use tokio::sync::OnceCell;
use tracing::warn;

use self::document::may_have_attributes;
use self::file_chunks::FilePlace;
use self::group::GroupFile;
use self::hdf5::plan::Part;
use self::layouts::Layout;
use self::look::Obstacle;
use self::variable::Variable;
use super::omissions::{LEAVES_OUT, Omissions};
use super::options::NetcdfOptions;
use super::report::{self, Finding, Report};
use super::{Sink, ViewTree, no_such, not_a_directory};
use crate::control_directory;
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::memory::{self, Reservation};
use icechunkfs_format::zarr::document as zarr_document;
use icechunkfs_repo::reader::Data;
use icechunkfs_repo::reader::buffer::BUFFER_SIZE;
use icechunkfs_tree::inodes::{Ino, VIEW};
use icechunkfs_tree::tree::directory::{Entry, Extent};
use icechunkfs_tree::tree::nodes::{MAX_NAME, NodeIndex, TreePlace};
use icechunkfs_tree::tree::{Attributes, Kind, Tree};

/// Name of the view, and of its report.
pub const NAME: &str = "netcdf";
/// Files whose headers are kept.
const KEPT: NonZeroUsize = NonZeroUsize::new(256).unwrap();
/// Bytes of the repository's name that name the root's file: room is left for the suffix, and to
/// tell it from groups.
const MAX_ROOT_NAME: usize = 200;
/// Offsets in a listing: the dots, the root's own file, and two for each child.
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;
const OWN_FILE: u64 = 3;
const FIRST_CHILD: u64 = 4;

/// Zeros as long as the largest read of the kernel: libraries read megabytes of the room between a
/// header and the data.
static ZEROS: [u8; BUFFER_SIZE] = [0; BUFFER_SIZE];

/// Snapshot as NetCDF files.
#[derive(Debug)]
pub struct NetcdfView {
    tree: Arc<Tree>,
    options: NetcdfOptions,
    /// Name of the root's file.
    root_name: String,
    files: Mutex<LruCache<NodeIndex, Arc<OnceCell<GroupFile>>>>,
    report: OnceCell<Report>,
}

impl NetcdfView {
    /// Makes the view of `tree`; the file of the root group is called `name`.nc.
    pub fn new(tree: Arc<Tree>, name: &str, options: NetcdfOptions) -> Self {
        let name: String = name.chars().map(|c| if c == '/' || c.is_control() { '_' } else { c }).collect();
        let name = name.get(..name.floor_char_boundary(MAX_ROOT_NAME)).unwrap_or_default();
        let name = if name.is_empty() || name.starts_with('.') { "root" } else { name };
        let mut root_name = format!("{name}.nc");
        // Groups keep their names.
        let is_group =
            |name: &str| tree.table().children(0).iter().any(|child| is_named(tree.table().name(*child), name));
        while !options.nested_groups && is_group(&root_name) {
            root_name.insert(0, '_');
        }
        NetcdfView { tree, options, root_name, files: Mutex::new(LruCache::new(KEPT)), report: OnceCell::new() }
    }

    fn is_array(&self, node: NodeIndex) -> bool {
        self.tree.table().array(node).is_some()
    }

    /// Returns true if `node` has nodes below it, or may have: anything but a plain array.
    fn is_group(&self, node: NodeIndex) -> bool {
        !self.is_array(node) || !self.tree.table().children(node).is_empty()
    }

    /// Returns true if `node` has a file: a group with arrays, an array with arrays below it, or of
    /// nested groups the root.
    fn has_file(&self, node: NodeIndex) -> bool {
        if self.options.nested_groups {
            return node == 0;
        }
        let has_arrays = || self.tree.table().children(node).iter().any(|child| self.is_array(*child));
        (node == 0 && self.is_array(0)) || has_arrays()
    }

    /// Returns true if `node` shows as a directory.
    fn is_directory(&self, node: NodeIndex) -> bool {
        let has_groups = || self.tree.table().children(node).iter().any(|child| self.is_group(*child));
        node == 0 || (!self.options.nested_groups && has_groups())
    }

    fn directory(&self, node: NodeIndex) -> Attributes {
        let inode = self.tree.table().inode(&TreePlace::Directory(node));
        Attributes { inode, kind: Kind::Directory, size: 0 }
    }

    fn directory_node(&self, inode: Ino) -> Option<NodeIndex> {
        match self.tree.table().place(inode)? {
            TreePlace::Directory(node) if self.is_directory(node) => Some(node),
            _ => None,
        }
    }

    fn file_node(&self, inode: Ino) -> Option<NodeIndex> {
        let node = NodeIndex::try_from(VIEW.position(inode)?).ok()?;
        self.has_file(node).then_some(node)
    }

    /// Returns the child of `parent` whose file is called `name`.
    fn file_of(&self, parent: NodeIndex, name: &str) -> Option<NodeIndex> {
        if parent == 0 && name == self.root_name {
            return Some(0).filter(|root| self.has_file(*root));
        }
        let child = self.tree.table().child(parent, name.strip_suffix(".nc")?)?;
        self.has_file(child).then_some(child)
    }

    async fn file_attributes(&self, node: NodeIndex) -> Result<Attributes> {
        let file = self.file(node).await?;
        let size = file.get().map_or(0, |file| file.plan.size());
        Ok(Attributes { inode: VIEW.at(node.into()), kind: Kind::File, size })
    }

    /// Returns the entry of a file in a listing. Its size needs its header, which names do not. A
    /// file that cannot be made is listed all the same, without a size: looking at it gives the
    /// reason.
    async fn entry<'a>(&self, node: NodeIndex, name: &'a str, offset: u64, extent: Extent) -> Entry<'a> {
        let size = match extent {
            Extent::Names => None,
            _ => self.file_attributes(node).await.ok().map(|attributes| attributes.size),
        };
        Entry::file(name, VIEW.at(node.into()), size, offset)
    }

    /// Returns the file of `node`, made if it is not kept.
    async fn file(&self, node: NodeIndex) -> Result<Arc<OnceCell<GroupFile>>> {
        let cell = Arc::clone(self.files.lock().get_or_insert(node, Arc::default));
        cell.get_or_try_init(|| async {
            let name = self.file_path(node);
            let file = GroupFile::make(&self.tree, node, &name, &self.options).await?;
            let layout = Layout::of(self.tree.snapshot().id(), node, &name, &self.options);
            layout.check(&file.plan).context(|| &name)?;
            if !file.findings.is_empty() {
                let count = file.findings.len();
                warn!("{name}: {count} changes against the arrays; .icechunk/{NAME} lists what is left out or renamed");
            }
            Ok::<_, Error>(file)
        })
        .await?;
        Ok(cell)
    }

    fn file_path(&self, node: NodeIndex) -> String {
        match node {
            0 => format!("/{}", self.root_name),
            _ => format!("/{}.nc", self.tree.table().path(node)),
        }
    }

    async fn report(&self) -> Result<&Report> {
        let make = || async {
            let mut findings = report::nodes_with_long_names(&self.tree);
            for node in 0..self.tree.table().len() as NodeIndex {
                if !self.has_file(node) {
                    findings.extend(self.lost_attributes(node));
                    continue;
                }
                if let Some(reason) = self.tree.table().get(node).and_then(|it| self.obstacle(it.parent, node)) {
                    let path = self.file_path(node);
                    let deed = "left out".to_owned();
                    findings.push(Finding { path, deed, reason: reason.to_owned() });
                    continue;
                }
                match self.file(node).await {
                    Ok(file) => findings.extend(file.get().into_iter().flat_map(|file| file.findings.iter().cloned())),
                    // The report is kept: it must not say for good what is so now. A file that is
                    // too large for the memory stays so.
                    Err(error) if error.is_of_access() && error.kind() != ErrorKind::OutOfMemory => return Err(error),
                    Err(error) => {
                        let path = self.file_path(node);
                        let deed = "left out".to_owned();
                        findings.push(Finding { path, deed, reason: error.to_string() });
                    }
                }
            }
            Ok(Report::new(NAME, &findings))
        };
        self.report.get_or_try_init(make).await
    }

    /// Returns a finding if `node` is a group whose attributes no file has.
    fn lost_attributes(&self, node: NodeIndex) -> Option<Finding> {
        if self.options.nested_groups || self.is_array(node) {
            return None;
        }
        may_have_attributes(self.tree.zarr_json(node)?).then(|| Finding {
            path: format!("/{}", self.tree.table().path(node)),
            deed: "attributes left out".to_owned(),
            reason: "the group does not have arrays, so it does not have a file".to_owned(),
        })
    }

    /// Returns the reason why directory `parent` cannot show the file of `node`.
    fn obstacle(&self, parent: NodeIndex, node: NodeIndex) -> Option<&'static str> {
        let name = if node == 0 { self.root_name.clone() } else { format!("{}.nc", self.tree.table().name(node)) };
        if name.len() > MAX_NAME {
            return Some("the name of its file would have more than 255 bytes");
        }
        let other = self.tree.table().child(parent, &name).filter(|other| self.is_directory(*other));
        other.map(|_| "a group has the name of its file")
    }

    /// Returns the reason why no file has the array `node`, as far as its document tells; none for
    /// groups.
    fn reason(&self, node: NodeIndex) -> Option<String> {
        let table = self.tree.table();
        table.array(node)?;
        if node != 0 && members::is_below_array(table, node) && self.options.nested_groups {
            return Some(members::BELOW_ARRAY.to_owned());
        }
        let file = if self.options.nested_groups { 0 } else { table.get(node)?.parent };
        let above = table.get(file)?.parent;
        if let Some(reason) = self.obstacle(above, file) {
            return Some(reason.to_owned());
        }
        if node != 0 && names::allowed_member(table.name(node)).is_none() {
            return Some(members::LONG_NAME.to_owned());
        }
        // A lack of memory is no reason.
        let _held = zarr_document::reserve_members(self.tree.zarr_json(node)?).ok()?;
        let parsed = Variable::parse(&self.tree, node, self.options.classic_types);
        let checked = parsed.and_then(|(variable, _)| look::check(&variable).map_err(Obstacle::from));
        let Err(Obstacle::OfArray(reason)) = checked else { return None };
        Some(members::shortened(&reason).into_owned())
    }

    async fn read_file(&self, node: NodeIndex, offset: u64, size: u32) -> Result<Bytes> {
        let cell = self.file(node).await?;
        let Some(file) = cell.get() else { return Ok(Bytes::new()) };
        let end = offset.saturating_add(u64::from(size)).min(file.plan.size());
        let mut read = Vec::new();
        let mut at = offset;
        while at < end {
            let left = end - at;
            match file.plan.part(at, left) {
                Part::Zeros(count) if at == offset && count >= left && left <= ZEROS.len() as u64 => {
                    return Ok(Bytes::from_static(ZEROS.get(..left as usize).unwrap_or_default()));
                }
                Part::Bytes(bytes) => joined(&mut read, left).extend_from_slice(&bytes),
                Part::Zeros(count) => {
                    let end = read.len() + count.min(left) as usize;
                    joined(&mut read, left).resize(end, 0);
                }
                Part::Data { dataset, chunk, from, len } => {
                    let units = file.units.get(dataset).and_then(Option::as_ref);
                    let units =
                        units.ok_or_else(|| Error::new(ErrorKind::Io, "data of a dimension without variable"))?;
                    let place = FilePlace::new(&units.variable, chunk, from);
                    let from = place.from;
                    let len = len.min(units.variable.shown_bytes().saturating_sub(from));
                    match units.read(&self.tree, &place, len).await? {
                        Some(bytes) if read.is_empty() && at + len == end => return Ok(bytes),
                        Some(bytes) => joined(&mut read, left).extend_from_slice(&bytes),
                        None => fill(joined(&mut read, left), &units.variable.shown_fill, from, len),
                    }
                }
            }
            let now = offset + read.len() as u64;
            if now <= at {
                return Err(Error::new(ErrorKind::Io, format!("no bytes at offset {at}")));
            }
            at = now;
        }
        Ok(memory::recycled(read, Reservation::default()))
    }
}

/// Returns the buffer of an answer that has several parts; the first one makes it long enough for
/// all `left` bytes.
fn joined(read: &mut Vec<u8>, left: u64) -> &mut Vec<u8> {
    if read.capacity() == 0 {
        *read = memory::large_buffer(left as usize);
    }
    read
}

/// Appends `length` bytes of repeated `element`, from byte `from` on.
fn fill(read: &mut Vec<u8>, element: &[u8], from: u64, length: u64) {
    let start = from.checked_rem(element.len() as u64).unwrap_or(0) as usize;
    read.extend(element.iter().copied().cycle().skip(start).take(length as usize));
}

#[async_trait]
impl ViewTree for NetcdfView {
    fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    async fn lookup(&self, parent: Ino, name: &str) -> Result<Option<Attributes>> {
        if report::is_report(parent) || (parent == Ino::ROOT && name == control_directory::NAME) {
            return Ok(self.report().await?.lookup(parent, name));
        }
        let node = self.directory_node(parent).ok_or_else(|| not_a_directory(parent))?;
        if let Some(child) = self.tree.table().child(node, name).filter(|child| self.is_directory(*child)) {
            return Ok(Some(self.directory(child)));
        }
        match self.file_of(node, name) {
            Some(file) => self.file_attributes(file).await.map(Some).context(|| self.file_path(file)),
            None => Ok(None),
        }
    }

    async fn attributes(&self, inode: Ino) -> Result<Attributes> {
        if let Some(node) = self.file_node(inode) {
            return self.file_attributes(node).await.context(|| self.file_path(node));
        }
        if report::is_report(inode) {
            return self.report().await?.attributes(inode).ok_or_else(|| no_such(inode));
        }
        self.directory_node(inode).map(|node| self.directory(node)).ok_or_else(|| no_such(inode))
    }

    async fn list(&self, inode: Ino, offset: u64, extent: Extent, sink: &mut Sink<'_>) -> Result<()> {
        if report::is_report(inode) {
            return if self.report().await?.list(inode, offset, sink) { Ok(()) } else { Err(not_a_directory(inode)) };
        }
        let node = self.directory_node(inode).ok_or_else(|| not_a_directory(inode))?;
        let table = self.tree.table();
        let parent = table.get(node).map_or(0, |it| it.parent);
        for (at, name, node) in [(DOT, ".", node), (DOT_DOT, "..", parent)] {
            if at > offset && !sink(Entry::new(name, self.directory(node), at)) {
                return Ok(());
            }
        }
        let has_own_file = node == 0 && offset < OWN_FILE && self.has_file(0) && self.obstacle(0, 0).is_none();
        if has_own_file && !sink(self.entry(0, &self.root_name, OWN_FILE, extent).await) {
            return Ok(());
        }
        let first = (offset.saturating_sub(FIRST_CHILD - 1) / 2) as usize;
        for (at, &child) in table.children(node).iter().enumerate().skip(first) {
            let at = FIRST_CHILD + 2 * at as u64;
            if at > offset && self.is_directory(child) {
                let entry = Entry::new(table.name(child), self.directory(child), at);
                if !sink(entry) {
                    return Ok(());
                }
            }
            if at + 1 > offset && self.has_file(child) && self.obstacle(node, child).is_none() {
                let name = format!("{}.nc", table.name(child));
                if !sink(self.entry(child, &name, at + 1, extent).await) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    async fn read(&self, inode: Ino, offset: u64, size: u32) -> Result<Data> {
        match self.file_node(inode) {
            Some(node) => self.read_file(node, offset, size).await.map(Data::Bytes).context(|| self.file_path(node)),
            None if report::is_report(inode) => {
                self.report().await?.read(inode, offset, size).map(Data::Bytes).ok_or_else(|| no_such(inode))
            }
            None => Err(no_such(inode)),
        }
    }

    fn allocated(&self, inode: Ino) -> Option<u64> {
        let node = self.file_node(inode)?;
        self.files.lock().peek(&node)?.get().map(|file| file.allocated)
    }

    fn is_read_in_parts(&self) -> bool {
        true
    }

    fn native(&self, _inode: Ino) -> Option<Ino> {
        None
    }

    fn omissions(&self) -> Omissions {
        Omissions::find(&self.tree, LEAVES_OUT, |node| Some((node, self.reason(node)?)))
    }

    fn describe(&self, inode: Ino) -> String {
        match self.file_node(inode) {
            Some(node) => self.file_path(node),
            None => self.tree.describe(inode),
        }
    }
}

/// Returns true if a node called `node`, or its file, has the name `name`.
fn is_named(node: &str, name: &str) -> bool {
    node == name || name.strip_suffix(".nc") == Some(node)
}
