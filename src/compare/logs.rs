//! Reads the transaction logs of the commits between two snapshots.
//!
//! A log lists what a commit touched, not the result: what one commit created and another removed again is in both. Logs of
//! commits that expiration has removed are kept by the commit after them ("pruned") and count in their place.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::commit::rebase::{read_log, read_log_if_any};
use crate::error::Result;
use crate::format::envelope::SpecVersion;
use crate::format::ids::{NodeId, ObjectId};
use crate::format::transaction_log::{Move, NodeChange, TransactionLog};
use crate::repo::Repository;
use crate::zarr::Coords;

/// The union of several logs.
#[derive(Clone, Debug, Default)]
pub struct LogUnion {
    /// Nodes that were created, deleted or updated.
    pub nodes: BTreeSet<(NodeChange, NodeId)>,
    /// Chunks written or deleted.
    pub updated_chunks: HashMap<NodeId, HashSet<Coords>>,
    /// Moves, in order.
    pub moves: Vec<Move>,
    /// Ids of missing logs, whose changes are not included.
    pub missing: Vec<ObjectId>,
}

impl LogUnion {
    fn add(&mut self, log: &TransactionLog) -> Result<()> {
        self.nodes.extend(log.changed_nodes());
        self.moves.extend(log.moves()?);
        add_chunks(&mut self.updated_chunks, log);
        Ok(())
    }
}

fn add_chunks(all: &mut HashMap<NodeId, HashSet<Coords>>, log: &TransactionLog) {
    for (node, chunks) in log.updated_chunks() {
        all.entry(node).or_default().extend(chunks.map(Coords::from_vec));
    }
}

/// Returns what the commits after `from` up to `to` touched; none if `from` is neither `to` nor one of its ancestors.
///
/// A missing pruned log (old releases collected them) is listed in the result; any other missing log is an error.
pub async fn between(repository: &Repository, from: ObjectId, to: ObjectId) -> Result<Option<LogUnion>> {
    let Some(commits) = repository.since(to, from).await? else { return Ok(None) };
    let mut logged = LogUnion::default();
    for commit in commits {
        for id in &commit.pruned_ancestor_tx_logs {
            match read_log_if_any(&**repository.storage(), *id).await? {
                Some(log) => logged.add(&log)?,
                None => logged.missing.push(*id),
            }
        }
        // The first commit of a repository of version 1 has no log.
        if commit.parent.is_none() && repository.version() == SpecVersion::V1 {
            continue;
        }
        logged.add(&read_log(&**repository.storage(), commit.id).await?)?;
    }
    Ok(Some(logged))
}

/// Returns the chunks that the commits after `old` up to `new` wrote or deleted, by array. None if `old` is not among the
/// `most` nearest ancestors of `new`, or a log cannot be read.
pub async fn written(
    repository: &Repository,
    old: ObjectId,
    new: ObjectId,
    most: usize,
) -> Result<Option<HashMap<NodeId, HashSet<Coords>>>> {
    let history = repository.history(new, most.saturating_add(1)).await?;
    let Some(commits) = history.iter().position(|commit| commit.id == old) else { return Ok(None) };
    let mut written = HashMap::new();
    for commit in history.iter().take(commits) {
        for id in commit.log_ids() {
            let Ok(log) = read_log(&**repository.storage(), id).await else { return Ok(None) };
            add_chunks(&mut written, &log);
        }
    }
    Ok(Some(written))
}
