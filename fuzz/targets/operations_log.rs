//! The operations log in `repo`. The input is the payload: compression would hide it from the fuzzer.
#![no_main]
use icechunkfs::format::operations_log;
use icechunkfs::format::repo_info::RepoInfo;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|payload: &[u8]| {
    let Ok(info) = RepoInfo::decode(&icechunkfs_fuzz_file(6, payload)) else { return };
    let page = operations_log::read(&info);
    let _ = page.entries.iter().filter(|entry| entry.operation.is_ok()).count();
});

include!("file.rs");
