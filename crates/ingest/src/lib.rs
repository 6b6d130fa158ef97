//! Plans for making a Zarr hierarchy of a file of another format.
//!
//! A [`plan::Plan`] says which groups and arrays a file becomes, with the bytes of the file that
//! each chunk is made of, and what is left out and why. Nothing is copied here, and nothing is
//! known of repositories, mounts or networks: who carries a plan out reads the ranges, or refers to
//! them.
//!
//! Begin at [`plan`]; [`netcdf3`] makes plans of the classic formats of NetCDF, [`apart`] has those
//! of HDF5 made by a process without rights. Trees of Zarr 2, whose chunks are files already, need
//! no plan: [`zarr2`] makes their documents. Hard rules:
//!
//! - A file is untrusted: every count is checked against the file and the memory bound before
//!   anything is made by it, and every range lies within the file.
//! - Nothing is left out in silence: it is an [`plan::Omission`].
//! - Values are those that the format's own library reads, or the plan fails.

pub mod apart;
pub mod coordinate;
pub mod kerchunk;
pub mod netcdf3;
pub mod plan;
pub mod recode;
pub mod run;
pub mod series;
pub mod source;
pub mod zarr2;

mod asked;
mod attributes;
mod chunking;
mod codec;
mod data;
mod difference;
mod document;
mod element;
#[cfg(feature = "apart")]
mod hdf5;
mod texts;
