//! Commands beside a mount whose daemon is stopped.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::users::{Commons, NOBODY, as_nobody};
use crate::common::writing;
use crate::common::{Mount, icechunkfs, run, signal, wait_for_end};

/// Time limit for a command that waits for a daemon, with room for a busy machine.
const DEADLINE: Duration = Duration::from_secs(25);

/// A process that is stopped until this is dropped.
struct Stopped(i32);

impl Stopped {
    fn new(process: i32) -> Stopped {
        signal(process, "-STOP");
        Stopped(process)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg("-CONT").arg(self.0.to_string()).status();
    }
}

/// Returns the message of a command that must fail before the deadline.
#[track_caller]
fn fails_in_time(words: &[&str]) -> String {
    let begin = Instant::now();
    let output = icechunkfs(words).failure();
    assert!(begin.elapsed() < DEADLINE, "{words:?} took {:?}: {output}", begin.elapsed());
    output
}

#[test]
fn a_stopped_daemon_is_named_and_its_mount_can_be_detached() {
    let commons = Commons::new();
    let repository = commons.path("repo");
    writing::create(&repository);
    let mount = Mount::new(&repository, &[]);
    let place = mount.path().display().to_string();
    let daemon = mount.daemon();
    let repository = repository.to_str().unwrap();
    let stopped = Stopped::new(daemon);
    for words in [
        &["unmount", &place][..],
        &["unmount", "--require-clean", &place],
        &["gc", repository, "--older-than", "0s", "--dry-run"],
        &["status", &place],
        &["refresh", &place],
    ] {
        let output = fails_in_time(words);
        assert!(output.contains(&place) && output.contains(&format!("process {daemon}")), "{words:?}: {output}");
        assert!(output.contains("unmount --force"), "{words:?}: {output}");
    }
    assert!(mount.mounted_as().is_some());
    let begin = Instant::now();
    icechunkfs(["unmount", "--force", &place]).success();
    assert!(begin.elapsed() < DEADLINE && mount.mounted_as().is_none());
    icechunkfs(["gc", repository, "--older-than", "0s", "--dry-run"]).success();
    drop(stopped);
    wait_for_end(daemon);
    // A check for uncommitted work cannot be combined with a forced unmount.
    assert_eq!(icechunkfs(["unmount", "--force", "--require-clean", &place]).status.code(), Some(2));
}

#[test]
fn a_user_detaches_their_own_mount() {
    let commons = Commons::new();
    let place = commons.directory("mnt", NOBODY, 0o755);
    let home = commons.directory("home", NOBODY, 0o755);
    let repository = commons.path("repo");
    writing::create(&repository);
    let mut mount = as_nobody(commons.program());
    mount.arg("mount").arg(&repository).arg(&place).args(["-o", "ro", "--log-file"]).arg(home.join("log"));
    run(&mut mount).success();
    let _detach = Detach(&place);
    let listed =
        run(Command::new("pgrep").args(["-f", "-x"]).arg(format!(".*icechunkfs mount .* {} .*", place.display())));
    let daemon: i32 = listed.text().trim().parse().unwrap();
    let _stopped = Stopped::new(daemon);
    let begin = Instant::now();
    let output = run(as_nobody(commons.program()).arg("unmount").arg(&place)).failure();
    assert!(output.contains(&format!("process {daemon}")), "{output}");
    run(as_nobody(commons.program()).args(["unmount", "--force"]).arg(&place)).success();
    assert!(begin.elapsed() < DEADLINE);
    assert!(!std::fs::read_to_string("/proc/mounts").unwrap().contains(place.to_str().unwrap()));
}

/// Detaches a mount if it is still there.
struct Detach<'a>(&'a Path);

impl Drop for Detach<'_> {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

/// A file system that takes every request and answers none but the first: a process that waits for
/// it cannot even be killed.
struct Silent {
    place: std::path::PathBuf,
}

impl Silent {
    fn new(source: &str, place: &Path) -> Silent {
        use std::io::{Read, Write};
        use std::os::fd::AsRawFd;
        let device = std::fs::File::options().read(true).write(true).open("/dev/fuse").unwrap();
        let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let data = std::ffi::CString::new(data).unwrap();
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount(source, place, "fuse.icechunkfs", flags, data.as_c_str()).unwrap();
        let mut taken = device;
        std::thread::spawn(move || {
            let mut request = vec![0; 1 << 20];
            let count = taken.read(&mut request).unwrap();
            assert!(count >= 16);
            // INIT of protocol 7.31, with nothing negotiated: fuse_out_header and fuse_init_out.
            let mut answer = vec![0_u8; 16 + 64];
            answer[0] = 80;
            answer[8..16].copy_from_slice(&request[8..16]);
            answer[16] = 7;
            answer[20] = 31;
            answer[36..40].copy_from_slice(&4096_u32.to_le_bytes());
            taken.write_all(&answer).unwrap();
            while taken.read(&mut request).is_ok_and(|count| count > 0) {}
        });
        Silent { place: place.to_owned() }
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        // This releases every process that waits.
        let flags = rustix::mount::UnmountFlags::FORCE | rustix::mount::UnmountFlags::DETACH;
        let _ = rustix::mount::unmount(&self.place, flags);
    }
}

#[test]
fn a_mount_that_never_answers_blocks_no_command() {
    let commons = Commons::new();
    let repository = commons.path("repo");
    writing::create(&repository);
    let place = commons.directory("mnt", 0, 0o755);
    let repository = repository.to_str().unwrap();
    let _silent = Silent::new(repository, &place);
    let name = place.to_str().unwrap();
    for words in [&["unmount", name][..], &["gc", repository, "--older-than", "0s", "--dry-run"]] {
        let output = fails_in_time(words);
        assert!(output.contains(name) && output.contains("does not answer"), "{words:?}: {output}");
    }
}
