//! Check that a scratch directory belongs to the mounted repository.

use std::path::Path;

use tracing::debug;

use crate::overlay::Origin;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_repo::repo::Repository;
use icechunkfs_repo::repo::identity::Identity;

/// Returns the origin that a journal records for branch `branch` of `repository`.
pub(super) async fn origin_of(repository: &Repository, branch: &str) -> Result<Origin> {
    let identity = match Identity::of(repository).await {
        // An operation that needs the unreadable object reports the error itself.
        Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound | ErrorKind::Unsupported) => {
            debug!("the repository's identity cannot be read: {error}");
            None
        }
        found => found?,
    };
    Ok(Origin { repository: repository.storage().location().to_owned(), branch: branch.to_owned(), identity })
}

/// Checks that the changes in `scratch`, made to `recorded`, belong to `repository`, which is
/// `now`. Returns a message if the repository has moved.
///
/// Fails with [`ErrorKind::InvalidInput`] if they belong to another repository.
pub(super) async fn compare(
    repository: &Repository,
    recorded: &Origin,
    now: &Origin,
    scratch: &Path,
) -> Result<Option<String>> {
    let same_location = recorded.repository == now.repository || repository.storage().is_named(&recorded.repository);
    let same_repository = match &recorded.identity {
        // An old journal has no identity: only the location can be compared.
        None => same_location,
        Some(identity) => recorded.identity == now.identity || identity.is_of(repository).await?,
    };
    match (same_repository, same_location, &recorded.identity) {
        (true, true, _) => Ok(None),
        (true, false, _) => {
            Ok(Some(format!("the repository was at {}, and is at {} now", recorded.repository, now.repository)))
        }
        (false, true, Some(identity)) => Err(Error::invalid(format!(
            "the scratch directory {} has changes to branch {} of the repository that was created at {} in {}, which \
             has been replaced. Put that repository back, name another directory with --scratch, or discard the \
             changes with --discard",
            scratch.display(),
            recorded.branch,
            identity.creation_time(),
            recorded.repository,
        ))),
        (false, ..) => Err(recorded.mismatch_error(now, scratch)),
    }
}
