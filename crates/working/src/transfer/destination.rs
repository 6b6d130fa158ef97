//! Destination directory of an export.
//!
//! A file gets its name only when it is complete: it is written without a name (`O_TMPFILE`) and
//! then linked or, where the file system cannot do that, written under [`temporary`]'s name and
//! renamed. Everything is opened below the directory's descriptor with
//! `openat2(RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS)`: whatever names a repository has, and whatever
//! links lie in the directory, nothing is written outside it. The directory itself is opened once,
//! by a walk that follows no link of another user.
//!
//! While an export runs, the file [`MARKER`] (with a number if the exported tree has that name)
//! records its source. The marker is removed when everything is on the disk, flushed once for the
//! whole file system (`syncfs`), not file by file. A repeated export that finds the marker resumes:
//! a file that has its name, its size and the commit's time is complete, because the time is set
//! before the name. Bytes are compared if the machine has been restarted since, when names may have
//! survived whose bytes did not, and if the directory had other content: all files of a snapshot
//! have one time, so a file of another array may have the same size and time.
//!
//! **Only what is the user's own counts**: another user who prepares the directory could otherwise
//! have a marker, and files of the right size and time, taken for the work of an earlier export. So
//! a file counts as complete only if it belongs to the user who exports, or to root, and so does
//! the marker; a marker of another user in that user's directory lets the export go on, but no file
//! counts then.
//!
//! Before the flush, the marker is changed to say that it has begun. If it fails, or the process is
//! killed meanwhile, the kernel has reported the failed writes and does so to nobody else, while
//! the lost pages stay in its cache as if they were on the disk: the next export writes every file
//! again. Writes that fail before the flush are reported to it, because the directory's descriptor
//! is older than the first write of this export, and those of an export that was killed before its
//! flush to the descriptor of the next one. Not known are failed writes of a killed export that
//! another program's `syncfs` was told of, or whose file system was unmounted since.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::new_file::{NewFile, temporary, timespec};
use super::repositories::refuse_repositories;
use super::{kind_of, open_beneath};
use icechunkfs_base::beneath;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::file_name::is_dots;
use icechunkfs_base::printable;
use icechunkfs_base::times::set_modified;
use icechunkfs_base::trust::{self, Owners};

/// Name of the file that records what is being exported; `-1` and so on follow if it is taken.
const MARKER: &str = ".icechunkfs-export";
/// Bytes of the marker that are read: it holds three names.
const MAX_MARKER: u64 = 1 << 16;
/// File with an id that changes each time the machine is started.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Returns the name of the marker that is tried after `number` others.
fn marker_name(number: u64) -> String {
    if number == 0 { MARKER.to_owned() } else { format!("{MARKER}-{number}") }
}

/// Returns true if a file called `name` can be the marker of an export.
pub fn is_marker(name: &str) -> bool {
    let number = |rest: &str| rest.strip_prefix('-')?.parse().ok();
    name == MARKER || name.strip_prefix(MARKER).and_then(number).is_some_and(|number| marker_name(number) == name)
}

/// Source of an export: what the directory holds, or will hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportSource {
    /// Location of the repository.
    pub repository: String,
    /// Id of the snapshot.
    pub snapshot: String,
    /// Group or array in the snapshot, or path in the view; empty for all.
    pub path: String,
    /// Name of the view; empty for the native one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub view: String,
}

#[derive(Serialize, Deserialize)]
struct Marker {
    #[serde(flatten)]
    source: ExportSource,
    /// Start of the machine since which every file with its name, size and time is complete; empty
    /// if there may be others.
    boot: String,
    /// True if the flush has begun: if the machine has not been restarted since, no file counts.
    #[serde(default)]
    flush: bool,
}

/// Marker of an earlier export.
struct FoundMarker {
    marker: Marker,
    /// True if no other user can have written it.
    is_own: bool,
}

/// Content of the directory before the export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// The directory was empty.
    Nothing,
    /// An earlier export of the same source had begun in an empty directory, since the machine was
    /// started.
    Resumed,
    /// An earlier export of the same source had begun, before the machine was restarted or over
    /// other content.
    ResumedUnverified,
    /// The flush of an earlier export failed or was interrupted: bytes in the kernel's cache may
    /// not be on the disk.
    Unflushed,
    /// The directory belongs to another user, who says that an earlier export of the same source
    /// had begun.
    Foreign,
    /// The directory had other content.
    OtherContent,
}

/// Directory that an export writes to, locked against other exports.
#[derive(Debug)]
pub struct Destination {
    path: PathBuf,
    /// Opened before the first write, so that the flush reports every failed write.
    root: Arc<OwnedFd>,
    owners: Owners,
    source: ExportSource,
    /// Name of the marker.
    marker: String,
    /// Name of the marker of an earlier export, if there is one.
    earlier_marker: Option<String>,
    before: Before,
    /// True if files can have no name until they are complete.
    nameless: bool,
}

/// File that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExistingFile {
    /// Size in bytes.
    pub(super) size: u64,
    /// Modification time, in seconds and nanoseconds since 1970-01-01 UTC.
    time: (i64, u64),
    /// True if it belongs to a trusted user.
    pub(super) is_own: bool,
}

impl ExistingFile {
    /// Returns true if the modification time is `micros` after 1970, as far as the file system
    /// keeps times.
    pub(super) fn is_of(&self, micros: u64) -> bool {
        let wanted = timespec(micros);
        self.time.0 == wanted.tv_sec && (self.time.1 == 0 || self.time.1 == wanted.tv_nsec.unsigned_abs())
    }
}

/// Returns the directory that `text` names. Fails for a URL.
pub fn local(text: &str) -> Result<PathBuf> {
    if text.contains("://") {
        return Err(Error::invalid(format!(
            "{text}: export into a directory of this machine, and copy that to the store with its own tool"
        )));
    }
    Ok(PathBuf::from(text))
}

impl Destination {
    /// Opens and locks `path`, creating it if necessary, for `source` of a repository at
    /// `repository` (a local directory, if it is one), whose files and directories are not called
    /// as any of `taken`, which has the names in the exported tree that are those of markers.
    /// Refuses a directory with other content unless `force` is set.
    ///
    /// Errors: [`ErrorKind::NotEmpty`] if the directory has other content, [`ErrorKind::Busy`] if
    /// another export writes to it.
    pub fn open(
        path: &Path,
        source: &ExportSource,
        taken: &BTreeSet<String>,
        repository: Option<&Path>,
        force: bool,
    ) -> Result<Self> {
        refuse_repositories(path, repository)?;
        let mut destination = Self::open_place(path, source, Some(Mode::from_raw_mode(0o777)))?;
        destination.read_state(taken, force)?;
        destination.mark()?;
        destination.nameless = destination.probe();
        Ok(destination)
    }

    /// Opens `path` like [`Destination::open`], but changes nothing. Returns `None` if there is no
    /// such directory.
    pub fn inspect(
        path: &Path,
        source: &ExportSource,
        taken: &BTreeSet<String>,
        repository: Option<&Path>,
        force: bool,
    ) -> Result<Option<Self>> {
        refuse_repositories(path, repository)?;
        match Self::open_place(path, source, None) {
            Ok(mut destination) => destination.read_state(taken, force).map(|()| Some(destination)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn open_place(path: &Path, source: &ExportSource, create: Option<Mode>) -> Result<Self> {
        let (root, _) = trust::open_place(path, create)?;
        match rustix::fs::flock(&root, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let message = format!("{}: another export goes there at this moment", path.display());
                return Err(Error::new(ErrorKind::Busy, message));
            }
            // Some network file systems cannot lock directories: two exports then write the same
            // bytes.
            Err(errno) => tracing::debug!("{} is not locked: {errno}", path.display()),
        }
        Ok(Destination {
            path: path.to_owned(),
            owners: Owners::below(&root)?,
            root: Arc::new(root),
            source: source.clone(),
            marker: MARKER.to_owned(),
            earlier_marker: None,
            before: Before::OtherContent,
            nameless: false,
        })
    }

    fn read_state(&mut self, taken: &BTreeSet<String>, force: bool) -> Result<()> {
        let found = self.find_marker()?;
        let is_foreign = found.as_ref().is_some_and(|(_, found)| !found.is_own);
        let (earlier, marker) = found.map(|(name, found)| (name, found.marker)).unzip();
        self.marker = self.free_marker(earlier.as_deref(), taken)?;
        self.earlier_marker = earlier;
        let name = self.path.display();
        let source = &self.source;
        let is_of_boot = |marker: &Marker| !marker.boot.is_empty() && marker.boot == boot();
        self.before = match marker {
            Some(marker) if is_foreign && marker.source == *source => Before::Foreign,
            Some(_) if is_foreign && force => Before::Foreign,
            Some(marker) if marker.flush && is_of_boot(&marker) && (force || marker.source == *source) => {
                Before::Unflushed
            }
            Some(marker) if marker.source == *source && is_of_boot(&marker) => Before::Resumed,
            Some(marker) if marker.source == *source => Before::ResumedUnverified,
            Some(_) if force => Before::OtherContent,
            Some(Marker { source: ExportSource { repository, snapshot, .. }, .. }) => {
                return Err(Error::new(
                    ErrorKind::NotEmpty,
                    format!(
                        "{name} holds an unfinished export of snapshot {snapshot} of {repository}: finish that one, or \
                         pass --force to replace it, and --delete to remove its other files"
                    ),
                ));
            }
            None if self.is_empty()? => Before::Nothing,
            None if force => Before::OtherContent,
            None => {
                return Err(Error::new(
                    ErrorKind::NotEmpty,
                    format!(
                        "{name} is not empty: choose another directory, or pass --force to replace what differs, and \
                         --delete to remove what the snapshot does not have"
                    ),
                ));
            }
        };
        Ok(())
    }

    /// Returns what the directory held before.
    pub fn before(&self) -> Before {
        self.before
    }

    /// Returns the path, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn failed(&self, below: &str, errno: Errno) -> Error {
        let place = self.path.join(below);
        let place = place.display();
        match errno {
            Errno::LOOP | Errno::XDEV => Error::new(
                ErrorKind::PermissionDenied,
                format!("{place}: a symbolic link is in the way, and an export does not follow it: remove it"),
            ),
            Errno::NOTDIR => Error::new(
                ErrorKind::NotADirectory,
                format!("{place}: a file is where a directory belongs: remove it, or pass --delete"),
            ),
            _ => Error::io(place, errno.into()),
        }
    }

    /// Returns true if the entry `name` is the marker of this export, or of an earlier one.
    pub(super) fn is_marker(&self, name: &str) -> bool {
        name == self.marker || self.earlier_marker.as_deref() == Some(name)
    }

    /// Returns the marker of an earlier export, with its name.
    fn find_marker(&self) -> Result<Option<(String, FoundMarker)>> {
        let failed = |e| self.failed("", e);
        let mut names: Vec<String> = Vec::new();
        for entry in Dir::read_from(&self.root).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_str().ok().filter(|name| is_marker(name));
            // A group or array may have the name.
            if let Some(name) = name
                && kind_of(&self.root, &entry).map_err(failed)? == FileType::RegularFile
            {
                names.push(name.to_owned());
            }
        }
        names.sort();
        for name in names {
            match self.read_marker(&name) {
                Ok(marker) => return Ok(Some((name, marker))),
                Err(error) if name == MARKER => return Err(error),
                Err(error) => tracing::debug!("{error}"),
            }
        }
        Ok(None)
    }

    fn read_marker(&self, name: &str) -> Result<FoundMarker> {
        let file = open_beneath(&self.root, name.as_bytes(), OFlags::NONBLOCK).map_err(|e| self.failed(name, e))?;
        let is_own = trust::check_file(&file).is_ok();
        if !is_own && trust::owner_of(&file)? != trust::owner_of(&*self.root)? {
            let place = self.path.join(name);
            let message = format!(
                "{}: other users could have written this marker of an unfinished export: remove it, or choose another \
                 directory",
                place.display()
            );
            return Err(Error::new(ErrorKind::PermissionDenied, message));
        }
        let mut text = Vec::new();
        let place = self.path.join(name);
        File::from(file).take(MAX_MARKER).read_to_end(&mut text).map_err(|e| Error::io(place.display(), e))?;
        let marker = serde_json::from_slice(&text).map_err(|e| {
            let message = format!("{}: it is not a valid export marker: remove it", place.display());
            Error::with_source(ErrorKind::NotEmpty, message, e)
        })?;
        Ok(FoundMarker { marker, is_own })
    }

    /// Returns a name for the marker that neither the exported tree, with the names `taken`, nor
    /// the directory has: that of the `earlier` marker if possible.
    fn free_marker(&self, earlier: Option<&str>, taken: &BTreeSet<String>) -> Result<String> {
        if let Some(earlier) = earlier.filter(|earlier| !taken.contains(*earlier)) {
            return Ok(earlier.to_owned());
        }
        for name in (0..).map(marker_name).filter(|name| !taken.contains(name)) {
            match rustix::fs::statat(&self.root, name.as_str(), AtFlags::SYMLINK_NOFOLLOW) {
                Ok(_) => {}
                Err(Errno::NOENT) => return Ok(name),
                Err(errno) => return Err(self.failed(&name, errno)),
            }
        }
        // As many names cannot be taken.
        Ok(MARKER.to_owned())
    }

    fn is_empty(&self) -> Result<bool> {
        let failed = |e| self.failed("", e);
        for entry in Dir::read_from(&self.root).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_bytes();
            // An export that was killed before its first file leaves the marker's temporary name.
            if !is_dots(name) && name != temporary(&self.marker).as_bytes() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes the marker, before the first file.
    fn mark(&self) -> Result<()> {
        match self.before {
            Before::Nothing | Before::Resumed => self.write_marker(boot(), false)?,
            // Until this export is complete, files that it has not compared yet look like complete
            // ones.
            Before::ResumedUnverified | Before::OtherContent => self.write_marker(String::new(), false)?,
            Before::Unflushed => self.write_marker(boot(), true)?,
            // As above, for the next export by this user.
            Before::Foreign => self.write_marker(String::new(), false)?,
        }
        match self.earlier_marker.as_ref().filter(|earlier| **earlier != self.marker) {
            Some(earlier) => self.remove_marker(earlier),
            None => Ok(()),
        }
    }

    fn remove_marker(&self, name: &str) -> Result<()> {
        let failed = |e: Errno| self.failed(name, e);
        rustix::fs::unlinkat(&self.root, name, AtFlags::empty()).map_err(failed)?;
        rustix::fs::fsync(&self.root).map_err(failed)
    }

    fn write_marker(&self, boot: String, flush: bool) -> Result<()> {
        let marker = Marker { source: self.source.clone(), boot, flush };
        let text =
            serde_json::to_vec(&marker).map_err(|e| Error::with_source(ErrorKind::Io, "the export marker", e))?;
        let failed = |e: std::io::Error| Error::io(self.path.join(&self.marker).display(), e);
        let mut file = NewFile::named(Arc::clone(&self.root), self.marker.clone()).map_err(|e| failed(e.into()))?;
        // Whatever the umask: a marker counts only if no other user can write to it. Some file
        // systems have fixed modes.
        let found = rustix::fs::fstat(file.file()).map_err(|e| failed(e.into()))?;
        let _ = rustix::fs::fchmod(file.file(), Mode::from_raw_mode(found.st_mode & 0o644));
        file.file().write_all(&text).and_then(|()| file.file().sync_all()).map_err(failed)?;
        file.take_name().map_err(|e| failed(e.into()))?;
        rustix::fs::fsync(&self.root).map_err(|e| failed(e.into()))
    }

    /// Flushes everything that was written, then removes the marker: the export is complete.
    pub fn finish(&self) -> Result<()> {
        let failed = |e: Errno| self.failed("", e);
        // If this fails, nobody has been told of failed writes yet: the next export is.
        self.write_marker(boot(), true)?;
        rustix::fs::syncfs(&self.root).map_err(|errno| {
            let why = "some exported files may not be on the disk (export again, which writes all of them)";
            failed(errno).context(why)
        })?;
        self.remove_marker(&self.marker)
    }

    /// Returns true if a file can be created without a name, and linked.
    fn probe(&self) -> bool {
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let Ok(file) = rustix::fs::openat(&self.root, ".", flags, Mode::from_raw_mode(0o666)) else { return false };
        let name = temporary("probe");
        // An export that was killed here may have left the name.
        let _ = rustix::fs::unlinkat(&self.root, name.as_str(), AtFlags::empty());
        let linked = beneath::link(&file, &self.root, &name);
        let _ = rustix::fs::unlinkat(&self.root, name.as_str(), AtFlags::empty());
        linked.is_ok()
    }

    /// Opens the directory `path` in it, creating it if necessary.
    pub(super) fn folder(&self, path: &str) -> Result<Arc<OwnedFd>> {
        match open_folder(&self.root, path) {
            Ok(folder) => return Ok(Arc::new(folder)),
            Err(Errno::NOENT | Errno::NAMETOOLONG) => {}
            Err(errno) => return Err(self.failed(path, errno)),
        }
        let failed = |e| self.failed(path, e);
        let mut at = open_folder(&self.root, "").map_err(failed)?;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            match rustix::fs::mkdirat(&at, name, Mode::from_raw_mode(0o777)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(failed(errno)),
            }
            at = open_folder(&at, name).map_err(failed)?;
        }
        Ok(Arc::new(at))
    }

    /// Opens the directory `path` in it, if there is one.
    pub(super) fn find_folder(&self, path: &str) -> Result<Option<Arc<OwnedFd>>> {
        match open_folder(&self.root, path) {
            Ok(folder) => Ok(Some(Arc::new(folder))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.failed(path, errno)),
        }
    }

    /// Finds the file `name` in `folder`, which is at `path`.
    pub(super) fn find(&self, folder: &OwnedFd, path: &str, name: &str) -> Result<Option<ExistingFile>> {
        let stat = match rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(self.failed(&join(path, name), errno)),
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok(Some(ExistingFile {
                size: stat.st_size.unsigned_abs(),
                time: (stat.st_mtime, stat.st_mtime_nsec as u64),
                is_own: trust::is_trusted(self.owners.owner(folder, name, &stat)?),
            })),
            FileType::Directory => Err(Error::new(
                ErrorKind::IsADirectory,
                format!(
                    "{}: a directory is where a file belongs: remove it, or pass --delete",
                    self.path.join(join(path, name)).display()
                ),
            )),
            // A link, for instance: the export replaces the link and leaves its target alone.
            _ => Ok(Some(ExistingFile { size: u64::MAX, time: (0, 1), is_own: false })),
        }
    }

    /// Creates a file that will be `name` in `folder`, which is at `path`.
    pub(super) fn create(&self, folder: &Arc<OwnedFd>, path: &str, name: &str) -> Result<NewFile> {
        let place = Arc::clone(folder);
        let own = name.to_owned();
        let created = if self.nameless { NewFile::nameless(place, own) } else { NewFile::named(place, own) };
        created.map_err(|errno| self.failed(&join(path, name), errno))
    }

    /// Gives the complete `file` its name and the time `micros` after 1970.
    pub(super) fn complete(&self, mut file: NewFile, path: &str, micros: u64) -> Result<()> {
        let place = join(path, file.name());
        set_modified(file.file(), timespec(micros)).and_then(|()| file.take_name()).map_err(|e| self.failed(&place, e))
    }

    /// Opens the file `name` in `folder`, which is at `path`; none if it belongs to another user by
    /// now.
    pub(super) fn open_file(&self, folder: &OwnedFd, path: &str, name: &str) -> Result<Option<File>> {
        let failed = |e| self.failed(&join(path, name), e);
        let file = open_beneath(folder, name.as_bytes(), OFlags::NONBLOCK).map_err(failed)?;
        let is_own = trust::is_trusted(trust::owner_of(&file)?);
        Ok(is_own.then(|| file.into()))
    }

    /// Removes the entry `name` of `folder`, with everything below.
    pub(super) fn remove(&self, folder: &OwnedFd, path: &str, name: &OsStr) -> Result<()> {
        let shown = || self.path.join(path).join(name);
        let failed = |e: std::io::Error| Error::io(shown().display(), e);
        match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            // The path leads through the descriptor, so that nobody can put another directory in
            // its place.
            Err(Errno::ISDIR | Errno::PERM) => {
                let place = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name);
                std::fs::remove_dir_all(place).map_err(failed)
            }
            Err(errno) => Err(failed(errno.into())),
        }
    }
}

fn open_folder(at: &OwnedFd, path: &str) -> Result<OwnedFd, Errno> {
    open_beneath(at, path.as_bytes(), OFlags::DIRECTORY)
}

pub(super) fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") }
}

/// Returns the path of `name`, which may not be UTF-8, for messages.
pub(super) fn shown(path: &str, name: &[u8]) -> String {
    join(path, &printable::text(name))
}

fn boot() -> String {
    std::fs::read_to_string(BOOT_ID).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn source(snapshot: &str) -> ExportSource {
        ExportSource { repository: "r".into(), snapshot: snapshot.into(), path: String::new(), view: String::new() }
    }

    fn none() -> BTreeSet<String> {
        BTreeSet::new()
    }

    fn put(destination: &Destination, path: &str, name: &str, bytes: &[u8]) {
        let folder = destination.folder(path).unwrap();
        let mut file = destination.create(&folder, path, name).unwrap();
        file.file().write_all(bytes).unwrap();
        destination.complete(file, path, 1_700_000_000_000_001).unwrap();
    }

    #[test]
    fn files_take_their_names_whole_with_or_without_a_temporary_one() {
        for nameless in [true, false] {
            let place = tempfile::tempdir().unwrap();
            let mut destination = Destination::open(place.path(), &source("1"), &none(), None, false).unwrap();
            destination.nameless &= nameless;
            // A file of an export that was killed while writing it.
            std::fs::create_dir_all(place.path().join("a/b")).unwrap();
            std::fs::write(place.path().join("a/b").join(temporary("c")), "half").unwrap();
            put(&destination, "a/b", "c", b"one");
            put(&destination, "a/b", "c", b"two");
            let file = place.path().join("a/b/c");
            assert_eq!(std::fs::read(&file).unwrap(), b"two");
            let folder = destination.folder("a/b").unwrap();
            let found = destination.find(&folder, "a/b", "c").unwrap().unwrap();
            assert!(found.size == 3 && found.is_of(1_700_000_000_000_001) && !found.is_of(1_700_000_000_000_002));
            // A discarded file leaves nothing.
            drop(destination.create(&folder, "a/b", "d").unwrap());
            destination.finish().unwrap();
            let names: Vec<_> =
                std::fs::read_dir(place.path().join("a/b")).unwrap().map(|e| e.unwrap().file_name()).collect();
            assert_eq!(names, ["c"]);
            assert!(!place.path().join(MARKER).exists());
        }
    }

    #[test]
    fn what_was_there_before_is_known() {
        let place = tempfile::tempdir().unwrap();
        let open = |snapshot: &str, force| Destination::open(place.path(), &source(snapshot), &none(), None, force);
        assert_eq!(open("1", false).unwrap().before(), Before::Nothing);
        assert_eq!(open("1", false).unwrap().before(), Before::Resumed);
        assert_eq!(open("2", false).unwrap_err().kind(), ErrorKind::NotEmpty);
        assert_eq!(open("2", true).unwrap().before(), Before::OtherContent);
        let marker = place.path().join(MARKER);
        // A resumed export has not compared all files either, until it is complete.
        assert_eq!(open("2", false).unwrap().before(), Before::ResumedUnverified);
        assert_eq!(open("2", false).unwrap().before(), Before::ResumedUnverified);
        open("2", false).unwrap().finish().unwrap();
        open("2", false).unwrap();
        let other = std::fs::read_to_string(&marker).unwrap().replace(&boot(), "before");
        std::fs::write(&marker, other).unwrap();
        assert_eq!(open("2", false).unwrap().before(), Before::ResumedUnverified);
        open("2", false).unwrap().finish().unwrap();
        assert_eq!(open("2", false).unwrap().before(), Before::Nothing);
        open("2", false).unwrap().finish().unwrap();
        std::fs::write(place.path().join("x"), "").unwrap();
        assert_eq!(open("2", false).unwrap_err().kind(), ErrorKind::NotEmpty);
        // Invalid markers, and one that exceeds the limit.
        for nonsense in ["", "{", "[]", r#"{"repository":1}"#, &"[".repeat(1 << 20)] {
            std::fs::write(&marker, nonsense).unwrap();
            assert_eq!(open("2", true).unwrap_err().kind(), ErrorKind::NotEmpty);
        }
    }

    #[test]
    fn the_marker_has_a_name_that_is_not_taken() {
        for (name, expected) in [
            (MARKER, true),
            (".icechunkfs-export-1", true),
            (".icechunkfs-export-01", false),
            (".icechunkfs-export-", false),
        ] {
            assert_eq!(is_marker(name), expected, "{name}");
        }
        let place = tempfile::tempdir().unwrap();
        let taken: BTreeSet<String> = [MARKER.to_owned(), marker_name(2)].into();
        let open = |taken: &BTreeSet<String>| Destination::open(place.path(), &source("1"), taken, None, true);
        std::fs::create_dir(place.path().join(marker_name(1))).unwrap();
        let found = open(&taken).unwrap();
        assert_eq!((found.marker.as_str(), found.before()), (marker_name(3).as_str(), Before::OtherContent));
        drop(found);
        let found = open(&taken).unwrap();
        assert_eq!((found.marker.as_str(), found.before()), (marker_name(3).as_str(), Before::ResumedUnverified));
        // A marker by another name is found, and leaves the name to a tree that has it.
        drop(found);
        std::fs::rename(place.path().join(marker_name(3)), place.path().join(MARKER)).unwrap();
        let found = open(&taken).unwrap();
        assert_eq!((found.marker.as_str(), found.before()), (marker_name(3).as_str(), Before::ResumedUnverified));
        assert!(!place.path().join(MARKER).exists() && place.path().join(marker_name(3)).exists());
        found.finish().unwrap();
        assert!(!place.path().join(marker_name(3)).exists());
    }

    #[test]
    fn nothing_is_made_beside_it() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("root");
        let destination = Destination::open(&root, &source("1"), &none(), None, false).unwrap();
        std::os::unix::fs::symlink("..", root.join("up")).unwrap();
        for path in ["..", "../x", "a/../../x", "up", "up/x", "/x"] {
            assert!(destination.folder(path).is_err(), "{path}");
        }
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1);
        let inside = Destination::open(&root.join("x"), &source("1"), &none(), Some(&root), false).unwrap_err();
        let above = Destination::open(place.path(), &source("1"), &none(), Some(&root), true).unwrap_err();
        assert_eq!((inside.kind(), above.kind()), (ErrorKind::InvalidInput, ErrorKind::InvalidInput));
    }
}
