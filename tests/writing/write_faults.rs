//! Full or read-only disks, damaged scratch directories, repositories that other programs change
//! meanwhile: an error with a remedy, nothing lost, nothing half-visible, and the mount continues
//! afterwards.
//!
//! Commits that fail or are killed at one of their steps are in `crash.rs`.

mod branch;
mod damaged;
mod full_scratch;
mod journal;
mod linked;
mod lost_writes;
mod repository;
mod wrong_place;
