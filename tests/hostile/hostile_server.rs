//! Hostile stores: every command that uses one ends in time and within its memory, whatever the
//! store answers.

mod commands;
mod measure;
mod mounts;
mod transfers;
mod virtuals;
