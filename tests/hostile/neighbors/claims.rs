//! File systems of another user that claim that everything in them belongs to root, and that nobody
//! else may write to it.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;

use icechunkfs::trust::mounts::foreign_mount;
use icechunkfs::trust::{self, Distrust, Owners};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, statat};
use rustix::mount::UnmountFlags;

use crate::common::fake_mount::{FakeMount, Node};
use crate::common::users::{Commons, NOBODY};
use crate::common::{FixtureSet, Mount, copy_tree, program, run};

const LOOKUP: u32 = 1;

/// Mounts the attacker's file system with `files` in a directory of root's in which every user may
/// have files.
fn lying(commons: &Commons, files: &[(&str, Node)]) -> FakeMount {
    commons.directory("shared", 0, 0o1777);
    let place = commons.directory("shared/hers", NOBODY, 0o755);
    FakeMount::new(&place, NOBODY, true, files)
}

fn open(path: &Path) -> OwnedFd {
    openat(CWD, path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

fn repository() -> PathBuf {
    FixtureSet::own().get("own-v2-basic").repository
}

#[test]
fn no_place_in_a_file_system_of_another_user_is_trusted() {
    let commons = Commons::new();
    let fake = lying(&commons, &[("d", Node::Directory), ("log", Node::File(Vec::new()))]);
    let mount = Mount::prepare();
    let repository = commons.path("repo");
    copy_tree(&self::repository(), &repository);
    for (option, name) in [
        ("--scratch", ""),
        ("--scratch", "d"),
        ("--scratch", "d/new/scratch"),
        ("--log-file", "log"),
        ("--log-file", "d/log"),
        ("--access-log", "log"),
    ] {
        let mut command = Command::new(program());
        command.arg("mount").arg(&repository).arg(mount.path()).arg(option).arg(fake.path().join(name));
        if option != "--log-file" {
            command.arg("--log-file").arg(commons.path("log"));
        }
        if option != "--scratch" {
            command.arg("--read-only");
        }
        let refused = run(&mut command).failure();
        assert!(refused.contains("file system of user nobody"), "{option} {name}: {refused}");
        assert!(mount.mounted_as().is_none(), "{option} {name}");
        assert_eq!(fake.requests(), [0; 0], "{option} {name}");
    }
}

#[test]
fn no_link_in_a_file_system_of_another_user_leads_to_a_destination() {
    let commons = Commons::new();
    let victim = commons.directory("victim", 0, 0o755);
    std::fs::write(victim.join("precious"), "of root").unwrap();
    let fake = lying(&commons, &[("out", Node::Link(victim.clone()))]);
    for name in ["out", "out/new"] {
        let place = fake.path().join(name);
        for words in [&["export"][..], &["export", "--force", "--delete", "--yes"], &["clone"]] {
            let refused = run(Command::new(program()).args(words).arg(repository()).arg(&place)).failure();
            assert!(refused.contains("symbolic link of user nobody"), "{name} {words:?}: {refused}");
        }
        let refused = run(Command::new(program()).arg("init").arg(&place)).failure();
        assert!(refused.contains("symbolic link of user nobody"), "{name}: {refused}");
    }
    assert_eq!(std::fs::read_dir(&victim).unwrap().count(), 1);
}

#[test]
fn everything_in_a_file_system_of_another_user_counts_as_that_users() {
    let commons = Commons::new();
    let fake = lying(&commons, &[("file", Node::File(b"x".to_vec())), ("d", Node::Directory)]);
    let root = open(fake.path());
    let file = open(&fake.path().join("file"));
    let stat = statat(&root, "file", AtFlags::SYMLINK_NOFOLLOW).unwrap();
    assert_eq!(stat.st_uid, 0, "the daemon claims it");
    assert_eq!(trust::owner_of(&file).unwrap(), NOBODY);
    let around = commons.path("shared");
    for directory in [fake.path(), &around] {
        let owners = Owners::below(File::open(directory).unwrap()).unwrap();
        assert_eq!(owners.owner(&root, "file", &stat).unwrap(), NOBODY, "{}", directory.display());
    }
    assert!(matches!(trust::check(&file), Err(Distrust::Served(_))));
    // As a cache is opened.
    assert!(trust::create_directory(&fake.path().join("d")).is_err());
    assert!(trust::open_directory(&fake.path().join("d"), &|_| true).is_err());
    // The same file system of root's is believed.
    let own = commons.directory("own", 0, 0o755);
    let own = FakeMount::new(&own, 0, true, &[("d", Node::Directory)]);
    trust::check(open(&own.path().join("d"))).unwrap();
    // It is detached before the look in the mount table.
    let detached = open(own.path());
    rustix::mount::unmount(fake.path(), UnmountFlags::DETACH).unwrap();
    rustix::mount::unmount(own.path(), UnmountFlags::DETACH).unwrap();
    for file in [&file, &root, &detached] {
        assert!(foreign_mount(file).unwrap().is_some_and(|mount| mount.owner.is_none()));
        assert!(!trust::is_trusted(trust::owner_of(file).unwrap()));
        assert!(matches!(trust::check(file), Err(Distrust::Served(_))));
    }
}

#[test]
fn a_file_system_that_was_just_detached_is_not_entered() {
    let commons = Commons::new();
    let mount = Mount::new(&repository(), &["--read-only"]);
    let fake = lying(&commons, &[("m", Node::Link(mount.path()))]);
    let root = open(fake.path());
    rustix::mount::unmount(fake.path(), UnmountFlags::DETACH).unwrap();
    let begin = fake.requests().len();
    let mut command = Command::new(program());
    command.current_dir(format!("/proc/{}/fd/{}", std::process::id(), root.as_raw_fd()));
    let refused = run(command.args(["unmount", "m"])).failure();
    assert!(refused.contains("not in the mount table"), "{refused}");
    assert!(mount.mounted_as().is_some());
    // The kernel alone asks whether the directory may be entered.
    let requests = fake.requests().split_off(begin);
    assert!(!requests.contains(&LOOKUP), "{requests:?}");
}

/// Makes `$1` a root directory with the programs of this machine, in a new mount namespace, and
/// changes into it as `$0` says. It has what follows in `$@` run there.
const OTHER_ROOT: &str = r#"
set -e
how=$0 root=$1; shift
[ "$how" = chroot ] || { mount --bind "$root" "$root"; }
cd "$root"
for name in usr bin lib lib64; do
    if [ -h /$name ]; then cp -a /$name .; elif [ -d /$name ]; then mkdir $name; mount --rbind /$name $name; fi
done
mkdir dev etc old proc tmp
mount --bind /dev dev
[ "$how" = bare ] || mount --rbind /proc proc
[ "$how" = pivot ] || exec chroot . "$@"
pivot_root . old
umount -l old
cd /
exec "$@"
"#;

#[test]
fn commands_work_where_the_root_directory_is_another_one() {
    for how in ["chroot", "bound", "pivot", "bare"] {
        let commons = Commons::new();
        let root = commons.directory("root", 0, 0o755);
        run(Command::new("cp").arg(program()).arg(root.join("icechunkfs"))).success();
        copy_tree(&repository(), &root.join("repo"));
        let script = "cd /tmp && /icechunkfs export ../repo out && /icechunkfs init new && /icechunkfs clone ../repo cloned \
                      && /icechunkfs log cloned && mkdir m && /icechunkfs unmount m";
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", OTHER_ROOT, how]).arg(&root).args(["/bin/sh", "-c", script]);
        let said = run(&mut command).failure();
        assert!(root.join("tmp/cloned/repo").is_file(), "{how}: {said}");
        // Without `/proc` nothing can be unmounted.
        let expected = if how == "bare" { "the current directory" } else { "nothing is mounted at /tmp/m" };
        assert!(said.contains(expected), "{how}: {said}");
    }
}
