//! icechunkfs mounts one ref of an [Icechunk](https://icechunk.io) repository as a plain directory of Zarr files.
//!
//! The modules are layers: each uses only those below it (`tests/architecture.rs` enforces this table).
//!
//! | layer | responsibility |
//! |---|---|
//! | [`cli`] | the command line: one file per command, the daemon, the log |
//! | [`fuse`] | the kernel: requests and replies, I/O modes, mounting and unmounting |
//! | [`transfer`] | export and import of a plain Zarr tree, without a mount |
//! | [`stats`] | storage use of a repository |
//! | [`follow`] | a read-only mount that follows the tip of its branch |
//! | [`control`] | the control files in `.icechunk`: status, commit, discard and others |
//! | [`operations`] | operations on a whole working tree: status, diff, commit, discard, refresh |
//! | [`overlay`] | the working tree: uncommitted changes on top of a base snapshot |
//! | [`scratch`] | uncommitted state on disk: a journal and the data files of changed files |
//! | [`views`] | a snapshot in other forms, for programs that do not read Zarr version 3 |
//! | [`tree`] | a snapshot as a directory tree: names, attributes, listings; independent of the kernel |
//! | [`repack`] | packing of small chunks into fewer objects |
//! | [`compare`] | differences between two snapshots |
//! | [`commit`] | committing a change set: chunks, manifests, a snapshot, the branch; conflicts with concurrent commits |
//! | [`reader`] | chunk references to bytes: manifests and small chunks in memory, within one bound |
//! | [`repo`] | a repository of any version: refs, snapshots, history, maintenance |
//! | [`zarr`] | the meaning of a `zarr.json`: chunk grid, chunk keys, shards |
//! | [`storage`] | objects by key, with deadlines; virtual chunks, and permissions to read them |
//! | [`disk_cache`] | bytes of a remote repository on a local disk |
//! | [`mod@format`] | bytes to values, no I/O: headers, ids, the four kinds of file, metadata, configuration |
//! | [`memory`] | the budget of all decoded data, and the memory of the machine |
//! | [`trust`] | checks that other users cannot tamper with a local file |
//! | [`store_names`], [`endpoint`] | names that become part of a store's address, and the address |
//! | [`size`], [`times`], [`file_name`], [`failpoints`] | human-readable sizes; times; any text as a file name; fail points |
//! | [`mod@blocking`] | blocking work on threads for that |
//! | [`error`] | error kinds, and their errno |
//! | [`printable`], [`shell`] | untrusted text made safe for a terminal, a log or a shell |
//!
//! A request travels down once: the kernel asks [`fuse::adapter`], which asks [`tree::Tree`], which finds the chunk's reference
//! in a manifest that [`reader::Reader`] holds in memory, which reads bytes from [`storage::Storage`]. A request is answered
//! immediately if its data are in memory, and becomes a task only if it must wait ([`fuse::answer`]).

pub mod blocking;
pub mod cli;
pub mod commit;
pub mod compare;
pub mod control;
pub mod disk_cache;
pub mod endpoint;
pub mod error;
pub mod failpoints;
pub mod file_name;
pub mod follow;
pub mod format;
pub mod fuse;
pub mod memory;
pub mod operations;
pub mod overlay;
pub mod printable;
pub mod reader;
pub mod repack;
pub mod repo;
pub mod scratch;
pub mod shell;
pub mod size;
pub mod stats;
pub mod storage;
pub mod store_names;
pub mod times;
pub mod transfer;
pub mod tree;
pub mod trust;
pub mod views;
pub mod zarr;
