//! Transaction logs.

use super::file;
use icechunkfs::format::transaction_log::{Change, TransactionLog};

pub(crate) fn run(payload: &[u8]) {
    let Ok(log) = TransactionLog::decode(&file::around(4, payload), 1 << 24) else { return };
    let _ = (log.id(), log.moves(), log.nodes(Change::NewArrays).count(), log.nodes(Change::DeletedGroups).count());
    for (_, chunks) in log.updated_chunks() {
        chunks.take(1000).for_each(drop);
    }
}
