//! Object-level access to the place that holds a repository, independent of the format.
//!
//! [`Storage`] is the trait that the layers above use. [`object::ObjectStorage`] implements it over any store of the `object_store`
//! crate; [`local::LocalStorage`] reads local files through descriptors below the repository's directory, which is faster, and no
//! symbolic link can lead it out of that directory. [`open`] chooses by URL. With a disk cache, [`cached`] wraps the store or replaces
//! it.
//!
//! [`location`] parses the name of a repository, [`settings`] holds the options for reaching it, [`connect`] builds a store from both,
//! and [`transport`] carries its requests. [`deadline`] limits the time of each operation, and [`listing`] validates listings. [`virtuals`]
//! reads objects outside the repository, as far as the user allows them.
//!
//! Keys are relative to the repository's root, with `/` between components, spelled as in storage. Every operation ends before its
//! deadline.

mod cached;
mod conditional;
mod connect;
mod create;
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
mod transport;
pub mod virtuals;

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use self::location::{Location, StorePlace};
use self::settings::Settings;
use crate::disk_cache::DiskCache;
use crate::error::{Error, ErrorKind, Result};

/// Time limit of one operation, after which it fails with [`ErrorKind::Timeout`]. A local disk answers in milliseconds; a longer wait
/// means a network file system whose server is gone, and a program must not hang on it.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// Object of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Key relative to the repository's root.
    pub key: String,
    /// Size in bytes.
    pub size: u64,
    /// Modification time by the store's clock, in microseconds since 1970-01-01 UTC.
    pub modified: u64,
}

/// Identification of one state of an object by its store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Entity tag.
    pub e_tag: Option<String>,
    /// Version or generation number, if the store has one.
    pub version: Option<String>,
}

/// Address of an object within its store, independent of the repository's prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreAddress {
    /// Name of the store.
    pub store: String,
    /// Full key.
    pub key: String,
}

/// Precondition of a put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// No condition: the object is created or replaced.
    Always,
    /// The object must not exist.
    Absent,
    /// The object must still have this version.
    Unchanged(Version),
}

/// Access to the objects of one repository.
#[async_trait]
pub trait Storage: Send + Sync + Debug {
    /// Returns the location as messages and `/proc/mounts` show it.
    fn location(&self) -> &str;

    /// Reads the whole object `key`, of at most `limit` bytes.
    ///
    /// Errors: [`ErrorKind::NotFound`] if the object does not exist, [`ErrorKind::OutOfMemory`] if it is larger than `limit`.
    async fn get(&self, key: &str, limit: u64) -> Result<Bytes>;

    /// Reads an object that is never written again, otherwise like [`Storage::get`].
    async fn get_fixed(&self, key: &str, limit: u64) -> Result<Bytes> {
        self.get(key, limit).await
    }

    /// Reads an object like [`Storage::get`], with the version that a later [`Condition::Unchanged`] needs.
    async fn get_versioned(&self, key: &str, limit: u64) -> Result<(Bytes, Version)>;

    /// Reads an object like [`Storage::get_versioned`]. Returns `None` if it still has `version`, without a transfer where that is
    /// possible.
    async fn get_changed(&self, key: &str, limit: u64, version: &Version) -> Result<Option<(Bytes, Version)>> {
        let found = self.get_versioned(key, limit).await?;
        Ok(Some(found).filter(|(_, now)| now != version))
    }

    /// Reads exactly `length` bytes of object `key` at `offset`. Fails with [`ErrorKind::Corrupt`] if the object ends earlier.
    async fn get_range(&self, key: &str, offset: u64, length: u64) -> Result<Bytes>;

    /// Stores `bytes` as object `key`, whole or not at all, if `condition` holds; fails with [`ErrorKind::Contended`] if it does not.
    /// When this returns, the object survives a power loss.
    async fn put(&self, key: &str, bytes: Bytes, condition: Condition) -> Result<()>;

    /// Stores `bytes` as the new object `key`, which nothing refers to yet and no other writer writes. Until [`Storage::sync`] has
    /// returned, the object may be torn, or gone after a power loss.
    async fn put_new(&self, key: &str, bytes: Bytes) -> Result<()> {
        self.put(key, bytes, Condition::Always).await
    }

    /// Stores the whole of `file`, of `length` bytes, like [`Storage::put_new`]. Where possible the object becomes another name of the
    /// file, which must not be written to again.
    async fn put_file(&self, key: &str, file: std::fs::File, length: u64) -> Result<()> {
        let (_, bytes) = read_part(file, length, true).await?;
        self.put_new(key, bytes).await
    }

    /// Stores a copy of `file`, which may be written to again, otherwise like [`Storage::put_file`].
    async fn put_copy(&self, key: &str, file: std::fs::File, length: u64) -> Result<()> {
        self.put_file(key, file, length).await
    }

    /// Makes all objects below `folders` that [`Storage::put_new`], [`Storage::put_file`] and [`Storage::put_copy`] stored survive a
    /// power loss.
    async fn sync(&self, folders: &[&str]) -> Result<()> {
        let _ = folders;
        Ok(())
    }

    /// Returns the modification time of object `key` by the store's clock, in microseconds since 1970-01-01 UTC, if it is known.
    async fn modified(&self, key: &str) -> Result<Option<u64>> {
        let _ = key;
        Ok(None)
    }

    /// Lists all objects whose key begins with `prefix`, which is empty or ends with `/`, in no particular order.
    async fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>>;

    /// Visits the objects of [`Storage::list`] one by one, since a list of all may not fit into memory.
    async fn each(&self, prefix: &str, visit: &mut (dyn FnMut(ObjectInfo) + Send)) -> Result<()> {
        self.list(prefix).await?.into_iter().for_each(visit);
        Ok(())
    }

    /// Removes the objects `keys`; a missing object is no error. On failure any of the other objects may be removed; on success all
    /// removals survive a power loss.
    async fn delete(&self, keys: &[String]) -> Result<()> {
        let _ = keys;
        Err(Error::new(ErrorKind::Unsupported, format!("{}: nothing can be removed there", self.location())))
    }

    /// Removes object `key`, of at most `limit` bytes, if it still has `version`; fails with [`ErrorKind::Contended`] if not. Only a
    /// local disk compares and removes in one step: on a store, a change by another writer between the two steps is lost with the object.
    async fn delete_unchanged(&self, key: &str, limit: u64, version: &Version) -> Result<()> {
        match self.get_changed(key, limit, version).await {
            Ok(None) => self.delete(&[key.to_owned()]).await,
            Ok(Some(_)) => Err(changed(key)),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(changed(key)),
            Err(error) => Err(error),
        }
    }

    /// Returns the key of an arbitrary object, if there is one.
    async fn any(&self) -> Result<Option<String>> {
        Ok(self.list("").await?.into_iter().next().map(|object| object.key))
    }

    /// Checks that the storage honors [`Condition`] and that this user may write to it, using object `key`, which never changes and has
    /// at most `limit` bytes. Reads nothing where both are known.
    ///
    /// Errors: [`ErrorKind::NotFound`] if the object does not exist, [`ErrorKind::Unsupported`] if the storage does not compare,
    /// [`ErrorKind::PermissionDenied`] if it refuses writes.
    async fn check_conditions(&self, key: &str, limit: u64) -> Result<()> {
        let _ = (key, limit);
        Ok(())
    }

    /// Returns access to the same location by keys that begin with a slash, if a repository there may have such keys.
    fn with_slash(&self) -> Option<Arc<dyn Storage>> {
        None
    }

    /// Returns the reason why nothing can be written here, if there is one.
    fn read_only(&self) -> Option<&'static str> {
        None
    }

    /// Returns the local directory that holds the repository, if there is one.
    fn local_path(&self) -> Option<PathBuf> {
        None
    }

    /// Discards cached bytes of object `key`, whose last read turned out to be unusable.
    async fn forget(&self, key: &str) {
        let _ = key;
    }

    /// Returns the number of requests in flight over a network.
    fn in_flight(&self) -> usize {
        0
    }

    /// Returns the disk cache of this storage, if there is one.
    fn disk_cache(&self) -> Option<&Arc<DiskCache>> {
        None
    }

    /// Opens object `key` as a local file, if objects are local files. The file must not be written to.
    async fn open_file(&self, key: &str) -> Result<Option<std::fs::File>> {
        let _ = key;
        Ok(None)
    }

    /// Returns the address of object `key` within its store, if the store can copy objects.
    async fn store_address(&self, key: &str) -> Result<Option<StoreAddress>> {
        let _ = key;
        Ok(None)
    }

    /// Copies an object of `bytes` bytes to `key` without a transfer through this machine. Does nothing and returns false if the object
    /// is in another store, or if this store cannot copy it.
    async fn copy_from(&self, from: &StoreAddress, key: &str, bytes: u64) -> Result<bool> {
        let _ = (from, key, bytes);
        Ok(false)
    }

    /// Returns direct access to the files, if objects are local files.
    fn local_files(&self) -> Option<&local::LocalFiles> {
        None
    }
}

/// Reads the next `length` bytes of `file`, and returns both. With `is_last`, fails unless the file ends there.
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

/// Returns the error of a precondition that does not hold.
fn changed(key: &str) -> Error {
    Error::new(ErrorKind::Contended, format!("{key}: somebody else has created or changed it meanwhile"))
}

/// Returns the error for a file whose size changed while it was stored.
pub(crate) fn changed_file(length: u64) -> Error {
    Error::new(
        ErrorKind::Busy,
        format!("a chunk's file had {length} bytes and changed while it was stored: commit again"),
    )
}

/// Opens the storage that `repo`, a path or a URL, names.
pub async fn open(repo: &str, settings: &Settings) -> Result<Arc<dyn Storage>> {
    let Location { place, shown } = Location::parse(repo)?;
    match place {
        StorePlace::Local(path) => directory(&path, shown, settings.unsafe_single_writer),
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

/// Opens the storage of the local directory `path`.
pub fn open_directory(path: &Path) -> Result<Arc<dyn Storage>> {
    directory(path, path.display().to_string(), false)
}

fn directory(path: &Path, shown: String, single_writer: bool) -> Result<Arc<dyn Storage>> {
    Ok(Arc::new(local::LocalStorage::open(path, shown)?.with_single_writer(single_writer)))
}

/// Opens the storage of a repository that is to be created, and creates a missing local directory.
pub async fn open_new(repo: &str, settings: &Settings) -> Result<Arc<dyn Storage>> {
    if let Location { place: StorePlace::Local(path), shown } = Location::parse(repo)? {
        std::fs::create_dir_all(&path).map_err(|e| Error::io(format!("making {shown}"), e))?;
    }
    open(repo, settings).await
}

/// Returns an empty storage for dry runs, in which every object is absent.
pub fn empty_storage(location: &str) -> Arc<dyn Storage> {
    let store = Arc::new(object_store::memory::InMemory::new());
    Arc::new(object::ObjectStorage::new(store, location.to_owned(), DEADLINE))
}
