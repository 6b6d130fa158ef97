//! Rules of transaction logs, by themselves and beside the snapshots that they lead to.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::report::Subject;
use super::{Context, check_envelope, is_object_fault, read, report_fault};
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{ErrorKind, Result};
use icechunkfs_base::memory::Metered;
use icechunkfs_format::format::MAX_FILE;
use icechunkfs_format::format::envelope::FileType;
use icechunkfs_format::format::ids::{NodeId, ObjectId};
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_format::format::transaction_log::{Move, NodeChange, TransactionLog};
use icechunkfs_store::storage::decoded::Decoded;

/// Names of the lists of nodes in messages, in the order of [`NodeChange::ALL`].
const LISTS: [&str; 6] =
    ["new groups", "new arrays", "deleted groups", "deleted arrays", "updated groups", "updated arrays"];

/// Snapshots that a log is compared with.
#[derive(Debug)]
pub(super) struct LogContext {
    /// Snapshot that the commit made.
    pub(super) snapshot: Arc<Snapshot>,
    /// Parent of that snapshot, if known.
    pub(super) before: Option<ObjectId>,
}

/// Checks log `id`, whose snapshot may no longer exist. A missing log is an error only if it is
/// needed.
pub(super) async fn check(
    context: &Arc<Context>,
    id: ObjectId,
    beside: Option<LogContext>,
    is_needed: bool,
) -> Result<()> {
    let key = format!("transactions/{id}");
    let found = read(context, &key, MAX_FILE, |file| TransactionLog::decode(file, MAX_FILE)).await;
    let Decoded { value: log, bytes: file, .. } = match found {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound && !is_needed => return Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let why = match beside {
                Some(_) => "missing: the changes of the commit are not known, and nothing can be compared with them",
                None => "it is missing, and a commit after it still needs it (the commit itself has expired)",
            };
            context.object(&key).error("log", why);
            return Ok(());
        }
        Err(error) => return report_fault(context, "log", &key, &error, ""),
    };
    let shared = Arc::clone(context);
    let has_moves = log.has_moves();
    let before = match beside.as_ref().and_then(|beside| beside.before).filter(|_| has_moves) {
        Some(before) => parent(context, before).await?,
        None => None,
    };
    blocking(move || {
        check_envelope(&shared, &key, &file, FileType::TransactionLog, log.has_identifier());
        let object = shared.object(&key);
        let moves = check_log(object, id, &log)?;
        if let Some(LogContext { snapshot, .. }) = beside {
            let _room = snapshot.room_for_table()?;
            check_against_snapshot(object, &log, &moves, &snapshot)?;
            check_moves(object, &moves, &snapshot, before.as_ref())?;
        }
        Ok(())
    })
    .await?;
    context.findings.count(|checked| checked.transaction_logs += 1);
    Ok(())
}

/// Reads snapshot `id`; none if it cannot be read, because its own check reports the fault.
async fn parent(context: &Arc<Context>, id: ObjectId) -> Result<Option<Snapshot>> {
    let limit = crate::repo::MAX_SNAPSHOT;
    match read(context, &format!("snapshots/{id}"), limit, move |file| Snapshot::decode(file, limit)).await {
        Ok(found) => Ok(Some(found.value)),
        Err(error) if !is_object_fault(error.kind()) || error.kind() == ErrorKind::PermissionDenied => Err(error),
        Err(_) => Ok(None),
    }
}

/// Checks that each move replaces only a node that is moved away itself, and leads below a group.
fn check_moves(object: Subject<'_>, moves: &[Move], snapshot: &Snapshot, before: Option<&Snapshot>) -> Result<()> {
    if moves.is_empty() {
        return Ok(());
    }
    let _room = before.map(Snapshot::room_for_table).transpose()?;
    let occupied: HashSet<&str> = before.into_iter().flat_map(Snapshot::nodes).map(|node| node.path).collect();
    let paths: HashSet<&str> = snapshot.nodes().map(|node| node.path).collect();
    let left: HashSet<&str> = moves.iter().map(|one| one.from.as_str()).collect();
    // The target of an amended commit's move may have been deleted or moved on by the commit that
    // amends it.
    for one in moves.iter().filter(|one| paths.contains(one.to.as_str())) {
        if occupied.contains(one.to.as_str()) && !left.contains(one.to.as_str()) {
            let why = "where there was a node that was not moved away";
            object.warning("log-move-onto", format!("{} was moved to {}, {why}", one.from, one.to));
        }
        match one.to.rsplit_once('/') {
            Some((above, _)) if !above.is_empty() && !paths.contains(above) => {
                let why = format!("{} was moved to {}, where there is no group", one.from, one.to);
                object.warning("log-move-group", why);
            }
            _ => {}
        }
    }
    Ok(())
}

/// Checks a log by itself, and returns its moves, none of which count if any is damaged.
fn check_log(object: Subject<'_>, id: ObjectId, log: &TransactionLog) -> Result<Metered<Vec<Move>>> {
    if log.id() != id {
        object.error("id", format!("the file states that it is the log of snapshot {}", log.id()));
    }
    for (change, name) in std::iter::zip(NodeChange::ALL, LISTS) {
        if !log.nodes(change).is_sorted_by(|a, b| a < b) {
            object.warning("log-sorted", format!("the {name} are not sorted by id, or contain a duplicate"));
        }
    }
    check_lists(object, log);
    if !log.updated_chunks().map(|(node, _)| node).is_sorted_by(|a, b| a < b) {
        object.warning("log-sorted", "the arrays with changed chunks are not sorted by id, or contain a duplicate");
    }
    for (node, chunks) in log.updated_chunks() {
        if !chunks.is_sorted_by(|a, b| a.coords().lt(b.coords())) {
            let why = format!("the changed chunks of node {node} are not sorted, or contain a duplicate");
            object.warning("log-sorted", why);
        }
    }
    let moves = match log.moves() {
        Ok(moves) => moves,
        Err(error) if error.kind() == ErrorKind::OutOfMemory => return Err(error),
        Err(error) => {
            object.error("log-move", error.to_string());
            return Ok(Metered::default());
        }
    };
    if !moves.is_sorted_by(|a, b| a.to.split('/').lt(b.to.split('/'))) {
        object.warning("log-sorted", "the moves are not sorted by the paths that they lead to, or contain a duplicate");
    }
    for one in &*moves {
        if one.from == one.to || !one.from.starts_with('/') || !one.to.starts_with('/') {
            object.warning("log-move", format!("the move from `{}` to `{}` is not valid", one.from, one.to));
        }
    }
    Ok(moves)
}

/// Notes nodes that are in several lists. The format forbids it, amends of the reference
/// implementation do it, and readers expect it.
fn check_lists(object: Subject<'_>, log: &TransactionLog) {
    let mut lists: HashMap<NodeId, &str> = HashMap::new();
    for (change, name) in std::iter::zip(NodeChange::ALL, LISTS) {
        for id in log.nodes(change) {
            if let Some(first) = lists.insert(id, name).filter(|first| *first != name) {
                object.note(
                    "log-lists",
                    format!("node {id} is among the {first} and the {name}, but may be in only one list"),
                );
            }
        }
    }
}

/// Checks the log against the snapshot. An amended commit has the changes of both commits: the
/// second may have deleted nodes that the first made.
fn check_against_snapshot(
    object: Subject<'_>,
    log: &TransactionLog,
    moves: &[Move],
    snapshot: &Snapshot,
) -> Result<()> {
    let present: HashMap<NodeId, (&str, bool)> =
        snapshot.nodes().map(|node| (node.id, (node.path, node.is_array()))).collect();
    let deleted = log.deleted()?;
    for id in &*deleted {
        if let Some((path, _)) = present.get(id) {
            object.warning("log-deleted", format!("it states that node {id} was deleted, but the node exists: {path}"));
        }
    }
    for (change, name) in std::iter::zip(NodeChange::ALL, LISTS) {
        let is_array = matches!(change, NodeChange::NewArrays | NodeChange::UpdatedArrays);
        if matches!(change, NodeChange::DeletedArrays | NodeChange::DeletedGroups) {
            continue;
        }
        for id in log.nodes(change).filter(|id| !deleted.contains(id)) {
            match present.get(&id) {
                None => object.warning("log-node", format!("node {id} is among the {name}, but not in the snapshot")),
                Some((path, is)) if *is != is_array => {
                    object.warning("log-node", format!("{path} is among the {name}, but it is of the other kind"));
                }
                Some(_) => {}
            }
        }
    }
    for (id, _) in log.updated_chunks() {
        if !deleted.contains(&id) && !present.get(&id).is_some_and(|(_, is_array)| *is_array) {
            let text = format!("chunks of node {id} were changed, but it is not an array of the snapshot");
            object.warning("log-node", text);
        }
    }
    for one in moves {
        if !deleted.contains(&one.node) && present.get(&one.node).is_none_or(|(path, _)| *path != one.to) {
            let why = format!("it states that node {} was moved to {}, where it is not", one.node, one.to);
            object.warning("log-move", why);
        }
    }
    Ok(())
}
