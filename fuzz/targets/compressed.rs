//! Files of version 2 with a compressed payload, of any expanded size: refused before it is large.

use super::file;
use icechunkfs::format::manifest::Manifest;
use icechunkfs::format::repo_info::RepoInfo;
use icechunkfs::format::snapshot::Snapshot;
use icechunkfs::format::transaction_log::TransactionLog;

/// Bytes that each may expand to.
const LIMIT: u64 = 16 << 20;

pub(crate) fn run(payload: &[u8]) {
    let file = |kind| file::compressed(kind, payload);
    let _ = Snapshot::decode(&file(1), LIMIT);
    let _ = Manifest::decode(&file(2), LIMIT);
    let _ = TransactionLog::decode(&file(4), LIMIT);
    let _ = RepoInfo::decode(&file(6));
}
