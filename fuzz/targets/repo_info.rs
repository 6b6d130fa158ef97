//! `repo`: refs, history, configuration. The input is the payload.

use super::file;
use std::sync::Arc;

use icechunkfs::format::repo_info::RepoInfo;

pub(crate) fn run(payload: &[u8]) {
    let Ok(info) = RepoInfo::decode(&file::around(6, payload)).map(Arc::new) else { return };
    let _ = (info.branches().count(), info.tags().count(), info.deleted_tags().count());
    let _ = (info.config(), info.status());
    for position in 0..info.snapshot_count().min(1000) {
        if let Ok(commit) = info.snapshot(position) {
            let _ = (commit.title(), commit.metadata());
        }
    }
}
