//! Any store of the `object_store` crate as a [`Storage`], with deadlines.

use std::fmt::Display;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt, PutMode, PutOptions, UpdateVersion};

use super::{Condition, ObjectInfo, Storage, Version, read_part};
use crate::error::{Error, ErrorKind, Result};

/// Files larger than this are sent in parts of this size. Bytes.
const PART: u64 = 16 << 20;

/// A repository in an object store.
#[derive(Debug)]
pub struct ObjectStorage {
    store: Arc<dyn ObjectStore>,
    location: String,
    deadline: Duration,
}

impl ObjectStorage {
    /// The repository at the root of `store`; messages call it `location`, and no operation takes longer than `deadline`.
    pub fn new(store: Arc<dyn ObjectStore>, location: String, deadline: Duration) -> Self {
        ObjectStorage { store, location, deadline }
    }

    async fn send_parts(
        &self,
        key: &str,
        upload: &mut dyn MultipartUpload,
        mut file: std::fs::File,
        length: u64,
    ) -> Result<()> {
        let mut left = length;
        while left > 0 {
            let size = left.min(PART);
            left -= size;
            let bytes;
            (file, bytes) = read_part(file, size, left == 0).await?;
            self.timed(key, upload.put_part(bytes.into())).await?;
        }
        self.timed(key, upload.complete()).await.map(drop)
    }

    async fn timed<T>(&self, what: impl Display, work: impl Future<Output = object_store::Result<T>>) -> Result<T> {
        match tokio::time::timeout(self.deadline, work).await {
            Ok(done) => done.map_err(|error| from_store(what, error)),
            Err(_) => Err(timed_out(what, self.deadline)),
        }
    }
}

/// The error of an operation that did not end in time.
pub(super) fn timed_out(what: impl Display, deadline: Duration) -> Error {
    Error::new(ErrorKind::Timeout, format!("{what}: the storage did not answer within {} s", deadline.as_secs_f32()))
}

fn from_store(what: impl Display, error: object_store::Error) -> Error {
    use object_store::Error as Store;
    let kind = match &error {
        Store::NotFound { .. } => ErrorKind::NotFound,
        Store::AlreadyExists { .. } | Store::Precondition { .. } => ErrorKind::Conflict,
        Store::PermissionDenied { .. } | Store::Unauthenticated { .. } => ErrorKind::PermissionDenied,
        Store::NotSupported { .. } | Store::NotImplemented { .. } => ErrorKind::Unsupported,
        Store::InvalidPath { .. } => ErrorKind::InvalidInput,
        _ => ErrorKind::Io,
    };
    Error::with_source(kind, what.to_string(), error)
}

fn path(key: &str) -> Result<Path> {
    Path::parse(key).map_err(|e| Error::with_source(ErrorKind::InvalidInput, format!("`{key}` is no object name"), e))
}

#[async_trait]
impl Storage for ObjectStorage {
    fn location(&self) -> &str {
        &self.location
    }

    async fn get(&self, key: &str, limit: u64) -> Result<Bytes> {
        self.get_versioned(key, limit).await.map(|(bytes, _)| bytes)
    }

    async fn get_versioned(&self, key: &str, limit: u64) -> Result<(Bytes, Version)> {
        let path = path(key)?;
        let found = self.timed(key, async {
            let found = self.store.get(&path).await?;
            if found.meta.size > limit {
                return Ok(Err(found.meta.size));
            }
            let version = Version { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
            Ok(Ok((found.bytes().await?, version)))
        });
        found.await?.map_err(|size| too_large(key, size, limit))
    }

    async fn get_range(&self, key: &str, offset: u64, length: u64) -> Result<Bytes> {
        let path = path(key)?;
        let bytes = self.timed(key, self.store.get_range(&path, offset..offset.saturating_add(length))).await?;
        if bytes.len() as u64 == length { Ok(bytes) } else { Err(too_short(key, offset, length, bytes.len() as u64)) }
    }

    async fn put(&self, key: &str, bytes: Bytes, condition: Condition) -> Result<()> {
        let mode = match condition {
            Condition::Always => PutMode::Overwrite,
            Condition::Absent => PutMode::Create,
            Condition::Unchanged(Version { e_tag, version }) => PutMode::Update(UpdateVersion { e_tag, version }),
        };
        let path = path(key)?;
        self.timed(key, self.store.put_opts(&path, bytes.into(), PutOptions::from(mode))).await?;
        Ok(())
    }

    async fn put_file(&self, key: &str, file: std::fs::File, length: u64) -> Result<()> {
        if length <= PART {
            return self.put_new(key, read_part(file, length, true).await?.1).await;
        }
        let path = path(key)?;
        let mut upload = self.timed(key, self.store.put_multipart(&path)).await?;
        let sent = self.send_parts(key, &mut *upload, file, length).await;
        if sent.is_err() {
            // Best effort: what stays is removed by the store's own rules.
            let _ = self.timed(key, upload.abort()).await;
        }
        sent
    }

    async fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        let prefix = path(prefix.trim_end_matches('/'))?;
        let what = format!("listing `{prefix}`");
        let found: Vec<_> = self.timed(what, self.store.list(Some(&prefix)).try_collect()).await?;
        Ok(found.into_iter().map(|meta| ObjectInfo { key: meta.location.to_string(), size: meta.size }).collect())
    }
}

/// The error of an object that is larger than its reader can hold.
pub(super) fn too_large(key: &str, size: u64, limit: u64) -> Error {
    Error::new(ErrorKind::OutOfMemory, format!("{key}: {size} bytes are more than the {limit} that may be held"))
}

/// The error of an object that ends before what a reference promises.
pub(super) fn too_short(key: &str, offset: u64, length: u64, got: u64) -> Error {
    Error::corrupt(format!("{key}: the object is too short: {got} of {length} bytes at offset {offset}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Seek;
    use std::io::Write;

    #[tokio::test]
    async fn files_are_stored_whole_in_parts_if_need_be() {
        let store = Arc::new(object_store::memory::InMemory::new());
        let storage = ObjectStorage::new(store, "memory".into(), Duration::from_secs(5));
        for length in [1, PART, PART + 1, 3 * PART] {
            let mut file = tempfile::tempfile().unwrap();
            let bytes: Vec<u8> = (0..length).map(|n| (n % 251) as u8).collect();
            file.write_all(&bytes).unwrap();
            file.rewind().unwrap();
            storage.put_file("chunks/A", file.try_clone().unwrap(), length).await.unwrap();
            assert!(storage.get("chunks/A", 1 << 30).await.unwrap() == bytes, "{length} bytes");
            file.rewind().unwrap();
            let wrong = storage.put_file("chunks/B", file, length - 1).await.unwrap_err();
            assert_eq!(wrong.kind(), ErrorKind::Busy);
        }
    }
}
