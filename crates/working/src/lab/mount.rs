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
    branch: Branch,
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
}

/// File that a program is about to open.
pub(crate) struct FoundFile {
    number: Ino,
    path: String,
    /// Position of what it showed then in the past of the path.
    since: usize,
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
        let shown = BTreeMap::new();
        let changed = BTreeSet::new();
        let past = BTreeMap::new();
        let mut mount = Mount { session, kernel, branch, shown, changed, past };
        mount.adopt();
        mount
    }

    /// Notes what `path` shows now.
    fn note(&mut self, path: &str) {
        let past = self.past.entry(path.to_owned()).or_default();
        past.push(self.shown.get(path).map(|file| file.borrow().clone()));
    }

    /// Mounts a new repository that has array `/a` with `chunks`.
    pub(crate) async fn with_array(lab: &Lab, name: &str, branch: &Branch, chunks: &[(&str, &[u8])]) -> Self {
        let mut mount = Mount::new(lab, name, branch).await;
        for directory in ["a", "a/c"] {
            mount.kernel.create(directory, libc::S_IFDIR | 0o755).await.unwrap();
        }
        mount.write("a/zarr.json", ARRAY.as_bytes()).await;
        for (chunk, bytes) in chunks {
            mount.write(&format!("a/c/{chunk}"), bytes).await;
        }
        mount.commit().await;
        mount
    }

    /// Takes over the files of the branch, but for those that are changed here. A file whose bytes
    /// are the same stays the same file.
    fn adopt(&mut self) {
        let branch = self.branch.borrow();
        let gone = |path: &String| !self.changed.contains(path) && !branch.contains_key(path);
        for (path, _) in self.shown.extract_if(.., |path, _| gone(path)) {
            self.past.entry(path).or_default().push(None);
        }
        for (path, bytes) in branch.iter().filter(|(path, _)| !self.changed.contains(*path)) {
            let is_same = self.shown.get(path).is_some_and(|file| *file.borrow() == *bytes);
            if !is_same {
                self.shown.insert(path.clone(), Rc::new(RefCell::new(bytes.clone())));
                self.past.entry(path.clone()).or_default().push(Some(bytes.clone()));
            }
        }
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

    /// Commits. Shows all of the branch then, if there was anything to commit.
    pub(crate) async fn commit(&mut self) {
        let committed = self.session.commit(CommitOptions::default()).await.unwrap();
        if committed.snapshot.is_none() {
            self.changed.clear();
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
        Some(Opened { handle, file: Rc::clone(&self.shown[path]), path: path.to_owned() })
    }

    /// Finds a file, to open it later by what the kernel has found.
    pub(crate) async fn find(&self, path: &str) -> Option<FoundFile> {
        let number = unless_busy(path, self.kernel.find(path).await)?;
        let since = self.past[path].len() - 1;
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
        match self.kernel.read(&opened).await {
            // Opened a moment too late to be told so.
            Err(error) if error.kind() == ErrorKind::NotFound => assert!(self.past[&path][since..].contains(&None)),
            read => assert!(self.past[&path][since..].contains(&Some(read.unwrap())), "{path} ({number})"),
        }
        self.kernel.close(opened).await.unwrap();
    }

    /// Checks one page of an open file, as a program reads it.
    pub(crate) async fn check_page(&self, opened: &Opened, at: usize) {
        let read = self.kernel.read_page(&opened.handle, at).await.unwrap();
        let file = opened.file.borrow();
        let from = (at * super::kernel::PAGE).min(file.len());
        let to = (from + super::kernel::PAGE).min(file.len());
        assert_eq!(read, file[from..to], "page {at} of {} ({})", opened.path, opened.handle.number);
    }

    /// Checks all bytes of an open file.
    pub(crate) async fn check(&self, opened: &Opened) {
        let read = self.kernel.read(&opened.handle).await.unwrap();
        assert_eq!(read, *opened.file.borrow(), "{} ({})", opened.path, opened.handle.number);
    }

    pub(crate) async fn close(&self, opened: Opened) {
        self.kernel.close(opened.handle).await.unwrap();
    }

    /// Checks names, lengths and bytes of all files.
    pub(crate) async fn check_all(&self) {
        let mut listed = Vec::new();
        for directory in ["a", "a/c"] {
            let names = self.kernel.list(directory).await.unwrap();
            listed.extend(names.into_iter().filter(|name| name != "c").map(|name| format!("{directory}/{name}")));
        }
        listed.sort();
        let below: Vec<String> = self.paths().into_iter().filter(|path| path.starts_with("a/")).collect();
        assert_eq!(listed, below);
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
