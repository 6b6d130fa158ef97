//! A snapshot as a tree of directories and files: names, attributes, listings, and the bytes of
//! each file.
//!
//! It knows nothing of the kernel, nor of changes. Begin with [`tree`]; [`inodes`] is the map of
//! inode numbers, [`stats`] counts what a repository stores, and [`mount_facts`] tells of a mount
//! what others may know.
//!
//! Three rules that are hard to keep:
//!
//! 1. An inode number means one file of one snapshot, whatever was looked at before.
//! 2. A directory of a million chunks is listed in steps, from any place, without being made.
//! 3. What is read ahead never takes what a program waits for.

pub mod inodes;
pub mod mount_facts;
pub mod stats;
pub mod tree;
