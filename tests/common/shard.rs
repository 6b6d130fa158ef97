//! Shards made by hand, and the documents of their arrays.

use serde_json::{Value, json};

use crate::common::random::Random;

/// Place and encoding of an index.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    pub at_start: bool,
    pub big_endian: bool,
    pub checksum: bool,
}

pub const USUAL: Form = Form { at_start: false, big_endian: false, checksum: true };

impl Form {
    /// Returns a codec with inner chunks of `inner` and `codecs` for them.
    pub fn codec(self, inner: Value, codecs: Value) -> Value {
        let endian = if self.big_endian { "big" } else { "little" };
        let mut index = vec![json!({"name": "bytes", "configuration": {"endian": endian}})];
        if self.checksum {
            index.push(json!({"name": "crc32c"}));
        }
        let place = if self.at_start { "start" } else { "end" };
        json!({"name": "sharding_indexed", "configuration":
            {"chunk_shape": inner, "codecs": codecs, "index_codecs": index, "index_location": place}})
    }

    /// Returns a shard with these inner chunks, stored in the order `order` of their numbers.
    pub fn shard(self, chunks: &[Option<Vec<u8>>], order: impl IntoIterator<Item = usize>) -> Vec<u8> {
        let index_length = 16 * chunks.len() + if self.checksum { 4 } else { 0 };
        let begin = if self.at_start { index_length } else { 0 };
        let mut entries = vec![(u64::MAX, u64::MAX); chunks.len()];
        let mut body = Vec::new();
        for number in order {
            if let Some(bytes) = &chunks[number] {
                entries[number] = ((begin + body.len()) as u64, bytes.len() as u64);
                body.extend_from_slice(bytes);
            }
        }
        let index = self.index(&entries);
        if self.at_start { [index, body].concat() } else { [body, index].concat() }
    }

    pub fn index(self, entries: &[(u64, u64)]) -> Vec<u8> {
        let number = |number: u64| if self.big_endian { number.to_be_bytes() } else { number.to_le_bytes() };
        let mut index: Vec<u8> =
            entries.iter().flat_map(|(offset, length)| [number(*offset), number(*length)]).flatten().collect();
        if self.checksum {
            let sum = crc32c::crc32c(&index);
            index.extend(sum.to_le_bytes());
        }
        index
    }
}

/// Returns the document of an array of bytes in chunks of `chunks` that `codecs` encode.
pub fn array(shape: Value, chunks: Value, codecs: Value) -> Value {
    json!({
        "zarr_format": 3, "node_type": "array", "shape": shape, "data_type": "uint8", "fill_value": 0, "attributes": {},
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": codecs
    })
}

/// Returns `chunk` as the codecs `bytes` and `crc32c` encode it.
pub fn with_checksum(mut chunk: Vec<u8>) -> Vec<u8> {
    let sum = crc32c::crc32c(&chunk);
    chunk.extend(sum.to_le_bytes());
    chunk
}

/// Returns every number below `count` once, in random order.
pub fn shuffled(count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    Random::new(11).shuffle(&mut order);
    order
}
