//! Objects in the new location, and the transfer of chunks to it.
//!
//! Chunks never change, so that a directory of the same file system gets them as hard links,
//! without a copy. Within one store, the store copies them. Otherwise their bytes pass through this
//! program, several objects at a time, large ones by way of a temporary file.
//!
//! Chunks of an earlier attempt are found by a listing: an object with the right name and size is
//! the right one, since names and bytes are those of the old repository. That attempt may have been
//! killed before it flushed them, so that their file system is flushed as a whole
//! ([`Destination::flush_found`]). Bytes that a power cut has taken since then remain unnoticed.
//! Other objects are stored again.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};
use tracing::warn;

use super::Summary;
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::failpoints;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_store::storage::{Condition, ObjectInfo, ObjectSource, Storage};

/// Chunks in transfer at a time.
const AT_ONCE: usize = 8;
/// Missing objects that are named in the log; all are counted.
const MAX_WARNINGS: u64 = 20;
/// Maximum size of an object that passes through memory, in bytes. Larger ones pass through a
/// temporary file, in parts of this size.
const MAX_IN_MEMORY: u64 = 16 << 20;

/// The new location. Without a destination, everything is only counted.
pub(super) struct Destination {
    source: Arc<dyn Storage>,
    destination: Option<Arc<dyn Storage>>,
    /// Sizes of objects that an earlier attempt left, by key.
    found: HashMap<String, u64>,
    /// Sizes of the old repository's chunk objects.
    sizes: HashMap<ObjectId, u64>,
    /// Chunk objects that are in the new location, or are missing.
    seen: HashSet<ObjectId>,
    manifest_ids: HashSet<ObjectId>,
    pub(super) counted: Summary,
}

/// Way in which a chunk reached the new location.
enum CopyMethod {
    Found,
    Linked,
    /// Copied by the store itself.
    StoreAddress,
    Sent,
}

impl Destination {
    pub(super) async fn new(source: Arc<dyn Storage>, destination: Option<Arc<dyn Storage>>) -> Result<Self> {
        let chunk = |key: &str| key.strip_prefix("chunks/")?.parse::<ObjectId>().ok();
        let mut sizes = HashMap::new();
        let mut keep = |object: ObjectInfo| sizes.extend(chunk(&object.key).map(|id| (id, object.size)));
        source.for_each("chunks/", &mut keep).await?;
        let found = match &destination {
            Some(destination) => destination.list("").await?.into_iter().map(|o| (o.key, o.size)).collect(),
            None => HashMap::new(),
        };
        let seen = HashSet::new();
        let manifest_ids = HashSet::new();
        let counted = Summary::default();
        Ok(Destination { source, destination, found, sizes, seen, manifest_ids, counted })
    }

    /// Stores `file` as `key`. What an earlier attempt stored is replaced: it may have been killed
    /// before the file was on the disk.
    pub(super) async fn put(&mut self, key: &str, file: Vec<u8>) -> Result<()> {
        let Some(destination) = &self.destination else { return Ok(()) };
        destination.put(key, file.into(), Condition::Always).await.context(|| destination.location().to_owned())
    }

    /// Transfers the objects `wanted` that are not in the new location yet.
    pub(super) async fn copy_chunks(&mut self, wanted: &[ObjectId]) -> Result<()> {
        let mut copied: Vec<(ObjectId, u64)> = Vec::new();
        for id in wanted {
            if !self.seen.insert(*id) {
                continue;
            }
            match self.sizes.get(id) {
                Some(size) => copied.push((*id, *size)),
                None => {
                    self.counted.missing += 1;
                    if self.counted.missing <= MAX_WARNINGS {
                        warn!("chunks/{id} is missing from the old repository; it will be missing from the new one");
                    }
                }
            }
        }
        self.counted.chunks += copied.len() as u64;
        self.counted.bytes += copied.iter().map(|(_, size)| size).sum::<u64>();
        let Some(destination) = &self.destination else { return Ok(()) };
        let source = &*self.source;
        let found = &self.found;
        let copies = stream::iter(copied).map(|(id, size)| async move {
            let key = format!("chunks/{id}");
            let copied = match found.get(&key) {
                Some(there) if *there == size => Ok(CopyMethod::Found),
                there => copy(source, &**destination, &key, size, there.is_some()).await,
            };
            failpoints::pass("migrate.to.chunk.done")?;
            copied.context(|| key)
        });
        let copies: Vec<CopyMethod> = copies.buffer_unordered(AT_ONCE).try_collect().await?;
        for copied in copies {
            match copied {
                CopyMethod::Found => self.counted.found += 1,
                CopyMethod::Linked => self.counted.linked += 1,
                CopyMethod::StoreAddress => self.counted.store_address += 1,
                CopyMethod::Sent => {}
            }
        }
        Ok(())
    }

    /// Makes chunks that an earlier attempt stored in a local directory survive a power cut. If
    /// that fails, removes them, because the kernel reports bytes that did not reach the disk only
    /// once.
    pub(super) async fn flush_found(&self) -> Result<()> {
        let Some(destination) = self.destination.as_ref().filter(|_| self.counted.found > 0) else { return Ok(()) };
        let Some(place) = destination.local_path() else { return Ok(()) };
        let flush = move || {
            let root = File::open(&place)?;
            rustix::fs::syncfs(&root).map_err(std::io::Error::from)
        };
        let flushed = blocking(move || flush().map_err(|e| Error::io("flushing what an earlier try stored", e))).await;
        let Err(error) = flushed else { return Ok(()) };
        let found: Vec<String> = self.found.keys().filter(|key| key.starts_with("chunks/")).cloned().collect();
        let failed = || format!("{error}: {} chunks may not be on the disk and could not be removed", found.len());
        destination.delete(&found).await.context(failed)?;
        Err(error.context(format!("{} chunks that may not be on the disk were removed (run this again)", found.len())))
    }

    /// Returns an unused id for a new manifest, derived from `digest`.
    pub(super) fn manifest_id(&mut self, digest: [u8; 16]) -> ObjectId {
        let mut digest = digest;
        loop {
            let mut id = [0; 12];
            id.iter_mut().zip(digest).for_each(|(to, from)| *to = from);
            if self.manifest_ids.insert(ObjectId(id)) {
                return ObjectId(id);
            }
            digest = self::digest(&[&digest]);
        }
    }

    pub(super) fn count_empty(&mut self, references: u64) {
        if references > 0 {
            warn!("{references} chunks without bytes are left out: they do not hold a value");
        }
        self.counted.empty += references;
    }
}

/// Transfers one object of `size` bytes. `is_torn` is true if an incomplete copy of it exists.
async fn copy(
    source: &dyn Storage,
    destination: &dyn Storage,
    key: &str,
    size: u64,
    is_torn: bool,
) -> Result<CopyMethod> {
    if is_torn {
        destination.delete(&[key.to_owned()]).await?;
    }
    let located = source.locate(key).await?;
    if destination.local_files().is_some()
        && let Some(ObjectSource::File(file)) = located
    {
        let failed = |e: std::io::Error| Error::io(key, e);
        let same = file.try_clone().map_err(failed)?;
        let links = same.metadata().map_err(failed)?.nlink();
        destination.put_file(key, file, size).await?;
        let is_linked = same.metadata().map_err(failed)?.nlink() > links;
        return Ok(if is_linked { CopyMethod::Linked } else { CopyMethod::Sent });
    }
    if let Some(ObjectSource::Store(address)) = located
        && destination.copy_from(&address, key, size).await?
    {
        return Ok(CopyMethod::StoreAddress);
    }
    if size <= MAX_IN_MEMORY {
        let bytes = source.get_range(key, 0, size).await?;
        destination.put_new(key, bytes).await?;
    } else {
        destination.put_file(key, spool(source, key, size).await?, size).await?;
    }
    Ok(CopyMethod::Sent)
}

/// Returns a temporary file with the bytes of an object.
async fn spool(source: &dyn Storage, key: &str, size: u64) -> Result<File> {
    let failed = |e: std::io::Error| Error::io("a temporary file for a large chunk", e);
    let mut file = tempfile::tempfile().map_err(failed)?;
    let mut at = 0;
    while at < size {
        let part = source.get_range(key, at, MAX_IN_MEMORY.min(size - at)).await?;
        at += part.len() as u64;
        let writing = tokio::task::spawn_blocking(move || file.write_all(&part).map(|()| file));
        let written = writing.await.map_err(|e| Error::with_source(ErrorKind::Io, key.to_owned(), e))?;
        file = written.map_err(failed)?;
    }
    file.rewind().map_err(failed)?;
    Ok(file)
}

/// Returns 16 bytes that distinguish `parts`, the same in every run: FNV-1a of 128 bits, with each
/// part's length before it. Callers that derive names from a digest must ensure that no two are
/// equal.
pub(super) fn digest(parts: &[&[u8]]) -> [u8; 16] {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0100_0000_0000_0000_0000_013b;
    let mut digest = BASIS;
    for part in parts {
        for byte in (part.len() as u64).to_le_bytes().iter().chain(*part) {
            digest = (digest ^ u128::from(*byte)).wrapping_mul(PRIME);
        }
    }
    // The last input bytes have not reached the first output bytes yet.
    for _ in 0..16 {
        digest = (digest ^ (digest >> 67)).wrapping_mul(PRIME);
    }
    digest.to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_tell_parts_apart() {
        let all: HashSet<[u8; 12]> = (0..=255_u8)
            .flat_map(|n| [digest(&[&[n], &[0]]), digest(&[&[0], &[n]]), digest(&[&[0, n]]), digest(&[&[n; 20]])])
            .map(|digest| std::array::from_fn(|at| digest.get(at).copied().unwrap_or_default()))
            .collect();
        // The first two are equal for 0.
        assert_eq!(all.len(), 4 * 256 - 1);
    }
}
