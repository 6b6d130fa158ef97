//! icechunkfs shows one ref of an [Icechunk](https://icechunk.io) repository as a plain directory of Zarr files.
//!
//! The folders are floors: each uses only those below it (`tests/architecture.rs` holds them to this table).
//!
//! | floor | what it knows |
//! |---|---|
//! | [`cli`] | the command line: one file a command, the daemon, the log |
//! | [`fuse`] | the kernel: requests and replies, how files are opened, mounting and unmounting |
//! | [`transfer`] | a plain Zarr tree out of a repository, and into one, without a mount |
//! | [`stats`] | what a repository's bytes are for |
//! | [`follow`] | a read-only mount that moves to its branch's newest commit |
//! | [`control`] | the files in `.icechunk`: status, commit, discard and the rest, by reading and writing |
//! | [`session`] | what is done to a working tree as a whole: status, diff, commit, discard, refresh |
//! | [`working`] | the working tree: a snapshot and what programs changed on top of it |
//! | [`scratch`] | what waits for a commit, on disk: a journal and the bytes of changed files |
//! | [`tree`] | names, attributes, listings: a snapshot as a directory tree, without a kernel |
//! | [`repack`] | small chunks put together in fewer objects |
//! | [`compare`] | what is not the same in two snapshots |
//! | [`commit`] | changes to a snapshot: chunks, manifests, a new snapshot, the branch; conflicts with others' commits |
//! | [`reader`] | chunk references to bytes: manifests and small chunks in memory, within one bound |
//! | [`repo`] | a repository of any generation: refs, snapshots, history |
//! | [`zarr`] | what a `zarr.json` means: the chunk grid, the names of chunks |
//! | [`storage`] | where a repository lies: objects by key, with deadlines; others' objects, and which of them may be read |
//! | [`disk_cache`] | bytes of a distant repository on a disk of this machine |
//! | [`mod@format`] | bytes to values, no I/O: headers, ids, the four kinds of file, metadata, configuration |
//! | [`memory`] | the budget that everything decoded shares, and what the machine has |
//! | [`trust`] | which files of this machine other users cannot tamper with |
//! | [`store_names`], [`endpoint`] | names that become part of a store's address, and the address |
//! | [`size`], [`file_name`], [`failpoints`] | sizes as people write them; any text as a file's name; where tests make things fail |
//! | [`error`] | what can go wrong: one kind each, one place that makes it an errno |
//! | [`printable`], [`shell`] | text of others as a terminal, a log or a shell may have it |
//!
//! A request travels down once: the kernel asks [`fuse::adapter`], which asks [`tree::Tree`], which finds the chunk's reference
//! in a manifest that [`reader::Reader`] holds in memory, which reads bytes from [`storage::Storage`]. What is in memory is
//! answered on the spot; only what has to wait becomes a task ([`fuse::answer`]).

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
pub mod printable;
pub mod reader;
pub mod repack;
pub mod repo;
pub mod scratch;
pub mod session;
pub mod shell;
pub mod size;
pub mod stats;
pub mod storage;
pub mod store_names;
pub mod transfer;
pub mod tree;
pub mod trust;
pub mod working;
pub mod zarr;
