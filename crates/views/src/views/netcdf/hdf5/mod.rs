//! Layout of HDF5 files that are made while they are read.
//!
//! A [`model::FileModel`] lists datasets and attributes. A [`plan::Plan`] is made from it, without
//! any data: it fixes the size of the file and the position of every byte, and then describes any
//! byte range as parts: bytes, zeros, or a range of one chunk of one dataset. The caller has the
//! data.
//!
//! ```text
//! 0          superblock (48 bytes)
//! 48         object headers at multiples of 8: groups, the root first, then the datasets
//! ..         global heap: collections of object references, then of texts
//! page       B-trees of the chunked datasets; within a tree the root first, the leaves last
//! >= 12 MiB  data of the datasets: each chunk at a multiple of 4096
//! ```
//!
//! The plan keeps everything before the B-trees: about 1 KB for each dataset. It makes the nodes of
//! the B-trees from their addresses when they are read, so an array of 10^6 chunks costs a few
//! words.
//!
//! ## Format
//!
//! Superblock 2, object headers 2 without continuation, compact links and attributes, data layout
//! 3, version 1 B-trees with K = 32, no filters, little-endian. This is the newest subset that
//! libhdf5 1.8 and readers other than libhdf5 accept: an implicit index (data layout 4) would need
//! no B-tree, but libhdf5 1.8, netCDF-Java and pyfive refuse it. Every chunk is listed, since some
//! readers fail on a B-tree with gaps. "HDF5 spec" below means "HDF5 File Format Specification
//! Version 3.0".
//!
//! netCDF-C 4.10 reads the first 4 MiB of every file that it opens, and the kernel reads ahead. So
//! data begins at 12 MiB: opening a file decodes no chunk. The gap is zeros, and costs nothing.
//!
//! ## Programs that read this layout
//!
//! All values were compared for: netCDF-C 4.4.1 to 4.10.1 with libhdf5 1.8.17 to 2.2; h5py 2.6 to
//! 3.16; pyfive 1.3; netCDF-Java 5.3; the Rust crate `netcdf-reader` 0.12; NCO 5.1, CDO 2.1; GDAL
//! 3.6 and 3.12; R ncdf4 1.21. Samples or output were compared for: PyTables 3.4, jsfive 0.4,
//! h5wasm 0.10, h5dump, h5ls and h5repack 1.10, netCDF-Fortran 4.5, Octave's netcdf 1.0. h5py
//! before 2.10 cannot read attributes with text other than ASCII.

mod attribute;
mod btree;
mod checksum;
mod datatype;
mod heap;
mod members;
mod messages;
pub mod model;
pub mod plan;
mod storage;
#[cfg(test)]
mod tests;

pub(super) use self::checksum::lookup3;
use icechunkfs_base::error::{Error, ErrorKind};

/// Undefined address, and unlimited size.
const UNDEFINED: u64 = u64::MAX;

/// Makes the error for what the format, or a program that reads it, cannot represent.
fn unsupported(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unsupported, message)
}

/// Rounds `value` up to a multiple of `unit`; none if that overflows or `unit` is 0.
fn align(value: u64, unit: u64) -> Option<u64> {
    value.checked_next_multiple_of(unit)
}
