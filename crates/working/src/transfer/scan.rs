//! Presents a directory of this machine as a working tree in which every file is new.
//!
//! A mount detects its changes in a frozen state of its working tree ([`Frozen`]). Here such a
//! state is made of the files in a directory, so that one set of rules decides what is a group, an
//! array, a chunk, untracked or a violation. The state lies over the branch's tip like files that
//! were copied into a mount with `cp -r`: an entry with the same path is replaced, everything else
//! of the snapshot shows through, unless it is to be deleted.
//!
//! Directories are listed by several threads. Symbolic links are not followed: like devices, they
//! have no place in Zarr.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use rustix::fs::{AtFlags, Dir, FileType, OFlags};
use rustix::io::Errno;

use super::{Counters, SkippedPath, kind_of, open_beneath};
use crate::overlay::frozen::{Contents, Frozen, FrozenDirectory, FrozenEntry, FrozenFile};
use crate::scratch::record::{DataFileId, EntryId, Name, Source, Stored};
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::file_name::is_dots;
use icechunkfs_base::memory::{self, SharedReservation};
use icechunkfs_base::printable;
use icechunkfs_format::format::chunk_payload::ChunkPayload;
use icechunkfs_repo::commit::changes::{ChunkFile, MadeChunk};
use icechunkfs_repo::repo::create::GROUP_DOCUMENT;
use icechunkfs_tree::tree::directory::{Entry, Extent};
use icechunkfs_tree::tree::nodes::{NodeIndex, TreePlace, ZARR_JSON};
use icechunkfs_tree::tree::{Kind, Tree};

/// Reason why an array is not imported.
pub(super) const GROUP_IN_PLACE: &str =
    "the branch has a group here, and an array cannot take its place: import to another --path";

/// Returns true if `node` is a group, or a directory with nodes.
pub(super) fn is_group(tree: &Tree, node: NodeIndex) -> bool {
    let table = tree.table();
    table.array(node).is_none() && (table.is_stored(node) || !table.children(node).is_empty())
}

/// Files whose sizes one task looks up.
const BATCH: usize = 4096;

/// The files of a directory.
#[derive(Debug)]
pub(super) struct Scanned {
    /// The directory; none if no file is one of the file system.
    root: Option<Arc<OwnedFd>>,
    /// Files by number.
    files: Vec<ScannedFile>,
    /// All directories, the root first.
    directories: Vec<Directory>,
    /// Paths of entries that are neither files nor directories.
    pub(super) others: Vec<String>,
    _memory: Vec<SharedReservation>,
}

/// File of a directory, or what takes the place of one.
#[derive(Clone, Debug)]
pub(super) enum ScannedFile {
    /// Path below the directory, and size in bytes.
    File(Box<[u8]>, u64),
    /// Content of a document.
    Document(Bytes),
    /// Chunk of which parts are elsewhere.
    Chunk(Arc<dyn MadeChunk>),
    /// Chunk in a file outside the repository.
    Virtual(ChunkPayload),
}

#[derive(Clone, Debug, Default)]
struct Directory {
    path: Box<[u8]>,
    entries: BTreeMap<Name, ScannedEntry>,
    /// True if what the branch has there is hidden, whether or not something takes its place.
    replaces: bool,
}

/// Entry of a directory: a directory by position, or a file by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScannedEntry {
    Directory(usize),
    File(u64),
}

enum Task {
    Directory { position: usize, path: Vec<u8> },
    Files { position: usize, path: Arc<[u8]>, folder: Arc<OwnedFd>, names: Vec<Vec<u8>> },
}

/// Tasks of all threads, and their results.
#[derive(Default)]
struct Queue {
    tasks: Vec<Task>,
    /// Tasks that threads are working on.
    busy: usize,
    failed: Option<Error>,
    files: Vec<ScannedFile>,
    directories: Vec<Directory>,
    others: Vec<String>,
}

struct Scan<'a> {
    root: &'a Arc<OwnedFd>,
    queue: Mutex<Queue>,
    more: Condvar,
    counters: &'a Counters,
}

/// Lists everything below directory `root`, with `jobs` threads.
pub(super) fn scan(root: Arc<OwnedFd>, jobs: usize, counters: &Counters) -> Result<Scanned> {
    let tasks = vec![Task::Directory { position: 0, path: Vec::new() }];
    let directories = vec![Directory::default()];
    let queue = Mutex::new(Queue { tasks, directories, ..Queue::default() });
    let scan = Scan { root: &root, queue, more: Condvar::new(), counters };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(|| scan.run())).collect();
        let ended = threads.into_iter().map(|thread| thread.join()).filter(Result::is_err).count() == 0;
        ended.then_some(()).ok_or_else(|| Error::new(ErrorKind::Io, "looking at the files ended early"))
    })?;
    let Queue { failed, files, directories, mut others, .. } = scan.queue.into_inner();
    others.sort();
    failed.map_or(Ok(Scanned { root: Some(root), files, directories, others, _memory: Vec::new() }), Err)
}

impl Queue {
    fn add_entry(&mut self, position: usize, name: &[u8], entry: ScannedEntry) {
        if let Some(directory) = self.directories.get_mut(position) {
            directory.entries.insert(Name::new(name), entry);
        }
    }
}

impl Scan<'_> {
    fn run(&self) {
        while let Some(task) = self.next() {
            let done = match task {
                Task::Directory { position, path } => self.directory(position, &path),
                Task::Files { position, path, folder, names } => self.sizes(position, &path, &folder, names),
            };
            let mut queue = self.queue.lock();
            queue.busy -= 1;
            if let Err(error) = done {
                queue.failed.get_or_insert(error);
            }
            drop(queue);
            self.more.notify_all();
        }
    }

    /// Returns the next task; none when all are done, or one has failed.
    fn next(&self) -> Option<Task> {
        let mut queue = self.queue.lock();
        loop {
            if queue.failed.is_some() {
                return None;
            }
            if let Some(task) = queue.tasks.pop() {
                queue.busy += 1;
                return Some(task);
            }
            if queue.busy == 0 {
                return None;
            }
            self.more.wait(&mut queue);
        }
    }

    fn directory(&self, position: usize, path: &[u8]) -> Result<()> {
        let failed = |e: Errno| Error::io(printable::text(path), e.into());
        let folder = Arc::new(open_beneath(self.root, path, OFlags::DIRECTORY).map_err(failed)?);
        let shared: Arc<[u8]> = path.into();
        let mut names = Vec::new();
        for entry in Dir::read_from(&*folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_bytes();
            if is_dots(name) {
                continue;
            }
            match kind_of(&*folder, &entry).map_err(failed)? {
                FileType::RegularFile => names.push(name.to_vec()),
                FileType::Directory => {
                    let mut queue = self.queue.lock();
                    let child = queue.directories.len();
                    let path = join(path, name);
                    queue.directories.push(Directory { path: path.as_slice().into(), ..Directory::default() });
                    queue.add_entry(position, name, ScannedEntry::Directory(child));
                    queue.tasks.push(Task::Directory { position: child, path });
                    self.more.notify_one();
                }
                _ => self.queue.lock().others.push(printable::text(&join(path, name))),
            }
            if names.len() >= BATCH {
                let path = Arc::clone(&shared);
                let folder = Arc::clone(&folder);
                let names = std::mem::take(&mut names);
                self.queue.lock().tasks.push(Task::Files { position, path, folder, names });
                self.more.notify_one();
            }
        }
        self.sizes(position, path, &folder, names)
    }

    fn sizes(&self, position: usize, path: &[u8], folder: &OwnedFd, names: Vec<Vec<u8>>) -> Result<()> {
        self.counters.more(names.len() as u64);
        let mut sizes = Vec::with_capacity(names.len());
        for name in names {
            match rustix::fs::statat(folder, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => sizes.push((name, stat.st_size.unsigned_abs())),
                // The file was deleted since the listing.
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(Error::io(printable::text(&join(path, &name)), errno.into())),
            }
        }
        let mut queue = self.queue.lock();
        for (name, size) in sizes {
            let number = queue.files.len() as u64;
            queue.add_entry(position, &name, ScannedEntry::File(number));
            queue.files.push(ScannedFile::File(join(path, &name).into(), size));
        }
        Ok(())
    }
}

pub(super) fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() }
}

impl Scanned {
    /// Creates a directory without files, to which some are added: none of the file system.
    pub(super) fn empty() -> Self {
        Scanned {
            root: None,
            files: Vec::new(),
            directories: vec![Directory::default()],
            others: Vec::new(),
            _memory: Vec::new(),
        }
    }

    /// Holds `memory`, which was counted for the files.
    pub(super) fn hold(&mut self, memory: SharedReservation) {
        self._memory.push(memory);
    }

    /// Adds `file` at `path`, which no other file has. The directories that are made for it are
    /// those of arrays, which replace the branch's as wholes.
    pub(super) fn add(&mut self, path: &str, file: ScannedFile) {
        self.add_in(path, file, true);
    }

    /// Adds `file` at `path`, which no other file has, over what the branch has.
    pub(super) fn add_over(&mut self, path: &str, file: ScannedFile) {
        self.add_in(path, file, false);
    }

    fn add_in(&mut self, path: &str, file: ScannedFile, replaces: bool) {
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        let mut at = 0;
        let mut so_far = Vec::new();
        for part in above.split('/').filter(|part| !part.is_empty()) {
            so_far = join(&so_far, part.as_bytes());
            at = self.enter(at, part, &so_far, replaces);
        }
        let number = self.files.len() as u64;
        self.files.push(file);
        if let Some(directory) = self.directories.get_mut(at) {
            directory.entries.insert(Name::new(name.as_bytes()), ScannedEntry::File(number));
        }
    }

    /// Returns the position of directory `name` of the one at position `at`; makes it if there is
    /// none.
    fn enter(&mut self, at: usize, name: &str, path: &[u8], replaces: bool) -> usize {
        let name = Name::new(name.as_bytes());
        let new = self.directories.len();
        let Some(directory) = self.directories.get_mut(at) else { return at };
        match directory.entries.get(&name) {
            Some(ScannedEntry::Directory(position)) => *position,
            _ => {
                directory.entries.insert(name, ScannedEntry::Directory(new));
                self.directories.push(Directory { path: path.into(), replaces, ..Directory::default() });
                new
            }
        }
    }

    /// Returns the path of each directory, with its files by name; a directory comes before those
    /// below it.
    pub(super) fn listed(&self) -> impl Iterator<Item = (&[u8], BTreeMap<&[u8], DataFileId>)> {
        self.directories.iter().map(|directory| {
            let files = directory.entries.iter().filter_map(|(name, entry)| match entry {
                ScannedEntry::File(number) => Some((&*name.0, DataFileId(*number))),
                ScannedEntry::Directory(_) => None,
            });
            (&*directory.path, files.collect())
        })
    }

    /// Returns the same directory without any file: some are laid out in it in another way.
    pub(super) fn emptied(&self) -> Self {
        Scanned { root: self.root.clone(), others: self.others.clone(), ..Scanned::empty() }
    }

    /// Adds the file `number` of `from`, another scan of the same directory, at `path`.
    pub(super) fn add_from(&mut self, path: &str, from: &Scanned, number: DataFileId) {
        if let Some(file) = from.file(number) {
            self.add_over(path, file.clone());
        }
    }

    /// Reads the file `number`, of at most `limit` bytes.
    pub(super) fn read(&self, number: DataFileId, limit: u64) -> Result<Bytes> {
        if let Some(ScannedFile::Document(bytes)) = self.file(number) {
            return Ok(bytes.clone());
        }
        read_below(self.root.as_deref(), self.path(number), limit)
    }

    /// Returns true if there is any `zarr.json`.
    pub(super) fn any_document(&self) -> bool {
        let document = Name::new(ZARR_JSON.as_bytes());
        self.directories.iter().any(|directory| matches!(directory.entries.get(&document), Some(ScannedEntry::File(_))))
    }

    /// Returns true if the directory itself contains a file with a name for which `is_it` returns
    /// true.
    pub(super) fn has_file(&self, is_it: impl Fn(&str) -> bool) -> bool {
        let is_file = |entry: &ScannedEntry| matches!(entry, ScannedEntry::File(_));
        let top = self.directories.first().into_iter().flat_map(|top| &top.entries);
        top.filter(|(_, entry)| is_file(entry)).any(|(name, _)| name.text().is_some_and(&is_it))
    }

    /// Lays the files over `tree`, at the group `path`; with `delete`, whiteouts hide what the
    /// files do not have there. Also returns the clashes: files where the tree has a group or an
    /// array, and directories where it has a chunk.
    ///
    /// Groups above `path` that the tree does not have are created.
    pub(super) async fn lay_over(&self, tree: &Tree, path: &str, delete: bool) -> Result<(Frozen, Vec<SkippedPath>)> {
        let mut next_id: EntryId = crate::scratch::record::ROOT;
        let mut out: Vec<FrozenDirectory> = Vec::with_capacity(self.directories.len());
        let mut clashes = Vec::new();
        let mut lower = Some(TreePlace::Directory(0));
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let mut entries = BTreeMap::new();
            entries.insert(Name::new(name.as_bytes()), FrozenEntry::Directory(out.len() + 1));
            let has = lower
                .as_ref()
                .is_some_and(|place| matches!(tree.child_place(place, ZARR_JSON), Some(TreePlace::Metadata(_))));
            if !has {
                let document = ChunkPayload::Inline(Bytes::from_static(GROUP_DOCUMENT));
                let group = new_file(Source::Stored(Stored(document)), &mut next_id);
                entries.insert(Name::new(ZARR_JSON.as_bytes()), group);
            }
            let below = lower.as_ref().and_then(|place| tree.child_place(place, name));
            let below = below.filter(|place| tree.is_directory_place(place));
            out.push(FrozenDirectory {
                id: take(&mut next_id),
                lower,
                restored: None,
                entries,
                covering: BTreeSet::new(),
            });
            lower = below;
        }
        let first = out.len();
        let mut lowers = vec![None; self.directories.len()];
        if let Some(top) = lowers.first_mut() {
            *top = lower;
        }
        // A directory's number is smaller than those of all directories below it.
        for (position, Directory { path: place, entries: found, replaces }) in self.directories.iter().enumerate() {
            let lower = lowers.get_mut(position).and_then(Option::take);
            if let (Some(TreePlace::Directory(node)), true, false) = (&lower, *replaces, delete)
                && is_group(tree, *node)
            {
                let why = GROUP_IN_PLACE.to_owned();
                clashes.push(SkippedPath { path: printable::text(place), why });
            }
            let mut entries = BTreeMap::new();
            for (name, found) in found {
                let below = match (&lower, name.text()) {
                    (Some(lower), Some(text)) => tree.child_place(lower, text),
                    _ => None,
                };
                if let (Some(below), false) = (&below, delete || *replaces)
                    && let Some(why) = clash(tree, below, *found).await?
                {
                    clashes.push(SkippedPath { path: printable::text(&join(place, &name.0)), why: why.to_owned() });
                }
                let entry = match found {
                    ScannedEntry::Directory(child) => {
                        if let Some(slot) = lowers.get_mut(*child) {
                            *slot = below.filter(|place| tree.is_directory_place(place));
                        }
                        FrozenEntry::Directory(first + child)
                    }
                    ScannedEntry::File(number) => new_file(self.source_of(*number), &mut next_id),
                };
                entries.insert(name.clone(), entry);
            }
            if let (Some(place), true) = (&lower, delete || *replaces) {
                hide_rest(tree, place, &mut entries).await?;
            }
            out.push(FrozenDirectory {
                id: take(&mut next_id),
                lower,
                restored: None,
                entries,
                covering: BTreeSet::new(),
            });
        }
        Ok((Frozen::of(out), clashes))
    }

    fn file(&self, number: DataFileId) -> Option<&ScannedFile> {
        self.files.get(usize::try_from(number.0).ok()?)
    }

    fn source_of(&self, number: u64) -> Source {
        let number = DataFileId(number);
        match self.file(number) {
            Some(ScannedFile::Document(document)) => Source::Stored(Stored(ChunkPayload::Inline(document.clone()))),
            Some(ScannedFile::Virtual(payload)) => Source::Stored(Stored(payload.clone())),
            _ => Source::Data(number),
        }
    }

    fn path(&self, number: DataFileId) -> &[u8] {
        match self.file(number) {
            Some(ScannedFile::File(path, _)) => path,
            _ => &[],
        }
    }
}

fn take(next: &mut EntryId) -> EntryId {
    let id = *next;
    next.0 += 1;
    id
}

fn new_file(source: Source, next_id: &mut EntryId) -> FrozenEntry {
    FrozenEntry::File(FrozenFile { id: take(next_id), lower: None, source })
}

/// Returns the reason why `found` cannot be where the snapshot has `place`, if there is one.
async fn clash(tree: &Tree, place: &TreePlace, found: ScannedEntry) -> Result<Option<&'static str>> {
    let is_directory = tree.is_directory_place(place);
    Ok(match (found, place) {
        (ScannedEntry::File(_), TreePlace::Directory(_)) => {
            Some("it is a file where the branch has a group or an array: remove one of them, or pass --delete")
        }
        (ScannedEntry::Directory(_), TreePlace::Chunk(..)) if !is_directory => {
            match tree.attributes(tree.table().inode(place)).await {
                Ok(_) => Some("it is a directory where the branch has a chunk: remove one of them, or pass --delete"),
                Err(error) if error.kind() == ErrorKind::NotFound => None,
                Err(error) => return Err(error),
            }
        }
        _ => None,
    })
}

/// Adds whiteouts for what the snapshot has in the directory `place` and `entries` do not.
async fn hide_rest(tree: &Tree, place: &TreePlace, entries: &mut BTreeMap<Name, FrozenEntry>) -> Result<()> {
    let mut missing = Vec::new();
    let mut look = |entry: Entry<'_>| {
        let is_dots = entry.attributes.kind == Kind::Directory && is_dots(entry.name.as_bytes());
        let name = Name::new(entry.name.as_bytes());
        if !is_dots && !entries.contains_key(&name) {
            missing.push(name);
        }
        true
    };
    tree.list(tree.table().inode(place), 0, Extent::All, &mut look).await?;
    entries.extend(missing.into_iter().map(|name| (name, FrozenEntry::Whiteout)));
    Ok(())
}

#[async_trait]
impl Contents for Scanned {
    fn changed(&self, data: DataFileId) -> Result<Option<ChunkFile>> {
        // A directory name that is not UTF-8 is itself a violation, so that chunks below it need no
        // file.
        let Some((ScannedFile::File(path, length), root)) = self.file(data).zip(self.root.as_ref()) else {
            return Ok(None);
        };
        let length = *length;
        Ok(std::str::from_utf8(path).ok().map(|path| ChunkFile {
            directory: Arc::clone(root),
            name: path.to_owned(),
            length,
            can_link: false,
        }))
    }

    fn made(&self, data: DataFileId) -> Option<Arc<dyn MadeChunk>> {
        match self.file(data)? {
            ScannedFile::Chunk(made) => Some(Arc::clone(made)),
            _ => None,
        }
    }

    async fn whole(&self, file: &FrozenFile, limit: u64) -> Result<Bytes> {
        let number = match &file.source {
            Source::Data(data) => *data,
            Source::Stored(Stored(ChunkPayload::Inline(document))) => return Ok(document.clone()),
            Source::Stored(_) | Source::Lower => return Ok(Bytes::new()),
        };
        let root = self.root.clone();
        let path = self.path(number).to_vec();
        blocking(move || read_below(root.as_deref(), &path, limit)).await
    }
}

/// Reads the file at `path` below `root`, of at most `limit` bytes.
fn read_below(root: Option<&OwnedFd>, path: &[u8], limit: u64) -> Result<Bytes> {
    use std::io::Read;
    let root = root.ok_or_else(|| Error::invalid("a file of no directory"))?;
    let failed = |e: std::io::Error| Error::io(printable::text(path), e);
    let file = open_beneath(root, path, OFlags::NONBLOCK).map_err(|e| failed(e.into()))?;
    let file = File::from(file);
    let size = file.metadata().map_err(failed)?.len();
    let name = || printable::text(path);
    if size > limit {
        return Err(Error::new(ErrorKind::OutOfMemory, format!("{}: more than {limit} bytes", name())));
    }
    let reservation = memory::reserve_blocking(size, &name().to_string())?;
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or_default());
    file.take(size).read_to_end(&mut bytes).map_err(failed)?;
    Ok(memory::with_reservation(bytes.into(), reservation))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn a_directory_exchanged_for_a_link_after_the_listing_is_not_followed() {
        let place = tempfile::tempdir().unwrap();
        let source = place.path().join("source");
        let foreign = place.path().join("foreign");
        for (folder, text) in [(&source, "own"), (&foreign, "not")] {
            std::fs::create_dir_all(folder.join("a/b")).unwrap();
            std::fs::write(folder.join("a/b/zarr.json"), text).unwrap();
        }
        let scanned = scan(Arc::new(File::open(&source).unwrap().into()), 1, &Counters::default()).unwrap();
        let file = FrozenFile { id: EntryId(1), lower: None, source: Source::Data(DataFileId(0)) };
        assert_eq!(scanned.whole(&file, 100).await.unwrap(), "own");
        std::fs::rename(source.join("a"), source.join("old")).unwrap();
        for target in [foreign.join("a"), "old".into()] {
            std::os::unix::fs::symlink(target, source.join("a")).unwrap();
            assert!(scanned.whole(&file, 100).await.is_err());
            assert!(scanned.changed(DataFileId(0)).unwrap().unwrap().open().is_err());
            std::fs::remove_file(source.join("a")).unwrap();
        }
        std::fs::rename(source.join("old"), source.join("a")).unwrap();
        assert_eq!(scanned.whole(&file, 100).await.unwrap(), "own");
    }
}
