//! Uncommitted changes on top of a snapshot, as a tree that can be written; and what is done with
//! all of them: status, diff, commit, discard, refresh.
//!
//! It knows nothing of requests of the kernel, only of names and files that the kernel may still
//! believe. Begin with [`overlay`], the tree; [`scratch`] is its journal on the disk,
//! [`operations`] what commands do with it, [`control`] the files in `.icechunk`. [`transfer`] and
//! [`follow`] need no changes: a tree goes out or comes in, and a read-only mount follows its
//! branch.
//!
//! Three rules that are hard to keep:
//!
//! 1. What was acknowledged survives a kill at any moment, and in order ([`scratch`]).
//! 2. Between a commit and the new tree nothing that a program wrote is lost, and no program sees a
//!    tree that never was ([`overlay`]).
//! 3. No lock is held across storage I/O or a notification of the kernel.

pub mod control;
pub mod follow;
#[cfg(test)]
mod lab;
pub mod operations;
pub mod overlay;
pub mod scratch;
pub mod transfer;
