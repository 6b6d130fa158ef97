//! Uncommitted changes on disk: the scratch directory and its journal.
//!
//! A scratch directory belongs to one branch of one repository and is used by one daemon at a time
//! ([`directory`]). It holds
//!
//! | | |
//! |---|---|
//! | `journal` | every change of names and attributes, one line each ([`journal`], [`record`]) |
//! | `data/N` | the bytes of changed files, one file each ([`data`]) |
//! | `lock` | the process that uses the directory |
//! | `disposable` | in the directory of a job: it may be removed when its mount ends ([`jobs`]) |
//! | `boot` | the boot id of the last use, and the durable length of the journal ([`durable`]) |
//! | `spare` | space reserved for operations that free space on a full disk ([`reserve`]) |
//! | `lost+found` | bytes whose names were lost in a power cut |
//! | `README` | a short description for users |
//!
//! A change is one appended line, so it exists or it does not; a line torn by a crash has a wrong
//! checksum, and its change was never acknowledged. This makes operations atomic that no file
//! system can do in one step: an exchange of two names, a move of a group with millions of chunks
//! below it, a deletion of an entry that only the base has. One `fsync` of the journal makes a
//! file's whole history durable, its name included. [`durable`] describes the order in which bytes
//! reach the disk, [`compaction`] how a journal is shortened.
//!
//! Bytes never go through the journal. A data file that a commit has linked into the repository has
//! two names, and a file with two names is never written to ([`data::Files::is_unshared`]).

mod boot;
pub mod compaction;
pub mod data;
pub mod directory;
pub mod durable;
mod guarded_walk;
pub mod jobs;
pub mod journal;
pub mod pending;
pub mod record;
pub mod relocate;
pub mod requirements;
mod reserve;
pub mod salvage;
pub mod search;
pub mod work;
