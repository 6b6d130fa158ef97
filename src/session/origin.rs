//! Whether a scratch directory is about the repository that is mounted.

use std::path::Path;

use tracing::debug;

use crate::error::{Error, ErrorKind, Result};
use crate::repo::Repository;
use crate::working::Origin;

/// Branch `branch` of `repository`, as the journal of its scratch directory names it.
pub(super) async fn of(repository: &Repository, branch: &str) -> Result<Origin> {
    let identity = match repository.identity().await {
        // Whoever needs what cannot be read says so.
        Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound | ErrorKind::Unsupported) => {
            debug!("what identifies the repository cannot be read: {error}");
            None
        }
        found => found?,
    };
    Ok(Origin { repository: repository.storage().location().to_owned(), branch: branch.to_owned(), identity })
}

/// Makes sure that changes in `scratch`, which were made to `told`, were made to `repository`, which is `now`. Returns what to say if it
/// lies elsewhere than it did.
///
/// An error of kind [`ErrorKind::InvalidInput`] if they were made to another one.
pub(super) async fn compare(
    repository: &Repository,
    told: &Origin,
    now: &Origin,
    scratch: &Path,
) -> Result<Option<String>> {
    let is_there = told.repository == now.repository || is_one_directory(&told.repository, repository);
    let is_same = match &told.identity {
        // An old journal does not say: its place is all there is to go by.
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
        (false, ..) => Err(told.is_not(now, scratch)),
    }
}

/// Whether `words` lead to the local directory of `repository`.
fn is_one_directory(words: &str, repository: &Repository) -> bool {
    let real = std::fs::canonicalize(words).ok();
    real.is_some() && real == repository.storage().local_path()
}
