//! Objects of a file, found by the links of its groups.
//!
//! The library can list a group, too, but fails there if it cannot parse one object of it. Here
//! each object is parsed by itself, and one that fails is left out with the reason.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use hdf5_reader::btree_v1::collect_btree_v1_leaves_storage;
use hdf5_reader::btree_v2::{BTreeV2Header, BTreeV2Record, collect_btree_v2_records_storage};
use hdf5_reader::fractal_heap::{FractalHeap, FractalHeapDirectBlockCache};
use hdf5_reader::group::Group;
use hdf5_reader::io::Cursor;
use hdf5_reader::local_heap::LocalHeap;
use hdf5_reader::messages::HdfMessage;
use hdf5_reader::messages::link::{self, LinkMessage, LinkTarget};
use hdf5_reader::messages::link_info::LinkInfoMessage;
use hdf5_reader::messages::symbol_table_msg::SymbolTableMessage;
use hdf5_reader::object_header::ObjectHeader;
use hdf5_reader::symbol_table::SymbolTableNode;
use hdf5_reader::{Dataset, Hdf5File};
use icechunkfs_base::error::{Error, Result};

use super::attributes::Attributes;
use super::storage::Widths;
use super::wrong;
use crate::plan::{MAX_NODES, Omissions};

type Parsed<T> = std::result::Result<T, hdf5_reader::error::Error>;

/// Most groups in each other.
const MAX_DEPTH: usize = 64;
/// Beginning of the names that netCDF gives to variables that are not the coordinate of the
/// dimension of their name.
const NOT_COORDINATE: &str = "_nc4_non_coord_";
/// Type of the scratch space of a symbolic link in a group of the old form (HDF5 specification,
/// "Symbol Table Entry").
const SYMBOLIC: u32 = 2;

/// Objects of a file.
pub(super) struct Objects {
    /// Groups with their paths, names with slashes between; the first one is that of the file, with
    /// an empty path.
    pub(super) groups: Vec<(String, Group)>,
    pub(super) variables: Vec<Variable>,
}

/// Dataset of a file.
pub(super) struct Variable {
    /// Names with slashes between.
    pub(super) path: String,
    /// Address of its header, by which others refer to it.
    pub(super) address: u64,
    pub(super) dataset: Dataset,
    pub(super) header: Arc<ObjectHeader>,
    /// Read once: the library parses the header again for them.
    pub(super) attributes: Attributes,
}

impl Variable {
    /// Returns the path of its group.
    pub(super) fn group(&self) -> &str {
        self.path.rsplit_once('/').map_or("", |(group, _)| group)
    }

    /// Returns its name.
    pub(super) fn name(&self) -> &str {
        self.path.rsplit_once('/').map_or(self.path.as_str(), |(_, name)| name)
    }
}

/// Finds all objects. Those that are left out are added to `omissions`.
///
/// Errors: [`icechunkfs_base::error::ErrorKind::Corrupt`] if there are too many.
pub(super) fn find(file: &Hdf5File, omissions: &mut Omissions) -> Result<Objects> {
    let root = file.root_group().map_err(wrong)?;
    let mut seen = HashMap::from([(root.address(), "/".to_owned())]);
    let mut found = Objects { groups: Vec::new(), variables: Vec::new() };
    let mut waiting = VecDeque::from([(String::new(), root)]);
    while let Some((path, group)) = waiting.pop_front() {
        let header = file.get_or_parse_header(group.address()).map_err(wrong)?;
        let shown = if path.is_empty() { "/" } else { &path };
        let links = links_of(file, &header).unwrap_or_else(|error| {
            omissions.add(|| shown.to_owned(), format!("what is below is left out: {error}"));
            Vec::new()
        });
        for Link { name, target, .. } in links {
            if name.is_empty() || name.contains(['/', '\0']) {
                omissions.add(|| shown.to_owned(), "an object is left out: its name is empty or contains a slash");
                continue;
            }
            let path = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
            let address = match target {
                LinkTarget::Hard { address } => address,
                LinkTarget::Soft { path: to } => {
                    omissions.add(|| path, format!("left out: a link to {to}"));
                    continue;
                }
                LinkTarget::External { filename, path: to } => {
                    omissions.add(|| path, format!("left out: a link to {to} in another file, {filename}"));
                    continue;
                }
            };
            if let Some(other) = seen.get(&address) {
                omissions.add(|| path, format!("left out: another name of {other}"));
                continue;
            }
            seen.insert(address, path.clone());
            if seen.len() > MAX_NODES {
                return Err(Error::corrupt(format!("more than {MAX_NODES} groups and variables")));
            }
            match object(file, &group, &name, address) {
                Ok(Object::Group(_)) if path.split('/').count() > MAX_DEPTH => {
                    omissions.add(|| path, format!("left out: more than {MAX_DEPTH} groups in each other"));
                }
                Ok(Object::Group(group)) => waiting.push_back((path, group)),
                Ok(Object::Variable(dataset, header)) => {
                    let path = renamed(path);
                    let attributes = dataset.raw_attributes().map_err(|e| e.to_string());
                    found.variables.push(Variable { path, address, dataset: *dataset, header, attributes });
                }
                Ok(Object::Type) => {}
                Err(error) => omissions.add(|| path, format!("left out: {error}")),
            }
        }
        found.groups.push((path, group));
    }
    Ok(found)
}

/// Returns the path under which netCDF shows a variable.
fn renamed(path: String) -> String {
    match path.rsplit_once('/') {
        Some((group, name)) => name.strip_prefix(NOT_COORDINATE).map(|name| format!("{group}/{name}")).unwrap_or(path),
        None => path.strip_prefix(NOT_COORDINATE).map(str::to_owned).unwrap_or(path),
    }
}

enum Object {
    Group(Group),
    Variable(Box<Dataset>, Arc<ObjectHeader>),
    /// A type with a name: what uses it has a copy.
    Type,
}

/// Parses the object with the header at `address`, called `name` in `group`.
fn object(file: &Hdf5File, group: &Group, name: &str, address: u64) -> Parsed<Object> {
    let header = file.get_or_parse_header(address)?;
    let has = |is_it: fn(&HdfMessage) -> bool| header.messages.iter().any(is_it);
    if has(|message| matches!(message, HdfMessage::DataLayout(_))) {
        Ok(Object::Variable(Box::new(group.dataset(name)?), header))
    } else if has(|message| matches!(message, HdfMessage::Datatype(_))) {
        Ok(Object::Type)
    } else {
        Ok(Object::Group(group.group(name)?))
    }
}

struct Link {
    name: String,
    target: LinkTarget,
    order: Option<u64>,
}

impl From<LinkMessage> for Link {
    fn from(message: LinkMessage) -> Self {
        Link { name: message.name, target: message.target, order: message.creation_order }
    }
}

/// Returns the links of a group: in the order in which they were made if that is known, which is
/// the one of netCDF, otherwise by name.
fn links_of(file: &Hdf5File, header: &ObjectHeader) -> Parsed<Vec<Link>> {
    let mut links: Vec<Link> = Vec::new();
    for message in &header.messages {
        match message {
            HdfMessage::SymbolTable(table) => links.extend(in_symbol_table(file, table)?),
            HdfMessage::Link(message) => links.push(message.clone().into()),
            HdfMessage::LinkInfo(info) => links.extend(in_heap(file, info)?),
            _ => {}
        }
    }
    if links.iter().all(|link| link.order.is_some()) {
        links.sort_by_key(|link| link.order);
    } else {
        links.sort_by(|one, other| one.name.cmp(&other.name));
    }
    Ok(links)
}

/// Returns the links of a group of the old form.
fn in_symbol_table(file: &Hdf5File, table: &SymbolTableMessage) -> Parsed<Vec<Link>> {
    let Widths { offset, length } = Widths::of(file);
    let storage = file.storage();
    let heap = LocalHeap::parse_at_storage(storage, table.heap_address, offset, length)?;
    let nodes = collect_btree_v1_leaves_storage(storage, table.btree_address, offset, length, None, &[], None)?;
    // Read once: the library reads it to its end for each name.
    let names =
        storage.read_range(heap.data_segment_address, usize::try_from(heap.data_segment_size).unwrap_or(usize::MAX))?;
    let heap = LocalHeap { data_segment_address: 0, ..heap };
    let mut links = Vec::new();
    for (_, address) in nodes {
        // A head of eight bytes with the number of entries in the last two, then the entries.
        let head = storage.read_range(address, 8)?;
        let mut cursor = Cursor::new(&head);
        cursor.set_position(6);
        let count = usize::from(cursor.read_u16_le()?);
        let entry = 2 * usize::from(offset) + 24;
        let node = storage.read_range(address, 8 + count * entry)?;
        for entry in SymbolTableNode::parse(&mut Cursor::new(&node), offset, length)?.entries {
            let name = heap.get_string(entry.link_name_offset, &names)?;
            let target = if entry.cache_type == SYMBOLIC {
                let [a, b, c, d, ..] = entry.scratch;
                let path = heap.get_string(u32::from_le_bytes([a, b, c, d]).into(), &names)?;
                LinkTarget::Soft { path }
            } else {
                LinkTarget::Hard { address: entry.object_header_address }
            };
            links.push(Link { name, target, order: None });
        }
    }
    Ok(links)
}

/// Returns the links of a group that has too many for its header.
fn in_heap(file: &Hdf5File, info: &LinkInfoMessage) -> Parsed<Vec<Link>> {
    let Widths { offset, length } = Widths::of(file);
    if Cursor::is_undefined_offset(info.fractal_heap_address, offset) {
        return Ok(Vec::new());
    }
    let storage = file.storage();
    let heap = FractalHeap::parse_at_storage(storage, info.fractal_heap_address, offset, length)?;
    let index = BTreeV2Header::parse_at_storage(storage, info.btree_name_index_address, offset, length)?;
    let records = collect_btree_v2_records_storage(storage, &index, offset, length, None, &[], None)?;
    let mut cache = FractalHeapDirectBlockCache::default();
    let mut links = Vec::new();
    for record in records {
        let (BTreeV2Record::LinkNameHash { heap_id, .. } | BTreeV2Record::CreationOrder { heap_id, .. }) = record
        else {
            continue;
        };
        let bytes = heap.get_object_storage_cached(&heap_id, storage, offset, length, &mut cache)?;
        links.push(link::parse(&mut Cursor::new(&bytes), offset, length, bytes.len())?.into());
    }
    Ok(links)
}
