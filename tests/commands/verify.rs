//! Problems that `icechunkfs verify` reports.

use std::path::Path;
use std::sync::Arc;

use crate::common::lab::{self, new_lab};
use crate::common::lengths::is_full;
use crate::common::random::Random;
use crate::common::{self, Files, FixtureSet, icechunkfs, read_files, run_on};
use icechunk::format::format_constants::SpecVersionBin;
use icechunkfs::error::Result;
use icechunkfs::format::draft::TransactionLogDraft;
use icechunkfs::format::envelope::{Compression, SpecVersion};
use icechunkfs::format::transaction_log::{Move, NodeChange};
use icechunkfs::repo::verify::report::{Report, Severity};
use icechunkfs::repo::verify::{self, VerifyOptions};
use icechunkfs::storage::{self, Condition, Storage};
use icechunkfs::times::system_clock;

/// Rules that fixtures break: those of old releases, and those with arrays that the Icechunk
/// library cannot read. All others must be valid, except for notes.
const KNOWN: &[(&str, &[&str])] = &[
    ("v1-order-by-0.2.18", &["nodes-sorted"]),
    ("v1-split", &["chunk-twice", "extents-overlap", "log-sorted"]),
    ("v1-virtual", &["chunk-length", "location"]),
    ("v2-virtual", &["chunk-length", "location"]),
    ("v1-basic", &["chunk-names"]),
    ("v1-basic-by-2.x", &["chunk-names"]),
    ("v1-basic-migrated", &["chunk-names"]),
    ("v1-by-0.2.18", &["chunk-names"]),
    ("v2-basic", &["chunk-names"]),
    ("own-v2-encodings", &["chunk-names"]),
    ("own-v1-empty-chunk", &["zero-length"]),
    ("own-v1-split", &["chunk-twice", "extents-overlap", "log-sorted"]),
    ("own-v1-virtual", &["location"]),
    ("own-v2-virtual", &["location"]),
    // This fixture breaks rules on purpose, as a mount has to cope with that.
    ("own-v2-implicit", &["below-array", "chunk-rank", "extents", "node-path"]),
    ("ref-test-repo-v1", &["location"]),
    ("ref-test-repo-v2-migrated", &["location"]),
];

async fn verify(storage: &Arc<dyn Storage>, chunks: bool) -> Report {
    try_to_verify(storage, VerifyOptions { chunks, ..VerifyOptions::default() }).await.unwrap()
}

async fn try_to_verify(storage: &Arc<dyn Storage>, options: VerifyOptions) -> Result<Report> {
    verify::verify(storage, options, system_clock(), &Default::default()).await
}

/// Returns the number of problems with a repository of these files; an error is one.
async fn problems(files: &Files) -> u64 {
    let options = VerifyOptions { chunks: true, ..VerifyOptions::default() };
    let report = try_to_verify(&in_memory(files).await, options).await;
    report.map_or(1, |report| report.errors + report.warnings)
}

#[tokio::test]
async fn verify_finds_only_the_known_problems_of_fixtures() {
    for set in FixtureSet::each() {
        for fixture in set.all() {
            let storage = storage::open_directory(&fixture.repository).unwrap();
            let report = verify(&storage, true).await;
            let known = KNOWN.iter().find(|(name, _)| *name == fixture.name).map_or(&[][..], |(_, rules)| rules);
            let mut rules: Vec<&str> =
                report.findings.iter().filter(|f| f.severity > Severity::Note).map(|f| f.rule).collect();
            rules.sort_unstable();
            rules.dedup();
            assert_eq!(rules, known, "{}: {:#?}", fixture.name, report.findings);
            assert_eq!(report.errors, 0, "{}", fixture.name);
            assert!(report.checked.snapshots > 0, "{}", fixture.name);
            // One ref needs at most the objects of all.
            let tip = fixture.expected["branches"]["main"].as_str().unwrap().parse().unwrap();
            let wanted = VerifyOptions { snapshot: Some(tip), chunks: true, ..VerifyOptions::default() };
            let one = try_to_verify(&storage, wanted).await.unwrap();
            assert_eq!((one.errors, one.checked.snapshots, one.notes), (0, 1, 0), "{}: {one:#?}", fixture.name);
            assert!(one.checked.chunk_objects <= report.checked.chunk_objects, "{}", fixture.name);
        }
    }
}

/// A repository in memory.
async fn in_memory(files: &Files) -> Arc<dyn Storage> {
    let storage = storage::empty_storage("memory");
    for (key, bytes) in files {
        storage.put(key, bytes.clone().into(), Condition::Always).await.unwrap();
    }
    storage
}

#[tokio::test]
async fn verify_reports_every_missing_or_truncated_object() {
    let set = FixtureSet::own();
    let others = if is_full() { 7 } else { 29 };
    for name in set.all().into_iter().map(|fixture| fixture.name) {
        if KNOWN.iter().any(|(known, _)| *known == name) || set.get(&name).repository.read_dir().unwrap().count() == 0 {
            continue;
        }
        let files = read_files(&set.get(&name).repository);
        // All files of some kinds, and a few of the others: most files of a kind are alike.
        let step =
            if ["own-v1-basic", "own-v2-expired", "own-v1-migrated"].contains(&name.as_str()) { 1 } else { others };
        for (key, bytes) in files.iter().step_by(step) {
            let is_copy = key.starts_with("overwritten/");
            let mut gone = files.clone();
            gone.remove(key);
            assert!(
                problems(&gone).await > 0 || is_idle(&set, &name, key),
                "{name}: {key} is gone, and nobody says so"
            );
            if is_copy || bytes.is_empty() {
                continue;
            }
            let mut cut = files.clone();
            cut.insert(key.clone(), bytes[..bytes.len() / 2].to_vec());
            assert!(problems(&cut).await > 0 || is_idle(&set, &name, key), "{name}: {key} is cut, and nobody says so");
        }
    }
}

/// Returns true if a repository does not need an object: that of a deleted tag, or one that nothing
/// refers to.
fn is_idle(set: &FixtureSet, name: &str, key: &str) -> bool {
    let folder = set.get(name).repository;
    let refs = || walk(&folder.join("refs"));
    if key.starts_with("refs/") {
        // Branches and tags of version 1 are independent files: a missing one is no problem. A
        // migrated repository does not use them.
        return !key.contains("branch.main/") || folder.join("repo").exists() || refs().len() > 1;
    }
    // A migrated one is of version 1 again without `repo`.
    if key == "config.yaml" || (key == "repo" && folder.join("refs").exists()) {
        return true;
    }
    let output = run_on(&folder, &["verify", "--chunks", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let (kind, _) = key.split_once('/').unwrap_or((key, ""));
    let findings = report["findings"].as_array().unwrap();
    findings.iter().any(|f| f["rule"] == "orphan" && f["object"] == format!("{kind}/"))
        || findings.iter().any(|f| f["rule"] == "backup-orphan" && kind == "overwritten")
}

fn walk(folder: &Path) -> Vec<std::path::PathBuf> {
    std::fs::read_dir(folder).map_or(Vec::new(), |entries| entries.flatten().map(|entry| entry.path()).collect())
}

/// Damage of any kind ends the check with a report or an error, and damage of a header is always
/// found.
#[tokio::test]
async fn verify_reports_most_flipped_bits_and_all_in_magic_bytes() {
    let set = FixtureSet::own();
    let mut random = Random::new(1);
    let flips = if is_full() { 60 } else { 15 };
    let mut flipped = 0;
    let mut found = 0;
    for name in set.all().into_iter().map(|fixture| fixture.name) {
        let files = read_files(&set.get(&name).repository);
        let before = verify(&in_memory(&files).await, true).await;
        let metadata =
            |key: &String| ["repo", "snapshots/", "manifests/", "transactions/"].iter().any(|p| key.starts_with(p));
        let keys: Vec<&String> = files.keys().filter(|key| metadata(key)).collect();
        for _ in 0..flips {
            let key = keys[random.below(keys.len())];
            let mut bytes = files[key].clone();
            // The change is in the payload, where zstd has no checksum, or in the header.
            let in_header = random.below(4) == 0;
            let at = if in_header { [0, 5, 36, 37, 38][random.below(5)] } else { random.below(bytes.len()) };
            let inside = random.below(2) == 0 && !in_header;
            if inside && let Ok(mut payload) = zstd::decode_all(&bytes[39..]) {
                let at = random.below(payload.len());
                payload[at] ^= 1 << random.below(8);
                bytes.truncate(39);
                bytes.extend(zstd::encode_all(payload.as_slice(), 1).unwrap());
            } else {
                bytes[at] ^= 1 << random.below(8);
            }
            let mut damaged = files.clone();
            damaged.insert(key.clone(), bytes);
            let wanted = VerifyOptions { chunks: true, ..VerifyOptions::default() };
            let report = try_to_verify(&in_memory(&damaged).await, wanted).await;
            let told = |report: &Report| (report.errors, report.warnings);
            let is_found = report.as_ref().map_or(true, |report| told(report) != told(&before));
            flipped += 1;
            found += usize::from(is_found);
            // The letters behind the version are a name, and a changed version may be another valid
            // one.
            let is_needed = !before.findings.iter().any(|f| f.rule == "orphan");
            if in_header && at < 12 && is_needed {
                assert!(is_found, "{name}: {key}: byte {at} of the header");
            }
        }
    }
    eprintln!("{found} of {flipped} were found");
    assert!(found * 10 > flipped * 6, "{found} of {flipped}");
}

/// A log with entries that the format does not allow: a move onto a deleted node, and one below no
/// group.
#[tokio::test]
async fn verify_reports_logged_moves_onto_nodes_or_outside_groups() {
    let (_place, lab) = new_lab(SpecVersionBin::V2).await;
    let mut model = lab::Model::default();
    model.group("/");
    for array in ["/a", "/b", "/c"] {
        model.array(array, &[4]);
    }
    lab.commit_first(&model).await;
    let a = model.at("/a").unwrap();
    let b = model.at("/b").unwrap();
    let c = model.at("/c").unwrap();
    let before = model.clone();
    model.delete("/b");
    model.rename("/a", "/b");
    model.rename("/c", "/none/c");
    let id = lab.commit_model(&before, &model).await;
    assert_eq!(verify(&lab.storage, false).await.warnings, 0);
    // The nodes seem to have kept their ids.
    let snapshot = lab.tip().await;
    let now = |path: &str| snapshot.nodes().find(|node| node.path == path).unwrap().id;
    let moved = |from: &str, to: &str| Move { from: from.into(), to: to.into(), node: now(to), is_array: true };
    let log = TransactionLogDraft {
        nodes: [a, b, c].map(|id| (id, NodeChange::DeletedArrays)).into(),
        moves: vec![moved("/a", "/b"), moved("/c", "/none/c")],
        ..TransactionLogDraft::default()
    };
    let bytes = log.encode(id, SpecVersion::V2, Compression::default()).unwrap();
    lab.storage.put(&format!("transactions/{id}"), bytes.into(), Condition::Always).await.unwrap();
    let report = verify(&lab.storage, false).await;
    let text = |rule: &str| {
        let found = report.findings.iter().find(|finding| finding.rule == rule);
        found.unwrap_or_else(|| panic!("{report:#?}")).message.clone()
    };
    assert!(text("log-move-onto").contains("/a was moved to /b"), "{report:#?}");
    assert!(text("log-move-group").contains("/c was moved to /none/c"), "{report:#?}");
    assert_eq!(report.warnings, 2);
}

#[tokio::test]
async fn verify_finds_no_chunk_under_another_spelling_of_its_name() {
    let mut files = read_files(&FixtureSet::own().get("own-v2-basic").repository);
    assert_eq!(problems(&files).await, 0);
    let is_letter = |name: &String| name.starts_with("chunks/") && name.chars().any(|c| c.is_ascii_uppercase());
    let name = files.keys().find(|name| is_letter(name)).unwrap().clone();
    let bytes = files.remove(&name).unwrap();
    files.insert(name.to_lowercase(), bytes);
    assert!(problems(&files).await > 0);
}

#[test]
fn verify_exits_with_the_severity() {
    let set = FixtureSet::own();
    let name = &set.all()[0].name;
    let place = tempfile::tempdir().unwrap();
    common::copy_tree(&set.get(name).repository, place.path());
    let run = |words: &[&str]| run_on(place.path(), &[&["verify"], words].concat());
    let output = run(&["--chunks"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(run(&["main", "--chunks"]).status.success());
    assert_eq!(run(&["no-such-ref"]).status.code(), Some(1));
    assert_eq!(icechunkfs(["verify", "/no/such/place"]).status.code(), Some(1));
    let victim = walk(&place.path().join("manifests")).remove(0);
    std::fs::remove_file(&victim).unwrap();
    let output = run(&["--json"]);
    assert_eq!(output.status.code(), Some(4));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let key = format!("manifests/{}", victim.file_name().unwrap().to_str().unwrap());
    assert!(report["findings"].as_array().unwrap().iter().any(|f| f["object"] == key && f["severity"] == "error"));
    let text = String::from_utf8(run(&[]).stdout).unwrap();
    assert!(text.contains(&format!("error: {key}: it is missing")), "{text}");
}
