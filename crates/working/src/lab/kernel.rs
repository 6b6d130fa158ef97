//! A model of what a kernel keeps of a mount: names, lengths and pages, each until it is told to
//! drop them. It evicts nothing by itself: what is kept longest is where stale bytes would show.
//!
//! Rules of FUSE that it follows (`fs/fuse`, Linux 6.18): a name is looked up once; a number that
//! a lookup brings with another length cuts or extends the file, and keeps its pages; an open that
//! fails with `ESTALE` walks the path again, once, with new lookups; pages stay from one open to
//! the next unless the reply says otherwise.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::operations::Invalidator;
use crate::overlay::handles::OpenOptions;
use crate::overlay::invalidation::Invalidation;
use crate::overlay::opens::HandleKind;
use crate::overlay::{Ino, WorkingTree};
use crate::scratch::record::Name;
use icechunkfs_base::error::{Error, ErrorKind, Result};

/// Bytes of a page: so few that files of a test have several.
pub(crate) const PAGE: usize = 4;

/// Model of the kernel's side of one mount.
pub(crate) struct Kernel {
    working: Arc<WorkingTree>,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    names: BTreeMap<(Ino, Name), Option<Ino>>,
    inodes: BTreeMap<Ino, Kernels>,
}

/// Inode as the kernel has it.
#[derive(Default)]
struct Kernels {
    /// None if the next use has to ask.
    length: Option<u64>,
    pages: BTreeMap<usize, Vec<u8>>,
    lookups: u64,
    handles: u32,
}

/// Open file of a program.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) number: Ino,
    writes: bool,
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(text.as_bytes())
}

/// Returns the directory of `path` and its last name.
fn split(path: &str) -> (Vec<&str>, &str) {
    let mut names: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
    let last = names.pop().unwrap();
    (names, last)
}

impl Kernel {
    pub(crate) fn new(working: &Arc<WorkingTree>) -> Self {
        Kernel { working: Arc::clone(working), kept: Mutex::default() }
    }

    /// Looks a name up, as far as it is not kept; with `anew` even then.
    async fn lookup(&self, parent: Ino, text: &str, anew: bool) -> Result<Option<Ino>> {
        let key = (parent, name(text));
        if !anew && let Some(kept) = self.kept.lock().names.get(&key) {
            return Ok(*kept);
        }
        let found = match self.working.namespace().lookup(parent, &key.1).await {
            Ok(found) => found,
            Err(error) => {
                self.kept.lock().names.remove(&key);
                return Err(error);
            }
        };
        let mut kept = self.kept.lock();
        if let Some(found) = &found {
            kept.learn(found.number, found.size);
            kept.inodes.entry(found.number).or_default().lookups += 1;
        }
        let number = found.map(|found| found.number);
        kept.names.insert(key, number);
        Ok(number)
    }

    /// Returns the number of the directory that `names` lead to.
    async fn directory(&self, names: &[&str], anew: bool) -> Result<Ino> {
        let mut at = Ino::ROOT;
        for text in names {
            at = self.lookup(at, text, anew).await?.ok_or_else(|| missing(text))?;
        }
        Ok(at)
    }

    async fn walk(&self, path: &str, anew: bool) -> Result<Ino> {
        let (directories, last) = split(path);
        let parent = self.directory(&directories, anew).await?;
        self.lookup(parent, last, anew).await?.ok_or_else(|| missing(path))
    }

    /// Opens the file at `path`.
    pub(crate) async fn open(&self, path: &str, options: OpenOptions) -> Result<Handle> {
        match self.try_open(path, options, false).await {
            Err(error) if error.kind() == ErrorKind::Stale => self.try_open(path, options, true).await,
            opened => opened,
        }
    }

    async fn try_open(&self, path: &str, options: OpenOptions, anew: bool) -> Result<Handle> {
        let number = self.walk(path, anew).await?;
        self.open_number(number, options).await
    }

    async fn open_number(&self, number: Ino, options: OpenOptions) -> Result<Handle> {
        let opened = self.working.handles().open_file(number, options).await?;
        let mut kept = self.kept.lock();
        let inode = kept.inodes.entry(number).or_default();
        inode.handles += 1;
        if opened.in_scratch || options.truncate {
            inode.pages.clear();
        }
        if options.truncate {
            inode.length = Some(0);
        }
        Ok(Handle { number, writes: options.write })
    }

    /// Finds the number of `path`, as a program does that has not opened it yet. The kernel keeps
    /// the inode until [`Kernel::open_found`].
    pub(crate) async fn find(&self, path: &str) -> Result<Ino> {
        let number = self.walk(path, false).await?;
        self.kept.lock().inodes.entry(number).or_default().handles += 1;
        Ok(number)
    }

    /// Returns the number of the file at `path`, if there is one.
    pub(crate) async fn number_of(&self, path: &str) -> Option<Ino> {
        self.walk(path, false).await.ok()
    }

    /// Opens a number that was found before.
    pub(crate) async fn open_found(&self, number: Ino, options: OpenOptions) -> Result<Handle> {
        let opened = self.open_number(number, options).await;
        if let Some(inode) = self.kept.lock().inodes.get_mut(&number) {
            inode.handles -= 1;
        }
        opened
    }

    pub(crate) async fn close(&self, handle: Handle) -> Result<()> {
        let kind = HandleKind { writes: handle.writes, ..HandleKind::default() };
        let closed = self.working.handles().release(handle.number, kind).await;
        if let Some(inode) = self.kept.lock().inodes.get_mut(&handle.number) {
            inode.handles -= 1;
        }
        // As the adapter does after each close.
        let outdated = self.working.moves().take_outdated().into_iter().map(Invalidation::Inode).collect();
        self.working.moves().for_kernel(outdated).iter().for_each(|one| self.invalidate(one));
        closed
    }

    async fn length(&self, number: Ino) -> Result<u64> {
        if let Some(length) = self.kept.lock().inodes.get(&number).and_then(|inode| inode.length) {
            return Ok(length);
        }
        let found = self.working.upper().attributes(number).await?;
        self.kept.lock().learn(number, found.size);
        Ok(found.size)
    }

    /// Returns the length of the file at `path`.
    pub(crate) async fn stat(&self, path: &str) -> Result<u64> {
        let number = match self.walk(path, false).await {
            Err(error) if error.kind() == ErrorKind::Stale => self.walk(path, true).await?,
            found => found?,
        };
        self.length(number).await
    }

    /// Reads page `at` of an open file.
    pub(crate) async fn read_page(&self, handle: &Handle, at: usize) -> Result<Vec<u8>> {
        let length = self.length(handle.number).await?;
        let from = at * PAGE;
        let wanted = usize::try_from(length).unwrap().saturating_sub(from).min(PAGE);
        let page = self.kept.lock().inodes.get(&handle.number).and_then(|inode| inode.pages.get(&at).cloned());
        let mut page = match page {
            Some(page) => page,
            None if wanted == 0 => Vec::new(),
            None => {
                let read = self
                    .working
                    .contents()
                    .read(handle.number, from as u64, u32::try_from(PAGE).unwrap())
                    .await?
                    .to_vec();
                if let Some(inode) = self.kept.lock().inodes.get_mut(&handle.number) {
                    inode.pages.insert(at, read.clone());
                }
                read
            }
        };
        // Behind the end that the kernel knows there is nothing, and up to it there are zeros.
        page.resize(wanted, 0);
        Ok(page)
    }

    /// Reads all of an open file.
    pub(crate) async fn read(&self, handle: &Handle) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        for at in 0.. {
            let page = self.read_page(handle, at).await?;
            bytes.extend_from_slice(&page);
            if page.len() < PAGE {
                break;
            }
        }
        Ok(bytes)
    }

    /// Writes `bytes` from `offset` on.
    pub(crate) async fn write(&self, handle: &Handle, offset: usize, bytes: &[u8]) -> Result<()> {
        let length = self.length(handle.number).await?;
        self.working.contents().write(handle.number, offset as u64, bytes).await?;
        let mut kept = self.kept.lock();
        let inode = kept.inodes.entry(handle.number).or_default();
        let end = offset + bytes.len();
        (offset / PAGE..=end / PAGE).for_each(|at| drop(inode.pages.remove(&at)));
        inode.length = Some(length.max(end as u64));
        Ok(())
    }

    /// Removes the file at `path`.
    pub(crate) async fn remove(&self, path: &str) -> Result<()> {
        let (directories, last) = split(path);
        let parent = self.directory(&directories, false).await?;
        self.working.namespace().remove(parent, name(last), false).await?;
        self.kept.lock().names.insert((parent, name(last)), None);
        Ok(())
    }

    /// Renames a file over another one in the same directory, or a directory to a free name there.
    pub(crate) async fn rename(&self, from: &str, to: &str) -> Result<()> {
        use crate::overlay::namespace::RenameMode;

        let number = self.walk(from, false).await?;
        let (directories, old) = split(from);
        let (_, new) = split(to);
        let parent = self.directory(&directories, false).await?;
        self.working.namespace().rename(parent, name(old), parent, name(new), RenameMode::Replace).await?;
        let mut kept = self.kept.lock();
        kept.names.insert((parent, name(old)), None);
        kept.names.insert((parent, name(new)), Some(number));
        Ok(())
    }

    /// Creates a file or, with the mode of one, a directory. A file is open for writing then.
    pub(crate) async fn create(&self, path: &str, mode: u32) -> Result<Handle> {
        use crate::overlay::namespace::CreateAttrs;

        let (directories, last) = split(path);
        let parent = self.directory(&directories, false).await?;
        let opens = mode & libc::S_IFMT == libc::S_IFREG;
        let new = CreateAttrs { mode, uid: 0, gid: 0, rdev: 0, target: None, without_data: false };
        let created = self.working.namespace().create(parent, name(last), new, opens).await?;
        let mut kept = self.kept.lock();
        kept.learn(created.number, created.size);
        let inode = kept.inodes.entry(created.number).or_default();
        inode.lookups += 1;
        inode.handles += u32::from(opens);
        kept.names.insert((parent, name(last)), Some(created.number));
        Ok(Handle { number: created.number, writes: true })
    }

    /// Returns the names in the directory at `path`, asked for anew.
    pub(crate) async fn list(&self, path: &str) -> Result<Vec<String>> {
        use icechunkfs_tree::tree::directory::Extent;

        let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
        let number = self.directory(&names, false).await?;
        let mut found = Vec::new();
        let mut sink = |entry: crate::overlay::listing::Listed<'_>| {
            found.push(String::from_utf8_lossy(entry.name).into_owned());
            true
        };
        let listing = self.working.namespace().begin_listing();
        self.working.namespace().list(number, 0, &listing, Extent::All, &mut sink).await?;
        found.retain(|name| name != "." && name != "..");
        found.sort();
        Ok(found)
    }

    /// Forgets all that no program has open, as under memory pressure.
    pub(crate) fn evict(&self) {
        let forgotten: Vec<(Ino, u64)> = {
            let mut kept = self.kept.lock();
            let open: Vec<Ino> =
                kept.inodes.iter().filter(|(_, inode)| inode.handles > 0).map(|(number, _)| *number).collect();
            kept.names.retain(|_, number| number.is_some_and(|number| open.contains(&number)));
            let gone = kept.inodes.extract_if(.., |number, _| !open.contains(number));
            gone.map(|(number, inode)| (number, inode.lookups)).collect()
        };
        for (number, lookups) in forgotten {
            self.working.namespace().forget(number, lookups);
        }
    }
}

impl Kept {
    /// A reply has told the length of a file.
    fn learn(&mut self, number: Ino, length: u64) {
        let inode = self.inodes.entry(number).or_default();
        if inode.length.is_some_and(|before| before != length) {
            // Bytes behind the new end are cut, and those before it stay.
            let length = usize::try_from(length).unwrap();
            inode.pages.retain(|at, _| at * PAGE < length);
            inode.pages.iter_mut().for_each(|(at, page)| page.truncate(length - at * PAGE));
        }
        inode.length = Some(length);
    }
}

impl Invalidator for Kernel {
    fn invalidate(&self, invalidation: &Invalidation) {
        let mut kept = self.kept.lock();
        match invalidation {
            Invalidation::Entry(parent, name) => drop(kept.names.remove(&(*parent, name.clone()))),
            Invalidation::Inode(number) => {
                if let Some(inode) = kept.inodes.get_mut(number) {
                    inode.pages.clear();
                    inode.length = None;
                }
            }
            Invalidation::Attributes(number) => {
                if let Some(inode) = kept.inodes.get_mut(number) {
                    inode.length = None;
                }
            }
        }
    }

    fn head_moved(&self) {}
}

fn missing(what: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no {what}"))
}
