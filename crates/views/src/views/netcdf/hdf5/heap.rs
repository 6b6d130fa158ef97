//! Global heap (HDF5 spec III.E): object references first, then texts.
//!
//! Equal objects are stored once: many attributes may point to one.

use std::collections::HashMap;
use std::hash::Hash;

use super::attribute::heap_texts;
use super::model::{FileModel, Value};
use super::{align, unsupported};
use icechunkfs_base::error::{Context, Result};

/// Maximum number of objects in a collection: their indices have 16 bits, and index 0 is the free
/// space.
const MAX_OBJECTS: usize = 65_535;
/// Minimum length of a collection in bytes.
const MIN_COLLECTION: u64 = 4096;
/// Length in bytes of the header of a collection, and of that of an object.
const PREFIX: u64 = 16;

/// Distinct objects in the order of their first use.
#[derive(Debug)]
struct Objects<T> {
    list: Vec<T>,
    positions: HashMap<T, usize>,
    /// Addresses of the collections; empty before [`Heap::place`].
    collections: Vec<u64>,
}

/// Heap of a file, with borrowed texts.
#[derive(Debug, Default)]
pub(super) struct Heap<'m> {
    references: Objects<usize>,
    texts: Objects<&'m str>,
}

impl<T> Default for Objects<T> {
    fn default() -> Self {
        Objects { list: Vec::new(), positions: HashMap::new(), collections: Vec::new() }
    }
}

impl<T: Copy + Eq + Hash> Objects<T> {
    fn add(&mut self, object: T) {
        let next = self.list.len();
        self.positions.entry(object).or_insert_with(|| {
            self.list.push(object);
            next
        });
    }

    /// Returns a pointer to `object`, of which it counts `count` elements.
    fn pointer(&self, object: T, count: u32) -> Result<[u8; 16]> {
        let position = *self.positions.get(&object).ok_or_else(|| unsupported("a value that is not in the heap"))?;
        let collection = self.collections.get(position / MAX_OBJECTS).copied().unwrap_or(0);
        let index = (position % MAX_OBJECTS) as u32 + 1;
        let mut bytes = [0; 16];
        let fields = count.to_le_bytes().into_iter().chain(collection.to_le_bytes()).chain(index.to_le_bytes());
        bytes.iter_mut().zip(fields).for_each(|(to, from)| *to = from);
        Ok(bytes)
    }

    /// Assigns addresses from `at` on and returns the end. `len` gives the length of an object.
    fn place(&mut self, mut at: u64, len: impl Fn(T) -> u64) -> Option<u64> {
        self.collections.clear();
        for objects in self.list.chunks(MAX_OBJECTS) {
            self.collections.push(at);
            at = at.checked_add(collection_len(objects, &len)?)?;
        }
        Some(at)
    }

    /// Appends the collections to `out`.
    fn write<'a>(&'a self, out: &mut Vec<u8>, bytes: impl Fn(&'a T) -> std::borrow::Cow<'a, [u8]>) -> Option<()> {
        for objects in self.list.chunks(MAX_OBJECTS) {
            let objects: Vec<_> = objects.iter().map(&bytes).collect();
            let mut left = 0_u64;
            for object in &objects {
                left = left.checked_add(object_len(object.len() as u64)?)?;
            }
            let len = left.checked_add(2 * PREFIX)?.max(MIN_COLLECTION);
            out.extend_from_slice(b"GCOL\x01\0\0\0");
            out.extend_from_slice(&len.to_le_bytes());
            for (index, object) in objects.iter().enumerate() {
                out.extend_from_slice(&(index as u64).checked_add(1)?.to_le_bytes());
                out.extend_from_slice(&(object.len() as u64).to_le_bytes());
                out.extend_from_slice(object);
                out.resize(out.len().checked_next_multiple_of(8)?, 0);
            }
            // The free space is an object with index 0 whose length includes its header.
            let free = len.checked_sub(left)?.checked_sub(PREFIX)?;
            out.extend_from_slice(&0_u64.to_le_bytes());
            out.extend_from_slice(&free.to_le_bytes());
            out.resize(out.len().checked_add(usize::try_from(free.checked_sub(PREFIX)?).ok()?)?, 0);
        }
        Some(())
    }
}

/// Returns the length of an object of `len` bytes with its header.
fn object_len(len: u64) -> Option<u64> {
    align(len, 8)?.checked_add(PREFIX)
}

fn collection_len<T: Copy>(objects: &[T], len: impl Fn(T) -> u64) -> Option<u64> {
    let mut sum = 2 * PREFIX;
    for object in objects {
        sum = sum.checked_add(object_len(len(*object))?)?;
    }
    Some(sum.max(MIN_COLLECTION))
}

/// Returns the bytes of a text: netCDF-C shows an object of length 0 as `NIL`, so the empty text is
/// a NUL.
fn text_bytes(text: &str) -> &[u8] {
    if text.is_empty() { b"\0" } else { text.as_bytes() }
}

impl<'m> Heap<'m> {
    /// Collects the references and texts of all attributes.
    pub(super) fn new(model: &'m FileModel) -> Result<Self> {
        let mut heap = Heap::default();
        let owners = model.groups.iter().map(|group| (group.name.as_str(), &group.attributes));
        let owners = owners.chain(model.datasets.iter().map(|dataset| (dataset.name.as_str(), &dataset.attributes)));
        for (owner, attributes) in owners {
            for attribute in attributes {
                heap.add(&attribute.value, model.datasets.len())
                    .context(|| format!("`{owner}`: attribute `{}`", attribute.name))?;
            }
        }
        Ok(heap)
    }

    /// Adds what a value stores in the heap; the file has `datasets` datasets.
    pub(super) fn add(&mut self, value: &'m Value, datasets: usize) -> Result<()> {
        if let Value::References(list) = value {
            for &dataset in list {
                if dataset >= datasets {
                    return Err(unsupported(format!("a reference to dataset {dataset} of {datasets}")));
                }
                self.references.add(dataset);
            }
        }
        heap_texts(value).iter().for_each(|text| self.texts.add(text));
        Ok(())
    }

    /// Assigns addresses from `at`, a multiple of 8, on. Returns the end.
    pub(super) fn place(&mut self, at: u64) -> Option<u64> {
        let texts = self.references.place(at, |_| 8)?;
        self.texts.place(texts, |text| text_bytes(text).len() as u64)
    }

    /// Appends the heap to `out`, whose length must be a multiple of 8. `headers` has the addresses
    /// of the datasets.
    pub(super) fn write(&self, out: &mut Vec<u8>, headers: &[u64]) -> Option<()> {
        self.references.write(out, |dataset| {
            headers.get(*dataset).copied().unwrap_or(super::UNDEFINED).to_le_bytes().to_vec().into()
        })?;
        self.texts.write(out, |text| text_bytes(text).into())
    }

    /// Returns a pointer to `text`.
    pub(super) fn text(&self, text: &str) -> Result<[u8; 16]> {
        let len = u32::try_from(text_bytes(text).len()).map_err(|_| unsupported("a text of 4 GiB or more"))?;
        self.texts.pointer(text, len)
    }

    /// Returns a pointer to a list of one reference to `dataset`.
    pub(super) fn reference(&self, dataset: usize) -> Result<[u8; 16]> {
        self.references.pointer(dataset, 1)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]
    use super::*;

    fn number(bytes: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
    }

    /// Follows a pointer in the heap that was written to the file's beginning.
    fn follow(file: &[u8], pointer: [u8; 16]) -> Vec<u8> {
        let collection = number(&pointer, 4) as usize;
        let index = u32::from_le_bytes(pointer[12..].try_into().unwrap());
        assert_eq!(&file[collection..collection + 8], b"GCOL\x01\0\0\0");
        let end = collection + number(file, collection + 8) as usize;
        let mut at = collection + 16;
        while at < end {
            let len = number(file, at + 8) as usize;
            if number(file, at) == u64::from(index) {
                assert!(at + 16 + len <= end);
                return file[at + 16..at + 16 + len].to_vec();
            }
            at += if number(file, at) == 0 { len } else { 16 + len.next_multiple_of(8) };
        }
        panic!("no object {index}");
    }

    #[test]
    fn objects_are_found_again_in_every_collection() -> Result<()> {
        let texts = Value::Texts((0..70_000).map(|number| format!("text {number}")).chain([String::new()]).collect());
        let references = Value::References((0..66_000).collect());
        let mut heap = Heap::default();
        for value in [&texts, &references, &texts] {
            heap.add(value, 66_000)?;
        }
        assert!(heap.add(&references, 65_999).is_err());
        let end = heap.place(0).unwrap();
        let mut file = Vec::new();
        let headers: Vec<u64> = (0..66_000).map(|number| number * 3).collect();
        heap.write(&mut file, &headers).unwrap();
        assert_eq!(file.len() as u64, end);
        assert_eq!((heap.references.collections.len(), heap.texts.collections.len()), (2, 2));
        for number in [0, 1, 65_534, 65_535, 65_999] {
            assert_eq!(follow(&file, heap.reference(number)?), (number as u64 * 3).to_le_bytes());
            let text = format!("text {number}");
            let pointer = heap.text(&text)?;
            assert_eq!(pointer[..4], (text.len() as u32).to_le_bytes());
            assert_eq!(follow(&file, pointer), text.as_bytes());
        }
        assert_eq!(follow(&file, heap.text("")?), b"\0");
        assert!(heap.text("other").is_err());
        Ok(())
    }

    #[test]
    fn the_smallest_collection_has_4096_bytes() -> Result<()> {
        let value = Value::Texts(vec!["x".into()]);
        let mut heap = Heap::default();
        heap.add(&value, 0)?;
        let mut file = Vec::new();
        heap.place(0);
        heap.write(&mut file, &[]);
        assert_eq!((file.len(), number(&file, 8), number(&file, 40), number(&file, 48)), (4096, 4096, 0, 4096 - 40));
        Ok(())
    }
}
