//! Names and checksums of cache entries.
//!
//! The checksum is an extended attribute of the file, so that the file itself has the entry's bytes
//! and nothing else. The attribute stays with the file through a rename, and in a file system whose
//! inodes have room for it (ext4's, by default) costs no block.

use std::fs::File;
use std::io;

use rustix::fs::XattrFlags;

use icechunkfs_base::file_name;

/// Extended attribute with the length and the checksum.
const ATTRIBUTE: &str = "user.icechunkfs.sum";

/// Name of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Name(String);

impl Name {
    /// Names the whole of object `key`, which never changes.
    pub fn whole(key: &str) -> Self {
        Name(file_name::encode(key))
    }

    /// Names a range of object `key`.
    pub fn range(key: &str, offset: u64, length: u64) -> Self {
        Name(format!("{} {offset:x}+{length:x}", file_name::encode(key)))
    }

    /// Names document `key`, which changes.
    pub(super) fn document(key: &str) -> Self {
        Name(format!("= {}", file_name::encode(key)))
    }

    /// Returns the name as a file name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the folder of the entry: entries are spread over 256 folders.
    pub(super) fn folder(&self) -> String {
        format!("{:02x}", crc32fast::hash(self.0.as_bytes()) >> 24)
    }
}

/// Length and checksum of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) length: u64,
    pub(super) sum: u32,
}

impl Sum {
    pub(super) fn of(bytes: &[u8]) -> Self {
        Sum { length: bytes.len() as u64, sum: crc32fast::hash(bytes) }
    }

    /// Reads the sum that was written to `file`, if there is one.
    pub(super) fn of_file(file: &File) -> Option<Self> {
        let mut value = [0; 12];
        let count = rustix::fs::fgetxattr(file, ATTRIBUTE, &mut value).ok()?;
        let (length, sum) = value.get(..count)?.split_first_chunk::<8>()?;
        Some(Sum { length: u64::from_le_bytes(*length), sum: u32::from_le_bytes(sum.try_into().ok()?) })
    }

    pub(super) fn write_to(self, file: &File) -> io::Result<()> {
        let mut value = self.length.to_le_bytes().to_vec();
        value.extend_from_slice(&self.sum.to_le_bytes());
        Ok(rustix::fs::fsetxattr(file, ATTRIBUTE, &value, XattrFlags::empty())?)
    }
}
