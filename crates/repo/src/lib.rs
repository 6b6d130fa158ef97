//! A repository: refs, history, chunks, commits, merges, copies and maintenance, in every version
//! of the format.
//!
//! It knows nothing of files that programs see, nor of the kernel. Begin with [`repo`], which opens
//! one; [`reader`] finds the bytes of a chunk, and [`commit`] makes a snapshot of a change set.
//!
//! Three rules that are hard to keep:
//!
//! 1. An object that exists is never written again, and a failed operation changes nothing that a
//!    ref leads to.
//! 2. Ids prove nothing: what has the same id is compared ([`sync`]), and records of merges are
//!    checked against both trees ([`merge`]).
//! 3. Garbage is what nobody can need: a reader, a writer at work, uncommitted changes of a mount,
//!    or a copy that began before.

pub mod cache;
pub mod commit;
pub mod compare;
pub mod merge;
pub mod reader;
pub mod repack;
pub mod repo;
pub mod restore;
pub mod sync;
