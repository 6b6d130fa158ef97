//! The NetCDF-4 view: one `.nc` file for each group with arrays. A NetCDF-4 file is an HDF5 file; [`hdf5`] lays it out.

pub mod hdf5;
