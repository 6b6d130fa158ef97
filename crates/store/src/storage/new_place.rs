//! Places of new repositories on this machine.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::Mode;

use crate::recognize;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::trust;

/// Makes the missing directories of `path`, which `shown` describes, for a new repository, and
/// returns the last one, with its path without links. No link of another user is followed.
///
/// Errors: [`ErrorKind::AlreadyExists`] if it is in the directory of another repository, which
/// takes what its folders hold for its own, and deletes it as garbage;
/// [`ErrorKind::PermissionDenied`] for such a link.
pub(super) fn make(path: &Path, shown: &str) -> Result<(OwnedFd, PathBuf)> {
    let failed = |error: Error| match path.ancestors().find(|place| place.is_file()) {
        Some(file) if error.kind() == ErrorKind::NotADirectory => {
            Error::new(ErrorKind::NotADirectory, format!("{} is a file: name a directory", file.display()))
        }
        _ => error.context(format!("making {shown}")),
    };
    let place = trust::place_of(path).map_err(failed)?;
    if let Some(outer) = place.parent().and_then(recognize::repository_around) {
        let reason = format!("{shown} is inside the repository {}: name another directory", outer.display());
        return Err(Error::new(ErrorKind::AlreadyExists, reason));
    }
    trust::open_place(path, Some(Mode::from_raw_mode(0o777))).map_err(failed)
}
