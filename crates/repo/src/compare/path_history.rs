//! The commits that touched a node, whatever it was called at the time.
//!
//! Transaction logs name nodes by id, so that a node is followed through moves. What was at or
//! below a path is only known from snapshots; they are read where a log says that nodes were
//! created, deleted or moved. A path that the newest snapshot does not have is looked for further
//! back.

use std::collections::HashSet;
use std::ops::Range;

use futures_util::future::BoxFuture;
use futures_util::{StreamExt, TryStreamExt};

use super::logs::of_commit;
use crate::commit::log::LogUnion;
use crate::repo::{MAX_SNAPSHOT, Repository};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_format::format::ids::{NodeId, ObjectId};
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_format::format::snapshot_info::SnapshotInfo;
use icechunkfs_format::zarr::Coords;
use icechunkfs_format::zarr::array::ArrayMetadata;

/// Logs that are read at the same time: over a network, so many requests hide each other's latency.
const CONCURRENT_LOGS: usize = 16;

/// Chunks of an array: a range of positions in the chunk grid for each dimension.
pub type Region = Vec<Range<u32>>;

/// Node at a path, and all nodes below it.
struct Tracked {
    path: String,
    top: NodeId,
    all: HashSet<NodeId>,
}

impl Tracked {
    /// Finds the node at `path`.
    fn at(snapshot: &Snapshot, path: &str) -> Option<Self> {
        let top = snapshot.nodes().find(|node| node.path == path)?.id;
        let below = if path == "/" { "/".to_owned() } else { format!("{path}/") };
        let all = snapshot.nodes().filter(|node| node.path == path || node.path.starts_with(&below));
        Some(Tracked { path: path.to_owned(), top, all: all.map(|node| node.id).collect() })
    }

    /// Finds the same node in the snapshot before, or another one that was at its path.
    fn before(&self, snapshot: &Snapshot) -> Option<Self> {
        let moved = snapshot.nodes().find(|node| node.id == self.top).map(|node| node.path.to_owned());
        Tracked::at(snapshot, moved.as_deref().unwrap_or(&self.path))
    }

    /// Fails if the node has no such `region`: it is a group, or an array of another rank.
    fn check(&self, snapshot: &Snapshot, region: Option<&Region>) -> Result<()> {
        let Some(region) = region else { return Ok(()) };
        let node = snapshot.nodes().find(|node| node.id == self.top);
        let rank = match node.map(|node| ArrayMetadata::parse(node.zarr_json)) {
            Some(Err(error)) if error.kind() == ErrorKind::OutOfMemory => return Err(error.context(&self.path)),
            array => array.and_then(Result::ok).map(|array| array.grid.len()),
        };
        match rank {
            Some(rank) if rank == region.len() => Ok(()),
            Some(rank) => Err(Error::invalid(format!(
                "{}: {} ranges of chunks, but the array has {rank} dimensions: give one range for each, `:` for all",
                self.path,
                region.len()
            ))),
            None => Err(Error::invalid(format!("{}: it is not an array and has no chunks", self.path))),
        }
    }

    /// Returns true if a commit with this log touched any of the nodes; with a region, its chunks
    /// there, or the array as a whole.
    fn is_touched(&self, log: &LogUnion, region: Option<&Region>) -> bool {
        let mut nodes = log.nodes.iter().filter(|(change, _)| region.is_none() || !change.is_update());
        let in_region = |coords: &Coords| {
            region.is_none_or(|region| {
                region.len() == coords.len() && region.iter().zip(coords).all(|(range, at)| range.contains(at))
            })
        };
        nodes.any(|(_, id)| self.all.contains(id))
            || log.moves.iter().any(|moved| self.all.contains(&moved.node))
            || log.chunks.iter().any(|(id, chunks)| self.all.contains(id) && chunks.iter().any(in_region))
    }
}

/// Returns true if a commit with this log may have changed what is at which path.
fn is_structural(log: &LogUnion) -> bool {
    !log.moves.is_empty() || log.nodes.iter().any(|(change, _)| !change.is_update())
}

/// Calls `found` for those of the commits in `history`, newest first, that touched what is at and
/// below `path` (absolute), at most `limit`, with the path of the node after the commit; before it
/// if the commit deleted the node. With `region`, only for commits that touched those chunks of the
/// array at `path`, or created, deleted or moved it.
///
/// Fails with [`ErrorKind::NotFound`] if no snapshot has the path, and with
/// [`ErrorKind::InvalidInput`] if it has no such region.
pub async fn touches(
    repository: &Repository,
    history: &[SnapshotInfo<()>],
    path: &str,
    region: Option<&Region>,
    limit: usize,
    mut found: impl AsyncFnMut(ObjectId, &str) -> Result<()>,
) -> Result<()> {
    let mut count = 0;
    let mut is_known = false;
    let Some(newest) = history.first() else { return Ok(()) };
    let load = async |id: ObjectId| repository.snapshot(id, MAX_SNAPSHOT).await;
    let tip = load(newest.id).await?;
    let mut tracked = Tracked::at(&tip, path);
    if let Some(tracked) = &tracked {
        tracked.check(&tip, region)?;
    }
    // Boxed: the compiler cannot prove that futures from a closure are `Send`.
    let read = |commit| -> BoxFuture<'_, Result<LogUnion>> { Box::pin(of_commit(repository, commit)) };
    let mut logs = futures_util::stream::iter(history.iter().map(read)).buffered(CONCURRENT_LOGS);
    for commit in history {
        is_known |= tracked.is_some();
        if count >= limit {
            break;
        }
        let Some(log) = logs.try_next().await? else { break };
        let parent = match commit.parent {
            Some(parent) if is_structural(&log) => Some(load(parent).await?),
            Some(_) => {
                if let Some(tracked) = tracked.as_ref().filter(|tracked| tracked.is_touched(&log, region)) {
                    count += 1;
                    found(commit.id, &tracked.path).await?;
                }
                continue;
            }
            None => None,
        };
        let earlier = || Tracked::at(parent.as_ref()?, path);
        let before = match &tracked {
            Some(tracked) => parent.as_ref().and_then(|snapshot| tracked.before(snapshot)),
            None => earlier(),
        };
        if let (false, Some(before), Some(parent)) = (is_known, &before, &parent) {
            before.check(parent, region)?;
        }
        is_known |= before.is_some();
        let is_first = commit.parent.is_none() && tracked.is_some();
        let sides = [tracked.as_ref(), before.as_ref()];
        if is_first || sides.into_iter().flatten().any(|side| side.is_touched(&log, region)) {
            let path = sides.into_iter().flatten().next().map_or(path, |side| &side.path);
            count += 1;
            found(commit.id, path).await?;
        }
        // Where the node was created, another one may have had the path before.
        tracked = before.or_else(earlier);
    }
    if !is_known {
        return Err(Error::new(ErrorKind::NotFound, format!("{path}: no commit has a node of that path")));
    }
    Ok(())
}
