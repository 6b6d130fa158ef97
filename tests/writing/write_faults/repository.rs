//! The repository's disk is full or read-only, the repository is set read-only, or its last change
//! is in the future.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use icechunk::format::format_constants::SpecVersionBin;
use icechunkfs::commit::changes::{ChangeSet, WrittenNode};
use icechunkfs::commit::engine::{Engine, EngineOptions, Request};
use icechunkfs::commit::progress::CommitProgress;
use icechunkfs::format::ids::NodeId;
use icechunkfs::format::repo_info::RepoInfo;
use icechunkfs::format::repo_state::{RepoState, Status};
use icechunkfs::reader::Reader;
use icechunkfs::reader::memory::Budget;
use icechunkfs::repo::{MAX_SNAPSHOT, Repository};
use icechunkfs::storage::Storage;
use icechunkfs::times::system_clock;

use crate::common::disk::Disk;
use crate::common::failing::{Faulty, When};
use crate::common::writing::{GROUP, Reference, Writable, array, create, put, with_waiting_work};
use crate::common::{Mount, block_on, is_root, lab, program, read_files, run, run_on, watchdog};

const HOUR: u64 = 3_600_000_000;

fn with_work(place: &Path) -> Writable {
    create(place);
    let mount = Writable::of(place, &[]);
    with_waiting_work(&mount, [100_000, 1_500_000, 5000]);
    mount
}

/// Checks that a commit is refused with `errno` and some of `words`; nothing of it is visible, and
/// nothing is lost.
#[track_caller]
fn refused(mount: &Writable, errno: i32, words: &[&str]) {
    let shown = read_files(&mount.root());
    let committed = mount.fresh();
    let error = mount.commit("refused").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(errno), "{error}: {}", mount.read_control("commit"));
    let output = mount.read_control("commit");
    for word in words {
        assert!(output.contains(word), "`{word}` is not in: {output}");
    }
    assert!(read_files(&mount.root()) == shown, "the working tree has changed");
    assert!(mount.fresh() == committed, "something is visible");
    assert!(Reference::open(mount.repository()).keys() == committed, "the reference sees something");
}

/// Checks that the changes can be committed, once.
#[track_caller]
fn commits(mount: &Writable) {
    let mut wanted = read_files(&mount.root());
    let history = Reference::open(mount.repository()).history().len();
    mount.commit("at last").unwrap();
    assert!(read_files(&mount.root()) == wanted);
    wanted.remove("notes");
    assert!(mount.fresh() == wanted);
    let reference = Reference::open(mount.repository());
    assert!(reference.keys() == wanted);
    assert_eq!(reference.history().len(), history + 1);
}

#[test]
fn a_full_repository_disk_refuses_commits_and_keeps_the_work() {
    watchdog();
    let Some(disk) = Disk::tmpfs(8) else { return };
    let mount = with_work(&disk.path().join("repo"));
    let objects = || read_files(mount.repository()).len();
    let stored = objects();
    disk.fill(0);
    refused(&mount, libc::ENOSPC, &["the disk of", "is full", "the changes are kept"]);
    disk.fill(20);
    refused(&mount, libc::ENOSPC, &["is full"]);
    // Incomplete objects are not left on a disk that is full already.
    assert!(objects() <= stored + 1, "{} objects more", objects() - stored);
    disk.empty();
    commits(&mount);
    // So few pages that the commit fails at one of its later files, wherever that is.
    let mut outcomes = [0; 2];
    for pages in 1..14 {
        put(&mount.root().join("a/c/3"), vec![pages as u8; 600]).unwrap();
        disk.fill(pages);
        let history = Reference::open(mount.repository()).history().len();
        let done = mount.commit("with little room");
        assert_eq!(Reference::open(mount.repository()).history().len(), history + usize::from(done.is_ok()));
        outcomes[usize::from(done.is_ok())] += 1;
        assert_eq!(std::fs::read(mount.root().join("a/c/3")).unwrap(), vec![pages as u8; 600]);
        disk.empty();
        match done {
            Ok(()) => assert_eq!(mount.fresh()["a/c/3"], vec![pages as u8; 600]),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{pages}: {error}");
                commits(&mount);
            }
        }
    }
    assert!(outcomes[0] > 2 && outcomes[1] > 2, "failed and done: {outcomes:?}");
}

#[test]
fn a_read_only_repository_disk_refuses_commits_and_keeps_the_work() {
    watchdog();
    let place = tempfile::tempdir().unwrap();
    let disk = is_root().then(|| Disk::tmpfs(16).unwrap());
    let repository = disk.as_ref().map_or(place.path().to_owned(), Disk::path).join("repo");
    let mount = with_work(&repository);
    let access = |writable: bool| match &disk {
        Some(disk) => disk.remount(if writable { "rw" } else { "ro" }),
        // Root is refused nothing, and only root may mount.
        None => {
            let mode = std::fs::Permissions::from_mode(if writable { 0o755 } else { 0o555 });
            for folder in ["chunks", "snapshots", "."] {
                std::fs::set_permissions(repository.join(folder), mode.clone()).unwrap();
            }
        }
    };
    access(false);
    refused(&mount, if disk.is_some() { libc::EROFS } else { libc::EACCES }, &["chunks"]);
    put(&mount.root().join("a/c/4"), vec![4; 100]).unwrap();
    access(true);
    commits(&mount);
}

/// Changes `repo` directly, past all checks.
fn edit(place: &Path, change: impl FnOnce(&mut RepoState)) {
    let file = place.join("repo");
    let info = RepoInfo::decode(&std::fs::read(&file).unwrap()).unwrap();
    let mut state = RepoState::from_info(&info).unwrap();
    change(&mut state);
    std::fs::write(file, state.encode().unwrap()).unwrap();
}

fn set_availability(place: &Path, availability: u8) {
    let reason = Some("moving house".to_owned());
    edit(place, |state| state.status = Status { availability, set_at: system_clock(), reason });
}

#[test]
fn status_says_that_the_branch_cannot_be_read() {
    watchdog();
    for version in [SpecVersionBin::V1, SpecVersionBin::V2] {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("repo");
        block_on(lab::create(&place, version, icechunk::RepositoryConfig::default()));
        let mount = Writable::of(&place, &[]);
        put(&mount.root().join("a/zarr.json"), array(&[8], &[1])).unwrap();
        let entry = if version == SpecVersionBin::V1 { "refs/branch.main/ref.json" } else { "repo" };
        let file = place.join(entry);
        let whole = std::fs::read(&file).unwrap();
        let away = directory.path().join("away");
        let texts = || [mount.read_control("status"), run_on(mount.root(), &["status"]).text()];
        let is_said = |text: &str| text.contains("the branch cannot be read") && text.contains("icechunkfs verify");
        let assert_said = |how: &str| {
            for text in texts() {
                assert!(is_said(&text) && text.contains("added     /a"), "{how}: {text}");
            }
            let why = mount.control_json("status.json")["branch_unreadable"].to_string();
            assert!(why.len() > 10 && why != "null", "{how}: {why}");
        };
        assert!(!texts().iter().any(|text| is_said(text)));
        std::fs::write(&file, &whole[..whole.len() / 2]).unwrap();
        assert_said("damaged");
        std::fs::write(&file, &whole).unwrap();
        std::fs::rename(&file, &away).unwrap();
        assert_said("gone");
        std::fs::rename(&away, &file).unwrap();
        assert!(!texts().iter().any(|text| is_said(text)), "{:?}", texts());
        assert!(mount.control_json("status.json")["branch_unreadable"].is_null());
        mount.commit("as before").unwrap();
    }
}

#[test]
fn a_repository_set_read_only_refuses_commits_and_keeps_the_work() {
    watchdog();
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("repo");
    let mount = with_work(&place);
    set_availability(&place, 1);
    refused(&mount, libc::EROFS, &["read-only", "moving house"]);
    // Writing and unmounting still work.
    put(&mount.root().join("a/c/4"), vec![4; 100]).unwrap();
    let shown = read_files(&mount.root());
    mount.unmount();

    // Existing changes must not be hidden behind a read-only mount.
    let told = mount.mount_again(None).failure();
    assert!(told.contains("read-only") && told.contains("moving house"), "{told}");
    // Without any, it is mounted read-only, with a message.
    let reading = Mount::prepare();
    let state = tempfile::tempdir().unwrap();
    let mut command = Command::new(program());
    command.arg("mount").arg(&place).arg(reading.path()).env("XDG_STATE_HOME", state.path());
    let output = run(&mut command);
    let told = output.all();
    assert!(output.status.success() && told.contains("read-only") && told.contains("moving house"), "{told}");
    let write = std::fs::write(reading.path().join("x"), "").unwrap_err();
    assert_eq!(write.raw_os_error(), Some(libc::EROFS));
    drop(reading);

    set_availability(&place, 0);
    mount.mount_again(None).success();
    assert!(read_files(&mount.root()) == shown);
    commits(&mount);
}

#[test]
fn a_commit_follows_a_repository_change_from_the_future() {
    watchdog();
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("repo");
    let mount = with_work(&place);
    let mut future = 0;
    edit(&place, |state| {
        state.updates[0].updated_at += HOUR;
        future = state.updates[0].updated_at;
    });
    // This machine's clock is that of the disk: the other one was wrong, and the new time is right
    // after its time.
    commits(&mount);
    edit(&place, |state| assert_eq!(state.updates[0].updated_at, future + 1));
}

#[test]
fn a_commit_follows_a_commit_from_the_future() {
    watchdog();
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("repo");
    let mount = with_work(&place);
    // A machine whose clock is an hour ahead.
    block_on(async {
        // A storage without times cannot detect it.
        let local = icechunkfs::storage::open_directory(&place).unwrap();
        let storage: Arc<dyn Storage> = Arc::new(Faulty::new(local, 0, When::After, false));
        let reader = Arc::new(Reader::new(Arc::clone(&storage), Budget::new(64 << 20, 0).unwrap()));
        let engine = Engine::new(Arc::clone(&storage), reader, || system_clock() + HOUR, EngineOptions::default());
        let repository = Repository::open(storage).await.unwrap();
        let tip = repository.branch_tip("main").await.unwrap().unwrap();
        let base = Arc::new(repository.snapshot(tip, MAX_SNAPSHOT).await.unwrap());
        let created = WrittenNode {
            id: NodeId::random().unwrap(),
            path: "/theirs".to_owned(),
            zarr_json: GROUP.into(),
            is_array: false,
        };
        let changes = ChangeSet { created: vec![created], ..ChangeSet::default() };
        let request = Request { branch: "main".into(), message: "from the future".into(), ..Request::default() };
        engine.commit(&base, &changes, &request, &CommitProgress::default()).await.unwrap();
    });
    let shown = read_files(&mount.root());
    // It can be read, refreshed to, mounted again, and committed onto.
    mount.touch("refresh").unwrap();
    assert!(mount.root().join("theirs/zarr.json").exists());
    mount.remount();
    let mut with_theirs = shown;
    with_theirs.insert("theirs/zarr.json".to_owned(), GROUP.as_bytes().to_vec());
    assert!(read_files(&mount.root()) == with_theirs);
    commits(&mount);
}
