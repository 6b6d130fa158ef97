//! Usage errors, wrong paths and damaged repositories: each has its message or errno, and undamaged
//! parts still work.

use std::path::{Path, PathBuf};

use crate::common::users::{as_nobody, set_mode};
use crate::common::writing::needed;
use crate::common::{self, FixtureSet, Mount, copy_tree, entries, icechunkfs, io_modes, run_on};

/// A copy of a fixture that a test may damage.
struct Copy {
    directory: tempfile::TempDir,
}

impl Copy {
    fn of(name: &str) -> Copy {
        let directory = tempfile::tempdir().unwrap();
        copy_tree(&FixtureSet::own().get(name).repository, directory.path());
        Copy { directory }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The files of a folder, largest first.
    fn files(&self, folder: &str) -> Vec<PathBuf> {
        let mut files = entries(&self.path().join(folder));
        files.sort_by_key(|file| std::cmp::Reverse(std::fs::metadata(file).unwrap().len()));
        files
    }
}

#[track_caller]
fn assert_contains(message: &str, words: &[&str]) {
    for word in words {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
    assert!(!message.contains("panicked"), "{message}");
}

/// Returns the error of `refs` for a place that is no repository.
fn refs_error(repo: &Path) -> String {
    run_on(repo, &["refs"]).failure()
}

#[test]
fn a_path_without_a_repository_is_an_error() {
    let empty = tempfile::tempdir().unwrap();
    assert_contains(&refs_error(empty.path()), &["holds no Icechunk repository"]);
    assert_contains(&refs_error(&empty.path().join("missing")), &["missing", "no such directory"]);
    std::fs::write(empty.path().join("file"), "x").unwrap();
    assert_contains(&refs_error(&empty.path().join("file")), &["is not a directory"]);
    assert_contains(&icechunkfs(["refs", "ftp://host/x"]).failure(), &["ftp://host/x", "s3"]);
    std::fs::create_dir_all(empty.path().join("refs/branch.main")).unwrap();
    std::fs::write(empty.path().join("refs/branch.main/ZZZZZZZZ.json"), "{}").unwrap();
    let log = run_on(empty.path(), &["log"]).failure();
    assert_contains(&log, &["refs/branch.main/ZZZZZZZZ.json", "before 0.2"]);
}

#[test]
fn an_unknown_ref_is_an_error_with_a_suggestion() {
    let fixture = FixtureSet::own().get("own-v2-basic");
    let log = |option: &str| run_on(&fixture.repository, &["log", option]).failure();
    assert_contains(&log("--branch=mian"), &["no branch `mian`", "did you mean `main`?"]);
    assert_contains(&log("--tag=main"), &["no tag `main`", "there is a branch of that name"]);
    assert_contains(&log("--branch=qqqqqqqq"), &["no branch `qqqqqqqq`", "there is `"]);
    assert_contains(&log("--snapshot=nonsense"), &["--snapshot nonsense: this is not a valid id"]);
    assert_contains(&log("--snapshot=00000000000000000000"), &["no snapshot 00000000000000000000"]);
    assert_contains(&log("--as-of=1999-01-01"), &["no commit as old as 1999-01-01"]);
    assert_contains(&log("--as-of=soon"), &["`soon` is not a valid time"]);
    let old = FixtureSet::own().get("own-v1-basic");
    let log = |option: &str| run_on(&old.repository, &["log", option]).failure();
    assert_contains(&log("--branch=mian"), &["no branch `mian`", "did you mean `main`?"]);
    assert_contains(&log("--branch=a/b"), &["no branch `a/b`"]);
    assert_contains(&log("--snapshot=00000000000000000000"), &["snapshot 00000000000000000000 is missing"]);
}

#[test]
fn a_damaged_ref_does_not_affect_other_refs() {
    let copy = Copy::of("own-v1-basic");
    std::fs::write(copy.path().join("refs/branch.dev/ref.json"), "{\"snapshot\": 7}").unwrap();
    let listed = run_on(copy.path(), &["refs"]);
    assert_contains(&listed.stderr, &["refs/branch.dev/ref.json", "left out"]);
    let listed = listed.text();
    assert!(listed.contains("main") && !listed.contains("dev"), "{listed}");
    let log = run_on(copy.path(), &["log", "--branch=dev"]);
    assert_contains(&log.failure(), &["refs/branch.dev/ref.json"]);
}

#[test]
fn an_unusable_mountpoint_is_an_error() {
    let fixture = FixtureSet::own().get("own-v2-basic");
    let mount = Mount::prepare();
    let at = |place: &Path, more: &[&str]| {
        run_on(&fixture.repository, &[&["mount", place.to_str().unwrap()], more].concat())
    };
    assert_contains(&at(&mount.path().join("missing"), &[]).failure(), &["does not exist", "mkdir"]);
    std::fs::write(mount.path().join("file"), "x").unwrap();
    assert_contains(&at(&mount.path().join("file"), &[]).failure(), &["is not a directory"]);
    assert_contains(&at(&mount.path(), &[]).failure(), &["is not empty", "-o nonempty"]);
    at(&mount.path(), &["-o", "nonempty,ro"]).success();
    assert!(mount.path().join("zarr.json").exists());
    assert_contains(&at(&mount.path(), &[]).failure(), &["is busy", "fuse.icechunkfs"]);
    mount.unmount();
    assert!(mount.path().join("file").exists());
    assert_contains(&run_on(mount.path(), &["unmount"]).failure(), &["nothing is mounted"]);
    assert_contains(&icechunkfs(["unmount", "/proc"]).failure(), &["of type proc", "use umount"]);
    std::fs::remove_file(mount.path().join("file")).unwrap();
    for (words, message) in [
        (vec!["-o", "frobnicate"], "unknown mount option `frobnicate`"),
        (vec!["--memory", "1K"], "too small"),
        (vec!["--memory", "much"], "is not a valid size"),
        (vec!["--io", "passthrough", "--io-uring"], "give one of them"),
        (vec!["--io", "fast"], "possible values: auto, cached, passthrough"),
        (vec!["-o", "tag=a,branch=b"], "one of a branch, a tag and a snapshot"),
        (vec!["--log-file", "/no/such/place/log"], "/no/such/place/log"),
    ] {
        assert_contains(&at(&mount.path(), &words).failure(), &[message]);
        assert!(mount.mounted_as().is_none());
    }
}

#[test]
fn each_damage_of_the_repo_file_has_its_message() {
    let damage = |change: fn(&mut Vec<u8>)| {
        let copy = Copy::of("own-v2-basic");
        let repo = copy.path().join("repo");
        let mut bytes = std::fs::read(&repo).unwrap();
        change(&mut bytes);
        std::fs::write(&repo, bytes).unwrap();
        refs_error(copy.path())
    };
    assert_contains(&damage(|b| b.truncate(20)), &["repo: truncated"]);
    assert_contains(&damage(|b| b.truncate(200)), &["repo:", "damaged"]);
    assert_contains(&damage(|b| b.clear()), &["repo:", "too few"]);
    assert_contains(&damage(|b| b[0] = b'X'), &["repo:", "wrong magic"]);
    assert_contains(&damage(|b| b[36] = 3), &["version 3"]);
    assert_contains(&damage(|b| b[37] = 1), &["a snapshot file where a repo info"]);
    assert_contains(&damage(|b| b[37] = 77), &["unknown file type 77"]);
    assert_contains(&damage(|b| b[38] = 9), &["unknown compression algorithm 9"]);
    assert_contains(&damage(|b| b[60] ^= 0xff), &["repo:"]);
}

#[test]
fn a_missing_or_damaged_snapshot_is_named() {
    let copy = Copy::of("own-v2-basic");
    let id = FixtureSet::own().get("own-v2-basic").expected["branches"]["main"].as_str().unwrap().to_owned();
    let file = copy.path().join("snapshots").join(&id);
    let mount = Mount::prepare();
    std::fs::write(&file, b"short").unwrap();
    assert_contains(&mount.command(copy.path(), &[]).failure(), &[&id, "too few"]);
    std::fs::remove_file(&file).unwrap();
    assert_contains(&mount.command(copy.path(), &[]).failure(), &[&id, "is missing"]);
    // Another snapshot has its name.
    let other = copy.files("snapshots").into_iter().find(|other| *other != file).unwrap();
    std::fs::copy(&other, &file).unwrap();
    assert_contains(&mount.command(copy.path(), &[]).failure(), &[&id, "the file states that it is snapshot"]);
    assert!(mount.mounted_as().is_none());
}

/// Counts the files below a directory that can be read and those that give EIO; any other error
/// fails.
fn read_all(directory: &Path) -> (usize, usize) {
    let Ok(entries) = std::fs::read_dir(directory) else { return (0, 1) };
    let mut good = 0;
    let mut bad = 0;
    for entry in entries {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::EIO), "{}: {error}", directory.display());
                bad += 1;
                continue;
            }
        };
        if entry.file_type().unwrap().is_dir() {
            let (more, worse) = read_all(&entry.path());
            good += more;
            bad += worse;
            continue;
        }
        match std::fs::read(entry.path()) {
            Ok(bytes) => {
                assert_eq!(bytes.len() as u64, entry.metadata().unwrap().len(), "{}", entry.path().display());
                good += 1;
            }
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::EIO), "{}: {error}", entry.path().display());
                bad += 1;
            }
        }
    }
    (good, bad)
}

#[test]
fn missing_and_short_objects_are_errors_and_never_zeros() {
    for io in io_modes() {
        let copy = Copy::of("own-v2-basic");
        let whole = Mount::new(copy.path(), &["--io", io]);
        let (all, none) = read_all(&whole.path());
        assert_eq!(none, 0);
        drop(whole);
        let chunks = copy.files("chunks");
        std::fs::remove_file(&chunks[0]).unwrap();
        let mut short = std::fs::read(&chunks[1]).unwrap();
        short.pop();
        std::fs::write(&chunks[1], short).unwrap();
        std::fs::write(&chunks[2], b"").unwrap();
        let damaged = Mount::new(copy.path(), &["--io", io]);
        let (good, bad) = read_all(&damaged.path());
        assert!((1..=3).contains(&bad) && good + bad == all, "{io}: {good} of {all}, {bad} bad");
        assert_contains(&damaged.log(), &["chunks/"]);
        assert!(damaged.log().contains("too short") || damaged.log().contains("missing"), "{}", damaged.log());
    }
}

#[test]
fn a_damaged_manifest_affects_only_its_arrays() {
    let copy = Copy::of("own-v2-basic");
    let manifests = copy.files("manifests");
    for (n, file) in manifests.iter().enumerate() {
        match n % 3 {
            0 => std::fs::remove_file(file).unwrap(),
            1 => std::fs::write(file, &std::fs::read(file).unwrap()[..60]).unwrap(),
            _ => {}
        }
    }
    let mount = Mount::new(copy.path(), &[]);
    let (good, bad) = read_all(&mount.path());
    assert!(good > 20 && bad > 0, "{good} good, {bad} bad");
    assert_contains(&mount.log(), &["manifests/"]);
}

#[test]
fn links_out_of_the_repository_are_refused() {
    let copy = Copy::of("own-v2-basic");
    let chunk = &copy.files("chunks")[0];
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), vec![b'S'; 1 << 16]).unwrap();
    let size = std::fs::metadata(chunk).unwrap().len();
    std::fs::OpenOptions::new().write(true).open(secret.path()).unwrap().set_len(size).unwrap();
    std::fs::remove_file(chunk).unwrap();
    std::os::unix::fs::symlink(secret.path(), chunk).unwrap();
    for io in io_modes() {
        let mount = Mount::new(copy.path(), &["--io", io]);
        let name = chunk.file_name().unwrap().to_str().unwrap();
        assert!(count_denied(&mount.path()) > 0);
        assert_contains(&mount.log(), &[name, "a symbolic link leads out of the repository"]);
    }
}

fn count_denied(directory: &Path) -> usize {
    let mut denied = 0;
    for entry in std::fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            denied += count_denied(&entry.path());
        } else {
            match std::fs::read(entry.path()) {
                Ok(bytes) => assert!(!bytes.starts_with(b"SSSS"), "the secret was read"),
                Err(_) => denied += 1,
            }
        }
    }
    denied
}

#[test]
fn an_unreadable_repository_is_reported() {
    if !needed(common::is_root(), "root, to make files that another user may not read") {
        return;
    }
    let copy = Copy::of("own-v2-basic");
    let refs = || common::run(as_nobody(common::program()).arg("refs").arg(copy.path())).failure();
    set_mode(copy.path(), 0o755);
    set_mode(&copy.path().join("repo"), 0o600);
    assert_contains(&refs(), &["repo", "Permission denied"]);
    set_mode(copy.path(), 0o700);
    assert_contains(&refs(), &["Permission denied"]);
}

/// A snapshot that expands to far more than its size: the bound holds before it is decoded.
#[test]
fn an_expanding_snapshot_is_stopped_by_the_memory_bound() {
    let copy = Copy::of("own-v2-basic");
    let id = FixtureSet::own().get("own-v2-basic").expected["branches"]["main"].as_str().unwrap().to_owned();
    let file = copy.path().join("snapshots").join(&id);
    let mut bytes = std::fs::read(&file).unwrap();
    bytes.truncate(39);
    bytes.extend(zstd::encode_all(std::io::Read::take(std::io::repeat(0), 256 << 20), 3).unwrap());
    assert!(bytes.len() < 100_000);
    std::fs::write(&file, bytes).unwrap();
    let mount = Mount::prepare();
    let refused = mount.command(copy.path(), &["--memory", "32M"]).failure();
    assert_contains(&refused, &[&id, "the memory bound leaves", "raise --memory"]);
}
