//! Checks of virtual chunks: their objects exist, are long enough, and match the references' checksums.
//!
//! Only objects that the user allows to be read are checked, by one byte each: the last one that any reference needs.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::StreamExt;
use parking_lot::Mutex;

use super::Context;
use super::chunks::Reference;
use super::report::{Findings, Severity};
use crate::error::ErrorKind;
use crate::format::chunk_payload::Checksum;
use crate::storage::virtuals::{VirtualChunks, VirtualObject};

/// Objects requested at a time.
const AT_ONCE: usize = 32;

/// Knowledge about objects with virtual chunks.
#[derive(Debug, Default)]
pub(super) struct VirtualObjects {
    /// Virtual chunks that may be read; none if they are not checked.
    virtuals: Option<Arc<VirtualChunks>>,
    /// Minimum length of each object, and the reference that requires it.
    needed: Mutex<HashMap<Arc<VirtualObject>, (u64, Reference)>>,
    found: AtomicU64,
}

impl VirtualObjects {
    pub(super) fn new(virtuals: Option<Arc<VirtualChunks>>) -> Self {
        VirtualObjects { virtuals, ..VirtualObjects::default() }
    }

    /// Records that the reference `from` needs bytes of the object at `location` up to `end`.
    pub(super) fn require(
        &self,
        findings: &Findings,
        location: &str,
        checksum: Option<Checksum>,
        end: u64,
        from: impl FnOnce() -> Reference,
    ) {
        let Some(virtuals) = &self.virtuals else { return };
        let object = match virtuals.find(location, checksum) {
            Ok(object) => object,
            Err(error) if error.kind() == ErrorKind::VirtualNotAllowed => return,
            Err(error) => return findings.chunk(Severity::Error, "location", from(), error.to_string()),
        };
        let mut needed = self.needed.lock();
        match needed.get_mut(&object) {
            Some((known, _)) if *known >= end => {}
            Some(known) => *known = (end, from()),
            None => drop(needed.insert(Arc::new(object), (end, from()))),
        }
    }

    /// Requests all recorded objects.
    pub(super) async fn request_all(&self, context: &Context) {
        let Some(virtuals) = &self.virtuals else { return };
        let all: Vec<(Arc<VirtualObject>, u64, Reference)> = {
            let needed = self.needed.lock();
            needed.iter().map(|(object, (end, from))| (Arc::clone(object), *end, from.clone())).collect()
        };
        context.progress.expect(all.len());
        let mut requests = futures_util::stream::iter(all.into_iter().map(|(object, end, from)| async move {
            let last = virtuals.read(&object, end.saturating_sub(1), end.min(1)).await;
            (from, last)
        }))
        .buffer_unordered(AT_ONCE);
        while let Some((from, last)) = requests.next().await {
            context.progress.step(1);
            match last {
                Ok(_) => drop(self.found.fetch_add(1, Ordering::Relaxed)),
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    context.findings.chunk(Severity::Error, "virtual-chunk", from, error.to_string());
                }
                // A third-party server may be down, and has its own rules.
                Err(error) => {
                    let why = format!("it could not be looked at: {error}");
                    context.findings.chunk(Severity::Warning, "virtual-not-reached", from, why);
                }
            }
        }
    }

    /// Returns the number of objects that were found intact.
    pub(super) fn found(&self) -> u64 {
        self.found.load(Ordering::Relaxed)
    }
}
