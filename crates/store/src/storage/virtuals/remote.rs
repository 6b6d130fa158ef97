//! Virtual chunks in buckets.

use std::sync::Arc;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, GetResult, ObjectStore};

use super::super::connect::Connected;
use super::super::deadline::Deadline;
use super::super::explain::{Sender, from_store};
use super::super::object::{check_length, collect, too_short};
use super::super::settings::Settings;
use super::super::transport::Transport;
use super::address::Address;
use super::checksum::ObjectState;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_format::format::chunk_payload::Checksum;

/// Error texts of stores for a range that begins after the object's end.
const RANGE_ERRORS: [&str; 3] = ["416", "InvalidRange", "Range Not Satisfiable"];

#[derive(Debug)]
pub(super) struct Remote {
    store: Arc<dyn ObjectStore>,
    pub(super) transport: Transport,
    deadline: Deadline,
}

impl Remote {
    pub(super) fn new(connected: Connected, settings: &Settings) -> Self {
        Remote { store: connected.store, transport: connected.transport, deadline: Deadline::of(settings) }
    }

    /// Reads `length` bytes at `offset` of the object at `address`, if it still matches `checksum`.
    pub(super) async fn read(
        &self,
        address: &Address,
        offset: u64,
        length: u64,
        checksum: Option<&Checksum>,
    ) -> Result<Bytes> {
        let key = address.key();
        let shown = address.to_string();
        let path = Path::parse(&key);
        let path = path.map_err(|e| Error::with_source(ErrorKind::Unsupported, format!("{shown}: this key"), e))?;
        let end = offset.checked_add(length).ok_or_else(|| too_short(&shown, offset, length, 0))?;
        let reading = async {
            let options = GetOptions { range: Some(GetRange::Bounded(offset..end)), ..GetOptions::default() };
            let found = self.store.get_opts(&path, options).await.map_err(|error| explain(&shown, error))?;
            // The state is known before the bytes arrive: the bytes of another state are not waited
            // for. The store does not check the condition, since not all stores can.
            if let Some(checksum) = checksum {
                state_of(&found).check(checksum)?;
            }
            collect(found, length).await.map_err(|error| explain(&shown, error))
        };
        let bytes = self.deadline.read(&key, length, &shown, reading).await?;
        check_length(bytes, &shown, offset, length)
    }
}

fn state_of(found: &GetResult) -> ObjectState {
    ObjectState { e_tag: found.meta.e_tag.clone(), last_modified: Some(found.meta.last_modified.timestamp()) }
}

fn explain(what: &str, error: object_store::Error) -> Error {
    let said = error.to_string();
    if RANGE_ERRORS.iter().any(|words| said.contains(words)) {
        return Error::with_source(ErrorKind::Corrupt, format!("{what}: the object is too short"), error);
    }
    from_store(what, error, Sender::Known)
}
