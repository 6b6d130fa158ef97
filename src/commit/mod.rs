//! Changes to a snapshot become a commit.
//!
//! [`changes`] says what changed, in terms of nodes and chunk coordinates and without any file system in it.

pub mod changes;
