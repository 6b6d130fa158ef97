//! Virtual chunks in buckets.

use std::sync::Arc;

use object_store::path::Path;
use object_store::{GetOptions, GetRange, GetResult, ObjectStore};

use super::super::connect::{Connected, S3Service};
use super::super::deadline::Deadline;
use super::super::explain::{Sender, from_store};
use super::super::object::{collect, too_short};
use super::super::settings::Settings;
use super::super::transport::Transport;
use super::address::Address;
use super::checksum::ObjectState;
use super::range::{Part, RangeRequest};
use icechunkfs_base::error::{Error, ErrorKind, Result};

/// Error texts of stores for a range that begins after the object's end.
const RANGE_ERRORS: [&str; 3] = ["416", "InvalidRange", "Range Not Satisfiable"];

#[derive(Debug)]
pub(super) struct Remote {
    store: Arc<dyn ObjectStore>,
    pub(super) transport: Transport,
    /// Service that has the bucket, for one of Amazon's protocol.
    pub(super) service: Option<S3Service>,
    deadline: Deadline,
}

impl Remote {
    pub(super) fn new(connected: Connected, settings: &Settings) -> Self {
        let Connected { store, transport, service, .. } = connected;
        Remote { store, transport, service, deadline: Deadline::of(settings) }
    }

    /// Reads the `wanted` bytes of an object, if it still matches their checksum.
    pub(super) async fn read(&self, wanted: &RangeRequest<'_>) -> Result<Part> {
        let RangeRequest { address, offset, length, checksum, .. } = *wanted;
        let key = address.key();
        let shown = address.to_string();
        let path = path_of(address)?;
        let end = offset.checked_add(length).ok_or_else(|| too_short(&shown, offset, length, 0))?;
        let reading = async {
            let options = GetOptions { range: Some(GetRange::Bounded(offset..end)), ..GetOptions::default() };
            let found = self.store.get_opts(&path, options).await.map_err(|error| explain(&shown, error))?;
            let state = state_of(&found);
            // The state is known before the bytes arrive: the bytes of another state are not waited
            // for. The store does not check the condition, since not all stores can.
            if let Some(checksum) = checksum {
                state.check(checksum)?;
            }
            let whole = Some(found.meta.size);
            let bytes = collect(found, length).await.map_err(|error| explain(&shown, error))?;
            Ok(Part { bytes, state, whole, is_alone: true })
        };
        let part = self.deadline.read(&key, length, &shown, reading).await?;
        part.checked(wanted)
    }

    /// Returns the names of the directories and of the objects directly below `prefix`, in this
    /// order. Markers of directories, which have no bytes, are left out.
    pub(super) async fn list(&self, prefix: &Address) -> Result<(Vec<String>, Vec<String>)> {
        let shown = prefix.as_prefix();
        let path = path_of(prefix)?;
        let listing =
            async { self.store.list_with_delimiter(Some(&path)).await.map_err(|error| explain(&shown, error)) };
        let found = self.deadline.run(&shown, listing).await?;
        let name = |path: &Path| path.filename().map(str::to_owned);
        let objects = found.objects.iter().filter(|object| object.size > 0);
        Ok((
            found.common_prefixes.iter().filter_map(name).collect(),
            objects.filter_map(|at| name(&at.location)).collect(),
        ))
    }
}

fn path_of(address: &Address) -> Result<Path> {
    let path = Path::parse(address.key());
    path.map_err(|e| Error::with_source(ErrorKind::Unsupported, format!("{address}: this key"), e))
}

fn state_of(found: &GetResult) -> ObjectState {
    ObjectState { e_tag: found.meta.e_tag.clone(), last_modified: Some(found.meta.last_modified.timestamp()) }
}

fn explain(what: &str, error: object_store::Error) -> Error {
    // The name of an object may have the words.
    let name = what.rsplit('/').next().unwrap_or_default();
    let said = error.to_string().replace(name, "");
    let is_other = matches!(error, object_store::Error::NotFound { .. });
    if !is_other && RANGE_ERRORS.iter().any(|words| said.contains(words)) {
        return Error::with_source(ErrorKind::Corrupt, format!("{what}: the object is too short"), error);
    }
    from_store(what, error, Sender::Known)
}
