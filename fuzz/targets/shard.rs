//! The shards of an array's `zarr.json`, and an index behind it: a NUL byte separates the two.

use icechunkfs::memory::Meter;
use icechunkfs::zarr::shard::{Index, ShardLayout};

pub(crate) fn run(bytes: &[u8]) {
    let at = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let (document, rest) = bytes.split_at(at);
    let Ok(Some(sharding)) = ShardLayout::parse(document, &mut Meter::brief("a zarr.json")) else { return };
    let mut index = rest.get(1..).unwrap_or_default().to_vec();
    let wanted = sharding.index_length() as usize;
    let entries = wanted - if sharding.checksum { 4 } else { 0 };
    index.resize(entries, 0xff);
    if sharding.checksum {
        // The fuzzer would not find it.
        let sum = crc32c::crc32c(&index);
        index.extend(sum.to_le_bytes());
    }
    let length = sharding.trailer + wanted as u64 + 4096;
    let index = Index::decode(&sharding, length, index.into()).unwrap();
    let faulty = index.faults(&mut Meter::new("faults")).unwrap_or_default();
    for (place, number) in index.in_order() {
        assert!(place.start < place.end && place.end <= length);
        assert!(std::iter::zip(sharding.coords(number), &sharding.grid).all(|(coord, length)| coord < *length));
    }
    for number in 0..index.entry_count() {
        let is_sound = index.entry(number).is_none_or(|(_, length)| length == 0) || index.range(number).is_some();
        assert!(is_sound || faulty.binary_search_by_key(&number, |fault| fault.number).is_ok());
    }
}
