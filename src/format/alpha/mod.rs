//! Files of the releases before 0.2, and of the first layout, which no release wrote.
//!
//! They hold the same things as today's, in MessagePack or JSON, under a header or none, compressed or not; from release to
//! release members came, went and changed their order. Nothing of that reaches the floors above: a snapshot becomes the
//! [`super::draft::SnapshotDraft`] that says the same, a manifest a flatbuffer of today's. So there is one tree, one reader and
//! one look-up for every generation.
//!
//! | module | what it knows |
//! |---|---|
//! | [`container`] | how a file is wrapped, and what it is told by |
//! | [`bounds`] | that a document is whole, not too deep, and fits into memory, before anything is made of it |
//! | [`spelling`] | ids, times and fill values in all their spellings |
//! | [`snapshot`] | nodes, and the history that a snapshot carries along |
//! | [`zarr_json`] | a `zarr.json`, which was not kept in those days but taken apart |
//! | [`attributes`] | attributes in files of their own |
//! | [`manifest`] | chunk references, and [`chunk_map`] how they are listed |
//! | [`mod@reference`] | what a branch's or tag's file says |
//!
//! What identifies a node was a number at first, then 8 bytes as today; a number becomes 8 bytes, most significant first. Ids of
//! objects were 16 bytes in the first layout: of those the first 12 are kept, and whoever looks for the object finds it by them.

pub mod attributes;
pub mod bounds;
mod chunk_map;
pub mod container;
pub mod manifest;
pub mod reference;
pub mod snapshot;
mod spelling;
pub mod zarr_json;

use serde::de::DeserializeOwned;

use self::container::{Body, Encoding};
use crate::error::{Error, ErrorKind, Result};

/// What a document holds at most, in levels: a value of a user's attributes may have as many as a metadata item today.
const MAX_DEPTH: usize = super::flexbuffer::MAX_DEPTH + 8;

/// The value that `body` holds, which was looked at by [`bounds`] before.
fn parse<T: DeserializeOwned>(body: &Body, what: &str) -> Result<T> {
    match body.encoding {
        Encoding::Json => serde_json::from_slice(&body.bytes).map_err(|e| wrong(what, e)),
        Encoding::MessagePack => {
            let mut reader = rmp_serde::Deserializer::from_read_ref(&*body.bytes);
            reader.set_max_depth(MAX_DEPTH);
            serde::Deserialize::deserialize(&mut reader).map_err(|e| wrong(what, e))
        }
    }
}

/// The error of a document that is none of what any release wrote.
fn wrong(what: &str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::with_source(ErrorKind::Corrupt, format!("this is no {what} of a release before 0.2"), source)
}
