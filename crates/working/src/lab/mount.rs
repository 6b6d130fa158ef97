//! A mount with the files that it must show: the promise, kept apart from what is tested.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use super::Lab;
use super::kernel::{Handle, Kernel};
use crate::operations::{CommitOptions, Session};
use crate::overlay::Ino;
use crate::overlay::handles::OpenOptions;
use icechunkfs_base::error::{ErrorKind, Result};

/// Bytes of one file. A handle has the file, whatever becomes of its name.
type File = Rc<RefCell<Vec<u8>>>;

/// Files of a branch, as they were committed.
pub(crate) type Branch = Rc<RefCell<BTreeMap<String, Vec<u8>>>>;

/// Array of eight chunks.
pub(crate) const ARRAY: &str = r#"{"zarr_format":3,"node_type":"array","shape":[8],"data_type":"uint8","chunk_grid":{"name":"regular","configuration":{"chunk_shape":[1]}},"chunk_key_encoding":{"name":"default","configuration":{"separator":"/"}},"fill_value":0,"codecs":[{"name":"bytes"}]}"#;

/// Mount of branch `main`.
pub(crate) struct Mount {
    pub(crate) session: Session,
    pub(crate) kernel: Arc<Kernel>,
    name: String,
    branch: Branch,
    /// Files of the snapshot that the mount is on.
    base: BTreeMap<String, Vec<u8>>,
    shown: BTreeMap<String, File>,
    changed: BTreeSet<String>,
    /// All that each path has shown, in order: nothing, or the bytes of a file.
    past: BTreeMap<String, Vec<Option<Vec<u8>>>>,
}

/// Open file, with the bytes that it must show.
pub(crate) struct Opened {
    handle: Handle,
    file: File,
    path: String,
    /// Bytes that the file had when the tree moved: a name may have got another inode then.
    at_moves: Vec<Vec<u8>>,
}

impl Opened {
    /// The tree moves.
    pub(crate) fn on_move(&mut self) {
        self.at_moves.push(self.file.borrow().clone());
    }
}

/// File that a program is about to open.
pub(crate) struct FoundFile {
    number: Ino,
    path: String,
    /// Lengths of the pasts of all paths then.
    since: BTreeMap<String, usize>,
}

const READ: OpenOptions =
    OpenOptions { write: false, truncate: false, unless_executed: false, execute: false, passthrough: false };

impl Mount {
    /// Mounts the branch, whose files are those of `branch`.
    pub(crate) async fn new(lab: &Lab, name: &str, branch: &Branch) -> Self {
        let session = lab.session(name).await;
        let kernel = Arc::new(Kernel::new(session.working()));
        session.attach(Arc::clone(&kernel) as Arc<_>);
        let branch = Rc::clone(branch);
        let name = name.to_owned();
        let base = BTreeMap::new();
        let shown = BTreeMap::new();
        let changed = BTreeSet::new();
        let past = BTreeMap::new();
        let mut mount = Mount { session, kernel, name, branch, base, shown, changed, past };
        mount.adopt();
        mount
    }

    /// Notes what `path` shows now.
    fn note(&mut self, path: &str) {
        let past = self.past.entry(path.to_owned()).or_default();
        past.push(self.shown.get(path).map(|file| file.borrow().clone()));
    }

    /// Mounts a new repository that has arrays `/a` and `/m` with `chunks`.
    pub(crate) async fn with_arrays(lab: &Lab, name: &str, branch: &Branch, chunks: &[(&str, &[u8])]) -> Self {
        let mut mount = Mount::new(lab, name, branch).await;
        for array in ["a", "m"] {
            for directory in [array.to_owned(), format!("{array}/c")] {
                mount.kernel.create(&directory, libc::S_IFDIR | 0o755).await.unwrap();
            }
            mount.write(&format!("{array}/zarr.json"), ARRAY.as_bytes()).await;
            for (chunk, bytes) in chunks {
                mount.write(&format!("{array}/c/{chunk}"), bytes).await;
            }
        }
        mount.commit().await;
        mount
    }

    /// Renames the directory of an array.
    pub(crate) async fn rename(&mut self, from: &str, to: &str) {
        self.kernel.rename(from, to).await.unwrap();
        let below = format!("{from}/");
        for (path, file) in self.shown.extract_if(.., |path, _| path.starts_with(&below)).collect::<Vec<_>>() {
            let new = format!("{to}/{}", &path[below.len()..]);
            self.note(&path);
            self.shown.insert(new.clone(), file);
            self.note(&new);
            self.changed.extend([path, new]);
        }
    }

    /// Takes over the files of the branch, but for those that are changed here.
    fn adopt(&mut self) {
        self.base = self.branch.borrow().clone();
        self.show_base();
    }

    /// Shows the files of the base, but for those that are changed here. A file whose bytes are the
    /// same stays the same file.
    fn show_base(&mut self) {
        let gone = |path: &String| !self.changed.contains(path) && !self.base.contains_key(path);
        for (path, _) in self.shown.extract_if(.., |path, _| gone(path)) {
            self.past.entry(path).or_default().push(None);
        }
        for (path, bytes) in self.base.iter().filter(|(path, _)| !self.changed.contains(*path)) {
            let is_same = self.shown.get(path).is_some_and(|file| *file.borrow() == *bytes);
            if !is_same {
                self.shown.insert(path.clone(), Rc::new(RefCell::new(bytes.clone())));
                self.past.entry(path.clone()).or_default().push(Some(bytes.clone()));
            }
        }
    }

    /// Discards the changes of one file, or of all.
    pub(crate) async fn discard(&mut self, path: Option<&str>) {
        match path {
            Some(path) if self.changed.remove(path) => {
                let discarded = self.session.discard(&format!("/{path}")).await;
                let is_known = self.base.contains_key(path) || self.shown.contains_key(path);
                assert_eq!(discarded.is_ok(), is_known, "{path}: {discarded:?}");
            }
            Some(_) => return,
            None => {
                self.session.discard("").await.unwrap();
                self.changed.clear();
            }
        }
        self.show_base();
    }

    /// The daemon is killed, and the branch mounted again.
    pub(crate) async fn restart(self, lab: &Lab) -> Self {
        let Mount { session, kernel, name, branch, base, shown, changed, .. } = self;
        let before = session.working().upper().base().id();
        drop((session, kernel));
        let session = lab.session(&name).await;
        let kernel = Arc::new(Kernel::new(session.working()));
        session.attach(Arc::clone(&kernel) as Arc<_>);
        let past = shown.iter().map(|(path, file)| (path.clone(), vec![Some(file.borrow().clone())])).collect();
        let mut mount = Mount { session, kernel, name, branch, base, shown, changed, past };
        if mount.session.working().upper().base().id() != before {
            mount.adopt();
        }
        mount
    }

    /// Returns the paths of all files.
    pub(crate) fn paths(&self) -> Vec<String> {
        self.shown.keys().cloned().collect()
    }

    /// Writes a whole file in its place.
    pub(crate) async fn write(&mut self, path: &str, bytes: &[u8]) -> bool {
        let opened = if self.shown.contains_key(path) {
            self.kernel.open(path, OpenOptions { write: true, truncate: true, ..READ }).await
        } else {
            self.kernel.create(path, libc::S_IFREG | 0o644).await
        };
        let Some(handle) = unless_busy(path, opened) else { return false };
        self.kernel.write(&handle, 0, bytes).await.unwrap();
        self.kernel.close(handle).await.unwrap();
        *self.shown.entry(path.to_owned()).or_default().borrow_mut() = bytes.to_vec();
        self.note(path);
        self.changed.insert(path.to_owned());
        true
    }

    /// Overwrites a part of a file.
    pub(crate) async fn patch(&mut self, path: &str, offset: usize, bytes: &[u8]) -> bool {
        let opened = self.kernel.open(path, OpenOptions { write: true, ..READ }).await;
        let Some(handle) = unless_busy(path, opened) else { return false };
        self.kernel.write(&handle, offset, bytes).await.unwrap();
        self.kernel.close(handle).await.unwrap();
        let mut file = self.shown[path].borrow_mut();
        let length = file.len().max(offset + bytes.len());
        file.resize(length, 0);
        file[offset..offset + bytes.len()].copy_from_slice(bytes);
        drop(file);
        self.note(path);
        self.changed.insert(path.to_owned());
        true
    }

    /// Replaces a file by a new one that is renamed over it.
    pub(crate) async fn replace(&mut self, path: &str, bytes: &[u8]) {
        let temporary = format!("{path}.partial");
        let handle = self.kernel.create(&temporary, libc::S_IFREG | 0o644).await.unwrap();
        self.kernel.write(&handle, 0, bytes).await.unwrap();
        self.kernel.close(handle).await.unwrap();
        self.kernel.rename(&temporary, path).await.unwrap();
        self.shown.insert(path.to_owned(), Rc::new(RefCell::new(bytes.to_vec())));
        self.note(path);
        self.changed.insert(path.to_owned());
    }

    /// Removes a file.
    pub(crate) async fn remove(&mut self, path: &str) {
        self.kernel.remove(path).await.unwrap();
        self.shown.remove(path);
        self.note(path);
        self.changed.insert(path.to_owned());
    }

    /// Commits. Shows all of the branch then, if there was anything to commit, or if that turned
    /// out to be nothing only after what others had committed was taken over.
    pub(crate) async fn commit(&mut self) {
        let committed = self.session.commit(CommitOptions::default()).await.unwrap();
        if committed.snapshot.is_none() {
            self.changed.clear();
            if !committed.rebased_over.is_empty() {
                self.adopt();
            }
            return;
        }
        let mut branch = self.branch.borrow_mut();
        for path in std::mem::take(&mut self.changed) {
            match self.shown.get(&path) {
                Some(file) => drop(branch.insert(path, file.borrow().clone())),
                None => drop(branch.remove(&path)),
            }
        }
        drop(branch);
        self.adopt();
    }

    /// Takes over what others have committed.
    pub(crate) async fn refresh(&mut self) {
        self.session.refresh().await.unwrap();
        self.adopt();
    }

    /// Opens a file to read it; none if that is refused since a program has another one open.
    pub(crate) async fn open(&self, path: &str) -> Option<Opened> {
        let handle = unless_busy(path, self.kernel.open(path, READ).await)?;
        Some(Opened { handle, file: Rc::clone(&self.shown[path]), path: path.to_owned(), at_moves: Vec::new() })
    }

    /// Finds a file, to open it later by what the kernel has found.
    pub(crate) async fn find(&self, path: &str) -> Option<FoundFile> {
        let number = unless_busy(path, self.kernel.find(path).await)?;
        let since = self.past.iter().map(|(path, past)| (path.clone(), past.len())).collect();
        Some(FoundFile { number, since, path: path.to_owned() })
    }

    /// Opens a file that was found before. Either the kernel is told to look the name up again, or
    /// it gets all of one of the files that had the name since, and no mixture.
    pub(crate) async fn check_found(&self, found: FoundFile) {
        let FoundFile { number, path, since } = found;
        let opened = match self.kernel.open_found(number, READ).await {
            Err(error) if matches!(error.kind(), ErrorKind::Stale | ErrorKind::Busy) => return,
            opened => opened.unwrap(),
        };
        // The file may have moved with its array. A path shows the newest of what it has shown
        // before, too.
        let (_, chunk) = path.split_once('/').unwrap();
        let is_same = |other: &&String| other.split_once('/').is_some_and(|(_, other)| other == chunk);
        let from = |path: &String| since.get(path).map_or(0, |length| length - 1);
        let mut past = self.past.keys().filter(is_same).flat_map(|path| &self.past[path][from(path)..]);
        match self.kernel.read(&opened).await {
            // Opened a moment too late to be told so.
            Err(error) if error.kind() == ErrorKind::NotFound => assert!(past.any(Option::is_none)),
            read => {
                let read = Some(read.unwrap());
                assert!(past.any(|bytes| *bytes == read), "{path} ({number}): {read:?}");
            }
        }
        self.kernel.close(opened).await.unwrap();
    }

    /// Returns the bytes of which an open file may have any: those of the file, and where that has
    /// another inode by now, those at a move since.
    async fn allowed(&self, opened: &Opened) -> Vec<Vec<u8>> {
        let mut allowed = vec![opened.file.borrow().clone()];
        let is_named = self.kernel.number_of(&opened.path).await == Some(opened.handle.number);
        if !is_named || !self.is_shown(opened) {
            allowed.extend(opened.at_moves.iter().cloned());
        }
        allowed
    }

    fn is_shown(&self, opened: &Opened) -> bool {
        self.shown.get(&opened.path).is_some_and(|shown| Rc::ptr_eq(shown, &opened.file))
    }

    /// Checks one page of an open file, as a program reads it.
    pub(crate) async fn check_page(&self, opened: &Opened, at: usize) {
        let read = self.kernel.read_page(&opened.handle, at).await.unwrap();
        let page = |bytes: &Vec<u8>| {
            let from = (at * super::kernel::PAGE).min(bytes.len());
            bytes[from..(from + super::kernel::PAGE).min(bytes.len())].to_vec()
        };
        let allowed: Vec<Vec<u8>> = self.allowed(opened).await.iter().map(page).collect();
        assert!(allowed.contains(&read), "page {at} of {} ({}): {read:?}", opened.path, opened.handle.number);
    }

    /// Checks all bytes of an open file.
    pub(crate) async fn check(&self, opened: &Opened) {
        let read = self.kernel.read(&opened.handle).await.unwrap();
        let allowed = self.allowed(opened).await;
        assert!(allowed.contains(&read), "{} ({}): {read:?}, not {allowed:?}", opened.path, opened.handle.number);
    }

    pub(crate) async fn close(&self, opened: Opened) {
        self.kernel.close(opened.handle).await.unwrap();
    }

    /// Checks names, lengths and bytes of all files.
    pub(crate) async fn check_all(&self) {
        let mut children: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for path in self.shown.keys() {
            let mut at = path.as_str();
            while let Some((above, name)) = at.rsplit_once('/') {
                children.entry(above).or_default().insert(name);
                at = above;
            }
        }
        for (directory, names) in children {
            let listed = self.kernel.list(directory).await.unwrap();
            assert_eq!(listed, names.into_iter().collect::<Vec<_>>(), "names in {directory}");
        }
        for (path, file) in &self.shown {
            if let Some(length) = unless_busy(path, self.kernel.stat(path).await) {
                assert_eq!(length, file.borrow().len() as u64, "length of {path}");
            }
            if let Some(opened) = self.open(path).await {
                self.check(&opened).await;
                self.close(opened).await;
            }
        }
    }
}

/// Returns what was done, and nothing if it was refused since a program has another file open by
/// the same number: that is all that may be refused.
fn unless_busy<T>(path: &str, done: Result<T>) -> Option<T> {
    match done {
        Err(error) if error.kind() == ErrorKind::Busy => None,
        done => Some(done.unwrap_or_else(|error| panic!("{path}: {error}"))),
    }
}
