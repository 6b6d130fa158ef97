//! The boundary to where a repository lies: a few operations on named objects, and nothing of the format.
//!
//! [`Storage`] is what the floors above know. [`object::ObjectStorage`] carries it out with any store of the `object_store`
//! crate; [`local::LocalStorage`] reads local files by descriptors below the repository's directory, which is faster and
//! cannot be led out of it. [`open`] chooses by URL.
//!
//! Keys are relative to the repository's root, with `/` between components, as they are spelled in storage. Every operation
//! ends before its deadline, and none is retried here.

mod adopt;
pub mod local;
pub mod object;
mod replace;

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::{Error, ErrorKind, Result};

/// How long one operation may take before it is an error of kind [`ErrorKind::Timeout`]. A local disk answers in
/// milliseconds; what takes longer is a network file system whose server is gone, and a program must not hang on it.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// An object in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Its key relative to the repository's root.
    pub key: String,
    /// Its size in bytes.
    pub size: u64,
}

/// Tells one state of an object from another: what its store calls it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The entity tag.
    pub e_tag: Option<String>,
    /// A version or generation number, where the store has such.
    pub version: Option<String>,
}

/// What must be true of the stored object for a put to be carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Nothing: the object is created or replaced.
    Always,
    /// There is no such object.
    Absent,
    /// The object is still the one that was read.
    Unchanged(Version),
}

/// A place that holds one repository.
#[async_trait]
pub trait Storage: Send + Sync + Debug {
    /// The place as messages and `/proc/mounts` name it.
    fn location(&self) -> &str;

    /// The whole object `key`, which may have at most `limit` bytes.
    ///
    /// Errors: [`ErrorKind::NotFound`] if there is none, [`ErrorKind::OutOfMemory`] if it is larger than `limit`.
    async fn get(&self, key: &str, limit: u64) -> Result<Bytes>;

    /// As [`Storage::get`], with what a later [`Condition::Unchanged`] needs.
    async fn get_versioned(&self, key: &str, limit: u64) -> Result<(Bytes, Version)>;

    /// The `length` bytes of object `key` from `offset` on: all of them, or an error of kind [`ErrorKind::Corrupt`] if the
    /// object ends before.
    async fn get_range(&self, key: &str, offset: u64, length: u64) -> Result<Bytes>;

    /// Stores `bytes` as object `key`, whole or not at all, if `condition` holds; [`ErrorKind::Conflict`] if it does not.
    /// When this returns, the object survives a loss of power.
    async fn put(&self, key: &str, bytes: Bytes, condition: Condition) -> Result<()>;

    /// Stores `bytes` as the new object `key`, which nothing refers to yet and nobody else writes. It may be torn, or gone
    /// after a loss of power, until [`Storage::sync`] has returned.
    async fn put_new(&self, key: &str, bytes: Bytes) -> Result<()> {
        self.put(key, bytes, Condition::Always).await
    }

    /// As [`Storage::put_new`], with the whole of `file`, which has `length` bytes and nobody writes to any more. Where that
    /// is possible the object becomes another name of the file.
    async fn put_file(&self, key: &str, file: std::fs::File, length: u64) -> Result<()> {
        let (_, bytes) = read_part(file, length, true).await?;
        self.put_new(key, bytes).await
    }

    /// Returns when all that [`Storage::put_new`] and [`Storage::put_file`] have stored below `folders` survives a loss of
    /// power.
    async fn sync(&self, folders: &[&str]) -> Result<()> {
        let _ = folders;
        Ok(())
    }

    /// All objects whose key begins with `prefix`, which ends with `/` or is empty; in no certain order.
    async fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>>;

    /// The directory that it is, where it is one of this machine.
    fn local_path(&self) -> Option<PathBuf> {
        None
    }

    /// Direct access to the files, where objects are files of this machine.
    fn local_files(&self) -> Option<&local::LocalFiles> {
        None
    }
}

/// The next `length` bytes of `file`, and the file. `is_last` says that it ends there.
async fn read_part(mut file: std::fs::File, length: u64, is_last: bool) -> Result<(std::fs::File, Bytes)> {
    use std::io::Read;
    let read = move || {
        let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or_default());
        let limit = length + u64::from(is_last);
        (&mut file).take(limit).read_to_end(&mut bytes).map_err(|e| Error::io("reading a chunk's file", e))?;
        if bytes.len() as u64 == length { Ok((file, bytes.into())) } else { Err(changed_file(length)) }
    };
    let reading = tokio::task::spawn_blocking(read).await;
    reading.map_err(|e| Error::with_source(ErrorKind::Io, "reading a chunk's file", e))?
}

/// The error of a file that has another size than it had.
pub(crate) fn changed_file(length: u64) -> Error {
    Error::new(
        ErrorKind::Busy,
        format!("a chunk's file had {length} bytes and changed while it was stored: commit again"),
    )
}

/// Opens the place that `repo` names: a path or a `file://` URL.
///
/// `location` in messages and mount tables is what the user wrote, made absolute.
pub fn open(repo: &str) -> Result<Arc<dyn Storage>> {
    let (path, location) = parse(repo)?;
    Ok(Arc::new(local::LocalStorage::open(&path, location)?))
}

/// As [`open`], for a repository that is to be created: makes the directory if there is none.
pub fn open_new(repo: &str) -> Result<Arc<dyn Storage>> {
    let (path, location) = parse(repo)?;
    std::fs::create_dir_all(&path).map_err(|e| Error::io(format!("making {location}"), e))?;
    Ok(Arc::new(local::LocalStorage::open(&path, location)?))
}

fn parse(repo: &str) -> Result<(PathBuf, String)> {
    if let Some((scheme, _)) = repo.split_once("://") {
        if scheme != "file" {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("`{repo}`: this version opens local paths and file:// URLs, not {scheme}://"),
            ));
        }
        let path = url::Url::parse(repo)
            .ok()
            .and_then(|url| url.to_file_path().ok())
            .ok_or_else(|| Error::invalid(format!("`{repo}` is not a URL of a local directory: file:///path is")))?;
        return Ok((path, repo.to_owned()));
    }
    if repo.is_empty() {
        return Err(Error::invalid("the repository's name is empty"));
    }
    let path = std::path::absolute(repo).map_err(|e| Error::io(repo, e))?;
    let location = path.to_str().map(str::to_owned).unwrap_or_else(|| Path::new(repo).to_string_lossy().into_owned());
    Ok((path, location))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn places_are_paths_and_file_urls() {
        assert_eq!(parse("/a/b c").unwrap(), (PathBuf::from("/a/b c"), "/a/b c".to_owned()));
        assert_eq!(parse("file:///a/b%20c").unwrap(), (PathBuf::from("/a/b c"), "file:///a/b%20c".to_owned()));
        assert!(parse("x").unwrap().0.is_absolute());
        assert_eq!(parse("s3://bucket/x").unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(parse("").unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}
