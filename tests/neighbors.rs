//! Other users of the machine: what they put in the way of root's mounts, caches and collections has no effect.
//!
//! An attacker here is user `nobody`, who may do on the machine what any user may. These tests need root.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;
#[path = "common/users.rs"]
mod users;
#[path = "common/writing.rs"]
mod writing;

#[path = "neighbors/cache.rs"]
mod cache;
#[path = "neighbors/collection.rs"]
mod collection;
#[path = "neighbors/control.rs"]
mod control;
#[path = "neighbors/listing.rs"]
mod listing;
#[path = "neighbors/logs.rs"]
mod logs;
#[path = "neighbors/scratch.rs"]
mod scratch;
#[path = "neighbors/stopped.rs"]
mod stopped;
