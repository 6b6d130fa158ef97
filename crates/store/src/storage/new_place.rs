//! Places of new repositories on this machine.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::Mode;

use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::trust;

/// Folders of a repository. What they hold belongs to it: its garbage is deleted, whatever it is to
/// others.
const FOLDERS: [&str; 7] = ["attributes", "chunks", "manifests", "overwritten", "refs", "snapshots", "transactions"];

/// Makes the missing directories of `path`, which `shown` describes, for a new repository, and
/// returns the last one, with its path without links. No link of another user is followed.
///
/// Errors: [`ErrorKind::AlreadyExists`] if it is in a folder of another repository,
/// [`ErrorKind::PermissionDenied`] for such a link.
pub(super) fn make(path: &Path, shown: &str) -> Result<(OwnedFd, PathBuf)> {
    let failed = |error: Error| error.context(format!("making {shown}"));
    let place = trust::place_of(path).map_err(failed)?;
    if let Some(outer) = place.ancestors().skip(1).find(|outer| is_in_repository(outer, &place)) {
        let reason = format!("{shown} is in a folder of the repository {}: choose another place", outer.display());
        return Err(Error::new(ErrorKind::AlreadyExists, reason));
    }
    trust::open_place(path, Some(Mode::from_raw_mode(0o777))).map_err(failed)
}

fn is_in_repository(outer: &Path, path: &Path) -> bool {
    let folder = path.strip_prefix(outer).ok().and_then(|below| below.components().next());
    folder.is_some_and(|folder| FOLDERS.iter().any(|known| folder.as_os_str() == *known))
        && outer.join("snapshots").is_dir()
        && (outer.join("repo").is_file() || outer.join("refs").is_dir())
}
