//! Repositories of some kilobytes that expand to gigabytes: no command exceeds its memory bound, or
//! takes more than seconds.
//!
//! Memory is the kernel's own measure of the process, not the program's.
use std::io::Read;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use icechunk::RepositoryConfig;
use icechunk::format::format_constants::SpecVersionBin;

use crate::common::lab;
use crate::common::shard;
use crate::common::usage::measure;
use crate::common::writing::{GROUP, Writable, array, put};
use crate::common::{Mount, block_on, entries, program};

/// Memory bound of each command, in bytes.
const MEMORY: u64 = 64 << 20;
/// Memory that a program takes besides: stacks, buffers of the allocator, what it read of its
/// settings.
const PROGRAM: u64 = 60 << 20;
/// Limit of the processor's time for a command.
const DEADLINE: Duration = Duration::from_secs(20);

/// Returns the header of a file of version 2 and of type `kind`, compressed.
fn header(kind: u8) -> Vec<u8> {
    let mut file = b"ICE\xF0\x9F\xA7\x8ACHUNK".to_vec();
    file.extend(b"ic-2.3.0                ");
    file.extend([2, kind, 1]);
    file
}

/// Returns a file of type `kind` that expands to `bytes` bytes, whether it announces that or not.
fn bomb(kind: u8, bytes: u64, says_so: bool) -> Vec<u8> {
    let mut file = header(kind);
    let mut encoder = zstd::stream::write::Encoder::new(&mut file, 3).unwrap();
    if says_so {
        encoder.set_pledged_src_size(Some(bytes)).unwrap();
    }
    std::io::copy(&mut std::io::repeat(0).take(bytes), &mut encoder).unwrap();
    encoder.finish().unwrap();
    file
}

/// Result of a command, and its peak memory.
struct Ran {
    status: i32,
    output: String,
    peak: u64,
}

fn run(words: &[&str]) -> Ran {
    run_within(words, DEADLINE)
}

/// Runs a command that may take the processor for as long as `deadline`.
fn run_within(words: &[&str], deadline: Duration) -> Ran {
    let memory = MEMORY.to_string();
    // Other tests keep the machine busy, too: a command is killed much later.
    let used = measure(Command::new(program()).args(words).args(["--memory", &memory]), 6 * deadline);
    assert!(used.processor < deadline, "{words:?} took {:?}", used.processor);
    Ran { status: used.status.unwrap_or(-1), output: used.stderr, peak: used.memory }
}

/// Runs every command that reads a repository: each ends within its memory bound.
fn all_are_bounded(repo: &Path, what: &str, must_fail: &[&str]) {
    let repo = repo.display().to_string();
    let place = Mount::prepare();
    let mounted = place.path().display().to_string();
    let out = place.path().with_file_name("out").display().to_string();
    let commands: [&[&str]; 12] = [
        &["refs", &repo],
        &["log", &repo],
        &["ls", &repo],
        &["ls", "-r", &repo],
        &["cat", &repo, "a0/c/0"],
        &["diff", &repo, "main", "main"],
        &["export", &repo, &out],
        &["verify", &repo],
        &["gc", &repo, "--dry-run", "--older-than", "0s", "--yes"],
        &["stats", &repo],
        &["config", &repo, "get"],
        &["mount", &repo, &mounted, "--read-only", "--foreground", "-o", "fake"],
    ];
    for words in commands {
        let ran = run(words);
        let Ran { status, output, peak } = &ran;
        assert!(*peak < MEMORY + PROGRAM, "{what}: {words:?} took {} MiB: {output}", peak >> 20);
        assert!(!output.contains("panicked") && (0..10).contains(status), "{what}: {words:?}: {status}: {output}");
        if must_fail.contains(&words[0]) {
            assert!(*status != 0 && output.contains("--memory"), "{what}: {words:?} says nothing of memory: {output}");
        }
    }
}

/// Creates a repository with eight arrays, each with chunks in a manifest of its own.
fn made() -> Writable {
    let mount = Writable::new(&[]);
    put(&mount.root().join("zarr.json"), GROUP).unwrap();
    for n in 0..8 {
        put(&mount.root().join(format!("a{n}/zarr.json")), array(&[4], &[1])).unwrap();
        put(&mount.root().join(format!("a{n}/c/0")), format!("{n}")).unwrap();
    }
    mount.commit("eight arrays").unwrap();
    mount.unmount();
    mount
}

/// Returns the files below `folder` of a local repository, the newest first.
fn files(repo: &Path, folder: &str) -> Vec<std::path::PathBuf> {
    let mut files = entries(&repo.join(folder));
    files.sort_by_key(|path| std::cmp::Reverse(path.metadata().unwrap().modified().unwrap()));
    files
}

#[test]
fn a_repo_file_that_expands_is_refused() {
    for says_so in [true, false] {
        let made = made();
        std::fs::write(made.repository().join("repo"), bomb(6, 800 << 20, says_so)).unwrap();
        all_are_bounded(made.repository(), "repo", &["refs", "log", "ls", "gc", "mount"]);
    }
}

#[test]
fn a_snapshot_that_expands_is_refused() {
    for says_so in [true, false] {
        let made = made();
        let snapshot = bomb(1, 1600 << 20, says_so);
        for file in files(made.repository(), "snapshots") {
            std::fs::write(file, &snapshot).unwrap();
        }
        all_are_bounded(made.repository(), "snapshot", &["ls", "cat", "export", "mount"]);
    }
}

#[test]
fn manifests_and_logs_that_expand_share_one_bound() {
    let made = made();
    // Two of them exceed the bound.
    let manifest = bomb(2, 40 << 20, true);
    let log = bomb(4, 600 << 20, false);
    for file in files(made.repository(), "manifests") {
        std::fs::write(file, &manifest).unwrap();
    }
    for file in files(made.repository(), "transactions") {
        std::fs::write(file, &log).unwrap();
    }
    all_are_bounded(made.repository(), "manifests", &[]);
}

#[test]
fn files_larger_than_the_budget_are_not_read() {
    let made = made();
    for folder in ["manifests", "snapshots", "transactions"] {
        for file in files(made.repository(), folder) {
            std::fs::File::options().write(true).open(&file).unwrap().set_len(1 << 30).unwrap();
        }
    }
    all_are_bounded(made.repository(), "large files", &["ls"]);
}

#[test]
fn a_configuration_that_expands_to_billions_of_values_is_refused() {
    let mut laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for n in 1..9 {
        let refs = vec![format!("*a{}", n - 1); 10].join(", ");
        laughs += &format!("a{n}: &a{n} [{refs}]\n");
    }
    let nested = "[".repeat(200_000);
    for (text, what) in [(laughs, "aliases"), (nested, "brackets")] {
        let directory = tempfile::tempdir().unwrap();
        block_on(lab::create(directory.path(), SpecVersionBin::V1, RepositoryConfig::default()));
        std::fs::write(directory.path().join("config.yaml"), text).unwrap();
        all_are_bounded(directory.path(), what, &[]);
        let output = run(&["config", &directory.path().display().to_string(), "get"]).output;
        assert!(output.contains("config.yaml") && output.contains("YAML"), "{output}");
    }
}

/// Runs a command on `repo` that must be refused for its memory, and is bounded.
fn is_refused(words: &[&str], what: &str) {
    let Ran { status, output, peak } = run(words);
    assert!(peak < MEMORY + PROGRAM, "{what}: {words:?} took {} MiB: {output}", peak >> 20);
    assert!(status != 0 && output.contains("--memory"), "{what}: {words:?}: {status}: {output}");
}

/// Writes rules for splitting manifests into the configuration of `repo`.
fn split(repo: &Path, rules: &serde_json::Value) {
    let rules = serde_json::json!({"split_sizes": rules}).to_string();
    let ran = run(&["config", &repo.display().to_string(), "set", "manifest.splitting", &rules]);
    assert!(ran.status == 0 && ran.peak < MEMORY + PROGRAM, "{}: {} MiB", ran.output, ran.peak >> 20);
}

#[test]
fn patterns_of_a_configuration_are_counted_before_they_are_compiled() {
    let made = made();
    let steps = serde_json::json!([{"condition": "Any", "num_chunks": 1}]);
    let rule = |n: u32| serde_json::json!([{"name_matches": {"regex": format!("\\pL{{200}}x{n}")}}, steps]);
    split(made.repository(), &(0..40).map(rule).collect());
    let repo = made.repository().display().to_string();
    is_refused(&["rewrite-manifests", &repo, "-m", "x"], "patterns");
    let ran = run(&["config", &repo, "get"]);
    assert!(ran.peak < MEMORY + PROGRAM, "{} MiB", ran.peak >> 20);
}

#[test]
fn parts_of_manifests_are_counted_before_they_are_planned() {
    const RANK: usize = 18;
    let mount = Writable::new(&[]);
    put(&mount.root().join("zarr.json"), GROUP).unwrap();
    put(&mount.root().join("a/zarr.json"), array(&[2; RANK], &[1; RANK])).unwrap();
    for corner in ["0", "1"] {
        put(&mount.root().join(format!("a/c/{}", vec![corner; RANK].join("/"))), corner).unwrap();
    }
    mount.commit("two corners of 262144 chunks").unwrap();
    mount.unmount();
    split(mount.repository(), &serde_json::json!([["any_array", [{"condition": "Any", "num_chunks": 1}]]]));
    is_refused(&["rewrite-manifests", &mount.repository().display().to_string(), "-m", "x"], "parts");
}

#[test]
#[ignore = "takes long: scripts/test --full"]
fn faults_of_a_shard_are_written_as_they_are_found() {
    const INNER: usize = 1 << 18;
    let codec = shard::USUAL.codec(serde_json::json!([1]), serde_json::json!([{"name": "bytes"}]));
    let document = shard::array(serde_json::json!([INNER]), serde_json::json!([INNER]), serde_json::json!([codec]));
    let mount = Writable::new(&[]);
    put(&mount.root().join("zarr.json"), document.to_string()).unwrap();
    put(&mount.root().join("c/0"), shard::USUAL.index(&vec![(1 << 62, 1 << 62); INNER])).unwrap();
    mount.commit("no inner chunk is where the index says").unwrap();
    mount.unmount();
    for json in [&[][..], &["--json"]] {
        let repo = mount.repository().display().to_string();
        // A quarter of a million faults take an unoptimized program 20 s, and longer in company.
        let ran = run_within(&[&["ls", &repo, "--shards", "/"], json].concat(), 4 * DEADLINE);
        assert!(ran.status != 0 && ran.output.contains("and 262143 more that are wrong"), "{}", ran.output);
        assert!(ran.peak < MEMORY + PROGRAM, "{} MiB", ran.peak >> 20);
    }
}

#[test]
fn documents_of_an_import_are_reserved() {
    let made = made();
    let source = tempfile::tempdir().unwrap();
    let document = source.path().join("zarr.json");
    std::fs::write(&document, GROUP).unwrap();
    std::fs::File::options().write(true).open(&document).unwrap().set_len(100 << 20).unwrap();
    let from = source.path().display().to_string();
    let repo = made.repository().display().to_string();
    is_refused(&["import", &from, &repo, "-m", "x"], "a document");
}
