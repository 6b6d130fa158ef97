//! Transaction logs.
#![no_main]
use icechunkfs::format::transaction_log::{Change, TransactionLog};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|payload: &[u8]| {
    let Ok(log) = TransactionLog::decode(&icechunkfs_fuzz_file(4, payload), 1 << 24) else { return };
    let _ = (log.id(), log.moves(), log.nodes(Change::NewArrays).count(), log.nodes(Change::DeletedGroups).count());
    for (_, chunks) in log.updated_chunks() {
        chunks.take(1000).for_each(drop);
    }
});

include!("file.rs");
