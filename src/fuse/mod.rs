//! The kernel's side: answers FUSE requests from a [`Tree`](crate::tree::Tree), mounts and unmounts.
//!
//! A snapshot cannot change, so the kernel is told to keep whatever it hears: entries, attributes and absences for ever, file
//! pages and directory listings until memory runs short. Once warm, the daemon is not asked at all.
//!
//! [`adapter`] serves a snapshot, [`working_adapter`] a branch that can be written to; no other file names fuser's trait.
//! [`answer`] is the rule that no worker waits: a request is answered
//! at once from memory, or moved to the runtime. [`io_mode`] decides how files are opened, [`backing`] hands whole files to
//! the kernel, [`session`] mounts, [`mount_table`] reads what is mounted, [`inquiry`] asks a mount that
//! may not answer, and [`unmount`] takes mounts down.

pub mod adapter;
pub mod answer;
pub mod backing;
pub mod daemon_mark;
mod declined;
mod init;
pub mod inquiry;
pub mod io_mode;
pub mod kernel_mount;
pub mod listing_hint;
pub mod mount_table;
pub mod quiet_log;
pub mod readahead;
pub mod session;
pub mod unmount;
pub mod working_adapter;
mod working_replies;
