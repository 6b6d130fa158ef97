//! Mounts over stores that become hostile: programs get errors in time, commits too, and the
//! daemon's memory stays bounded.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::measure::{AT_ONCE, Client, TIMEOUT, command, complaint, measure, seed, side_by_side, too_slow};
use crate::common::Mount;
use crate::common::hostile::{Lie, Store, To};

/// A mount, and its store.
struct Mounted {
    mount: Mount,
    store: Store,
}

fn mounted(words: &[&str]) -> Mounted {
    let mount = Mount::prepare();
    let store = Store::new(seed());
    let words = mount.arguments("REPO", &[&["--memory", "64M"], words].concat());
    let outcome = measure(&mut command(Client::Amazon, &store, &words));
    assert!(outcome.success, "{}", outcome.stderr);
    Mounted { mount, store }
}

impl Mounted {
    /// Returns the peak memory of the daemon, in bytes.
    fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.mount.daemon())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    /// Does `work` below the mount; returns the problem, if any.
    fn complaint(&self, work: impl FnOnce(PathBuf) -> std::io::Result<()>) -> Option<String> {
        let begin = Instant::now();
        let done = work(self.mount.path());
        let elapsed = begin.elapsed();
        // The work itself takes a moment; in parallel with others, several seconds.
        let allowed = TIMEOUT + Duration::from_secs(1) + Duration::from_millis(200) * u32::try_from(AT_ONCE).unwrap();
        if elapsed > allowed {
            return Some(too_slow(elapsed, allowed, &format!("{done:?}")));
        }
        match done {
            Ok(()) => Some("it succeeded".to_owned()),
            Err(error) if !matches!(error.raw_os_error(), Some(libc::EIO | libc::ETIMEDOUT | libc::EACCES)) => {
                Some(format!("{error}"))
            }
            Err(_) => (self.memory() > 160 << 20).then(|| format!("took {} MiB", self.memory() >> 20)),
        }
    }
}

#[test]
fn reads_from_a_hostile_server_end_within_bounded_memory() {
    let lies = [Lie::Silent, Lie::BodyDrip, Lie::EndlessChunks, Lie::ShortBody, Lie::WrongRange, Lie::EndlessRefusal];
    let complaints = side_by_side(lies.to_vec(), |&lie| {
        let mounted = mounted(&["-o", "ro"]);
        mounted.store.lie(To::Chunks, lie);
        let complaint = mounted.complaint(|root| std::fs::read(root.join("a/c/1")).map(drop));
        complaint.or_else(|| {
            mounted.store.lie(To::Nobody, lie);
            let read = std::fs::read(mounted.mount.path().join("a/c/1"));
            (read.as_ref().ok().map(Vec::len) != Some(100_000)).then(|| format!("not read afterwards: {read:?}"))
        })
    });
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn commits_to_a_hostile_server_end_and_lose_nothing() {
    let lies = [Lie::Silent, Lie::SlowReader, Lie::HeadDrip, Lie::EndlessHeaders, Lie::EndlessRefusal, Lie::Redirects];
    let complaints = side_by_side(lies.to_vec(), |&lie| {
        let mounted = mounted(&["--ephemeral", "--upload", "commit"]);
        let commit = |root: PathBuf| std::fs::write(root.join(".icechunk/commit"), "x");
        std::fs::write(mounted.mount.path().join("a/c/1"), vec![7; 100_000]).unwrap();
        mounted.store.lie(To::Writes, lie);
        let complaint = mounted.complaint(commit);
        mounted.store.lie(To::Nobody, lie);
        complaint
            .or_else(|| commit(mounted.mount.path()).err().map(|error| format!("not committed afterwards: {error}")))
    });
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn mounting_from_a_hostile_server_ends() {
    let lies = [Lie::Silent, Lie::HeadDrip, Lie::BodyDrip, Lie::EndlessChunks, Lie::EndlessHeaders, Lie::Redirects];
    let complaints = side_by_side(lies.to_vec(), |&lie| {
        let mount = Mount::prepare();
        let store = Store::new(seed());
        store.lie(To::All, lie);
        let place = mount.path().display().to_string();
        let outcome = measure(&mut command(Client::Amazon, &store, &["mount", "REPO", &place, "--ephemeral"]));
        complaint(&outcome, Duration::from_millis(200)).or_else(|| outcome.success.then(|| "it is mounted".to_owned()))
    });
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

/// A person who asks for the status looks at the changes first.
#[test]
fn a_store_that_does_not_answer_does_not_keep_the_status_waiting() {
    let mounted = mounted(&["--ephemeral", "--upload", "commit"]);
    let root = mounted.mount.path();
    std::fs::write(root.join("a/c/1"), vec![7; 100_000]).unwrap();
    mounted.store.lie(To::All, Lie::Silent);
    let begin = Instant::now();
    let text = std::fs::read_to_string(root.join(".icechunk/status.json")).unwrap();
    let elapsed = begin.elapsed();
    mounted.store.lie(To::Nobody, Lie::Silent);
    let status: serde_json::Value = serde_json::from_str(&text).unwrap();
    let why = status["branch_unreadable"].as_str().unwrap_or_default();
    assert!(why.contains("did not answer within 1 s") && status["chunks_written"] == 1, "{text}");
    // A busy machine may add to the second.
    assert!(elapsed < Duration::from_secs(4), "{elapsed:?}");
    let text = std::fs::read_to_string(root.join(".icechunk/status")).unwrap();
    assert!(text.contains("modified") && text.contains("1 chunk,"), "{text}");
}
