//! Check that a scratch directory belongs to the mounted repository.

use std::path::Path;

use tracing::debug;

use crate::error::{Error, ErrorKind, Result};
use crate::overlay::Origin;
use crate::repo::Repository;

/// Returns the origin that a journal records for branch `branch` of `repository`.
pub(super) async fn of(repository: &Repository, branch: &str) -> Result<Origin> {
    let identity = match repository.identity().await {
        // An operation that needs the unreadable object reports the error itself.
        Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound | ErrorKind::Unsupported) => {
            debug!("what identifies the repository cannot be read: {error}");
            None
        }
        found => found?,
    };
    Ok(Origin { repository: repository.storage().location().to_owned(), branch: branch.to_owned(), identity })
}

/// Checks that the changes in `scratch`, made to `told`, belong to `repository`, which is `now`. Returns a message if the
/// repository has moved.
///
/// Fails with [`ErrorKind::InvalidInput`] if they belong to another repository.
pub(super) async fn compare(
    repository: &Repository,
    told: &Origin,
    now: &Origin,
    scratch: &Path,
) -> Result<Option<String>> {
    let is_there = told.repository == now.repository || is_one_directory(&told.repository, repository);
    let is_same = match &told.identity {
        // An old journal has no identity: only the location can be compared.
        None => is_there,
        Some(identity) => told.identity == now.identity || repository.is(identity).await?,
    };
    match (is_same, is_there, &told.identity) {
        (true, true, _) => Ok(None),
        (true, false, _) => {
            Ok(Some(format!("the repository was at {}, and is at {} now", told.repository, now.repository)))
        }
        (false, true, Some(identity)) => Err(Error::invalid(format!(
            "the scratch directory {} has changes to branch {} of the repository that was created at {} in {}, and there is another \
             one now: put the old one back, name another directory with --scratch, or give the changes up with --discard",
            scratch.display(),
            told.branch,
            identity.created(),
            told.repository,
        ))),
        (false, ..) => Err(told.mismatch_error(now, scratch)),
    }
}

/// Returns true if `words` is a path of the local directory of `repository`.
fn is_one_directory(words: &str, repository: &Repository) -> bool {
    let real = std::fs::canonicalize(words).ok();
    real.is_some() && real == repository.storage().local_path()
}
