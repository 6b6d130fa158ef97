//! A repository's life: expiration, collection, migration, rewriting.

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

mod clean_scratch;
mod collect;
mod life;
mod migrate;
mod migrate_elsewhere;
mod migrate_race;
mod race_collect;
mod rewriting;
mod stores;
