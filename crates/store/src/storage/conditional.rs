//! Conditional writes over a network that may lose responses.
//!
//! A conditional write that is repeated because its response was lost finds its own result and
//! looks refused. Each write therefore carries a unique id in its user metadata, as in the
//! reference implementation. After a refusal, or without a response, the writer checks which id the
//! object has before it reports the error. Where that cannot be read, since the configuration
//! allows no metadata, or the store or a proxy before it keeps none or answers no HEAD, the writer
//! compares the bytes. If it cannot read these either, the outcome is unknown, and the error says
//! so: it is no refusal, after which the caller would report that another writer was faster.

use bytes::Bytes;
use data_encoding::HEXLOWER;
use object_store::path::Path;
use object_store::{Attribute, Error as StoreError, GetOptions, ObjectStore, PutMode, PutOptions, UpdateVersion};

use super::explain::is_not_supported;
use super::object::collect;
use icechunkfs_base::error::{Error, ErrorKind};

/// User metadata key of the write id, which is a part of the name of a header. Letters only: nginx
/// drops headers with a `_` in their names, so that the store behind it finds another signature,
/// and Azure takes no `-`.
const WRITE_ID: &str = "icechunkwriteid";
/// Value that is no object's entity tag or generation.
const NO_VERSION: &str = "1";

/// Puts `bytes` at `path` if the mode of `options` allows it. Unless `uses_metadata`, the object
/// gets no write id.
pub(super) async fn put(
    store: &dyn ObjectStore,
    path: &Path,
    bytes: Bytes,
    mut options: PutOptions,
    uses_metadata: bool,
) -> object_store::Result<()> {
    let id = uses_metadata.then(write_id);
    if let Some(id) = &id {
        options.attributes.insert(write_id_attribute(), id.clone().into());
    }
    let error = match store.put_opts(path, bytes.clone().into(), options).await {
        Ok(_) => return Ok(()),
        Err(error) => error,
    };
    if !may_be_done(&error) {
        return Err(error);
    }
    match is_stored(store, path, &bytes, id.as_deref()).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(error),
        Err(why) if is_refusal(&error) => Err(unknown(path, &why)),
        Err(_) => Err(error),
    }
}

fn write_id_attribute() -> Attribute {
    Attribute::Metadata(WRITE_ID.into())
}

/// Returns true if the object at `path` is the one that a write of `bytes`, with the write id `id`
/// if there is one, stores.
async fn is_stored(
    store: &dyn ObjectStore,
    path: &Path,
    bytes: &Bytes,
    id: Option<&str>,
) -> object_store::Result<bool> {
    if let Some(id) = id {
        match store.get_opts(path, GetOptions { head: true, ..GetOptions::default() }).await {
            Ok(found) => {
                if let Some(value) = found.attributes.get(&write_id_attribute()) {
                    return Ok(value.as_ref() == id);
                }
            }
            Err(StoreError::NotFound { .. }) => return Ok(false),
            Err(_) => {}
        }
    }
    let size = bytes.len() as u64;
    match store.get_opts(path, GetOptions::default()).await {
        Ok(found) => Ok(found.meta.size == size && collect(found, size).await? == *bytes),
        Err(StoreError::NotFound { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_refusal(error: &StoreError) -> bool {
    matches!(error, StoreError::AlreadyExists { .. } | StoreError::Precondition { .. } | StoreError::NotModified { .. })
}

/// Returns the error for a write that was refused, perhaps after an attempt whose answer was lost.
/// The reason `why` the object cannot be read is only logged: callers must not take this error for
/// a refusal.
fn unknown(path: &Path, why: &StoreError) -> StoreError {
    tracing::warn!("{path}: it cannot be read after a write that was refused: {why}");
    let message =
        "it is not known whether this was written: the answer to an attempt may be lost, and the object cannot be read";
    StoreError::Generic { store: "store", source: message.into() }
}

/// Returns true if a write that failed with `error` may have been carried out.
fn may_be_done(error: &StoreError) -> bool {
    let is_refused = matches!(
        error,
        StoreError::NotFound { .. }
            | StoreError::PermissionDenied { .. }
            | StoreError::Unauthenticated { .. }
            | StoreError::InvalidPath { .. }
    );
    !is_refused && !is_not_supported(error)
}

/// Checks that `store` compares before it writes, with an existing object that never changes:
/// `bytes` at `path`. A store that does not compare writes the same bytes once more, which changes
/// nothing.
pub(super) async fn check(store: &dyn ObjectStore, path: &Path, bytes: &Bytes) -> object_store::Result<bool> {
    let other = UpdateVersion { e_tag: Some(format!("\"{NO_VERSION}\"")), version: Some(NO_VERSION.to_owned()) };
    for mode in [PutMode::Create, PutMode::Update(other)] {
        match store.put_opts(path, bytes.clone().into(), PutOptions::from(mode)).await {
            Ok(_) => return Ok(false),
            Err(error) if is_refusal(&error) => {}
            Err(error) if is_not_supported(&error) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

pub(super) fn does_not_compare(location: &str) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!(
            "{location}: this store does not compare before it writes (If-Match, If-None-Match), so concurrent commits \
             could be lost: mount it read-only, or with --unsafe-single-writer if there is no other writer"
        ),
    )
}

fn write_id() -> String {
    let mut bytes = [0; 16];
    // Without randomness the clock suffices: the id only distinguishes writes of this object.
    if rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).is_err() {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        bytes = now.as_nanos().to_le_bytes();
    }
    HEXLOWER.encode(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_write_id_passes_every_server() {
        assert!(WRITE_ID.bytes().all(|byte| byte.is_ascii_lowercase()));
    }
}
