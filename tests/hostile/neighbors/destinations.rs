//! Directories that another user has prepared for an export or a clone.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::common::users::{Commons, NOBODY, by_nobody, set_mode, set_owner};
use crate::common::{FixtureSet, Output, copy_tree, differences, program, read_files, run, run_on};

/// A repository of root's, a good export of it, and a directory of the attacker's.
struct Prepared {
    commons: Commons,
}

/// A chunk of the repository.
const CHUNK: &str = "A/bytes63/c/0";

impl Prepared {
    fn new() -> Prepared {
        let commons = Commons::new();
        copy_tree(&FixtureSet::own().get("own-v2-basic").repository, &commons.path("repo"));
        commons.directory("shared", 0, 0o1777);
        let prepared = Prepared { commons };
        prepared.export("good", &[]).success();
        assert!(prepared.commons.path("good").join(CHUNK).is_file());
        prepared
    }

    fn repository(&self) -> PathBuf {
        self.commons.path("repo")
    }

    fn destination(&self) -> PathBuf {
        self.commons.path("shared/out")
    }

    fn export(&self, name: &str, words: &[&str]) -> Output {
        let mut command = Command::new(program());
        run(command.arg("export").arg(self.repository()).arg(self.commons.path(name)).args(words))
    }

    fn snapshot(&self) -> String {
        let log: Value = run_on(self.repository(), &["log", "--json"]).json();
        log[0]["id"].as_str().unwrap().to_owned()
    }

    /// Writes a note of an export that is not finished, as the attacker.
    fn note(&self, directory: &Path) {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        let note = json!({
            "repository": self.repository(),
            "snapshot": self.snapshot(),
            "path": "",
            "boot": boot.trim(),
        });
        by_nobody(|| std::fs::write(directory.join(".icechunkfs-export"), note.to_string()).unwrap());
    }

    /// Writes a file in place of a chunk, with its length and time, as the attacker.
    fn replace(&self, directory: &Path) {
        let good = self.commons.path("good").join(CHUNK).metadata().unwrap();
        let file = directory.join(CHUNK);
        by_nobody(|| {
            let _ = std::fs::remove_file(&file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, vec![b'E'; good.len() as usize]).unwrap();
            let times = std::fs::FileTimes::new().set_modified(good.modified().unwrap());
            std::fs::File::options().write(true).open(&file).unwrap().set_times(times).unwrap();
        });
    }

    #[track_caller]
    fn is_good(&self) {
        let [found, good] = [self.destination(), self.commons.path("good")].map(|path| read_files(&path));
        assert_eq!(differences(&found, &good), [""; 0]);
    }
}

#[test]
fn files_of_another_user_are_never_taken_for_exported_ones() {
    let prepared = Prepared::new();
    let directory = prepared.destination();
    by_nobody(|| std::fs::create_dir(&directory).unwrap());
    set_mode(&directory, 0o777);
    prepared.replace(&directory);
    prepared.note(&directory);
    // Both a note of hers and files of hers.
    prepared.export("shared/out", &[]).success();
    prepared.is_good();
    // Files of hers beside a note of root's: an export of root that was ended before.
    let note = directory.join(".icechunkfs-export");
    prepared.note(&directory);
    set_owner(&note, 0);
    set_mode(&note, 0o644);
    prepared.replace(&directory);
    prepared.export("shared/out", &[]).success();
    prepared.is_good();
    // With the comparison of bytes, too, and with other content in the directory.
    for words in [&["--force"][..], &["--force", "--checksum"]] {
        prepared.replace(&directory);
        prepared.export("shared/out", words).success();
        prepared.is_good();
        assert_eq!(std::os::unix::fs::MetadataExt::uid(&directory.join(CHUNK).metadata().unwrap()), 0, "{words:?}");
    }
}

#[test]
fn a_note_of_another_user_counts_in_no_directory_of_root() {
    let prepared = Prepared::new();
    let directory = prepared.commons.directory("shared/out", 0, 0o1777);
    prepared.note(&directory);
    let refused = prepared.export("shared/out", &[]).failure();
    assert!(refused.contains("other users could have written this marker"), "{refused}");
    // So does one that others may write to.
    let note = directory.join(".icechunkfs-export");
    set_owner(&note, 0);
    set_mode(&note, 0o666);
    prepared.replace(&directory);
    prepared.export("shared/out", &[]).success();
    prepared.is_good();
}

#[test]
fn a_clone_takes_no_object_of_another_user() {
    let prepared = Prepared::new();
    let directory = prepared.commons.directory("shared/clone", NOBODY, 0o777);
    let chunks = prepared.repository().join("chunks");
    let chunk = std::fs::read_dir(chunks).unwrap().next().unwrap().unwrap();
    let length = chunk.metadata().unwrap().len() as usize;
    by_nobody(|| {
        std::fs::create_dir_all(directory.join("chunks")).unwrap();
        std::fs::write(directory.join("chunks").join(chunk.file_name()), vec![b'E'; length]).unwrap();
    });
    let clone = |place: &Path| run(Command::new(program()).arg("clone").arg(prepared.repository()).arg(place));
    let refused = clone(&directory).failure();
    assert!(refused.contains("belongs to user nobody"), "{refused}");
    assert!(!directory.join("repo").exists());
    // An own unfinished clone goes on, and an empty directory of another user is a place like
    // others.
    let own = prepared.commons.directory("shared/own", NOBODY, 0o777);
    std::fs::create_dir(own.join("chunks")).unwrap();
    std::fs::copy(chunk.path(), own.join("chunks").join(chunk.file_name())).unwrap();
    clone(&own).success();
    run_on(&own, &["verify"]).success();
}

#[test]
fn a_link_of_another_user_leads_to_no_destination() {
    let prepared = Prepared::new();
    let victim = prepared.commons.directory("victim", 0, 0o755);
    std::fs::write(victim.join("precious"), "of root").unwrap();
    prepared.commons.directory("home", NOBODY, 0o755);
    let link = prepared.commons.path("home/out");
    by_nobody(|| std::os::unix::fs::symlink(&victim, &link).unwrap());
    for name in ["home/out", "home/out/new"] {
        for words in [&[][..], &["--dry-run"], &["--delete", "--yes"], &["--force"]] {
            let refused = prepared.export(name, words).failure();
            assert!(refused.contains("symbolic link of user nobody"), "{name} {words:?}: {refused}");
            assert!(refused.contains(link.to_str().unwrap()), "{name} {words:?}: {refused}");
        }
        let mut clone = Command::new(program());
        let refused = run(clone.arg("clone").arg(prepared.repository()).arg(prepared.commons.path(name))).failure();
        assert!(refused.contains("symbolic link of user nobody"), "{name}: {refused}");
        let refused = run(Command::new(program()).arg("init").arg(prepared.commons.path(name))).failure();
        assert!(refused.contains("symbolic link of user nobody"), "{name}: {refused}");
    }
    assert_eq!(std::fs::read_dir(&victim).unwrap().count(), 1);
    // A directory of that user is a place like others, and links of root lead where root wants.
    by_nobody(|| std::fs::create_dir(prepared.commons.path("home/own")).unwrap());
    set_mode(&prepared.commons.path("home/own"), 0o777);
    std::os::unix::fs::symlink(prepared.commons.path("home/own"), prepared.commons.path("shared/out")).unwrap();
    prepared.export("shared/out", &[]).success();
    prepared.is_good();
}
