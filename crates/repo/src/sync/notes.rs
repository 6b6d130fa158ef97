//! Notes of this user on repositories that others are copied to: where each was cloned from, and
//! about which commits it agrees with others, which spares later copies the comparison.
//!
//! The first copy from a source compares everything that the refs reach, whatever is at the
//! destination already: ids prove nothing. Each destination then has a file in a directory of this
//! user's, which lists for each source the targets of the refs that were compared. What the
//! destination has of the histories of these need not be compared with this source again.
//!
//! A note may be lost, which costs a comparison. It must not outlive what it is about: commits that
//! are copied from one source are struck from the notes of all others, and a destination that was
//! made again (another directory) has no notes.

use std::collections::HashSet;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, Mode, OFlags};
use serde::{Deserialize, Serialize};
use tracing::{debug, warn};

use icechunkfs_base::error::{Error, Result};
use icechunkfs_base::file_name;
use icechunkfs_base::trust;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_store::storage::Storage;

/// Longest file of notes, in bytes: some thousand commits.
const MAX_FILE: u64 = 1 << 20;
/// Most targets that a note of one source has. Older ones are forgotten.
const MAX_TARGETS: usize = 2000;
/// Most sources that a destination has notes of.
const MAX_SOURCES: usize = 8;
/// Time for which the origin of a place that is gone is kept: a disk may come back, and others
/// never do.
const KEPT: Duration = Duration::from_secs(90 * 24 * 3600);
/// Version of the file's form.
const VERSION: u32 = 1;

/// Directory of the notes of all destinations.
#[derive(Clone, Debug)]
pub struct CopyNotes {
    directory: PathBuf,
}

/// File of one destination.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Content {
    version: u32,
    /// Location of the destination.
    destination: String,
    /// Device, number and time of creation of the directory of a local destination, none for
    /// others.
    directory: Option<String>,
    sources: Vec<Note>,
    /// Repository that it was cloned from. Files before this was noted lack it.
    #[serde(default)]
    origin: Option<Origin>,
}

/// Repository that another was cloned from, and how to reach it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Location of the repository, absolute and without secrets.
    pub location: String,
    /// Options to reach its store, as [`Settings::parse`] takes them, without secrets.
    ///
    /// [`Settings::parse`]: icechunkfs_store::storage::settings::Settings::parse
    pub options: Vec<String>,
}

/// Commits that were compared with one source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    source: String,
    targets: Vec<ObjectId>,
}

impl CopyNotes {
    /// Returns the notes in `directory`, which need not exist.
    pub fn new(directory: PathBuf) -> Self {
        CopyNotes { directory }
    }

    /// Returns the commits of `destination` that were compared with `source`, among others those
    /// that they follow.
    pub(super) fn targets(&self, destination: &dyn Storage, source: &dyn Storage) -> Vec<ObjectId> {
        let notes = self.read(destination);
        let of_source = notes.sources.into_iter().find(|note| note.source == place_of(source));
        of_source.map(|note| note.targets).unwrap_or_default()
    }

    /// Strikes `commits`, which are going to be copied from `source`, from the notes of other
    /// sources.
    pub(super) fn strike(
        &self,
        destination: &dyn Storage,
        source: &dyn Storage,
        commits: &HashSet<ObjectId>,
    ) -> Result<()> {
        let mut notes = self.read(destination);
        let before = notes.clone();
        for note in notes.sources.iter_mut().filter(|note| note.source != place_of(source)) {
            note.targets.retain(|target| !commits.contains(target));
        }
        if notes == before { Ok(()) } else { self.write(&notes) }
    }

    /// Notes that `targets`, and all that they follow, were compared with `source`.
    pub(super) fn note(
        &self,
        destination: &dyn Storage,
        source: &dyn Storage,
        targets: impl IntoIterator<Item = ObjectId>,
    ) {
        let mut notes = self.read(destination);
        let at = notes.sources.iter().position(|note| note.source == place_of(source));
        let before = at.map(|at| notes.sources.remove(at).targets).unwrap_or_default();
        let mut seen = HashSet::new();
        let all = targets.into_iter().chain(before).filter(|target| seen.insert(*target));
        let targets = all.take(MAX_TARGETS).collect();
        notes.sources.insert(0, Note { source: place_of(source), targets });
        notes.sources.truncate(MAX_SOURCES);
        if let Err(error) = self.write(&notes) {
            debug!("the next copy compares again: {error}");
        }
    }

    /// Returns where `destination` was cloned from; none if this user did not clone it.
    pub fn origin(&self, destination: &dyn Storage) -> Option<Origin> {
        self.read(destination).origin
    }

    /// Notes that `destination` was cloned from `origin`.
    pub fn set_origin(&self, destination: &dyn Storage, origin: Origin) -> Result<()> {
        self.write(&Content { origin: Some(origin), ..self.read(destination) })
    }

    /// Removes all notes of `destination`, in which another repository is created.
    pub fn remove(&self, destination: &dyn Storage) {
        let Ok((directory, _)) = trust::open_directory(&self.directory, &trust::is_trusted) else { return };
        let _ = rustix::fs::unlinkat(&directory, name_of(&place_of(destination)), AtFlags::empty());
    }

    /// Removes what was compared with `destination`, which is made again.
    pub(super) fn forget(&self, destination: &dyn Storage) -> Result<()> {
        let notes = self.read(destination);
        if notes.sources.is_empty() { Ok(()) } else { self.write(&Content { sources: Vec::new(), ..notes }) }
    }

    /// Reads the notes of `destination`; none if there is no file that belongs to this user and is
    /// about this destination. A disk may have another number after the machine has started again:
    /// the origin is then still known, and everything is compared again.
    fn read(&self, destination: &dyn Storage) -> Content {
        let none = || Content {
            version: VERSION,
            destination: place_of(destination),
            directory: destination.local_path().and_then(|path| identity_of(&path)),
            sources: Vec::new(),
            origin: None,
        };
        let Some(found) = self.read_file(&place_of(destination)) else { return none() };
        let expected = none();
        if found.version != VERSION || found.destination != expected.destination {
            return expected;
        }
        let of_directory = |notes: &Content| notes.directory.as_deref().map(|text| without_device(text).to_owned());
        if found.directory == expected.directory {
            found
        } else if of_directory(&found) == of_directory(&expected) {
            Content { origin: found.origin, ..expected }
        } else {
            expected
        }
    }

    fn read_file(&self, destination: &str) -> Option<Content> {
        let (directory, _) = trust::open_directory(&self.directory, &trust::is_trusted).ok()?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = rustix::fs::openat(&directory, name_of(destination), flags, Mode::empty()).ok()?;
        if let Err(why) = trust::check_file(&file) {
            warn!("{}: the notes on {destination} are not used: {why}", self.directory.display());
            return None;
        }
        let mut text = Vec::new();
        File::from(file).take(MAX_FILE).read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok()
    }

    fn write(&self, notes: &Content) -> Result<()> {
        let failed = |e: std::io::Error| Error::io(self.directory.display(), e);
        let (directory, _) = trust::create_directory(&self.directory)?;
        self.remove_dead(&directory);
        let name = name_of(&notes.destination);
        let staging = format!("{name}#{}", std::process::id());
        let text = serde_json::to_vec(notes).map_err(|e| failed(e.into()))?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let opened = rustix::fs::openat(&directory, staging.as_str(), flags, Mode::RUSR | Mode::WUSR);
        let mut file = File::from(opened.map_err(|errno| failed(errno.into()))?);
        let written = file.write_all(&text).and_then(|()| file.sync_all()).and_then(|()| {
            rustix::fs::renameat(&directory, staging.as_str(), &directory, name.as_str())?;
            Ok(rustix::fs::fsync(&directory)?)
        });
        written.map_err(|e| {
            let _ = rustix::fs::unlinkat(&directory, staging.as_str(), AtFlags::empty());
            failed(e)
        })
    }

    /// Removes the notes on local destinations that are gone. A disk that is not mounted may come
    /// back: what only costs a comparison is removed, and an origin is not.
    fn remove_dead(&self, directory: &OwnedFd) {
        let Ok(entries) = rustix::fs::Dir::read_from(directory) else { return };
        for entry in entries.flatten() {
            let Ok(name) = entry.file_name().to_str() else { continue };
            let Some(location) = file_name::decode(name) else { continue };
            let is_gone = location.starts_with('/') && !Path::new(&location).exists();
            if is_gone
                && (is_old(directory, name) || self.read_file(&location).is_none_or(|notes| notes.origin.is_none()))
            {
                let _ = rustix::fs::unlinkat(directory, name, AtFlags::empty());
            }
        }
    }
}

/// Returns the place of a repository, in one spelling if it is on this machine. Two stores may have
/// buckets of one name.
fn place_of(storage: &dyn Storage) -> String {
    match (storage.local_path(), &storage.capabilities().endpoint) {
        (Some(path), _) => path.display().to_string(),
        (None, Some(endpoint)) => format!("{} at {endpoint}", storage.location()),
        (None, None) => storage.location().to_owned(),
    }
}

fn name_of(destination: &str) -> String {
    file_name::encode(destination)
}

/// Returns a text that another directory at `path` would not have.
fn identity_of(path: &Path) -> Option<String> {
    let found = std::fs::metadata(path).ok()?;
    let created = found.created().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    Some(format!("{}:{}:{}", found.dev(), found.ino(), created.map_or(0, |at| at.as_nanos())))
}

/// Returns true if the file `name` was not written for [`KEPT`].
fn is_old(directory: &OwnedFd, name: &str) -> bool {
    let written = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).map_or(0, |found| found.st_mtime);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    now.saturating_sub(u64::try_from(written).unwrap_or(0)) > KEPT.as_secs()
}

/// Returns what of an identity stays when a disk gets another number: all of it where the time of
/// creation, which makes it one, is not known.
fn without_device(identity: &str) -> &str {
    match identity.split_once(':') {
        Some((_, rest)) if !rest.ends_with(":0") => rest,
        _ => identity,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;

    use super::*;
    use icechunkfs_store::storage::{empty_storage, open_directory};

    fn id(n: u8) -> ObjectId {
        ObjectId([n; 12])
    }

    struct Scene {
        _base: tempfile::TempDir,
        notes: CopyNotes,
        destination: Arc<dyn Storage>,
        one: Arc<dyn Storage>,
        other: Arc<dyn Storage>,
    }

    fn scene() -> Scene {
        let base = tempfile::tempdir().unwrap();
        std::fs::set_permissions(base.path(), PermissionsExt::from_mode(0o700)).unwrap();
        let notes = CopyNotes::new(base.path().join("state/notes"));
        let place = base.path().join("destination");
        std::fs::create_dir(&place).unwrap();
        let destination = open_directory(&place).unwrap();
        Scene { notes, destination, one: empty_storage("one"), other: empty_storage("other"), _base: base }
    }

    #[test]
    fn notes_are_about_one_source() {
        let Scene { notes, destination, one, other, .. } = &scene();
        assert_eq!(notes.targets(&**destination, &**one), []);
        notes.note(&**destination, &**one, [id(1), id(2)]);
        notes.note(&**destination, &**one, [id(3), id(1)]);
        assert_eq!(notes.targets(&**destination, &**one), [id(3), id(1), id(2)]);
        assert_eq!(notes.targets(&**destination, &**other), []);
        assert_eq!(notes.targets(&**other, &**one), []);
    }

    #[test]
    fn commits_that_come_from_elsewhere_are_struck() {
        let Scene { notes, destination, one, other, .. } = &scene();
        notes.note(&**destination, &**one, [id(1), id(2)]);
        notes.strike(&**destination, &**other, &[id(2), id(9)].into()).unwrap();
        assert_eq!(notes.targets(&**destination, &**one), [id(1)]);
        notes.strike(&**destination, &**one, &[id(1)].into()).unwrap();
        assert_eq!(notes.targets(&**destination, &**one), [id(1)], "they come from the source itself");
        notes.forget(&**destination).unwrap();
        assert_eq!(notes.targets(&**destination, &**one), []);
    }

    #[test]
    fn another_directory_in_the_same_place_has_no_notes() {
        let Scene { notes, destination, one, _base, .. } = &scene();
        notes.note(&**destination, &**one, [id(1)]);
        let place = _base.path().join("destination");
        std::fs::rename(&place, _base.path().join("before")).unwrap();
        std::fs::create_dir(&place).unwrap();
        assert_eq!(notes.targets(&*open_directory(&place).unwrap(), &**one), []);
        std::fs::remove_dir(&place).unwrap();
        let elsewhere = _base.path().join("elsewhere");
        std::fs::create_dir(&elsewhere).unwrap();
        notes.note(&*open_directory(&elsewhere).unwrap(), &**one, [id(1)]);
        let kept: Vec<_> = std::fs::read_dir(_base.path().join("state/notes")).unwrap().collect();
        assert_eq!(kept.len(), 1, "notes on a place that is gone are removed");
    }

    #[test]
    fn an_origin_stays_until_another_directory_is_there() {
        let Scene { notes, destination, one, _base, .. } = &scene();
        let origin = |n: u8| Origin { location: format!("s3://bucket/{n}"), options: vec!["anonymous".to_owned()] };
        assert_eq!(notes.origin(&**destination), None);
        notes.note(&**destination, &**one, [id(1)]);
        notes.set_origin(&**destination, origin(1)).unwrap();
        notes.set_origin(&**destination, origin(2)).unwrap();
        assert_eq!(notes.targets(&**destination, &**one), [id(1)]);
        notes.forget(&**destination).unwrap();
        assert_eq!(notes.origin(&**destination), Some(origin(2)), "of a clone that goes on");
        notes.note(&**destination, &**one, [id(1)]);
        let file = notes.directory.join(name_of(&place_of(&**destination)));
        let text = std::fs::read_to_string(&file).unwrap();
        let on_another_disk = |text: &str| {
            let mut notes: Content = serde_json::from_str(text).unwrap();
            notes.directory = notes.directory.map(|identity| format!("9{identity}"));
            serde_json::to_string(&notes).unwrap()
        };
        std::fs::write(&file, on_another_disk(&text)).unwrap();
        assert_eq!(notes.targets(&**destination, &**one), []);
        assert_eq!(notes.origin(&**destination), Some(origin(2)));
        let place = _base.path().join("destination");
        std::fs::rename(&place, _base.path().join("before")).unwrap();
        std::fs::create_dir(&place).unwrap();
        assert_eq!(notes.origin(&*open_directory(&place).unwrap()), None);
    }

    #[test]
    fn notes_that_others_may_write_are_not_believed() {
        let Scene { notes, destination, one, _base, .. } = &scene();
        notes.note(&**destination, &**one, [id(1)]);
        let file = notes.directory.join(name_of(&place_of(&**destination)));
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o666)).unwrap();
        assert_eq!(notes.targets(&**destination, &**one), []);
        std::fs::remove_file(&file).unwrap();
        std::fs::write(&file, "nonsense").unwrap();
        assert_eq!(notes.targets(&**destination, &**one), []);
    }
}
