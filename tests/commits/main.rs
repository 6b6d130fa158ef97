//! Commits: by the engine, concurrent, failing, late, and alternating with the reference.

#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::too_many_lines
)]

#[path = "../common/mod.rs"]
mod common;

mod clocks;
mod commit;
mod commit_faults;
mod contention;
mod interop;
mod late;
mod offline;
mod race;
mod rebase;
mod sharing;
