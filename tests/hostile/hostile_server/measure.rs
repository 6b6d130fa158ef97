//! Time and memory of a command.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use crate::common::hostile::{BUCKET, Objects, Store};
use crate::common::usage;

/// Value of `--timeout` in all cases.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(2);
/// Cases that run at a time: each waits most of its time.
pub(crate) const AT_ONCE: usize = 8;
/// Memory bound of a command in all, in bytes.
const MEMORY: u64 = 120 << 20;
/// A command that has not ended by then is killed.
const HARD: Duration = Duration::from_secs(40);

/// The client through which the store is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Client {
    Amazon,
    Google,
    Azure,
    Web,
}

/// Result of a command.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub success: bool,
    pub elapsed: Duration,
    /// Peak memory in bytes.
    pub memory: u64,
    pub stderr: String,
}

/// Returns the repository's URL for the client.
pub(crate) fn repository(client: Client, store: &Store) -> String {
    match client {
        Client::Amazon => format!("s3://{BUCKET}/repo"),
        Client::Google => format!("gs://{BUCKET}/repo"),
        Client::Azure => format!("az://{BUCKET}/repo"),
        Client::Web => format!("http://127.0.0.1:{}/{BUCKET}/repo", store.port),
    }
}

/// Returns the program with `words`, in which `REPO` is the repository in `store`.
pub(crate) fn command<S: AsRef<str>>(client: Client, store: &Store, words: &[S]) -> Command {
    // Another build can be named, to compare its behavior.
    let program = std::env::var_os("ICECHUNKFS_HOSTILE_PROGRAM").unwrap_or_else(|| crate::common::program().into());
    let mut command = Command::new(program);
    let own = |name: &str| ["AWS_", "ICECHUNKFS_", "AZURE_", "GOOGLE_"].iter().any(|begin| name.starts_with(begin));
    for (name, _) in std::env::vars().filter(|(name, _)| own(name)) {
        command.env_remove(name);
    }
    let endpoint = format!("http://127.0.0.1:{}", store.port);
    match client {
        Client::Amazon => {
            command.env("AWS_ACCESS_KEY_ID", "tester").env("AWS_SECRET_ACCESS_KEY", "secret");
            command.env("AWS_REGION", "us-east-1").env("ICECHUNKFS_ENDPOINT_URL", endpoint);
        }
        Client::Google => {
            command.env("ICECHUNKFS_ENDPOINT_URL", endpoint).env("ICECHUNKFS_ANONYMOUS", "1");
        }
        Client::Azure => {
            command.env("ICECHUNKFS_ENDPOINT_URL", endpoint).env("ICECHUNKFS_ACCOUNT", "tester");
            command.env("ICECHUNKFS_ANONYMOUS", "1");
        }
        Client::Web => {}
    }
    // The limit that ends an endless listing that is otherwise correct.
    command.env("ICECHUNKFS_MAX_LISTED", "20000");
    command.env("HOME", "/nonexistent").env("ICECHUNKFS_TIMEOUT", TIMEOUT.as_secs_f32().to_string());
    let repo = repository(client, store);
    command.args(words.iter().map(|word| if word.as_ref() == "REPO" { repo.as_str() } else { word.as_ref() }));
    command
}

/// Runs a command to its end, and measures it.
pub(crate) fn measure(command: &mut Command) -> Outcome {
    let usage::Usage { status, elapsed, memory, stderr, .. } = usage::measure(command, HARD);
    Outcome { success: status == Some(0), elapsed, memory, stderr }
}

/// Returns the problem with an outcome, if any. A command has its deadline, a second, and its own
/// work, which takes `alone` and is slower beside that of others.
pub(crate) fn complaint(outcome: &Outcome, alone: Duration) -> Option<String> {
    let allowed = TIMEOUT + Duration::from_secs(1) + alone * u32::try_from(AT_ONCE).unwrap();
    if outcome.elapsed > allowed {
        return Some(too_slow(outcome.elapsed, allowed, &outcome.stderr));
    }
    if outcome.memory > MEMORY {
        return Some(format!("took {} MiB: {}", outcome.memory >> 20, outcome.stderr));
    }
    outcome.stderr.contains("panicked").then(|| outcome.stderr.clone())
}

/// Text in complaints about time alone.
const SLOW: &str = " are allowed: ";
/// Number of times that a slow case is run again: other tests keep the machine busy, too.
const AGAIN: usize = 3;

/// Returns the complaint about work that took longer than allowed; `said` describes how it ended.
pub(crate) fn too_slow(elapsed: Duration, allowed: Duration, said: &str) -> String {
    format!("took {elapsed:?}, {allowed:?}{SLOW}{said}")
}

/// Runs `cases` side by side; returns the complaints. A case that took too long is run again
/// without the others, and counts if it takes too long each time: a hang does. Any other complaint
/// counts at once.
pub(crate) fn side_by_side<C: Send + std::fmt::Debug>(
    cases: Vec<C>,
    run: impl Fn(&C) -> Option<String> + Sync,
) -> Vec<String> {
    let cases = Mutex::new(cases);
    let doubtful = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let Some(case) = cases.lock().unwrap().pop() else { break };
                    if let Some(complaint) = run(&case) {
                        doubtful.lock().unwrap().push((case, complaint));
                    }
                }
            });
        }
    });
    let again = |case: &C, complaint: String| {
        (0..AGAIN).try_fold(complaint, |last, _| if last.contains(SLOW) { run(case) } else { Some(last) })
    };
    let doubtful = doubtful.into_inner().unwrap();
    doubtful
        .into_iter()
        .filter_map(|(case, complaint)| Some(format!("{case:?}: {}", again(&case, complaint)?)))
        .collect()
}

/// Creates a repository with an array of four chunks, as objects of a store.
pub(crate) fn seed() -> Objects {
    static SEED: OnceLock<Objects> = OnceLock::new();
    SEED.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        tree(directory.path(), 100_000);
        let store = Store::new(BTreeMap::new());
        let source = directory.path().to_str().unwrap();
        let made = measure(&mut command(Client::Amazon, &store, &["import", source, "REPO"]));
        assert!(made.success, "{}", made.stderr);
        let objects = store.objects();
        assert!(objects.keys().any(|key| key.contains("/chunks/")));
        objects
    })
    .clone()
}

/// Writes a group with an array `a` of four chunks of `size` bytes.
pub(crate) fn tree(root: &Path, size: usize) {
    let array = serde_json::json!({
        "zarr_format": 3, "node_type": "array", "shape": [4 * size], "data_type": "uint8", "fill_value": 0, "attributes": {},
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [size]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}}, "codecs": [{"name": "bytes"}]
    });
    std::fs::write(root.join("zarr.json"), r#"{"zarr_format":3,"node_type":"group"}"#).unwrap();
    std::fs::create_dir_all(root.join("a/c")).unwrap();
    std::fs::write(root.join("a/zarr.json"), array.to_string()).unwrap();
    for n in 0..4_usize {
        let bytes: Vec<u8> = (0..size).map(|i| (i % 251) as u8 ^ n as u8).collect();
        std::fs::write(root.join(format!("a/c/{n}")), bytes).unwrap();
    }
}
