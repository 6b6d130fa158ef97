//! Files that expand a thousandfold: every decoder stays within the memory bound, and takes
//! seconds.
//!
//! Memory is what the allocator counts, not what the program says.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use icechunkfs::error::{ErrorKind, Result};
use icechunkfs::format::alpha::attributes::AttributesFile;
use icechunkfs::format::alpha::snapshot::AlphaSnapshot;
use icechunkfs::format::config::RepoConfig;
use icechunkfs::format::ids::ObjectId;
use icechunkfs::format::manifest::Manifest;
use icechunkfs::format::operations_log;
use icechunkfs::format::repo_info::RepoInfo;
use icechunkfs::format::repo_state::RepoState;
use icechunkfs::format::snapshot::{NodeData, Snapshot};
use icechunkfs::format::transaction_log::TransactionLog;
use icechunkfs::memory::{Meter, without_waiting};
use icechunkfs::repo::refs::RefSpec;
use icechunkfs::zarr::array::ArrayMetadata;
use icechunkfs::zarr::shard::ShardLayout;

use super::mutations::{Files, MEMORY, alone, bounded, exercise};
use crate::common;
use crate::common::counted::{NOW, PEAK};
use crate::common::expanding::{self, Expanding};

/// Bytes beyond the bound that the process may take: its own.
const OWN: usize = 10 << 20;
/// Time limit of one file, without optimization.
const DEADLINE: Duration = Duration::from_secs(60);

/// Calls `work`, and returns its peak of memory and its time.
fn measure(work: impl FnOnce()) -> (usize, Duration) {
    let start = Instant::now();
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    work();
    (PEAK.load(Ordering::Relaxed).saturating_sub(before), start.elapsed())
}

/// Decodes a file by its key, and makes all of its values that any command makes; any result is
/// accepted.
fn decode(key: &str, file: &[u8]) -> Result<()> {
    let begin = key.split('/').next().unwrap_or_default();
    match begin {
        "repo" => decode_repo(file),
        "snapshots" => decode_snapshot(file),
        "manifests" => decode_manifest(&Manifest::decode(file, MEMORY)?),
        "transactions" => decode_log(file),
        "config.yaml" => RepoConfig::from_yaml(file).map(drop),
        "manifest" => decode_manifest(&Manifest::decode_with_id(ObjectId([9; 12]), file, MEMORY)?),
        "attributes" => AttributesFile::decode(file, MEMORY).map(drop),
        "snapshot" => {
            let snapshot = AlphaSnapshot::decode(file, MEMORY)?;
            let _ = snapshot.attribute_files();
            Snapshot::translated(&snapshot.into_draft()?).map(drop)
        }
        _ => Ok(()),
    }
}

fn decode_repo(file: &[u8]) -> Result<()> {
    let info = Arc::new(RepoInfo::decode(file)?);
    let _ = (info.branches().count(), info.tags().count(), info.deleted_tags().count());
    let _ = (info.branch("main"), info.tag("t"), info.status(), info.feature_flags());
    let _ = (info.config(), info.metadata());
    for at in 0..info.snapshot_count().min(3) {
        let Ok(commit) = info.snapshot(at) else { continue };
        let _ = (commit.title(), commit.message().len(), commit.metadata());
    }
    for at in 0..100 {
        let Some(_) = operations_log::entry(&info, at) else { break };
    }
    let _ = operations_log::previous_file(&info);
    RepoState::from_info(&info)?.encode().map(drop)
}

fn decode_snapshot(file: &[u8]) -> Result<()> {
    let snapshot = Snapshot::decode(file, MEMORY)?;
    let _ = (snapshot.message().len(), snapshot.manifests());
    for node in snapshot.nodes() {
        let _ = ArrayMetadata::parse(node.zarr_json);
        if let Ok(Some(layout)) = ShardLayout::parse(node.zarr_json, &mut Meter::brief("a zarr.json")) {
            let _ = layout.index_length();
        }
        if let NodeData::Array(data) = node.data {
            let _ = (data.manifests(), data.dimensions());
        }
    }
    snapshot.metadata().map(drop)
}

fn decode_manifest(manifest: &Manifest) -> Result<()> {
    let nodes = manifest.node_ids().take(100);
    for node in nodes {
        let Some(refs) = manifest.array(node)? else { continue };
        for at in 0..refs.len() {
            let _ = refs.payload(at)?.length();
        }
    }
    Ok(())
}

fn decode_log(file: &[u8]) -> Result<()> {
    let log = TransactionLog::decode(file, MEMORY)?;
    let _ = (log.moves(), log.made(), log.deleted());
    let mut meter = Meter::new("chunks");
    let mut kept = Vec::new();
    for (_, chunks) in log.updated_chunks() {
        for chunk in chunks {
            kept.push(chunk.kept::<Vec<u32>>(&mut meter)?);
        }
    }
    Ok(())
}

/// Decodes the files of all cases that `make` returns, and uses each as a repository. One of each
/// of the `kinds` takes more than the bound, and is a thousandth of it.
fn all_are_bounded(make: fn() -> Vec<Expanding>, kinds: &[&str]) {
    common::watchdog();
    let _alone = alone();
    // Made by another test meanwhile, they would be measured, too.
    let cases = make();
    let _ = bounded();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut failures = Vec::new();
    let mut check = |what: String, bytes: usize, time: Duration| {
        if bytes >= MEMORY as usize + OWN || time >= DEADLINE {
            failures.push(format!("{what} takes {} MiB and {time:?}", bytes >> 20));
        }
    };
    let mut refused = BTreeSet::new();
    for case in cases {
        for (key, file) in &case.files {
            let mut result = Ok(());
            let (bytes, time) =
                measure(|| result = without_waiting(|| decode(key, file)).map_err(|error| error.kind()));
            if result == Err(ErrorKind::OutOfMemory) && file.len() <= MEMORY as usize / 1000 {
                refused.insert(key.split('/').next().unwrap_or_default().to_owned());
            }
            check(format!("{}: {key} of {} bytes ({result:?})", case.what, file.len()), bytes, time);
        }
        let files = Files::from(case.files);
        let (bytes, time) = measure(|| runtime.block_on(exercise(&files, &[RefSpec::default()])));
        check(case.what, bytes, time);
    }
    assert!(failures.is_empty(), "{failures:#?}");
    let expanding: BTreeSet<String> = kinds.iter().map(|kind| (*kind).to_owned()).collect();
    assert_eq!(refused, expanding, "kinds of small files that take more than the bound");
}

#[test]
fn repositories_that_expand_are_bounded() {
    all_are_bounded(expanding::repositories, &["repo"]);
}

#[test]
fn snapshots_that_expand_are_bounded() {
    all_are_bounded(expanding::snapshots, &["manifests", "repo", "snapshots", "transactions"]);
}

#[test]
#[ignore = "takes long: scripts/test --full"]
fn files_of_old_releases_that_expand_are_bounded() {
    all_are_bounded(expanding::old, &["snapshots"]);
}
