//! Finds uncommitted changes on this machine that are based on a repository, for a garbage
//! collection to keep what they need.
//!
//! The search covers the default locations of scratch directories, and those of existing mounts.
//! Scratch directories that were named with `--scratch` and are not mounted cannot be found, nor
//! those of other machines.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::fuse::health::Health;
use crate::fuse::mount_table::{self, Mount};
use crate::fuse::open_mount::{Deadline, OpenMount, REPLY_TIMEOUT};
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::file_name;
use icechunkfs_base::trust;
use icechunkfs_repo::repo::collect::{Uncommitted, UncommittedFinder};
use icechunkfs_store::storage::Storage;
use icechunkfs_store::storage::location::Location;
use icechunkfs_tree::mount_facts::MountInfo;
use icechunkfs_working::scratch::directory;
use icechunkfs_working::scratch::requirements::Requirements;
use icechunkfs_working::scratch::search::{Foreign, SearchLocation, SearchResult, is_in_foreign_hands};

/// Deadline of the search. Home directories may be on a network file system that does not answer.
const DEADLINE: Duration = Duration::from_secs(30);

/// Attempts to open a mount that the table has and its path does not lead to.
const TRIES: usize = 10;

const UNKNOWN: &str = "the objects that uncommitted changes need are not known: mount the branch and commit or discard it, or remove the scratch directory";

/// Returns a function that finds uncommitted changes on the repository in `storage`, also in the
/// scratch directories `named`. It stores its last result in `found`.
pub(super) fn finder(
    storage: &Arc<dyn Storage>,
    named: Vec<PathBuf>,
    found: Arc<Mutex<SearchResult>>,
) -> UncommittedFinder {
    let storage = Arc::clone(storage);
    Arc::new(move || {
        let storage = Arc::clone(&storage);
        let named = named.clone();
        let found = Arc::clone(&found);
        Box::pin(async move {
            let at = Arc::new(Mutex::new(PathBuf::new()));
            let search = Search { storage, named, at: Arc::clone(&at) };
            let looking = tokio::task::spawn_blocking(move || search.run());
            let looked = tokio::time::timeout(DEADLINE, looking).await.map_err(|_| {
                let place = at.lock().display().to_string();
                let seconds = DEADLINE.as_secs();
                let why = "its file system does not answer. Make it answer or unmount it, then run this again";
                Error::new(
                    ErrorKind::Timeout,
                    format!("looking for uncommitted work in {place} took {seconds} s: {why}"),
                )
            })?;
            let looked = looked.map_err(|e| Error::with_source(ErrorKind::Io, "looking for uncommitted work", e))??;
            let mut all = Uncommitted::default();
            for needs in &looked.work {
                all.snapshots.extend(&needs.snapshots);
                all.chunks.extend(&needs.chunks);
            }
            *found.lock() = looked;
            Ok(all)
        })
    })
}

/// Returns a writable mount of branch `name` of the repository in `storage`, wherever its scratch
/// directory is, if this process can see one. Mounts of other users do not count, as anybody can
/// claim to be a mount of anything.
pub(super) fn mount_of_branch(storage: &dyn Storage, name: &str) -> Result<Option<Mount>> {
    let suffix = format!("@branch:{name}");
    let is_of_branch = |mount: &Mount| {
        !mount.read_only
            && mount.owner.is_some_and(is_counted)
            && mount.source.strip_suffix(&suffix).is_some_and(|repository| {
                !is_hidden(storage, repository).unwrap_or(true) && storage.is_named(repository)
            })
    };
    Ok(mount_table::own_mounts()?.into_iter().find(is_of_branch))
}

struct Search {
    storage: Arc<dyn Storage>,
    named: Vec<PathBuf>,
    /// Path that is being searched.
    at: Arc<Mutex<PathBuf>>,
}

impl Search {
    fn run(&self) -> Result<SearchResult> {
        let mut found = SearchResult::default();
        // By the real location of a local repository, whatever path the user gave.
        let local = self.storage.local_path().map(|path| path.to_string_lossy().into_owned());
        let name = directory::name_of(local.as_deref().unwrap_or(self.storage.location()));
        for all in directory::places() {
            let place = all.join(&name);
            *self.at.lock() = place.base.join(&place.rest);
            found.add(&place, is_counted).context(|| UNKNOWN)?;
            // Those of a store are named after the text that the mount was made with.
            if local.is_none() {
                self.add_other_spellings(&all, &name, &mut found)?;
            }
        }
        let mut places = Vec::new();
        for mount in mount_table::own_mounts()? {
            self.at.lock().clone_from(&mount.mountpoint);
            if mount.is_own() {
                if self.is_mount_of(&mount)? {
                    places.extend(scratch_of(&mount)?);
                }
            } else if self.claims_repository(&mount) && !mount.read_only {
                // Root does not ask the daemon of the user who called `sudo`, either.
                let owner = mount.owner.unwrap_or(trust::UNKNOWN_USER);
                found.foreign.push(Foreign { path: mount.mountpoint, owner });
            }
        }
        for path in &self.named {
            let shown = || format!("--keep-scratch {}", path.display());
            let path = std::fs::canonicalize(path).map_err(|e| Error::io(shown(), e))?;
            if Requirements::of(&path).context(|| UNKNOWN)?.is_none() {
                return Err(Error::invalid(format!("{}: there is no uncommitted work in it", shown())));
            }
            places.push(path);
        }
        for path in places {
            if found.work.iter().all(|needs| needs.scratch != path) {
                found.work.extend(Requirements::of(&path).context(|| UNKNOWN)?);
            }
        }
        Ok(found)
    }

    /// Adds the scratch directories in `all` of mounts that were made with another spelling of the
    /// repository's URL than that of `name`.
    fn add_other_spellings(&self, all: &SearchLocation, name: &str, found: &mut SearchResult) -> Result<()> {
        let is_in_same_store = |words: &str| {
            let own = self.storage.place();
            let other = Location::parse(words).ok();
            own.zip(other).is_some_and(|(own, other)| own.is_in_same_store(&other.place))
        };
        for other in found.names_in(all, is_counted).context(|| UNKNOWN)? {
            if other == name {
                continue;
            }
            let place = all.join(&other);
            if file_name::decode(&other).is_some_and(|words| self.storage.is_named(&words)) {
                found.add(&place, is_counted).context(|| UNKNOWN)?;
            } else if file_name::decode_beginning(&other).is_some_and(|words| is_in_same_store(&words)) {
                // The name is cut off, and the journals have the whole text.
                let mut inside = SearchResult::default();
                inside.add(&place, is_counted).context(|| UNKNOWN)?;
                found.work.extend(inside.work.into_iter().filter(|needs| self.storage.is_named(&needs.repository)));
            }
        }
        Ok(())
    }

    fn is_mount_of(&self, mount: &Mount) -> Result<bool> {
        for repository in mount.repositories() {
            // Another user can mount over the way to the repository of any mount. What is needed by
            // one of another repository is kept without harm.
            if is_hidden(&*self.storage, repository)? || self.storage.is_named(repository) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns true if another user's mount claims to be of this repository. Its path is not
    /// followed.
    fn claims_repository(&self, mount: &Mount) -> bool {
        let own = self.storage.place();
        mount.repositories().any(|source| {
            let claimed = Location::parse(source).ok();
            source == self.storage.location()
                || own.as_ref().zip(claimed).is_some_and(|(own, claimed)| own.is_same(&claimed.place))
        })
    }
}

/// Returns true if the path `repository` leads through what another user serves, so that it cannot
/// be compared with a local repository.
fn is_hidden(storage: &dyn Storage, repository: &str) -> Result<bool> {
    match storage.local_path() {
        Some(local) if local != Path::new(repository) => is_in_foreign_hands(Path::new(repository)),
        _ => Ok(false),
    }
}

/// Returns true if the changes of `user` count: root, the current user, and the user who called
/// `sudo`.
fn is_counted(user: u32) -> bool {
    trust::is_trusted(user) || (rustix::process::geteuid().is_root() && sudo_user() == Some(user))
}

fn sudo_user() -> Option<u32> {
    std::env::var("SUDO_UID").ok()?.parse().ok()
}

/// Opens a mount of the table; none if it is not mounted any more. Fails if it cannot be reached:
/// it may have uncommitted changes.
fn open(mount: &Mount, deadline: Deadline) -> Result<Option<(OpenMount, Health)>> {
    // Another user may rename a directory on the way, which the table then knows.
    for _ in 0..TRIES {
        let now = mount_table::find_id(mount.id)?.filter(|now| now.device == mount.device);
        let Some(now) = now else { return Ok(None) };
        let opened = OpenMount::of(&now, deadline).map_err(|e| match e.kind() {
            ErrorKind::Timeout => Error::with_source(e.kind(), unreachable(&now), e),
            kind => Error::with_source(kind, format!("{} is a mount of this repository", now.mountpoint.display()), e),
        })?;
        if opened.is_some() {
            return Ok(opened);
        }
    }
    Err(Error::new(ErrorKind::Busy, unreachable(mount)))
}

fn unreachable(mount: &Mount) -> String {
    format!(
        "{} is a mount of this repository that may have uncommitted changes, and another file system covers it. Unmount that (`findmnt` lists all), \
         then run this again",
        mount.mountpoint.display()
    )
}

/// Returns the scratch directory of a mount, if it has one.
fn scratch_of(mount: &Mount) -> Result<Option<PathBuf>> {
    if mount.read_only {
        return Ok(None);
    }
    let place = mount.mountpoint.display();
    let deadline = Deadline::after(REPLY_TIMEOUT);
    let not_asked = "is a mount of this repository, and this user may not query it: run this as its owner";
    let Some((open, health)) = open(mount, deadline)? else { return Ok(None) };
    if health == Health::Hanging {
        return Err(open.silent(REPLY_TIMEOUT));
    }
    let info = match open.read("info.json", deadline)? {
        Ok(info) => info,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        // The daemon has died: its scratch directory may be outside of the locations that are
        // searched.
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {
            return Err(Error::new(
                ErrorKind::Busy,
                format!(
                    "{place} is a mount of this repository whose daemon has died: unmount it, and name its scratch directory with \
                     --keep-scratch if it has its own"
                ),
            ));
        }
        Err(error) => return Err(Error::io(format!("{place} {not_asked}"), error)),
    };
    let info: MountInfo = serde_json::from_slice(&info)
        .map_err(|e| Error::with_source(ErrorKind::Corrupt, format!("{place}: info.json"), e))?;
    Ok(info.scratch.map(PathBuf::from))
}
