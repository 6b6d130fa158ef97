//! Writable mounts: programs that write, POSIX, full and broken disks, kills.

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

mod crash;
mod create;
mod daily;
mod discards;
mod exclusive;
mod executed;
mod expired_branch;
mod listings;
mod moved_chunks;
mod open_readers;
mod posix;
mod replaced;
mod roots;
mod untracked;
mod upload;
mod watched;
mod write_faults;
mod write_tools;
