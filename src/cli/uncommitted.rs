//! Uncommitted work on a repository, as far as this machine knows: what a collection must not take from under it.
//!
//! Scratch directories are where mounts put them when nothing is said, and where the mounts that are there now have them. Those that
//! were named with `--scratch` and are not mounted are known to nobody, nor are those of other machines.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::error::{Context, Error, ErrorKind, Result};
use crate::fuse::mount_table::{self, Mount};
use crate::repo::collect::{FindUncommitted, Uncommitted};
use crate::scratch::needs::{self, Needs};
use crate::scratch::place;
use crate::storage::Storage;

/// How long a mount may take to tell what it is. It answers out of memory.
const DEADLINE: Duration = Duration::from_secs(10);

/// What was found.
#[derive(Clone, Debug, Default)]
pub(super) struct Found {
    /// Scratch directories with work in them.
    pub(super) work: Vec<Needs>,
    /// Places that this user may not look into.
    pub(super) closed: Vec<PathBuf>,
}

/// Looks for uncommitted work on the repository in `storage`, and in the scratch directories `named`. What was found last is in
/// `found`.
pub(super) fn finder(storage: &Arc<dyn Storage>, named: Vec<PathBuf>, found: Arc<Mutex<Found>>) -> FindUncommitted {
    let storage = Arc::clone(storage);
    Arc::new(move || {
        let (location, local) = (storage.location().to_owned(), storage.local_path());
        let (named, found) = (named.clone(), Arc::clone(&found));
        Box::pin(async move {
            let looking = tokio::task::spawn_blocking(move || look(&location, local.as_deref(), &named));
            let looked = tokio::time::timeout(DEADLINE, looking).await.map_err(|_| {
                let why = "a mount of this repository does not answer: end it (icechunkfs unmount --force), then run this again";
                Error::new(ErrorKind::Timeout, why)
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

fn look(location: &str, local: Option<&Path>, named: &[PathBuf]) -> Result<Found> {
    let mut places: BTreeSet<PathBuf> = BTreeSet::new();
    let mut found = Found::default();
    // By where the repository really is, whatever the words for it.
    let local_words = local.map(|path| path.to_string_lossy().into_owned());
    for directory in place::directories_for(local_words.as_deref().unwrap_or(location)) {
        match needs::in_directory(&directory) {
            Ok(inside) => places.extend(inside),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => found.closed.push(directory),
            Err(error) => return Err(error),
        }
    }
    for mount in mount_table::ours()?.iter().filter(|mount| is_of(mount, location, local)) {
        places.extend(scratch_of(mount)?);
    }
    for path in named {
        let path =
            std::fs::canonicalize(path).map_err(|e| Error::io(format!("--keep-scratch {}", path.display()), e))?;
        if Needs::of(&path)?.is_none() {
            return Err(Error::invalid(format!(
                "--keep-scratch {}: there is no uncommitted work in it",
                path.display()
            )));
        }
        places.insert(path);
    }
    for path in places {
        let needs = Needs::of(&path).context(|| {
            "what uncommitted work needs is not known: mount the branch and commit or discard it, or remove the scratch directory"
        })?;
        found.work.extend(needs);
    }
    Ok(found)
}

fn is_of(mount: &Mount, location: &str, local: Option<&Path>) -> bool {
    match local {
        Some(local) => std::fs::canonicalize(&mount.source).is_ok_and(|source| source == local),
        None => mount.source == location,
    }
}

/// The scratch directory of a mount; none if it has none.
fn scratch_of(mount: &Mount) -> Result<Option<PathBuf>> {
    if mount.read_only {
        return Ok(None);
    }
    let place = mount.mountpoint.display();
    let told = match std::fs::read(mount.mountpoint.join(".icechunk/info.json")) {
        Ok(told) => told,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        // A daemon that has died: its scratch directory is one of those that are looked at anyway, or nobody knows it.
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {
            return Err(Error::new(
                ErrorKind::Busy,
                format!(
                    "{place} is a mount of this repository whose daemon has died: unmount it, and name its scratch directory with \
                     --keep-scratch if it has one of its own"
                ),
            ));
        }
        Err(error) => {
            return Err(Error::io(
                format!(
                    "{place} is a mount of this repository, and this user may not ask it what it needs: run this as its owner"
                ),
                error,
            ));
        }
    };
    let told: serde_json::Value = serde_json::from_slice(&told)
        .map_err(|e| Error::with_source(ErrorKind::Corrupt, format!("{place}: info.json"), e))?;
    Ok(told.get("scratch").and_then(serde_json::Value::as_str).map(PathBuf::from))
}
