//! The lines of the journal.
//!
//! Inodes have numbers of their own here (an [`Id`] each), because those of the kernel mean nothing in the next mount. What an
//! inode shows of the snapshot below is said by its path there: a snapshot never changes, so the path means the same for ever.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::format::chunk_payload::{Checksum, ChunkPayload};

/// Number of an inode in the scratch directory. [`ROOT`] is the root; others are never used twice.
pub type Id = u64;
/// The root directory.
pub const ROOT: Id = 1;

/// Seconds and nanoseconds since 1970-01-01 UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Time(pub i64, pub u32);

/// A file name: any bytes but `/` and NUL. Text in the journal, or a list of bytes if it is none.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "Spelled", into = "Spelled")]
pub struct Name(pub Arc<[u8]>);

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Spelled {
    Text(String),
    Bytes(Vec<u8>),
}

/// What `stat` says of an inode, beside its kind and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// Permission bits, those for set-id and sticky included.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last access, which only `utimens` moves.
    pub atime: Time,
    /// Last change of the bytes. For a file with a data file it is that file's instead.
    pub mtime: Time,
    /// Last change of anything.
    pub ctime: Time,
}

/// What an inode is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Body {
    /// A directory.
    Directory,
    /// A regular file and where its bytes are.
    File(Source),
    /// A symbolic link and its target.
    Symlink(Name),
    /// A device, FIFO or socket.
    Special {
        /// The file type bits of its mode.
        kind: u32,
        /// The device number.
        rdev: u32,
    },
}

/// Where the bytes of a regular file are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Still in the snapshot below, at the inode's lower path.
    Lower,
    /// In `data/N`.
    Data(u64),
    /// In the repository: a chunk that was copied whole from another one.
    Stored(Stored),
}

/// [`ChunkPayload`], with the bytes of an inline chunk as hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct Stored(pub ChunkPayload);

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Written {
    Inline(String),
    Native { chunk: String, offset: u64, length: u64 },
    Virtual { location: String, offset: u64, length: u64, etag: Option<String>, last_modified: Option<u32> },
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Record {
    /// The first line: what the changes are relative to.
    Base {
        /// Version of the journal's format.
        format: u32,
        /// Where the repository lies.
        repository: String,
        /// The branch.
        branch: String,
        /// The snapshot.
        snapshot: String,
        /// What identifies the repository wherever it lies, if that was known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        identity: Option<String>,
    },
    /// A new inode under a name.
    Create {
        /// The directory.
        parent: Id,
        /// The name, which was free.
        name: Name,
        /// The new inode.
        id: Id,
        /// Its attributes.
        meta: Meta,
        /// What it is.
        body: Body,
    },
    /// Something of the snapshot below becomes an inode of its own, where it is.
    Promote {
        /// The directory; none for the root.
        parent: Option<Id>,
        /// The name.
        name: Name,
        /// The new inode.
        id: Id,
        /// Its path in the snapshot.
        lower: String,
        /// Its attributes.
        meta: Meta,
        /// What it is.
        body: Body,
    },
    /// One more name for a file.
    Link {
        /// The directory.
        parent: Id,
        /// The name, which was free.
        name: Name,
        /// The file.
        id: Id,
        /// When.
        at: Time,
    },
    /// A name less.
    Remove {
        /// The directory.
        parent: Id,
        /// The name.
        name: Name,
        /// Whether the snapshot below has something of that name that must not show.
        hide: bool,
        /// When.
        at: Time,
    },
    /// Another name for what has one. What had the new name loses it, or gets the old one.
    Rename {
        /// The directory.
        parent: Id,
        /// The name, which belongs to an inode of its own.
        name: Name,
        /// The new directory.
        new_parent: Id,
        /// The new name.
        new_name: Name,
        /// Whether the two change places.
        exchange: bool,
        /// Whether the snapshot below has something of the old name that must not show.
        hide: bool,
        /// When.
        at: Time,
    },
    /// New attributes.
    Attributes {
        /// The inode.
        id: Id,
        /// All of them.
        meta: Meta,
    },
    /// The bytes are elsewhere now.
    Moved {
        /// The file.
        id: Id,
        /// Where.
        source: Source,
        /// When.
        at: Time,
    },
    /// Of a data file, which is some file's from here on or already, these bytes are still elsewhere; all others are in it.
    Borrowed {
        /// The data file.
        data: u64,
        /// Where they are, at the same offsets.
        from: Stored,
        /// First byte of each range, and the one behind it.
        missing: Vec<(u64, u64)>,
    },
    /// Bytes of a data file that are in it now.
    Covered {
        /// The data file.
        data: u64,
        /// The first.
        begin: u64,
        /// The one behind the last.
        end: u64,
    },
    /// A name of the snapshot below that does not show; only in a journal written anew.
    Hidden {
        /// The directory.
        parent: Id,
        /// The name.
        name: Name,
    },
    /// A commit is about to become visible as this snapshot. If the branch has it, everything before this line is in it.
    Publishing {
        /// The snapshot.
        snapshot: String,
    },
    /// That commit was looked for and not found, and changes go on from here. Should the storage carry it out later, what is
    /// written from this line on is no part of it.
    Unpublished {
        /// The snapshot.
        snapshot: String,
    },
}

impl Time {
    /// Now.
    pub fn now() -> Self {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        Time(now.tv_sec, u32::try_from(now.tv_nsec).unwrap_or(0))
    }
}

impl Name {
    /// The name with these bytes.
    pub fn new(bytes: &[u8]) -> Self {
        Name(bytes.into())
    }

    /// As text, if it is UTF-8: only such names are in snapshots.
    pub fn text(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&crate::printable::text(&self.0))
    }
}

impl From<Spelled> for Name {
    fn from(spelled: Spelled) -> Self {
        match spelled {
            Spelled::Text(text) => Name(text.into_bytes().into()),
            Spelled::Bytes(bytes) => Name(bytes.into()),
        }
    }
}

impl From<Name> for Spelled {
    fn from(name: Name) -> Self {
        String::from_utf8(name.0.to_vec()).map_or_else(|e| Spelled::Bytes(e.into_bytes()), Spelled::Text)
    }
}

impl From<Stored> for Written {
    fn from(Stored(payload): Stored) -> Self {
        match payload {
            ChunkPayload::Inline(bytes) => Written::Inline(to_hex(&bytes)),
            ChunkPayload::Native { chunk, offset, length } => {
                Written::Native { chunk: chunk.to_string(), offset, length }
            }
            ChunkPayload::Virtual { location, offset, length, checksum } => {
                let (etag, last_modified) = match checksum {
                    Some(Checksum::Etag(etag)) => (Some(etag), None),
                    Some(Checksum::LastModified(seconds)) => (None, Some(seconds)),
                    None => (None, None),
                };
                Written::Virtual { location, offset, length, etag, last_modified }
            }
        }
    }
}

impl TryFrom<Written> for Stored {
    type Error = Error;

    fn try_from(written: Written) -> Result<Self, Error> {
        Ok(Stored(match written {
            Written::Inline(digits) => {
                let bytes =
                    from_hex(&digits).ok_or_else(|| Error::corrupt("an inline chunk is no hexadecimal text"))?;
                ChunkPayload::Inline(Bytes::from(bytes))
            }
            Written::Native { chunk, offset, length } => ChunkPayload::Native { chunk: chunk.parse()?, offset, length },
            Written::Virtual { location, offset, length, etag, last_modified } => {
                let checksum = etag.map(Checksum::Etag).or(last_modified.map(Checksum::LastModified));
                ChunkPayload::Virtual { location, offset, length, checksum }
            }
        }))
    }
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(digits: &str) -> Option<Vec<u8>> {
    let pairs = digits.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::format::testing::id;

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
            .map(|payload| Record::Moved { id: 4, source: Source::Stored(Stored(payload)), at: Time(7, 8) })
            .collect();
        let names = [&b"zarr.json"[..], b"\xff\xfe", b"7", b""];
        records.extend(names.map(|name| Record::Create {
            parent: ROOT,
            name: Name::new(name),
            id: 2,
            meta,
            body: Body::File(Source::Data(9)),
        }));
        for record in records {
            let line = serde_json::to_string(&record).unwrap();
            assert_eq!(serde_json::from_str::<Record>(&line).unwrap(), record, "{line}");
        }
    }
}
