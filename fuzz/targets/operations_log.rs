//! The operations log in `repo`. The input is the payload.

use super::file;
use icechunkfs::format::operations_log;
use icechunkfs::format::repo_info::RepoInfo;

pub(crate) fn run(payload: &[u8]) {
    let Ok(info) = RepoInfo::decode(&file::around(6, payload)) else { return };
    let page = operations_log::read(&info);
    let _ = page.entries.iter().filter(|entry| entry.operation.is_ok()).count();
}
