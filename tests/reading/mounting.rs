//! Mounting and unmounting by users, administrators and failures.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use crate::common::users::{Commons, NOBODY, as_nobody, set_owner};
use crate::common::writing::needed;
use crate::common::{self, FixtureSet, Mount, copy_tree, is_root, run, run_on, signal, wait_for_end, wait_until};
use std::ffi::OsStr;

/// A place that another user can reach: the program, a repository and a mountpoint of their own.
struct Home {
    commons: Commons,
}

impl Home {
    fn new() -> Home {
        let commons = Commons::new();
        copy_tree(&FixtureSet::own().get("own-v2-basic").repository, &commons.path("repo"));
        commons.program();
        commons.directory("mnt", NOBODY, 0o755);
        Home { commons }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.commons.path(name)
    }

    fn mountpoint(&self) -> PathBuf {
        self.path("mnt")
    }

    fn as_nobody(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = as_nobody(program);
        command.current_dir(self.path("."));
        command
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let table = std::fs::read_to_string("/proc/mounts").unwrap();
        if table.contains(self.mountpoint().to_str().unwrap()) {
            let _ = Command::new("umount").arg("-l").arg(self.mountpoint()).status();
        }
    }
}

#[test]
fn the_mount_table_has_type_and_source() {
    let fixture = FixtureSet::own().get("own-v2-basic");
    // Only a branch is writable, unless that is disabled.
    for (words, access, of) in [
        (&[][..], "rw", "@branch:main"),
        (&["-o", "ro"], "ro", "@branch:main"),
        (&["--tag", "v1.0"], "ro", "@tag:v1.0"),
    ] {
        let mount = Mount::new(&fixture.repository, words);
        let line = mount.mounted_as().unwrap();
        let fields: Vec<&str> = line.split(' ').collect();
        let source = format!("{}{of}", fixture.repository.display());
        assert_eq!((fields[0], fields[2]), (&*source, "fuse.icechunkfs"));
        assert!(fields[3].split(',').any(|option| option == access), "{words:?}: {line}");
    }
    // A URL stays one.
    let url = format!("file://{}", fixture.repository.display());
    let by_url = Mount::new(Path::new(&url), &["--tag", "v1.0"]);
    assert!(by_url.mounted_as().unwrap().starts_with(&url));
}

#[test]
fn attributes_come_from_the_commit() {
    let fixture = FixtureSet::own().get("own-v2-basic");
    let mount = Mount::new(&fixture.repository, &["-o", "ro"]);
    let id = fixture.expected["branches"]["main"].as_str().unwrap();
    let written = fixture.expected["snapshots"][id]["written_at"].as_str().unwrap();
    let micros = icechunkfs::times::parse_time(written).unwrap();
    for place in [mount.path(), mount.path().join("zarr.json")] {
        let metadata = std::fs::metadata(&place).unwrap();
        assert_eq!(metadata.modified().unwrap(), SystemTime::UNIX_EPOCH + Duration::from_micros(micros));
        assert_eq!(metadata.uid(), rustix::process::geteuid().as_raw());
    }
    let space = rustix::fs::statfs(mount.path()).unwrap();
    assert!(space.f_blocks > 0 && space.f_bavail == 0 && space.f_namelen == 255);
    assert_eq!(std::fs::write(mount.path().join("new"), "x").unwrap_err().raw_os_error(), Some(30), "EROFS");
    let sockets = [mount.path().join("nothing"), mount.path().join("zarr.json/x"), mount.path().join("\u{fffd}")];
    for absent in sockets {
        assert!(std::fs::metadata(&absent).is_err(), "{}", absent.display());
    }
    // A name that is not UTF-8 is absent, not an error.
    let strange: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"\xff\xfe");
    assert_eq!(std::fs::metadata(mount.path().join(strange)).unwrap_err().kind(), std::io::ErrorKind::NotFound);
}

#[test]
fn inode_numbers_are_the_same_in_every_mount() {
    let fixture = FixtureSet::own().get("own-v2-deep");
    let numbers = || {
        let mount = Mount::new(&fixture.repository, &[]);
        let listed = run(Command::new("find").arg(mount.path()).args(["-printf", "%i %P\n"])).success();
        String::from_utf8(listed).unwrap()
    };
    let first = numbers();
    assert!(first.lines().count() > 300);
    assert_eq!(first, numbers());
    let unique: std::collections::HashSet<&str> = first.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(unique.len(), first.lines().count());
}

#[test]
fn a_mount_of_an_unprivileged_user_is_private() {
    if !needed(common::is_root(), "root, for mounting as another user") {
        return;
    }
    let home = Home::new();
    let log = home.mountpoint().with_file_name("log");
    std::fs::write(&log, "").unwrap();
    set_owner(&log, NOBODY);
    let program = home.path("icechunkfs");
    let mut mount = home.as_nobody(&program);
    run(mount.arg("mount").arg("repo").arg("mnt").arg("--log-file").arg(&log)).success();
    let document = home.mountpoint().join("zarr.json");
    run(home.as_nobody("cat").arg(&document)).success();
    let listed = run(home.as_nobody("find").arg(home.mountpoint())).success();
    assert!(String::from_utf8(listed).unwrap().lines().count() > 50);
    // Not even root gets in.
    assert_eq!(std::fs::metadata(&document).unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
    let table = std::fs::read_to_string("/proc/mounts").unwrap();
    let line = table.lines().find(|line| line.contains(home.mountpoint().to_str().unwrap())).unwrap().to_owned();
    assert!(line.contains("fuse.icechunkfs") && line.contains(&format!("user_id={NOBODY}")), "{line}");
    // Forcing an option that needs privilege gives an error that says so.
    std::fs::create_dir(home.path("other")).unwrap();
    let refused = run(home
        .as_nobody(&program)
        .args(["mount", "repo", "other", "--io", "passthrough"])
        .env_remove("ICECHUNKFS_IO_URING"));
    assert!(refused.failure().contains("needs root"));
    run(home.as_nobody(&program).args(["unmount", "mnt"])).success();
    assert!(!std::fs::read_to_string("/proc/mounts").unwrap().contains(home.mountpoint().to_str().unwrap()));
}

#[test]
fn allow_other_admits_other_users_and_the_kernel_checks_modes() {
    if !needed(common::is_root(), "root, to be two users") {
        return;
    }
    let home = Home::new();
    let document = home.mountpoint().join("zarr.json");
    let mount = |words: &[&str]| {
        let mut command = Command::new(common::program());
        command.arg("mount").arg(home.path("repo")).arg(home.mountpoint()).arg("--scratch").arg(home.path("scratch"));
        run(command.args(words)).success();
    };
    mount(&["--allow-other"]);
    run(home.as_nobody("cat").arg(&document)).success();
    let table = std::fs::read_to_string("/proc/mounts").unwrap();
    let line = table.lines().find(|line| line.contains(home.mountpoint().to_str().unwrap())).unwrap();
    assert!(line.contains("allow_other") && line.contains("default_permissions"), "{line}");
    // Modes count: no user may run a file without the x bit, and `access` reports it.
    run(home.as_nobody("test").arg("-x").arg(&document)).failure();
    run(home.as_nobody("test").arg("-r").arg(&document)).success();
    run_on(home.mountpoint(), &["unmount"]).success();

    mount(&[]);
    run(home.as_nobody("cat").arg(&document)).failure();
    run_on(home.mountpoint(), &["unmount"]).success();
}

#[test]
fn a_killed_daemon_blocks_nobody_and_its_mount_is_cleaned_up() {
    let fixture = FixtureSet::own().get("own-v2-basic");
    let mount = Mount::new(&fixture.repository, &[]);
    let mut reader = Command::new("sh")
        .arg("-c")
        .arg("i=0; until ls ./$i 2>&1 | grep -q 'not connected'; do i=$((i+1)); done")
        .current_dir(mount.path())
        .spawn()
        .unwrap();
    let kill = |mount: &Mount| signal(mount.daemon(), "-9");
    kill(&mount);
    wait_until("the reading program ends", || reader.try_wait().unwrap().is_some());
    let dead = std::fs::metadata(mount.path().join("never heard of")).unwrap_err();
    assert_eq!(dead.raw_os_error(), Some(rustix::io::Errno::NOTCONN.raw_os_error()), "{dead}");
    // A new mount over it removes the dead one,
    mount.command(&fixture.repository, &[]).success();
    assert!(mount.path().join("zarr.json").exists());
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    assert_eq!(mounts.lines().filter(|line| line.contains(mount.path().to_str().unwrap())).count(), 1);
    // and so does unmount.
    kill(&mount);
    let gone = |name: &str| {
        std::fs::metadata(mount.path().join(name)).is_err_and(|e| e.kind() != std::io::ErrorKind::NotFound)
    };
    let mut n = 0;
    wait_until("the daemon is gone", || {
        n += 1;
        gone(&n.to_string())
    });
    mount.unmount();
    assert!(mount.mounted_as().is_none());
    assert!(std::fs::read_dir(mount.path()).unwrap().next().is_none());
}

#[test]
fn sigterm_and_sigint_unmount() {
    let fixture = FixtureSet::own().get("own-v2-basic");
    for signal in ["-TERM", "-INT"] {
        let mount = Mount::new(&fixture.repository, &[]);
        let daemon = mount.daemon();
        common::signal(daemon, signal);
        wait_for_end(daemon);
        assert!(mount.mounted_as().is_none(), "{signal}");
        assert!(mount.log().contains("unmounted"), "{}", mount.log());
    }
    // Closing the terminal that started it does not end it.
    let mount = Mount::new(&fixture.repository, &[]);
    signal(mount.daemon(), "-HUP");
    assert!(mount.path().join("zarr.json").exists());
}

#[test]
fn a_busy_mount_is_not_unmounted() {
    let fixture = FixtureSet::own().get("own-v2-basic");
    let mount = Mount::new(&fixture.repository, &[]);
    let open = std::fs::File::open(mount.path().join("zarr.json")).unwrap();
    let refused = run_on(mount.path(), &["unmount"]).failure();
    assert!(refused.contains("is in use"), "{refused}");
    assert!(mount.mounted_as().is_some());
    // A signal detaches it: new programs have no access, the open file stays readable, and the
    // daemon ends when it is closed.
    let daemon = mount.daemon();
    signal(daemon, "-TERM");
    wait_until("it is detached", || mount.mounted_as().is_none());
    let mut text = String::new();
    std::io::Read::read_to_string(&mut { open }, &mut text).unwrap();
    assert!(text.contains("zarr_format"));
    wait_for_end(daemon);
}

#[test]
fn a_foreground_mount_does_not_detach() {
    let fixture = FixtureSet::own().get("own-v2-basic");
    let mount = Mount::prepare();
    let mut child = Command::new(common::program())
        .arg("mount")
        .arg(&fixture.repository)
        .arg(mount.path())
        .args(["--foreground", "--ephemeral"])
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("it is mounted", || mount.path().join("zarr.json").exists());
    assert!(child.try_wait().unwrap().is_none());
    mount.unmount();
    wait_until("the command ends", || child.try_wait().unwrap().is_some());
    let mut output = String::new();
    std::io::Read::read_to_string(child.stderr.as_mut().unwrap(), &mut output).unwrap();
    assert!(child.wait().unwrap().success() && output.contains("is mounted at"), "{output}");
}

#[test]
fn a_mount_ends_with_the_program_that_holds_its_standard_input() {
    let fixture = FixtureSet::own().get("own-v2-basic");
    for words in [&[] as &[&str], &["--foreground"]] {
        let mount = Mount::prepare();
        let mut child = Command::new(common::program())
            .arg("mount")
            .arg(&fixture.repository)
            .arg(mount.path())
            .args(["--until-eof", "--ephemeral"])
            .args(words)
            .stdin(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        wait_until("it is mounted", || mount.path().join("zarr.json").exists());
        let input = child.stdin.take().unwrap();
        let daemon = mount.daemon();
        assert!(mount.mounted_as().is_some());
        drop(input);
        wait_until("it is unmounted", || mount.mounted_as().is_none());
        assert!(child.wait().unwrap().success());
        wait_for_end(daemon);
    }
    // Without the option, standard input says nothing: tests give every command an empty one.
    let mount = Mount::new(&fixture.repository, &[]);
    assert!(mount.path().join("zarr.json").exists());
}

/// The number of a file system is the next one's when it is unmounted.
#[test]
fn a_daemon_whose_mount_is_gone_takes_away_no_other_mount() {
    const ROUNDS: usize = 6;
    if !needed(is_root(), "root, for umount(8) without the daemon") {
        return;
    }
    let fixture = FixtureSet::own().get("own-v2-basic");
    let mut same = 0;
    for _ in 0..ROUNDS {
        let gone = Mount::new(&fixture.repository, &["-o", "ro"]);
        let daemon = gone.daemon();
        let device = std::fs::metadata(gone.path()).unwrap().dev();
        signal(daemon, "-STOP");
        run(Command::new("umount").arg("-l").arg(gone.path())).success();
        let other = Mount::new(&fixture.repository, &["-o", "ro"]);
        same += usize::from(std::fs::metadata(other.path()).unwrap().dev() == device);
        signal(daemon, "-TERM");
        signal(daemon, "-CONT");
        wait_for_end(daemon);
        assert!(other.mounted_as().is_some());
        assert!(other.path().join("zarr.json").exists());
        other.end();
    }
    assert!(same > 0, "no mount had the number of the one before");
}

#[test]
fn as_of_mounts_the_newest_commit_of_that_time() {
    let fixture = FixtureSet::own().get("own-v2-basic");
    let history = fixture.expected["refs"]["branch/main"]["history"].as_array().unwrap();
    let old = history[history.len() - 2].as_str().unwrap();
    let written = fixture.expected["snapshots"][old]["written_at"].as_str().unwrap();
    let mount = Mount::new(&fixture.repository, &["--as-of", written]);
    assert!(mount.log().contains(&format!("is snapshot {old}")), "{}", mount.log());
    let by_option = Mount::new(&fixture.repository, &["-o", &format!("as_of={written},branch=main")]);
    assert!(by_option.log().contains(&format!("is snapshot {old}")), "{}", by_option.log());
}

/// The link by which mount(8) finds the program, for the time of a test.
struct Helper {
    links: Vec<PathBuf>,
}

impl Helper {
    fn new() -> Helper {
        let mut links = Vec::new();
        for name in ["mount.icechunkfs", "mount.fuse.icechunkfs"] {
            let link = Path::new("/sbin").join(name);
            if link.symlink_metadata().is_err() {
                std::os::unix::fs::symlink(common::program(), &link).unwrap();
                links.push(link);
            }
        }
        Helper { links }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        for link in &self.links {
            let _ = std::fs::remove_file(link);
        }
    }
}

#[test]
fn mount_and_umount_find_the_program_by_type_and_by_fstab() {
    if !needed(common::is_root(), "root, for linking /sbin/mount.icechunkfs and changing fstab") {
        return;
    }
    let _helper = Helper::new();
    let home = Home::new();
    let repo = home.path("repo");
    let place = home.mountpoint();
    let table = || std::fs::read_to_string("/proc/mounts").unwrap();
    let mounted = || table().lines().any(|l| l.contains(place.to_str().unwrap()) && l.contains(" fuse.icechunkfs "));
    let umount = || {
        run(Command::new("umount").arg(&place)).success();
        assert!(!mounted());
    };
    for kind in ["icechunkfs", "fuse.icechunkfs"] {
        run(Command::new("mount").args(["-t", kind]).arg(&repo).arg(&place).args(["-o", "tag=v1.0"])).success();
        assert!(mounted() && place.join("zarr.json").exists(), "{kind}");
        umount();
    }
    let refused = run(Command::new("mount").args(["-t", "icechunkfs"]).arg(&repo).arg(&place).args(["-o", "tag=v9"]));
    assert!(refused.failure().contains("no tag `v9`"));
    // `mount -f` checks and mounts nothing.
    let scratch = format!("scratch={}", home.path("scratch").display());
    run(Command::new("mount").args(["-f", "-t", "icechunkfs", "-o", &scratch]).arg(&repo).arg(&place)).success();
    assert!(!mounted() && !home.path("scratch").exists());

    // A line of fstab, for root and for a user whom it admits.
    let line = format!(
        "{} {} icechunkfs noauto,user,tag=v1.0,log_file=/dev/null 0 0 # icechunkfs-test\n",
        repo.display(),
        place.display()
    );
    // What is wrong is told to a user in lines, not with their breaks spelled out.
    let wrong = Fstab::with(&line.replace("v1.0", "v9"));
    let refused = run(home.as_nobody("mount").arg(&place)).failure();
    assert!(refused.contains("no tag `v9`") && !refused.contains("\\n"), "{refused}");
    drop(wrong);
    let fstab = Fstab::with(&line);
    run(Command::new("mount").arg(&place)).success();
    assert!(mounted());
    umount();
    run(home.as_nobody("mount").arg(&place)).success();
    assert!(mounted());
    run(home.as_nobody("cat").arg(place.join("zarr.json"))).success();
    run(home.as_nobody("umount").arg(&place)).success();
    assert!(!mounted());
    drop(fstab);
}

/// `/etc/fstab` with one more line, for the time of a test.
struct Fstab {
    before: Option<Vec<u8>>,
}

impl Fstab {
    fn with(line: &str) -> Fstab {
        let before = std::fs::read("/etc/fstab").ok();
        let mut text = before.clone().unwrap_or_default();
        if text.last().is_some_and(|last| *last != b'\n') {
            text.push(b'\n');
        }
        text.extend_from_slice(line.as_bytes());
        std::fs::write("/etc/fstab", text).unwrap();
        Fstab { before }
    }
}

impl Drop for Fstab {
    fn drop(&mut self) {
        match &self.before {
            Some(text) => drop(std::fs::write("/etc/fstab", text)),
            None => drop(std::fs::remove_file("/etc/fstab")),
        }
    }
}
