//! Differences between two snapshots: compared with all keys of both, and with the reference's view
//! of the logs between.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::common::lab::{self, Lab, Model, create, expire_before, keys_at, new_lab, random_config, reopen, request};
use crate::common::lengths::length;
use crate::common::random::Random;
use crate::common::reference_diff::reference_logs;
use crate::common::scramble::scramble;
use crate::common::writing::{GROUP, Reference as Keys, array};
use crate::common::{self, FixtureSet, icechunkfs, place, run_on};
use icechunk::RepositoryConfig;
use icechunk::format::SnapshotId;
use icechunk::format::format_constants::SpecVersionBin;
use icechunk::repository::VersionInfo;
use icechunkfs::commit::changes::ChunkChange;
use icechunkfs::commit::engine::{CommitOutcome, EngineOptions, Request};
use icechunkfs::format::chunk_payload::ChunkPayload;
use icechunkfs::format::ids::ObjectId;
use icechunkfs::format::snapshot::{NodeData, Snapshot};
use icechunkfs::repo::{MAX_SNAPSHOT, Repository};
use icechunkfs::storage;
use icechunkfs::zarr::Coords;
use serde_json::{Value, json};

/// A node by its path: its document and its chunks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Shown {
    document: Vec<u8>,
    chunks: BTreeMap<Vec<u32>, Vec<u8>>,
}

/// Returns all of a snapshot, as the reference reads it.
async fn shown(repository: &icechunk::Repository, snapshot: &Snapshot) -> BTreeMap<String, Shown> {
    let id = SnapshotId::from(snapshot.id().0);
    let keys = keys_at(repository, &VersionInfo::SnapshotId(id)).await;
    let mut nodes: BTreeMap<String, Shown> = BTreeMap::new();
    for node in snapshot.nodes() {
        let prefix = node.path.trim_start_matches('/');
        let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        let document = keys[&format!("{prefix}zarr.json")].clone();
        let mut chunks = BTreeMap::new();
        if let NodeData::Array(array) = &node.data {
            let rank = array.grid().unwrap().len();
            let start = format!("{prefix}c");
            for (key, bytes) in keys.range(start.clone()..).take_while(|(key, _)| key.starts_with(&start)) {
                let coords: Option<Vec<u32>> = match &key[start.len()..] {
                    "" => Some(Vec::new()),
                    rest => rest.strip_prefix('/').map(|r| r.split('/').map_while(|n| n.parse().ok()).collect()),
                };
                if let Some(coords) = coords.filter(|c: &Vec<u32>| c.len() == rank && !key.ends_with("zarr.json")) {
                    chunks.insert(coords, bytes.clone());
                }
            }
        }
        nodes.insert(node.path.to_owned(), Shown { document, chunks });
    }
    nodes
}

fn coords(list: &Value) -> Vec<Vec<u32>> {
    serde_json::from_value(list.clone()).unwrap()
}

fn has(node: &Value, what: &str) -> bool {
    node["what"].as_array().unwrap().iter().any(|word| word == what)
}

/// Checks that the output of `diff`, applied to `from`, gives `to`, and that it contains no other
/// change.
fn check(what: &str, diff: &Value, from: &BTreeMap<String, Shown>, to: &BTreeMap<String, Shown>) {
    let mut after = from.clone();
    let nodes = diff["nodes"].as_array().unwrap();
    let path = |node: &Value, name: &str| node[name].as_str().unwrap().to_owned();
    let parsed = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap();
    let mut carried = BTreeMap::new();
    for node in nodes {
        if has(node, "removed") {
            let gone = after.remove(&path(node, "path")).unwrap_or_else(|| panic!("{what}: {node}"));
            assert_eq!(node["before"], parsed(&gone.document), "{what}");
            let all: Vec<Vec<u32>> = gone.chunks.keys().cloned().collect();
            if !all.is_empty() {
                assert_eq!(coords(&node["coords"]["removed"]), all, "{what}");
                let bytes: usize = gone.chunks.values().map(Vec::len).sum();
                assert_eq!(node["chunks"]["removed"], json!({"count": all.len(), "bytes": bytes}), "{what}");
            }
        }
    }
    for node in nodes.iter().filter(|node| has(node, "moved")) {
        assert_ne!(node["from"], node["path"], "{what}");
        carried.insert(path(node, "path"), after.remove(&path(node, "from")).unwrap());
    }
    for (path, node) in carried {
        assert!(after.insert(path, node).is_none(), "{what}");
    }
    for node in nodes {
        let place = path(node, "path");
        if has(node, "added") {
            assert!(after.insert(place.clone(), Shown::default()).is_none(), "{what}: {place}");
        }
        let Some(now) = to.get(&place).filter(|_| !has(node, "removed")) else { continue };
        let shown = after.get_mut(&place).unwrap();
        if has(node, "added") || has(node, "changed") {
            assert_ne!(shown.document, now.document, "{what}: {place}");
            assert_eq!(node["after"], parsed(&now.document), "{what}: {place}");
            shown.document.clone_from(&now.document);
        }
        if node["coords"].is_null() {
            continue;
        }
        let lists = &node["coords"];
        for coords in coords(&lists["added"]) {
            let bytes = now.chunks[&coords].clone();
            assert_eq!(shown.chunks.insert(coords.clone(), bytes), None, "{what}: {place} {coords:?}");
        }
        for coords in coords(&lists["changed"]) {
            let bytes = now.chunks[&coords].clone();
            let old = shown.chunks.insert(coords.clone(), bytes.clone());
            assert!(old.is_some_and(|old| old != bytes), "{what}: {place} {coords:?}");
        }
        for coords in coords(&lists["removed"]) {
            assert!(shown.chunks.remove(&coords).is_some(), "{what}: {place} {coords:?}");
        }
        let counts = |name: &str| node["chunks"][name]["count"].as_u64().unwrap() as usize;
        for name in ["added", "changed", "removed"] {
            assert_eq!(counts(name), lists[name].as_array().unwrap().len(), "{what}: {place}");
        }
    }
    assert_eq!(&after, to, "{what}: {diff:#}");
}

fn diff(repo: &Path, words: &[&str]) -> Value {
    run_on(repo, &[&["diff"], words, &["--json"]].concat()).json()
}

/// Checks that our output for the logs matches the reference's. Of two nodes with one path, the
/// reference has the chunks of only one.
fn check_logs(what: &str, ours: &Value, theirs: &Value) {
    let chunks = |value: &Value| -> BTreeMap<String, BTreeSet<Vec<u32>>> {
        serde_json::from_value(value["updated_chunks"].clone()).unwrap()
    };
    let our_chunks = chunks(ours);
    let their_chunks = chunks(theirs);
    assert!(our_chunks.keys().eq(their_chunks.keys()), "{what}");
    let is_another = |path: &String| {
        let is_in = |name: &str| theirs[name].as_array().unwrap().iter().any(|known| known == path);
        is_in("new_arrays") && is_in("deleted_arrays")
    };
    for (path, theirs) in their_chunks {
        let ours = &our_chunks[&path];
        assert!(ours.is_superset(&theirs), "{what}: {path}");
        assert!(*ours == theirs || is_another(&path), "{what}: {path}");
    }
    for (name, value) in theirs.as_object().unwrap().iter().filter(|(name, _)| *name != "updated_chunks") {
        let set = |value: &Value| -> BTreeSet<String> {
            value.as_array().map(|all| all.iter().map(Value::to_string).collect()).unwrap_or_default()
        };
        assert_eq!(set(&ours[name]), set(value), "{what}: {name}");
    }
}

async fn snapshot(repository: &Repository, id: ObjectId) -> Snapshot {
    repository.snapshot(id, MAX_SNAPSHOT).await.unwrap()
}

/// Makes a random history of two branches, and both comparisons between its commits.
async fn random_history(spec: SpecVersionBin, seed: u64) {
    let mut random = Random::new(seed);
    let directory = tempfile::tempdir().unwrap();
    let config = random_config(&mut random);
    let reference = create(directory.path(), spec, config).await;
    let options = EngineOptions { pack_below: *random.pick(&[0, 1000, 1 << 20]), ..EngineOptions::default() };
    let lab = Lab::with(directory.path(), options);
    let mut branches = vec![("main".to_owned(), Model::default())];
    let mut commits: Vec<(String, ObjectId)> = Vec::new();
    for round in 0..9 {
        if round == 4 {
            let id = SnapshotId::from(lab.tip().await.id().0);
            reference.create_branch("other", &id).await.unwrap();
            branches.push(("other".to_owned(), branches[0].1.clone()));
        }
        let repository = lab.repository().await;
        let at = random.below(branches.len());
        let (branch, model) = &mut branches[at];
        let before = model.clone();
        for _ in 0..1 + random.below(12) {
            scramble(model, &mut random, true);
        }
        let tip = repository.branch_tip(branch).await.unwrap().unwrap();
        let base = std::sync::Arc::new(snapshot(&repository, tip).await);
        let changes = model.changes_since(&before, &lab.scratch);
        let request = Request { branch: branch.clone(), ..request("a commit") };
        if let CommitOutcome::Committed { snapshot: id, .. } = lab.commit_as(&base, &changes, request).await.unwrap() {
            let repository = lab.repository().await;
            model.take_ids(&snapshot(&repository, id).await);
            commits.push((branch.clone(), id));
        }
    }
    let repository = lab.repository().await;
    let reference = reopen(directory.path()).await;
    for _ in 0..6 {
        let [from, to] = [(), ()].map(|()| random.pick(&commits).1);
        let what = format!("{spec:?}, seed {seed}, {from} to {to}");
        let old = snapshot(&repository, from).await;
        let new = snapshot(&repository, to).await;
        let from_keys = shown(&reference, &old).await;
        let to_keys = shown(&reference, &new).await;
        let from_word = from.to_string();
        let to_word = to.to_string();
        let found = diff(directory.path(), &[&from_word, &to_word, "--chunks", "--content"]);
        check(&what, &found, &from_keys, &to_keys);
        // By place alone the output has the same nodes, and may have more chunks.
        let by_place = diff(directory.path(), &[&from_word, &to_word]);
        for name in ["added", "removed", "moved", "changed"] {
            assert_eq!(found["summary"][name], by_place["summary"][name], "{what}");
        }
        let changed = |diff: &Value| diff["summary"]["chunks"]["changed"]["count"].as_u64().unwrap();
        assert!(changed(&found) <= changed(&by_place), "{what}");
        let words = [from_word.as_str(), &to_word, "--logs"];
        match reference_logs(&reference, from, to).await {
            Some(theirs) => check_logs(&what, &diff(directory.path(), &words), &theirs),
            None if from == to => {}
            None => {
                let refused = run_on(directory.path(), &[&["diff"], &words[..]].concat()).failure();
                assert!(refused.contains("not an ancestor"), "{what}: {refused}");
            }
        }
    }
}

#[test]
fn diff_of_random_histories_matches_their_keys() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for seed in 1..=length("ICECHUNKFS_COMMIT_CASES", 2, 6) as u64 {
        for spec in [SpecVersionBin::V1, SpecVersionBin::V2] {
            runtime.block_on(random_history(spec, seed));
        }
    }
}

/// Compares every commit with the one before, and the first with the last, in repositories of all
/// releases, expired ones too.
#[tokio::test]
async fn diff_of_fixtures_matches_the_reference() {
    let Some(set) = FixtureSet::shared().filter(|_| place::needs_directory()) else { return };
    for fixture in set.all() {
        let ours = Repository::open(storage::open_directory(&fixture.repository).unwrap()).await.unwrap();
        let reference = reopen(&fixture.repository).await;
        let tips: BTreeSet<ObjectId> = ours.refs().await.unwrap().branches.into_values().collect();
        for tip in tips {
            let history: Vec<ObjectId> =
                ours.history(tip, 12).await.unwrap().into_iter().map(|commit| commit.id).collect();
            let mut pairs: Vec<(ObjectId, ObjectId)> = history.windows(2).map(|pair| (pair[1], pair[0])).collect();
            pairs.extend(history.last().map(|first| (*first, tip)));
            for (from, to) in pairs.into_iter().rev().take(3) {
                let what = format!("{}: {from} to {to}", fixture.name);
                let from_word = from.to_string();
                let to_word = to.to_string();
                if let Some(theirs) = reference_logs(&reference, from, to).await {
                    check_logs(&what, &diff(&fixture.repository, &[&from_word, &to_word, "--logs"]), &theirs);
                }
                // Virtual chunks are not read here, and for one order of nodes the reference finds
                // only some.
                if !["virtual", "test-repo", "order"].iter().any(|part| fixture.name.contains(part)) {
                    let old = snapshot(&ours, from).await;
                    let new = snapshot(&ours, to).await;
                    let found = diff(&fixture.repository, &[&from_word, &to_word, "--chunks", "--content"]);
                    check(&what, &found, &shown(&reference, &old).await, &shown(&reference, &new).await);
                }
            }
        }
    }
}

/// Changes of an expired commit are still in the logs that its successor keeps.
#[tokio::test]
async fn diff_includes_logs_of_expired_commits() {
    let (directory, lab) = new_lab(SpecVersionBin::V2).await;
    let mut model = Model::default();
    let mut ids = Vec::new();
    for name in ["/a", "/b", "/c", "/d"] {
        let before = model.clone();
        model.array(name, &[4]);
        model.chunk(name, &[1], name);
        ids.push(lab.commit_model(&before, &model).await);
    }
    let first = lab.repository().await.history(ids[0], 2).await.unwrap()[1].id;
    expire_before(directory.path(), 1).await;
    let reference = reopen(directory.path()).await;
    assert!(
        lab.repository().await.history(ids[3], 9).await.unwrap().iter().any(|c| !c.pruned_ancestor_tx_logs.is_empty())
    );
    let first_word = first.to_string();
    let words = [first_word.as_str(), "main", "--logs"];
    let theirs = reference_logs(&reference, first, ids[3]).await.unwrap();
    check_logs("expired", &diff(directory.path(), &words), &theirs);
    assert_eq!(theirs["new_arrays"], json!(["/a", "/b", "/c", "/d"]));
    // A missing log is reported, and the rest is shown.
    std::fs::remove_file(directory.path().join("transactions").join(ids[0].to_string())).unwrap();
    let message = run_on(directory.path(), &["diff", &first_word, "main", "--logs"]);
    assert!(message.stderr.contains("has expired, is gone"), "{}", message.stderr);
    let shown = message.text();
    assert!(shown.contains("new array      /c") && !shown.contains("new array      /a"), "{shown}");
}

/// Checks the text output.
#[tokio::test]
async fn diff_prints_each_change() {
    let (directory, lab) = new_lab(SpecVersionBin::V2).await;
    let mut model = Model::default();
    model.group("/");
    model.group("/g");
    model.group("/g/h");
    model.array("/g/h/x", &[4]);
    model.array("/y", &[4]);
    (0..4).for_each(|n| model.chunk("/y", &[n], vec![1; 100]));
    lab.commit_first(&model).await;
    let before = model.clone();
    model.rename("/g", "/moved");
    model.chunk("/y", &[0], vec![2; 200]);
    model.get("/y").chunks.remove(&vec![3]);
    model.get("/y").zarr_json = lab::array_json(&[4], &[1], "noted");
    model.array("/z", &[2]);
    model.chunk("/z", &[1], vec![3; 10]);
    lab.commit_model(&before, &model).await;
    let repo = directory.path().to_str().unwrap();
    let text = |words: &[&str]| icechunkfs([&["diff", repo, "main~1", "main"], words].concat()).text();
    assert_eq!(
        text(&[]),
        "moved    /g -> /moved  with 2 nodes below\n\
         changed  /y/zarr.json  attribute note \"\" -> \"noted\"\n\
         chunks   /y  1 changed (100 bytes -> 200 bytes), 1 removed (100 bytes)\n\
         added    /z  array, 1 chunk (10 bytes)\n\n\
         1 array added, 2 groups and 1 array moved, 1 array changed\n\
         chunks: 1 added (10 bytes), 1 changed (100 bytes -> 200 bytes), 1 removed (100 bytes)\n"
    );
    let summary = "1 array added, 2 groups and 1 array moved, 1 array changed\n\
         chunks: 1 added (10 bytes), 1 changed (100 bytes -> 200 bytes), 1 removed (100 bytes)\n";
    assert_eq!(text(&["--stat"]), summary);
    let patch = text(&["--patch", "--chunks"]);
    for part in [
        "  ~ 0\n  - 3\n",
        "--- /y/zarr.json\n+++ /y/zarr.json\n@@ ",
        "-    \"note\": \"\"\n+    \"note\": \"noted\"\n",
        "--- /dev/null\n+++ /z/zarr.json\n@@ -0,0 +1",
    ] {
        assert!(patch.contains(part), "{part}: {patch}");
    }
    let nothing = icechunkfs(["diff", repo, "main", "main"]).text();
    assert_eq!(nothing, "nothing differs\n");
    // One argument without the other is a usage error that names the missing one.
    assert!(icechunkfs(["diff", repo, "main"]).failure().contains("<TO>"));
    assert!(icechunkfs(["diff", repo, "--patch"]).failure().contains("<FROM>"));
    assert!(icechunkfs(["diff", repo, "mian", "main"]).failure().contains("did you mean `main`"));
}

/// A chunk that became one of the repository's own has the same bytes, if the virtual one may be
/// read.
#[tokio::test]
async fn diff_compares_virtual_chunks_where_allowed() {
    let directory = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let file = elsewhere.path().canonicalize().unwrap().join("data.bin");
    std::fs::write(&file, b"..same bytes..").unwrap();
    create(directory.path(), SpecVersionBin::V2, RepositoryConfig::default()).await;
    let lab = Lab::open(directory.path());
    let mut model = Model::default();
    let id = model.array("/a", &[1]);
    let mut changes = model.changes_since(&Model::default(), &lab.scratch);
    let virtual_chunk = |offset| ChunkPayload::Virtual {
        location: format!("file://{}", file.display()),
        offset,
        length: 10,
        checksum: None,
    };
    let stored = |payload| [(Coords::from_slice(&[0]), ChunkChange::Stored(payload))].into_iter().collect();
    changes.chunks.insert(id, stored(virtual_chunk(2)));
    lab.commit(&lab.tip().await, &changes).await.unwrap();
    let own = model.clone();
    model.chunk("/a", &[0], "same bytes");
    lab.commit(&lab.tip().await, &model.changes_since(&own, &lab.scratch)).await.unwrap();
    let changed = |words: &[&str]| {
        diff(directory.path(), &[&["main~1", "main"], words].concat())["summary"]["chunks"]["changed"]["count"]
            .as_u64()
            .unwrap()
    };
    assert_eq!(changed(&[]), 1);
    assert_eq!(changed(&["--content"]), 1, "nothing is read that was not allowed");
    let prefix = file.parent().unwrap().to_str().unwrap();
    assert_eq!(changed(&["--content", "--allow-virtual", prefix]), 0);
}

/// Selects by the path before and by the path after; a group that was moved stands for what it had
/// and what it has.
#[test]
fn a_path_of_either_snapshot_selects_its_nodes() {
    for version in [SpecVersionBin::V1, SpecVersionBin::V2] {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("repo");
        common::block_on(create(&place, version, RepositoryConfig::default()));
        let reference = Keys::open(&place);
        let document = array(&[4], &[1]);
        let mut keys: Vec<(String, &[u8])> = Vec::new();
        for group in ["", "a/", "ab/", "c/"] {
            keys.push((format!("{group}zarr.json"), GROUP.as_bytes()));
        }
        for node in ["a/x", "a/y", "ab/x", "c/x"] {
            keys.push((format!("{node}/zarr.json"), document.as_bytes()));
            keys.push((format!("{node}/c/0"), b"0"));
        }
        let keys: Vec<(&str, &[u8])> = keys.iter().map(|(key, bytes)| (key.as_str(), *bytes)).collect();
        reference.commit(&keys, "begin");
        if version == SpecVersionBin::V2 {
            reference.rename("a", "c/b");
        }
        let b = if version == SpecVersionBin::V2 { "c/b" } else { "a" };
        let x = format!("{b}/x/c/0");
        let new = format!("{b}/new/zarr.json");
        reference.commit(&[(&x, b"1"), (&new, document.as_bytes()), ("ab/x/c/1", b"1"), ("c/x/c/1", b"1")], "more");
        let first = if version == SpecVersionBin::V2 { "main~2" } else { "main~1" };
        run_on(&place, &["branch", "create", "old", "--at", first]).success();
        let diff = |path: &str| -> BTreeSet<String> {
            let found = run_on(&place, &["diff", "old", "main", path, "--json"]).json();
            found["nodes"].as_array().unwrap().iter().map(|node| node["path"].as_str().unwrap().to_owned()).collect()
        };
        let set = |paths: &[&str]| -> BTreeSet<String> { paths.iter().map(|path| format!("/{path}")).collect() };
        assert_eq!(diff("ab"), set(&["ab/x"]));
        assert_eq!(diff("/c/x/"), set(&["c/x"]));
        match version {
            SpecVersionBin::V1 => {
                assert_eq!(diff("a"), set(&["a/x", "a/new"]));
                assert_eq!(diff("/"), set(&["a/x", "a/new", "ab/x", "c/x"]));
            }
            _ => {
                let moved = set(&["c/b", "c/b/x", "c/b/y", "c/b/new"]);
                assert_eq!((diff("a"), diff("c/b")), (moved.clone(), moved));
                assert_eq!((diff("a/y"), diff("c/b/x")), (set(&["c/b/y"]), set(&["c/b/x"])));
                assert_eq!(diff("c").len(), 5);
            }
        }
        let said = run_on(&place, &["diff", "old", "main", "nothing"]).failure();
        assert!(said.contains("/nothing: neither snapshot has a node of that path"), "{said}");
        run_on(&place, &["diff", "old", "main", "a", "--logs"]).failure();
    }
}
