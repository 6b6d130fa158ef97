//! The boundary to where a repository lies: a few operations on named objects, and nothing of the format.
//!
//! [`Storage`] is what the floors above know. [`object::ObjectStorage`] carries it out with any store of the `object_store`
//! crate; [`local::LocalStorage`] reads local files by descriptors below the repository's directory, which is faster and
//! cannot be led out of it. [`open`] chooses by URL.
//!
//! With a cache on a disk, [`cached`] stands before the store, or in its place.
//!
//! [`location`] takes the words apart that name a repository, [`settings`] is what may be said about how to reach it,
//! [`connect`] makes a store of both, and [`wire`] is what its requests go over. [`deadline`] is how long any operation may take,
//! [`listing`] what a listing may be.
//!
//! [`virtuals`] are objects that are not the repository's, and which of them may be read.
//!
//! Keys are relative to the repository's root, with `/` between components, as they are spelled in storage. Every operation
//! ends before its deadline.

mod adopt;
mod cached;
mod conditional;
mod connect;
mod deadline;
pub mod decoded;
mod explain;
mod file_locks;
mod listing;
pub mod local;
mod local_listing;
pub mod location;
pub mod object;
mod remove;
mod replace;
pub mod secrets;
pub mod settings;
pub mod virtuals;
mod wire;

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use self::location::{Location, Place};
use self::settings::Settings;
use crate::disk_cache::DiskCache;
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
    /// When it was stored, by the store's clock: microseconds since 1970-01-01 UTC.
    pub modified: u64,
}

/// Tells one state of an object from another: what its store calls it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The entity tag.
    pub e_tag: Option<String>,
    /// A version or generation number, where the store has such.
    pub version: Option<String>,
}

/// Where an object is in the store that holds it, whatever part of that a repository is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InStore {
    /// The store.
    pub store: String,
    /// The whole key.
    pub key: String,
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

    /// As [`Storage::get`], of an object that is never written again.
    async fn get_fixed(&self, key: &str, limit: u64) -> Result<Bytes> {
        self.get(key, limit).await
    }

    /// As [`Storage::get`], with what a later [`Condition::Unchanged`] needs.
    async fn get_versioned(&self, key: &str, limit: u64) -> Result<(Bytes, Version)>;

    /// As [`Storage::get_versioned`]; none if the object is still the one that has `version`. Where that is possible, nothing is
    /// sent then.
    async fn get_changed(&self, key: &str, limit: u64, version: &Version) -> Result<Option<(Bytes, Version)>> {
        let found = self.get_versioned(key, limit).await?;
        Ok(Some(found).filter(|(_, now)| now != version))
    }

    /// The `length` bytes of object `key` from `offset` on: all of them, or an error of kind [`ErrorKind::Corrupt`] if the
    /// object ends before.
    async fn get_range(&self, key: &str, offset: u64, length: u64) -> Result<Bytes>;

    /// Stores `bytes` as object `key`, whole or not at all, if `condition` holds; [`ErrorKind::Contended`] if it does not.
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

    /// As [`Storage::put_file`], of a file that may be written to again: the object is a copy in any case.
    async fn put_copy(&self, key: &str, file: std::fs::File, length: u64) -> Result<()> {
        self.put_file(key, file, length).await
    }

    /// Returns when all that [`Storage::put_new`], [`Storage::put_file`] and [`Storage::put_copy`] have stored below `folders` survives a loss of
    /// power.
    async fn sync(&self, folders: &[&str]) -> Result<()> {
        let _ = folders;
        Ok(())
    }

    /// When object `key` was stored, by the storage's own clock: microseconds since 1970-01-01 UTC. None where that is not known.
    async fn modified(&self, key: &str) -> Result<Option<u64>> {
        let _ = key;
        Ok(None)
    }

    /// All objects whose key begins with `prefix`, which ends with `/` or is empty; in no certain order.
    async fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>>;

    /// As [`Storage::list`], one by one: there may be more objects than memory for a list of them.
    async fn each(&self, prefix: &str, visit: &mut (dyn FnMut(ObjectInfo) + Send)) -> Result<()> {
        self.list(prefix).await?.into_iter().for_each(visit);
        Ok(())
    }

    /// Removes the objects `keys`. One that is not there is no error. Those before and after one that cannot be removed may be
    /// gone when this fails; when it returns well, all stay removed after a loss of power.
    async fn delete(&self, keys: &[String]) -> Result<()> {
        let _ = keys;
        Err(Error::new(ErrorKind::Unsupported, format!("{}: nothing can be removed there", self.location())))
    }

    /// Removes the object `key`, which may have at most `limit` bytes, if it is still the one that has `version`;
    /// [`ErrorKind::Contended`] if it is not. Only a local disk compares and removes in one step: no store can that is asked by
    /// others too, so that a change between the two goes with the object.
    async fn delete_unchanged(&self, key: &str, limit: u64, version: &Version) -> Result<()> {
        match self.get_changed(key, limit, version).await {
            Ok(None) => self.delete(&[key.to_owned()]).await,
            Ok(Some(_)) => Err(changed(key)),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(changed(key)),
            Err(error) => Err(error),
        }
    }

    /// The key of some object, if there is any at all.
    async fn any(&self) -> Result<Option<String>> {
        Ok(self.list("").await?.into_iter().next().map(|object| object.key))
    }

    /// Finds out whether the place keeps the promises of [`Condition`], and whether this user may write there, by means of
    /// object `key`, which never changes and has at most `limit` bytes. Where both are known, nothing is read.
    ///
    /// Errors: [`ErrorKind::NotFound`] if there is no such object, [`ErrorKind::Unsupported`] if the place does not compare,
    /// [`ErrorKind::PermissionDenied`] if it takes no writes.
    async fn check_conditions(&self, key: &str, limit: u64) -> Result<()> {
        let _ = (key, limit);
        Ok(())
    }

    /// The same place, by keys that begin with a slash, where a repository may have such.
    fn with_slash(&self) -> Option<Arc<dyn Storage>> {
        None
    }

    /// Why nothing can ever be written here; none if it can.
    fn read_only(&self) -> Option<&'static str> {
        None
    }

    /// The directory that it is, where it is one of this machine.
    fn local_path(&self) -> Option<PathBuf> {
        None
    }

    /// Object `key` as it was got last cannot be used: what is kept of it is not to be believed.
    async fn forget(&self, key: &str) {
        let _ = key;
    }

    /// Requests that are under way over a network.
    fn under_way(&self) -> usize {
        0
    }

    /// The disk of this machine that keeps bytes of it, if one does.
    fn disk_cache(&self) -> Option<&Arc<DiskCache>> {
        None
    }

    /// Object `key` as a file of this machine, where objects are such. Nobody may write to it.
    async fn open_file(&self, key: &str) -> Result<Option<std::fs::File>> {
        let _ = key;
        Ok(None)
    }

    /// Where object `key` is in its store, where that is one that can copy.
    async fn in_store(&self, key: &str) -> Result<Option<InStore>> {
        let _ = key;
        Ok(None)
    }

    /// Copies an object of `bytes` to `key` without its bytes passing through this machine. False, and nothing is done, where that
    /// cannot be: it is in another store, or this one does not copy such.
    async fn copy_from(&self, from: &InStore, key: &str, bytes: u64) -> Result<bool> {
        let _ = (from, key, bytes);
        Ok(false)
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

/// The error of an object that is not the one that was read.
fn changed(key: &str) -> Error {
    Error::new(ErrorKind::Contended, format!("{key}: somebody else has created or changed it meanwhile"))
}

/// The error of a file that has another size than it had.
pub(crate) fn changed_file(length: u64) -> Error {
    Error::new(
        ErrorKind::Busy,
        format!("a chunk's file had {length} bytes and changed while it was stored: commit again"),
    )
}

/// Opens the place that `repo` names: a path or a URL.
pub async fn open(repo: &str, settings: &Settings) -> Result<Arc<dyn Storage>> {
    let Location { place, shown } = Location::parse(repo)?;
    match place {
        Place::Local(path) => directory(&path, shown, settings.unsafe_single_writer),
        place => {
            let cache = cached::open_cache(&shown, settings)?;
            if settings.offline {
                return cached::offline(cache, shown);
            }
            let connected = connect::connect(&place, settings).await.map_err(|e| e.context(shown.clone()))?;
            let store: Arc<dyn Storage> =
                Arc::new(object::ObjectStorage::connected(connected, shown, settings, place.store())?);
            Ok(match cache {
                Some(cache) => Arc::new(cached::CachedStorage::new(store, cache)),
                None => store,
            })
        }
    }
}

/// Opens the directory `path` of this machine.
pub fn open_directory(path: &Path) -> Result<Arc<dyn Storage>> {
    directory(path, path.display().to_string(), false)
}

fn directory(path: &Path, shown: String, single_writer: bool) -> Result<Arc<dyn Storage>> {
    Ok(Arc::new(local::LocalStorage::open(path, shown)?.with_single_writer(single_writer)))
}

/// As [`open`], for a repository that is to be created: makes the directory if there is none.
pub async fn open_new(repo: &str, settings: &Settings) -> Result<Arc<dyn Storage>> {
    if let Location { place: Place::Local(path), shown } = Location::parse(repo)? {
        std::fs::create_dir_all(&path).map_err(|e| Error::io(format!("making {shown}"), e))?;
    }
    open(repo, settings).await
}

/// A place that is not there, for looking at what would be stored in it: whatever it is asked for is absent.
pub fn nowhere(location: &str) -> Arc<dyn Storage> {
    let store = Arc::new(object_store::memory::InMemory::new());
    Arc::new(object::ObjectStorage::new(store, location.to_owned(), DEADLINE))
}
