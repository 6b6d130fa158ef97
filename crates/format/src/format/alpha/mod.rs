//! Reads files of alpha repositories: those of releases before 0.2, and those of the first layout,
//! which no release wrote.
//!
//! These files hold the same content as today's, in MessagePack or JSON, with or without a header,
//! compressed or not; releases added, removed and reordered members. No other module sees these
//! differences: a snapshot becomes an equivalent [`super::draft::SnapshotDraft`], a manifest a
//! flatbuffer of today. One tree, one reader and one lookup therefore serve every generation.
//!
//! Node ids were numbers at first, then 8 bytes as today; a number becomes 8 bytes, most
//! significant first. Object ids were 16 bytes in the first layout: the first 12 are kept, and the
//! object is looked up by them.

pub mod attributes;
pub mod bounds;
mod chunk_map;
pub mod manifest;
pub mod reference;
pub mod snapshot;
mod values;
pub mod wrapping;
pub mod zarr_json;

use std::marker::PhantomData;

use serde::de::DeserializeOwned;

use self::wrapping::{Body, Encoding};
use super::json;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::memory::Meter;

/// Limit of nesting: a user attribute may nest as deeply as a metadata item today, below the levels
/// of the document.
const MAX_DEPTH: usize = super::flexbuffer::MAX_DEPTH + 8;

/// Parses `body`, whose values `meter` counts.
fn parse<T: DeserializeOwned>(body: &Body, what: &str, meter: &mut Meter) -> Result<T> {
    let parsed = match body.encoding {
        Encoding::Json => json::parse(&body.bytes, meter),
        Encoding::MessagePack => json::parse_message_pack(PhantomData, &body.bytes, MAX_DEPTH, meter),
    };
    parsed.map_err(|error| match error.kind() {
        ErrorKind::OutOfMemory => error,
        _ => unknown_document(what, error),
    })
}

/// Returns the error for a document that no release before 0.2 wrote.
fn unknown_document(what: &str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    let message = format!("this is not a valid {what} of an Icechunk release before 0.2");
    Error::with_source(ErrorKind::Corrupt, message, source)
}
