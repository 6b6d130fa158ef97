//! The objects of the destination of a copy.
//!
//! **An object that exists is never written again.** Ids are random numbers: the same id says
//! nothing about the bytes. An object is stored only where nothing is; if something is there, its
//! bytes are compared with those of the source, and other bytes are an error that names both
//! places. A copy that was interrupted leaves whole objects only, which the next one finds to be
//! equal. Where there is no repository yet, other bytes are removed, and the object is copied: no
//! ref can lead to them.
//!
//! Bytes are compared by a checksum where a store vouches for one: the MD5 sum of Amazon's
//! protocol, against that of another such store or of a local file. Else they are read at both
//! places.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use data_encoding::HEXLOWER_PERMISSIVE;
use futures_util::future::BoxFuture;
use futures_util::{StreamExt, TryStreamExt, stream};
use md5::{Digest, Md5};
use tracing::warn;

use super::removal::FoundObject;
use super::{FOLDERS, Failure};
use crate::repo::MAX_SNAPSHOT;
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_store::storage::{Body, Content, ObjectInfo, ReadMode, Storage};

/// Bytes of an object that are compared at once.
const PIECE: u64 = 1 << 20;
/// Objects from which on a listing is faster than a look at each.
const WORTH_LISTING: usize = 256;
/// Objects that are looked at at the same time.
const AT_ONCE: usize = 32;
/// Smallest object, in bytes, for which a checksum is asked for: it is a round trip, which brings a
/// smaller object as well.
const WORTH_A_CHECKSUM: u64 = 256 << 10;

/// Destination of a copy.
#[derive(Debug)]
pub(super) struct Destination {
    storage: Arc<dyn Storage>,
    /// Name of the source, for errors.
    source: String,
    /// Objects that were stored before the copy, as far as they were looked for.
    stored: HashMap<String, StoredAt>,
    /// Folders that were listed.
    listed: HashSet<&'static str>,
    /// True if there is a repository, and not only what an unfinished clone left.
    is_repository: bool,
}

/// MD5 sum.
type Sum = [u8; 16];

/// Object at the destination.
#[derive(Clone, Copy, Debug)]
struct StoredAt {
    size: u64,
    /// Time of storing by the store's clock, in microseconds since 1970-01-01 UTC, if it is known.
    modified: Option<u64>,
}

/// Outcome for an object that was to be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placed {
    /// It was stored.
    New,
    /// It was there, with the same bytes.
    Found,
}

/// Object of the source, to be compared with that of the destination.
#[derive(Debug)]
pub(super) enum Original<'a> {
    /// All its bytes.
    Bytes(&'a Bytes),
    /// A local file of this length that has its bytes.
    File(&'a File, u64),
    /// Object of this length in the source, which is read as far as that is necessary.
    Stored(&'a dyn Storage, u64),
}

impl Original<'_> {
    fn length(&self) -> u64 {
        match self {
            Original::Bytes(bytes) => bytes.len() as u64,
            Original::File(_, length) | Original::Stored(_, length) => *length,
        }
    }
}

impl Destination {
    /// Returns the destination `storage` of a copy from the place `source`.
    pub(super) fn new(storage: &Arc<dyn Storage>, source: &str) -> Self {
        Destination {
            storage: Arc::clone(storage),
            source: source.to_owned(),
            stored: HashMap::new(),
            listed: HashSet::new(),
            is_repository: true,
        }
    }

    /// Takes the objects that an unfinished clone left from a complete listing.
    pub(super) fn with_leftovers(self, stored: HashMap<String, u64>) -> Self {
        let stored = stored.into_iter().map(|(key, size)| (key, StoredAt { size, modified: None })).collect();
        Destination { stored, listed: FOLDERS.into(), is_repository: false, ..self }
    }

    pub(super) fn storage(&self) -> &Arc<dyn Storage> {
        &self.storage
    }

    fn place(&self) -> String {
        self.storage.location().to_owned()
    }

    /// Looks which objects of `folder` are stored.
    pub(super) async fn look_for(&mut self, folder: &'static str, ids: &[ObjectId]) -> Result<()> {
        if self.listed.contains(folder) || ids.is_empty() {
            return Ok(());
        }
        if ids.len() >= WORTH_LISTING {
            let stored = &mut self.stored;
            let mut add = |object: ObjectInfo| {
                let modified = Some(object.modified).filter(|at| *at > 0);
                stored.insert(object.key, StoredAt { size: object.size, modified });
            };
            self.storage.for_each(&format!("{folder}/"), &mut add).await?;
            self.listed.insert(folder);
            return Ok(());
        }
        let storage = &self.storage;
        let look = |id: &ObjectId| -> BoxFuture<'_, Result<Option<(String, StoredAt)>>> {
            let key = format!("{folder}/{id}");
            Box::pin(async move { Ok(stored_at(&**storage, &key).await?.map(|found| (key, found))) })
        };
        let looks: Vec<_> = ids.iter().map(look).collect();
        let found: Vec<_> = stream::iter(looks).buffer_unordered(AT_ONCE).try_collect().await?;
        self.stored.extend(found.into_iter().flatten());
        Ok(())
    }

    /// Returns true if object `key` was found.
    pub(super) fn has(&self, key: &str) -> bool {
        self.stored.contains_key(key)
    }

    /// Returns object `key`, which was found, for a look at collections of garbage.
    pub(super) fn found<'a>(&self, key: &'a str) -> FoundObject<'a> {
        FoundObject { key, stored: self.stored.get(key).and_then(|found| found.modified) }
    }

    /// Looks again for the objects `keys`, which were found. Returns those that are gone.
    pub(super) async fn look_again(&mut self, keys: &[String]) -> Result<Vec<String>> {
        let storage = &self.storage;
        let look = |key: &String| -> BoxFuture<'_, Result<Option<String>>> {
            let key = key.clone();
            Box::pin(async move { Ok(stored_at(&**storage, &key).await?.is_none().then_some(key)) })
        };
        let looks: Vec<_> = keys.iter().map(look).collect();
        let gone: Vec<_> = stream::iter(looks).buffer_unordered(AT_ONCE).try_collect().await?;
        let gone: Vec<String> = gone.into_iter().flatten().collect();
        for key in &gone {
            self.stored.remove(key);
        }
        Ok(gone)
    }

    /// Stores `bytes` as object `key` if nothing is there, or finds that it is there.
    ///
    /// Errors: [`ErrorKind::Corrupt`] if something else is there.
    pub(super) async fn put(&self, key: &str, bytes: Bytes) -> Result<Placed, Failure> {
        let original = Original::Bytes(&bytes);
        if self.has(key) && self.compare_or_remove(key, &original).await? == Placed::Found {
            return Ok(Placed::Found);
        }
        match self.store(key, Body::Bytes(bytes.clone())).await? {
            Placed::New => Ok(Placed::New),
            Placed::Found => self.compare_now(key, &original).await,
        }
    }

    /// Stores a snapshot of version 1, otherwise like [`Destination::put`]. One that differs in its
    /// parent alone is the same: an expiration writes such files again, here or in the source. Refs
    /// reach those in `present`, which stay. Another is not replaced, either: a branch that the
    /// user has deleted may be made again at it, with the history that it had.
    pub(super) async fn put_version_1_snapshot(
        &self,
        key: &str,
        bytes: Bytes,
        present: &HashSet<ObjectId>,
    ) -> Result<Placed, Failure> {
        if !self.has(key) && self.store(key, Body::Bytes(bytes.clone())).await? == Placed::New {
            return Ok(Placed::New);
        }
        let there = self.storage.get(key, MAX_SNAPSHOT).await.context(|| self.place())?;
        if there == bytes {
            return Ok(Placed::Found);
        }
        if !self.is_repository {
            self.storage.delete(&[key.to_owned()]).await.context(|| self.place())?;
            return self.store(key, Body::Bytes(bytes)).await;
        }
        let one = Snapshot::decode(&bytes, MAX_SNAPSHOT)?;
        let other = Snapshot::decode(&there, MAX_SNAPSHOT);
        if !other.is_ok_and(|other| one.is_same_but_for_parent(&other)) {
            return Err(Failure::Final(self.differs(key, there.len() as u64, bytes.len() as u64)));
        }
        if present.contains(&one.id()) {
            return Ok(Placed::Found);
        }
        let place = self.place();
        Err(Failure::Final(Error::new(
            ErrorKind::AlreadyExists,
            format!(
                "{key} has another parent in {place} than in {}, where its history may have expired. No ref of {place} \
                 leads to it: nothing was replaced and no ref was moved; `icechunkfs gc {}` removes it, and the next \
                 copy takes that of the source",
                self.source,
                icechunkfs_base::shell::quote(&place)
            ),
        )))
    }

    /// Stores a file of `length` bytes, otherwise like [`Destination::put`].
    pub(super) async fn put_file(&self, key: &str, file: File, length: u64) -> Result<Placed, Failure> {
        let again = file.try_clone().map_err(|e| Error::io(key, e))?;
        match self.store(key, Body::File(file, length)).await? {
            Placed::New => Ok(Placed::New),
            Placed::Found => self.compare_now(key, &Original::File(&again, length)).await,
        }
    }

    /// Compares object `key`, which was found, with that of the source. Returns [`Placed::New`] if
    /// it is to be stored: what an unfinished clone left, or whatever else lies there, is removed
    /// if it is something else, since no ref can lead to it.
    pub(super) async fn compare_or_remove(&self, key: &str, original: &Original<'_>) -> Result<Placed, Failure> {
        match self.compare_now(key, original).await {
            Err(Failure::Final(error)) if error.kind() == ErrorKind::Corrupt && !self.is_repository => {
                warn!("{error}");
                self.storage.delete(&[key.to_owned()]).await.context(|| self.place())?;
                Ok(Placed::New)
            }
            compared => compared,
        }
    }

    /// Stores an object unless the key is taken.
    async fn store(&self, key: &str, body: Body) -> Result<Placed, Failure> {
        match self.storage.store(key, Content::Exclusive(body)).await {
            Ok(()) => Ok(Placed::New),
            Err(error) if matches!(error.kind(), ErrorKind::Contended | ErrorKind::AlreadyExists) => Ok(Placed::Found),
            Err(error) => Err(Failure::Final(error.context(self.place()))),
        }
    }

    /// Compares object `key`, which has appeared since it was looked for.
    async fn compare_now(&self, key: &str, original: &Original<'_>) -> Result<Placed, Failure> {
        let there = stored_at(&*self.storage, key).await.context(|| self.place())?;
        let gone = || Error::new(ErrorKind::Busy, format!("{}: {key} appears and disappears", self.place()));
        let there = there.ok_or_else(|| Failure::Changed(gone()))?;
        self.compare(key, there.size, original).await
    }

    async fn compare(&self, key: &str, size: u64, original: &Original<'_>) -> Result<Placed, Failure> {
        if size == original.length() && self.has_same_bytes(key, original).await? {
            return Ok(Placed::Found);
        }
        Err(Failure::Final(self.differs(key, size, original.length())))
    }

    /// Returns true if object `key`, which has the length of the original, has its bytes.
    async fn has_same_bytes(&self, key: &str, original: &Original<'_>) -> Result<bool, Failure> {
        let length = original.length();
        if length >= WORTH_A_CHECKSUM && self.has_same_sum(key, original).await.context(|| self.place())? {
            return Ok(true);
        }
        let mut at = 0;
        while at < length {
            let size = PIECE.min(length - at);
            let there = self.storage.get_range(key, at, size).await.context(|| self.place())?;
            let here = match original {
                Original::Bytes(bytes) => bytes.slice(usize_of(at)..usize_of(at + size)),
                Original::File(file, _) => read_at(file, key, at, size).await?,
                Original::Stored(storage, _) => {
                    storage.get_range(key, at, size).await.map_err(|error| Failure::of_source(error, &self.source))?
                }
            };
            if here != there {
                return Ok(false);
            }
            at += size;
        }
        Ok(true)
    }

    /// Returns true if a store vouches that both objects have one checksum. If none does, or they
    /// have not, nothing follows.
    async fn has_same_sum(&self, key: &str, original: &Original<'_>) -> Result<bool> {
        if let Some(there) = vouched_sum(&*self.storage, key).await? {
            let here = match original {
                Original::Bytes(bytes) => Some(Md5::digest(bytes).into()),
                Original::File(file, _) => Some(sum_of(file.try_clone().map_err(|e| Error::io(key, e))?, key).await?),
                Original::Stored(storage, _) => vouched_sum(*storage, key).await?,
            };
            return Ok(here == Some(there));
        }
        let Original::Stored(storage, _) = original else { return Ok(false) };
        let Some(files) = self.storage.local_files() else { return Ok(false) };
        match vouched_sum(*storage, key).await? {
            Some(here) => Ok(here == sum_of(files.open(key)?, key).await?),
            None => Ok(false),
        }
    }

    fn differs(&self, key: &str, there: u64, here: u64) -> Error {
        let place = self.place();
        let sizes = if there == here { format!("{here} bytes in each") } else { format!("{there} and {here} bytes") };
        let remedy = if key.ends_with(&ObjectId::INITIAL.to_string()) {
            return Error::corrupt(made_separately(&place, &self.source));
        } else if self.is_repository {
            format!(
                "nothing was replaced and no ref was moved; `icechunkfs verify --chunks` tells whether one is damaged, \
                 and `icechunkfs gc` removes what no ref of {place} needs"
            )
        } else {
            "the latter is copied".to_owned()
        };
        Error::corrupt(format!("{key} differs between {place} and {} ({sizes}): {remedy}", self.source))
    }
}

/// Says that nothing can be copied from `source` to `place`, whose histories begin otherwise.
pub(super) fn made_separately(place: &str, source: &str) -> String {
    format!(
        "{place} and {source} have different first commits: they were created or migrated separately, so no commit can \
         be copied. No ref was moved; `icechunkfs clone` makes a repository to which commits can be copied"
    )
}

/// Returns the MD5 sum of object `key` that its store vouches for, if it does.
async fn vouched_sum(storage: &dyn Storage, key: &str) -> Result<Option<Sum>> {
    if !storage.capabilities().has_md5_tags {
        return Ok(None);
    }
    let found = storage.read(key, 0, ReadMode::Head).await?;
    let tag = found.and_then(|found| found.version.e_tag).unwrap_or_default();
    // Objects that were sent in parts have tags with a dash.
    Ok(HEXLOWER_PERMISSIVE.decode(tag.trim_matches('"').as_bytes()).ok().and_then(|sum| sum.try_into().ok()))
}

/// Returns the MD5 sum of a file.
async fn sum_of(file: File, key: &str) -> Result<Sum> {
    let key = key.to_owned();
    let read = move || {
        let mut sum = Md5::new();
        let mut piece = vec![0; usize_of(PIECE)];
        let mut at = 0;
        loop {
            let read = file.read_at(&mut piece, at).map_err(|e| Error::io(&key, e))?;
            if read == 0 {
                return Ok(sum.finalize().into());
            }
            sum.update(piece.get(..read).unwrap_or_default());
            at += read as u64;
        }
    };
    blocking(read).await
}

/// Reads exactly `size` bytes of a file.
async fn read_at(file: &File, key: &str, at: u64, size: u64) -> Result<Bytes> {
    let key = key.to_owned();
    let file = file.try_clone().map_err(|e| Error::io(&key, e))?;
    let read = move || {
        let mut bytes = vec![0; usize_of(size)];
        file.read_exact_at(&mut bytes, at).map_err(|e| Error::io(&key, e))?;
        Ok(Bytes::from(bytes))
    };
    blocking(read).await
}

/// Looks for object `key`; none if there is no such object.
async fn stored_at(storage: &dyn Storage, key: &str) -> Result<Option<StoredAt>> {
    match storage.size_and_time(key).await {
        Ok((size, modified)) => Ok(Some(StoredAt { size, modified })),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn usize_of(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}
