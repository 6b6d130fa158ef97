//! Programs on a mount whose kernel keeps nothing: each path is looked up again, and each byte
//! comes from the working tree. What they must see, the tests say themselves.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;

use super::Lab;
use super::kernel::name;
use super::mount::ARRAY;
use crate::operations::{CommitOptions, Committed, Session};
use crate::overlay::attributes::Attributes;
use crate::overlay::handles::OpenOptions;
use crate::overlay::listing::{Listed, Listing};
use crate::overlay::namespace::{CreateAttrs, RenameMode};
use crate::overlay::opens::HandleKind;
use crate::overlay::set_attributes::SetAttrs;
use crate::overlay::{Ino, WorkingTree};
use crate::scratch::record::Name;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_tree::tree::directory::Extent;

pub(crate) const READ: OpenOptions =
    OpenOptions { write: false, truncate: false, unless_executed: false, execute: false, passthrough: false };
pub(crate) const WRITE: OpenOptions = OpenOptions { write: true, ..READ };
pub(crate) const TRUNCATE: OpenOptions = OpenOptions { truncate: true, ..WRITE };

/// Chunks that the array `/a` of [`Programs::with_arrays`] has.
pub(crate) const CHUNKS: [(&str, &str); 3] = [("a/c/0", "zero zero"), ("a/c/1", "one"), ("a/c/7", "seven")];

/// Programs on a mount of branch `main`.
pub(crate) struct Programs {
    pub(crate) session: Session,
    name: String,
    /// Lookups of each number that the kernel has not forgotten.
    lookups: Mutex<BTreeMap<Ino, u64>>,
}

/// Descriptor of an open file.
#[derive(Debug)]
pub(crate) struct Descriptor {
    pub(crate) number: Ino,
    kind: HandleKind,
}

/// Returns the kind of error of something that has to fail.
pub(crate) fn refused<T>(done: Result<T>) -> ErrorKind {
    match done {
        Ok(_) => panic!("it was not refused"),
        Err(error) => error.kind(),
    }
}

impl Programs {
    /// Mounts the branch with scratch directory `name`.
    pub(crate) async fn new(lab: &Lab, name: &str) -> Self {
        Programs { session: lab.session(name).await, name: name.to_owned(), lookups: Mutex::default() }
    }

    /// Mounts a new repository that has arrays `/a`, with [`CHUNKS`], and `/m`, with chunk 0.
    pub(crate) async fn with_arrays(lab: &Lab) -> Self {
        let programs = Programs::new(lab, "first").await;
        programs.make_array("a").await;
        programs.make_array("m").await;
        for (path, text) in CHUNKS {
            programs.put(path, text).await;
        }
        programs.put("m/c/0", "em").await;
        programs.commit().await;
        programs
    }

    /// Mounts such a repository twice.
    pub(crate) async fn two(lab: &Lab) -> [Self; 2] {
        [Programs::with_arrays(lab).await, Programs::new(lab, "second").await]
    }

    /// Creates an array without chunks.
    pub(crate) async fn make_array(&self, path: &str) {
        self.make_directory(path).await.unwrap();
        self.make_directory(&format!("{path}/c")).await.unwrap();
        self.put(&format!("{path}/zarr.json"), ARRAY).await;
    }

    /// The daemon is killed, and the branch mounted again.
    pub(crate) async fn restart(self, lab: &Lab) -> Self {
        let Programs { session, name, .. } = self;
        drop(session);
        Programs::new(lab, &name).await
    }

    pub(crate) fn working(&self) -> &WorkingTree {
        self.session.working()
    }

    pub(crate) async fn commit(&self) -> Committed {
        self.session.commit(CommitOptions::default()).await.unwrap()
    }

    /// Looks a name up; returns its attributes if it is there.
    pub(crate) async fn look(&self, parent: Ino, name: &Name) -> Result<Option<Attributes>> {
        let found = self.working().namespace().lookup(parent, name).await?;
        if let Some(found) = &found {
            *self.lookups.lock().entry(found.number).or_default() += 1;
        }
        Ok(found)
    }

    pub(crate) async fn stat(&self, path: &str) -> Result<Attributes> {
        let mut found = self.working().upper().attributes(Ino::ROOT).await?;
        for text in path.split('/').filter(|text| !text.is_empty()) {
            let missing = || Error::new(ErrorKind::NotFound, format!("{path}: there is no {text}"));
            found = self.look(found.number, &name(text)).await?.ok_or_else(missing)?;
        }
        Ok(found)
    }

    pub(crate) async fn number(&self, path: &str) -> Result<Ino> {
        Ok(self.stat(path).await?.number)
    }

    /// Returns the directory of `path`, and the last name.
    async fn parent(&self, path: &str) -> Result<(Ino, Name)> {
        let (above, last) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.number(above).await?, name(last)))
    }

    pub(crate) async fn is_there(&self, path: &str) -> bool {
        match self.stat(path).await {
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            found => found.map(|_| true).unwrap(),
        }
    }

    pub(crate) async fn open(&self, path: &str, options: OpenOptions) -> Result<Descriptor> {
        self.open_number(self.number(path).await?, options).await
    }

    pub(crate) async fn open_number(&self, number: Ino, options: OpenOptions) -> Result<Descriptor> {
        let opened = self.working().handles().open_file(number, options).await?;
        let backed = opened.backing.is_some();
        Ok(Descriptor { number, kind: HandleKind { writes: options.write, backed, executes: options.execute } })
    }

    pub(crate) async fn close(&self, descriptor: Descriptor) {
        self.working().handles().release(descriptor.number, descriptor.kind).await.unwrap();
    }

    /// Creates a file, which is open for writing then.
    pub(crate) async fn create(&self, path: &str) -> Result<Descriptor> {
        let number = self.make(path, libc::S_IFREG | 0o644, None, true).await?;
        Ok(Descriptor { number, kind: HandleKind { writes: true, ..HandleKind::default() } })
    }

    pub(crate) async fn make_directory(&self, path: &str) -> Result<Ino> {
        self.make(path, libc::S_IFDIR | 0o755, None, false).await
    }

    pub(crate) async fn make_symlink(&self, path: &str, target: &str) -> Result<Ino> {
        self.make(path, libc::S_IFLNK | 0o777, Some(name(target)), false).await
    }

    pub(crate) async fn make(&self, path: &str, mode: u32, target: Option<Name>, open: bool) -> Result<Ino> {
        let (parent, last) = self.parent(path).await?;
        let new = CreateAttrs { mode, uid: 7, gid: 8, rdev: 0, target, without_data: false };
        let created = self.working().namespace().create(parent, last, new, open).await?;
        *self.lookups.lock().entry(created.number).or_default() += 1;
        Ok(created.number)
    }

    pub(crate) async fn write(&self, descriptor: &Descriptor, at: u64, text: &str) {
        self.working().contents().write(descriptor.number, at, text.as_bytes()).await.unwrap();
    }

    /// Reads all of an open file.
    pub(crate) async fn read(&self, descriptor: &Descriptor) -> String {
        self.bytes_of(descriptor.number).await.unwrap()
    }

    async fn bytes_of(&self, number: Ino) -> Result<String> {
        let size = self.working().upper().attributes(number).await?.size;
        let bytes = self.working().contents().read(number, 0, 1 << 20).await?.to_vec();
        assert_eq!(bytes.len() as u64, size, "the size is the number of bytes");
        Ok(String::from_utf8(bytes).unwrap())
    }

    /// Returns the bytes of the file at `path`.
    pub(crate) async fn get(&self, path: &str) -> String {
        let opened = self.open(path, READ).await.unwrap_or_else(|error| panic!("{path}: {error}"));
        let bytes = self.read(&opened).await;
        self.close(opened).await;
        bytes
    }

    /// Writes all of the file at `path`, which is made if it is not there.
    pub(crate) async fn put(&self, path: &str, text: &str) {
        let is_there = self.is_there(path).await;
        let opened = if is_there { self.open(path, TRUNCATE).await } else { self.create(path).await };
        let opened = opened.unwrap();
        self.write(&opened, 0, text).await;
        self.close(opened).await;
    }

    /// Writes a part of the file at `path`.
    pub(crate) async fn patch(&self, path: &str, at: u64, text: &str) {
        let opened = self.open(path, WRITE).await.unwrap();
        self.write(&opened, at, text).await;
        self.close(opened).await;
    }

    pub(crate) async fn set(&self, path: &str, settings: SetAttrs) -> Attributes {
        let number = self.number(path).await.unwrap();
        self.working().contents().set_attributes(number, settings).await.unwrap()
    }

    pub(crate) async fn truncate(&self, path: &str, size: u64) {
        self.set(path, SetAttrs { size: Some(size), ..SetAttrs::default() }).await;
    }

    pub(crate) async fn link(&self, from: &str, to: &str) -> Result<()> {
        let number = self.number(from).await?;
        let (parent, last) = self.parent(to).await?;
        let linked = self.working().namespace().link(number, parent, last).await?;
        *self.lookups.lock().entry(linked.number).or_default() += 1;
        Ok(())
    }

    pub(crate) async fn unlink(&self, path: &str) -> Result<()> {
        let (parent, last) = self.parent(path).await?;
        self.working().namespace().remove(parent, last, false).await
    }

    pub(crate) async fn remove_directory(&self, path: &str) -> Result<()> {
        let (parent, last) = self.parent(path).await?;
        self.working().namespace().remove(parent, last, true).await
    }

    /// Removes a directory with everything below it.
    pub(crate) async fn remove_all(&self, path: &str) {
        let below: Vec<String> = self.tree_below(path).await.into_keys().rev().collect();
        for path in below {
            match path.strip_suffix('/') {
                Some(directory) => self.remove_directory(directory).await.unwrap(),
                None => self.unlink(&path).await.unwrap(),
            }
        }
        self.remove_directory(path).await.unwrap();
    }

    pub(crate) async fn rename(&self, from: &str, to: &str, how: RenameMode) -> Result<()> {
        let (parent, old) = self.parent(from).await?;
        let (new_parent, new) = self.parent(to).await?;
        // As a kernel does, which knows what it renames.
        self.look(parent, &old).await?;
        self.look(new_parent, &new).await?;
        self.working().namespace().rename(parent, old, new_parent, new, how).await
    }

    /// Renames, in place of what has the new name.
    pub(crate) async fn mv(&self, from: &str, to: &str) {
        self.rename(from, to, RenameMode::Replace).await.unwrap();
    }

    /// Returns up to `most` entries of directory `number` behind `offset`, with their offsets.
    pub(crate) async fn list_page(
        &self,
        number: Ino,
        offset: u64,
        listing: &Listing,
        most: usize,
    ) -> Vec<(String, u64)> {
        let mut found = Vec::new();
        let mut sink = |entry: Listed<'_>| {
            let takes = found.len() < most;
            if takes {
                found.push((String::from_utf8_lossy(entry.name).into_owned(), entry.offset));
            }
            takes
        };
        self.working().namespace().list(number, offset, listing, Extent::All, &mut sink).await.unwrap();
        found
    }

    /// Returns the names in the directory at `path`.
    pub(crate) async fn list(&self, path: &str) -> Vec<String> {
        let number = self.number(path).await.unwrap();
        let listing = self.working().namespace().begin_listing();
        let mut names: Vec<String> =
            self.list_page(number, 0, &listing, usize::MAX).await.into_iter().map(|(name, _)| name).collect();
        names.retain(|name| name != "." && name != "..");
        names.sort();
        names
    }

    /// Returns everything that the mount shows: directories, with a slash at the end, files with
    /// their bytes, and symbolic links with their targets.
    pub(crate) async fn tree(&self) -> BTreeMap<String, String> {
        self.tree_below("").await
    }

    pub(crate) async fn tree_below(&self, path: &str) -> BTreeMap<String, String> {
        let mut tree = BTreeMap::new();
        let mut pending = vec![path.to_owned()];
        while let Some(directory) = pending.pop() {
            for name in self.list(&directory).await {
                let path = if directory.is_empty() { name } else { format!("{directory}/{name}") };
                let found = self.stat(&path).await.unwrap_or_else(|error| panic!("{path} is listed: {error}"));
                match found.kind {
                    libc::S_IFDIR => {
                        tree.insert(format!("{path}/"), String::new());
                        pending.push(path);
                    }
                    libc::S_IFLNK => {
                        let target = self.working().namespace().read_link(found.number).unwrap();
                        tree.insert(path, format!("-> {target}"));
                    }
                    libc::S_IFREG => {
                        let bytes = self.get(&path).await;
                        tree.insert(path, bytes);
                    }
                    kind => drop(tree.insert(path, format!("kind {kind:o}"))),
                }
            }
        }
        tree
    }

    /// The kernel forgets all that it knows.
    pub(crate) fn forget_all(&self) {
        for (number, count) in std::mem::take(&mut *self.lookups.lock()) {
            self.working().namespace().forget(number, count);
        }
    }

    /// Checks that the scratch directory has `expected` data files, once those that nobody needs
    /// have been unlinked: a commit and the upkeep of the journal do so in the background.
    pub(crate) async fn check_data_files(&self, expected: usize, why: &str) {
        let mut found = 0;
        for _ in 0..500 {
            self.working().contents().sync(None).await.unwrap();
            found = self.working().upper().files().list().unwrap().len();
            if found == expected {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(found, expected, "data files: {why}");
    }
}

/// Returns what a mount shows that has nothing but the repository.
pub(crate) async fn committed(lab: &Lab, scratch: &str) -> BTreeMap<String, String> {
    Programs::new(lab, scratch).await.tree().await
}
