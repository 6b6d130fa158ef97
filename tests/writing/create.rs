//! Repositories that we create, and the reference implementation working in them.

use std::path::Path;
use std::process::Command;

use crate::common::lab::session_on;
use crate::common::{Mount, block_on, lab, run, run_on};
use bytes::Bytes;
use icechunk::Repository;
use icechunkfs::format::repo_state::Operation;
use icechunkfs::repo::update;
use icechunkfs::storage;
use icechunkfs::times::system_clock;

async fn keys(repository: &Repository) -> Vec<String> {
    lab::names_in(&lab::store_at(repository, &lab::main_branch()).await).await
}

async fn messages(repository: &Repository) -> Vec<String> {
    let commits = lab::ancestry(repository, &lab::main_branch()).await;
    commits.into_iter().map(|info| info.message).collect()
}

fn init(place: &Path, words: &[&str]) {
    run_on(place, &[&["init"], words].concat()).success();
}

#[tokio::test]
async fn the_reference_works_in_a_created_repository() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("new/repo");
    init(&place, &[]);
    let repository = lab::reopen(&place).await;
    assert_eq!(messages(&repository).await, ["Repository initialized"]);
    assert!(keys(&repository).await.is_empty());

    // It commits on top, tags, branches, and its entries in the operations log follow ours.
    let (session, store) = session_on(&repository, "main").await;
    let document = Bytes::from_static(br#"{"zarr_format":3,"node_type":"group"}"#);
    store.set("a/zarr.json", document).await.unwrap();
    let id = session.write().await.commit("theirs").execute().await.unwrap();
    repository.create_tag("v1", &id).await.unwrap();
    assert_eq!(messages(&lab::reopen(&place).await).await, ["theirs", "Repository initialized"]);

    let refs = run_on(&place, &["refs", "--json"]).json();
    assert_eq!((&refs["branches"]["main"], &refs["tags"]["v1"]), (&id.to_string().into(), &id.to_string().into()));
    let mount = Mount::new(&place, &["--tag", "v1"]);
    assert_eq!(std::fs::read(mount.path().join("a/zarr.json")).unwrap(), br#"{"zarr_format":3,"node_type":"group"}"#);
}

#[tokio::test]
async fn init_creates_the_root_group_in_a_separate_commit() {
    let directory = tempfile::tempdir().unwrap();
    init(directory.path(), &["--zarr-group"]);
    let repository = lab::reopen(directory.path()).await;
    assert_eq!(messages(&repository).await, ["Create the root group", "Repository initialized"]);
    assert_eq!(keys(&repository).await, ["zarr.json"]);
    // The change of `repo` left a copy, and both programs read the log across it.
    let copies = std::fs::read_dir(directory.path().join("overwritten")).unwrap().count();
    assert_eq!(copies, 1);
    let (session, store) = session_on(&repository, "main").await;
    store.set("b/zarr.json", Bytes::from_static(br#"{"zarr_format":3,"node_type":"group"}"#)).await.unwrap();
    session.write().await.commit("theirs").execute().await.unwrap();
    let log = run_on(directory.path(), &["log", "--json"]).json();
    let output: Vec<&str> = log.as_array().unwrap().iter().map(|commit| commit["message"].as_str().unwrap()).collect();
    assert_eq!(output, ["theirs", "Create the root group", "Repository initialized"]);
    let mount = Mount::new(directory.path(), &[]);
    let found = run(Command::new("find").arg(mount.path()).args(["-name", "zarr.json", "-printf", "%P\n"])).success();
    assert_eq!(String::from_utf8(found).unwrap().lines().count(), 2);
}

#[test]
fn a_nonempty_place_is_refused_and_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let attempt = || run_on(directory.path(), &["init"]);
    std::fs::create_dir(directory.path().join("x")).unwrap();
    std::fs::write(directory.path().join("x/notes"), "mine").unwrap();
    assert!(attempt().failure().contains("is not empty (there is `x/notes`)"));
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    std::fs::remove_file(directory.path().join("x/notes")).unwrap();
    attempt().success();
    let before = std::fs::read(directory.path().join("repo")).unwrap();
    assert!(attempt().failure().contains("holds a repository already"));
    assert_eq!(std::fs::read(directory.path().join("repo")).unwrap(), before);
}

/// A creation that ended before `repo` was there has left the first snapshot, and perhaps its log.
/// The next one takes them as they are; others' objects of these names it leaves.
#[tokio::test]
async fn a_creation_that_ended_early_is_completed() {
    let other = tempfile::tempdir().unwrap();
    init(other.path(), &["--zarr-group"]);
    let first = "1CECHNKREP0F1RSTCMT0";
    let [snapshot, log] = ["snapshots", "transactions"].map(|folder| format!("{folder}/{first}"));
    let file = |path: &str| std::fs::read(other.path().join(path)).unwrap();
    let mut logs = std::fs::read_dir(other.path().join("transactions")).unwrap().map(|entry| entry.unwrap().path());
    let log_of_group = std::fs::read(logs.find(|path| !path.ends_with(first)).unwrap()).unwrap();
    let cases = [
        (vec![(&*snapshot, file(&snapshot))], ""),
        (vec![(&*log, file(&log))], ""),
        (vec![(&*snapshot, file(&snapshot)), (&*log, file(&log))], ""),
        (vec![(&*snapshot, file(&snapshot)), (&*log, log_of_group)], "there is `transactions/"),
        (vec![(&*snapshot, b"mine".to_vec())], first),
        (vec![(&*snapshot, file(&snapshot)), ("notes", b"mine".to_vec())], "there is `notes`"),
    ];
    for (left, refusal) in cases {
        let place = tempfile::tempdir().unwrap();
        for (path, bytes) in &left {
            std::fs::create_dir_all(place.path().join(path).parent().unwrap()).unwrap();
            std::fs::write(place.path().join(path), bytes).unwrap();
        }
        let attempt = run_on(place.path(), &["init"]);
        for (path, bytes) in &left {
            assert_eq!(&std::fs::read(place.path().join(path)).unwrap(), bytes, "{path}");
        }
        assert_eq!(place.path().join("repo").exists(), refusal.is_empty());
        if refusal.is_empty() {
            attempt.success();
            run_on(place.path(), &["verify"]).success();
            let repository = lab::reopen(place.path()).await;
            assert_eq!(messages(&repository).await, ["Repository initialized"]);
        } else {
            let said = attempt.failure();
            assert!(said.contains(refusal), "{said}");
        }
    }
}

/// Concurrent changes: none is lost, and each has its copy and its entry in the log.
#[test]
fn no_concurrent_change_of_repo_is_lost() {
    const WRITERS: usize = 8;
    const CHANGES: usize = 10;
    let directory = tempfile::tempdir().unwrap();
    init(directory.path(), &[]);
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let place = directory.path().to_str().unwrap().to_owned();
            // Threads with their own runtimes, descriptors and locks: for the file system they are
            // independent programs.
            std::thread::spawn(move || {
                block_on(async {
                    let storage = storage::open_directory(place.as_ref()).unwrap();
                    for n in 0..CHANGES {
                        let name = format!("writer-{writer}-{n}");
                        let changed = update::update(&*storage, system_clock, |state| {
                            let main = state.branches["main"];
                            state.branches.insert(name.clone(), main);
                            Ok(Operation::BranchCreated { name: name.clone() })
                        });
                        changed.await.unwrap();
                    }
                });
            })
        })
        .collect();
    for writer in writers {
        writer.join().unwrap();
    }
    let refs = run_on(directory.path(), &["refs", "--json"]).json();
    assert_eq!(refs["branches"].as_object().unwrap().len(), WRITERS * CHANGES + 1);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let listed = runtime.block_on(async { lab::reopen(directory.path()).await.list_branches().await.unwrap() });
    assert_eq!(listed.len(), WRITERS * CHANGES + 1);
    let staging = std::fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        // The lock file lies among the objects.
        .filter(|name| name.contains('#') && name != "lock#0");
    assert_eq!(staging.count(), 0, "staging files are gone");
}
