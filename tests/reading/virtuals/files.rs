//! `file://`: directories, links, mounts, and changed files.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::cat;
use crate::common::made::{Reference, reference, repository};
use crate::common::moto::plain;
use crate::common::{is_root, run};

struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        for folder in ["data", "data/inner", "database", "other"] {
            std::fs::create_dir(directory.path().join(folder)).unwrap();
            std::fs::write(directory.path().join(folder).join("x"), format!("0123456789 in {folder}")).unwrap();
        }
        Place { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn url(&self, name: &str) -> String {
        format!("file://{}", self.path(name).display())
    }

    fn repository(&self, references: &[Reference]) -> PathBuf {
        repository(&self.path("repo"), Vec::new(), references)
    }

    fn words(&self, allowed: &[&str]) -> Vec<String> {
        allowed.iter().flat_map(|name| ["--allow-virtual".to_owned(), self.path(name).display().to_string()]).collect()
    }
}

fn read(repository: &Path, n: usize, words: &[String]) -> Result<String, String> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let output = cat(repository, n, &words);
    if output.status.success() { Ok(String::from_utf8(output.stdout).unwrap()) } else { Err(output.stderr) }
}

#[test]
fn links_and_mounts_are_followed_only_to_allowed_directories() {
    let place = Place::new();
    symlink("inner/x", place.path("data/within")).unwrap();
    symlink("../other/x", place.path("data/out")).unwrap();
    symlink("../other", place.path("data/folder")).unwrap();
    std::fs::create_dir(place.path("data/mounted")).unwrap();
    let names = ["data/x", "data/within", "data/out", "data/folder/x", "data/mounted/x", "database/x"];
    let references: Vec<Reference> = names.iter().map(|name| reference(place.url(name), 2, 12)).collect();
    let repository = place.repository(&references);
    let bound = is_root() && rustix::mount::mount_bind(place.path("other"), place.path("data/mounted")).is_ok();
    let refused = |n: usize, allowed: &[&str]| {
        let said = read(&repository, n, &place.words(allowed)).unwrap_err();
        assert!(said.contains("--allow-virtual 'file:///"), "{}: {said}", names[n]);
    };
    let shown = |n: usize, allowed: &[&str]| read(&repository, n, &place.words(allowed)).unwrap();
    assert_eq!(shown(0, &["data"]), "23456789 in ");
    assert_eq!(shown(1, &["data"]), "23456789 in ");
    refused(2, &["data"]);
    refused(3, &["data"]);
    assert_eq!(shown(2, &["data", "other"]), "23456789 in ");
    assert_eq!(shown(3, &["other", "data"]), "23456789 in ");
    if bound {
        refused(4, &["data"]);
        assert_eq!(shown(4, &["data", "data/mounted"]), "23456789 in ");
        rustix::mount::unmount(place.path("data/mounted"), rustix::mount::UnmountFlags::DETACH).unwrap();
    }
    refused(5, &["data"]);
    refused(0, &["data/inner"]);
    assert_eq!(shown(5, &["database/x"]), "23456789 in ", "one file");
}

/// Paths are relative to the working directory of the command, also for the daemon, which changes
/// its own. A link does not lead into a directory that is only the target of a map.
#[test]
fn relative_paths_and_maps_are_resolved_where_the_command_runs() {
    let place = Place::new();
    symlink("../other/x", place.path("data/out")).unwrap();
    let references = [
        reference(place.url("data/x"), 0, 5),
        reference("s3://bucket/x", 0, 5),
        reference(place.url("data/out"), 0, 5),
        reference(place.url("other/x"), 0, 5),
    ];
    place.repository(&references);
    std::fs::create_dir(place.path("mnt")).unwrap();
    let words = [
        "mount",
        "repo",
        "mnt",
        "--read-only",
        "--log-file",
        "log",
        "--allow-virtual",
        "data",
        "--virtual-map",
        "s3://bucket=other",
    ];
    run(plain(&words).current_dir(place.directory.path())).success();
    let read = |n: usize| std::fs::read(place.path(&format!("mnt/v/c/{n}"))).map_err(|error| error.raw_os_error());
    let inside = read(0);
    let mapped = read(1);
    let link = read(2);
    let other = read(3);
    run(&mut plain(&["unmount", place.path("mnt").to_str().unwrap()])).success();
    assert_eq!((inside, mapped), (Ok(b"01234".to_vec()), Ok(b"01234".to_vec())));
    assert_eq!((link, other), (Err(Some(libc::EACCES)), Err(Some(libc::EACCES))));
}

#[test]
fn reading_a_changed_file_is_an_error() {
    let place = Place::new();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let modified = SystemTime::UNIX_EPOCH + Duration::from_millis((now - 1000) * 1000 + 500);
    std::fs::File::options().write(true).open(place.path("data/x")).unwrap().set_modified(modified).unwrap();
    let seconds = modified.duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let metadata = std::fs::metadata(place.path("data/x")).unwrap();
    let tag = {
        use std::os::unix::fs::MetadataExt;
        let micros = metadata.mtime() as u128 * 1_000_000 + metadata.mtime_nsec() as u128 / 1000;
        format!("\"{:x}-{micros:x}-{:x}\"", metadata.ino(), metadata.len())
    };
    let seconds = u32::try_from(seconds.as_secs()).unwrap();
    let x = || reference(place.url("data/x"), 0, 10);
    let repository = place.repository(&[
        x(),
        x().tagged(&tag),
        x().not_after(seconds + 1),
        // Within its second, as for Icechunk: half of it is later.
        x().not_after(seconds),
        x().tagged("\"another\""),
        reference(place.url("data/nothing"), 0, 10),
        reference(place.url("data/x"), 10, 1000),
        reference(place.url("data/inner"), 0, 1),
    ]);
    let words = place.words(&["data"]);
    for n in [0, 1, 2] {
        assert_eq!(read(&repository, n, &words).as_deref(), Ok("0123456789"), "{n}");
    }
    for (n, message) in
        [(3, "has changed"), (4, "has changed"), (5, "is gone"), (6, "too short"), (7, "not a regular file")]
    {
        let said = read(&repository, n, &words).unwrap_err();
        assert!(said.contains(message), "{n}: {said}");
    }
    let unchecked =
        [words.clone(), vec!["--virtual-option".into(), format!("{},unchecked", place.url("data"))]].concat();
    for n in [3, 4] {
        assert_eq!(read(&repository, n, &unchecked).as_deref(), Ok("0123456789"), "{n}");
    }
    std::fs::write(place.path("data/x"), "9876543210").unwrap();
    assert_eq!(read(&repository, 0, &words).as_deref(), Ok("9876543210"), "nothing tells");
    for n in [1, 2] {
        assert!(read(&repository, n, &words).unwrap_err().contains("has changed"), "{n}");
    }
    std::fs::write(place.path("data/x"), "01").unwrap();
    assert!(read(&repository, 0, &words).unwrap_err().contains("too short"));
}
