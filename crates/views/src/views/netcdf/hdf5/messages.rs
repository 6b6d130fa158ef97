//! Superblock, object headers and their messages (HDF5 spec II.A, IV.A.1.b and IV.A.2), except
//! attributes.

use super::checksum::lookup3;
use super::model::{Dataset, Layout};
use super::storage::Storage;
use super::{UNDEFINED, datatype, unsupported};
use icechunkfs_base::error::{Context, Result};

/// Length of the superblock in bytes.
pub(super) const SUPERBLOCK: u64 = 48;
/// Bytes of an object header before its messages.
const PREFIX: usize = 10;

const DATASPACE: u8 = 0x01;
const LINK_INFO: u8 = 0x02;
const DATATYPE: u8 = 0x03;
const FILL_VALUE: u8 = 0x05;
const LINK: u8 = 0x06;
const LAYOUT: u8 = 0x08;
const GROUP_INFO: u8 = 0x0A;
const ATTRIBUTE: u8 = 0x0C;
const ATTRIBUTE_INFO: u8 = 0x15;

/// Longest chunk of a dataset without data, in elements.
const ABSENT_CHUNK: u64 = 1024;

/// Encodes the superblock of a file of `size` bytes with its root group at `root`.
pub(super) fn superblock(size: u64, root: u64) -> Vec<u8> {
    let mut bytes = b"\x89HDF\r\n\x1a\n\x02\x08\x08\x00".to_vec();
    for address in [0, UNDEFINED, size, root] {
        bytes.extend_from_slice(&address.to_le_bytes());
    }
    bytes.extend_from_slice(&lookup3(&bytes, 0).to_le_bytes());
    bytes
}

/// Object header under construction.
#[derive(Debug)]
pub(super) struct Header {
    bytes: Vec<u8>,
    attributes: u16,
}

impl Header {
    fn new() -> Self {
        // Flags: the length of messages has 4 bytes, attributes have a creation order.
        Header { bytes: b"OHDR\x02\x06\0\0\0\0".to_vec(), attributes: 0 }
    }

    /// Begins the header of a group with `links` links and `attributes` attributes.
    pub(super) fn group(links: usize, attributes: usize) -> Result<Self> {
        let mut header = Header::new();
        let mut info = vec![0, 1];
        for value in [links as u64, UNDEFINED, UNDEFINED] {
            info.extend_from_slice(&value.to_le_bytes());
        }
        header.message(LINK_INFO, &info)?;
        header.message(GROUP_INFO, &[0, 0])?;
        header.attribute_info(attributes)?;
        Ok(header)
    }

    /// Adds link number `order` to a group.
    pub(super) fn link(&mut self, order: usize, name: &str, address: u64) -> Result<()> {
        let len = u16::try_from(name.len()).map_err(|_| unsupported("the name is longer than 65,535 bytes"))?;
        let mut link = vec![1, 0x15];
        link.extend_from_slice(&(order as u64).to_le_bytes());
        link.push(1);
        link.extend_from_slice(&len.to_le_bytes());
        link.extend_from_slice(name.as_bytes());
        link.extend_from_slice(&address.to_le_bytes());
        self.message(LINK, &link)
    }

    /// Begins the header of a dataset, with data at `data` and a B-tree at `tree`.
    pub(super) fn dataset(dataset: &Dataset, storage: &Storage, data: u64, tree: u64) -> Result<Self> {
        let mut header = Header::new();
        header.message(DATASPACE, &dataspace(&dataset.shape, dataset.unlimited))?;
        header.message(DATATYPE, &datatype::encode(dataset.data_type)?)?;
        // pyfive 1.3 reads beyond an attribute info message, which therefore must not be the last
        // one.
        header.attribute_info(dataset.attributes.len())?;
        header.message(FILL_VALUE, &fill_value(dataset)?).context(|| "fill value")?;
        let mut layout = vec![3];
        let chunk = match &dataset.layout {
            Layout::Chunked(chunk) => Some(chunk.clone()),
            // Only chunks may have an unlimited dimension, also where there are none.
            Layout::Absent if dataset.unlimited => {
                Some(dataset.shape.iter().map(|size| (*size).clamp(1, ABSENT_CHUNK) as u32).collect())
            }
            Layout::Absent | Layout::Contiguous => None,
        };
        match chunk {
            None => {
                layout.push(1);
                layout.extend_from_slice(&data.to_le_bytes());
                layout.extend_from_slice(&storage.bytes.to_le_bytes());
            }
            Some(chunk) => {
                layout.extend_from_slice(&[2, chunk.len() as u8 + 1]);
                layout.extend_from_slice(&tree.to_le_bytes());
                for size in chunk.iter().chain([&datatype::size(dataset.data_type)?]) {
                    layout.extend_from_slice(&size.to_le_bytes());
                }
            }
        }
        header.message(LAYOUT, &layout)?;
        Ok(header)
    }

    /// Adds an attribute.
    pub(super) fn attribute(&mut self, message: &[u8]) -> Result<()> {
        self.add(ATTRIBUTE, self.attributes, message)?;
        self.attributes = self.attributes.saturating_add(1);
        Ok(())
    }

    fn attribute_info(&mut self, count: usize) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        let count = u16::try_from(count).map_err(|_| unsupported(format!("{count} attributes; at most 65,535")))?;
        let mut info = vec![0, 1];
        info.extend_from_slice(&count.to_le_bytes());
        info.extend_from_slice(&[0xFF; 16]);
        self.message(ATTRIBUTE_INFO, &info)
    }

    fn message(&mut self, kind: u8, data: &[u8]) -> Result<()> {
        self.add(kind, 0, data)
    }

    fn add(&mut self, kind: u8, order: u16, data: &[u8]) -> Result<()> {
        let len = u16::try_from(data.len())
            .map_err(|_| unsupported(format!("needs a header message of {} bytes; at most 65,535", data.len())))?;
        self.bytes.push(kind);
        self.bytes.extend_from_slice(&len.to_le_bytes());
        self.bytes.push(0);
        self.bytes.extend_from_slice(&order.to_le_bytes());
        self.bytes.extend_from_slice(data);
        Ok(())
    }

    /// Returns the bytes of the header.
    pub(super) fn finish(mut self) -> Result<Vec<u8>> {
        let len = u32::try_from(self.bytes.len().saturating_sub(PREFIX))
            .map_err(|_| unsupported("an object header of 4 GiB or more"))?;
        if let Some(field) = self.bytes.get_mut(PREFIX - 4..PREFIX) {
            field.copy_from_slice(&len.to_le_bytes());
        }
        let sum = lookup3(&self.bytes, 0);
        self.bytes.extend_from_slice(&sum.to_le_bytes());
        Ok(self.bytes)
    }
}

/// Encodes a dataspace: a scalar if `shape` is empty.
pub(super) fn dataspace(shape: &[u64], unlimited: bool) -> Vec<u8> {
    let mut bytes = vec![2, shape.len() as u8, u8::from(unlimited), u8::from(!shape.is_empty())];
    for size in shape {
        bytes.extend_from_slice(&size.to_le_bytes());
    }
    if unlimited {
        for size in [&UNDEFINED].into_iter().chain(shape.iter().skip(1)) {
            bytes.extend_from_slice(&size.to_le_bytes());
        }
    }
    bytes
}

/// Encodes the dataspace of no element.
pub(super) fn null_dataspace() -> Vec<u8> {
    vec![2, 0, 0, 2]
}

fn fill_value(dataset: &Dataset) -> Result<Vec<u8>> {
    // Space is allocated incrementally (3) or late (2), the fill value is written if it is set (8),
    // and it is set (0x20).
    let is_chunked = dataset.unlimited || matches!(dataset.layout, Layout::Chunked(_));
    let allocation = if is_chunked { 3 } else { 2 };
    let Some(fill) = &dataset.fill else { return Ok(vec![3, 0x08 | allocation]) };
    let size = datatype::size(dataset.data_type)?;
    if fill.len() as u64 != u64::from(size) {
        return Err(unsupported(format!("a fill value of {} bytes for elements of {size}", fill.len())));
    }
    let mut bytes = vec![3, 0x28 | allocation];
    bytes.extend_from_slice(&size.to_le_bytes());
    bytes.extend_from_slice(fill);
    Ok(bytes)
}
