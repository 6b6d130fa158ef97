//! Stores that lie: every command that talks to one ends in time and within its memory, whatever it answers.

mod commands;
mod measure;
mod mounts;
mod transfers;
mod virtuals;
