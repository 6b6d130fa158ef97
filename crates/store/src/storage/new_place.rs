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
/// Errors: [`ErrorKind::AlreadyExists`] if it is inside another repository,
/// [`ErrorKind::PermissionDenied`] for such a link.
pub(super) fn make(path: &Path, shown: &str) -> Result<(OwnedFd, PathBuf)> {
    let failed = |error: Error| {
        // Only after this failure: others may be about a file system of another user.
        let is_file = |place: &&Path| error.kind() == ErrorKind::NotADirectory && place.is_file();
        match path.ancestors().find(is_file) {
            Some(file) => Error::new(error.kind(), format!("{} is a file: name a directory", file.display())),
            None => error.context(format!("making {shown}")),
        }
    };
    let place = trust::place_of(path).map_err(failed)?;
    recognize::refuse_inside(shown, &place, ErrorKind::AlreadyExists)?;
    trust::open_place(path, Some(Mode::from_raw_mode(0o777))).map_err(failed)
}
