//! Writes the flatbuffers of the format by the numbers of their fields, so that parts can be shared
//! as no library shares them.

use std::collections::BTreeMap;

use flatbuffers::{
    FlatBufferBuilder, Push, PushAlignment, TableFinishedWIPOffset, UnionWIPOffset, VOffsetT, WIPOffset,
};

pub type Builder = FlatBufferBuilder<'static>;
/// Part that may be referred to any number of times.
pub type Part = WIPOffset<UnionWIPOffset>;

/// Bytes that a table holds in place.
#[derive(Clone, Copy)]
pub struct Raw<const N: usize>(pub [u8; N]);

impl<const N: usize> Push for Raw<N> {
    type Output = [u8; N];

    unsafe fn push(&self, to: &mut [u8], _written_len: usize) {
        to.copy_from_slice(&self.0);
    }

    fn alignment() -> PushAlignment {
        PushAlignment::new(if N == 8 { 1 } else { 4 })
    }
}

/// Value of a field.
#[derive(Clone, Copy)]
pub enum Field {
    At(Part),
    Byte(u8),
    Int(i32),
    Long(u64),
    Id([u8; 12]),
    Node([u8; 8]),
}

/// Fields by their numbers in the schema.
pub type Fields = BTreeMap<u16, Field>;

/// Adds a table.
pub fn table(b: &mut Builder, fields: &Fields) -> Part {
    let start = b.start_table();
    // The largest first, as the library does, so that all are aligned.
    let size = |field: &Field| match field {
        Field::Long(_) => 8,
        Field::At(_) | Field::Int(_) => 4,
        _ => 1,
    };
    let mut all: Vec<(&u16, &Field)> = fields.iter().collect();
    all.sort_by_key(|(_, field)| std::cmp::Reverse(size(field)));
    for (number, field) in all {
        let slot: VOffsetT = 4 + 2 * number;
        match *field {
            Field::At(part) => b.push_slot_always(slot, part),
            Field::Byte(value) => b.push_slot_always(slot, value),
            Field::Int(value) => b.push_slot_always(slot, value),
            Field::Long(value) => b.push_slot_always(slot, value),
            Field::Id(id) => b.push_slot_always(slot, Raw(id)),
            Field::Node(id) => b.push_slot_always(slot, Raw(id)),
        }
    }
    let end: WIPOffset<TableFinishedWIPOffset> = b.end_table(start);
    WIPOffset::new(end.value())
}

/// Adds a list of parts.
pub fn list(b: &mut Builder, parts: &[Part]) -> Part {
    WIPOffset::new(b.create_vector(parts).value())
}

/// Adds a list of numbers or bytes in place.
pub fn plain<T: Push<Output: 'static> + Copy>(b: &mut Builder, items: &[T]) -> Part {
    WIPOffset::new(b.create_vector(items).value())
}

pub fn text(b: &mut Builder, text: &str) -> Part {
    WIPOffset::new(b.create_string(text).value())
}

/// Returns the payload with the root table `root`.
pub fn payload(mut b: Builder, root: Part) -> Vec<u8> {
    let root: WIPOffset<TableFinishedWIPOffset> = WIPOffset::new(root.value());
    b.finish(root, Some("Ichk"));
    b.finished_data().to_vec()
}

/// Returns the file of type `kind` with a payload.
pub fn file(version: u8, kind: u8, payload: &[u8]) -> Vec<u8> {
    file_around(version, kind, 1, &zstd::encode_all(payload, 3).unwrap())
}

/// Returns the file with a body that is compressed already, or not at all.
pub fn file_around(version: u8, kind: u8, compression: u8, body: &[u8]) -> Vec<u8> {
    [b"ICE\xF0\x9F\xA7\x8ACHUNK".as_slice(), b"ic-2.3.0                ", &[version, kind, compression], body].concat()
}
