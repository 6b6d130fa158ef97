//! A storage behind a network: every operation takes a round trip, and is recorded.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use icechunkfs::error::{Error, ErrorKind, Result};
use icechunkfs::storage::{
    Capabilities, Content, ListMode, ObjectSource, ReadMode, Removal, Storage, StoredObject, Visitor,
};

/// Operation, with its begin and end.
#[derive(Clone, Debug)]
pub struct Trip {
    pub what: String,
    pub begin: Instant,
    pub end: Instant,
}

/// A storage behind a network.
#[derive(Debug)]
pub struct Distant {
    inner: Arc<dyn Storage>,
    capabilities: Capabilities,
    round_trip: Duration,
    /// Operations on keys that begin with this are refused.
    refused: &'static str,
    trips: Mutex<Vec<Trip>>,
}

impl Distant {
    pub fn new(inner: Arc<dyn Storage>, round_trip: Duration) -> Self {
        let capabilities = Capabilities::new(inner.location());
        Distant { capabilities, inner, round_trip, refused: "none", trips: Mutex::default() }
    }

    pub fn refusing(self, refused: &'static str) -> Self {
        Distant { refused, ..self }
    }

    /// Returns the operations since the last call.
    pub fn take(&self) -> Vec<Trip> {
        std::mem::take(&mut *self.trips.lock().unwrap())
    }

    async fn travel<T>(&self, what: String, work: impl Future<Output = Result<T>> + Send) -> Result<T> {
        let begin = Instant::now();
        tokio::time::sleep(self.round_trip).await;
        let is_refused = what.split(' ').nth(1).is_some_and(|key| key.starts_with(self.refused));
        let done = if is_refused { Err(Error::new(ErrorKind::PermissionDenied, what.clone())) } else { work.await };
        self.trips.lock().unwrap().push(Trip { what, begin, end: Instant::now() });
        done
    }
}

/// Returns the length of the longest chain of operations in which each began after the one before
/// had ended.
pub fn depth(trips: &[Trip]) -> usize {
    let mut sorted = trips.to_vec();
    sorted.sort_by_key(|trip| trip.begin);
    let mut longest: Vec<(Instant, usize)> = Vec::new();
    for trip in sorted {
        let before = longest.iter().filter(|(end, _)| *end <= trip.begin).map(|(_, depth)| *depth).max();
        longest.push((trip.end, before.unwrap_or(0) + 1));
    }
    longest.into_iter().map(|(_, depth)| depth).max().unwrap_or(0)
}

#[async_trait]
impl Storage for Distant {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn read(&self, key: &str, limit: u64, mode: ReadMode<'_>) -> Result<Option<StoredObject>> {
        self.travel(format!("read {key}"), self.inner.read(key, limit, mode)).await
    }

    async fn store(&self, key: &str, content: Content<'_>) -> Result<()> {
        self.travel(format!("store {key}"), self.inner.store(key, content)).await
    }

    async fn sync(&self, folders: &[&str]) -> Result<()> {
        // Stores have no such operation.
        self.inner.sync(folders).await
    }

    async fn walk(&self, prefix: &str, mode: ListMode, visit: Visitor<'_>) -> Result<()> {
        self.travel(format!("list {prefix}"), self.inner.walk(prefix, mode, visit)).await
    }

    async fn remove(&self, removal: Removal<'_>) -> Result<()> {
        let key = match removal {
            Removal::Objects(keys) => keys.join(" "),
            Removal::Unchanged { key, .. } => key.to_owned(),
            Removal::Cached(_) => return Ok(()),
        };
        self.travel(format!("remove {key}"), self.inner.remove(removal)).await
    }

    async fn locate(&self, _key: &str) -> Result<Option<ObjectSource>> {
        Ok(None)
    }

    async fn check_conditions(&self, _key: &str, _limit: u64) -> Result<()> {
        Ok(())
    }
}
