//! Object-level access to the place that holds a repository, independent of the format.
//!
//! [`Storage`] is the trait that the layers above use, mostly by the methods of `dyn Storage` in
//! [`convenience`]. [`object::ObjectStorage`] implements it over any store of the `object_store`
//! crate, [`local::LocalStorage`] over local files below a descriptor, and [`cached`] over a disk
//! cache with or without a store. [`open`] chooses by [`location`] and [`settings`].
//!
//! Keys are relative to the repository's root, with `/` between components, spelled as in storage.
//! Every operation ends before its [`deadline`].

mod cached;
mod clock;
mod conditional;
mod connect;
mod convenience;
mod create;
mod deadline;
pub mod decoded;
mod explain;
mod file_locks;
mod flush_group;
mod listing;
pub mod local;
mod local_listing;
pub mod location;
mod lock_reach;
pub mod new_objects;
mod new_place;
pub mod object;
mod replace;
pub mod request_rules;
pub mod secrets;
pub mod settings;
mod staging;
mod transport;
pub mod virtuals;

use std::borrow::Cow;
use std::fmt::Debug;
use std::fs::File;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

pub use self::cached::{Contact, OfflineSwitch};
pub use self::clock::StoreClock;
use self::local::LocalStorage;
use self::location::{Location, StorePlace};
use self::new_objects::NewObjectRules;
use self::request_rules::RequestRules;
use self::settings::Settings;
use crate::disk_cache::DiskCache;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_format::format::config::RepoConfig;

/// Time limit of one operation, after which it fails with [`ErrorKind::Timeout`]. A local disk
/// answers in milliseconds; a longer wait means a network file system whose server is gone, and a
/// program must not hang on it.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// Object of a listing.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct ObjectInfo {
    /// Key relative to the repository's root.
    pub key: String,
    /// Size in bytes.
    pub size: u64,
    /// Modification time by the store's clock, in microseconds since 1970-01-01 UTC. Cached
    /// listings of earlier releases lack it.
    #[serde(default)]
    pub modified: u64,
}

/// Identification of one state of an object by its store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
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

/// Constant facts about a storage, and handles for what it can do besides the operations of
/// [`Storage`]. A decorator copies or changes each of them explicitly.
#[derive(Clone, Debug, Default)]
pub struct Capabilities {
    /// Location, as messages and `/proc/mounts` show it.
    pub location: String,
    /// Reason why nothing can be written, if there is one.
    pub read_only: Option<Cow<'static, str>>,
    /// Local directory that holds the repository, if there is one.
    pub local_path: Option<PathBuf>,
    /// Direct access to the files, if objects are local files.
    pub local_files: Option<Arc<local::LocalFiles>>,
    /// Disk cache, if there is one.
    pub disk_cache: Option<Arc<DiskCache>>,
    /// Switch of a storage that was opened offline.
    pub offline: Option<Arc<OfflineSwitch>>,
    /// Access to the same location by keys that begin with a slash, if a repository there may have
    /// such keys.
    pub with_slash: Option<Arc<dyn Storage>>,
    /// Number of requests in flight over a network.
    pub in_flight: Arc<AtomicUsize>,
    /// Clock of the store.
    pub clock: Arc<StoreClock>,
    /// Rules for new objects.
    pub new_objects: Arc<NewObjectRules>,
    /// Rules for requests, if there are any over a network.
    pub requests: Option<Arc<RequestRules>>,
    /// True if an entity tag of 32 hexadecimal digits is the MD5 sum of the object's bytes, as
    /// Amazon's protocol has it for objects that were sent in one part and are not encrypted with a
    /// key of the user's.
    pub has_md5_tags: bool,
    /// Address that requests go to, where `location` does not tell.
    pub endpoint: Option<String>,
}

impl Capabilities {
    /// Creates the capabilities of a storage that can do nothing besides the operations of
    /// [`Storage`].
    pub fn new(location: impl Into<String>) -> Self {
        Capabilities { location: location.into(), ..Capabilities::default() }
    }

    /// Returns whether the store may be contacted now.
    pub fn contact(&self) -> Contact {
        self.offline.as_ref().map_or(Contact::Online, |switch| switch.contact())
    }

    /// Applies what the repository's configuration says about access to the storage.
    pub fn apply(&self, config: &RepoConfig) {
        self.new_objects.set(config);
        if let Some(requests) = &self.requests {
            requests.set(config.request_settings());
        }
    }
}

/// Part of an object that is read, and the freshness that the reader requires.
#[derive(Clone, Copy, Debug)]
pub enum ReadMode<'a> {
    /// The current state of an object that may change.
    Latest,
    /// Any copy of an object that is never written again. Its version may be unknown.
    Immutable,
    /// The current state, unless the object still has this version; without a transfer where that
    /// is possible.
    IfChanged(&'a Version),
    /// Exactly as many bytes as the limit, from this offset on. Fails with [`ErrorKind::Corrupt`]
    /// if the object ends earlier.
    Range(u64),
    /// No bytes: the size, the modification time, and the version if the store names it without the
    /// bytes.
    Head,
}

/// Object, or a part of one, that was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredObject {
    /// Bytes that were read.
    pub bytes: Bytes,
    /// Version of the object, if the [`ReadMode`] asks for it.
    pub version: Version,
    /// Modification time by the store's clock, in microseconds since 1970-01-01 UTC, if it is
    /// known.
    pub modified: Option<u64>,
    /// Size of the whole object in bytes, if the [`ReadMode`] asks for it.
    pub size: Option<u64>,
}

impl From<Bytes> for StoredObject {
    fn from(bytes: Bytes) -> Self {
        StoredObject { bytes, ..StoredObject::default() }
    }
}

/// Bytes of an object that is stored.
#[derive(Debug)]
pub enum Body {
    /// Bytes in memory.
    Bytes(Bytes),
    /// The whole of a file of this length, which is copied.
    File(File, u64),
}

impl Body {
    /// Returns the number of bytes.
    pub fn length(&self) -> u64 {
        match self {
            Body::Bytes(bytes) => bytes.len() as u64,
            Body::File(_, length) => *length,
        }
    }
}

/// Content and durability of an object that is stored.
#[derive(Debug)]
pub enum Content<'a> {
    /// These bytes, whole or not at all, if the condition holds; fails with
    /// [`ErrorKind::Contended`] if it does not. When the operation returns, the object survives a
    /// power loss.
    Conditional(Bytes, Condition),
    /// These bytes, as `Conditional` has it, if there is no object `unless`; fails with
    /// [`ErrorKind::Migrated`] if there is. In a local repository that is one step under the lock
    /// ([`local::LocalFiles::lock`]). On a store the object may appear between: the caller looks
    /// again.
    Unless {
        /// The bytes.
        bytes: Bytes,
        /// The condition.
        condition: Condition,
        /// Key of the other object.
        unless: &'static str,
    },
    /// These bytes, as a new object, which nothing refers to yet and no other writer writes. Until
    /// [`Storage::sync`] has returned, the object may be torn, or gone after a power loss.
    New(Bytes),
    /// The whole of a file of this length, otherwise like `New`. Where possible the object becomes
    /// another name of the file, which must not be written to again.
    File(File, u64),
    /// A copy of a file of this length, which may be written to again, otherwise like `File`.
    FileCopy(File, u64),
    /// A new object under a key that another writer may use, too: fails with
    /// [`ErrorKind::Contended`] if there is one. The key never names a part of the object, and its
    /// bytes survive a power loss before they have the key, which does once [`Storage::sync`] has
    /// returned.
    Exclusive(Body),
    /// A copy of an object of this size, made without a transfer through this machine. Fails with
    /// [`ErrorKind::Unsupported`] if the object is in another store, or if this store cannot copy
    /// it.
    ObjectCopy(&'a StoreAddress, u64),
}

/// Use that the caller makes of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListMode {
    /// All objects are kept: their number is limited, and a disk cache records them.
    Collected,
    /// Objects are visited one by one, since a list of all may not fit into memory.
    Streamed,
}

/// Objects that are removed.
#[derive(Clone, Copy, Debug)]
pub enum Removal<'a> {
    /// Objects in any state; a missing object is no error. On failure any of the other objects may
    /// be removed; on success all removals survive a power loss.
    Objects(&'a [String]),
    /// Object of at most `limit` bytes, if it still has `version`; fails with
    /// [`ErrorKind::Contended`] if not. Only a local disk compares and removes in one step: on a
    /// store, a change by another writer between the two steps is lost with the object.
    Unchanged {
        /// Key of the object.
        key: &'a str,
        /// Maximum size of the object, in bytes.
        limit: u64,
        /// Required version.
        version: &'a Version,
        /// Key of an object that must not exist, as for [`Content::Unless`].
        unless: Option<&'static str>,
    },
    /// Cached bytes of this object, whose last read turned out to be unusable. The object itself
    /// stays.
    Cached(&'a str),
}

/// Source from which an object can be copied without reading it.
#[derive(Debug)]
pub enum ObjectSource {
    /// Open local file, which must not be written to.
    File(File),
    /// Object of a store that can copy objects.
    Store(StoreAddress),
}

/// Function that visits objects until it breaks.
pub type Visitor<'a> = &'a mut (dyn FnMut(ObjectInfo) -> ControlFlow<()> + Send);

/// Access to the objects of one repository.
///
/// Every method is required, so that a decorator cannot forget one. `dyn Storage` has convenient
/// forms of them ([`convenience`]).
#[async_trait]
pub trait Storage: Send + Sync + Debug {
    /// Returns the constant facts about this storage.
    fn capabilities(&self) -> &Capabilities;

    /// Reads object `key`, whole and of at most `limit` bytes unless `mode` asks for a part.
    /// Returns `None` only if it still has the version of [`ReadMode::IfChanged`].
    ///
    /// Errors: [`ErrorKind::NotFound`] if the object does not exist, [`ErrorKind::OutOfMemory`] if
    /// it is larger than `limit`.
    async fn read(&self, key: &str, limit: u64, mode: ReadMode<'_>) -> Result<Option<StoredObject>>;

    /// Stores `content` as object `key`.
    async fn store(&self, key: &str, content: Content<'_>) -> Result<()>;

    /// Makes all objects below `folders` that were stored as anything but [`Content::Conditional`]
    /// survive a power loss.
    async fn sync(&self, folders: &[&str]) -> Result<()>;

    /// Visits all objects whose key begins with `prefix`, which is empty or ends with `/`, in no
    /// particular order.
    async fn walk(&self, prefix: &str, mode: ListMode, visit: Visitor<'_>) -> Result<()>;

    /// Removes objects.
    async fn remove(&self, removal: Removal<'_>) -> Result<()>;

    /// Returns a source from which object `key` can be copied, if there is one.
    async fn locate(&self, key: &str) -> Result<Option<ObjectSource>>;

    /// Checks that the storage honors [`Condition`] and that this user may write to it, using
    /// object `key`, which never changes and has at most `limit` bytes. Reads nothing where both
    /// are known.
    ///
    /// Errors: [`ErrorKind::NotFound`] if the object does not exist, [`ErrorKind::Unsupported`] if
    /// the storage does not compare, [`ErrorKind::PermissionDenied`] if it refuses writes.
    async fn check_conditions(&self, key: &str, limit: u64) -> Result<()>;
}

/// Returns the error for a change of `key` that is refused because there is `unless`.
fn migrated(key: &str, unless: &str) -> Error {
    Error::new(
        ErrorKind::Migrated,
        format!("{key}: the repository was migrated meanwhile (there is `{unless}`): try again"),
    )
}

/// Returns the error of a precondition that does not hold.
fn changed(key: &str) -> Error {
    Error::new(ErrorKind::Contended, format!("{key}: it was created or changed concurrently"))
}

fn no_copy(key: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("{key}: the storage cannot copy it"))
}

/// Returns the error for a file whose size changed while it was stored.
pub fn changed_file(length: u64) -> Error {
    Error::new(
        ErrorKind::Busy,
        format!("a chunk's file had {length} bytes and changed while it was stored: commit again"),
    )
}

/// Opens the storage that `repo`, a path or a URL, names.
pub async fn open(repo: &str, settings: &Settings) -> Result<Arc<dyn Storage>> {
    let Location { place, shown } = Location::parse(repo)?;
    match place {
        StorePlace::Local(path) => Ok(Arc::new(LocalStorage::open(&path, shown, settings.unsafe_single_writer)?)),
        place => {
            let cache = cached::open_cache(&shown, settings)?;
            let connect = async || {
                let connected = connect::connect(&place, settings).await.map_err(|e| e.context(shown.clone()))?;
                let store = object::ObjectStorage::connected(connected, shown.clone(), settings, place.store())?;
                Ok::<Arc<dyn Storage>, Error>(Arc::new(store))
            };
            match cache {
                // Settings of the store are read, and nothing is sent.
                Some(cache) if settings.offline => Ok(match connect().await {
                    Ok(store) => cached::offline(store, cache),
                    Err(error) => cached::without_store(cache, shown.clone(), &error),
                }),
                None if settings.offline => {
                    Err(Error::invalid("--offline shows the content of a cache: name the cache with --cache"))
                }
                Some(cache) => Ok(cached::with_cache(connect().await?, cache)),
                None => connect().await,
            }
        }
    }
}

/// Describes where the credentials for `repo` come from; none if they are not needed, because the
/// repository is on this machine.
pub fn credential_source(repo: &str, settings: &Settings) -> Result<Option<String>> {
    match Location::parse(repo)?.place {
        StorePlace::Local(_) => Ok(None),
        place => connect::credential_source(&place, settings).map(Some),
    }
}

/// Opens the storage of the local directory `path`.
pub fn open_directory(path: &Path) -> Result<Arc<dyn Storage>> {
    Ok(Arc::new(LocalStorage::open(path, path.display().to_string(), false)?))
}

/// Opens the storage of a repository that is to be created, and creates a missing local directory.
///
/// Errors: [`ErrorKind::AlreadyExists`] if that is inside another repository.
pub async fn open_new(repo: &str, settings: &Settings) -> Result<Arc<dyn Storage>> {
    if let Location { place: StorePlace::Local(path), shown } = Location::parse(repo)? {
        if let Some(meant) = Location::url_meant_by(repo).filter(|_| !path.exists()) {
            return Err(Error::invalid(format!("did you mean {meant}? A directory of this name is ./{repo}")));
        }
        let (root, path) = new_place::make(&path, &shown)?;
        return Ok(Arc::new(LocalStorage::at(root, path, shown, settings.unsafe_single_writer)));
    }
    open(repo, settings).await
}

/// Returns an empty storage in memory, for dry runs and tests.
pub fn empty_storage(location: &str) -> Arc<dyn Storage> {
    Arc::new(object::ObjectStorage::in_memory(location))
}
