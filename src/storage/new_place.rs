//! Places of new repositories on this machine.

use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Result};

/// Folders of a repository. What they hold belongs to it: its garbage is deleted, whatever it is to others.
const FOLDERS: [&str; 7] = ["attributes", "chunks", "manifests", "overwritten", "refs", "snapshots", "transactions"];

/// Makes the missing directories of `path`, which `shown` describes, for a new repository.
///
/// Errors: [`ErrorKind::AlreadyExists`] if it is in a folder of another repository.
pub(super) fn make(path: &Path, shown: &str) -> Result<()> {
    let failed = |error| Error::io(format!("making {shown}"), error);
    let path = resolved(path).map_err(failed)?;
    if let Some(outer) = path.ancestors().skip(1).find(|outer| is_in_repository(outer, &path)) {
        let reason = format!("{shown} is in a folder of the repository {}: choose another place", outer.display());
        return Err(Error::new(ErrorKind::AlreadyExists, reason));
    }
    std::fs::create_dir_all(&path).map_err(failed)
}

/// Returns `path` without symbolic links, as far as it exists.
fn resolved(path: &Path) -> std::io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    let existing = path.ancestors().find_map(|there| Some((there, there.canonicalize().ok()?)));
    Ok(match existing {
        Some((there, found)) => found.join(path.strip_prefix(there).unwrap_or(&path)),
        None => path,
    })
}

fn is_in_repository(outer: &Path, path: &Path) -> bool {
    let folder = path.strip_prefix(outer).ok().and_then(|below| below.components().next());
    folder.is_some_and(|folder| FOLDERS.iter().any(|known| folder.as_os_str() == *known))
        && outer.join("snapshots").is_dir()
        && (outer.join("repo").is_file() || outer.join("refs").is_dir())
}
