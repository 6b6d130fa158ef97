//! After some time on a bad network, an idle mount holds nothing: no request in progress, no
//! memory, and as many threads and descriptors as before. `ICECHUNKFS_ENDURANCE` sets the seconds.
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::faulty::{Line, five_of_a_hundred};
use crate::common::moto::{commit, fill, made, mount, s3};
use crate::common::random::Random;
use crate::common::{Mount, signal, wait_for, wait_until};

/// The bound for memory, in MiB, which is less than there is to read; and the allowance for the
/// process: code, stacks, the allocator's reserve.
const MEMORY: u64 = 18;
/// Allowed additional descriptors and threads: idle connections, threads that wait for work.
const FEW: usize = 40;

/// Returns the activity that the daemon of `mount` logs: every number except the bytes in memory.
fn busy(mount: &Mount, daemon: i32) -> Vec<(String, u64)> {
    let told = |log: &str| log.matches("gauges: ").count();
    let before = told(&mount.log());
    signal(daemon, "-USR1");
    wait_for("the daemon logs nothing", || {
        let log = mount.log();
        let line = log.lines().rfind(|line| line.contains("gauges: ")).filter(|_| told(&log) > before)?;
        let gauges: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(line.split("gauges: ").nth(1).unwrap()).unwrap();
        let numbers = gauges.into_iter().filter(|(name, _)| name != "cached_bytes");
        Some(numbers.map(|(name, value)| (name, value.as_u64().unwrap())).collect())
    })
}

fn count(daemon: i32, what: &str) -> usize {
    std::fs::read_dir(format!("/proc/{daemon}/{what}")).unwrap().count()
}

/// Returns the peak memory of the process, in KiB, without its code, which is twice as large as in
/// a release: neither the mapped file nor the constants in it that were relocated.
fn most_memory(daemon: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{daemon}/status")).unwrap();
    let kib = |text: &str| text.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap();
    let line = |name: &str| kib(status.lines().find_map(|line| line.strip_prefix(name)).unwrap());
    let program = std::fs::read_link(format!("/proc/{daemon}/exe")).unwrap();
    let mut of_program = false;
    let mut relocated = 0;
    for line in std::fs::read_to_string(format!("/proc/{daemon}/smaps")).unwrap().lines() {
        if line.split_once('-').is_some_and(|(begin, _)| u64::from_str_radix(begin, 16).is_ok()) {
            // The first line of a mapping: addresses, rights, and the file at the end.
            of_program = line.contains(" r--p ") && line.ends_with(program.to_str().unwrap());
        } else if let (true, Some(bytes)) = (of_program, line.strip_prefix("Anonymous:")) {
            relocated += kib(bytes);
        }
    }
    assert!(relocated > 0, "the program is position-independent");
    line("VmHWM:") - line("RssFile:") - relocated
}

/// Reads some of the 40 chunks of `moto::made` until it is `over`: in order, or at random. A read
/// may fail after the mount's timeout; its bytes must never be wrong, and a file that is not
/// written here is of one commit. Each has bytes of one of `salts`; without salts, a program is
/// writing.
fn read(root: &Path, salts: Option<std::ops::RangeInclusive<u8>>, seed: u64, over: &AtomicBool, chunks: &AtomicU64) {
    let mut random = Random::new(seed);
    while !over.load(Ordering::Relaxed) {
        let first = random.below(40);
        let in_order = random.below(2) == 0;
        for step in 0..10 {
            let n = if in_order { (first + step) % 40 } else { random.below(40) };
            let mut bytes = Vec::new();
            // Mostly past the page cache: otherwise the kernel would have it all, and the daemon
            // nothing to do.
            let flags = if random.below(4) > 0 { libc::O_DIRECT } else { 0 };
            let opened = File::options().read(true).custom_flags(flags).open(root.join(format!("a/c/{n}")));
            let Ok(mut file) = opened else { continue };
            let from = random.below(90) as u64;
            if file.seek(SeekFrom::Start(from)).and_then(|_| file.read_to_end(&mut bytes)).is_err() {
                continue;
            }
            let is = |salt: u8| bytes.iter().zip(from..).all(|(byte, i)| *byte == (i % 251) as u8 ^ n as u8 ^ salt);
            assert!(salts.clone().is_none_or(|mut salts| salts.any(is)), "chunk {n} from {from}");
            chunks.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
#[ignore = "watches an idle mount for long: scripts/test --full"]
fn an_idle_mount_has_no_requests_and_no_buffers() {
    let Some(server) = s3() else { return };
    let seconds = std::env::var("ICECHUNKFS_ENDURANCE").map_or(15, |text| text.parse().unwrap());
    let line = Line::to(server.port);
    let repo = made(line.port, "endurance");
    let directory = tempfile::tempdir().unwrap();
    let cache = directory.path().join("cache").display().to_string();
    let memory = format!("{MEMORY}M");
    let all = ["--memory", &memory, "--timeout", "10"];
    let with = |words: &[&str]| mount(line.port, &repo, &[&all[..], words].concat());
    let mounts = [
        with(&["-o", "ro"]),
        with(&["-o", "ro", "--cache", &cache, "--cache-size", "12M"]),
        with(&["-o", "ro", "--follow", "0.3"]),
        with(&["--ephemeral"]),
    ];
    let daemons = mounts.each_ref().map(Mount::daemon);
    let before = daemons.map(|daemon| (count(daemon, "fd"), count(daemon, "task")));
    let over = AtomicBool::new(false);
    let chunks = AtomicU64::new(0);
    line.decide(five_of_a_hundred(7));
    let mut commits = 0;
    std::thread::scope(|scope| {
        for (n, mount) in mounts.iter().enumerate() {
            for reader in 0..2 {
                let root = mount.path();
                let seed = (n * 2 + reader) as u64;
                let over = &over;
                let chunks = &chunks;
                // The first two stay on a snapshot, the third follows, in the fourth a program
                // writes.
                let salts = [Some(0..=0), Some(0..=0), Some(0..=u8::MAX), None][n].clone();
                scope.spawn(move || read(&root, salts, seed, over, chunks));
            }
        }
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(seconds) {
            fill(&mounts[3].path(), commits as u8);
            // Failures of this commit are repaired by the next one.
            commits += u64::from(commit(&mounts[3]).is_ok());
        }
        over.store(true, Ordering::Relaxed);
    });
    let (requests, faults) = line.counts();
    line.release();
    let chunks = chunks.into_inner();
    println!("{chunks} chunks, {commits} commits, {faults} faults in {requests} requests");
    assert!(chunks > 100 && commits > 0 && faults > 10, "{chunks} chunks, {commits} commits, {faults} faults");
    for (n, mount) in mounts.iter().enumerate() {
        // A following mount polls now and then.
        let is_idle = |gauges: Vec<(String, u64)>| gauges.iter().all(|(_, number)| *number == 0);
        wait_until(&format!("mount {n} is not idle"), || is_idle(busy(mount, daemons[n])));
        let fds = count(daemons[n], "fd");
        let tasks = count(daemons[n], "task");
        assert!(fds <= before[n].0 + FEW, "mount {n}: {fds} descriptors, {} at the beginning", before[n].0);
        assert!(tasks <= before[n].1 + FEW, "mount {n}: {tasks} threads, {} at the beginning", before[n].1);
        let memory = most_memory(daemons[n]);
        println!("mount {n}: {fds} descriptors, {tasks} threads, {memory} KiB at most");
        assert!(memory <= MEMORY << 10, "mount {n}: {memory} KiB");
    }
}
