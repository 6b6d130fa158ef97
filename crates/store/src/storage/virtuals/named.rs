//! Objects that the user names, such as the files of an import: their state, their first bytes, and
//! the names that a pattern stands for.
//!
//! Nothing is read that is not allowed: who opens an object has put its address among the
//! permissions.

use bytes::Bytes;

use super::address::Address;
use super::checksum::ObjectState;
use super::range::{Part, RangeRequest};
use super::{Connection, VirtualChunks, advised, no_store};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_format::format::chunk_payload::Checksum;

/// Object as it was when it was opened. It is read only in that state, by
/// [`VirtualChunks::read_named`].
#[derive(Debug)]
pub struct NamedObject {
    /// Its address.
    pub address: Address,
    /// Proof of its state, for references.
    pub checksum: Checksum,
    /// Time of its last change, in seconds since 1970-01-01 UTC, if the server tells it.
    pub modified: Option<i64>,
    /// Length in bytes.
    pub length: u64,
    /// First bytes: as many as were asked for, or all.
    pub head: Bytes,
    state: ObjectState,
    /// Container that describes its store.
    container: Option<usize>,
}

impl VirtualChunks {
    /// Opens the object at `address`, and reads its first `head` bytes in the same request.
    ///
    /// Errors: [`ErrorKind::Unsupported`] if the server does not tell its length or its state, or
    /// sends no ranges; [`ErrorKind::InvalidInput`] for an address that is read from another place;
    /// others as for [`VirtualChunks::read`].
    pub async fn open(&self, address: &Address, head: u64) -> Result<NamedObject> {
        let container = self.named(address)?;
        let wanted =
            RangeRequest { address, query: None, offset: 0, length: head, checksum: None, may_be_shorter: true };
        let Part { bytes, state, whole, is_alone } = self.read_remote(&wanted, container).await?;
        let refused = |why: &str| Error::new(ErrorKind::Unsupported, format!("{address}: {why}: download it first"));
        let length = whole.ok_or_else(|| refused("the server does not state its length"))?;
        if bytes.len() as u64 != length.min(head) {
            return Err(Error::corrupt(format!("{address}: the server sends {} of {length} bytes", bytes.len())));
        }
        if length > head && !is_alone {
            return Err(refused("the server does not send parts of it"));
        }
        let checksum = state.proof().ok_or_else(|| {
            refused("the server sends neither an entity tag nor a time, so changes of the file could not be noticed")
        })?;
        let modified = state.last_modified;
        Ok(NamedObject { address: address.clone(), checksum, modified, length, head: bytes, state, container })
    }

    /// Reads exactly `length` bytes at `offset` of an object that was opened.
    ///
    /// Errors: [`ErrorKind::Stale`] if anything that the server tells of it is not as it was then;
    /// others as for [`VirtualChunks::read`].
    pub async fn read_named(&self, object: &NamedObject, offset: u64, length: u64) -> Result<Bytes> {
        let address = &object.address;
        let wanted = RangeRequest { address, query: None, offset, length, checksum: None, may_be_shorter: false };
        let part = self.read_remote(&wanted, object.container).await?;
        if part.state != object.state || part.whole != Some(object.length) {
            let message = format!("{address}: the object was changed while it was read: try again");
            return Err(Error::new(ErrorKind::Stale, message));
        }
        Ok(part.bytes)
    }

    /// Returns the names of the directories and of the objects directly below `prefix`, in this
    /// order.
    ///
    /// Errors: [`ErrorKind::Unsupported`] for a web server, which has no listing; others of the
    /// store.
    pub async fn list(&self, prefix: &Address) -> Result<(Vec<String>, Vec<String>)> {
        let container = self.named(prefix)?;
        let connection = self.connection(prefix, container).await?;
        let Some(Connection::Bucket(bucket, advice)) = connection.get() else {
            let message = format!("{prefix}: web servers do not list files: name each file");
            return Err(Error::new(ErrorKind::Unsupported, message));
        };
        bucket.list(prefix).await.map_err(|error| advised(prefix, advice.as_deref(), error))
    }

    /// Returns the container that describes the store of `address`, if it may be read and is not
    /// mapped to another place.
    fn named(&self, address: &Address) -> Result<Option<usize>> {
        let container = self.container_of(address);
        match self.permissions.find(address) {
            Some(target) if target.is_mapped || target.file.is_some() => {
                Err(Error::invalid(format!("{address} is read from another place: name that one")))
            }
            Some(_) if address.place().is_none() && !address.is_web() => Err(no_store(address)),
            Some(_) => Ok(container),
            None => Err(self.not_allowed(address, container)),
        }
    }
}
