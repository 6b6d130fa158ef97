//! A snapshot in other forms, for programs that do not read Zarr version 3; and other snapshots and
//! forms as directories within a mount.
//!
//! It knows nothing of the kernel, nor of changes. Begin with [`views`]; the NetCDF view needs the
//! feature `netcdf`. [`control_directory`] has the files of `.icechunk`, and [`attached`]
//! what is below its directories.
//!
//! Three rules that are hard to keep:
//!
//! 1. A value is shown exactly, or its variable is left out and the report says why: never another
//!    value.
//! 2. A chunk that cannot be read takes no other value with it.
//! 3. The bytes of a file stay the same as long as it is open, and are the same in every mount.

pub mod attached;
pub mod control_directory;
pub mod views;
