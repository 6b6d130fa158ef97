//! Cache bounded in bytes, which loads each entry once for all concurrent readers.
//!
//! Stored objects are immutable, so an entry is never stale; it is evicted when room is needed,
//! least recently used first. The lock is held for lookups only, never while something is loaded.

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::Shared;
use lru::LruCache;
use parking_lot::Mutex;

use super::chunk::ChunkRange;
use super::shard_layout::Layout;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::memory::{self, EvictLocked};
use icechunkfs_base::metrics;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::manifest::Manifest;
use icechunkfs_format::zarr::shard::{Index, IndexForm};

/// Bytes of bookkeeping per entry: key, links and hash table slot, rounded up.
const ENTRY_OVERHEAD: u64 = 128;

/// Owner of cached bytes that something above makes of chunks. No two are equal: trees of several
/// snapshots share a cache, and a node has one number in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner(u64);

impl Owner {
    /// Creates an owner that nothing else is.
    pub fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Owner(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Key of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// Decoded manifest.
    Manifest(ObjectId),
    /// Bytes of a chunk.
    Chunk(ChunkRange),
    /// Layout of a shard in pieces.
    Layout(ChunkRange),
    /// Index of a stored shard, decoded in this form.
    Index(ChunkRange, IndexForm),
    /// Bytes that an owner makes of chunks, and their number among its parts.
    ViewBytes(Owner, u64),
}

impl Key {
    /// Returns the bytes of a chunk; 0 for what is made of others.
    fn length(&self) -> u64 {
        match self {
            Key::Chunk(chunk) => chunk.length,
            _ => 0,
        }
    }

    fn weight(&self) -> u64 {
        ENTRY_OVERHEAD
            + match self {
                Key::Manifest(_) | Key::ViewBytes(..) => 0,
                Key::Chunk(chunk) | Key::Layout(chunk) | Key::Index(chunk, _) => chunk.weight(),
            }
    }
}

/// Something that an owner makes of chunks, other than bytes.
pub trait ViewValue: Any + Debug + Send + Sync {
    /// Returns the bytes that it takes, which must not change.
    fn weight(&self) -> u64;
}

/// Cached value. Cheap to clone.
#[derive(Clone, Debug)]
pub enum Value {
    /// Decoded manifest.
    Manifest(Arc<Manifest>),
    /// Bytes of a chunk.
    Chunk(Bytes),
    /// Layout of a shard in pieces.
    Layout(Arc<Layout>),
    /// Index of a shard, or the reason why it cannot be used.
    Index(Result<Arc<Index>>),
    /// Value of another kind, which an owner makes of chunks.
    View(Arc<dyn ViewValue>),
}

impl Value {
    fn weight(&self) -> u64 {
        match self {
            Value::Manifest(manifest) => manifest.size() as u64,
            Value::Chunk(bytes) => bytes.len() as u64,
            Value::Layout(layout) => layout.weight(),
            // Two numbers of 64 bits an entry.
            Value::Index(Ok(index)) => 16 * index.entry_count(),
            Value::View(value) => value.weight(),
            Value::Index(Err(error)) => ENTRY_OVERHEAD + error.to_string().len() as u64,
        }
    }
}

type Loading = Shared<Pin<Box<dyn Future<Output = Result<Value>> + Send>>>;

/// Cache of manifests, chunks and layouts.
#[derive(Debug)]
pub struct Cache {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    entries: LruCache<Key, Value>,
    loading: HashMap<Key, Loading>,
    /// Entries, and those being loaded, that were prefetched and that nobody has read yet.
    ahead: HashSet<Key>,
    bytes: u64,
    capacity: u64,
}

impl EvictLocked for State {
    fn evict(&mut self, bytes: u64) {
        let keep = self.bytes.saturating_sub(bytes);
        self.evict_to(keep);
    }
}

impl Cache {
    /// Creates a cache of at most `capacity` bytes.
    pub fn new(capacity: u64) -> Self {
        let state = State {
            entries: LruCache::unbounded(),
            loading: HashMap::new(),
            ahead: HashSet::new(),
            bytes: 0,
            capacity,
        };
        let state = Arc::new(Mutex::new(state));
        memory::register_cache(&state);
        Cache { state }
    }

    /// Returns the bytes held.
    pub fn bytes(&self) -> u64 {
        self.state.lock().bytes
    }

    /// Returns the number of entries being loaded.
    pub fn loading(&self) -> usize {
        self.state.lock().loading.len()
    }

    /// Returns the entry of `key`, if there is one.
    pub fn get(&self, key: &Key) -> Option<Value> {
        let mut state = self.state.lock();
        let found = state.entries.get(key).cloned();
        if found.is_some() {
            state.read(key);
        }
        found
    }

    /// Returns true if `key` has an entry or is being loaded. This does not count as a use.
    pub fn has(&self, key: &Key) -> bool {
        self.state.lock().has(key)
    }

    /// Loads `chunks` before anybody reads them, otherwise like [`Cache::get_or_load`]. `loads`
    /// makes the loads of those that are neither there nor being loaded; it must not wait. Of
    /// several concurrent callers, one loads all that they have in common.
    pub fn load_ahead<F, L>(&self, mut chunks: Vec<ChunkRange>, loads: impl FnOnce(Vec<ChunkRange>) -> L)
    where
        F: Future<Output = Result<Value>> + Send + 'static,
        L: IntoIterator<Item = (ChunkRange, F)>,
    {
        let mut state = self.state.lock();
        chunks.retain(|chunk| !state.has(&Key::Chunk(chunk.clone())));
        for (chunk, load) in loads(chunks) {
            let key = Key::Chunk(chunk);
            metrics::PREFETCH.fetched.add(key.length());
            state.ahead.insert(key.clone());
            drop(self.begin(&mut state, key, load));
        }
    }

    /// Returns the entry of `key`, loaded by `load` if there is none. Of several concurrent
    /// callers, the first one's `load` is carried out, even if no caller waits for it any more, and
    /// all get its result; a failure is not kept. Needs a runtime.
    pub fn get_or_load(
        &self,
        key: Key,
        load: impl Future<Output = Result<Value>> + Send + 'static,
    ) -> impl Future<Output = Result<Value>> + Send + 'static {
        let mut state = self.state.lock();
        state.read(&key);
        let found = state.entries.get(&key).cloned();
        match (found, state.loading.get(&key)) {
            (Some(value), _) => futures_util::future::ready(Ok(value)).boxed().shared(),
            (None, Some(loading)) => loading.clone(),
            (None, None) => self.begin(&mut state, key, load),
        }
    }

    /// Begins to load the entry of `key`, which must be neither there nor being loaded.
    fn begin(
        &self,
        state: &mut State,
        key: Key,
        load: impl Future<Output = Result<Value>> + Send + 'static,
    ) -> Loading {
        let shared = Arc::clone(&self.state);
        let owned = key.clone();
        // A separate task: all callers may go away, and a load that nobody polls would keep its
        // permits from all others.
        let task = tokio::spawn(async move {
            let loaded = load.await;
            let mut state = shared.lock();
            state.loading.remove(&owned);
            match &loaded {
                Ok(value) => state.insert(owned, value.clone()),
                Err(_) => state.waste(&owned),
            }
            loaded
        });
        let loading = async move {
            task.await.unwrap_or_else(|e| Err(Error::with_source(ErrorKind::Io, "loading into memory", e)))
        };
        let loading: Loading = loading.boxed().shared();
        state.loading.insert(key, loading.clone());
        loading
    }

    /// Inserts an entry that was made elsewhere, if it fits.
    pub fn insert(&self, key: Key, value: Value) {
        self.state.lock().insert(key, value);
    }

    /// Removes the entry of `key`, if there is one.
    pub fn remove(&self, key: &Key) {
        let mut state = self.state.lock();
        let removed = state.entries.pop_entry(key);
        if let Some((key, value)) = &removed {
            state.bytes -= key.weight() + value.weight();
            state.waste(key);
        }
        // Outside of the lock, as a large value takes time.
        drop((state, removed));
    }

    /// Evicts old entries until `bytes` more would fit.
    pub fn make_room(&self, bytes: u64) {
        let mut state = self.state.lock();
        let keep = state.capacity.saturating_sub(bytes);
        state.evict_to(keep);
    }
}

impl State {
    fn has(&self, key: &Key) -> bool {
        self.entries.contains(key) || self.loading.contains_key(key)
    }

    fn insert(&mut self, key: Key, value: Value) {
        let weight = key.weight() + value.weight();
        let of_key = key.weight();
        // A value larger than the whole cache goes to its callers only.
        if weight > self.capacity {
            return self.waste(&key);
        }
        self.evict_to(self.capacity - weight);
        self.bytes += weight;
        if let Some(old) = self.entries.put(key, value) {
            self.bytes -= of_key + old.weight();
        }
    }

    fn evict_to(&mut self, bytes: u64) {
        while self.bytes > bytes {
            let Some((key, old)) = self.entries.pop_lru() else { break };
            self.bytes -= key.weight() + old.weight();
            self.waste(&key);
        }
    }

    /// Records that a program wants the entry of `key`.
    fn read(&mut self, key: &Key) {
        if !self.ahead.is_empty() && self.ahead.remove(key) {
            metrics::PREFETCH.used.add(key.length());
        }
    }

    /// Records that the entry of `key` goes. A prefetch was in vain if nobody has read it.
    fn waste(&mut self, key: &Key) {
        if !self.ahead.is_empty() && self.ahead.remove(key) {
            metrics::PREFETCH.wasted.add(key.length());
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::reader::chunk::Object;

    fn key(n: u8) -> Key {
        Key::Chunk(ChunkRange { object: Object::Native(ObjectId([n; 12])), offset: 0, length: 1000 })
    }

    fn chunk(n: u8) -> Result<Value> {
        Ok(Value::Chunk(vec![n; 1000].into()))
    }

    #[tokio::test]
    async fn the_bound_holds_and_the_oldest_goes_first() {
        let cache = Cache::new(3 * (1000 + ENTRY_OVERHEAD));
        for n in 0..3 {
            cache.get_or_load(key(n), async move { chunk(n) }).await.unwrap();
        }
        assert!(cache.get(&key(0)).is_some());
        cache.get_or_load(key(3), async { chunk(3) }).await.unwrap();
        assert!(cache.get(&key(0)).is_some() && cache.get(&key(1)).is_none());
        assert_eq!(cache.bytes(), 3 * (1000 + ENTRY_OVERHEAD));
        cache.make_room(2 * (1000 + ENTRY_OVERHEAD));
        assert_eq!(cache.bytes(), 1000 + ENTRY_OVERHEAD);
        let large = Value::Chunk(vec![0; 1 << 20].into());
        cache.get_or_load(key(9), async { Ok(large) }).await.unwrap();
        assert!(cache.get(&key(9)).is_none() && cache.bytes() == 1000 + ENTRY_OVERHEAD);
    }

    #[tokio::test]
    async fn an_abandoned_load_holds_nobody_up() {
        let cache = Cache::new(1 << 20);
        let only = Arc::new(tokio::sync::Semaphore::new(1));
        let load = |n, only: Arc<tokio::sync::Semaphore>| async move {
            let _permit = only.acquire().await;
            tokio::task::yield_now().await;
            chunk(n)
        };
        let mut first = Box::pin(cache.get_or_load(key(1), load(1, Arc::clone(&only))));
        // The load has begun, and is not awaited to its end.
        let poll = std::future::poll_fn(|context| std::task::Poll::Ready(first.as_mut().poll(context).is_ready()));
        assert!(!poll.await);
        tokio::task::yield_now().await;
        drop(first);
        let second = cache.get_or_load(key(2), load(2, only));
        let second = tokio::time::timeout(std::time::Duration::from_secs(5), second).await;
        assert!(second.unwrap().is_ok() && cache.get(&key(1)).is_some());
    }
}
