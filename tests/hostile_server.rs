//! Stores that lie: every command that talks to one ends in time and within its memory, whatever it answers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;
#[path = "common/hostile.rs"]
mod hostile;
#[path = "common/lab.rs"]
mod lab;
#[path = "virtuals/made.rs"]
mod made;
#[path = "common/writing.rs"]
mod writing;

#[path = "hostile_server/commands.rs"]
mod commands;
#[path = "hostile_server/measure.rs"]
mod measure;
#[path = "hostile_server/mounts.rs"]
mod mounts;
#[path = "hostile_server/transfers.rs"]
mod transfers;
#[path = "hostile_server/virtuals.rs"]
mod virtuals;
