//! Reads the list of chunks in a manifest: a map from (node, coordinates) to payloads, or from
//! nodes to maps from coordinates to payloads.
//!
//! Each key shows to which of the two forms it belongs and how it names nodes. Chunks are passed on
//! one by one; their bytes are not copied.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::super::ids::NodeId;
use super::manifest::{Chunks, StoredPayload};
use super::values::{AlphaNodeId, AlphaObjectId};

/// Most coordinates of a chunk: real arrays have fewer dimensions.
pub(super) const MAX_COORDS: usize = 255;

#[derive(Deserialize)]
pub(super) struct NativeRef {
    pub(super) id: AlphaObjectId,
    pub(super) offset: u64,
    pub(super) length: u64,
}

#[derive(Deserialize)]
pub(super) struct VirtualRef {
    pub(super) location: Location,
    pub(super) offset: u64,
    pub(super) length: u64,
    #[serde(default)]
    pub(super) checksum: Option<StoredChecksum>,
}

/// Absolute URL. The specification planned another kind, which no release wrote.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Location {
    Plain(String),
    Tagged {
        #[serde(rename = "Absolute")]
        absolute: String,
    },
}

impl Location {
    pub(super) fn text(&self) -> &str {
        match self {
            Location::Plain(location) | Location::Tagged { absolute: location } => location,
        }
    }
}

#[derive(Deserialize)]
pub(super) enum StoredChecksum {
    #[serde(alias = "Etag")]
    ETag(String),
    LastModified(u32),
}

/// Seed for a manifest file: an array whose last member is the list of chunks, or a map with the
/// member `chunks`.
pub(super) struct File<'c, 'a> {
    pub(super) chunks: &'c mut Chunks<'a>,
}

impl<'a> DeserializeSeed<'a> for File<'_, 'a> {
    type Value = ();

    fn deserialize<D: Deserializer<'a>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'a> Visitor<'a> for File<'_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a manifest")
    }

    fn visit_seq<A: SeqAccess<'a>>(self, mut array: A) -> Result<(), A::Error> {
        let members = array.size_hint().unwrap_or_default();
        for at in 0..members.saturating_sub(1) {
            match (members, at) {
                // Releases from 0.1.0 on store two members: the id and the chunks.
                (2, 0) => self.chunks.id = array.next_element::<AlphaObjectId>()?.map(|id| id.0),
                _ => drop(array.next_element::<IgnoredAny>()?),
            }
        }
        let found = array.next_element_seed(ChunkMap { chunks: self.chunks, node: None, coords: None })?;
        found.ok_or_else(|| de::Error::custom("a manifest without members"))
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<(), A::Error> {
        let mut found = false;
        while let Some(name) = map.next_key::<String>()? {
            match name.as_str() {
                "chunks" => {
                    map.next_value_seed(ChunkMap { chunks: &mut *self.chunks, node: None, coords: None })?;
                    found = true;
                }
                "id" => self.chunks.id = Some(map.next_value::<AlphaObjectId>()?.0),
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        if found { Ok(()) } else { Err(de::Error::missing_field("chunks")) }
    }
}

/// Key of a map in a manifest. The value is the map of a node or the payload of a chunk.
enum Key {
    /// Node and coordinates of a chunk, or a node's id that looks like a chunk without dimensions.
    Chunk(NodeId, Vec<u32>),
    Node(NodeId),
    /// Coordinates within the map of a node.
    Coords(Vec<u32>),
    /// Kind of a payload.
    PayloadKind(String),
}

/// Seed for a map of chunks or, below the key of a chunk, for its payload.
struct ChunkMap<'c, 'a> {
    chunks: &'c mut Chunks<'a>,
    /// Node whose chunks the map lists.
    node: Option<NodeId>,
    /// Coordinates of the chunk whose payload the map may be.
    coords: Option<Vec<u32>>,
}

impl<'a> DeserializeSeed<'a> for ChunkMap<'_, 'a> {
    type Value = ();

    fn deserialize<D: Deserializer<'a>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'a> Visitor<'a> for ChunkMap<'_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("chunks, or where a chunk is")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key_seed(KeySeed { node: self.node, has_payload: self.coords.is_some() })? {
            let (node, coords) = match (key, self.node, &self.coords) {
                (Key::PayloadKind(kind), Some(node), Some(coords)) => {
                    let payload = match kind.as_str() {
                        "Inline" => StoredPayload::Inline(map.next_value::<Inline<'a>>()?.0),
                        "Ref" => StoredPayload::Native(map.next_value()?),
                        "Virtual" => StoredPayload::Virtual(Box::new(map.next_value()?)),
                        other => return Err(de::Error::unknown_variant(other, &["Inline", "Ref", "Virtual"])),
                    };
                    self.chunks.push(node, coords, payload)?;
                    continue;
                }
                (Key::Chunk(node, coords), None, _) => (node, Some(coords)),
                (Key::Node(node), None, _) => (node, None),
                (Key::Coords(coords), Some(node), _) => (node, Some(coords)),
                _ => return Err(de::Error::custom("a key that has no place there")),
            };
            map.next_value_seed(ChunkMap { chunks: &mut *self.chunks, node: Some(node), coords })?;
        }
        Ok(())
    }
}

struct KeySeed {
    node: Option<NodeId>,
    has_payload: bool,
}

impl<'a> DeserializeSeed<'a> for KeySeed {
    type Value = Key;

    fn deserialize<D: Deserializer<'a>>(self, deserializer: D) -> Result<Key, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'a> Visitor<'a> for KeySeed {
    type Value = Key;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a node, a chunk, or the kind of a place")
    }

    fn visit_u64<E>(self, number: u64) -> Result<Key, E> {
        Ok(Key::Node(AlphaNodeId::from_number(number).0))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Key, E> {
        if self.has_payload {
            return Ok(Key::PayloadKind(text.to_owned()));
        }
        let numbers =
            numbers(text).map(|numbers| numbers.into_iter().map(u32::try_from).collect::<Result<Vec<_>, _>>());
        match (numbers, AlphaNodeId::from_text(text), self.node) {
            (_, Some(node), None) => Ok(Key::Node(node.0)),
            // Keys in JSON are text: coordinates within the map of a node, otherwise a node's
            // number and coordinates.
            (Some(Ok(numbers)), _, Some(_)) => Ok(Key::Coords(numbers)),
            (Some(Ok(numbers)), None, None) => match numbers.split_first() {
                Some((node, coords)) => Ok(Key::Chunk(AlphaNodeId::from_number(u64::from(*node)).0, coords.to_vec())),
                None => Err(E::custom(format!("a chunk `{text}` of no node"))),
            },
            _ => Err(E::custom(format!("`{text}` is neither a node nor a chunk"))),
        }
    }

    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Key, E> {
        let node = AlphaNodeId::from_bytes(bytes).ok_or_else(|| E::custom("a node id that does not have 8 bytes"))?;
        Ok(Key::Node(node.0))
    }

    fn visit_seq<A: SeqAccess<'a>>(self, mut array: A) -> Result<Key, A::Error> {
        if self.node.is_some() {
            return Ok(Key::Coords(ChunkCoords::read(array)?.0));
        }
        let node: AlphaNodeId = array.next_element()?.ok_or_else(|| de::Error::custom("a chunk without a node"))?;
        let coords: Option<Option<ChunkCoords>> = array.next_element()?;
        while array.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Key::Chunk(node.0, coords.flatten().map(|coords| coords.0).unwrap_or_default()))
    }
}

/// Coordinates of a chunk: not more than arrays have dimensions.
struct ChunkCoords(Vec<u32>);

impl ChunkCoords {
    fn read<'a, A: SeqAccess<'a>>(mut list: A) -> Result<Self, A::Error> {
        let mut coords = Vec::new();
        while let Some(coord) = list.next_element()? {
            if coords.len() >= MAX_COORDS {
                return Err(de::Error::custom(format!("a chunk of more than {MAX_COORDS} coordinates")));
            }
            coords.push(coord);
        }
        Ok(ChunkCoords(coords))
    }
}

impl<'de> Deserialize<'de> for ChunkCoords {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CoordsVisitor;
        impl<'de> Visitor<'de> for CoordsVisitor {
            type Value = ChunkCoords;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the coordinates of a chunk")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<ChunkCoords, A::Error> {
                ChunkCoords::read(list)
            }
        }
        deserializer.deserialize_seq(CoordsVisitor)
    }
}

/// Returns the numbers in a key such as `3/0/1` or `[3,[0,1]]`, whatever separates them; `None` if
/// the key has letters.
fn numbers(text: &str) -> Option<Vec<u64>> {
    let is_between = |c: char| !c.is_alphanumeric();
    // One more than a chunk may have is too many.
    let parts = text.split(is_between).filter(|part| !part.is_empty()).take(MAX_COORDS + 2);
    parts.map(|part| part.parse().ok()).collect()
}

/// Bytes of an inline chunk, borrowed if the file stores them verbatim.
struct Inline<'a>(Cow<'a, [u8]>);

impl<'de> Deserialize<'de> for Inline<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InlineVisitor;
        impl<'de> Visitor<'de> for InlineVisitor {
            type Value = Inline<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the bytes of a chunk")
            }

            fn visit_borrowed_bytes<E>(self, bytes: &'de [u8]) -> Result<Inline<'de>, E> {
                Ok(Inline(Cow::Borrowed(bytes)))
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Inline<'de>, E> {
                Ok(Inline(Cow::Owned(bytes.to_vec())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Inline<'de>, A::Error> {
                let mut bytes = Vec::new();
                while let Some(byte) = array.next_element()? {
                    bytes.push(byte);
                }
                Ok(Inline(Cow::Owned(bytes)))
            }
        }
        deserializer.deserialize_any(InlineVisitor)
    }
}
