//! Conditional writes over a network that may lose responses.
//!
//! A conditional write that is repeated because its response was lost finds its own result and looks refused. Each write therefore
//! carries a unique id (`icechunk_write_id`, as in the reference implementation). After a refusal, or without a response, the writer
//! checks which id the object has before it reports the error.

use bytes::Bytes;
use data_encoding::HEXLOWER;
use object_store::path::Path;
use object_store::{Attribute, Error as StoreError, GetOptions, ObjectStore, PutMode, PutOptions, UpdateVersion};

use crate::error::{Error, ErrorKind};

/// User metadata key of the write id.
const WRITE_ID: &str = "icechunk_write_id";
/// Value that is no object's entity tag or generation.
const NO_VERSION: &str = "1";

/// Puts `bytes` at `path` if the mode of `options` allows it.
pub(super) async fn put(
    store: &dyn ObjectStore,
    path: &Path,
    bytes: Bytes,
    mut options: PutOptions,
) -> object_store::Result<()> {
    let (name, id) = (Attribute::Metadata(WRITE_ID.into()), write_id());
    options.attributes.insert(name.clone(), id.clone().into());
    let error = match store.put_opts(path, bytes.into(), options).await {
        Ok(_) => return Ok(()),
        Err(error) => error,
    };
    if !may_be_done(&error) {
        return Err(error);
    }
    let found = store.get_opts(path, GetOptions { head: true, ..GetOptions::default() }).await;
    let is_ours = found.is_ok_and(|found| found.attributes.get(&name).is_some_and(|value| value.as_ref() == id));
    if is_ours { Ok(()) } else { Err(error) }
}

/// Returns true if a write that failed with `error` may have been carried out.
fn may_be_done(error: &StoreError) -> bool {
    !matches!(
        error,
        StoreError::NotFound { .. }
            | StoreError::PermissionDenied { .. }
            | StoreError::Unauthenticated { .. }
            | StoreError::NotSupported { .. }
            | StoreError::NotImplemented { .. }
            | StoreError::InvalidPath { .. }
    )
}

/// Checks that `store` compares before it writes, with an existing object that never changes: `bytes` at `path`. A store that does not
/// compare writes the same bytes once more, which changes nothing.
pub(super) async fn check(store: &dyn ObjectStore, path: &Path, bytes: &Bytes) -> object_store::Result<bool> {
    let other = UpdateVersion { e_tag: Some(format!("\"{NO_VERSION}\"")), version: Some(NO_VERSION.to_owned()) };
    for mode in [PutMode::Create, PutMode::Update(other)] {
        match store.put_opts(path, bytes.clone().into(), PutOptions::from(mode)).await {
            Ok(_) => return Ok(false),
            Err(
                StoreError::AlreadyExists { .. } | StoreError::Precondition { .. } | StoreError::NotModified { .. },
            ) => {}
            Err(StoreError::NotImplemented { .. } | StoreError::NotSupported { .. }) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

pub(super) fn does_not_compare(location: &str) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!(
            "{location}: this store does not compare before it writes (If-Match, If-None-Match), so two programs that \
             commit at the same time could lose a commit: mount it read-only, or with --unsafe-single-writer if there is no other writer"
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
