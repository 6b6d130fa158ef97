//! Cache bounded in bytes, which loads each entry once for all concurrent readers.
//!
//! The type of a key decides the type of its value ([`CacheKey`]). So the reader and those above it
//! share one bound, and each knows only its own entries.
//!
//! Stored objects are immutable, so an entry is never stale; it is evicted when room is needed,
//! least recently used first. The lock is held for lookups only, never while something is loaded.

use std::any::Any;
use std::collections::HashMap;
use std::fmt::Debug;
use std::future::Future;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use lru::LruCache;
use parking_lot::Mutex;

use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::memory::{self, EvictLocked};
use icechunkfs_base::metrics;

/// Bytes of bookkeeping per entry: key, links and hash table slot, as they are allocated.
const ENTRY_OVERHEAD: u64 = 208;

/// Owner of cached values that something above the reader makes of chunks. No two are equal: trees
/// of several snapshots share a cache, and a node has one number in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner(u64);

impl Owner {
    /// Creates an owner that nothing else is.
    pub fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Owner(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Key of an entry. Keys of different types are different.
pub trait CacheKey: Debug + Eq + Hash + Send + Sync + 'static {
    /// Value of such a key. Cheap to clone.
    type Value: Clone + Send + Sync + 'static;

    /// Returns the bytes that `value` takes, and this key beyond its own size.
    fn weight(&self, value: &Self::Value) -> u64;
}

/// Key of any type.
trait AnyKey: Any + Debug + Send + Sync {
    fn equals(&self, other: &dyn AnyKey) -> bool;

    fn hash_into(&self, hasher: &mut dyn Hasher);
}

impl<K: CacheKey> AnyKey for K {
    fn equals(&self, other: &dyn AnyKey) -> bool {
        (other as &dyn Any).downcast_ref() == Some(self)
    }

    fn hash_into(&self, mut hasher: &mut dyn Hasher) {
        self.hash(&mut hasher);
    }
}

impl PartialEq for dyn AnyKey {
    fn eq(&self, other: &Self) -> bool {
        self.equals(other)
    }
}

impl Eq for dyn AnyKey {}

impl Hash for dyn AnyKey {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.hash_into(hasher);
    }
}

/// Something of the type that its key decides.
type Typed = Box<dyn Any + Send + Sync>;

type Loading<V> = Shared<BoxFuture<'static, Result<V>>>;

/// Cache of manifests, chunks, and what is made of them. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Cache {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    entries: LruCache<Arc<dyn AnyKey>, Entry>,
    /// The [`Loading`] of each entry that is being loaded.
    loading: HashMap<Arc<dyn AnyKey>, Typed>,
    /// Entries, and those being loaded, that were prefetched and that nobody has read yet, with the
    /// bytes that were fetched.
    ahead: HashMap<Arc<dyn AnyKey>, u64>,
    bytes: u64,
    capacity: u64,
}

#[derive(Debug)]
struct Entry {
    value: Typed,
    weight: u64,
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
            ahead: HashMap::new(),
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

    /// Returns the bytes that may be held.
    pub fn capacity(&self) -> u64 {
        self.state.lock().capacity
    }

    /// Returns the number of entries being loaded.
    pub fn loading(&self) -> usize {
        self.state.lock().loading.len()
    }

    /// Returns the value of `key`, if it has an entry.
    pub fn get<K: CacheKey>(&self, key: &K) -> Option<K::Value> {
        let mut state = self.state.lock();
        let found = state.value(key);
        if found.is_some() {
            state.read(key);
        }
        found
    }

    /// Returns true if `key` has an entry or is being loaded. This does not count as a use.
    pub fn has(&self, key: &impl CacheKey) -> bool {
        self.state.lock().has(key)
    }

    /// Loads `keys` before anybody reads them, otherwise like [`Cache::get_or_load`]. `loads`
    /// makes the loads of those that are neither there nor being loaded, each of which fetches
    /// `bytes`; it must not wait. Of several concurrent callers, one loads all that they have in
    /// common.
    pub fn load_ahead<K, F, L>(&self, mut keys: Vec<K>, bytes: impl Fn(&K) -> u64, loads: impl FnOnce(Vec<K>) -> L)
    where
        K: CacheKey,
        F: Future<Output = Result<K::Value>> + Send + 'static,
        L: IntoIterator<Item = (K, F)>,
    {
        let mut state = self.state.lock();
        keys.retain(|key| !state.has(key));
        for (key, load) in loads(keys) {
            let key = Arc::new(key);
            let bytes = bytes(&key);
            metrics::PREFETCH.fetched.add(bytes);
            state.ahead.insert(Arc::clone(&key) as _, bytes);
            drop(self.begin(&mut state, key, load));
        }
    }

    /// Returns the value of `key`, loaded by `load` if there is none. Of several concurrent
    /// callers, the first one's `load` is carried out, even if no caller waits for it any more, and
    /// all get its result; a failure is not kept. Needs a runtime.
    pub fn get_or_load<K: CacheKey>(
        &self,
        key: K,
        load: impl Future<Output = Result<K::Value>> + Send + 'static,
    ) -> impl Future<Output = Result<K::Value>> + Send + 'static {
        let mut state = self.state.lock();
        state.read(&key);
        match (state.value(&key), state.loading(&key)) {
            (Some(value), _) => futures_util::future::ready(Ok(value)).boxed().shared(),
            (None, Some(loading)) => loading,
            (None, None) => self.begin(&mut state, Arc::new(key), load),
        }
    }

    /// Begins to load the value of `key`, which must be neither there nor being loaded.
    fn begin<K: CacheKey>(
        &self,
        state: &mut State,
        key: Arc<K>,
        load: impl Future<Output = Result<K::Value>> + Send + 'static,
    ) -> Loading<K::Value> {
        let shared = Arc::clone(&self.state);
        let owned = Arc::clone(&key);
        // A separate task: all callers may go away, and a load that nobody polls would keep its
        // permits from all others.
        let task = tokio::spawn(async move {
            let loaded = load.await;
            let mut state = shared.lock();
            state.loading.remove(&*owned as &dyn AnyKey);
            match &loaded {
                Ok(value) => state.insert(owned, value.clone()),
                Err(_) => state.waste(&*owned),
            }
            loaded
        });
        let loading = async move {
            task.await.unwrap_or_else(|e| Err(Error::with_source(ErrorKind::Io, "loading into memory", e)))
        };
        let loading: Loading<K::Value> = loading.boxed().shared();
        state.loading.insert(key, Box::new(loading.clone()));
        loading
    }

    /// Inserts a value that was made elsewhere, if it fits.
    pub fn insert<K: CacheKey>(&self, key: K, value: K::Value) {
        self.state.lock().insert(Arc::new(key), value);
    }

    /// Removes the entry of `key`, if there is one.
    pub fn remove(&self, key: &impl CacheKey) {
        let mut state = self.state.lock();
        let removed = state.entries.pop(key as &dyn AnyKey);
        if let Some(entry) = &removed {
            state.bytes -= entry.weight;
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
    fn value<K: CacheKey>(&mut self, key: &K) -> Option<K::Value> {
        self.entries.get(key as &dyn AnyKey)?.value.downcast_ref().cloned()
    }

    fn loading<K: CacheKey>(&self, key: &K) -> Option<Loading<K::Value>> {
        self.loading.get(key as &dyn AnyKey)?.downcast_ref().cloned()
    }

    fn has(&self, key: &dyn AnyKey) -> bool {
        self.entries.contains(key) || self.loading.contains_key(key)
    }

    fn insert<K: CacheKey>(&mut self, key: Arc<K>, value: K::Value) {
        let weight = ENTRY_OVERHEAD + key.weight(&value);
        // A value larger than the whole cache goes to its callers only.
        if weight > self.capacity {
            return self.waste(&*key);
        }
        self.evict_to(self.capacity - weight);
        self.bytes += weight;
        if let Some(old) = self.entries.put(key, Entry { value: Box::new(value), weight }) {
            self.bytes -= old.weight;
        }
    }

    fn evict_to(&mut self, bytes: u64) {
        while self.bytes > bytes {
            let Some((key, old)) = self.entries.pop_lru() else { break };
            self.bytes -= old.weight;
            self.waste(&*key);
        }
    }

    /// Records that a program wants the entry of `key`.
    fn read(&mut self, key: &dyn AnyKey) {
        if let Some(bytes) = self.forget_ahead(key) {
            metrics::PREFETCH.used.add(bytes);
        }
    }

    /// Records that the entry of `key` goes. A prefetch was in vain if nobody has read it.
    fn waste(&mut self, key: &dyn AnyKey) {
        if let Some(bytes) = self.forget_ahead(key) {
            metrics::PREFETCH.wasted.add(bytes);
        }
    }

    fn forget_ahead(&mut self, key: &dyn AnyKey) -> Option<u64> {
        if self.ahead.is_empty() { None } else { self.ahead.remove(key) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[derive(Debug, PartialEq, Eq, Hash)]
    struct Numbered(u8);

    impl CacheKey for Numbered {
        type Value = Arc<[u8]>;

        fn weight(&self, value: &Arc<[u8]>) -> u64 {
            value.len() as u64
        }
    }

    fn bytes(n: u8) -> Result<Arc<[u8]>> {
        Ok([n; 1000].into())
    }

    #[tokio::test]
    async fn the_bound_holds_and_the_oldest_goes_first() {
        let cache = Cache::new(3 * (1000 + ENTRY_OVERHEAD));
        for n in 0..3 {
            cache.get_or_load(Numbered(n), async move { bytes(n) }).await.unwrap();
        }
        assert!(cache.get(&Numbered(0)).is_some());
        cache.get_or_load(Numbered(3), async { bytes(3) }).await.unwrap();
        assert!(cache.get(&Numbered(0)).is_some() && cache.get(&Numbered(1)).is_none());
        assert_eq!(cache.bytes(), 3 * (1000 + ENTRY_OVERHEAD));
        cache.make_room(2 * (1000 + ENTRY_OVERHEAD));
        assert_eq!(cache.bytes(), 1000 + ENTRY_OVERHEAD);
        let large: Arc<[u8]> = vec![0; 1 << 20].into();
        cache.get_or_load(Numbered(9), async { Ok(large) }).await.unwrap();
        assert!(cache.get(&Numbered(9)).is_none() && cache.bytes() == 1000 + ENTRY_OVERHEAD);
    }

    #[tokio::test]
    async fn an_abandoned_load_holds_nobody_up() {
        let cache = Cache::new(1 << 20);
        let only = Arc::new(tokio::sync::Semaphore::new(1));
        let load = |n, only: Arc<tokio::sync::Semaphore>| async move {
            let _permit = only.acquire().await;
            tokio::task::yield_now().await;
            bytes(n)
        };
        let mut first = Box::pin(cache.get_or_load(Numbered(1), load(1, Arc::clone(&only))));
        // The load has begun, and is not awaited to its end.
        let poll = std::future::poll_fn(|context| std::task::Poll::Ready(first.as_mut().poll(context).is_ready()));
        assert!(!poll.await);
        tokio::task::yield_now().await;
        drop(first);
        let second = cache.get_or_load(Numbered(2), load(2, only));
        let second = tokio::time::timeout(std::time::Duration::from_secs(5), second).await;
        assert!(second.unwrap().is_ok() && cache.get(&Numbered(1)).is_some());
    }
    #[test]
    fn keys_of_different_types_have_different_entries() {
        #[derive(Debug, PartialEq, Eq, Hash)]
        struct Texts(u8);

        impl CacheKey for Texts {
            type Value = &'static str;

            fn weight(&self, value: &&'static str) -> u64 {
                value.len() as u64
            }
        }

        let cache = Cache::new(1 << 20);
        cache.insert(Numbered(1), bytes(1).unwrap());
        cache.insert(Texts(1), "one");
        assert_eq!((cache.get(&Texts(1)), cache.get(&Texts(2))), (Some("one"), None));
        cache.remove(&Texts(1));
        assert_eq!((cache.get(&Texts(1)), cache.get(&Numbered(1)).map(|bytes| bytes.len())), (None, Some(1000)));
        assert_eq!(cache.bytes(), 1000 + ENTRY_OVERHEAD);
    }
}
