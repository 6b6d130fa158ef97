//! Eager uploads: changed files that are stored before a commit refers to them.
//!
//! A file that is closed or renamed is queued and examined a little later ([`EagerUploads::next`]):
//! by then a program that reopens or renames files at once is done. An upload is remembered by the
//! number of its data file until the file may have changed. A data file changes through a writing
//! handle or a truncation, and both report it ([`EagerUploads::forget`]), during an upload too. An
//! object that is no longer remembered is garbage.
//!
//! Nothing of this is on disk. The next mount knows no uploads, and its commit stores all changed
//! files.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::frozen::FrozenFile;
use super::handles::Handles;
use super::node::Inode;
use super::state::State;
use super::upper::Upper;
use crate::scratch::data::{Files, Stat, WriterState};
use crate::scratch::record::{DataFileId, EntryId, Name};
use icechunkfs_base::error::Result;
use icechunkfs_format::format::chunk_payload::ChunkPayload;
use icechunkfs_repo::commit::changes::ChunkFile;
use icechunkfs_tree::tree::Tree;
use icechunkfs_tree::tree::nodes::{NodeIndex, TreePlace, ZARR_JSON};

/// Delay after a file is closed or renamed. A program's next steps take milliseconds; a commit that
/// comes earlier stores the file itself.
const QUIET: Duration = Duration::from_millis(50);
/// Largest exponent of the delay, which doubles with each upload or postponement of the same file.
const LONGEST_QUIET: u32 = 12;

/// Uploads: finished, running and queued.
#[derive(Debug, Default)]
pub struct EagerUploads {
    inner: Mutex<Inner>,
    /// Signals that the queue has an earlier first entry.
    wake: Notify,
    /// Signals that an upload has ended.
    arrived: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    /// True if eager uploads are used.
    is_enabled: bool,
    /// Number of commits that keep new uploads from beginning.
    holds: u32,
    queue: BTreeSet<(Instant, EntryId)>,
    due: HashMap<EntryId, Instant>,
    /// Files that were examined and do not have the name of a chunk, at least not yet.
    aside: HashSet<EntryId>,
    /// Number of uploads and postponements, by file.
    sent: HashMap<EntryId, u32>,
    /// Uploads, by data file.
    copies: HashMap<DataFileId, UploadState>,
    next_ticket: u64,
}

#[derive(Debug)]
enum UploadState {
    InProgress { ticket: u64 },
    Done(Uploaded),
}

/// Data file that has been uploaded.
#[derive(Clone, Debug)]
pub struct Uploaded {
    /// Location of the stored bytes.
    pub payload: ChunkPayload,
    /// `stat` of the file when it was read.
    pub stat: Stat,
    /// Time of the upload.
    pub at: Instant,
}

/// Permission to upload a data file. Dropping it means that the upload failed.
#[derive(Debug)]
pub struct Ticket {
    uploads: Arc<EagerUploads>,
    data: DataFileId,
    number: u64,
    stat: Stat,
}

/// Keeps new uploads from beginning until it is dropped.
#[derive(Debug)]
pub struct UploadPause(Arc<EagerUploads>);

/// Name of a file.
#[derive(Clone, Debug)]
pub struct Named {
    /// Path relative to the nearest ancestor directory that has a document.
    pub key: String,
    /// Document of that directory.
    pub document: Document,
}

/// `zarr.json` document.
#[derive(Clone, Debug)]
pub enum Document {
    /// Document of the base, of this node.
    Stored(NodeIndex),
    /// Document that has changed, or may have.
    Changed(FrozenFile),
}

/// Possibility of an upload.
#[derive(Debug)]
pub enum UploadDecision {
    /// The file can be uploaded.
    Now(ChunkFile, Ticket),
    /// A commit is running, or a program may still write to the file through a mapping.
    Later,
    /// The file cannot be uploaded until it is closed again.
    Never,
}

impl EagerUploads {
    /// Enables eager uploads.
    pub fn enable(&self) {
        self.inner.lock().is_enabled = true;
    }

    /// Returns true if eager uploads are enabled.
    pub fn is_enabled(&self) -> bool {
        self.inner.lock().is_enabled
    }

    /// Queues file `id`, which was closed or renamed.
    pub fn enqueue_closed(&self, id: EntryId) {
        let mut inner = self.inner.lock();
        if inner.is_enabled {
            inner.aside.remove(&id);
            self.enqueue(&mut inner, id);
        }
    }

    fn enqueue(&self, inner: &mut Inner, id: EntryId) {
        let doubled = inner.sent.get(&id).copied().unwrap_or(0).min(LONGEST_QUIET);
        let due = Instant::now() + QUIET * (1 << doubled);
        if let Some(earlier) = inner.due.insert(id, due) {
            inner.queue.remove(&(earlier, id));
        }
        inner.queue.insert((due, id));
        if inner.queue.first() == Some(&(due, id)) {
            self.wake.notify_one();
        }
    }

    /// Queues file `id` again, with a longer delay.
    pub fn requeue(&self, id: EntryId) {
        let mut inner = self.inner.lock();
        *inner.sent.entry(id).or_default() += 1;
        self.enqueue(&mut inner, id);
    }

    /// Records that file `id` does not have the name of a chunk.
    pub fn set_aside(&self, id: EntryId) {
        self.inner.lock().aside.insert(id);
    }

    /// Queues all files that had no name of a chunk, because names may have another meaning now.
    pub fn requeue_set_aside(&self) {
        let mut inner = self.inner.lock();
        for id in std::mem::take(&mut inner.aside) {
            self.enqueue(&mut inner, id);
        }
    }

    /// Forgets the upload of data file `data`, whose bytes may have changed.
    pub fn forget(&self, data: DataFileId) {
        let mut inner = self.inner.lock();
        if inner.is_enabled && inner.copies.remove(&data).is_some() {
            drop(inner);
            self.arrived.notify_waiters();
        }
    }

    /// Waits for the next file to examine.
    pub async fn next(&self) -> EntryId {
        loop {
            let woken = self.wake.notified();
            let first = {
                let mut inner = self.inner.lock();
                match inner.queue.first().copied().filter(|_| inner.holds == 0) {
                    Some((due, id)) if due <= Instant::now() => {
                        inner.queue.remove(&(due, id));
                        inner.due.remove(&id);
                        return id;
                    }
                    first => first,
                }
            };
            match first {
                Some((due, _)) => {
                    tokio::select! {
                        () = tokio::time::sleep_until(due) => {}
                        () = woken => {}
                    }
                }
                None => woken.await,
            }
        }
    }

    fn ticket(self: &Arc<Self>, id: EntryId, data: DataFileId, stat: Stat) -> Option<Ticket> {
        let mut inner = self.inner.lock();
        let is_known = match inner.copies.get(&data) {
            Some(UploadState::InProgress { .. }) => true,
            Some(UploadState::Done(uploaded)) => is_same(&uploaded.stat, &stat),
            None => false,
        };
        if inner.holds > 0 || is_known {
            return None;
        }
        inner.next_ticket += 1;
        let number = inner.next_ticket;
        *inner.sent.entry(id).or_default() += 1;
        inner.copies.insert(data, UploadState::InProgress { ticket: number });
        Some(Ticket { uploads: Arc::clone(self), data, number, stat })
    }

    /// Keeps new uploads from beginning.
    pub fn hold(self: &Arc<Self>) -> UploadPause {
        self.inner.lock().holds += 1;
        UploadPause(Arc::clone(self))
    }

    /// Returns the upload of data file `data`, if the file is still as in `stat`.
    pub fn find(&self, data: DataFileId, stat: &Stat) -> Option<Uploaded> {
        match self.inner.lock().copies.get(&data) {
            Some(UploadState::Done(uploaded)) if is_same(&uploaded.stat, stat) => Some(uploaded.clone()),
            _ => None,
        }
    }

    /// Returns the upload as [`EagerUploads::find`] does, after waiting for one in progress.
    pub async fn wait_for(&self, data: DataFileId, stat: &Stat) -> Option<Uploaded> {
        loop {
            let mut arrived = std::pin::pin!(self.arrived.notified());
            arrived.as_mut().enable();
            if !matches!(self.inner.lock().copies.get(&data), Some(UploadState::InProgress { .. })) {
                return self.find(data, stat);
            }
            arrived.await;
        }
    }

    fn retain(&self, ids: &HashSet<EntryId>, data: &HashSet<DataFileId>) {
        let mut inner = self.inner.lock();
        inner.copies.retain(|number, _| data.contains(number));
        inner.aside.retain(|id| ids.contains(id));
        inner.sent.retain(|id, _| ids.contains(id));
        drop(inner);
        self.arrived.notify_waiters();
    }
}

/// Returns true if a file is unchanged, as far as its file system shows.
fn is_same(one: &Stat, other: &Stat) -> bool {
    (one.size, one.mtime, one.ctime) == (other.size, other.mtime, other.ctime)
}

impl Ticket {
    /// Records that the bytes are stored as `payload`. Returns false if the file has changed since
    /// they were read.
    pub fn stored(self, payload: ChunkPayload) -> bool {
        let mut inner = self.uploads.inner.lock();
        let is_current = self.is_current(&inner);
        if is_current {
            inner
                .copies
                .insert(self.data, UploadState::Done(Uploaded { payload, stat: self.stat, at: Instant::now() }));
        }
        drop(inner);
        self.uploads.arrived.notify_waiters();
        is_current
    }

    fn is_current(&self, inner: &Inner) -> bool {
        matches!(inner.copies.get(&self.data), Some(UploadState::InProgress { ticket }) if *ticket == self.number)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut inner = self.uploads.inner.lock();
        if self.is_current(&inner) {
            inner.copies.remove(&self.data);
        }
        drop(inner);
        self.uploads.arrived.notify_waiters();
    }
}

impl Drop for UploadPause {
    fn drop(&mut self) {
        let mut inner = self.0.inner.lock();
        inner.holds = inner.holds.saturating_sub(1);
        drop(inner);
        self.0.wake.notify_one();
    }
}

/// Eager uploads of a working tree's files.
#[derive(Debug)]
pub struct Uploads {
    upper: Arc<Upper>,
    handles: Arc<Handles>,
}

impl Uploads {
    pub(super) fn new(handles: &Arc<Handles>) -> Self {
        Uploads { upper: Arc::clone(&handles.upper), handles: Arc::clone(handles) }
    }
}

impl Uploads {
    /// Returns the uploads so far, and those that wait.
    pub fn eager(&self) -> &Arc<EagerUploads> {
        &self.upper.uploads
    }

    /// Returns the names of file `id`, each with the document that it is relative to.
    pub fn names_below(&self, id: EntryId) -> Vec<Named> {
        let locked = self.upper.lock();
        let Some(inode) = locked.state.get(id) else { return Vec::new() };
        let names = inode.names.iter();
        names.filter_map(|(parent, name)| named(&locked.state, &locked.base.tree, *parent, name)).collect()
    }

    /// Returns the size of file `id` in bytes, if it has a data file.
    pub fn own_size(&self, id: EntryId) -> Result<Option<u64>> {
        let Some(data) = self.upper.lock().state.get(id).and_then(Inode::data_file) else { return Ok(None) };
        Ok(self.upper.files.find(data)?.map(|stat| stat.size))
    }

    /// Begins to upload file `id`, if it has a data file of at least `least` bytes and no writer.
    pub fn begin_upload(&self, id: EntryId, least: u64) -> Result<UploadDecision> {
        let locked = self.upper.lock();
        let Some(inode) = locked.state.get(id).filter(|inode| !inode.names.is_empty()) else {
            return Ok(UploadDecision::Never);
        };
        let Some(data) = inode.data_file() else { return Ok(UploadDecision::Never) };
        // A commit completes the sparse copy if needed.
        if locked.state.borrowed(data).is_some() {
            return Ok(UploadDecision::Never);
        }
        if locked.open_files.get(&inode.number).is_some_and(|open| open.writers > 0) {
            return Ok(UploadDecision::Never);
        }
        let Some(stat) = self.upper.files.find(data)?.filter(|stat| stat.size >= least.max(1)) else {
            return Ok(UploadDecision::Never);
        };
        let file = self.handles.contents.chunk_file(data, &stat);
        if self.upper.uploads.inner.lock().holds > 0 {
            return Ok(UploadDecision::Later);
        }
        // A mapping of a passthrough file outlives the handle. Without passthrough, every writer
        // has a handle.
        if self.handles.was_passthrough_used() && Files::writer_state(&file.open()?) != WriterState::AtRest {
            return Ok(UploadDecision::Later);
        }
        Ok(match self.upper.uploads.ticket(id, data, stat) {
            Some(ticket) => UploadDecision::Now(file, ticket),
            None => UploadDecision::Never,
        })
    }

    /// Forgets uploads of data files that no inode has any more.
    pub fn forget_uploads(&self) {
        let locked = self.upper.lock();
        let ids = locked.state.iter().map(|(id, _)| id).collect();
        self.upper.uploads.retain(&ids, &locked.state.data_files());
    }
}

/// Returns `name` in directory `parent`, relative to the nearest ancestor directory that has a
/// document.
fn named(state: &State, tree: &Tree, mut parent: EntryId, name: &Name) -> Option<Named> {
    let document_name = Name::new(ZARR_JSON.as_bytes());
    let mut key = name.text()?.to_owned();
    // A cycle cannot arise, but a damaged journal can contain one.
    for _ in 0..=state.count() {
        let inode = state.get(parent)?;
        match (inode.directory()?.get(&document_name), &inode.lower) {
            (Some(entry), _) => {
                if let Some((id, inode)) = entry.id.and_then(|id| Some((id, state.get(id)?)))
                    && let Some(source) = inode.source()
                {
                    let file = FrozenFile { id, lower: inode.lower.clone(), source: source.clone() };
                    return Some(Named { key, document: Document::Changed(file) });
                }
            }
            (None, Some(TreePlace::Directory(index))) if tree.table().is_stored(*index) => {
                return Some(Named { key, document: Document::Stored(*index) });
            }
            _ => {}
        }
        let (above, name) = inode.names.first()?;
        key = format!("{}/{key}", name.text()?);
        parent = *above;
    }
    None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::scratch::record::Time;

    fn stat(size: u64) -> Stat {
        Stat { size, blocks: 8, mtime: Time(1, 0), ctime: Time(1, 0), links: 1 }
    }

    fn payload() -> ChunkPayload {
        ChunkPayload::Inline("x".into())
    }

    fn uploads() -> Arc<EagerUploads> {
        let uploads = Arc::new(EagerUploads::default());
        uploads.enable();
        uploads
    }

    #[tokio::test]
    async fn what_changes_on_its_way_is_not_there() {
        let uploads = uploads();
        assert!(uploads.ticket(EntryId(1), DataFileId(10), stat(5)).unwrap().stored(payload()));
        assert!(uploads.find(DataFileId(10), &stat(5)).is_some());
        assert!(uploads.find(DataFileId(10), &stat(6)).is_none(), "the file has changed by other means");
        assert!(uploads.ticket(EntryId(1), DataFileId(10), stat(5)).is_none(), "it is there already");
        let late = uploads.ticket(EntryId(2), DataFileId(11), stat(5)).unwrap();
        uploads.forget(DataFileId(11));
        let second = uploads.ticket(EntryId(2), DataFileId(11), stat(7)).unwrap();
        assert!(!late.stored(payload()));
        assert!(second.stored(payload()));
        assert!(uploads.wait_for(DataFileId(11), &stat(7)).await.is_some());
        uploads.forget(DataFileId(11));
        assert!(uploads.wait_for(DataFileId(11), &stat(7)).await.is_none());
    }

    #[tokio::test]
    async fn a_commit_waits_for_what_is_on_its_way_and_lets_nothing_begin() {
        let uploads = uploads();
        let ticket = uploads.ticket(EntryId(1), DataFileId(10), stat(5)).unwrap();
        let failing = uploads.ticket(EntryId(2), DataFileId(11), stat(5)).unwrap();
        let hold = uploads.hold();
        assert!(uploads.ticket(EntryId(3), DataFileId(12), stat(5)).is_none());
        let one = Arc::clone(&uploads);
        let other = Arc::clone(&uploads);
        let one = tokio::spawn(async move { one.wait_for(DataFileId(10), &stat(5)).await });
        let other = tokio::spawn(async move { other.wait_for(DataFileId(11), &stat(5)).await });
        tokio::task::yield_now().await;
        assert!(!one.is_finished());
        ticket.stored(payload());
        drop(failing);
        assert!(one.await.unwrap().is_some() && other.await.unwrap().is_none());
        uploads.enqueue_closed(EntryId(4));
        let next = tokio::time::timeout(2 * QUIET, uploads.next()).await;
        assert!(next.is_err(), "something began during a commit");
        drop(hold);
        assert_eq!(uploads.next().await, EntryId(4));
    }

    #[tokio::test]
    async fn what_is_written_again_and_again_is_left_alone_longer() {
        let uploads = uploads();
        let mut least = QUIET;
        for _ in 0..3 {
            let begin = Instant::now();
            uploads.enqueue_closed(EntryId(1));
            uploads.enqueue_closed(EntryId(1));
            assert_eq!(uploads.next().await, EntryId(1));
            let taken = begin.elapsed();
            // A loaded machine makes each wait longer, but none shorter.
            assert!(taken >= least, "{taken:?}, not {least:?}");
            least = least * 3 / 2;
            drop(uploads.ticket(EntryId(1), DataFileId(10), stat(5)));
        }
        uploads.set_aside(EntryId(1));
        uploads.retain(&HashSet::new(), &HashSet::new());
        uploads.requeue_set_aside();
        assert!(uploads.inner.lock().queue.is_empty());
    }
}
