//! Random operations on mounts, compared with independent models.

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

mod branches;
mod collections;
mod merge;
mod model;
mod path_history;
mod registers;
mod restore;
