//! Other ways to a mount: a descriptor that the caller opened, no `fusermount3`, user namespaces.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::common::users::{Commons, NOBODY};
use crate::common::writing::needed;
use crate::common::{FixtureSet, Output, copy_tree, is_root, run, wait_until};

/// A repository, a mountpoint and the program where `nobody` reaches them.
struct Setup {
    commons: Commons,
    program: PathBuf,
    mountpoint: PathBuf,
}

impl Setup {
    fn new() -> Option<Setup> {
        if !needed(is_root(), "root, for namespaces and for being two users") {
            return None;
        }
        let commons = Commons::new();
        let program = commons.program();
        let mountpoint = commons.directory("mnt", NOBODY, 0o755);
        copy_tree(&FixtureSet::own().get("own-v2-basic").repository, &commons.path("repo"));
        run(Command::new("chown").args(["-R", "65534:65534"]).arg(commons.path("repo"))).success();
        commons.directory("scratch", NOBODY, 0o700);
        Some(Setup { commons, program, mountpoint })
    }

    fn is_mounted(&self) -> bool {
        std::fs::read_to_string("/proc/mounts").unwrap().contains(self.mountpoint.to_str().unwrap())
    }

    /// Runs a script with the variables `program`, `repo`, `mnt` and `scratch`.
    fn script(&self, mut shell: Command, script: &str) -> Output {
        shell.args(["-ec", script]).env("program", &self.program).env("repo", self.commons.path("repo"));
        run(shell.env("mnt", &self.mountpoint).env("scratch", self.commons.path("scratch")))
    }

    fn shell(&self, words: &[&str]) -> Command {
        let mut shell = Command::new(words[0]);
        shell.args(&words[1..]).current_dir("/");
        shell
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        if self.is_mounted() {
            let _ = Command::new("umount").arg("-l").arg(&self.mountpoint).status();
        }
    }
}

/// Opens the device as descriptor 7 and mounts it for a user, as a privileged caller does.
const MOUNT_DESCRIPTOR: &str = "exec 7<>/dev/fuse
    mount -i -t fuse.icechunkfs -o fd=7,rootmode=40000,user_id=$user,group_id=$user,nosuid,nodev source $mnt\n";

#[test]
fn a_descriptor_that_the_caller_mounted_is_served() {
    let Some(setup) = Setup::new() else { return };
    let mut shell = setup.shell(&["sh"]);
    shell.env("user", "0");
    let script = format!(
        "{MOUNT_DESCRIPTOR} $program mount $repo /dev/fd/7 --scratch ${{scratch}}2 --log-file ${{scratch}}.log; exec 7>&-
        ls $mnt; echo new >$mnt/note; cat $mnt/note; mkdir $mnt/group; $program status $mnt"
    );
    let text = setup.script(shell, &script).text();
    assert!(text.contains("zarr.json") && text.contains("\nnew\n") && text.contains("/note"), "{text}");
    run(Command::new(&setup.program).arg("unmount").arg(&setup.mountpoint)).success();
    assert!(!setup.is_mounted());
}

#[test]
fn a_descriptor_serves_a_daemon_without_any_privilege() {
    let Some(setup) = Setup::new() else { return };
    let mut shell = setup.shell(&["sh"]);
    shell.env("user", NOBODY.to_string());
    // Without the helper and with no new privileges, nobody cannot mount.
    let script = format!(
        "{MOUNT_DESCRIPTOR} drop='setpriv --reuid 65534 --regid 65534 --clear-groups --no-new-privs'
        $drop $program mount $repo /dev/fd/7 --scratch $scratch/s --log-file /dev/null; exec 7>&-
        $drop ls $mnt; $drop sh -c \"echo new >$mnt/note\"; $drop cat $mnt/note; $drop $program list"
    );
    let text = setup.script(shell, &script).text();
    assert!(text.contains("zarr.json") && text.contains("\nnew\n") && text.contains("alive"), "{text}");
    run(Command::new("umount").arg(&setup.mountpoint)).success();
}

#[test]
fn a_mounted_descriptor_ends_with_a_signal() {
    let Some(setup) = Setup::new() else { return };
    let mut shell = setup.shell(&["sh"]);
    shell.env("user", "0");
    let script = format!("{MOUNT_DESCRIPTOR} exec $program mount --foreground $repo /dev/fd/7 --read-only");
    shell.args(["-ec", &script]).env("program", &setup.program).env("repo", setup.commons.path("repo"));
    let mut served = shell.env("mnt", &setup.mountpoint).stderr(std::process::Stdio::null()).spawn().unwrap();
    wait_until("it is served", || setup.mountpoint.join("zarr.json").exists());
    crate::common::signal(served.id().try_into().unwrap(), "-TERM");
    let ended = served.wait().unwrap();
    assert!(ended.success(), "{ended}");
}

#[test]
fn other_descriptors_are_refused() {
    let Some(setup) = Setup::new() else { return };
    for (script, why) in [
        ("$program mount $repo /dev/fd/77 --read-only", "inherit the descriptor"),
        ("$program mount $repo /dev/fd/7 --read-only 7</dev/null", "is not /dev/fuse"),
        ("$program mount $repo /dev/fd/seven --read-only", "does not exist"),
    ] {
        let failure = setup.script(setup.shell(&["sh"]), script).failure();
        assert!(failure.contains(why), "{script}: {failure}");
    }
}

/// Removes the helper in a mount namespace of its own.
const WITHOUT_HELPER: &str = "mkdir -p $scratch.up $scratch.work
    mount -t overlay overlay -o lowerdir=/usr/bin,upperdir=$scratch.up,workdir=$scratch.work /usr/bin
    rm -f /usr/bin/fusermount3 /usr/bin/fusermount\n";

#[test]
fn root_mounts_without_fusermount3_and_users_learn_what_is_missing() {
    let Some(setup) = Setup::new() else { return };
    let namespace = || setup.shell(&["unshare", "-m", "sh"]);
    let script = format!(
        "{WITHOUT_HELPER} $program mount $repo $mnt --read-only --log-file /dev/null; ls $mnt; $program unmount $mnt; ls -A $mnt"
    );
    assert_eq!(setup.script(namespace(), &script).text().matches("zarr.json").count(), 1);
    let as_user = "exec setpriv --reuid 65534 --regid 65534 --clear-groups $program mount $repo $mnt --read-only --log-file /dev/null";
    let failure = setup.script(namespace(), &format!("{WITHOUT_HELPER} {as_user}")).failure();
    assert!(failure.contains("fusermount3 is missing: install the package fuse3, or mount as root"), "{failure}");
    // With it, the same command works.
    setup.script(setup.shell(&["sh"]), as_user).success();
    assert!(setup.is_mounted());
}

/// A user other than `nobody`, whose number is also that of all users whom a namespace does not
/// know.
const SOMEBODY: u32 = 4242;

/// Returns a shell that is root in a user namespace of an ordinary user.
fn fake_root() -> Command {
    let mut shell = Command::new("unshare");
    shell.args(["-Urm", "sh"]).uid(SOMEBODY).gid(SOMEBODY).current_dir("/").env("HOME", "/nonexistent");
    shell
}

fn has_user_namespaces(setup: &Setup) -> bool {
    for path in ["repo", "scratch", "mnt"] {
        run(Command::new("chown").args(["-R", "4242:4242"]).arg(setup.commons.path(path))).success();
    }
    needed(fake_root().args(["-c", "true"]).status().is_ok_and(|status| status.success()), "user namespaces")
}

#[test]
fn the_root_of_a_user_namespace_mounts() {
    let Some(setup) = Setup::new() else { return };
    if !has_user_namespaces(&setup) {
        return;
    }
    for options in ["--scratch $scratch/a", "--scratch $scratch/b --io cached", "--read-only"] {
        let write = if options.contains("scratch") { "echo new >$mnt/note; cat $mnt/note" } else { "echo; echo new" };
        let script = format!(
            "$program mount $repo $mnt {options}; ls $mnt; {write}; find $mnt -type f -print0 | xargs -0 cat >/dev/null
            $program list; $program unmount $mnt; ls -A $mnt"
        );
        let text = setup.script(fake_root(), &script).text();
        assert!(text.contains("\nnew\n") && text.contains("alive"), "{options}: {text}");
        // The namespace is another one: nothing is mounted here.
        assert!(!setup.is_mounted());
    }
}

#[test]
fn a_user_namespace_without_the_device_says_so() {
    let Some(setup) = Setup::new() else { return };
    if !has_user_namespaces(&setup) {
        return;
    }
    // The device is hidden before the user's namespace begins.
    let script = "mount -t tmpfs none /dev; mknod -m 600 /dev/fuse c 10 229; mknod -m 666 /dev/null c 1 3
        exec setpriv --reuid 4242 --regid 4242 --clear-groups unshare -Urm $program mount $repo $mnt --read-only";
    let failure = setup.script(setup.shell(&["unshare", "-m", "sh"]), script).failure();
    assert!(failure.contains("you may not use /dev/fuse"), "{failure}");
}

#[test]
fn a_mount_of_a_user_namespace_is_not_taken_for_passthrough() {
    let Some(setup) = Setup::new() else { return };
    if !has_user_namespaces(&setup) {
        return;
    }
    // The capability of a namespace does not suffice for passthrough: reading works all the same,
    // or the mount is refused.
    let script = "if $program mount $repo $mnt --read-only --io passthrough 2>$scratch/said
        then find $mnt -type f -print0 | xargs -0 cat >/dev/null && echo works; else cat $scratch/said; fi";
    let text = setup.script(fake_root(), script).text();
    assert!(text.contains("works") || text.contains("passthrough"), "{text}");
}
