//! Mounts one ref of an Icechunk repository as a plain directory of Zarr files.
pub mod cli;
pub mod error;
pub mod format;
pub mod fuse;
pub mod reader;
pub mod repo;
pub mod storage;
pub mod tree;
pub mod zarr;
