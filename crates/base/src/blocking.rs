//! Work that takes long or waits for a disk, on a thread for that: never on one that answers
//! requests.

use crate::error::{Error, ErrorKind, Result};

/// Runs `work` on a thread that may block, and returns its result. Fails with [`ErrorKind::Io`] if
/// it ends early, by a panic.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|e| Error::with_source(ErrorKind::Io, "work on another thread ended early", e))?
}
