//! Ranges of objects on other machines, as they are asked for and as they come.

use bytes::Bytes;

use super::super::object::check_length;
use super::address::Address;
use super::checksum::ObjectState;
use icechunkfs_base::error::Result;
use icechunkfs_format::format::chunk_payload::Checksum;

/// Range that is asked for.
pub(super) struct RangeRequest<'a> {
    pub(super) address: &'a Address,
    /// Query that a redirect added.
    pub(super) query: Option<&'a str>,
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) checksum: Option<&'a Checksum>,
    /// Take fewer bytes where the object ends before.
    pub(super) may_be_shorter: bool,
}

/// Bytes of an object, and its state when they were sent.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) bytes: Bytes,
    pub(super) state: ObjectState,
    /// Length of the whole object, if the server tells it.
    pub(super) whole: Option<u64>,
    /// True if the server sent only what was asked for.
    pub(super) is_alone: bool,
}

impl Part {
    /// Fails if there are fewer bytes than `wanted`.
    pub(super) fn checked(self, wanted: &RangeRequest<'_>) -> Result<Self> {
        let RangeRequest { address, offset, length, may_be_shorter, .. } = *wanted;
        if may_be_shorter {
            return Ok(self);
        }
        let bytes = check_length(self.bytes, &address.to_string(), offset, length)?;
        Ok(Part { bytes, ..self })
    }
}
