//! Read-only mounts: every fixture, every release, every program.

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

mod alphas;
mod cache;
mod fixtures_match;
mod follow;
mod library;
mod mounting;
mod reference;
mod requests;
mod shards;
mod tools;
mod vectors;
mod virtuals;
