//! Files of the base that programs have open to read while the tree moves: each keeps its bytes
//! until it is closed.
//!
//! The kernel has one page cache and one length for each inode number. A file that has other bytes
//! in the new base, or is gone there, therefore becomes two: its number stays with the *old
//! version*, a reference to the stored chunk without a name, for the programs that have it open,
//! and the name gets an inode with another number. A changed file that nobody has open keeps its
//! number, and the kernel drops what it has of it. Until it has done so, files are not opened
//! ([`TreeMoves::settle`]): a program would read old bytes from the kernel and new ones from
//! here.
//!
//! Only files whose bytes are the base's before and after the move become two. So no two inodes
//! ever have one data file, which the close of one would take from the other: bytes that programs
//! wrote stay with the inode that has them.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::super::invalidation::Invalidation;
use super::super::node::IN_PLACE;
use super::super::replace::TreeGuard;
use super::super::state::{State, numbered};
use super::super::{Base, Ino, Locked};
use super::Candidate;
use super::TreeMoves;
use crate::scratch::record::{Body, EntryId, Meta, Name, Source, Stored};
use icechunkfs_base::error::{ErrorKind, Result};
use icechunkfs_format::format::chunk_payload::ChunkPayload;
use icechunkfs_tree::tree::Tree;
use icechunkfs_tree::tree::nodes::TreePlace;

/// Longest wait of an open for the end of a move. The kernel drops what it has within milliseconds,
/// unless it waits for reads from slow storage: then a program may get bytes of both states.
const LONGEST_HOLD: Duration = Duration::from_secs(1);

/// File of the base that is open to read.
pub(super) struct OpenReader {
    number: Ino,
    /// Number of the file in the base.
    in_base: Ino,
    meta: Meta,
    /// Names that the kernel may know it by.
    names: Vec<Invalidation>,
}

impl TreeMoves {
    /// Gives other numbers to names in `candidate` whose files have other bytes there, as far as
    /// programs have these open, and to names whose number in the base is that of a file elsewhere.
    ///
    /// Fails if the old bytes of such a file cannot be found out, unless the candidate's changes
    /// are published.
    pub async fn keep_open_files(&self, _guard: &TreeGuard<'_>, candidate: &mut Candidate) -> Result<()> {
        let elsewhere: Vec<Ino> = candidate.state.elsewhere().collect();
        for number in elsewhere {
            candidate.spare_number(number).await?;
        }
        // Where the rest stays as it is, only files whose places have others now, after a restore,
        // say, can have other bytes in the base.
        let readers = self.upper.lock().open_readers(&candidate.seen, candidate.keeps_rest);
        for reader in readers {
            candidate.seen.insert(reader.number);
            let old = match self.old_bytes(&reader, candidate).await {
                Ok(old) => old,
                // There is nothing to keep: the base had lost it before, under a program that has
                // it open.
                Err(error) if error.kind() == ErrorKind::NotFound => None,
                Err(error) if candidate.is_published => {
                    tracing::warn!("a program may read parts of two versions of {}: {error}", reader.number);
                    None
                }
                Err(error) => return Err(error),
            };
            let Some(payload) = old else { continue };
            let number = reader.number;
            let is_named = candidate.state.at_number(number).is_some_and(|(_, inode)| !inode.names.is_empty());
            if is_named || candidate.can_spare(number) {
                candidate.part(reader, payload);
                candidate.spare_number(number).await?;
            }
        }
        Ok(())
    }

    /// Keeps programs from opening files until [`TreeMoves::settle`], if `candidate` changes
    /// files of the base.
    pub fn hold_opens(&self, candidate: &Candidate) {
        if !candidate.keeps_rest {
            self.upper.lock().kernel.hold_opens();
        }
    }

    /// Returns true while the kernel may have what the last move made outdated: a lookup that was
    /// answered before it may bring an inode with its old length after it.
    pub fn is_settling(&self) -> bool {
        self.upper.moves.is_settling()
    }

    /// Records that the kernel has dropped all that the last move made outdated, or that there is
    /// none yet: files may be opened.
    pub fn settle(&self) {
        self.upper.lock().kernel.settle();
    }

    /// Returns the numbers whose bytes and attributes the kernel must drop since files were closed,
    /// each once.
    pub fn take_outdated(&self) -> Vec<Ino> {
        self.upper.lock().kernel.take_outdated()
    }

    /// Returns the bytes of an open file, as a reference, if it has others in `candidate`.
    async fn old_bytes(&self, reader: &OpenReader, candidate: &Candidate) -> Result<Option<ChunkPayload>> {
        let inode = candidate.state.by_number(reader.number).and_then(|id| candidate.state.get(id));
        if inode.is_some_and(|inode| inode.source() != Some(&Source::Lower)) {
            // The merge has made it independent of the base.
            return Ok(None);
        }
        let old = self.upper.base().tree.payload_of(reader.in_base).await?;
        let new = match candidate.state.base_number(reader.number) {
            // One that cannot be read is another: programs that open it get the error.
            Some(number) => candidate.base.tree.payload_of(number).await.ok().flatten(),
            None => None,
        };
        Ok(old.filter(|old| new.as_ref() != Some(old)))
    }
}

/// Waits until `held` is dropped, or it is `deadline`. Returns false then.
pub(in super::super) async fn wait_for_admission(mut held: watch::Receiver<()>, deadline: Instant) -> bool {
    tokio::time::timeout_at(deadline, held.changed()).await.is_ok()
}

/// Returns the time until which an open that begins now waits for the end of a move.
pub(in super::super) fn deadline() -> Instant {
    Instant::now() + LONGEST_HOLD
}

impl Locked {
    /// Returns the files of the base that are open to read only, except those in `seen`; if
    /// `only_hidden`, those that only the base has and whose places a name of the working tree
    /// hides.
    pub(super) fn open_readers(&self, seen: &HashSet<Ino>, only_hidden: bool) -> Vec<OpenReader> {
        let open = self.open_files.iter().filter(|(number, open)| open.writers == 0 && !seen.contains(number));
        let reader = |number: Ino| {
            let in_base = self.state.base_number(number)?;
            let tree = &self.base.tree;
            let place = tree.table().place(in_base).filter(|place| !tree.is_directory_place(place))?;
            let is_hidden = || self.state.at_number(number).is_none() && !self.state.shows_base_at(tree, &place);
            if only_hidden && !is_hidden() {
                return None;
            }
            let inode = self.state.by_number(number).and_then(|id| self.state.get(id));
            let meta = inode.map_or_else(|| self.base.meta_of(&place), |inode| inode.meta);
            Some(OpenReader { number, in_base, meta, names: names_of(&self.state, &self.base, number) })
        };
        open.filter_map(|(number, _)| reader(*number)).collect()
    }

    /// Takes over the old versions of `new`, and files that lost their names by the move from
    /// `old`. Drops those that nobody has open any more; those with numbers of the working tree as
    /// soon as the kernel has forgotten them.
    ///
    /// A program that has found such a number before the move may open it after the move: it gets
    /// the old version then, as it would have a moment before. If it were refused, the kernel would
    /// look the name up again, but once only, and the next move may be quicker.
    pub(super) fn take_old_versions(&mut self, new: HashSet<Ino>, old: &State) {
        let had_names = |number: &Ino| old.at_number(*number).is_some_and(|(_, inode)| !inode.names.is_empty());
        let parted = self.state.nameless().filter(had_names);
        self.kernel.keep_old_versions(parted.chain(new));
        for number in self.kernel.old_versions() {
            match self.state.at_number(number).filter(|(id, _)| self.state.is_without_name(*id)) {
                Some((id, _)) => self.drop_if_gone(id),
                None => self.kernel.on_gone(number, false),
            }
        }
    }
}

impl Candidate {
    /// Makes `payload` the bytes of the number of `reader`, without a name. Names go to another
    /// number.
    fn part(&mut self, reader: OpenReader, payload: ChunkPayload) {
        let OpenReader { number, meta, names, .. } = reader;
        self.invalidations.extend(names);
        let moved = self.state.part_old_version(number, Source::Stored(Stored(payload)), meta);
        self.disposable.retain(|(parent, name, _)| !moved.iter().any(|moved| (&moved.0, &moved.1) == (parent, name)));
        for (parent, name) in moved {
            self.invalidate_name(parent, name);
        }
        self.numbers.old_versions.insert(number);
    }

    /// Gives the name of the base's file that has `number` another one, if the number is that of a
    /// file elsewhere. Records that there is no such file otherwise.
    async fn spare_number(&mut self, number: Ino) -> Result<()> {
        let base = Arc::clone(&self.base);
        if !self.state.is_elsewhere(number) {
            return Ok(());
        }
        let Some(place) = self.shown_at(number) else { return Ok(()) };
        if !base.tree.has(&place).await? {
            self.numbers.vacant.insert(number);
        } else if is_below_its_parents(&base.tree, &place)
            && let Some((parent, name)) = self.state.renumber_base(&base, place)
        {
            self.invalidate_name(parent, name);
        }
        Ok(())
    }

    /// Returns the place of the base's file with `number`, if that shows.
    fn shown_at(&self, number: Ino) -> Option<TreePlace> {
        let tree = &self.base.tree;
        let place = Some(number).filter(|number| number.is_of_base()).and_then(|number| tree.table().place(number))?;
        let is_file = tree.table().inode(&place) == number && !tree.is_directory_place(&place);
        (is_file && self.state.shows_base_at(tree, &place)).then_some(place)
    }

    /// Returns true unless the base's file with `number` shows in a place where a file of the
    /// working tree would count as another one.
    fn can_spare(&self, number: Ino) -> bool {
        self.shown_at(number).is_none_or(|place| is_below_its_parents(&self.base.tree, &place))
    }

    fn invalidate_name(&mut self, parent: EntryId, name: Name) {
        if let Some(parent) = self.state.get(parent) {
            self.invalidations.push(Invalidation::Entry(parent.number, name));
        }
    }
}

impl State {
    /// Makes `source` the bytes of `number`, without a name. The names of the inode that has the
    /// number go to a new one; returns them.
    fn part_old_version(&mut self, number: Ino, source: Source, meta: Meta) -> Vec<(EntryId, Name)> {
        let body = Body::File(source);
        let Some((id, _)) = self.at_number(number) else {
            let id = EntryId::of_ino(number).unwrap_or_else(|| self.fresh.next_entry());
            self.insert_bare(id, number, body, meta, 0);
            return Vec::new();
        };
        let Some(inode) = self.get_mut(id) else { return Vec::new() };
        let names = std::mem::take(&mut inode.names);
        let new_body = std::mem::replace(&mut inode.body, body);
        let new_meta = std::mem::replace(&mut inode.meta, meta);
        let lower = inode.lower.clone().zip(inode.lower_number);
        self.bind(id, None);
        if names.is_empty() {
            return Vec::new();
        }
        let new = self.fresh.next_entry();
        self.insert_bare(new, new.ino(), new_body, new_meta, 0);
        self.bind(new, lower);
        for (parent, name) in &names {
            let entry = self.get(*parent).and_then(|inode| inode.directory()?.get(name));
            let covers = entry.is_some_and(|entry| entry.covers);
            let order = entry.map(|entry| entry.order);
            self.put_entry(*parent, name.clone(), Some(new), covers, order);
        }
        names.into_vec()
    }

    /// Gives a file that only the base has, at `place`, a number of the working tree. Returns its
    /// directory and name.
    fn renumber_base(&mut self, base: &Base, place: TreePlace) -> Option<(EntryId, Name)> {
        let tree = &base.tree;
        let (mut at, name) = tree.parent_of(&place)?;
        let mut missing = Vec::new();
        let mut parent = loop {
            if let Some(id) = self.at_place(tree, &at) {
                break id;
            }
            let (above, name) = tree.parent_of(&at)?;
            missing.push((std::mem::replace(&mut at, above), name));
        };
        // A listing that is under way may be before the places or behind them: all of these stay
        // there.
        for (directory, name) in missing.into_iter().rev() {
            let id = self.fresh.next_entry();
            let meta = base.meta_of(&directory);
            let (directory, number) = numbered(tree, directory);
            self.insert_bare(id, number, Body::Directory, meta, 0);
            self.bind(id, Some((directory, number)));
            self.put_entry(parent, Name::new(name.as_bytes()), Some(id), false, Some(IN_PLACE));
            parent = id;
        }
        let name = Name::new(name.as_bytes());
        let id = self.fresh.next_entry();
        self.insert_bare(id, id.ino(), Body::File(Source::Lower), base.meta_of(&place), 0);
        self.bind(id, Some(numbered(tree, place)));
        self.put_entry(parent, name.clone(), Some(id), false, Some(IN_PLACE));
        Some((parent, name))
    }
}

/// Returns true if `place` is what its name means in the directory above it, and so on: not a chunk
/// in a directory that is a group as well.
fn is_below_its_parents(tree: &Tree, place: &TreePlace) -> bool {
    let mut at = place.clone();
    while let Some((above, name)) = tree.parent_of(&at) {
        if tree.child_place(&above, &name) != Some(at) {
            return false;
        }
        at = above;
    }
    true
}

/// Returns the names by which the kernel may know file `number` of `state`.
fn names_of(state: &State, base: &Base, number: Ino) -> Vec<Invalidation> {
    let entry = |(parent, name): &(EntryId, Name)| Some(Invalidation::Entry(state.get(*parent)?.number, name.clone()));
    if let Some(inode) = state.by_number(number).and_then(|id| state.get(id)) {
        return inode.names.iter().filter_map(entry).collect();
    }
    let above = base.tree.table().place(number).and_then(|place| base.tree.parent_of(&place));
    let Some((above, name)) = above else { return Vec::new() };
    let natural = base.tree.table().inode(&above);
    let parent = state.at_place(&base.tree, &above).and_then(|id| state.get(id)).map_or(natural, |inode| inode.number);
    vec![Invalidation::Entry(parent, Name::new(name.as_bytes()))]
}
