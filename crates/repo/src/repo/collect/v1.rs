//! Garbage collection in version 1, where refs are small files and commits name their parents
//! themselves.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use super::sweep::Listed;
use super::{Collected, GcOptions, Keep, Progress, UncommittedFinder};
use crate::repo::clock::ChangeTime;
use crate::repo::ref_files::Layout;
use crate::repo::{MAX_REPO_FILE, MAX_SNAPSHOT};
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::stages::Stages;
use icechunkfs_base::times::Clock;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_store::storage::{Storage, decoded};

pub(super) async fn collect(
    storage: &Arc<dyn Storage>,
    options: GcOptions,
    clock: Clock,
    uncommitted: &UncommittedFinder,
    progress: &Progress,
) -> Result<Collected> {
    let stages = Stages::begin("looking for uncommitted work");
    let mut tips = refs(storage).await?;
    let work = uncommitted().await?;
    stages.enter("listing objects");
    let mut listed = Listed::get(storage).await?;
    stages.enter("finding reachable objects");
    let mut keep = Keep::new(&work, BTreeSet::new());
    let roots = tips.iter().copied().chain(listed.existing(&work.snapshots));
    let mut commits = HashSet::new();
    history(storage, roots, &mut commits).await?;
    keep.needed.add(storage, commits.iter().copied(), progress).await?;
    let mut garbage = listed.garbage(&keep, options.older_than);
    if options.dry_run || garbage.is_empty() {
        return Ok(garbage.count(&listed, &keep));
    }
    // The age of objects protects those that are not published yet: with a wrong clock it would
    // not.
    ChangeTime::check_by_responses(&**storage, clock)?;
    // Reads the refs again, for commits that were published or restored meanwhile.
    loop {
        let now = refs(storage).await?;
        if now == tips {
            break;
        }
        history(storage, now.iter().copied(), &mut commits).await?;
        keep.needed.add(storage, commits.iter().copied(), progress).await?;
        garbage.retain_unneeded(&keep);
        tips = now;
    }
    let collected = garbage.count(&listed, &keep);
    stages.enter("removing objects");
    garbage.remove(storage, progress).await?;
    Ok(collected)
}

/// Returns the targets of all refs. Fails if a ref cannot be read, because it may point to
/// anything.
async fn refs(storage: &Arc<dyn Storage>) -> Result<BTreeSet<ObjectId>> {
    match storage.get("repo", MAX_REPO_FILE).await {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
        Ok(_) => {
            let why = "the repository was migrated to version 2 concurrently: nothing was removed; run this again";
            return Err(Error::new(ErrorKind::Contended, why));
        }
    }
    let objects = storage.list("refs/").await?;
    let keys: HashSet<&str> = objects.iter().map(|object| object.key.as_str()).collect();
    let mut tips = BTreeSet::new();
    for key in keys.iter().filter(|key| key.ends_with("/ref.json") && !keys.contains(format!("{key}.deleted").as_str()))
    {
        // A ref that was deleted since the listing leads to nothing.
        tips.extend(Layout::V1.read(&**storage, key).await.context(|| "nothing was removed")?);
    }
    if tips.is_empty() {
        return Err(Error::corrupt("no branch or tag could be read: nothing was removed"));
    }
    Ok(tips)
}

/// Adds `tips` and their ancestors to `commits`, read from the store itself: an expiration rewrites
/// snapshot files.
async fn history(
    storage: &Arc<dyn Storage>,
    tips: impl Iterator<Item = ObjectId>,
    commits: &mut HashSet<ObjectId>,
) -> Result<()> {
    for tip in tips {
        let mut next = Some(tip);
        while let Some(id) = next.filter(|id| commits.insert(*id)) {
            let key = format!("snapshots/{id}");
            let decode = |file: &[u8]| Ok(Snapshot::decode(file, MAX_SNAPSHOT)?.parent_id());
            let found = decoded::changing(&**storage, &key, MAX_SNAPSHOT, decode).await;
            let missing =
                |error: Error| error.not_found_as_corrupt(format!("snapshot {id} is missing: nothing was removed"));
            next = found.map_err(missing)?.value;
        }
    }
    Ok(())
}
