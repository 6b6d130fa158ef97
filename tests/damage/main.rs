//! Damaged repositories: in this process, under a bound on memory, and through every command.

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

mod expansions;
mod mended;
mod mutants;
mod mutations;
