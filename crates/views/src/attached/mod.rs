//! Attached trees: other snapshots of the repository, and other views, as directories within a
//! mount.
//!
//! | path | contents |
//! |---|---|
//! | `.icechunk/at/branch/NAME`, `tag/NAME`, `snapshot/ID`, `time/TIME` | the tree of that snapshot |
//! | `.icechunk/view/VIEW` | the snapshot that the mount shows, or is based on, in another view |
//! | `.icechunk/at/KIND/NAME/.icechunk/view/VIEW` | that snapshot in another view |
//! | other files of `.icechunk` | in a read-only mount: facts about it ([`crate::control_directory`]) |
//!
//! All are read-only and share the caches, the prefetch and the deadlines of the mount. `VIEW` is
//! the name of [`ViewOptions`]. [`refs`] knows what names mean, [`trees`] loads the trees, whose
//! files [`inodes`] numbers; [`directories`] are those above the trees.
//!
//! A tree never changes, so the kernel may cache what is in it forever. What a name means may
//! change: a branch moves, a tag is deleted, the mount gets another base. So names of trees are
//! valid for [`BRIEF`] only, and the tree of a branch that moved is another one, with other
//! numbers, while open files of the old one go on. When the mount itself moves, the kernel forgets
//! the names that mean another tree then ([`AttachedTrees::outdate_names`]) before the program that
//! moved it goes on.

mod directories;
mod listings;
mod mount_texts;
mod refs;
mod trees;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use self::directories::Directory;
use self::listings::{Listings, NameList};
use self::mount_texts::MountTexts;
use self::refs::{FreshRefs, NameKind, system_time};
use self::trees::{Loaded, TreeKey, TreeName, Trees};
use crate::control_directory::files::ControlFile;
use crate::control_directory::{self, ControlEntry, MountKind, VIEWS_NAME};
use crate::views::kind::ViewKind;
use crate::views::options::ViewOptions;
use crate::views::{self, ViewTree};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::memory::Meter;
use icechunkfs_base::recent_errors::RecentErrors;
use icechunkfs_format::format::chunk_payload::ChunkPayload;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_repo::reader::Data;
use icechunkfs_store::storage::Storage;
use icechunkfs_tree::inodes::{self, Ino, README, REPORT_DIRECTORY, TREE_VIEWS, attach, detach};
use icechunkfs_tree::mount_facts::MountFacts;
use icechunkfs_tree::tree::directory::Extent;
use icechunkfs_tree::tree::{Attributes, Kind, Tree};

pub use self::directories::{AT, CONTROL, VIEWS};

/// Time for which the meaning of a name of a tree is valid.
pub const BRIEF: Duration = Duration::from_secs(1);
/// File that explains the directory of views.
const README_NAME: &str = "README";
const README_TEXT: &str = "\
Each directory here is the last commit in another view, read-only: uncommitted changes of a writable mount are not in it.

  zarr      Zarr version 3, as stored        modifiers: zarr,unshard  zarr,shard=64x64  zarr,consolidated
  zarr2     Zarr version 2                   modifiers: zarr2,unshard
  netcdf    a NetCDF-4 file for each group   modifiers: netcdf,record-dimension=auto  netcdf,classic-types  netcdf,groups=nested

Modifiers combine, in this order; views with modifiers are not listed. A view lists what it leaves out in its own file .icechunk/VIEW.
";

/// File of a tree: the tree, the number in it, and the ref or time under which the tree is
/// attached.
pub type NativeFile = (Arc<Tree>, Ino, Option<String>);
/// Source of the tree that the mount shows now.
pub type Shown = Box<dyn Fn() -> Arc<dyn ViewTree> + Send + Sync>;
/// Receiver of the numbers of directories whose listings the kernel must not keep.
pub type Forget = Box<dyn Fn(Ino) + Send + Sync>;

/// Attributes of an attached file or directory.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// Attributes, with the number in the mount.
    pub attributes: Attributes,
    /// Time of the last change.
    pub time: SystemTime,
    /// Time for which the name and the attributes are valid; none for as long as the mount lives.
    pub valid: Option<Duration>,
    /// Bytes that are stored, where fewer than all are.
    pub allocated: u64,
}

impl Found {
    /// Creates the attributes of a file or directory that stays as it is, all of which is stored.
    pub fn fixed(attributes: Attributes, time: SystemTime) -> Self {
        Found { attributes, time, valid: None, allocated: attributes.size }
    }
}

/// Entry of a directory.
#[derive(Debug)]
pub struct Listed<'a> {
    /// Name.
    pub name: &'a str,
    /// Attributes.
    pub found: Found,
    /// Offset from which the listing continues after the entry.
    pub offset: u64,
}

/// Receiver of entries. Returns false if it is full, and then has not taken the entry.
pub type Sink<'a> = dyn FnMut(Listed<'_>) -> bool + Send + 'a;

/// Attached trees of a mount.
pub struct AttachedTrees {
    refs: FreshRefs,
    trees: Trees,
    shown: Shown,
    /// Start of the mount, the time of the directories above trees.
    start: SystemTime,
    forget: OnceLock<Forget>,
    listings: Listings,
    texts: MountTexts,
}

impl std::fmt::Debug for AttachedTrees {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AttachedTrees").field("trees", &self.trees).finish_non_exhaustive()
    }
}

/// Returns true if `number` belongs to an attached tree or a directory above one.
pub fn is_attached(number: Ino) -> bool {
    inodes::ATTACHED.contains(number)
}

/// Returns the part of the control directory that `number` belongs to: see
/// [`control_directory::part_of`].
pub(crate) fn part_of(number: Ino) -> Option<&'static str> {
    let inode = in_tree_0(number)?;
    Some(match (Directory::at(inode), ControlFile::at(number)) {
        (Some(directory), _) => directory.part().name(),
        (None, Some(file)) => file.name(),
        (None, None) => Directory::Views.name(),
    })
}

/// Returns the number of a file in tree 0, which is that of the directories above trees; none for
/// other numbers.
pub(crate) fn in_tree_0(number: Ino) -> Option<Ino> {
    let (tree, inode) = if is_attached(number) { detach(number) } else { return None };
    (tree == 0).then_some(inode)
}

/// Returns the error for an attempt to change an attached tree.
pub fn read_only_error() -> Error {
    Error::new(
        ErrorKind::ReadOnly,
        "trees below .icechunk are read-only: copy files out of them into the mount's own tree",
    )
}

/// Meaning of a number.
enum AttachedPlace {
    Directory(Directory),
    /// Control file of a read-only mount.
    File(ControlFile),
    /// File in the directory of views of a tree, 0 for what the mount shows.
    Readme(u32),
    /// File `inode` of a tree.
    In(u32, Ino),
    /// Directory `.icechunk` of a tree.
    TreeControl(u32),
    TreeViews(u32),
}

impl AttachedTrees {
    /// Creates the trees of the repository in `storage`. `shown` returns the tree that the mount
    /// shows now, times are those of `branch`, node `root` is the root of all trees (empty for
    /// whole trees), and a snapshot may have `limit` bytes. `facts` are those of the mount.
    pub fn new(
        storage: &Arc<dyn Storage>,
        branch: &str,
        root: &str,
        limit: u64,
        shown: Shown,
        facts: Arc<MountFacts>,
    ) -> Self {
        let reader = Arc::clone(shown().tree().reader());
        AttachedTrees {
            refs: FreshRefs::new(Arc::clone(storage), branch),
            trees: Trees::new(reader, storage.location(), root, limit),
            shown,
            start: SystemTime::now(),
            forget: OnceLock::new(),
            listings: Listings::default(),
            texts: MountTexts::new(facts),
        }
    }

    /// Sets the receiver of directories whose listings the kernel must not keep: it keeps those of
    /// a mount that never changes.
    pub fn attach(&self, forget: Forget) {
        // The first value stays: there is one mount.
        let _ = self.forget.set(forget);
    }

    /// Has the names looked up again that mean another tree since the mount shows another snapshot
    /// of its branch. Returns them, with the numbers of their directories: the kernel must forget
    /// them.
    pub fn outdate_names(&self) -> Vec<(Ino, String)> {
        self.refs.outdate();
        let time = self.shown_tree().snapshot().flushed_at();
        let outdated = self.trees.names().into_iter().filter_map(|name| match name {
            (TreeName::Own, Some(view)) => Some((Directory::Views, view.to_string())),
            (TreeName::At(kind, name), None) if self.refs.moves_with_branch(kind, &name, time) => {
                Some((Directory::Names(kind), name))
            }
            _ => None,
        });
        outdated.map(|(directory, name)| (directory.number(), name)).collect()
    }

    /// Returns the failures that `.icechunk/errors` of a read-only mount lists.
    pub fn errors(&self) -> &RecentErrors {
        self.texts.errors()
    }

    /// Returns the facts about the mount.
    pub fn facts(&self) -> &MountFacts {
        self.texts.facts()
    }

    /// Returns the name of the view that the mount shows.
    pub fn view_name(&self) -> &str {
        let view = self.facts().options.get("view").and_then(serde_json::Value::as_str).unwrap_or_default();
        view.split(',').next().unwrap_or_default()
    }

    /// Returns the control directory of a read-only mount if the root shows it: not if a node has
    /// its name.
    pub fn control(&self) -> Option<Found> {
        let is_taken = (self.shown)().tree().table().child(0, control_directory::NAME).is_some();
        (!is_taken).then(|| self.directory(Directory::Control))
    }

    /// Returns the entry `name` of directory `parent`; none if it does not exist.
    pub async fn lookup(&self, parent: Ino, name: &str) -> Result<Option<Found>> {
        match self.place(parent)? {
            AttachedPlace::Directory(Directory::Names(kind)) => match self.refs.resolve(kind, name).await? {
                Some(snapshot) => self.named(kind, name, snapshot).await.map(Some),
                None => Ok(None),
            },
            AttachedPlace::Directory(Directory::Views) if name == README_NAME => Ok(Some(self.readme(0))),
            AttachedPlace::Directory(Directory::Views) => {
                let snapshot = (self.shown)().tree().snapshot().id();
                self.view(TreeName::Own, snapshot, name).await
            }
            AttachedPlace::Directory(Directory::Control) => {
                let Some(entry) = control_directory::entry(MountKind::ReadOnly, name) else {
                    return self.own_report(name).await;
                };
                match entry.file {
                    Some(file) => self.control_file(file).await.map(Some),
                    None => Ok(Some(self.directory_at(entry.number))),
                }
            }
            AttachedPlace::Directory(directory) => {
                Ok(Directory::named(directory, name).map(|found| self.directory(found)))
            }
            AttachedPlace::TreeControl(tree) if name == VIEWS_NAME => {
                Ok(Some(self.special(tree, TREE_VIEWS, Kind::Directory, 0)))
            }
            AttachedPlace::TreeViews(tree) if name == README_NAME => Ok(Some(self.readme(tree))),
            AttachedPlace::TreeViews(tree) => {
                let (key, _) = self.key(tree)?;
                self.view(key.name, key.snapshot, name).await
            }
            AttachedPlace::In(tree, Ino::ROOT) if name == control_directory::NAME => {
                let loaded = self.load(tree).await?;
                let is_node = loaded.files.tree().table().child(0, name).is_some();
                let control = self.special(tree, REPORT_DIRECTORY, Kind::Directory, 0);
                if is_node { self.lookup_in(tree, Ino::ROOT, name).await } else { Ok(Some(control)) }
            }
            AttachedPlace::In(tree, inode) => self.lookup_in(tree, inode, name).await,
            // The report of the tree's view.
            AttachedPlace::TreeControl(tree) => {
                let loaded = self.load(tree).await?;
                match loaded.files.lookup(Ino::ROOT, control_directory::NAME).await? {
                    Some(control) => self.lookup_in(tree, control.inode, name).await,
                    None => Ok(None),
                }
            }
            AttachedPlace::Readme(_) | AttachedPlace::File(_) => Err(not_a_directory()),
        }
    }

    /// Returns the attributes of `number`.
    pub async fn attributes(&self, number: Ino) -> Result<Found> {
        match self.place(number)? {
            AttachedPlace::Directory(directory) => Ok(self.directory(directory)),
            AttachedPlace::Readme(tree) => Ok(self.readme(tree)),
            AttachedPlace::File(file) => self.control_file(file).await,
            AttachedPlace::TreeControl(tree) => Ok(self.special(tree, REPORT_DIRECTORY, Kind::Directory, 0)),
            AttachedPlace::TreeViews(tree) => Ok(self.special(tree, TREE_VIEWS, Kind::Directory, 0)),
            // Without loading the tree: `ls -l` asks for the roots of thousands.
            AttachedPlace::In(tree, Ino::ROOT) => Ok(self.root_of(tree, self.key(tree)?.1)),
            AttachedPlace::In(tree, inode) => {
                let attributes = move |loaded: Arc<Loaded>| async move {
                    let attributes = loaded.files.attributes(inode).await?;
                    found(tree, &*loaded.files, attributes, loaded.time)
                };
                self.trees.with(tree, &self.refs, &self.shown_tree(), attributes).await
            }
        }
    }

    /// Feeds the entries of directory `number` after `offset` to `sink`.
    pub async fn list(&self, number: Ino, offset: u64, extent: Extent, sink: &mut Sink<'_>) -> Result<()> {
        let (tree, inode) = match self.place(number)? {
            AttachedPlace::In(tree, inode) => (tree, inode),
            AttachedPlace::Readme(_) | AttachedPlace::File(_) => return Err(not_a_directory()),
            AttachedPlace::Directory(directory) => return self.list_directory(directory, number, offset, sink).await,
            AttachedPlace::TreeControl(tree) => {
                let views = self.special(tree, TREE_VIEWS, Kind::Directory, 0);
                let mut entries = vec![(VIEWS_NAME.to_owned(), views)];
                let loaded = self.load(tree).await?;
                self.add_reports(number, &*loaded.files, Some((tree, loaded.time)), &mut entries).await?;
                self.emit(number, &entries, offset, sink);
                return Ok(());
            }
            AttachedPlace::TreeViews(tree) => {
                let (key, _) = self.key(tree)?;
                let entries = self.list_views(tree, &key.name, key.snapshot).await?;
                self.emit(number, &entries, offset, sink);
                return Ok(());
            }
        };
        let loaded = self.load(tree).await?;
        let mut failure = None;
        let files = &*loaded.files;
        let mut inner = |entry: icechunkfs_tree::tree::directory::Entry<'_>| match found(
            tree,
            files,
            entry.attributes,
            loaded.time,
        ) {
            Ok(found) => {
                // The kernel would keep a size of 0, and read nothing.
                let valid = if entry.is_sized { found.valid } else { Some(Duration::ZERO) };
                sink(Listed { name: entry.name, found: Found { valid, ..found }, offset: entry.offset })
            }
            Err(error) => {
                failure = Some(error);
                false
            }
        };
        loaded.files.list(inode, offset, extent, &mut inner).await?;
        failure.map_or(Ok(()), Err)
    }

    /// Reads up to `size` bytes of file `number` from `offset` on: fewer only at the end of the
    /// file.
    pub async fn read(&self, number: Ino, offset: u64, size: u32) -> Result<Data> {
        match self.place(number)? {
            AttachedPlace::In(tree, inode) => {
                let read = move |loaded: Arc<Loaded>| async move { loaded.files.read(inode, offset, size).await };
                self.trees.with(tree, &self.refs, &self.shown_tree(), read).await
            }
            AttachedPlace::Readme(_) => {
                Ok(Data::Bytes(views::part(&Bytes::from_static(README_TEXT.as_bytes()), offset, size)))
            }
            AttachedPlace::File(file) => {
                let text = self.texts.text(file, &self.shown_tree(), &self.refs).await?;
                Ok(Data::Bytes(views::part(&text, offset, size)))
            }
            _ => Err(Error::new(ErrorKind::IsADirectory, format!("{} is a directory", self.describe(number)))),
        }
    }

    /// Returns the location of the bytes of file `number` in the repository, if they are those of a
    /// chunk.
    pub async fn payload(&self, number: Ino) -> Result<Option<ChunkPayload>> {
        let AttachedPlace::In(tree, inode) = self.place(number)? else { return Ok(None) };
        let loaded = self.load(tree).await?;
        match loaded.files.native(inode) {
            Some(native) => loaded.files.tree().stored(native).await,
            None => Ok(None),
        }
    }

    /// Returns the tree that `number` is in, its number there, and the ref or time under which the
    /// tree is attached; none if the number is no file of a tree.
    pub async fn native(&self, number: Ino) -> Result<Option<NativeFile>> {
        let AttachedPlace::In(tree, inode) = self.place(number)? else { return Ok(None) };
        let reference = match self.key(tree)?.0.name {
            TreeName::At(kind, name) => Some(format!("{} {name}", kind.directory())),
            TreeName::Own => None,
        };
        let loaded = self.load(tree).await?;
        Ok(loaded.files.native(inode).map(|native| (Arc::clone(loaded.files.tree()), native, reference)))
    }

    /// Returns the path of `number`, for messages.
    pub fn describe(&self, number: Ino) -> String {
        match self.place(number) {
            Ok(AttachedPlace::Directory(directory)) => directory.path(),
            Ok(AttachedPlace::In(tree, inode)) => match (self.trees.key(tree), self.trees.loaded_now(tree)) {
                (Some((key, _)), Some(loaded)) => format!("{}{}", path_of(&key), loaded.files.describe(inode)),
                (Some((key, _)), None) => path_of(&key),
                (None, _) => number.to_string(),
            },
            _ => number.to_string(),
        }
    }

    fn place(&self, number: Ino) -> Result<AttachedPlace> {
        let (tree, inode) = detach(number);
        if let Some(file) = ControlFile::at(number) {
            return Ok(AttachedPlace::File(file));
        }
        Ok(match (tree, inode) {
            (tree, README) => AttachedPlace::Readme(tree),
            (0, inode) => {
                let no_such = || Error::new(ErrorKind::NotFound, format!("there is no {number} below .icechunk"));
                AttachedPlace::Directory(Directory::at(inode).ok_or_else(no_such)?)
            }
            (tree, REPORT_DIRECTORY) => AttachedPlace::TreeControl(tree),
            (tree, TREE_VIEWS) => AttachedPlace::TreeViews(tree),
            (tree, inode) => AttachedPlace::In(tree, inode),
        })
    }

    fn key(&self, tree: u32) -> Result<(TreeKey, SystemTime)> {
        self.trees.key(tree).ok_or_else(|| Error::new(ErrorKind::NotFound, "this tree was never entered"))
    }

    async fn load(&self, tree: u32) -> Result<Arc<Loaded>> {
        self.trees.load(tree, &self.refs, &self.shown_tree()).await
    }

    fn shown_tree(&self) -> Arc<Tree> {
        Arc::clone((self.shown)().tree())
    }

    /// Returns the root of the tree that `name` in directory `kind` stands for.
    async fn named(&self, kind: NameKind, name: &str, snapshot: ObjectId) -> Result<Found> {
        let found = self.root(TreeName::At(kind, name.to_owned()), snapshot, None).await?;
        Ok(Found { valid: found.valid.filter(|_| kind != NameKind::Snapshot), ..found })
    }

    async fn view(&self, name: TreeName, snapshot: ObjectId, view: &str) -> Result<Option<Found>> {
        // One name, not several spellings of it.
        match view.parse::<ViewOptions>() {
            Ok(options) if options.to_string() == view => self.root(name, snapshot, Some(options)).await.map(Some),
            _ => Ok(None),
        }
    }

    /// Returns the root of a tree, which need not be loaded for it.
    async fn root(&self, name: TreeName, snapshot: ObjectId, view: Option<ViewOptions>) -> Result<Found> {
        let shown = self.shown_tree();
        let time = if shown.snapshot().id() == snapshot {
            Some(system_time(shown.snapshot().flushed_at()))
        } else {
            self.refs.time(snapshot).await?
        };
        let (tree, time) = self.trees.number(TreeKey { name, snapshot, view }, time.unwrap_or(self.start))?;
        Ok(self.root_of(tree, time))
    }

    fn root_of(&self, tree: u32, time: SystemTime) -> Found {
        Found { time, valid: Some(BRIEF), ..self.special(tree, Ino::ROOT, Kind::Directory, 0) }
    }

    async fn lookup_in(&self, tree: u32, parent: Ino, name: &str) -> Result<Option<Found>> {
        let lookup = move |loaded: Arc<Loaded>| async move {
            let attributes = loaded.files.lookup(parent, name).await?;
            attributes.map(|attributes| found(tree, &*loaded.files, attributes, loaded.time)).transpose()
        };
        self.trees.with(tree, &self.refs, &self.shown_tree(), lookup).await
    }

    async fn own_report(&self, name: &str) -> Result<Option<Found>> {
        let reports = self.reports(&*(self.shown)(), None).await?;
        Ok(reports.into_iter().find(|(report, _)| report == name).map(|(_, found)| found))
    }

    /// Returns the reports of view `files`, which is the attached tree `at`, or what the mount
    /// shows.
    async fn reports(&self, files: &dyn ViewTree, at: Option<(u32, SystemTime)>) -> Result<Vec<(String, Found)>> {
        if files.tree().table().child(0, control_directory::NAME).is_some() {
            return Ok(Vec::new());
        }
        let Some(control) = files.lookup(Ino::ROOT, control_directory::NAME).await? else { return Ok(Vec::new()) };
        let mut reports = Vec::new();
        let mut sink = |entry: icechunkfs_tree::tree::directory::Entry<'_>| {
            if entry.attributes.kind == Kind::File {
                reports.push((entry.name.to_owned(), entry.attributes));
            }
            true
        };
        files.list(control.inode, 0, Extent::All, &mut sink).await?;
        let of = |(name, attributes): (String, Attributes)| match at {
            Some((tree, time)) => found(tree, files, attributes, time).map(|found| (name, found)),
            None => Ok((name, Found::fixed(attributes, self.start))),
        };
        reports.into_iter().map(of).collect()
    }

    /// Adds the reports to `entries` of directory `number`. One that cannot be made now is not
    /// listed: the files beside it say why. The kernel then forgets the listing.
    async fn add_reports(
        &self,
        number: Ino,
        files: &dyn ViewTree,
        at: Option<(u32, SystemTime)>,
        entries: &mut Vec<(String, Found)>,
    ) -> Result<()> {
        match self.reports(files, at).await {
            Ok(reports) => entries.extend(reports),
            Err(error) if error.is_of_access() => {
                self.errors().record("readdir", &error);
                self.forget(number);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Makes the kernel forget the listing of directory `number`, once it has it.
    fn forget(&self, number: Ino) {
        if let Some(forget) = self.forget.get() {
            forget(number);
        }
    }

    async fn list_directory(&self, directory: Directory, number: Ino, offset: u64, sink: &mut Sink<'_>) -> Result<()> {
        let entries = match directory {
            Directory::Views => self.list_views(0, &TreeName::Own, self.shown_tree().snapshot().id()).await?,
            Directory::Names(kind) => {
                let list = self.list_names(kind, offset).await?;
                let mut of_list = |entry: Listed<'_>| sink(Listed { offset: list.offset(entry.offset), ..entry });
                self.emit(number, &list.names, listings::position(offset), &mut of_list);
                self.forget(number);
                return Ok(());
            }
            Directory::Control => {
                let found = |entry: ControlEntry| match entry.file {
                    Some(file) => self.control_file_now(file),
                    None => self.directory_at(entry.number),
                };
                let own = control_directory::entries(MountKind::ReadOnly).into_iter();
                let mut entries: Vec<_> = own.map(|entry| (entry.name.to_owned(), found(entry))).collect();
                self.add_reports(number, &*(self.shown)(), None, &mut entries).await?;
                entries
            }
            Directory::At => self.children(directory),
        };
        self.emit(number, &entries, offset, sink);
        Ok(())
    }

    /// Returns the entries of directory `kind`. A listing that goes on at `offset` has those that
    /// it began with.
    async fn list_names(&self, kind: NameKind, offset: u64) -> Result<NameList> {
        if offset > 0 {
            return self.listings.find(kind, offset);
        }
        let mut meter = Meter::new("a list of commits");
        let mut entries = Vec::new();
        for (name, snapshot) in &*self.refs.names(kind).await? {
            let found = self.named(kind, name, *snapshot).await?;
            meter.count_items::<(String, Found)>(1)?;
            meter.count(name.len() as u64)?;
            entries.push((name.clone(), found));
        }
        Ok(self.listings.add(kind, meter.finish(entries)))
    }

    fn children(&self, directory: Directory) -> Vec<(String, Found)> {
        directory.children().iter().map(|child| (child.name().to_owned(), self.directory(*child))).collect()
    }

    /// Returns the entries of the directory of views of tree `name`, whose number is `tree`, 0 for
    /// what the mount shows.
    async fn list_views(&self, tree: u32, name: &TreeName, snapshot: ObjectId) -> Result<Vec<(String, Found)>> {
        let mut entries = vec![(README_NAME.to_owned(), self.readme(tree))];
        for kind in ViewKind::ALL {
            let view = ViewOptions { kind, ..ViewOptions::default() };
            entries.push((kind.name().to_owned(), self.root(name.clone(), snapshot, Some(view)).await?));
        }
        Ok(entries)
    }

    /// Feeds the dots and `entries` of directory `number` to `sink`.
    fn emit(&self, number: Ino, entries: &[(String, Found)], offset: u64, sink: &mut Sink<'_>) {
        let dot = Attributes { inode: number, kind: Kind::Directory, size: 0 };
        let dot = Found { valid: Some(BRIEF), ..Found::fixed(dot, self.start) };
        let dots = [".", ".."].into_iter().map(|name| (name, dot));
        let entries = entries.iter().map(|(name, found)| (name.as_str(), *found));
        let skipped = usize::try_from(offset).unwrap_or(usize::MAX);
        for ((name, found), offset) in dots.chain(entries).zip(1..).skip(skipped) {
            if !sink(Listed { name, found, offset }) {
                break;
            }
        }
    }

    fn directory(&self, directory: Directory) -> Found {
        self.directory_at(directory.number())
    }

    fn directory_at(&self, number: Ino) -> Found {
        Found::fixed(Attributes { inode: number, kind: Kind::Directory, size: 0 }, self.start)
    }

    fn readme(&self, tree: u32) -> Found {
        self.special(tree, README, Kind::File, README_TEXT.len() as u64)
    }

    /// Returns the attributes of a control file.
    async fn control_file(&self, file: ControlFile) -> Result<Found> {
        let text = self.texts.text(file, &self.shown_tree(), &self.refs).await?;
        Ok(control_file_of(file, text.len() as u64))
    }

    /// Returns the attributes of a control file for a listing. Its length is 0 before it was looked
    /// at.
    fn control_file_now(&self, file: ControlFile) -> Found {
        let text = self.texts.text_now(file, &self.shown_tree());
        let found = control_file_of(file, text.map_or(0, |text| text.len() as u64));
        Found { valid: Some(Duration::ZERO), ..found }
    }

    fn special(&self, tree: u32, inode: Ino, kind: Kind, size: u64) -> Found {
        let inode = attach(tree, inode).unwrap_or(inodes::ATTACHED.at(0));
        Found::fixed(Attributes { inode, kind, size }, self.start)
    }
}

fn control_file_of(file: ControlFile, size: u64) -> Found {
    let inode = file.number(MountKind::ReadOnly).unwrap_or(inodes::ATTACHED.at(0));
    // The list of failures changes with every failure.
    let valid = if file == ControlFile::RecentErrors { Duration::ZERO } else { BRIEF };
    Found { valid: Some(valid), ..Found::fixed(Attributes { inode, kind: Kind::File, size }, SystemTime::now()) }
}

/// Returns the attributes of a file of tree `tree`, whose files are `files`.
fn found(tree: u32, files: &dyn ViewTree, attributes: Attributes, time: SystemTime) -> Result<Found> {
    let inode = attach(tree, attributes.inode).ok_or_else(|| {
        let message = "this snapshot has more chunks than directories below .icechunk can number: mount it by itself";
        Error::new(ErrorKind::Unsupported, message)
    })?;
    let allocated = files.allocated(attributes.inode).unwrap_or(attributes.size);
    Ok(Found { allocated, ..Found::fixed(Attributes { inode, ..attributes }, time) })
}

fn path_of(key: &TreeKey) -> String {
    let at = match &key.name {
        TreeName::Own => String::new(),
        TreeName::At(kind, name) => format!("/{}/at/{}/{name}", control_directory::NAME, kind.directory()),
    };
    match &key.view {
        Some(view) => format!("{at}/{}/view/{view}", control_directory::NAME),
        None => at,
    }
}

fn not_a_directory() -> Error {
    Error::new(ErrorKind::NotADirectory, "a file is not a directory")
}
