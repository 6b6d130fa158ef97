//! What the store has of changed files before a commit refers to it.
//!
//! Whoever closes a file, or gives it a name, leaves it here to be looked at a little later ([`Uploads::next`]): a program that
//! opens it again at once, or renames it, has had its way by then. What was stored is remembered by the number of its data file,
//! until the file may have changed: a data file is changed through a handle that writes, or by a truncation, and both say so
//! ([`Uploads::changed`]), also while its bytes are on their way. An object that nobody remembers is garbage.
//!
//! Nothing of this is on disk. The next mount knows no uploads, and its commit stores what it finds.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::WorkingTree;
use super::frozen::FrozenFile;
use super::state::State;
use crate::commit::changes::ChunkFile;
use crate::error::Result;
use crate::format::chunk_payload::ChunkPayload;
use crate::scratch::data::{Files, Rest, Stat};
use crate::scratch::record::{Id, Name, Source};
use crate::tree::Tree;
use crate::tree::nodes::{NodeIndex, Place, ZARR_JSON};

/// How long a file is left alone after it was closed or renamed. What programs do next to it takes milliseconds; a commit that
/// comes earlier stores it by itself.
const QUIET: Duration = Duration::from_millis(50);
/// A file that was on its way before is left alone twice as long each time, up to 2 to the power of this times as long.
const LONGEST_QUIET: u32 = 12;

/// What is stored, on its way, or to be looked at.
#[derive(Debug, Default)]
pub struct Uploads {
    inner: Mutex<Inner>,
    /// Something is to be looked at earlier than anything was.
    wake: Notify,
    /// Something on its way has arrived, or never will.
    arrived: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    /// Whether anybody stores anything before a commit.
    is_on: bool,
    /// How many commits want nothing new to begin.
    holds: u32,
    queue: BTreeSet<(Instant, Id)>,
    due: HashMap<Id, Instant>,
    /// Files that were looked at and have no chunk's name, or not yet.
    aside: HashSet<Id>,
    /// How often a file's bytes were sent.
    sent: HashMap<Id, u32>,
    /// By data file.
    copies: HashMap<u64, Copy>,
    next_ticket: u64,
}

/// What the store has of a data file.
#[derive(Debug)]
enum Copy {
    OnItsWay { ticket: u64 },
    There(Uploaded),
}

/// A data file that the store has, as it was.
#[derive(Clone, Debug)]
pub struct Uploaded {
    /// Where.
    pub payload: ChunkPayload,
    /// The file when it was read.
    pub stat: Stat,
    /// When it was stored.
    pub at: Instant,
}

/// The right to store a data file's bytes; whoever drops it has not.
#[derive(Debug)]
pub struct Ticket {
    uploads: Arc<Uploads>,
    data: u64,
    number: u64,
    stat: Stat,
}

/// Keeps uploads from beginning, until it is dropped.
#[derive(Debug)]
pub struct Hold(Arc<Uploads>);

/// A file's name.
#[derive(Clone, Debug)]
pub struct Named {
    /// Relative to the nearest directory above that has a document.
    pub key: String,
    /// That document.
    pub below: Document,
}

/// A `zarr.json`.
#[derive(Clone, Debug)]
pub enum Document {
    /// The snapshot's, of this node.
    Stored(NodeIndex),
    /// One that differs, or may.
    Changed(FrozenFile),
}

/// What can be done about a file.
#[derive(Debug)]
pub enum Chance {
    /// It can be stored.
    Now(ChunkFile, Ticket),
    /// A commit is running, or somebody may still write to it by means that we do not see.
    Later,
    /// Nothing, until it is closed again.
    Never,
}

impl Uploads {
    /// From now on files are left here.
    pub fn begin(&self) {
        self.inner.lock().is_on = true;
    }

    /// Whether they are.
    pub fn are_on(&self) -> bool {
        self.inner.lock().is_on
    }

    /// File `id` was closed, or has another name.
    pub fn closed(&self, id: Id) {
        let mut inner = self.inner.lock();
        if inner.is_on {
            inner.aside.remove(&id);
            self.enqueue(&mut inner, id);
        }
    }

    fn enqueue(&self, inner: &mut Inner, id: Id) {
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

    /// File `id` is looked at once more, a while later.
    pub fn again(&self, id: Id) {
        let mut inner = self.inner.lock();
        *inner.sent.entry(id).or_default() += 1;
        self.enqueue(&mut inner, id);
    }

    /// File `id` has no chunk's name.
    pub fn set_aside(&self, id: Id) {
        self.inner.lock().aside.insert(id);
    }

    /// Names may mean something else now: what has no chunk's name is looked at again.
    pub fn look_again(&self) {
        let mut inner = self.inner.lock();
        for id in std::mem::take(&mut inner.aside) {
            self.enqueue(&mut inner, id);
        }
    }

    /// Data file `data` may have other bytes.
    pub fn changed(&self, data: u64) {
        let mut inner = self.inner.lock();
        if inner.is_on && inner.copies.remove(&data).is_some() {
            drop(inner);
            self.arrived.notify_waiters();
        }
    }

    /// The next file to be looked at.
    pub async fn next(&self) -> Id {
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

    fn ticket(self: &Arc<Self>, id: Id, data: u64, stat: Stat) -> Option<Ticket> {
        let mut inner = self.inner.lock();
        let is_known = match inner.copies.get(&data) {
            Some(Copy::OnItsWay { .. }) => true,
            Some(Copy::There(uploaded)) => is_same(&uploaded.stat, &stat),
            None => false,
        };
        if inner.holds > 0 || is_known {
            return None;
        }
        inner.next_ticket += 1;
        let number = inner.next_ticket;
        *inner.sent.entry(id).or_default() += 1;
        inner.copies.insert(data, Copy::OnItsWay { ticket: number });
        Some(Ticket { uploads: Arc::clone(self), data, number, stat })
    }

    /// Lets nothing new begin.
    pub fn hold(self: &Arc<Self>) -> Hold {
        self.inner.lock().holds += 1;
        Hold(Arc::clone(self))
    }

    /// What the store has of data file `data`, if it is still `stat`.
    pub fn find(&self, data: u64, stat: &Stat) -> Option<Uploaded> {
        match self.inner.lock().copies.get(&data) {
            Some(Copy::There(uploaded)) if is_same(&uploaded.stat, stat) => Some(uploaded.clone()),
            _ => None,
        }
    }

    /// As [`Uploads::find`], once what is on its way has arrived.
    pub async fn wait_for(&self, data: u64, stat: &Stat) -> Option<Uploaded> {
        loop {
            let mut arrived = std::pin::pin!(self.arrived.notified());
            arrived.as_mut().enable();
            if !matches!(self.inner.lock().copies.get(&data), Some(Copy::OnItsWay { .. })) {
                return self.find(data, stat);
            }
            arrived.await;
        }
    }

    fn keep(&self, ids: &HashSet<Id>, data: &HashSet<u64>) {
        let mut inner = self.inner.lock();
        inner.copies.retain(|number, _| data.contains(number));
        inner.aside.retain(|id| ids.contains(id));
        inner.sent.retain(|id, _| ids.contains(id));
        drop(inner);
        self.arrived.notify_waiters();
    }
}

/// Whether a file is as it was, as far as its file system says.
fn is_same(one: &Stat, other: &Stat) -> bool {
    (one.size, one.mtime, one.ctime) == (other.size, other.mtime, other.ctime)
}

impl Ticket {
    /// The bytes are stored as `payload`. False if the file has changed since they were read.
    pub fn stored(self, payload: ChunkPayload) -> bool {
        let mut inner = self.uploads.inner.lock();
        let is_current = self.is_current(&inner);
        if is_current {
            inner.copies.insert(self.data, Copy::There(Uploaded { payload, stat: self.stat, at: Instant::now() }));
        }
        drop(inner);
        self.uploads.arrived.notify_waiters();
        is_current
    }

    fn is_current(&self, inner: &Inner) -> bool {
        matches!(inner.copies.get(&self.data), Some(Copy::OnItsWay { ticket }) if *ticket == self.number)
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

impl Drop for Hold {
    fn drop(&mut self) {
        let mut inner = self.0.inner.lock();
        inner.holds = inner.holds.saturating_sub(1);
        drop(inner);
        self.0.wake.notify_one();
    }
}

impl WorkingTree {
    /// What the store has before a commit refers to it.
    pub fn uploads(&self) -> &Arc<Uploads> {
        &self.uploads
    }

    /// The names of file `id`, each with what it is relative to.
    pub fn names_below(&self, id: Id) -> Vec<Named> {
        let (locked, base) = (self.lock(), self.base());
        let Some(inode) = locked.state.get(id) else { return Vec::new() };
        inode.names.iter().filter_map(|(parent, name)| named(&locked.state, &base.tree, *parent, name)).collect()
    }

    /// Bytes of file `id`, if it has some of its own.
    pub fn own_size(&self, id: Id) -> Result<Option<u64>> {
        let data = match self.lock().state.get(id).and_then(|inode| inode.source()) {
            Some(Source::Data(data)) => *data,
            _ => return Ok(None),
        };
        Ok(self.files.find(data)?.map(|stat| stat.size))
    }

    /// Begins to store file `id`, if it has at least `least` bytes of its own and nobody is writing it.
    pub fn begin_upload(&self, id: Id, least: u64) -> Result<Chance> {
        let locked = self.lock();
        let Some(inode) = locked.state.get(id).filter(|inode| !inode.names.is_empty()) else {
            return Ok(Chance::Never);
        };
        let Some(Source::Data(data)) = inode.source() else { return Ok(Chance::Never) };
        // A commit fetches the rest, if it comes to that.
        if locked.state.borrowed(*data).is_some() {
            return Ok(Chance::Never);
        }
        if locked.opens.get(inode.number).is_some_and(|open| open.writers > 0) {
            return Ok(Chance::Never);
        }
        let Some(stat) = self.files.find(*data)?.filter(|stat| stat.size >= least.max(1)) else {
            return Ok(Chance::Never);
        };
        let file = ChunkFile {
            directory: Arc::clone(self.files.directory()),
            name: data.to_string(),
            length: stat.size,
            may_link: true,
        };
        if self.uploads.inner.lock().holds > 0 {
            return Ok(Chance::Later);
        }
        // A mapping that the kernel made by itself outlives the handle. Nobody else writes without one.
        if self.was_passed_on() && Files::rest(&file.open()?) != Rest::AtRest {
            return Ok(Chance::Later);
        }
        Ok(match self.uploads.ticket(id, *data, stat) {
            Some(ticket) => Chance::Now(file, ticket),
            None => Chance::Never,
        })
    }

    /// Forgets uploads of data files that are nobody's any more.
    pub fn forget_uploads(&self) {
        let locked = self.lock();
        let ids = locked.state.iter().map(|(id, _)| id).collect();
        let data = locked.state.iter().filter_map(|(_, inode)| match inode.source() {
            Some(Source::Data(data)) => Some(*data),
            _ => None,
        });
        self.uploads.keep(&ids, &data.collect());
    }
}

/// `name` in directory `parent`, relative to the nearest directory above that has a document.
fn named(state: &State, tree: &Tree, mut parent: Id, name: &Name) -> Option<Named> {
    let document = Name::new(ZARR_JSON.as_bytes());
    let mut key = name.text()?.to_owned();
    // A cycle cannot come about, but a journal can say anything.
    for _ in 0..=state.count() {
        let inode = state.get(parent)?;
        match (inode.directory()?.get(&document), &inode.lower) {
            (Some(entry), _) => {
                if let Some((id, inode)) = entry.id.and_then(|id| Some((id, state.get(id)?)))
                    && let Some(source) = inode.source()
                {
                    let file = FrozenFile { id, lower: inode.lower.clone(), source: source.clone() };
                    return Some(Named { key, below: Document::Changed(file) });
                }
            }
            (None, Some(Place::Directory(index)))
                if tree.table().get(*index).is_some_and(|node| node.stored.is_some()) =>
            {
                return Some(Named { key, below: Document::Stored(*index) });
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

    fn uploads() -> Arc<Uploads> {
        let uploads = Arc::new(Uploads::default());
        uploads.begin();
        uploads
    }

    #[tokio::test]
    async fn what_changes_on_its_way_is_not_there() {
        let uploads = uploads();
        assert!(uploads.ticket(1, 10, stat(5)).unwrap().stored(payload()));
        assert!(uploads.find(10, &stat(5)).is_some());
        assert!(uploads.find(10, &stat(6)).is_none(), "the file has changed by other means");
        assert!(uploads.ticket(1, 10, stat(5)).is_none(), "it is there already");
        let late = uploads.ticket(2, 11, stat(5)).unwrap();
        uploads.changed(11);
        let second = uploads.ticket(2, 11, stat(7)).unwrap();
        assert!(!late.stored(payload()));
        assert!(second.stored(payload()));
        assert!(uploads.wait_for(11, &stat(7)).await.is_some());
        uploads.changed(11);
        assert!(uploads.wait_for(11, &stat(7)).await.is_none());
    }

    #[tokio::test]
    async fn a_commit_waits_for_what_is_on_its_way_and_lets_nothing_begin() {
        let uploads = uploads();
        let ticket = uploads.ticket(1, 10, stat(5)).unwrap();
        let failing = uploads.ticket(2, 11, stat(5)).unwrap();
        let hold = uploads.hold();
        assert!(uploads.ticket(3, 12, stat(5)).is_none());
        let (one, other) = (Arc::clone(&uploads), Arc::clone(&uploads));
        let one = tokio::spawn(async move { one.wait_for(10, &stat(5)).await });
        let other = tokio::spawn(async move { other.wait_for(11, &stat(5)).await });
        tokio::task::yield_now().await;
        assert!(!one.is_finished());
        ticket.stored(payload());
        drop(failing);
        assert!(one.await.unwrap().is_some() && other.await.unwrap().is_none());
        uploads.closed(4);
        let next = tokio::time::timeout(2 * QUIET, uploads.next()).await;
        assert!(next.is_err(), "something began during a commit");
        drop(hold);
        assert_eq!(uploads.next().await, 4);
    }

    #[tokio::test]
    async fn what_is_written_again_and_again_is_left_alone_longer() {
        let uploads = uploads();
        let mut last = Duration::ZERO;
        for _ in 0..3 {
            let begin = Instant::now();
            uploads.closed(1);
            uploads.closed(1);
            assert_eq!(uploads.next().await, 1);
            let taken = begin.elapsed();
            assert!(taken >= QUIET && taken >= last * 3 / 2, "{taken:?} after {last:?}");
            last = taken;
            drop(uploads.ticket(1, 10, stat(5)));
        }
        uploads.set_aside(1);
        uploads.keep(&HashSet::new(), &HashSet::new());
        uploads.look_again();
        assert!(uploads.inner.lock().queue.is_empty());
    }
}
