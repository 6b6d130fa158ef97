//! The command, the daemon or `run` itself is killed at any moment.
//!
//! `ICECHUNKFS_KILLS` sets the number of kills, `ICECHUNKFS_SEED` the seed.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, SystemTime};

use rustix::process::{Pid, Signal, kill_process};

use super::{Place, child_of};
use crate::common::lengths::length;
use crate::common::random::Random;
use crate::common::{Mount, poll, run_on, signal, wait_for, wait_for_end, wait_until};

/// Kills at random in the ordinary run, and in a full one.
const QUICK: usize = 15;
const FULL: usize = 200;

/// After this many rounds a new repository begins.
const LIFE: usize = 25;

/// Process that is killed.
#[derive(Clone, Copy, Debug)]
enum Victim {
    Job,
    Daemon,
    Run,
    /// All at once, as by a power cut.
    All,
}

fn is_scratch(path: &Path) -> bool {
    path.as_os_str().as_bytes().windows(5).any(|part| part == b"%job-")
}

/// Makes a directory one of the day before.
fn set_old(path: &Path) {
    let old = std::fs::FileTimes::new().set_modified(SystemTime::now() - Duration::from_secs(86_400));
    std::fs::File::open(path).unwrap().set_times(old).unwrap();
}

/// Sends SIGKILL to `victim` of the job that `run` runs; returns false if there is none (any more).
fn kill(run: &Child, victim: Victim) -> bool {
    let own = i32::try_from(run.id()).unwrap();
    let [job, daemon] = [false, true].map(|is_daemon| child_of(run.id(), is_daemon));
    let victims = match victim {
        Victim::Job => vec![job],
        Victim::Daemon => vec![daemon],
        Victim::Run => vec![Some(own)],
        Victim::All => vec![Some(own), daemon, job],
    };
    let mut found = false;
    for id in victims.into_iter().flatten() {
        found |= kill_process(Pid::from_raw(id).unwrap(), Signal::KILL).is_ok();
    }
    found
}

#[test]
fn a_job_whose_daemon_dies_is_not_committed_and_its_work_is_kept() {
    let place = Place::new();
    let started = place.path("started");
    let mut job = place.start(&format!("printf 1 > a/c/0; touch {}; sleep 1", started.display()));
    wait_until("the job begins", || started.exists());
    assert!(kill(&job, Victim::Daemon));
    assert_eq!(job.wait().unwrap().code(), Some(1));
    assert_eq!((place.chunk(0), place.mounts().len()), (None, 0));
    let [kept] = &place.remains()[..] else { panic!("{:?}", place.remains()) };
    // The next jobs tell of it, whatever its age.
    set_old(kept);
    let next = place.run("printf 2 > a/c/1", &["-m", "next night"]);
    assert!(next.stderr.contains("earlier job") && next.status.success(), "{}", next.stderr);
    let mount = Mount::new(&place.repository, &["--scratch", kept.to_str().unwrap()]);
    assert_eq!(std::fs::read(mount.path().join("a/c/0")).unwrap(), b"1");
    run_on(mount.path(), &["commit", "-m", "late"]).success();
    mount.end();
    set_old(kept);
    place.run("true", &[]).success();
    place.wait_until_clean();
}

/// Another job must not remove the directory of one whose daemon was killed.
#[test]
fn a_job_whose_daemon_dies_has_its_directory_as_long_as_it_runs() {
    let place = Place::new();
    let [started, end] = ["started", "end"].map(|name| place.path(name));
    let script = format!(
        "printf 1 > a/c/0; touch {}; n=0; while [ ! -e {} ] && [ $n -lt 1000 ]; do sleep 0.02; n=$((n+1)); done",
        started.display(),
        end.display()
    );
    let mut job = place.start(&script);
    wait_until("the job begins", || started.exists());
    assert!(kill(&job, Victim::Daemon));
    wait_until("the daemon has ended", || child_of(job.id(), true).is_none());
    place.remains().iter().filter(|path| is_scratch(path)).for_each(|path| set_old(path));
    place.run("printf 2 > a/c/1", &["-m", "another"]).success();
    std::fs::write(&end, "").unwrap();
    assert_eq!(job.wait().unwrap().code(), Some(1));
    let kept: Vec<_> = place.remains().into_iter().filter(|path| is_scratch(path)).collect();
    let mount = Mount::new(&place.repository, &["--scratch", kept[0].to_str().unwrap()]);
    assert_eq!(std::fs::read(mount.path().join("a/c/0")).unwrap(), b"1");
}

#[test]
fn what_is_left_when_all_are_killed_goes_with_the_next_job() {
    let place = Place::new();
    let started = place.path("started");
    let mut job = place.start(&format!("printf 1 > a/c/0; touch {}; sleep 60", started.display()));
    wait_until("the job begins", || started.exists());
    let daemon = child_of(job.id(), true).unwrap();
    assert!(kill(&job, Victim::All));
    job.wait().unwrap();
    wait_for_end(daemon);
    assert_eq!(place.mounts().len(), 1);
    // The directory is old, as it is the night after.
    place.remains().iter().filter(|path| is_scratch(path)).for_each(|path| set_old(path));
    place.run("printf 2 > a/c/1", &["-m", "next night"]).success();
    place.wait_until_clean();
    assert_eq!((place.chunk(0), place.chunk(1)), (None, Some(b"2".to_vec())));
}

/// `run` is killed while the mount begins.
#[test]
fn a_mount_whose_run_was_killed_before_it_answers_leaves_nothing() {
    let place = Place::new();
    for moment in [0, 10, 20, 30, 40, 60, 80, 120] {
        for signal in [Signal::KILL, Signal::TERM, Signal::INT] {
            let mut job = place.start("exit 3");
            std::thread::sleep(Duration::from_millis(moment));
            // It was not waited for, so that it has its number still.
            let _ = kill_process(Pid::from_raw(job.id().try_into().unwrap()).unwrap(), signal);
            job.wait().unwrap();
        }
    }
    wait_until("no mount is left", || place.mounts().is_empty());
    // Directories of one that was killed before it had a daemon are old the night after.
    std::thread::sleep(Duration::from_secs(1));
    place.remains().iter().for_each(|path| set_old(path));
    place.run("true", &[]).success();
    place.wait_until_clean();
}

#[test]
fn a_job_ends_with_run() {
    let place = Place::new();
    let started = place.path("started");
    let mut job =
        place.start(&format!("printf 1 > a/c/0; echo $$ > {0}.new; mv {0}.new {0}; sleep 60", started.display()));
    wait_until("the job begins", || started.exists());
    let shell: i32 = std::fs::read_to_string(&started).unwrap().trim().parse().unwrap();
    signal(job.id().try_into().unwrap(), "-KILL");
    job.wait().unwrap();
    wait_for_end(shell);
    place.wait_until_clean();
    assert_eq!(place.chunk(0), None);
}

/// There is one commit or none, whole, no mount is left, and the next night commits its own work.
#[test]
fn a_job_is_committed_once_or_not_at_all_when_something_is_killed_at_random() {
    let kills = length("ICECHUNKFS_KILLS", QUICK, FULL);
    let seed = length("ICECHUNKFS_SEED", 1, 1) as u64;
    let mut random = Random::new(seed);
    let mut place = Place::new();
    let mut outcomes = [0_usize; 2];
    // The time that a job takes, from its beginning to its end.
    let mut usual = Duration::from_millis(300);
    for round in 0..kills {
        if round % LIFE == 0 {
            place = Place::new();
        }
        let before = place.messages();
        // Other bytes than in any round before, so that all chunks are part of the commit.
        let letter = char::from(b'a' + (round % LIFE) as u8);
        let script = format!("for n in 0 1 2 3 4 5 6 7; do printf {letter} > a/c/$n; sleep 0.01; done");
        let begin = std::time::Instant::now();
        let mut job = place.start(&script);
        let victim = *random.pick(&[Victim::Job, Victim::Daemon, Victim::Run, Victim::Run, Victim::All]);
        let moment = usual.mul_f64(random.below(1000) as f64 / 800.0);
        std::thread::sleep(moment);
        let was_killed = kill(&job, victim);
        let daemon = child_of(job.id(), true);
        let status = wait_for("the end of run", || job.try_wait().unwrap());
        if !was_killed && status.success() {
            usual = begin.elapsed();
        }
        daemon.into_iter().for_each(wait_for_end);
        let what = format!("seed {seed}, round {round}: {victim:?} after {moment:?}, {status}");
        // A daemon that lost its `run` gives programs ten seconds.
        let is_all = matches!(victim, Victim::All);
        let no_mount = poll(Duration::from_secs(30), || (is_all || place.mounts().is_empty()).then_some(()));
        assert!(no_mount.is_some(), "{what}: {:?}", place.mounts());
        let after = place.messages();
        let is_committed = after.len() > before.len();
        assert_eq!(after[after.len() - before.len()..], before[..], "{what}");
        assert!(after.len() <= before.len() + 1, "{what}: {after:?}");
        let own = letter.to_string().into_bytes();
        let chunks: Vec<Option<Vec<u8>>> = (0..8).map(|n| place.chunk(n)).collect();
        assert_eq!(chunks.iter().all(|chunk| *chunk == Some(own.clone())), is_committed, "{what}: {chunks:?}");
        assert!(!status.success() || is_committed, "{what}: success without a commit");
        outcomes[usize::from(is_committed)] += 1;
        // The next night.
        place.run(&format!("printf {letter} > a/c/9"), &["-m", "next night"]).success();
        let now: Vec<Option<Vec<u8>>> = (0..8).map(|n| place.chunk(n)).collect();
        assert_eq!((now, place.messages().len()), (chunks, after.len() + 1), "{what}");
    }
    println!("{kills} kills: {} jobs were committed, {} were not", outcomes[1], outcomes[0]);
    assert!(kills < QUICK || outcomes.iter().all(|count| *count > 0), "{outcomes:?}");
}
