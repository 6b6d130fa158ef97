//! Storing chunks before the commit that will refer to them (`--upload eager`).
//!
//! Over a network a commit's time is that of its chunks. A chunk that a program has closed will most likely be committed as it
//! is: it is sent while the program goes on, under an id that nobody knows, and the commit only names it. If the file is
//! written again, moved out of its array or removed, the object is garbage, as that of a commit which fails.
//!
//! A file is sent if it has a chunk's name by its array's encoding, is large enough for an object of its own (small ones are
//! packed, by the commit), and nobody can be writing it ([`crate::working::uploads`]). The commit asks for nothing of this: what
//! has not been sent, it sends. So whatever fails here is no program's affair. It is told in the log, and tried again at longer
//! and longer intervals.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::task::JoinSet;

use super::Session;
use super::changes::chunks::is_chunk;
use super::changes::documents::Document as Checked;
use crate::commit::changes::{ChangeSet, ChunkChange, ChunkFile};
use crate::commit::request::KnownObjects;
use crate::error::{Error, ErrorKind, Result};
use crate::format::chunk_payload::ChunkPayload;
use crate::format::ids::ObjectId;
use crate::repo::update::system_clock;
use crate::scratch::data::Stat;
use crate::scratch::record::Id;
use crate::tree::nodes::ZARR_JSON;
use crate::working::uploads::{Chance, Document, Hold, Named, Ticket, Uploaded};

/// Chunks on their way at a time. Of 4 MiB each, this many keep a line of 1 Gbit/s and 200 ms full.
const AT_ONCE: usize = 8;
/// Longest `zarr.json` that is read for this, in bytes: it is read anew for each chunk.
const MAX_DOCUMENT: u64 = 1 << 20;
/// First and longest pause after something could not be stored.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How long an object that nothing refers to is believed to be there. Who collects garbage spares what is younger than
/// something like that; an older one is looked at before a commit names it.
const BELIEVED: Duration = Duration::from_secs(3600);
/// How far the clock of a machine that collects garbage may be behind ours.
const SKEW: Duration = Duration::from_secs(3600);
/// Objects that are looked at, at a time.
const LOOKS_AT_ONCE: usize = 32;

/// When chunks are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Upload {
    /// When they are closed, where that is over a network.
    #[default]
    Eager,
    /// With the commit.
    Commit,
}

impl std::str::FromStr for Upload {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "eager" => Ok(Upload::Eager),
            "commit" => Ok(Upload::Commit),
            _ => Err(Error::invalid(format!(
                "`{text}`: chunks are uploaded eager (when they are closed) or at the commit"
            ))),
        }
    }
}

impl std::fmt::Display for Upload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Upload::Eager => "eager",
            Upload::Commit => "commit",
        })
    }
}

/// What came of a file that was sent.
type Sent = (Id, Result<()>);
type Joined = std::result::Result<Sent, tokio::task::JoinError>;

impl Session {
    /// Begins to store chunks as they are closed. Where a commit only links them there is nothing to do.
    pub fn begin_uploads(self: &Arc<Self>) {
        if self.storage.local_files().is_some() {
            return;
        }
        self.working.uploads().begin();
        let session = Arc::clone(self);
        // The first one stays: there is one mount.
        let _ = self.uploading.set(tokio::spawn(async move { session.upload_ahead().await }).abort_handle());
    }

    /// Ends that at once. What is on its way would be known to nobody.
    pub fn end_uploads(&self) {
        if let Some(uploading) = self.uploading.get() {
            uploading.abort();
        }
    }

    async fn upload_ahead(self: Arc<Self>) {
        let mut running: JoinSet<Sent> = JoinSet::new();
        let mut failures = 0;
        loop {
            // When the last one failed, one is enough to find out whether it still does.
            let most = if failures == 0 { AT_ONCE } else { 1 };
            while running.len() >= most {
                let sent = running.join_next().await;
                self.sent(sent, &mut running, &mut failures).await;
            }
            let id = tokio::select! {
                id = self.working.uploads().next() => id,
                sent = running.join_next(), if !running.is_empty() => {
                    self.sent(sent, &mut running, &mut failures).await;
                    continue;
                }
            };
            match self.chance(id).await {
                Ok(Chance::Now(file, ticket)) => {
                    let session = Arc::clone(&self);
                    running.spawn(async move { (id, session.send(file, ticket).await) });
                }
                Ok(Chance::Later) => self.working.uploads().again(id),
                Ok(Chance::Never) => {}
                Err(error) => {
                    self.working.uploads().closed(id);
                    pause(&error, &mut failures).await;
                }
            }
        }
    }

    /// Takes note of what came of a file. If the store is to blame, waits for what else is on its way, and then a while.
    async fn sent(&self, sent: Option<Joined>, running: &mut JoinSet<Sent>, failures: &mut u32) {
        let Some(Ok((id, sent))) = sent else { return };
        let Err(error) = sent else {
            *failures = 0;
            return;
        };
        self.working.uploads().closed(id);
        // Somebody changed it meanwhile.
        if error.kind() == ErrorKind::Busy {
            return;
        }
        while let Some(other) = running.join_next().await {
            if let Ok((id, Err(_))) = other {
                self.working.uploads().closed(id);
            }
        }
        pause(&error, failures).await;
    }

    async fn send(&self, file: ChunkFile, ticket: Ticket) -> Result<()> {
        let length = file.length;
        let payload = self.engine.store_ahead(file).await?;
        if !ticket.stored(payload) {
            tracing::debug!("a chunk of {length} bytes changed while it was uploaded");
        }
        Ok(())
    }

    /// Whether and how file `id` can be stored now.
    async fn chance(&self, id: Id) -> Result<Chance> {
        let names = self.working.names_below(id);
        // What lies beside it may be chunks now.
        if names.iter().any(|name| name.key == ZARR_JSON) {
            self.working.uploads().look_again();
        }
        // Most files are small: nothing more is asked about those.
        if self.working.own_size(id)?.is_none_or(|size| self.engine.packs(size)) {
            return Ok(Chance::Never);
        }
        let mut any = false;
        for name in &names {
            any = any || self.is_chunk(name).await;
        }
        if any {
            return self.working.begin_upload(id, self.engine.single_from().await?);
        }
        self.working.uploads().set_aside(id);
        Ok(Chance::Never)
    }

    async fn is_chunk(&self, name: &Named) -> bool {
        match &name.below {
            Document::Stored(index) => {
                let base = self.working.base();
                base.tree.table().array(*index).is_some_and(|array| is_chunk(&array.grid, &array.encoding, &name.key))
            }
            // What cannot be read now, the commit will tell of.
            Document::Changed(file) => {
                match self.working.whole(file, MAX_DOCUMENT).await.map(|bytes| Checked::check(&bytes)) {
                    Ok(Ok(Checked::Array(array))) => is_chunk(array.grid.as_slice(), &array.key_encoding, &name.key),
                    _ => false,
                }
            }
        }
    }

    /// Lets `changes` refer to what is stored already, once what is on its way has arrived, and vouches for it. Nothing new begins while
    /// the result is held.
    pub(super) async fn use_uploads(&self, changes: &mut ChangeSet) -> Result<(Hold, Option<KnownObjects>)> {
        let hold = self.working.uploads().hold();
        if !self.working.uploads().are_on() {
            return Ok((hold, None));
        }
        // Read before anything is believed: what is collected later, the engine notices.
        let repository = self.repository().await?;
        let is_collected = |uploaded: &Uploaded| {
            let age = u64::try_from((uploaded.at.elapsed() + SKEW).as_micros()).unwrap_or(u64::MAX);
            repository.may_have_been_collected_since(system_clock().saturating_sub(age))
        };
        let mut known_objects = HashSet::new();
        let mut old: Vec<(u64, Uploaded)> = Vec::new();
        for change in changes.chunks.values_mut().flat_map(|chunks| chunks.values_mut()) {
            let ChunkChange::File(file) = change else { continue };
            let Some((data, stat)) = self.data_file(file)? else { continue };
            let Some(uploaded) = self.working.uploads().wait_for(data, &stat).await else { continue };
            if is_collected(&uploaded) {
                // It looked like garbage: the file is stored once more.
                self.working.uploads().changed(data);
            } else if uploaded.at.elapsed() < BELIEVED {
                known_objects.extend(chunk_of(&uploaded.payload));
                *change = ChunkChange::Stored(uploaded.payload);
            } else {
                old.push((data, uploaded));
            }
        }
        if !old.is_empty() {
            self.look_at(old).await;
            for change in changes.chunks.values_mut().flat_map(|chunks| chunks.values_mut()) {
                if let ChunkChange::File(file) = change
                    && let Some((data, stat)) = self.data_file(file)?
                    && let Some(uploaded) = self.working.uploads().find(data, &stat)
                {
                    known_objects.extend(chunk_of(&uploaded.payload));
                    *change = ChunkChange::Stored(uploaded.payload);
                }
            }
        }
        Ok((hold, repository.mark().map(|mark| KnownObjects { mark, chunks: known_objects })))
    }

    /// Forgets those of `old` that are not there any more.
    async fn look_at(&self, old: Vec<(u64, Uploaded)>) {
        let looks = old.into_iter().map(|(data, uploaded)| async move {
            let ChunkPayload::Native { chunk, length, .. } = uploaded.payload else { return };
            // The last byte is there if all are.
            if let Err(error) = self.storage.get_range(&format!("chunks/{chunk}"), length.saturating_sub(1), 1).await {
                tracing::info!("a chunk that was uploaded before is uploaded again: {error}");
                self.working.uploads().changed(data);
            }
        });
        futures_util::stream::iter(looks).buffer_unordered(LOOKS_AT_ONCE).collect::<()>().await;
    }

    /// The data file that holds a chunk, as it is now; none if it is not what was found a moment ago.
    fn data_file(&self, file: &ChunkFile) -> Result<Option<(u64, Stat)>> {
        let Ok(data) = file.name.parse() else { return Ok(None) };
        let stat = self.working.files().find(data)?;
        Ok(stat.filter(|stat| stat.size == file.length).map(|stat| (data, stat)))
    }

    /// How many of the chunks that `changes` has are stored already, and their bytes.
    pub(super) fn uploaded(&self, changes: &ChangeSet) -> Result<(usize, u64)> {
        let mut counts = (0, 0);
        for change in changes.chunks.values().flat_map(|chunks| chunks.values()) {
            if let ChunkChange::File(file) = change
                && let Some((data, stat)) = self.data_file(file)?
                && self.working.uploads().find(data, &stat).is_some()
            {
                counts = (counts.0 + 1, counts.1 + file.length);
            }
        }
        Ok(counts)
    }
}

fn chunk_of(payload: &ChunkPayload) -> Option<ObjectId> {
    match payload {
        ChunkPayload::Native { chunk, .. } => Some(*chunk),
        ChunkPayload::Inline(_) | ChunkPayload::Virtual { .. } => None,
    }
}

/// Waits after a failure, the longer the more there were in a row.
async fn pause(error: &Error, failures: &mut u32) {
    match *failures {
        0 => tracing::info!("uploading before the commit: {error}; it is tried again, or left to the commit"),
        _ => tracing::debug!("uploading before the commit: {error}"),
    }
    let pause = FIRST_PAUSE.saturating_mul(1 << (*failures).min(16)).min(LONGEST_PAUSE);
    *failures += 1;
    tokio::time::sleep(pause).await;
}
