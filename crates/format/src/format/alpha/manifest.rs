//! Translates manifests of releases before 0.2, which list the chunks of any number of arrays, into
//! today's flatbuffer.
//!
//! The list of chunks was a map from (node, coordinates), and later a map of maps. A version and
//! flags, the manifest's id, or nothing preceded it. References are sorted if necessary, and
//! everything held during the translation is counted.
//!
//! Releases up to alpha 5 copied chunks of other arrays into an array's manifest when they rewrote
//! it, and listed more chunks than they returned. Here a chunk belongs to the array that its
//! reference names, because those releases found chunks by that name.

use std::borrow::Cow;
use std::cmp::Ordering;

use flatbuffers::{FlatBufferBuilder, ForwardsUOffset, Vector, WIPOffset};
use serde::de::{self, DeserializeSeed};

use super::super::envelope::{FILE_IDENTIFIER, MAX_PAYLOAD};
use super::super::generated::icechunk as fb;
use super::super::ids::{NodeId, ObjectId};
use super::chunk_map::{File, NativeRef, StoredChecksum, VirtualRef};
use super::wrapping::{Body, Encoding};
use super::{MAX_DEPTH, bounds, unknown_document};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::memory::{Meter, ReservedBytes};

/// Bytes that a reference takes in the payload of a file besides its parts: its table, and the
/// offsets.
const REFERENCE: u64 = 128;

/// Translates `body` into the payload of a manifest file of today; `id` is used if the document
/// contains no id.
pub fn translate(body: &Body, id: ObjectId) -> Result<ReservedBytes> {
    bounds::check(body)?;
    let meter = Meter::new("a manifest, to be translated,");
    let refused = None;
    let mut chunks = Chunks { id: None, refs: Vec::new(), coords: Vec::new(), meter, refused };
    match body.encoding {
        Encoding::Json => {
            let mut reader = serde_json::Deserializer::from_slice(&body.bytes);
            let read = File { chunks: &mut chunks }.deserialize(&mut reader);
            read.and_then(|()| reader.end()).map_err(|e| chunks.failed(e))?;
        }
        Encoding::MessagePack => {
            let mut reader = rmp_serde::Deserializer::from_read_ref(&*body.bytes);
            reader.set_max_depth(MAX_DEPTH);
            File { chunks: &mut chunks }.deserialize(&mut reader).map_err(|e| chunks.failed(e))?;
        }
    }
    chunks.sort();
    let payload = chunks.build(id)?;
    let mut held = chunks.meter.into_reservation();
    held.resize(payload.len() as u64, "a translated manifest")?;
    Ok(ReservedBytes::new(payload, held))
}

/// Chunks of a manifest, collected while it is read.
pub(super) struct Chunks<'a> {
    pub(super) id: Option<ObjectId>,
    refs: Vec<Ref<'a>>,
    /// Coordinates of all references, concatenated.
    coords: Vec<u32>,
    meter: Meter,
    /// Why the meter has no room.
    refused: Option<Error>,
}

struct Ref<'a> {
    node: NodeId,
    /// Start in `Chunks::coords`, and number of coordinates.
    coords: (usize, u32),
    payload: StoredPayload<'a>,
}

/// Payload of a chunk, as the file stores it.
pub(super) enum StoredPayload<'a> {
    Inline(Cow<'a, [u8]>),
    Native(NativeRef),
    Virtual(Box<VirtualRef>),
}

impl StoredPayload<'_> {
    /// Returns the bytes of the texts and bytes in it.
    fn size(&self) -> u64 {
        match self {
            StoredPayload::Inline(bytes) => bytes.len() as u64,
            StoredPayload::Native(_) => 0,
            StoredPayload::Virtual(stored) => {
                let tag = match &stored.checksum {
                    Some(StoredChecksum::ETag(tag)) => tag.len(),
                    _ => 0,
                };
                (size_of::<VirtualRef>() + stored.location.text().len() + tag) as u64
            }
        }
    }
}

impl<'a> Chunks<'a> {
    fn failed(&mut self, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        self.refused.take().unwrap_or_else(|| unknown_document("manifest", error))
    }

    /// Counts what is kept of a reference.
    fn count(&mut self, rank: usize, payload: &StoredPayload<'_>) -> Result<()> {
        self.meter.count_items::<Ref<'_>>(1)?;
        self.meter.count_items::<u32>(rank)?;
        self.meter.count(payload.size())
    }

    pub(super) fn push<E: de::Error>(
        &mut self,
        node: NodeId,
        coords: &[u32],
        payload: StoredPayload<'a>,
    ) -> Result<(), E> {
        let start = self.coords.len();
        // Real arrays have fewer than 256 dimensions.
        let rank = u8::try_from(coords.len()).map_err(|_| E::custom("a chunk of more than 255 coordinates"))?;
        if let Err(error) = self.count(coords.len(), &payload) {
            self.refused = Some(error);
            return Err(E::custom("no memory is left for it"));
        }
        self.coords.extend_from_slice(coords);
        self.refs.push(Ref { node, coords: (start, u32::from(rank)), payload });
        Ok(())
    }

    /// Sorts the references by node and coordinates, as today's files have them.
    fn sort(&mut self) {
        let coords = &self.coords;
        let order = |a: &Ref<'_>, b: &Ref<'_>| (a.node, coords_of(coords, a)).cmp(&(b.node, coords_of(coords, b)));
        if !self.refs.is_sorted_by(|a, b| order(a, b) != Ordering::Greater) {
            self.refs.sort_by(order);
        }
    }

    fn build(&mut self, id: ObjectId) -> Result<Vec<u8>> {
        let mut b = FlatBufferBuilder::new();
        let mut arrays = Vec::new();
        for of_one in self.refs.chunk_by(|a, b| a.node == b.node) {
            let Some(first) = of_one.first() else { continue };
            let mut refs = Vec::with_capacity(of_one.len());
            for item in of_one {
                // The buffer grows by doubling.
                self.meter.count(2 * (REFERENCE + u64::from(item.coords.1) * 4 + item.payload.size()))?;
                refs.push(write(&self.coords, &mut b, item));
                if b.unfinished_data().len() as u64 > MAX_PAYLOAD / 2 {
                    return Err(Error::new(ErrorKind::Unsupported, "a manifest of more than a GiB"));
                }
            }
            let refs: WIPOffset<Vector<'_, ForwardsUOffset<fb::ChunkRef<'_>>>> = b.create_vector(&refs);
            let node_id = Some(&fb::ObjectId8(first.node.0));
            let args = fb::ArrayManifestArgs { node_id, refs: Some(refs), extra: None };
            arrays.push(fb::ArrayManifest::create(&mut b, &args));
        }
        let arrays = Some(b.create_vector(&arrays));
        let id = Some(&fb::ObjectId12(self.id.unwrap_or(id).0));
        let root = fb::Manifest::create(&mut b, &fb::ManifestArgs { id, arrays, ..Default::default() });
        b.finish(root, Some(FILE_IDENTIFIER));
        let (mut bytes, start) = b.collapse();
        bytes.drain(..start);
        bytes.shrink_to_fit();
        Ok(bytes)
    }
}

fn write(coords: &[u32], b: &mut FlatBufferBuilder<'static>, item: &Ref<'_>) -> WIPOffset<fb::ChunkRef<'static>> {
    let index = Some(b.create_vector(coords_of(coords, item)));
    let mut args = fb::ChunkRefArgs { index, ..Default::default() };
    let chunk;
    match &item.payload {
        StoredPayload::Inline(bytes) => args.inline = Some(b.create_vector(bytes)),
        StoredPayload::Native(NativeRef { id, offset, length }) => {
            chunk = fb::ObjectId12(id.0.0);
            (args.chunk_id, args.offset, args.length) = (Some(&chunk), *offset, *length);
        }
        StoredPayload::Virtual(stored) => {
            // Many chunks lie in one file.
            args.location = Some(b.create_shared_string(stored.location.text()));
            (args.offset, args.length) = (stored.offset, stored.length);
            match &stored.checksum {
                Some(StoredChecksum::ETag(tag)) => args.checksum_etag = Some(b.create_string(tag)),
                Some(StoredChecksum::LastModified(seconds)) => args.checksum_last_modified = *seconds,
                None => {}
            }
        }
    }
    fb::ChunkRef::create(b, &args)
}

fn coords_of<'c>(coords: &'c [u32], item: &Ref<'_>) -> &'c [u32] {
    let (start, rank) = item.coords;
    coords.get(start..start + rank as usize).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use crate::format::alpha::values::AlphaNodeId;
    use crate::format::chunk_payload::{Checksum, ChunkPayload};
    use crate::format::manifest::Manifest;
    use crate::format::testing::pack;
    use rmpv::Value;
    use serde_json::json;

    fn map(entries: Vec<(Value, Value)>) -> Value {
        Value::Map(entries)
    }

    fn list(values: Vec<Value>) -> Value {
        Value::Array(values)
    }

    fn decode(file: &[u8]) -> Manifest {
        Manifest::decode_with_id(ObjectId([9; 12]), file, 1 << 20).unwrap()
    }

    fn inline(byte: u8) -> Value {
        map(vec![("Inline".into(), Value::Binary(vec![byte]))])
    }

    fn is_complete(manifest: &Manifest, nodes: [NodeId; 2]) {
        let refs = manifest.array(nodes[0]).unwrap().unwrap();
        let found = |coords: &[u32]| refs.payload(refs.find(coords).unwrap()).unwrap();
        assert_eq!(found(&[0, 1]), ChunkPayload::Inline([5].as_slice()));
        assert_eq!(found(&[1, 0]), ChunkPayload::Native { chunk: ObjectId([7; 12]), offset: 2, length: 3 });
        let scalar = manifest.array(nodes[1]).unwrap().unwrap();
        assert_eq!(scalar.payload(scalar.find(&[]).unwrap()).unwrap(), ChunkPayload::Inline([6].as_slice()));
        assert_eq!((refs.len(), scalar.len(), manifest.node_ids().count()), (2, 1, 2));
    }

    #[test]
    fn flat_and_nested_maps_with_ids_of_every_kind() {
        let native = |id: Value| map(vec![("Ref".into(), list(vec![id, 2.into(), 3.into()]))]);
        let one = list(vec![1.into(), 0.into()]);
        let two = list(vec![0.into(), 1.into()]);
        let text_id: Value = ObjectId([7; 12]).to_string().as_str().into();
        let bytes_id = list(vec![Value::Binary(vec![7; 12]), list(vec![])]);
        let key = |node: &Value, coords: &Value| list(vec![node.clone(), coords.clone()]);
        let none = list(vec![]);

        // Nodes are numbers, the chunks are out of order, and a version and flags precede them.
        let a = Value::from(3);
        let b = Value::from(4);
        let chunks = map(vec![
            (key(&b, &none), inline(6)),
            (key(&a, &one), native(text_id.clone())),
            (key(&a, &two), inline(5)),
        ]);
        let nodes = [AlphaNodeId::from_number(3).0, AlphaNodeId::from_number(4).0];
        for file in [list(vec![0.into(), map(vec![]), chunks.clone()]), list(vec![chunks])] {
            let manifest = decode(&pack(&file));
            is_complete(&manifest, nodes);
            assert_eq!(manifest.id(), ObjectId([9; 12]));
        }

        // Nodes are text, or bytes in an array; the maps are flat or nested.
        let nodes = [NodeId([1; 8]), NodeId([2; 8])];
        for ids in [
            nodes.map(|node| Value::from(node.to_string().as_str())),
            nodes.map(|node| list(vec![Value::Binary(node.0.to_vec()), list(vec![])])),
        ] {
            let [a, b] = ids;
            let flat = map(vec![
                (key(&a, &two), inline(5)),
                (key(&a, &one), native(text_id.clone())),
                (key(&b, &none), inline(6)),
            ]);
            let nested = map(vec![
                (a, map(vec![(two.clone(), inline(5)), (one.clone(), native(bytes_id.clone()))])),
                (b, map(vec![(none.clone(), inline(6))])),
            ]);
            is_complete(&decode(&pack(&list(vec![1.into(), map(vec![]), flat]))), nodes);
            is_complete(&decode(&pack(&list(vec![1.into(), map(vec![]), nested.clone()]))), nodes);
            let manifest = decode(&pack(&list(vec![bytes_id.clone(), nested])));
            is_complete(&manifest, nodes);
            assert_eq!(manifest.id(), ObjectId([7; 12]));
        }
    }

    #[test]
    fn json_of_the_first_layout() {
        let wide: Vec<u8> = [vec![7; 12], vec![1, 2, 3, 4]].concat();
        let native = json!({"Ref": {"id": wide, "offset": 2, "length": 3}});
        for keys in [["[3,[0,1]]", "[3,[1,0]]", "[4,[]]"], ["3/0/1", "3/1/0", "4"], ["3/c/0/1", "3.1.0", "(4, [])"]] {
            let keys = keys.map(|key| key.replace("/c/", "/"));
            let [a, b, c] = &keys;
            let file = json!({"chunks": {a: {"Inline": [5]}, b: native, c: {"Inline": [6]}}});
            let nodes = [AlphaNodeId::from_number(3).0, AlphaNodeId::from_number(4).0];
            is_complete(&decode(file.to_string().as_bytes()), nodes);
        }
    }

    #[test]
    fn virtual_chunks_come_with_their_checksums() {
        let place = |location: Value, checksum: Option<Value>| {
            let mut members = vec![location, 8.into(), 9.into()];
            members.extend(checksum);
            map(vec![("Virtual".into(), list(members))])
        };
        let absolute = map(vec![("Absolute".into(), "s3://b/k".into())]);
        let tag = map(vec![("ETag".into(), "\"x\"".into())]);
        let time = map(vec![("LastModified".into(), 77.into())]);
        let places = [
            (place(absolute, None), None),
            (place("s3://b/k".into(), Some(Value::Nil)), None),
            (place("s3://b/k".into(), Some(tag)), Some(Checksum::Etag("\"x\"".into()))),
            (place("s3://b/k".into(), Some(time)), Some(Checksum::LastModified(77))),
        ];
        for (place, checksum) in places {
            let chunks = map(vec![(list(vec![1.into(), list(vec![0.into()])]), place)]);
            let manifest = decode(&pack(&list(vec![0.into(), map(vec![]), chunks])));
            let refs = manifest.array(AlphaNodeId::from_number(1).0).unwrap().unwrap();
            let expected = ChunkPayload::Virtual { location: "s3://b/k".into(), offset: 8, length: 9, checksum };
            assert_eq!(refs.payload(0).unwrap(), expected);
        }
    }

    #[test]
    fn manifests_that_are_too_large_or_invalid_are_errors() {
        let chunks: Vec<(Value, Value)> =
            (0..5000).map(|n| (list(vec![1.into(), list(vec![n.into()])]), inline(1))).collect();
        let file = pack(&list(vec![0.into(), map(vec![]), map(chunks)]));
        let error = |file: &[u8], limit| Manifest::decode_with_id(ObjectId([9; 12]), file, limit).unwrap_err();
        assert_eq!(error(&file, 15_000).kind(), ErrorKind::OutOfMemory);
        let wrong: [Value; 6] = [
            list(vec![]),
            list(vec![7.into()]),
            list(vec![map(vec![(1.into(), 2.into())])]),
            list(vec![map(vec![(list(vec![1.into(), list(vec![0.into()])]), map(vec![("Cloud".into(), 1.into())]))])]),
            list(vec![map(vec![(list(vec![1.into(), list(vec![u64::MAX.into()])]), inline(1))])]),
            list(vec![map(vec![("Inline".into(), Value::Binary(vec![1]))])]),
        ];
        for value in wrong {
            assert_eq!(error(&pack(&value), 1 << 20).kind(), ErrorKind::Corrupt, "{value}");
        }
        let nothing = decode(&pack(&list(vec![map(vec![])])));
        assert_eq!(nothing.node_ids().count(), 0);
    }
}
