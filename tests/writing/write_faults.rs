//! Disks that are full or read-only, scratch directories that somebody has damaged, repositories that others change
//! meanwhile: an error that says what to do, nothing lost, nothing half-visible, and it goes on afterwards.
//!
//! What a commit does when one of its steps fails or is its last is in `crash.rs`.

mod branch;
mod damaged;
mod full_scratch;
mod journal;
mod linked;
mod repository;
mod wrong_place;
