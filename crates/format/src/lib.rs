//! The files of an Icechunk repository and the documents of Zarr: bytes to values, and values to
//! bytes.
//!
//! No file and no network is touched here. Begin with [`mod@format`], which lists the kinds of
//! file, and with [`zarr`] for what a `zarr.json` means.
//!
//! Three rules that are hard to keep:
//!
//! 1. No input causes a panic, deep recursion, or more memory than it was given: whatever a file
//!    claims is checked before it is believed.
//! 2. What is not understood is kept or refused, never lost: members that a newer release adds
//!    ([`mod@format`]).
//! 3. A file that is written is one that the reference implementation reads and goes on writing
//!    ([`format::repo_state`] has the sharpest corners).

pub mod format;
pub mod zarr;
