//! Views: a snapshot in other forms, read by the programs that they are for.

#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "../common/mod.rs"]
mod common;

mod consolidated;
#[cfg(feature = "netcdf")]
mod netcdf;
mod reshard;
mod shard;
mod unshard;
mod zarr2;
mod zarr2_hostile;
mod zarr2_programs;
