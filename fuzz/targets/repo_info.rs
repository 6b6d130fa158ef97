//! `repo`: refs, history, configuration. The input is the payload.

use super::file;
use icechunkfs::format::repo_info::RepoInfo;

pub(crate) fn run(payload: &[u8]) {
    let Ok(info) = RepoInfo::decode(&file::around(6, payload)) else { return };
    let _ = (info.branches(), info.tags(), info.deleted_tags(), info.config(), info.status());
    for position in 0..info.snapshot_count().min(1000) {
        let _ = info.snapshot(position);
    }
}
