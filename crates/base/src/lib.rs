//! The foundation of all crates of icechunkfs: errors and their errno, untrusted text made safe,
//! times and sizes, the budget of memory, access patterns, and checks of local files.
//!
//! It knows nothing of Icechunk, of stores or of FUSE. Begin with [`error`]: one kind of error for
//! all, and one place that maps kinds to errno.
//!
//! Three rules that are hard to keep:
//!
//! 1. What is read from disk or network is counted before it is made ([`memory::Meter`]), so that
//!    no input takes more than `--memory`.
//! 2. A file is the user's only if the mount that it is on, every directory above it and its owner
//!    are trusted ([`trust`]); a path is opened below a descriptor, never twice by name
//!    ([`mod@beneath`]).
//! 3. Text of others reaches a terminal, a log or a shell escaped ([`printable`], [`shell`]).

pub mod access_pattern;
pub mod beneath;
pub mod blocking;
pub mod endpoint;
pub mod error;
pub mod failpoints;
pub mod file_name;
pub mod memory;
pub mod metrics;
pub mod native_numbers;
pub mod printable;
pub mod recent_errors;
pub mod shell;
pub mod size;
pub mod stages;
pub mod store_names;
pub mod times;
pub mod trust;
