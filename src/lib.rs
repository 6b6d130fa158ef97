//! icechunkfs mounts one ref of an [Icechunk](https://icechunk.io) repository as a plain directory of Zarr files.
//!
//! As a program, it is used from the command line: `icechunkfs --help`. As a library, it opens a [`Repository`], lists its
//! [`Refs`] and history, reads the files of a snapshot in a [`Session`], and mounts snapshots and branches ([`Mount`]) in the
//! process that uses it. All functions block.
//!
//! ```
//! use icechunkfs::{Repository, StoreSettings};
//!
//! # fn main() -> icechunkfs::Result<()> {
//! let repository = Repository::open("tests/fixtures/repos/own-v2-basic", &StoreSettings::default())?;
//! for snapshot in repository.log("main")? {
//!     println!("{} {} {}", snapshot.id, snapshot.time, snapshot.message);
//! }
//! let session = repository.session("main~1")?;
//! for entry in session.list("/")? {
//!     println!("{} {}", entry.name, entry.attributes.size);
//! }
//! let document = session.read("zarr.json")?;
//! assert!(document.starts_with(b"{"));
//! # Ok(())
//! # }
//! ```
//!
//! A mount of a branch of a repository in an object store; any program can write in it, and the drop unmounts:
//!
//! ```no_run
//! use icechunkfs::{Mount, Repository, StoreSettings};
//!
//! # fn main() -> icechunkfs::Result<()> {
//! let mut settings = StoreSettings::default();
//! settings.timeout = Some(std::time::Duration::from_secs(30));
//! let repository = Repository::open("s3://bucket/path", &settings)?;
//! let mounted = Mount::new(&repository).branch("main").at("/mnt/data")?;
//! std::process::Command::new("simulate").arg(mounted.path()).status().expect("it can be started");
//! println!("committed {:?}", mounted.commit("A simulation")?);
//! # Ok(())
//! # }
//! ```

// Only what is exported here is promised. The modules are public for the program, tests, benches and fuzzers of this project
// and hidden from the documentation: they can change in any release.
//
// They are layers: each uses only those below it (`tests/architecture.rs` enforces this table).
//
// | layer | responsibility |
// |---|---|
// | [`cli`] | the command line: one file per command, the daemon, the log |
// | [`library`] | what other programs may rely on; opening and mounting for it and for `cli` |
// | [`fuse`] | the kernel: requests and replies, I/O modes, mounting and unmounting |
// | [`transfer`] | export and import of a plain Zarr tree, without a mount |
// | [`stats`] | storage use of a repository |
// | [`follow`] | a read-only mount that follows the tip of its branch |
// | [`control`] | the control files in `.icechunk`: status, commit, discard and others |
// | [`operations`] | operations on a whole working tree: status, diff, commit, discard, refresh |
// | [`overlay`] | the working tree: uncommitted changes on top of a base snapshot |
// | [`scratch`] | uncommitted state on disk: a journal and the data files of changed files |
// | [`attached`] | other snapshots and other views as directories within a mount |
// | [`views`] | a snapshot in other forms, for programs that do not read Zarr version 3 |
// | [`tree`] | a snapshot as a directory tree: names, attributes, listings; independent of the kernel |
// | [`sync`] | copies of histories between repositories: clone, push, pull |
// | [`restore`] | a path of an older snapshot, as changes to a newer one |
// | [`merge`] | what a branch changed since the common ancestor, as a commit on another branch |
// | [`repack`] | packing of small chunks into fewer objects |
// | [`compare`] | differences between two snapshots |
// | [`commit`] | committing a change set: chunks, manifests, a snapshot, the branch; conflicts with concurrent commits |
// | [`mount_facts`] | repository, ref and options of a mount, for those who look at it |
// | [`reader`] | chunk references to bytes: manifests and small chunks in memory, within one bound |
// | [`repo`] | a repository of any version: refs, snapshots, history, maintenance |
// | [`zarr`] | the meaning of a `zarr.json`: chunk grid, chunk keys, shards |
// | [`storage`] | objects by key, with deadlines; virtual chunks, and permissions to read them |
// | [`disk_cache`] | bytes of a remote repository on a local disk |
// | [`mod@format`] | bytes to values, no I/O: headers, ids, the four kinds of file, metadata, configuration |
// | [`memory`] | the budget of all decoded data, and the memory of the machine |
// | [`mod@beneath`] | opening files below a directory, on old kernels too |
// | [`trust`] | checks that other users cannot tamper with a local file |
// | [`store_names`], [`endpoint`] | names that become part of a store's address, and the address |
// | [`metrics`] | counts of requests, bytes and failures |
// | [`recent_errors`] | the last failures that programs met |
// | [`size`], [`times`], [`file_name`], [`failpoints`] | human-readable sizes; times; any text as a file name; fail points |
// | [`mod@blocking`] | blocking work on threads for that |
// | [`error`] | error kinds, and their errno |
// | [`printable`], [`shell`] | untrusted text made safe for a terminal, a log or a shell |
//
// A request travels down once: the kernel asks `fuse::adapter`, which asks `tree::Tree`, which finds the chunk's reference
// in a manifest that `reader::Reader` holds in memory, which reads bytes from `storage::Storage`. A request is answered
// immediately if its data are in memory, and becomes a task only if it must wait (`fuse::answer`).

#[doc(hidden)]
pub mod attached;
#[doc(hidden)]
pub mod beneath;
#[doc(hidden)]
pub mod blocking;
#[doc(hidden)]
pub mod cli;
#[doc(hidden)]
pub mod commit;
#[doc(hidden)]
pub mod compare;
#[doc(hidden)]
pub mod control;
#[doc(hidden)]
pub mod disk_cache;
#[doc(hidden)]
pub mod endpoint;
#[doc(hidden)]
pub mod error;
#[doc(hidden)]
pub mod failpoints;
#[doc(hidden)]
pub mod file_name;
#[doc(hidden)]
pub mod follow;
#[doc(hidden)]
pub mod format;
#[doc(hidden)]
pub mod fuse;
#[doc(hidden)]
pub mod library;
#[doc(hidden)]
pub mod memory;
#[doc(hidden)]
pub mod merge;
#[doc(hidden)]
pub mod metrics;
#[doc(hidden)]
pub mod mount_facts;
#[doc(hidden)]
pub mod operations;
#[doc(hidden)]
pub mod overlay;
#[doc(hidden)]
pub mod printable;
#[doc(hidden)]
pub mod reader;
#[doc(hidden)]
pub mod recent_errors;
#[doc(hidden)]
pub mod repack;
#[doc(hidden)]
pub mod repo;
#[doc(hidden)]
pub mod restore;
#[doc(hidden)]
pub mod scratch;
#[doc(hidden)]
pub mod shell;
#[doc(hidden)]
pub mod size;
#[doc(hidden)]
pub mod stats;
#[doc(hidden)]
pub mod storage;
#[doc(hidden)]
pub mod store_names;
#[doc(hidden)]
pub mod sync;
#[doc(hidden)]
pub mod times;
#[doc(hidden)]
pub mod transfer;
#[doc(hidden)]
pub mod tree;
#[doc(hidden)]
pub mod trust;
#[doc(hidden)]
pub mod views;
#[doc(hidden)]
pub mod zarr;

pub use error::{Error, ErrorKind, Result};
pub use format::ids::ObjectId as SnapshotId;
pub use library::{Entry, Mount, Mounted, Repository, Session, Snapshot};
pub use repo::refs::Refs;
pub use storage::settings::Settings as StoreSettings;
pub use tree::{Attributes, Kind};
