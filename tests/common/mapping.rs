//! Mappings of files, which keep them open when their descriptors are closed.

use std::fs::File;
use std::os::fd::AsRawFd;

/// A mapping of a whole file.
pub struct Mapping {
    start: *mut libc::c_void,
    size: usize,
}

impl Mapping {
    /// Maps a file for reading and writing.
    pub fn shared(file: &File) -> Mapping {
        Mapping::new(file, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED)
    }

    pub fn read_only(file: &File) -> Mapping {
        Mapping::new(file, libc::PROT_READ, libc::MAP_PRIVATE)
    }

    fn new(file: &File, protection: i32, flags: i32) -> Mapping {
        let size = usize::try_from(file.metadata().unwrap().len()).unwrap();
        // SAFETY: a new mapping at a place that the kernel chooses touches nothing that exists.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), size, protection, flags, file.as_raw_fd(), 0) };
        assert_ne!(start, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        Mapping { start, size }
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: mapped as long as self lives, and the file is not cut.
        unsafe { std::slice::from_raw_parts(self.start.cast(), self.size) }
    }

    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.size);
        // SAFETY: within the mapping, which nothing else uses; the file has that size.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.cast::<u8>().add(at), bytes.len()) };
    }

    /// Writes `byte` everywhere, and flushes it.
    pub fn fill(&self, byte: u8) {
        self.write(0, &vec![byte; self.size]);
        // SAFETY: the mapping is ours and whole.
        assert_eq!(unsafe { libc::msync(self.start, self.size, libc::MS_SYNC) }, 0);
    }

    /// Returns the number of its pages in the kernel's cache.
    pub fn cached_pages(&self) -> usize {
        let mut pages = vec![0_u8; self.size.div_ceil(4096)];
        // SAFETY: a vector with a byte for each page of the mapping.
        assert_eq!(unsafe { libc::mincore(self.start, self.size, pages.as_mut_ptr()) }, 0);
        pages.iter().filter(|page| **page & 1 == 1).count()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing borrows from it.
        unsafe { libc::munmap(self.start, self.size) };
    }
}
