//! Checks of virtual chunks: their objects exist, are long enough, and match the references'
//! checksums.
//!
//! Only objects that the user allows to be read are checked, by one byte each: the last one that
//! any reference needs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Context;
use super::required::{Reference, Required};
use icechunkfs_base::error::{ErrorKind, Result};
use icechunkfs_format::format::chunk_payload::Checksum;
use icechunkfs_store::storage::virtuals::{VirtualChunks, VirtualObject};

/// Knowledge about objects with virtual chunks.
#[derive(Debug, Default)]
pub(super) struct VirtualObjects {
    /// Virtual chunks that may be read; none if they are not checked.
    virtuals: Option<Arc<VirtualChunks>>,
    pub(super) required: Required<Arc<VirtualObject>>,
    /// References to objects that may not be read.
    not_checked: AtomicU64,
}

impl VirtualObjects {
    /// Starts without any object. Only those that `virtuals` allows are checked.
    pub(super) fn new(virtuals: Option<Arc<VirtualChunks>>) -> Self {
        VirtualObjects { virtuals, ..VirtualObjects::default() }
    }

    /// Records that the reference `from` needs bytes of the object at `location` up to `end`.
    pub(super) fn require(
        &self,
        context: &Context,
        location: &str,
        checksum: Option<Checksum>,
        end: u64,
        from: impl FnOnce() -> Reference,
    ) {
        let found = self.virtuals.as_ref().map(|virtuals| virtuals.find(location, checksum));
        match found {
            Some(Ok(object)) => self.required.add(Arc::new(object), end, from),
            None => self.add_not_checked(),
            Some(Err(error)) if error.kind() == ErrorKind::VirtualNotAllowed => self.add_not_checked(),
            Some(Err(error)) => from().subject(context).error("location", error.to_string()),
        }
    }

    fn add_not_checked(&self) {
        self.not_checked.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of references to objects that may not be read.
    pub(super) fn not_checked(&self) -> u64 {
        self.not_checked.load(Ordering::Relaxed)
    }

    /// Requests all recorded objects.
    pub(super) async fn request_all(&self, context: &Context) -> Result<()> {
        let Some(virtuals) = &self.virtuals else { return Ok(()) };
        let request =
            |object: Arc<VirtualObject>, offset, length| async move { virtuals.read(&object, offset, length).await };
        self.required
            .request_all(context, request, |_, _, from, error| {
                let subject = from.subject(context);
                match error.kind() {
                    ErrorKind::Corrupt => subject.error("virtual-chunk", error.to_string()),
                    // A third-party server may be down, and has its own rules.
                    _ => subject.warning("virtual-not-reached", format!("it could not be looked at: {error}")),
                }
                Ok(())
            })
            .await
    }
}
