//! Views: a snapshot in other forms, read by the programs that they are for.

#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::too_many_lines
)]

#[path = "../common/mod.rs"]
mod common;

mod attached;
mod consolidated;
mod export;
#[cfg(feature = "netcdf")]
mod import_ended;
#[cfg(feature = "netcdf")]
mod import_hdf5;
mod import_netcdf;
#[cfg(feature = "netcdf")]
mod import_reencode;
#[cfg(feature = "netcdf")]
mod import_references;
mod import_stores;
mod import_virtual;
mod import_zarr2;
#[cfg(feature = "netcdf")]
mod matrix;
mod memory;
#[cfg(feature = "netcdf")]
mod netcdf;
#[cfg(feature = "netcdf")]
mod netcdf_damage;
#[cfg(feature = "netcdf")]
mod netcdf_floats;
#[cfg(feature = "netcdf")]
mod netcdf_fuzz;
#[cfg(feature = "netcdf")]
mod netcdf_generated;
#[cfg(feature = "netcdf")]
mod netcdf_grids;
#[cfg(feature = "netcdf")]
mod netcdf_hostile;
#[cfg(feature = "netcdf")]
mod netcdf_numbers;
#[cfg(feature = "netcdf")]
mod netcdf_options;
#[cfg(feature = "netcdf")]
mod netcdf_report;
#[cfg(feature = "netcdf")]
mod netcdf_steps;
mod netcdf_unmade;
mod omissions;
#[cfg(feature = "netcdf")]
mod recipes;
mod reshard;
mod shard;
mod unshard;
mod zarr2;
mod zarr2_hostile;
mod zarr2_programs;
