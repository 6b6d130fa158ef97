//! Attribute messages (HDF5 spec IV.A.2.m, version 3).

use super::heap::Heap;
use super::messages::{dataspace, null_dataspace};
use super::model::{Attribute, DataType, Value};
use super::{UNDEFINED, datatype, unsupported};
use icechunkfs_base::error::Result;

/// Length in bytes from which on a scalar text is stored in the heap: a header message has at most
/// 65,535 bytes.
const LONG_TEXT: usize = 60_001;

/// Datatype, dataspace and elements of an attribute.
type Encoded = (Vec<u8>, Vec<u8>, Vec<u8>);

/// Returns the texts of the value that are stored in the heap.
pub(super) fn heap_texts(value: &Value) -> &[String] {
    match value {
        Value::Text(text) if text.len() >= LONG_TEXT => std::slice::from_ref(text),
        Value::Texts(texts) => texts,
        _ => &[],
    }
}

/// Encodes an attribute message. Its length does not depend on addresses in `heap` nor on
/// `headers`, those of the datasets.
pub(super) fn encode(attribute: &Attribute, heap: &Heap<'_>, headers: &[u64]) -> Result<Vec<u8>> {
    if attribute.name.is_empty() || attribute.name.contains('\0') {
        return Err(unsupported("an attribute name that is empty or has a NUL"));
    }
    let (data_type, dataspace, value) = encode_value(&attribute.value, heap, headers)?;
    let name = attribute.name.len().saturating_add(1);
    let mut bytes = vec![3, 0];
    for len in [name, data_type.len(), dataspace.len()] {
        let len = u16::try_from(len).map_err(|_| unsupported("a name of more than 65,534 bytes"))?;
        bytes.extend_from_slice(&len.to_le_bytes());
    }
    bytes.push(1);
    bytes.extend_from_slice(attribute.name.as_bytes());
    bytes.push(0);
    bytes.extend_from_slice(&data_type);
    bytes.extend_from_slice(&dataspace);
    bytes.extend_from_slice(&value);
    Ok(bytes)
}

fn encode_value(value: &Value, heap: &Heap<'_>, headers: &[u64]) -> Result<Encoded> {
    match value {
        Value::Text(text) if text.len() >= LONG_TEXT => {
            Ok((datatype::encode(DataType::Text)?, extent(Some(1)), heap.text(text)?.to_vec()))
        }
        Value::Text(text) => fixed(text.as_bytes(), !text.is_ascii()),
        Value::FixedBytes(bytes) => fixed(bytes, false),
        Value::Numbers { data_type, bytes, count } => {
            let len = count.unwrap_or(1).checked_mul(u64::from(datatype::plain_size(*data_type)?));
            if len != Some(bytes.len() as u64) {
                return Err(unsupported(format!("{} bytes for {count:?} elements of {data_type:?}", bytes.len())));
            }
            Ok((datatype::encode(*data_type)?, extent(*count), bytes.clone()))
        }
        Value::Texts(texts) => {
            let pointers = texts.iter().map(|text| heap.text(text)).collect::<Result<Vec<_>>>()?;
            Ok((datatype::encode(DataType::Text)?, extent(Some(texts.len() as u64)), pointers.concat()))
        }
        Value::Uses(uses) => {
            let mut bytes = Vec::with_capacity(uses.len() * 16);
            for (dataset, position) in uses {
                let header = headers.get(*dataset).copied().unwrap_or(UNDEFINED);
                bytes.extend(header.to_le_bytes().into_iter().chain(position.to_le_bytes()).chain([0; 4]));
            }
            Ok((datatype::encode(DataType::Use)?, extent(Some(uses.len() as u64)), bytes))
        }
        Value::References(datasets) => {
            let pointers = datasets.iter().map(|&dataset| heap.reference(dataset)).collect::<Result<Vec<_>>>()?;
            let extent = extent(Some(datasets.len() as u64));
            Ok((datatype::encode(DataType::ReferenceList)?, extent, pointers.concat()))
        }
    }
}

/// Encodes a scalar fixed string.
fn fixed(bytes: &[u8], utf8: bool) -> Result<Encoded> {
    let len = u32::try_from(bytes.len()).map_err(|_| unsupported("a string of 4 GiB or more"))?;
    let data_type = datatype::encode(DataType::FixedString { len: len.max(1), utf8 })?;
    let dataspace = if bytes.is_empty() { null_dataspace() } else { dataspace(&[], false) };
    Ok((data_type, dataspace, bytes.to_vec()))
}

/// Encodes the dataspace of a scalar or a list.
fn extent(count: Option<u64>) -> Vec<u8> {
    match count {
        None => dataspace(&[], false),
        Some(0) => null_dataspace(),
        Some(count) => dataspace(&[count], false),
    }
}
