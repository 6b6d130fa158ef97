//! Decodes and encodes the files of a repository: bytes to values and back, without I/O or a clock.
//!
//! Every metadata file is a 39-byte header and a zstd-compressed flatbuffer ([`envelope`]). A
//! flatbuffer is decompressed once, verified once and then read in place; nothing is unpacked into
//! maps, because a manifest may hold millions of references, of which a program reads a few.
//! Properties that verification does not establish (order, ranks, indices within range) are checked
//! where they matter, once on opening, so that no lookup can miss silently.
//!
//! Files of releases before 0.2 are not flatbuffers; [`alpha`] translates them.
//!
//! All input is untrusted, damaged by accident or on purpose: lengths and depths are bounded, and
//! no input may panic.

/// Maximum size of a file, stored and in memory, in bytes: the format's own limit.
pub const MAX_FILE: u64 = 1 << 31;

pub mod alpha;
pub mod chunk_payload;
pub mod config;
pub mod config_edit;
pub mod draft;
pub mod envelope;
pub mod flexbuffer;
mod frame;
#[rustfmt::skip]
#[allow(
    warnings,
    missing_docs,
    unreachable_pub,
    unsafe_op_in_unsafe_fn,
    unused,
    unused_extern_crates,
    clippy::all,
    clippy::too_many_lines,
    clippy::undocumented_unsafe_blocks,
    clippy::unwrap_used,
    reason = "made by flatc; see schemas/generate"
)]
pub mod generated;
pub mod ids;
pub mod json;
pub mod kept_nodes;
pub mod manifest;
pub mod manifest_builder;
pub mod metadata;
pub mod operations_log;
pub mod patterns;
pub mod repo_info;
pub mod repo_state;
pub mod snapshot;
pub mod snapshot_info;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod transaction_log;
pub(crate) mod unknown;
mod verified;
mod yaml;

/// Returns the first index of `0..len` that is not `below`; all that are must come first.
fn partition_point(len: usize, below: impl Fn(usize) -> bool) -> usize {
    let mut low = 0;
    let mut high = len;
    while low < high {
        let middle = low + (high - low) / 2;
        if below(middle) { low = middle + 1 } else { high = middle }
    }
    low
}
