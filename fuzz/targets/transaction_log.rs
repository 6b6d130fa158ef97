//! Transaction logs.

use super::file;
use icechunkfs::format::transaction_log::{NodeChange, TransactionLog};

pub(crate) fn run(payload: &[u8]) {
    let Ok(log) = TransactionLog::decode(&file::around(4, payload), 1 << 24) else { return };
    let _ =
        (log.id(), log.moves(), log.nodes(NodeChange::NewArrays).count(), log.nodes(NodeChange::DeletedGroups).count());
    for (_, chunks) in log.updated_chunks() {
        chunks.take(1000).for_each(drop);
    }
}
