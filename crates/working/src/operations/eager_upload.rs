//! Eager upload: stores chunks before the commit that refers to them (`--upload eager`).
//!
//! Over a network, the time of a commit is that of its chunks. A chunk that a program has closed
//! will most likely be committed unchanged: it is uploaded while the program continues, under an ID
//! that nothing refers to, and the commit only names it. If the file is written again, moved out of
//! its array or removed, the object is garbage, like that of a failed commit.
//!
//! A file is uploaded if its name is a chunk key of its array, if it is large enough for a separate
//! object (the commit packs small chunks), and if nobody can be writing to it
//! ([`crate::overlay::uploads`]). The commit does not rely on this: it uploads what is missing. A
//! failure therefore reaches no program; it is logged, and the upload is retried with backoff.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::StreamExt;
use serde::Serialize;
use tokio::task::{AbortHandle, JoinSet};

use super::changes::chunks::is_chunk;
use super::changes::documents::Document as Checked;
use crate::overlay::WorkingTree;
use crate::overlay::frozen::Contents;
use crate::overlay::uploads::{Document, Named, Ticket, UploadDecision, UploadPause, Uploaded};
use crate::scratch::data::Stat;
use crate::scratch::record::DataFileId;
use crate::scratch::record::EntryId;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::times::system_clock;
use icechunkfs_repo::commit::changes::{ChangeSet, ChunkChange, ChunkFile};
use icechunkfs_repo::commit::engine::Engine;
use icechunkfs_repo::commit::request::KnownObjects;
use icechunkfs_repo::repo::Repository;
use icechunkfs_store::storage::Storage;
use icechunkfs_tree::tree::nodes::ZARR_JSON;

/// Concurrent uploads. With 4 MiB each, this many saturate a link of 1 Gbit/s and 200 ms.
const CONCURRENT_UPLOADS: usize = 8;
/// Longest `zarr.json` that is read to check a chunk key, in bytes: it is read anew for each chunk.
const MAX_DOCUMENT: u64 = 1 << 20;
/// First and longest backoff after a failure.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// Age up to which an unreferenced object is assumed to exist. Garbage collections usually spare
/// younger objects than about this; an older one is checked before a commit names it.
const TRUSTED_AGE: Duration = Duration::from_secs(3600);
/// Longest time by which the clock of a machine that collects garbage may lag behind the local one.
const SKEW: Duration = Duration::from_secs(3600);
/// Concurrent checks of objects.
const CONCURRENT_CHECKS: usize = 32;

/// Time at which chunks are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum UploadMode {
    /// On close, if storage is reached over a network.
    #[default]
    Eager,
    /// On commit.
    Commit,
}

/// Uploaded file and the result.
type Sent = (EntryId, Result<()>);
type Joined = std::result::Result<Sent, tokio::task::JoinError>;

/// Uploads ahead of commits.
#[derive(Debug)]
pub(super) struct Uploader {
    working: Arc<WorkingTree>,
    storage: Arc<dyn Storage>,
    engine: Arc<Engine>,
    /// Task that uploads, if there is one.
    task: OnceLock<AbortHandle>,
}

impl Uploader {
    pub(super) fn new(working: &Arc<WorkingTree>, storage: &Arc<dyn Storage>, engine: &Arc<Engine>) -> Arc<Self> {
        Arc::new(Uploader {
            working: Arc::clone(working),
            storage: Arc::clone(storage),
            engine: Arc::clone(engine),
            task: OnceLock::new(),
        })
    }

    /// Starts the eager upload. Does nothing where a commit only links files.
    pub(super) fn begin(self: &Arc<Self>) {
        if self.storage.local_files().is_some() {
            return;
        }
        self.working.uploads().eager().enable();
        let uploader = Arc::clone(self);
        // The first value stays: there is one mount.
        let _ = self.task.set(tokio::spawn(async move { uploader.upload_eagerly().await }).abort_handle());
    }

    /// Stops the eager upload at once. Nothing will refer to the objects of uploads under way.
    pub(super) fn end(&self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }

    async fn upload_eagerly(self: Arc<Self>) {
        let mut running: JoinSet<Sent> = JoinSet::new();
        let mut failures = 0;
        loop {
            // After a failure, one upload is enough to find out whether it persists.
            let most = if failures == 0 { CONCURRENT_UPLOADS } else { 1 };
            while running.len() >= most {
                let sent = running.join_next().await;
                self.record_upload(sent, &mut running, &mut failures).await;
            }
            let id = tokio::select! {
                id = self.working.uploads().eager().next() => id,
                sent = running.join_next(), if !running.is_empty() => {
                    self.record_upload(sent, &mut running, &mut failures).await;
                    continue;
                }
            };
            match self.upload_eligibility(id).await {
                Ok(UploadDecision::Now(file, ticket)) => {
                    let uploader = Arc::clone(&self);
                    running.spawn(async move { (id, uploader.send(file, ticket).await) });
                }
                Ok(UploadDecision::Later) => self.working.uploads().eager().requeue(id),
                Ok(UploadDecision::Never) => {}
                Err(error) => {
                    self.working.uploads().eager().enqueue_closed(id);
                    pause(&error, &mut failures).await;
                }
            }
        }
    }

    /// Records the result of an upload. After a storage failure, waits for the other uploads and
    /// backs off.
    async fn record_upload(&self, sent: Option<Joined>, running: &mut JoinSet<Sent>, failures: &mut u32) {
        let Some(Ok((id, sent))) = sent else { return };
        let Err(error) = sent else {
            *failures = 0;
            return;
        };
        self.working.uploads().eager().enqueue_closed(id);
        // The file changed meanwhile.
        if error.kind() == ErrorKind::Busy {
            return;
        }
        while let Some(other) = running.join_next().await {
            if let Ok((id, Err(_))) = other {
                self.working.uploads().eager().enqueue_closed(id);
            }
        }
        pause(&error, failures).await;
    }

    async fn send(&self, file: ChunkFile, ticket: Ticket) -> Result<()> {
        let length = file.length;
        let payload = self.engine.upload_eagerly(file).await?;
        if !ticket.stored(payload) {
            tracing::debug!("a chunk of {length} bytes changed while it was uploaded");
        }
        Ok(())
    }

    /// Checks whether file `id` can be uploaded now.
    async fn upload_eligibility(&self, id: EntryId) -> Result<UploadDecision> {
        let names = self.working.uploads().names_below(id);
        // Files beside the document may be chunks now.
        if names.iter().any(|name| name.key == ZARR_JSON) {
            self.working.uploads().eager().requeue_set_aside();
        }
        // Most files are small and need no further check.
        if self.working.uploads().own_size(id)?.is_none_or(|size| self.engine.is_packed(size)) {
            return Ok(UploadDecision::Never);
        }
        let mut any = false;
        for name in &names {
            any = any || self.is_chunk(name).await;
        }
        if any {
            return self.working.uploads().begin_upload(id, self.engine.separate_object_threshold().await?);
        }
        self.working.uploads().eager().set_aside(id);
        Ok(UploadDecision::Never)
    }

    async fn is_chunk(&self, name: &Named) -> bool {
        match &name.document {
            Document::Stored(index) => {
                let base = self.working.upper().base();
                base.tree.table().array(*index).is_some_and(|array| is_chunk(&array.grid, &array.encoding, &name.key))
            }
            // The commit reports a document that cannot be read now.
            Document::Changed(file) => {
                match self.working.contents().whole(file, MAX_DOCUMENT).await.map(|bytes| Checked::check(&bytes)) {
                    Ok(Ok(Checked::Array(array))) => is_chunk(array.grid.as_slice(), &array.key_encoding, &name.key),
                    _ => false,
                }
            }
        }
    }

    /// Waits for uploads under way, replaces files in `changes` by references to uploaded chunks,
    /// and returns these as known objects. No upload begins while the hold exists.
    pub(super) async fn use_uploads(&self, changes: &mut ChangeSet) -> Result<(UploadPause, Option<KnownObjects>)> {
        let hold = self.working.uploads().eager().hold();
        if !self.working.uploads().eager().is_enabled() {
            return Ok((hold, None));
        }
        let mut uploads: Vec<(DataFileId, Uploaded)> = Vec::new();
        for change in changes.chunk_changes() {
            let Some((data, stat)) = self.data_file(change)? else { continue };
            let Some(uploaded) = self.working.uploads().eager().wait_for(data, &stat).await else { continue };
            uploads.push((data, uploaded));
        }
        if uploads.is_empty() {
            return Ok((hold, None));
        }
        // Read before any object is trusted: the engine notices a later collection.
        let repository = Repository::open(Arc::clone(&self.storage)).await?;
        let is_collected = |uploaded: &Uploaded| {
            let age = u64::try_from((uploaded.at.elapsed() + SKEW).as_micros()).unwrap_or(u64::MAX);
            repository.may_have_been_collected_since(system_clock().saturating_sub(age))
        };
        let mut old: Vec<(DataFileId, Uploaded)> = Vec::new();
        for (data, uploaded) in uploads {
            if is_collected(&uploaded) {
                // The object looked like garbage to a collection: the file is stored again.
                self.working.uploads().eager().forget(data);
            } else if uploaded.at.elapsed() >= TRUSTED_AGE {
                old.push((data, uploaded));
            }
        }
        self.verify_objects(old).await;
        let mut known_objects = HashSet::new();
        for change in changes.chunk_changes_mut() {
            if let Some((data, stat)) = self.data_file(change)?
                && let Some(Uploaded { payload, .. }) = self.working.uploads().eager().find(data, &stat)
            {
                known_objects.extend(payload.range().map(|(chunk, ..)| chunk));
                *change = ChunkChange::Stored(payload);
            }
        }
        Ok((hold, Some(KnownObjects { mark: repository.log_position(), chunks: known_objects })))
    }

    /// Forgets those of `old` whose objects no longer exist.
    async fn verify_objects(&self, old: Vec<(DataFileId, Uploaded)>) {
        let looks = old.into_iter().map(|(data, uploaded)| async move {
            let Some((chunk, _, length)) = uploaded.payload.range() else { return };
            // The last byte exists if all do.
            if let Err(error) = self.storage.get_range(&format!("chunks/{chunk}"), length.saturating_sub(1), 1).await {
                tracing::info!("a chunk that was uploaded before is uploaded again: {error}");
                self.working.uploads().eager().forget(data);
            }
        });
        futures_util::stream::iter(looks).buffer_unordered(CONCURRENT_CHECKS).collect::<()>().await;
    }

    /// Returns the data file of a written chunk with its current metadata; none if its size has
    /// changed meanwhile.
    fn data_file(&self, change: &ChunkChange) -> Result<Option<(DataFileId, Stat)>> {
        let ChunkChange::File(file) = change else { return Ok(None) };
        let Some(data) = DataFileId::from_file_name(&file.name) else { return Ok(None) };
        let stat = self.working.upper().files().find(data)?;
        Ok(stat.filter(|stat| stat.size == file.length).map(|stat| (data, stat)))
    }

    /// Returns the number of chunks in `changes` that are uploaded already, and their bytes.
    pub(super) fn uploaded(&self, changes: &ChangeSet) -> Result<(usize, u64)> {
        let mut counts = (0, 0);
        for change in changes.chunk_changes() {
            if let Some((data, stat)) = self.data_file(change)?
                && self.working.uploads().eager().find(data, &stat).is_some()
            {
                counts = (counts.0 + 1, counts.1 + stat.size);
            }
        }
        Ok(counts)
    }
}

/// Backs off after a failure, the longer the more there were in a row.
async fn pause(error: &Error, failures: &mut u32) {
    match *failures {
        0 => tracing::info!("uploading before the commit: {error}; it is tried again, or left to the commit"),
        _ => tracing::debug!("uploading before the commit: {error}"),
    }
    let pause = FIRST_PAUSE.saturating_mul(1 << (*failures).min(16)).min(MAX_PAUSE);
    *failures += 1;
    tokio::time::sleep(pause).await;
}
