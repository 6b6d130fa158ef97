//! The operations log in `repo`. The input is the payload.

use super::file;
use icechunkfs::format::operations_log;
use icechunkfs::format::repo_info::RepoInfo;

pub(crate) fn run(payload: &[u8]) {
    let Ok(info) = RepoInfo::decode(&file::around(6, payload)) else { return };
    let entries = (0..1000).map_while(|at| operations_log::entry(&info, at));
    let _ = entries.filter(|entry| entry.operation.is_ok()).count();
    let _ = operations_log::previous_file(&info);
}
