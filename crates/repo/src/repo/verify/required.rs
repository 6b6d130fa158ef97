//! Objects that chunk references need, each checked by a request for the last byte that any
//! reference needs.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;

use super::Context;
use super::report::Subject;
use icechunkfs_base::error::{Error, Result};

/// Objects requested at a time.
const AT_ONCE: usize = 32;

/// Reference to a chunk, in a manifest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Reference {
    /// Key of the manifest.
    pub(super) manifest: String,
    /// Path of the array.
    pub(super) path: Arc<str>,
    /// Coordinates in the array's grid.
    pub(super) coords: Vec<u32>,
}

impl Reference {
    pub(super) fn subject<'a>(&'a self, context: &'a Context) -> Subject<'a> {
        context.findings.object(&self.manifest).node(&self.path).chunk(&self.coords)
    }
}

/// Minimum length of each object, and the reference that requires it.
#[derive(Debug)]
pub(super) struct Required<K> {
    ends: Mutex<HashMap<K, (u64, Reference)>>,
    found: AtomicU64,
}

impl<K> Default for Required<K> {
    fn default() -> Self {
        Required { ends: Mutex::default(), found: AtomicU64::new(0) }
    }
}

impl<K: Clone + Eq + Hash> Required<K> {
    /// Records that the reference `from` needs bytes of `object` up to `end`.
    pub(super) fn add(&self, object: K, end: u64, from: impl FnOnce() -> Reference) {
        let mut ends = self.ends.lock();
        if ends.get(&object).is_none_or(|(known, _)| *known < end) {
            ends.insert(object, (end, from()));
        }
    }

    /// Passes each object to `request`, with an offset and a length. Passes failures to `failed`,
    /// which may end the check.
    pub(super) async fn request_all<F: Future<Output = Result<Bytes>>>(
        &self,
        context: &Context,
        request: impl Fn(K, u64, u64) -> F,
        failed: impl Fn(K, u64, &Reference, Error) -> Result<()>,
    ) -> Result<()> {
        let ends = std::mem::take(&mut *self.ends.lock());
        let mut all: Vec<(K, (u64, Reference))> = ends.into_iter().collect();
        all.sort_by(|(_, a), (_, b)| a.1.cmp(&b.1));
        context.progress.expect(all.len());
        let requests = stream::iter(all).map(|(object, (end, from))| {
            // If the last byte exists, all do.
            let last = request(object.clone(), end.saturating_sub(1), end.min(1));
            async move { (object, end, from, last.await) }
        });
        let mut requests = requests.buffer_unordered(AT_ONCE);
        while let Some((object, end, from, last)) = requests.next().await {
            context.progress.step(1);
            match last {
                Ok(_) => drop(self.found.fetch_add(1, Ordering::Relaxed)),
                Err(error) => failed(object, end, &from, error)?,
            }
        }
        Ok(())
    }

    /// Returns the number of requested objects that were found.
    pub(super) fn found(&self) -> u64 {
        self.found.load(Ordering::Relaxed)
    }
}
