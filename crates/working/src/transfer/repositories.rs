//! Refusal of directories that are those of repositories: of exports into them, and of imports of
//! what lies there.

use std::path::{Path, PathBuf};

use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::trust;
use icechunkfs_store::recognize;

/// Fails if `path` is in the directory of any repository, which other files would damage, or holds
/// `repository`.
pub(super) fn refuse_repositories(path: &Path, repository: Option<&Path>) -> Result<()> {
    refuse_repository(path, repository, trust::place_of)?;
    let place = trust::place_of(path)?;
    if recognize::repository_around(&place).is_some_and(|found| found == place) {
        return Err(Error::invalid(format!("{} is a repository: name another directory", path.display())));
    }
    recognize::refuse_inside(path.display(), &place, ErrorKind::InvalidInput)
}

/// Fails if `path`, without links as `resolve` finds it, lies in the directory of a repository, or
/// contains it.
pub(super) fn refuse_repository(
    path: &Path,
    repository: Option<&Path>,
    resolve: impl Fn(&Path) -> Result<PathBuf>,
) -> Result<()> {
    let Some(repository) = repository.and_then(|repository| std::fs::canonicalize(repository).ok()) else {
        return Ok(());
    };
    let wanted = resolve(path)?;
    if wanted.starts_with(&repository) || repository.starts_with(&wanted) {
        return Err(Error::invalid(format!(
            "{}: the repository is at, above or below this place, and other files would damage it: name another \
             directory",
            path.display()
        )));
    }
    Ok(())
}
