//! Sequences of what programs do with files and directories, over real repositories and without a
//! kernel: each part of a working tree by what POSIX and `docs/semantics.md` promise of it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

mod bytes;
mod contents;
mod handles;
mod listing;
mod moves;
mod namespace;
mod renames;
mod uploads;
mod upper;
