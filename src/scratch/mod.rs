//! What waits for a commit, on disk.
//!
//! A scratch directory belongs to one branch of one repository and is used by one daemon at a time ([`place`]). It holds
//!
//! | | |
//! |---|---|
//! | `journal` | every change of names and attributes, one line each ([`journal`], [`record`]) |
//! | `data/N` | the bytes of changed files, one file each ([`data`]) |
//! | `lock` | who uses it |
//! | `boot` | when the machine was started that used it last, and what was on the disk then ([`durable`]) |
//! | `spare` | room for what gives room back on a full disk ([`spare`]) |
//! | `lost+found` | bytes that a power cut left without a name |
//! | `README` | the same, for whoever comes across it |
//!
//! A change is one appended line, so it is there or not; a line that a crash tore is noticed by its checksum and was never
//! answered. That makes what no file system can do in one step atomic here: an exchange of two names, a move of a group with
//! millions of chunks below it, a deletion of something that only the snapshot has. And one `fsync` of the journal makes all
//! of a file's past durable, its name included. [`durable`] has the order in which things reach the disk.
//!
//! Bytes never go through the journal. A data file that a commit has linked into the repository has two names from then on,
//! and nobody writes to a file with two names again ([`data::Files::is_own`]).

mod boot;
pub mod data;
pub mod durable;
pub mod journal;
pub mod moved;
pub mod needs;
pub mod place;
pub mod record;
pub mod salvage;
pub mod search;
mod spare;
pub mod waiting;
