//! icechunkfs mounts one ref of an [Icechunk](https://icechunk.io) repository as a plain directory
//! of Zarr files.
//!
//! As a program, it is used from the command line: `icechunkfs --help`. As a library, it opens a
//! [`Repository`], lists its [`Refs`] and history, reads the files of a snapshot in a [`Session`],
//! and mounts snapshots and branches ([`Mount`]) in the process that uses it. All functions block.
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
//! A mount of a branch of a repository in an object store; any program can write in it, and the
//! drop unmounts:
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

// Only what is exported here is promised. The modules are public for the program, tests, benches
// and fuzzers of this project and hidden from the documentation: they can change in any release.
//
// This crate is the kernel's side and the command line. Each crate below has a page in its
// `lib.rs`, and uses only those before it:
//
// | crate | responsibility |
// |---|---|
// | `icechunkfs-base` | errors, bounds of memory, trust in local files, text made safe |
// | `icechunkfs-format` | the files of a repository and documents of Zarr: bytes to values, no I/O |
// | `icechunkfs-store` | objects by key, with deadlines; a cache of them on a disk |
// | `icechunkfs-repo` | refs, history, chunks, commits, merges, copies, maintenance |
// | `icechunkfs-tree` | a snapshot as directories and files |
// | `icechunkfs-views` | a snapshot in other forms, and what is below `.icechunk` |
// | `icechunkfs-working` | uncommitted changes, and what is done with them |
// | [`fuse`] | the kernel: requests and replies, I/O modes, mounting and unmounting |
// | [`library`] | what other programs may rely on; opening and mounting for it and for `cli` |
// | [`cli`] | the command line: one file per command, the daemon, the log |
//
// A request travels down once: the kernel asks `fuse::adapter`, which asks `tree::Tree`, which
// finds the chunk's reference in a manifest that `reader::Reader` holds in memory, which reads
// bytes from `storage::Storage`. A request is answered immediately if its data are in memory, and
// becomes a task only if it must wait (`fuse::answer`).

#[doc(hidden)]
pub use icechunkfs_base::{
    beneath, blocking, endpoint, error, failpoints, file_name, memory, metrics, printable, recent_errors, shell, size,
    store_names, times, trust,
};
#[doc(hidden)]
pub use icechunkfs_format::{format, zarr};
#[doc(hidden)]
pub use icechunkfs_ingest as ingest;
#[doc(hidden)]
pub use icechunkfs_repo::{commit, compare, merge, reader, repack, repo, restore, sync};
#[doc(hidden)]
pub use icechunkfs_store::{disk_cache, storage};
#[doc(hidden)]
pub use icechunkfs_tree::{inodes, mount_facts, stats, tree};
#[doc(hidden)]
pub use icechunkfs_views::{attached, views};
#[doc(hidden)]
pub use icechunkfs_working::{control, follow, operations, overlay, scratch, transfer};
#[doc(hidden)]
pub mod cli;
#[doc(hidden)]
pub mod fuse;
#[doc(hidden)]
pub mod library;

/// Name of the program, by which its processes and the type of its mounts are known: not that of a
/// package, which another crate of the workspace would have.
pub(crate) const PROGRAM: &str = "icechunkfs";

pub use error::{Error, ErrorKind, Result};
pub use format::ids::ObjectId as SnapshotId;
pub use inodes::Ino;
pub use library::{Entry, Mount, Mounted, Repository, Session, Snapshot};
pub use repo::refs::Refs;
pub use storage::settings::Settings as StoreSettings;
pub use tree::{Attributes, Kind};
