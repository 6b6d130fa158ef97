//! Object stores, bad networks, and several machines.

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

mod endurance;
mod machines;
mod moves;
mod past;
mod request_rules;
mod sign_on;
mod sparse_faults;
mod store_faults;
mod stores;
mod views;
