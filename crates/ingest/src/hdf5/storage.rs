//! The file as the library reads it.

use std::io;
use std::sync::Arc;

use hdf5_reader::error::Error as LibraryError;
use hdf5_reader::storage::{BlockCacheStorage, Storage, StorageBuffer};
use hdf5_reader::{Hdf5File, OpenOptions};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use parking_lot::Mutex;

use super::wrong;
use crate::source::Source;

/// Bytes of a block that is read at once: metadata of small files is in one of them.
const BLOCK: usize = 64 << 10;
/// Blocks that are kept.
const BLOCKS: usize = 256;
/// Most bytes of an object header. Those of files with thousands of attributes have less.
const MAX_HEADER: usize = 16 << 20;
/// Most bytes that one part of the metadata has: an index of ten million chunks has less.
const MAX_READ: usize = 512 << 20;

/// Flags of a file that a program writes to, or has not closed (HDF5 specification, "Superblock").
const OPEN_FOR_WRITING: u32 = 0x01 | 0x04;

/// First failure of reading. What the library makes of it need not be one.
pub(super) type Failure = Arc<Mutex<Option<Error>>>;

/// File that the library has opened.
pub(super) struct Opened {
    pub(super) file: Hdf5File,
    /// The same file, for reads that do not go through the library.
    pub(super) source: Arc<dyn Source + Send + Sync>,
    pub(super) failure: Failure,
}

struct Reading {
    source: Arc<dyn Source + Send + Sync>,
    failure: Failure,
}

impl Storage for Reading {
    fn len(&self) -> u64 {
        self.source.length()
    }

    fn read_range(&self, offset: u64, len: usize) -> std::result::Result<StorageBuffer, LibraryError> {
        // Before there is memory for it.
        let available = self.source.length();
        let is_inside = offset.checked_add(len as u64).is_some_and(|end| end <= available);
        if !is_inside || len > MAX_READ {
            return Err(LibraryError::UnexpectedEof { offset, needed: len as u64, available });
        }
        let mut bytes = vec![0; len];
        self.source.read(offset, &mut bytes).map_err(|error| {
            self.failure.lock().get_or_insert(error.clone());
            LibraryError::Io(io::Error::other(error))
        })?;
        Ok(StorageBuffer::from_vec(bytes))
    }
}

/// Bytes of the numbers in a file.
#[derive(Clone, Copy)]
pub(super) struct Widths {
    /// Those of an address.
    pub(super) offset: u8,
    /// Those of a length.
    pub(super) length: u8,
}

impl Widths {
    pub(super) fn of(file: &Hdf5File) -> Self {
        Widths { offset: file.superblock().offset_size, length: file.superblock().length_size }
    }
}

/// Opens the file.
///
/// Errors: [`ErrorKind::Corrupt`] if it is not an HDF5 file; [`ErrorKind::Busy`] if a program has
/// it open for writing.
pub(super) fn open(source: impl Source + Send + Sync + 'static) -> Result<Opened> {
    let failure = Failure::default();
    let source: Arc<dyn Source + Send + Sync> = Arc::new(source);
    let reading = Reading { source: Arc::clone(&source), failure: Arc::clone(&failure) };
    let blocks = BlockCacheStorage::new(Arc::new(reading), BLOCK, BLOCKS);
    let options = OpenOptions::default().with_chunk_cache_bytes(0).with_max_object_header_bytes(MAX_HEADER);
    let file = Hdf5File::from_storage_with_options(Arc::new(blocks), options).map_err(wrong)?;
    // Chunks that its writer has not written yet would be taken for fill values.
    if file.superblock().version >= 3 && file.superblock().consistency_flags & OPEN_FOR_WRITING != 0 {
        let message = "a program has it open for writing, or was stopped before it closed it: close it there; `h5clear \
                       -s FILE` removes the mark";
        return Err(Error::new(ErrorKind::Busy, message));
    }
    Ok(Opened { file, source, failure })
}
