//! Decoding of chunks: from stored bytes to the elements of a chunk, little-endian, in C order.
//!
//! The codecs of an array are a [`Chain`], made once from its `zarr.json`. The decoded length of a
//! chunk is known beforehand, and stored bytes are untrusted: every decoder gets the length that it
//! may at most produce, so that a few kilobytes cannot claim gigabytes. A chunk that decodes to
//! more or less than its shape is an error. Crates do the decompression; the general-purpose Zarr
//! crates were looked at and believe the lengths that compressed frames claim
//! (`docs/dependencies.md`).

mod array_codec;
mod blosc;
mod bytes_codec;
pub(super) mod chain;
mod checksums;
pub(super) mod number;
mod pcodec;
mod steps;
mod transpose;

pub(super) use self::chain::Chain;
pub(super) use self::steps::Steps;
