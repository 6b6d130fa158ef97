//! Journals and mounts of other users during a garbage collection.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::common::fake_mount::{FakeMount, Node};
use crate::common::users::{Commons, NOBODY, as_nobody, by_nobody, fifo, mount_apart, set_owner};
use crate::common::writing::{self, Writable, put};
use crate::common::{Output, Unmounted, program, run};

/// A repository with garbage, and a user of the machine whose home is at `home`.
struct Machine {
    commons: Commons,
}

impl Machine {
    fn new() -> Machine {
        let commons = Commons::new();
        let repository = commons.path("repo");
        writing::create(&repository);
        std::fs::create_dir_all(repository.join("chunks")).unwrap();
        std::fs::write(repository.join("chunks/1B2C3D4E5F6G7H8J9K00"), "garbage").unwrap();
        commons.directory("home", NOBODY, 0o700);
        let users = std::fs::read_to_string("/etc/passwd").unwrap();
        let home = commons.path("home").display().to_string();
        std::fs::write(commons.path("passwd"), format!("{users}mallory:x:65534:65534::{home}:/bin/sh\n")).unwrap();
        Machine { commons }
    }

    fn repository(&self) -> PathBuf {
        self.commons.path("repo")
    }

    /// Returns the user's scratch directories for the repository.
    fn scratch(&self) -> PathBuf {
        let location = self.repository().display().to_string().replace('/', "%2F");
        self.commons.path("home/.local/state/icechunkfs").join(location)
    }

    /// Mounts the repository as the user, with a scratch directory below the home. Returns the
    /// place.
    fn mount_of_the_user(&self) -> (PathBuf, Unmounted) {
        let place = self.commons.directory("mnt", NOBODY, 0o755);
        run(Command::new("chown").args(["-R", "65534:65534"]).arg(self.repository())).success();
        let mut mount = as_nobody(self.commons.program());
        mount.arg("mount").arg(self.repository()).arg(&place).arg("--log-file").arg(self.commons.path("home/log"));
        run(mount.arg("--scratch").arg(self.commons.path("home/scratch"))).success();
        (place.clone(), Unmounted(vec![place]))
    }

    /// Collects as root, who finds the user in `/etc/passwd`.
    fn gc(&self, words: &[&str]) -> Output {
        run(self.gc_command(words).env_remove("SUDO_UID"))
    }

    fn gc_command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", "mount --bind \"$0\" /etc/passwd && exec \"$@\""]);
        command.arg(self.commons.path("passwd")).arg(program()).arg("gc").arg(self.repository());
        command.args(["--older-than", "0s"]).args(words);
        command
    }

    #[track_caller]
    fn collects(&self, scratch: &Path) {
        let output = self.gc(&["--dry-run", "--json"]);
        let said = output.stderr.clone();
        let report: Value = output.json();
        assert_eq!(report["chunks"]["objects"], 1, "{report:#}");
        let skipped = report["not_counted"].as_array().unwrap();
        let names = |entry: &Value| entry["path"].as_str().is_some_and(|path| scratch.starts_with(path));
        assert!(skipped.iter().any(names), "{report:#} {said}");
        assert_eq!(report["uncommitted"].as_array().unwrap().len(), 0);
        let words = self.gc(&["--dry-run"]).text();
        assert!(words.contains("not counted") && words.contains("--keep-scratch"), "{words}");
    }
}

#[test]
fn a_journal_of_another_user_stops_no_collection() {
    let machine = Machine::new();
    let branch = machine.scratch().join("main");
    by_nobody(|| std::fs::create_dir_all(&branch).unwrap());
    let journal = branch.join("journal");
    let kinds: [&(dyn Fn() + Sync); 5] = [
        &|| std::fs::write(&journal, "garbage\nof hers\n").unwrap(),
        &|| fifo(&journal),
        &|| std::os::unix::fs::symlink("/dev/zero", &journal).unwrap(),
        &|| std::fs::create_dir(&journal).unwrap(),
        &|| std::fs::File::create(&journal).unwrap().set_len(1 << 40).unwrap(),
    ];
    for make in kinds {
        by_nobody(make);
        machine.collects(&branch);
        by_nobody(|| std::fs::remove_file(&journal).or_else(|_| std::fs::remove_dir(&journal))).unwrap();
    }
    // The whole place, or a part of it, is a link to somewhere else, or no directory.
    let place = machine.scratch();
    by_nobody(|| {
        std::fs::remove_dir_all(&place).unwrap();
        std::os::unix::fs::symlink("/proc/self/fd", &place).unwrap();
    });
    let report = machine.gc(&["--dry-run", "--json"]).json();
    assert_eq!(report["chunks"]["objects"], 1, "{report:#}");
    by_nobody(|| {
        std::fs::remove_file(&place).unwrap();
        std::fs::create_dir(&place).unwrap();
        std::os::unix::fs::symlink("/proc/1/root", place.join("main")).unwrap();
    });
    let report = machine.gc(&["--dry-run", "--json"]).json();
    assert_eq!(report["chunks"]["objects"], 1, "{report:#}");
}

#[test]
fn work_of_another_user_counts_with_keep_scratch() {
    let machine = Machine::new();
    let base = Writable::of(&machine.repository(), &[]);
    put(&base.root().join("zarr.json"), writing::GROUP).unwrap();
    put(&base.root().join("a/zarr.json"), writing::array(&[8], &[1])).unwrap();
    base.commit("base").unwrap();
    put(&base.root().join("a/c/0"), "hers").unwrap();
    base.unmount();
    // The owner is set as if the user had done it.
    let branch = machine.scratch().join("main");
    by_nobody(|| std::fs::create_dir_all(machine.scratch()).unwrap());
    run(Command::new("cp").arg("-a").arg(base.scratch()).arg(&branch)).success();
    run(Command::new("chown").args(["-R", "65534:65534"]).arg(&branch)).success();
    writing::Reference::open(&machine.repository()).reset_branch("main");
    machine.collects(&branch);
    let kept = machine.gc(&["--dry-run", "--json", "--keep-scratch", branch.to_str().unwrap()]).json();
    assert_eq!(kept["uncommitted"].as_array().unwrap().len(), 1, "{kept:#}");
    assert_eq!(kept["commits"].as_array().unwrap().len(), 0, "{kept:#}");
    let lost = machine.gc(&["--dry-run", "--json"]).json();
    assert_eq!(lost["commits"].as_array().unwrap().len(), 1, "{lost:#}");
    // The caller of sudo is the one whose work counts.
    let kept = run(machine.gc_command(&["--dry-run", "--json"]).env("SUDO_UID", "65534")).json();
    assert_eq!(kept["commits"].as_array().unwrap().len(), 0, "{kept:#}");
    // The same directory, owned by root, counts without an option.
    run(Command::new("chown").args(["-R", "0:0"]).arg(&branch)).success();
    set_owner(&machine.scratch(), 0);
    let report = machine.gc(&["--dry-run", "--json"]).json();
    assert_eq!(report["uncommitted"].as_array().unwrap().len(), 1, "{report:#}");
}

#[test]
fn a_mount_of_another_user_stops_no_collection() {
    let machine = Machine::new();
    let (place, mounted) = machine.mount_of_the_user();
    let report = machine.gc(&["--dry-run", "--json"]);
    drop(mounted);
    let report = report.json();
    assert_eq!(report["chunks"]["objects"], 1, "{report:#}");
    let skipped = report["not_counted"].as_array().unwrap();
    assert!(skipped.iter().any(|entry| entry["path"] == place.to_str().unwrap()), "{report:#}");
}

/// Returns the file system that the user serves at `place`, in which everything belongs to root and
/// a journal of root's is damaged.
fn lying_home(machine: &Machine, place: &Path, for_all: bool) -> FakeMount {
    let location = machine.repository().display().to_string().replace('/', "%2F");
    let state = [".local", ".local/state", ".local/state/icechunkfs"].map(str::to_owned);
    let branch = format!(".local/state/icechunkfs/{location}");
    let inner = [branch.clone(), format!("{branch}/main")];
    let mut files: Vec<(&str, Node)> = Vec::new();
    files.extend(state.iter().chain(&inner).map(|path| (path.as_str(), Node::Directory)));
    let journal = format!("{branch}/main/journal");
    files.push((&journal, Node::File(b"garbage\nof hers\n".to_vec())));
    FakeMount::new(place, NOBODY, for_all, &files)
}

#[test]
fn a_file_system_over_a_home_stops_no_collection() {
    let machine = Machine::new();
    let home = machine.commons.path("home");
    let collects = |fake: &FakeMount, kind: &str| {
        let report = machine.gc(&["--dry-run", "--json"]).json();
        assert_eq!(report["chunks"]["objects"], 1, "{kind}: {report:#}");
        let skipped = report["not_counted"].as_array().unwrap();
        let is_named = |entry: &Value| entry["path"].as_str().is_some_and(|path| Path::new(path).starts_with(&home));
        let found = skipped.iter().find(|entry| is_named(entry)).unwrap_or_else(|| panic!("{kind}: {report:#}"));
        assert_eq!(found["user"], NOBODY, "{kind}");
        assert_eq!(report["uncommitted"].as_array().unwrap().len(), 0, "{kind}");
        assert_eq!(fake.requests(), [0; 0], "{kind}");
    };
    for (for_all, kind) in [(false, "plain"), (true, "lying")] {
        collects(&lying_home(&machine, &home, for_all), kind);
    }
    // A part of it, and a link that leads into such a file system.
    by_nobody(|| std::fs::create_dir_all(home.join(".local/state")).unwrap());
    collects(&lying_home(&machine, &home.join(".local"), true), "part");
    let link = home.join(".local/state/icechunkfs");
    let elsewhere = machine.commons.directory("elsewhere", NOBODY, 0o755);
    std::os::unix::fs::symlink(&elsewhere, &link).unwrap();
    collects(&lying_home(&machine, &elsewhere, true), "link");
    std::fs::remove_file(&link).unwrap();
    // Its daemon is gone.
    let dead = FakeMount::new(&home, NOBODY, true, &[]);
    dead.kill();
    collects(&dead, "dead");
}

#[test]
fn a_file_system_over_the_repository_of_a_mount_stops_no_collection() {
    // While nobody can look at the repository of a mount, every collection on the machine keeps
    // what that may need.
    mount_apart();
    let machine = Machine::new();
    let outer = machine.commons.directory("hers", NOBODY, 0o755);
    let other = outer.join("other");
    writing::create(&other);
    let place = machine.commons.directory("mnt", 0, 0o755);
    let scratch = machine.commons.path("scratch-of-root");
    run(Command::new(program()).arg("mount").arg(&other).arg(&place).arg("--scratch").arg(&scratch)).success();
    let mounted = Unmounted(vec![place]);
    let fake = FakeMount::new(&outer, NOBODY, true, &[]);
    let report = machine.gc(&["--dry-run", "--json"]).json();
    assert_eq!(report["chunks"]["objects"], 1, "{report:#}");
    // It may be of this repository, as nobody can look: what it needs is kept.
    assert_eq!(report["uncommitted"][0]["scratch"], scratch.to_str().unwrap(), "{report:#}");
    assert_eq!(fake.requests(), [0; 0]);
    drop((fake, mounted));
}

#[test]
fn the_caller_of_sudo_collects_beside_an_own_mount() {
    let machine = Machine::new();
    let (place, mounted) = machine.mount_of_the_user();
    let output = run(machine.gc_command(&["--dry-run", "--json"]).env("SUDO_UID", "65534"));
    let words = run(machine.gc_command(&["--dry-run"]).env("SUDO_UID", "65534"));
    drop(mounted);
    let report = output.json();
    assert_eq!(report["chunks"]["objects"], 1, "{report:#}");
    let skipped = report["not_counted"].as_array().unwrap();
    assert!(skipped.iter().any(|entry| entry["path"] == place.to_str().unwrap()), "{report:#}");
    let words = words.text();
    assert!(words.contains("not counted") && words.contains("--keep-scratch"), "{words}");
}

#[test]
fn a_covered_mount_is_not_passed_over() {
    let machine = Machine::new();
    let outer = machine.commons.directory("hers", NOBODY, 0o777);
    let place = outer.join("mnt");
    std::fs::create_dir(&place).unwrap();
    let scratch = machine.commons.path("scratch-of-root");
    let mut mount = Command::new(program());
    run(mount.arg("mount").arg(machine.repository()).arg(&place).arg("--scratch").arg(&scratch)).success();
    let mounted = Unmounted(vec![place.clone()]);
    put(&place.join("zarr.json"), writing::GROUP).unwrap();
    assert_eq!(machine.gc(&["--dry-run", "--json"]).json()["uncommitted"].as_array().unwrap().len(), 1);
    let other = machine.commons.path("other");
    writing::create(&other);
    run(Command::new("chown").args(["-R", "65534:65534"]).arg(&other)).success();
    let mut cover = as_nobody(machine.commons.program());
    cover.arg("mount").arg(&other).arg(&outer).args(["--read-only", "-o", "nonempty"]);
    run(cover.arg("--log-file").arg(machine.commons.path("home/log"))).success();
    let covering = Unmounted(vec![outer.clone()]);
    let refused = machine.gc(&["--dry-run"]).failure();
    drop(covering);
    assert!(refused.contains("may have uncommitted changes") && refused.contains(place.to_str().unwrap()), "{refused}");
    assert_eq!(machine.gc(&["--dry-run", "--json"]).json()["uncommitted"].as_array().unwrap().len(), 1);
    drop(mounted);
}
