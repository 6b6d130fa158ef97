//! Migration of old repositories to another place: the view of the reference implementation and of
//! this program, the logs, kills at every step, and destinations that are refused.
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::common::failing::run_with_failing_calls;
use crate::common::lab::{ancestry, history, names_in, ref_version, reopen, set};
use crate::common::moto;
use crate::common::{self, Fixture, FixtureSet, Output, place, read_files, run_on, run_with_fault, sha256};
use icechunk::format::snapshot::{NodeData, NodeSnapshot};
use icechunk::repository::VersionInfo;
use icechunk::session::Session;
use icechunkfs::failpoints;
use icechunkfs::format::ids::NodeId;
use icechunkfs::format::snapshot::Snapshot;
use icechunkfs::format::transaction_log::{NodeChange, TransactionLog};
use serde_json::{Value, json};

fn migrate(from: &Path, to: &Path, words: &[&str]) -> Output {
    run_on(from, &[&["migrate", "--to", to.to_str().unwrap()], words].concat())
}

/// Migrates with a fault.
fn migrate_with_fault(from: &Path, to: &Path, fault: &str) -> Output {
    run_with_fault(from, &["migrate", "--to", to.to_str().unwrap()], fault)
}

/// Checks that a repository has no errors.
#[track_caller]
fn verify(place: &Path, what: &str) {
    // Containers of virtual chunks have to be set by the user: their absence is a warning.
    let verified: Value = serde_json::from_slice(&run_on(place, &["verify", "--chunks", "--json"]).stdout).unwrap();
    assert_eq!(verified["errors"], 0, "{what}: {verified}");
}

fn alphas() -> Vec<Fixture> {
    FixtureSet::each().flat_map(|set| set.alphas()).collect()
}

/// Returns fixtures of version 1: with several manifests for an array, and with a history that does
/// not begin with the oldest commit.
fn of_version_1() -> Vec<Fixture> {
    let names = ["own-v1-basic", "own-v1-split", "own-v1-virtual", "own-v1-empty-chunk"];
    names.into_iter().map(|name| FixtureSet::own().get(name)).collect()
}

#[tokio::test]
async fn the_reference_sees_the_same_history_and_keys() {
    if !place::needs_directory() {
        return;
    }
    for fixture in alphas().into_iter().chain(of_version_1()) {
        let directory = tempfile::tempdir().unwrap();
        let new = directory.path().join("new");
        let before = read_files(&fixture.repository);
        let said = migrate(&fixture.repository, &new, &["--dry-run", "--json"]).json();
        assert!(!new.exists(), "{}: a dry run makes nothing", fixture.name);
        let done = migrate(&fixture.repository, &new, &["--json"]).json();
        for member in ["from_version", "branches", "tags", "deleted_tags", "commits", "manifests", "chunks", "bytes"] {
            assert_eq!(said[member], done[member], "{}: {member}", fixture.name);
        }
        assert_eq!(done["missing_chunks"], 0, "{}", fixture.name);
        assert_eq!(done["empty_chunks"], u64::from(fixture.name == "own-v1-empty-chunk"), "{}", fixture.name);
        assert!(read_files(&fixture.repository) == before, "{}: the old one is untouched", fixture.name);
        assert!(!new.join("unfinished-migration.json").exists());
        check_history(&fixture, &new).await;
        check_keys(&fixture, &new).await;
        check_logs(&new);
        verify(&new, &fixture.name);
        // The reference continues from there.
        let group: &[u8] = br#"{"zarr_format":3,"node_type":"group"}"#;
        set(&new, &[("quite/new/zarr.json", group)], "goes on").await;
        assert_eq!(history(&new).await[0], "goes on");
    }
}

async fn check_history(fixture: &Fixture, new: &Path) {
    let repository = reopen(new).await;
    for (member, listed) in
        [("branches", repository.list_branches().await.unwrap()), ("tags", repository.list_tags().await.unwrap())]
    {
        let expected: BTreeSet<String> = fixture.expected[member].as_object().unwrap().keys().cloned().collect();
        assert_eq!(listed, expected, "{}: {member}", fixture.name);
    }
    for (name, expected) in fixture.expected["refs"].as_object().unwrap() {
        let (kind, name) = name.split_once('/').unwrap();
        let history = ancestry(&repository, &ref_version(kind, name)).await;
        let ids: Vec<Value> = history.iter().map(|info| Value::from(info.id.to_string())).collect();
        assert_eq!(&ids, expected["history"].as_array().unwrap(), "{}: {name}", fixture.name);
        for info in &history {
            let expected = &fixture.expected["snapshots"][info.id.to_string()];
            let micros = "2026-11-20T07:36:31.492897".len();
            let time = info.flushed_at.format("%Y-%m-%dT%H:%M:%S%.6f").to_string();
            assert_eq!(time, written_at(expected)[..micros], "{}", fixture.name);
            assert_eq!(info.message, expected["message"].as_str().unwrap(), "{}", fixture.name);
            if let Some(metadata) = expected.get("metadata") {
                assert_eq!(&serde_json::to_value(&info.metadata).unwrap(), metadata, "{}", fixture.name);
            }
        }
    }
}

/// Formats a time with six digits for microseconds, which the expectations leave out where they are
/// zero.
fn written_at(expected: &Value) -> String {
    let text = expected["written_at"].as_str().unwrap();
    if text.contains('.') { text.to_owned() } else { text.replace("+00:00", ".000000+00:00") }
}

async fn check_keys(fixture: &Fixture, new: &Path) {
    let repository = reopen(new).await;
    for (id, expected) in fixture.expected["snapshots"].as_object().unwrap() {
        let version = VersionInfo::SnapshotId(id.as_str().try_into().unwrap());
        // Some snapshots are only known to have existed, such as those of a deleted branch.
        let Ok(session) = repository.readonly_session(&version).await else {
            assert!(!is_reachable(fixture, id), "{} {id}", fixture.name);
            continue;
        };
        let keys = keys_with_bytes(session).await;
        let listed = ["keys", "errors", "zarr_json"].map(|m| expected.get(m).and_then(Value::as_object));
        let mut all: BTreeSet<&String> = listed.iter().flatten().flat_map(|keys| keys.keys()).collect();
        let is_empty = |key: &&String| expected["keys"].get(key.as_str()).is_some_and(|key| key[0] == 0);
        all.retain(|key| !is_empty(key));
        assert_eq!(keys.keys().collect::<BTreeSet<_>>(), all, "{} {id}", fixture.name);
        for (key, bytes) in &keys {
            if let (Some(document), true) = (expected["zarr_json"].get(key), fixture.name.starts_with("v0-")) {
                let shown: Value = serde_json::from_slice(bytes.as_ref().unwrap()).unwrap();
                for member in ["node_type", "shape", "data_type", "chunk_grid", "attributes", "fill_value"] {
                    assert_eq!(shown.get(member), document.get(member), "{} {id}: {key}", fixture.name);
                }
            } else if let Some(bytes) = bytes {
                assert_eq!(expected["keys"][key][1], sha256(bytes), "{} {id}: {key}", fixture.name);
            } else {
                let is_virtual = expected["errors"].get(key).is_some() || expected["keys"][key][1].is_null();
                assert!(is_virtual, "{} {id}: {key} cannot be read", fixture.name);
            }
        }
    }
}

fn is_reachable(fixture: &Fixture, id: &str) -> bool {
    let refs = fixture.expected["refs"].as_object().unwrap();
    refs.values().any(|found| found["history"].as_array().unwrap().iter().any(|ancestor| ancestor == id))
}

/// Returns every key, and its bytes where they can be read.
async fn keys_with_bytes(session: Session) -> BTreeMap<String, Option<Vec<u8>>> {
    let store = icechunk::Store::from_session(std::sync::Arc::new(tokio::sync::RwLock::new(session))).await;
    let mut found = BTreeMap::new();
    for key in names_in(&store).await {
        let bytes = store.get(&key, &icechunk::format::ByteRange::ALL).await.ok();
        assert!(found.insert(key.clone(), bytes.map(|bytes| bytes.to_vec())).is_none(), "{key} is listed twice");
    }
    found
}

/// Checks that each snapshot's log has its difference from its parent.
fn check_logs(new: &Path) {
    let log = run_on(new, &["log", "--json"]).json();
    let mut before: Option<Snapshot> = None;
    for commit in log.as_array().unwrap().iter().rev() {
        let id = commit["id"].as_str().unwrap();
        let read = |folder: &str| std::fs::read(new.join(folder).join(id)).unwrap();
        let snapshot = Snapshot::decode(&read("snapshots"), 1 << 30).unwrap();
        let log = TransactionLog::decode(&read("transactions"), 1 << 30).unwrap();
        let nodes = |snapshot: &Snapshot| -> BTreeMap<NodeId, (String, Vec<u8>)> {
            snapshot.nodes().map(|node| (node.id, (node.path.to_owned(), node.zarr_json.to_vec()))).collect()
        };
        let now = nodes(&snapshot);
        let then = before.as_ref().map(nodes).unwrap_or_default();
        let said =
            |changes: [NodeChange; 2]| -> BTreeSet<NodeId> { changes.iter().flat_map(|c| log.nodes(*c)).collect() };
        let new_nodes = now.keys().filter(|id| !then.contains_key(id)).copied().collect();
        let deleted = then.keys().filter(|id| !now.contains_key(id)).copied().collect();
        let updated = now.iter().filter(|(id, node)| then.get(id).is_some_and(|before| before.1 != node.1));
        assert_eq!(said([NodeChange::NewGroups, NodeChange::NewArrays]), new_nodes, "{id}");
        assert_eq!(said([NodeChange::DeletedGroups, NodeChange::DeletedArrays]), deleted, "{id}");
        let updated: BTreeSet<NodeId> = updated.map(|(id, _)| *id).collect();
        assert_eq!(said([NodeChange::UpdatedGroups, NodeChange::UpdatedArrays]), updated, "{id}");
        assert!(log.updated_chunks().all(|(node, _)| now.contains_key(&node)), "{id}");
        before = Some(snapshot);
    }
}

#[tokio::test]
async fn migrated_logs_name_the_changes_of_each_commit() {
    let Some(shared) = FixtureSet::shared().filter(|_| place::needs_directory()) else { return };
    let directory = tempfile::tempdir().unwrap();
    for name in ["v0-0.1.0", "v0-alpha-a10"] {
        let fixture = shared.get(name);
        let new = directory.path().join(name);
        migrate(&fixture.repository, &new, &[]).success();
        let commits = &fixture.expected["refs"]["branch/main"]["history"];
        // "append", and "overwrite, virtual references, delete a chunk".
        let changed = |id: &Value| -> BTreeMap<String, usize> {
            let id = id.as_str().unwrap();
            let snapshot = Snapshot::decode(&std::fs::read(new.join("snapshots").join(id)).unwrap(), 1 << 30).unwrap();
            let paths: BTreeMap<NodeId, String> =
                snapshot.nodes().map(|node| (node.id, node.path.to_owned())).collect();
            let log =
                TransactionLog::decode(&std::fs::read(new.join("transactions").join(id)).unwrap(), 1 << 30).unwrap();
            log.updated_chunks().map(|(node, chunks)| (paths[&node].clone(), chunks.count())).collect()
        };
        assert_eq!(changed(&commits[0]), BTreeMap::from([("/ab/x".into(), 2)]), "{name}");
        let third = changed(&commits[1]);
        assert_eq!(third.get("/virtual"), Some(&3), "{name}: {third:?}");
        assert_eq!(third.get("/données/gzip"), None, "{name}: {third:?}");
        // Arrays that a commit did not touch keep their manifest, although each commit of alpha 10
        // rewrote all.
        let session = |id: &Value| VersionInfo::SnapshotId(id.as_str().unwrap().try_into().unwrap());
        let repository = reopen(&new).await;
        let mut manifests = Vec::new();
        for commit in [&commits[0], &commits[1]] {
            let session = repository.readonly_session(&session(commit)).await.unwrap();
            let node: NodeSnapshot = session.get_array(&"/données/gzip".try_into().unwrap()).await.unwrap();
            let NodeData::Array { manifests: found, .. } = node.node_data else { panic!("{node:?}") };
            manifests.push(found);
        }
        assert!(manifests[0] == manifests[1] && !manifests[0].is_empty(), "{name}");
    }
}

#[test]
fn chunks_are_linked_on_one_file_system() {
    let Some(fixture) = FixtureSet::shared().filter(|_| place::needs_directory()).map(|set| set.get("v0-alpha-a"))
    else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let old = directory.path().join("old");
    let new = directory.path().join("new");
    common::copy_tree(&fixture.repository, &old);
    let done = migrate(&old, &new, &["--json"]).json();
    assert_eq!(done["linked"], done["chunks"]);
    assert!(done["chunks"].as_u64() > Some(5));
    for entry in std::fs::read_dir(new.join("chunks")).unwrap() {
        let entry = entry.unwrap();
        let inode = |path: &Path| std::fs::metadata(path).unwrap().ino();
        assert_eq!(inode(&entry.path()), inode(&old.join("chunks").join(entry.file_name())));
    }
    // Where linking is impossible, they are copied.
    let Ok(far) = tempfile::tempdir_in("/dev/shm") else { return };
    let done = migrate(&old, far.path(), &["--json"]).json();
    assert_eq!(done["linked"], 0);
    let chunks = |place: &Path| read_files(&place.join("chunks"));
    assert!(chunks(far.path()) == chunks(&new));
    // Byte for byte the same, except for the times in `repo`.
    let mut one = read_files(&new);
    let mut other = read_files(far.path());
    one.remove("repo");
    other.remove("repo");
    assert!(one == other);
}

#[test]
fn chunks_are_copied_by_the_store_and_between_any_two_places() {
    let Some(shared) = FixtureSet::shared().filter(|_| place::needs_directory()) else { return };
    let Some(server) = moto::s3() else { return };
    for fixture in [FixtureSet::own().get("v0-first-json"), shared.get("v0-alpha-a10")] {
        let directory = tempfile::tempdir().unwrap();
        let old = moto::upload(server.port, &fixture.repository, &format!("{}-old", fixture.name));
        let migrate =
            |from: &str, to: &str| moto::icechunkfs(server.port, &["migrate", from, "--to", to, "--json"]).json();
        let new = moto::repository(&format!("{}-new", fixture.name));
        let done = migrate(&old, &new);
        assert!(done["chunks"].as_u64() > Some(1));
        assert_eq!((&done["copied_by_store"], &done["linked"]), (&done["chunks"], &json!(0)), "{}", fixture.name);
        // To and from a directory, all bytes pass through this program.
        let down = directory.path().join("down");
        assert_eq!(migrate(&old, down.to_str().unwrap())["copied_by_store"], 0);
        let up = moto::repository(&format!("{}-up", fixture.name));
        assert_eq!(migrate(fixture.repository.to_str().unwrap(), &up)["copied_by_store"], 0);
        let log = |repo: &str| moto::icechunkfs(server.port, &["log", repo, "--json"]).json();
        let verify = |repo: &str| {
            let said = moto::icechunkfs(server.port, &["verify", repo, "--chunks", "--json"]).stdout;
            serde_json::from_slice::<Value>(&said).unwrap()["errors"].clone()
        };
        for repo in [&new, &up, down.to_str().unwrap()] {
            assert_eq!(log(repo), log(&old), "{repo}");
            assert_eq!(verify(repo), 0, "{repo}");
        }
        // They have their old bytes.
        let tip = fixture.expected["branches"]["main"].as_str().unwrap();
        let keys = fixture.expected["snapshots"][tip]["keys"].as_object().unwrap();
        let native =
            keys.iter().filter(|(key, expected)| !key.ends_with("zarr.json") && expected[0].as_u64() > Some(20));
        for (key, expected) in native.take(12) {
            for repo in [&new, &up] {
                let bytes = moto::icechunkfs(server.port, &["cat", repo, key]).success();
                assert_eq!(expected[1], sha256(&bytes), "{repo}: {key}");
            }
        }
    }
}

#[test]
fn a_killed_migration_resumes() {
    if !place::needs_directory() {
        return;
    }
    let mut fixtures = vec![FixtureSet::own().get("v0-first-pack")];
    fixtures.extend(FixtureSet::shared().map(|set| set.get("v0-alpha-a5")));
    for fixture in fixtures {
        let directory = tempfile::tempdir().unwrap();
        let whole = directory.path().join("whole");
        migrate(&fixture.repository, &whole, &[]).success();
        let mut expected = read_files(&whole);
        expected.remove("repo");
        for step in failpoints::MIGRATION_ELSEWHERE {
            let new = directory.path().join(step);
            let killed = migrate_with_fault(&fixture.repository, &new, &format!("{step}=abort"));
            assert!(!killed.status.success(), "{step}");
            let is_there = ["migrate.to.repo.done", "migrate.to.done"].contains(&step);
            assert_eq!(new.join("repo").exists(), is_there, "{step}: `repo` is the last");
            let refs = run_on(&new, &["refs"]);
            assert_eq!(refs.status.success(), is_there, "{step}");
            // A chunk whose copy was interrupted.
            let copied = std::fs::read_dir(new.join("chunks")).ok().and_then(|mut entries| entries.next());
            if let (Some(entry), false) = (copied, is_there) {
                let path = entry.unwrap().path();
                let bytes = std::fs::read(&path).unwrap();
                std::fs::remove_file(&path).unwrap();
                std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
            }
            let next = migrate(&fixture.repository, &new, &["--json"]);
            if step == "migrate.to.done" {
                assert!(next.failure().contains("holds a repository already"), "{step}");
            } else {
                let next = next.json();
                assert_eq!(next["finished"], is_there, "{step}");
                // All except the torn one.
                if step == "migrate.to.repo" {
                    assert_eq!(next["found_chunks"].as_u64(), next["chunks"].as_u64().map(|n| n - 1), "{step}");
                }
            }
            let mut found = read_files(&new);
            assert!(found.remove("repo").is_some(), "{step}");
            assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{step}");
            assert!(found == expected, "{step}");
            run_on(&new, &["log"]).success();
        }
    }
}

/// A migration that is killed has flushed neither all of its chunks nor all other files.
#[test]
fn a_resumed_migration_stores_documents_again_and_flushes_chunks() {
    if !place::needs_directory() {
        return;
    }
    let old = FixtureSet::own().get("own-v1-basic").repository;
    let directory = tempfile::tempdir().unwrap();
    let new = directory.path().join("new");
    assert!(!migrate_with_fault(&old, &new, "migrate.to.repo=abort").status.success());
    for (key, bytes) in read_files(&new) {
        if ["manifests/", "snapshots/", "transactions/"].iter().any(|folder| key.starts_with(folder)) {
            std::fs::write(new.join(key), vec![0; bytes.len()]).unwrap();
        }
    }
    let words = ["migrate", old.to_str().unwrap(), "--to", new.to_str().unwrap()];
    let Some(failed) = run_with_failing_calls(&["syncfs:error=EIO"], &words) else { return };
    let said = failed.failure();
    assert!(said.contains("run this again") && !new.join("repo").exists(), "{said}");
    assert!(!read_files(&new).keys().any(|key| key.starts_with("chunks/")), "{said}");
    migrate(&old, &new, &[]).success();
    verify(&new, "after a power cut");
}

#[test]
fn a_failed_migration_reports_it_and_resumes() {
    if !place::needs_directory() {
        return;
    }
    let fixture = FixtureSet::own().get("v0-first-json");
    for step in failpoints::MIGRATION_ELSEWHERE {
        let directory = tempfile::tempdir().unwrap();
        let new = directory.path().join("new");
        let failed = migrate_with_fault(&fixture.repository, &new, &format!("{step}=enospc"));
        assert!(failed.failure().contains("no space"), "{step}");
        let next = migrate(&fixture.repository, &new, &[]);
        assert_eq!(next.status.success(), step != "migrate.to.done", "{step}: {}", next.stderr);
        assert!(!new.join("unfinished-migration.json").exists(), "{step}");
        verify(&new, step);
    }
}

#[test]
fn a_nonempty_destination_is_refused_and_unchanged() {
    if !place::needs_directory() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let one = FixtureSet::own().get("v0-first-json");
    let other = FixtureSet::own().get("v0-first-pack");
    let occupied = directory.path().join("occupied");
    std::fs::create_dir(&occupied).unwrap();
    std::fs::write(occupied.join("notes.txt"), "mine").unwrap();
    for words in [&["--dry-run"][..], &[]] {
        assert!(migrate(&one.repository, &occupied, words).failure().contains("notes.txt"));
    }
    assert_eq!(read_files(&occupied).len(), 1);
    let said = migrate(&one.repository, &one.repository, &[]).failure();
    assert!(said.contains("is not empty"), "{said}");
    // Objects of another migration are not mixed with this one's.
    let begun = directory.path().join("begun");
    let killed = migrate_with_fault(&one.repository, &begun, "migrate.to.repo=abort");
    assert!(!killed.status.success());
    let said = migrate(&other.repository, &begun, &[]).failure();
    assert!(said.contains("unfinished migration of") && said.contains("v0-first-json"), "{said}");
    migrate(&one.repository, &begun, &[]).success();
    let said = migrate(&one.repository, &begun, &[]).failure();
    assert!(said.contains("holds a repository already"), "{said}");
    let said = migrate(&begun, &directory.path().join("third"), &[]).failure();
    assert!(said.contains("of version 2 already"), "{said}");
    let said = run_on(&one.repository, &["migrate", "--yes"]).failure();
    assert!(said.contains("--to"), "{said}");
}

#[test]
fn missing_objects_of_the_old_repository_are_reported() {
    if !place::needs_directory() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let old = directory.path().join("old");
    common::copy_tree(&FixtureSet::own().get("v0-first-json").repository, &old);
    let chunk = std::fs::read_dir(old.join("c")).unwrap().next().unwrap().unwrap().path();
    std::fs::remove_file(chunk).unwrap();
    let new = directory.path().join("new");
    let done = migrate(&old, &new, &["--json"]).json();
    assert_eq!((&done["missing_chunks"], &done["chunks"]), (&json!(1), &json!(1)));
    run_on(&new, &["ls"]).success();
    // Without a manifest the chunks are unknown.
    for entry in std::fs::read_dir(old.join("m")).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    let said = migrate(&old, &directory.path().join("third"), &[]).failure();
    assert!(said.contains("manifests/") && said.contains("missing"), "{said}");
    assert!(!directory.path().join("third/repo").exists());
}
