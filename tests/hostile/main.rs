//! Hostile repositories, stores and neighbors.

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

mod bad_input;
mod bombs;
mod credentials;
mod hostile_server;
mod neighbors;
