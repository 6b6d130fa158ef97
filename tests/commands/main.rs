//! The command line, without a mount or beside one.

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

mod cloned_from;
mod cluster;
mod commands;
mod config;
mod confirm;
mod detached;
mod diff;
mod diff_values;
mod doctor;
mod entry_points;
mod examples_page;
mod generate;
mod graph;
mod hostile_source;
mod hostile_version_1;
mod interrupted;
mod list;
mod merge;
mod merge_at_once;
mod merge_collected;
mod merge_history;
mod mistakes;
mod naming;
mod partly_collected;
mod printing;
mod properties;
mod ref_faults;
mod reference_pages;
mod refs;
mod resolve;
mod restore;
mod revert;
mod rewritten;
mod run;
mod same_ids;
mod service;
mod show;
mod stages;
mod stats;
mod sync;
mod sync_collected;
mod transfer;
mod undo;
mod verify;
mod warnings;
