//! `repo`: refs, history, configuration. The input is the payload: compression would hide it from the fuzzer.
#![no_main]
use icechunkfs::format::repo_info::RepoInfo;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|payload: &[u8]| {
    let Ok(info) = RepoInfo::decode(&icechunkfs_fuzz_file(6, payload)) else { return };
    let _ = (info.branches(), info.tags(), info.deleted_tags(), info.config(), info.availability());
    for position in 0..info.snapshot_count().min(1000) {
        let _ = info.snapshot(position);
    }
});

include!("file.rs");
