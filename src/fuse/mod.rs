//! The kernel's side: answers FUSE requests from a [`Tree`](icechunkfs_tree::tree::Tree), mounts
//! and unmounts.
//!
//! A snapshot cannot change, so the kernel may cache entries, attributes and negative entries
//! forever, and file pages and directory listings until memory runs short. Once the caches are
//! warm, no request reaches the daemon.
//!
//! Requests come from `/dev/fuse` ([`device`]) or through io_uring ([`ring`]). [`adapter`] answers
//! those of a snapshot, [`overlay_adapter`] those of a writable branch; [`face`] decides which part
//! of a mount each of them is for, and [`requests`] has the terms.

pub mod access_log;
pub mod adapter;
pub mod answer;
mod attached_files;
pub mod backing;
mod call;
mod child;
pub mod control_parts;
pub mod daemon_mark;
mod device;
mod face;
mod file_attr;
mod handle_flags;
pub mod health;
pub mod helper;
mod init;
pub mod io_mode;
mod kept_listings;
pub mod kernel_features;
pub mod kernel_mount;
pub mod listing_hint;
pub mod mount;
pub mod mount_table;
pub mod mount_target;
pub mod mountpoint;
pub mod open_mount;
pub mod overlay_adapter;
mod overlay_faces;
mod overlay_open;
mod overlay_top;
pub mod preopened;
pub mod presentation;
mod probe;
pub mod processes;
pub mod quiet_log;
pub mod readahead;
mod reply;
mod requests;
pub mod ring;
mod ring_requests;
pub mod root_map;
pub mod served_mount;
pub mod survey;
pub mod unmount;
mod users;
mod wire;
mod xattr;
