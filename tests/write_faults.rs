//! Disks that are full or read-only, scratch directories that somebody has damaged, repositories that others change
//! meanwhile: an error that says what to do, nothing lost, nothing half-visible, and it goes on afterwards.
//!
//! What a commit does when one of its steps fails or is its last is in `crash.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;
#[path = "common/failing.rs"]
mod failing;
#[path = "common/writing.rs"]
mod writing;
mod write_faults {
    mod branch;
    mod damaged;
    mod disk;
    mod full_scratch;
    mod journal;
    mod linked;
    mod repository;
    mod wrong_place;
}
