//! Records: the lines of the journal.
//!
//! Inodes have separate numbers here (an [`EntryId`] each), because the kernel's numbers mean
//! nothing in the next mount. The part of the base that an inode shows is recorded as its path
//! there: a snapshot never changes, so the path keeps its meaning.

use std::sync::Arc;

use bytes::Bytes;
use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};

use icechunkfs_base::error::Error;
use icechunkfs_format::format::chunk_payload::{Checksum, ChunkPayload};
use icechunkfs_format::format::ids::NodeId;

/// Number of an inode in the scratch directory, never reused. [`ROOT`] is the root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EntryId(pub u64);

/// Number of a data file, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DataFileId(pub u64);

/// Id of the root directory.
pub const ROOT: EntryId = EntryId(1);

/// Seconds and nanoseconds since 1970-01-01 UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Time(pub i64, pub u32);

/// File name: any bytes but `/` and NUL. Text in the journal, or a list of bytes if it is not
/// UTF-8.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "NameRepr", into = "NameRepr")]
pub struct Name(pub Arc<[u8]>);

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum NameRepr {
    Text(String),
    Bytes(Vec<u8>),
}

/// Attributes of an inode, except for its kind and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// Permission bits, including set-id and sticky bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last access; only `utimens` changes it.
    pub atime: Time,
    /// Last change of the bytes. For a file with a data file, that file's time applies instead.
    pub mtime: Time,
    /// Last change of the bytes, attributes or names.
    pub ctime: Time,
}

/// Kind of an inode, with the content of that kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Body {
    /// Directory.
    Directory,
    /// Regular file, with the location of its bytes.
    File(Source),
    /// Symbolic link, with its target.
    Symlink(Name),
    /// Device, FIFO or socket.
    Special {
        /// File type bits of the mode.
        kind: u32,
        /// Device number.
        rdev: u32,
    },
}

/// Location of a regular file's bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// In the base, at the inode's lower path.
    Lower,
    /// In `data/N`.
    Data(DataFileId),
    /// In the repository: a chunk that was copied whole from another one.
    Stored(Stored),
}

impl Source {
    /// Returns the location of no bytes: of a file that no one has written to, and that has no data
    /// file.
    pub fn empty() -> Self {
        Source::Stored(Stored(ChunkPayload::Inline(Bytes::new())))
    }

    /// Returns true if it is [`Source::empty`].
    pub fn is_empty(&self) -> bool {
        matches!(self, Source::Stored(Stored(ChunkPayload::Inline(bytes))) if bytes.is_empty())
    }
}

/// [`ChunkPayload`], with the bytes of an inline chunk as hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "StoredRepr", into = "StoredRepr")]
pub struct Stored(pub ChunkPayload);

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StoredRepr {
    Inline(String),
    Native { chunk: String, offset: u64, length: u64 },
    Virtual { location: String, offset: u64, length: u64, etag: Option<String>, last_modified: Option<u32> },
}

/// One line of the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Record {
    /// First line: the base of the changes.
    Base {
        /// Version of the journal's format.
        format: u32,
        /// Location of the repository.
        repository: String,
        /// Branch.
        branch: String,
        /// Base snapshot.
        snapshot: String,
        /// Identity of the repository wherever it is located, if known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        identity: Option<String>,
    },
    /// New inode under a name.
    Create {
        /// Parent directory.
        parent: EntryId,
        /// Name, which was free.
        name: Name,
        /// New inode.
        id: EntryId,
        /// Attributes of the inode.
        meta: Meta,
        /// Kind of the inode.
        body: Body,
    },
    /// Promotion: an entry of the base becomes an inode in its place.
    Promote {
        /// Parent directory; `None` for the root.
        parent: Option<EntryId>,
        /// Name.
        name: Name,
        /// New inode.
        id: EntryId,
        /// Path in the base.
        lower: String,
        /// Attributes of the inode.
        meta: Meta,
        /// Kind of the inode.
        body: Body,
    },
    /// Additional name for a file.
    Link {
        /// Parent directory.
        parent: EntryId,
        /// Name, which was free.
        name: Name,
        /// Linked file.
        id: EntryId,
        /// Time of the change.
        at: Time,
    },
    /// Removal of a name.
    Remove {
        /// Parent directory.
        parent: EntryId,
        /// Name.
        name: Name,
        /// True if the base has an entry of that name, so that a whiteout is needed.
        hide: bool,
        /// Time of the change.
        at: Time,
    },
    /// Rename. An inode that had the new name loses it, or gets the old one.
    Rename {
        /// Old parent directory.
        parent: EntryId,
        /// Old name, which belongs to an inode of the working tree.
        name: Name,
        /// New parent directory.
        new_parent: EntryId,
        /// New name.
        new_name: Name,
        /// True if the two names are exchanged.
        exchange: bool,
        /// True if the base has an entry of the old name, so that a whiteout is needed.
        hide: bool,
        /// Time of the change.
        at: Time,
    },
    /// New attributes of an inode.
    Attributes {
        /// Inode.
        id: EntryId,
        /// All attributes.
        meta: Meta,
    },
    /// New location of a file's bytes.
    #[serde(rename = "moved")]
    SetSource {
        /// File.
        id: EntryId,
        /// New location.
        source: Source,
        /// Time of the change.
        at: Time,
    },
    /// Sparse copy: only these bytes of a data file are still elsewhere. An inode has the data file
    /// already, or gets it later.
    #[serde(rename = "borrowed")]
    Sparse {
        /// Data file.
        data: DataFileId,
        /// Location of the missing bytes, at the same offsets.
        from: Stored,
        /// Ranges: first byte, and the byte after the last.
        missing: Vec<(u64, u64)>,
    },
    /// Range of a sparse copy that is now in the data file.
    Covered {
        /// Data file.
        data: DataFileId,
        /// First byte.
        begin: u64,
        /// Byte after the last.
        end: u64,
    },
    /// Data file with bytes that could not be written to the disk: nothing may commit them.
    FlushFailed {
        /// Data file.
        data: DataFileId,
    },
    /// Whiteout; only in a rewritten journal.
    #[serde(rename = "hidden")]
    Whiteout {
        /// Parent directory.
        parent: EntryId,
        /// Name.
        name: Name,
    },
    /// Directory of a node that was restored: the node gets the id that it had. Only in a rewritten
    /// journal.
    Restored {
        /// Directory.
        id: EntryId,
        /// Node.
        node: NodeId,
        /// True for an array.
        is_array: bool,
    },
    /// A commit is about to publish this snapshot. If the branch has it, everything before this
    /// line is in it.
    Publishing {
        /// Snapshot.
        snapshot: String,
    },
    /// The commit of this snapshot was searched for and not found, and changes continue. If the
    /// storage still completes it later, the lines from this one on are not part of it.
    Unpublished {
        /// Snapshot.
        snapshot: String,
    },
}

impl std::fmt::Display for EntryId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "entry {}", self.0)
    }
}

impl DataFileId {
    /// Returns the name of the file in the directory of data files.
    pub fn file_name(self) -> String {
        self.0.to_string()
    }

    /// Returns the number of the data file called `name`. No mount comes as far as the numbers that
    /// it does not know.
    pub fn from_file_name(name: &str) -> Option<Self> {
        name.parse().ok().filter(|number| *number <= u64::MAX / 2).map(DataFileId)
    }
}

impl std::fmt::Display for DataFileId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "data file {}", self.0)
    }
}

impl Time {
    /// Returns the current time.
    pub fn now() -> Self {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        Time(now.tv_sec, u32::try_from(now.tv_nsec).unwrap_or(0))
    }
}

impl Name {
    /// Creates a name from bytes.
    pub fn new(bytes: &[u8]) -> Self {
        Name(bytes.into())
    }

    /// Returns the name as text if it is UTF-8: a snapshot has only such names.
    pub fn text(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&icechunkfs_base::printable::text(&self.0))
    }
}

impl From<NameRepr> for Name {
    fn from(repr: NameRepr) -> Self {
        match repr {
            NameRepr::Text(text) => Name(text.into_bytes().into()),
            NameRepr::Bytes(bytes) => Name(bytes.into()),
        }
    }
}

impl From<Name> for NameRepr {
    fn from(name: Name) -> Self {
        String::from_utf8(name.0.to_vec()).map_or_else(|e| NameRepr::Bytes(e.into_bytes()), NameRepr::Text)
    }
}

impl From<Stored> for StoredRepr {
    fn from(Stored(payload): Stored) -> Self {
        match payload {
            ChunkPayload::Inline(bytes) => StoredRepr::Inline(HEXLOWER.encode(&bytes)),
            ChunkPayload::Native { chunk, offset, length } => {
                StoredRepr::Native { chunk: chunk.to_string(), offset, length }
            }
            ChunkPayload::Virtual { location, offset, length, checksum } => {
                let (etag, last_modified) = match checksum {
                    Some(Checksum::Etag(etag)) => (Some(etag), None),
                    Some(Checksum::LastModified(seconds)) => (None, Some(seconds)),
                    None => (None, None),
                };
                StoredRepr::Virtual { location, offset, length, etag, last_modified }
            }
        }
    }
}

impl TryFrom<StoredRepr> for Stored {
    type Error = Error;

    fn try_from(repr: StoredRepr) -> Result<Self, Error> {
        Ok(Stored(match repr {
            StoredRepr::Inline(digits) => {
                let bytes = HEXLOWER
                    .decode(digits.as_bytes())
                    .map_err(|_| Error::corrupt("an inline chunk is not hexadecimal"))?;
                ChunkPayload::Inline(Bytes::from(bytes))
            }
            StoredRepr::Native { chunk, offset, length } => {
                ChunkPayload::Native { chunk: chunk.parse()?, offset, length }
            }
            StoredRepr::Virtual { location, offset, length, etag, last_modified } => {
                let checksum = etag.map(Checksum::Etag).or(last_modified.map(Checksum::LastModified));
                ChunkPayload::Virtual { location, offset, length, checksum }
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use icechunkfs_format::format::testing::id;

    #[test]
    fn records_survive_the_round_trip() {
        let meta = Meta { mode: 0o644, uid: 1, gid: 2, atime: Time(1, 2), mtime: Time(-3, 4), ctime: Time(5, 6) };
        let payloads = [
            ChunkPayload::Inline(Bytes::from_static(&[0, 255, 16])),
            ChunkPayload::Native { chunk: id(7), offset: 1, length: u64::MAX },
            ChunkPayload::Virtual {
                location: "s3://b/k".into(),
                offset: 1,
                length: 2,
                checksum: Some(Checksum::LastModified(3)),
            },
        ];
        let mut records: Vec<Record> = payloads
            .into_iter()
            .map(|payload| Record::SetSource {
                id: EntryId(4),
                source: Source::Stored(Stored(payload)),
                at: Time(7, 8),
            })
            .collect();
        let names = [&b"zarr.json"[..], b"\xff\xfe", b"7", b""];
        records.extend(names.map(|name| Record::Create {
            parent: ROOT,
            name: Name::new(name),
            id: EntryId(2),
            meta,
            body: Body::File(Source::Data(DataFileId(9))),
        }));
        records.push(Record::FlushFailed { data: DataFileId(9) });
        for record in records {
            let line = serde_json::to_string(&record).unwrap();
            assert_eq!(serde_json::from_str::<Record>(&line).unwrap(), record, "{line}");
        }
    }

    #[test]
    fn numbers_are_plain_in_the_journal() {
        let line = r#"{"op":"moved","id":4,"source":{"data":9},"at":[7,8]}"#;
        let record = Record::SetSource { id: EntryId(4), source: Source::Data(DataFileId(9)), at: Time(7, 8) };
        assert_eq!(serde_json::to_string(&record).unwrap(), line);
        assert_eq!(serde_json::from_str::<Record>(line).unwrap(), record);
    }
}
