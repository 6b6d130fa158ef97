//! Positions of all bytes of a file.

use std::borrow::Cow;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use super::btree::ChunkTree;
use super::heap::Heap;
use super::members::Members;
use super::messages::{Header, SUPERBLOCK, superblock};
use super::model::{Attribute, Dataset, FileModel, Layout};
use super::storage::{PAGE, Storage};
use super::{UNDEFINED, align, attribute, members, unsupported};
use icechunkfs_base::error::{Context, Error, Result};

/// Lowest position of data: netCDF-C 4.10 reads the first 4 MiB of a file that it opens, and the
/// kernel reads ahead by 4 MiB, twice as soon as a B-tree is read. With 8 MiB two chunks were
/// decoded for nothing.
const DATA: u64 = 12 << 20;

/// Layout of a file: its metadata, and the position of its data.
#[derive(Debug)]
pub struct Plan {
    /// Superblock, object headers and heap.
    head: Vec<u8>,
    /// B-trees by address: each begins where the one before ends.
    trees: Vec<ChunkTree>,
    /// Data by address.
    arrays: Vec<Array>,
    size: u64,
}

/// Position of the data of a dataset.
#[derive(Debug)]
struct Array {
    dataset: usize,
    address: u64,
    bytes: u64,
    chunk_bytes: u64,
    slot: u64,
}

/// Contents of a byte range of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// Metadata.
    Bytes(Cow<'a, [u8]>),
    /// This number of zeros.
    Zeros(u64),
    /// Data of a dataset.
    Data {
        /// Index of the dataset in [`FileModel::datasets`].
        dataset: usize,
        /// Number of the chunk in row-major order of the grid; 0 for contiguous data.
        chunk: u64,
        /// Position in the chunk, in bytes.
        from: u64,
        /// Length in bytes: it ends within the chunk.
        len: u64,
    },
}

impl Part<'_> {
    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Part::Bytes(bytes) => bytes.len() as u64,
            Part::Zeros(len) | Part::Data { len, .. } => *len,
        }
    }

    /// Returns whether the part has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Addresses that the headers hold: zeros while only the lengths of headers are wanted.
struct Addresses {
    /// Headers of the groups.
    groups: Vec<u64>,
    /// Headers of the datasets.
    headers: Vec<u64>,
    /// Data of the datasets.
    data: Vec<u64>,
    /// B-trees of the datasets.
    trees: Vec<u64>,
}

impl Plan {
    /// Lays out the file. Fails, naming the dataset and the attribute, for what the format cannot
    /// represent: messages over 65,535 bytes, more than 32 dimensions, chunks of 4 GiB or more,
    /// sizes over 2^63 bytes, names that are used twice.
    pub fn new(model: &FileModel) -> Result<Plan, Error> {
        let members = Members::new(model)?;
        let storages = model
            .datasets
            .iter()
            .map(|dataset| Storage::new(dataset).context(|| describe(dataset)))
            .collect::<Result<Vec<_>>>()?;
        let mut heap = Heap::new(model)?;

        // Messages have the same length whatever addresses they hold: the first pass only adds up
        // lengths.
        let count = model.datasets.len();
        let groups = vec![0; model.groups.len()];
        let mut addresses = Addresses { groups, headers: vec![0; count], data: vec![0; count], trees: vec![0; count] };
        let mut at = SUPERBLOCK;
        let mut place = |header: Vec<u8>| -> Option<u64> {
            let address = at;
            at = align(at.checked_add(header.len() as u64)?, 8)?;
            Some(address)
        };
        for index in 0..model.groups.len() {
            let address = place(group_header(index, model, &members, &addresses, &heap)?).ok_or_else(too_long)?;
            set(&mut addresses.groups, index, address);
        }
        for (index, (dataset, storage)) in model.datasets.iter().zip(&storages).enumerate() {
            let header = dataset_header(index, dataset, storage, &addresses, &heap)?;
            let address = place(header).ok_or_else(too_long).context(|| describe(dataset))?;
            set(&mut addresses.headers, index, address);
        }
        let head = heap.place(at).ok_or_else(too_long)?;

        let mut plan = Plan { head: Vec::new(), trees: Vec::new(), arrays: Vec::new(), size: head };
        plan.place_trees(model, &storages, &mut addresses)?;
        plan.place_data(model, &storages, &mut addresses)?;

        let mut bytes = superblock(plan.size, SUPERBLOCK);
        bytes.reserve_exact(usize::try_from(head).unwrap_or(0).saturating_sub(bytes.len()));
        for index in 0..model.groups.len() {
            append(&mut bytes, &group_header(index, model, &members, &addresses, &heap)?);
        }
        for (index, (dataset, storage)) in model.datasets.iter().zip(&storages).enumerate() {
            append(&mut bytes, &dataset_header(index, dataset, storage, &addresses, &heap)?);
        }
        heap.write(&mut bytes, &addresses.headers).ok_or_else(too_long)?;
        debug_assert_eq!(bytes.len() as u64, head, "both passes have the same length");
        plan.head = bytes;
        Ok(plan)
    }

    /// Checks a dataset with its attributes: if it fails, the dataset must be left out of the file.
    /// Returns the most bytes that it takes in the file. [`Plan::new`] may still fail, for what
    /// concerns the file: its length, names used twice, references.
    pub fn check_dataset(dataset: &Dataset) -> Result<u64> {
        members::check_attribute_names(&dataset.attributes)?;
        let storage = Storage::new(dataset)?;
        let mut heap = Heap::default();
        dataset.attributes.iter().try_for_each(|attribute| heap.add(&attribute.value, usize::MAX))?;
        let addresses = Addresses { groups: Vec::new(), headers: Vec::new(), data: Vec::new(), trees: Vec::new() };
        let header = dataset_header(0, dataset, &storage, &addresses, &heap)?;
        let heap = heap.place(0).ok_or_else(too_long)?;
        let tree = match &dataset.layout {
            Layout::Chunked(chunk) if storage.chunks > 0 => {
                ChunkTree::new(&storage, chunk, 0).ok_or_else(too_long)?.end
            }
            _ => 0,
        };
        let parts = [header.len() as u64, heap, tree, storage.bytes, 2 * PAGE];
        let length = parts.into_iter().try_fold(0, u64::checked_add);
        length.filter(|&length| i64::try_from(length).is_ok()).ok_or_else(too_long)
    }

    /// Checks an attribute: if it fails, the attribute must be left out of the file.
    pub fn check_attribute(attribute: &Attribute) -> Result<()> {
        let mut heap = Heap::default();
        heap.add(&attribute.value, usize::MAX)?;
        let mut header = Header::group(0, 1)?;
        add_attributes(&mut header, std::slice::from_ref(attribute), &heap, &[])
    }

    fn place_trees(&mut self, model: &FileModel, storages: &[Storage], addresses: &mut Addresses) -> Result<()> {
        let mut at = align(self.size, PAGE).ok_or_else(too_long)?;
        for (index, (dataset, storage)) in model.datasets.iter().zip(storages).enumerate() {
            let address = match &dataset.layout {
                Layout::Chunked(chunk) if storage.chunks > 0 => {
                    let tree = ChunkTree::new(storage, chunk, at).ok_or_else(too_long).context(|| describe(dataset))?;
                    (at, self.size) = (tree.end, tree.end);
                    let address = tree.address;
                    self.trees.push(tree);
                    address
                }
                _ => UNDEFINED,
            };
            set(&mut addresses.trees, index, address);
        }
        Ok(())
    }

    fn place_data(&mut self, model: &FileModel, storages: &[Storage], addresses: &mut Addresses) -> Result<()> {
        let mut trees = self.trees.iter_mut();
        let mut at = self.size.max(DATA);
        for (index, (dataset, storage)) in model.datasets.iter().zip(storages).enumerate() {
            if storage.chunks == 0 {
                set(&mut addresses.data, index, UNDEFINED);
                continue;
            }
            let address = align(at, PAGE);
            let end = address.and_then(|address| address.checked_add(storage.bytes));
            let (Some(address), Some(end)) = (address, end.filter(|&end| i64::try_from(end).is_ok())) else {
                return Err(too_long().context(describe(dataset)));
            };
            if matches!(dataset.layout, Layout::Chunked(_))
                && let Some(tree) = trees.next()
            {
                tree.set_data(address);
            }
            let &Storage { bytes, chunk_bytes, slot, .. } = storage;
            self.arrays.push(Array { dataset: index, address, bytes, chunk_bytes, slot });
            set(&mut addresses.data, index, address);
            (at, self.size) = (end, end);
        }
        Ok(())
    }

    /// Returns a number that another layout of the file has not, but for one in 2^64.
    pub(in super::super) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.head, self.size).hash(&mut hasher);
        hasher.finish()
    }

    /// Returns the length of the file in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the bytes of the metadata, without B-trees, which are computed.
    pub fn head_bytes(&self) -> u64 {
        self.head.len() as u64
    }

    /// Returns the number of bytes that the plan keeps in memory.
    pub fn memory(&self) -> usize {
        let trees =
            self.trees.capacity() * size_of::<ChunkTree>() + self.trees.iter().map(ChunkTree::memory).sum::<usize>();
        size_of::<Plan>() + self.head.capacity() + trees + self.arrays.capacity() * size_of::<Array>()
    }

    /// Describes the bytes from `offset` on: at most `len`, one part at a time. The part is empty
    /// only at the end of the file or if `len` is 0. Takes O(log datasets).
    pub fn part(&self, offset: u64, len: u64) -> Part<'_> {
        let len = len.min(self.size.saturating_sub(offset));
        if len == 0 {
            return Part::Zeros(0);
        }
        if let Some(rest) = usize::try_from(offset).ok().and_then(|offset| self.head.get(offset..))
            && !rest.is_empty()
        {
            return Part::Bytes(Cow::Borrowed(prefix(rest, len)));
        }
        let tree = self.trees.partition_point(|tree| tree.end <= offset);
        if let Some(tree) = self.trees.get(tree) {
            let Some((node, from)) = tree.node_at(offset) else {
                return Part::Zeros(len.min(tree.address.saturating_sub(offset)));
            };
            return Part::Bytes(Cow::Owned(prefix(node.get(from..).unwrap_or_default(), len).to_vec()));
        }
        let next = self.arrays.partition_point(|array| array.address <= offset);
        match next.checked_sub(1).and_then(|array| self.arrays.get(array)) {
            Some(array) if offset - array.address < array.bytes => array.part(offset - array.address, len),
            _ => {
                let end = self.arrays.get(next).map_or(self.size, |array| array.address);
                Part::Zeros(len.min(end.saturating_sub(offset)))
            }
        }
    }
}

impl Array {
    /// Describes data from byte `offset` of the array on.
    fn part(&self, offset: u64, len: u64) -> Part<'static> {
        let len = len.min(self.bytes.saturating_sub(offset));
        let (chunk, from) = match self.slot {
            0 => (0, 0),
            slot => (offset / slot, offset % slot),
        };
        match self.chunk_bytes.checked_sub(from) {
            None | Some(0) => Part::Zeros(len.min(self.slot.saturating_sub(from))),
            Some(left) => Part::Data { dataset: self.dataset, chunk, from, len: len.min(left) },
        }
    }
}

fn prefix(bytes: &[u8], len: u64) -> &[u8] {
    usize::try_from(len).ok().and_then(|len| bytes.get(..len)).unwrap_or(bytes)
}

fn set(addresses: &mut [u64], index: usize, address: u64) {
    if let Some(entry) = addresses.get_mut(index) {
        *entry = address;
    }
}

/// Appends a header and pads to a multiple of 8.
fn append(bytes: &mut Vec<u8>, header: &[u8]) {
    bytes.extend_from_slice(header);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
}

fn too_long() -> Error {
    unsupported("the file would be longer than 2^63 bytes")
}

pub(super) fn describe(dataset: &Dataset) -> String {
    format!("dataset `{}`", dataset.name)
}

fn group_header(
    index: usize,
    model: &FileModel,
    members: &Members,
    addresses: &Addresses,
    heap: &Heap<'_>,
) -> Result<Vec<u8>> {
    let attributes = model.groups.get(index).map(|group| group.attributes.as_slice()).unwrap_or_default();
    let make = || {
        let datasets = members.datasets(index);
        let groups = members.groups(index);
        let mut header = Header::group(datasets.len().saturating_add(groups.len()), attributes.len())?;
        let datasets =
            datasets.iter().filter_map(|at| Some((&model.datasets.get(*at)?.name, addresses.headers.get(*at)?)));
        let groups = groups.iter().filter_map(|at| Some((&model.groups.get(*at)?.name, addresses.groups.get(*at)?)));
        for (order, (name, address)) in datasets.chain(groups).enumerate() {
            header.link(order, name, *address).context(|| format!("link `{name}`"))?;
        }
        add_attributes(&mut header, attributes, heap, &addresses.headers)?;
        header.finish()
    };
    make().context(|| members::describe_group(model, index))
}

fn dataset_header(
    index: usize,
    dataset: &Dataset,
    storage: &Storage,
    addresses: &Addresses,
    heap: &Heap<'_>,
) -> Result<Vec<u8>> {
    let address = |list: &[u64]| list.get(index).copied().unwrap_or(UNDEFINED);
    let header = || {
        let mut header = Header::dataset(dataset, storage, address(&addresses.data), address(&addresses.trees))?;
        add_attributes(&mut header, &dataset.attributes, heap, &addresses.headers)?;
        header.finish()
    };
    header().context(|| describe(dataset))
}

fn add_attributes(header: &mut Header, attributes: &[Attribute], heap: &Heap<'_>, headers: &[u64]) -> Result<()> {
    for attribute in attributes {
        attribute::encode(attribute, heap, headers)
            .and_then(|message| header.attribute(&message))
            .context(|| format!("attribute `{}`", attribute.name))?;
    }
    Ok(())
}
