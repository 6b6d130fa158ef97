//! Other users of the machine: files that they put in the way of root's mounts, caches and
//! collections have no effect.
//!
//! An attacker here is user `nobody`, who may do on the machine what any user may. These tests need
//! root.

mod cache;
mod claims;
mod collection;
mod commands;
mod control;
mod destinations;
mod exchanges;
mod listing;
mod logs;
mod processes;
mod scratch;
mod stopped;
