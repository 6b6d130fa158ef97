//! Damaged repositories, on disk, through every command of the program: with 1 GiB of address space
//! and ten seconds each, none panics, aborts or hangs.
//!
//! `ICECHUNKFS_MUTANTS` sets their number (default 40); `scripts/soak` uses 20,000.
//! `ICECHUNKFS_SEED` repeats a run, and with `ICECHUNKFS_MUTANT` only the one that a failure names.
//! `ICECHUNKFS_PROGRAM` is another build of the program.
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::damage::{is_chunk, mutate};
use crate::common::lengths::{length, number};
use crate::common::random::Random;
use crate::common::{self, Fixture, FixtureSet, Mount, Output, place, program, read_files, watchdog};

/// Address space of each process, in bytes.
const ADDRESS_SPACE: u64 = 1 << 30;
/// Time limit of each command.
const DEADLINE: Duration = Duration::from_secs(10);
/// After this many failures the test stops.
const ENOUGH: usize = 20;
/// Commands at a time.
const AT_ONCE: usize = 2;
/// Script for a mount: list 300 files, and read a little of each.
const LOOK: &str = "cd \"$0\" && find . -type f 2>/dev/null | head -n 300 | tr '\\n' '\\0' | xargs -0 -r head -q -c 4096 >/dev/null 2>&1; \
                    cat .icechunk/status .icechunk/log .icechunk/info.json >/dev/null 2>&1; true";

/// An undamaged repository, and the arguments for its commands.
struct Sound {
    name: String,
    files: BTreeMap<String, Vec<u8>>,
    /// A copy, on the disk where the damaged ones are.
    place: PathBuf,
    branch: String,
    /// Paths of its Zarr files.
    keys: Vec<String>,
}

impl Sound {
    fn new(fixture: &Fixture, directory: &Path) -> Sound {
        let place = directory.join(&fixture.name);
        common::copy_tree(&fixture.repository, &place);
        let branches = fixture.expected["branches"].as_object().unwrap();
        let branch = branches.keys().find(|name| *name == "main").or(branches.keys().next()).unwrap().clone();
        let out = directory.join("out");
        let _ = common::run_on(&place, &["export", out.to_str().unwrap(), &branch, "--skip-unreadable"]);
        let shown = if out.is_dir() { read_files(&out) } else { BTreeMap::new() };
        let _ = std::fs::remove_dir_all(&out);
        let chunks = shown.keys().filter(|key| !key.ends_with("zarr.json"));
        let keys = chunks.take(2).cloned().chain(["zarr.json".to_owned()]).collect();
        Sound { name: fixture.name.clone(), files: read_files(&place), place, branch, keys }
    }

    /// Returns a copy of it that shares the files' bytes.
    fn linked(&self, to: &Path) {
        for key in self.files.keys() {
            let target = to.join(key);
            std::fs::create_dir_all(target.parent().unwrap()).unwrap();
            std::fs::hard_link(self.place.join(key), &target).unwrap();
        }
    }
}

/// Returns a command with bounded address space. Another program sets the bound: between a fork and
/// the start of a program this process could, but a fork copies the tables of all its memory.
fn bounded(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("prlimit");
    command.arg(format!("--as={ADDRESS_SPACE}")).arg("--").arg(program);
    command
}

/// Runs a command. Returns whether it succeeded, or a description of its crash.
fn run(mut command: Command) -> Result<bool, String> {
    let Some(Output { status, stderr, .. }) = common::run_within(&mut command, DEADLINE) else {
        return Err(format!("{command:?}: not done after {DEADLINE:?}"));
    };
    // The test itself passes wrong arguments.
    assert!(!stderr.contains("Usage:"), "{command:?}: {stderr}");
    let is_known = status.code().is_some_and(|code| (0..10).contains(&code));
    if !is_known || stderr.contains("panicked") {
        return Err(format!("{command:?}: {status} (signal {:?}): {stderr}", status.signal()));
    }
    Ok(status.success())
}

fn icechunkfs(words: &[&str]) -> Result<bool, String> {
    let other = std::env::var_os("ICECHUNKFS_PROGRAM");
    let mut command = bounded(other.as_deref().unwrap_or(program().as_ref()));
    command.args(words);
    run(command)
}

/// Takes the repository with a number through all commands. Returns the commands that were refused.
fn through_everything(number: u64, sound: &Sound, repo: &Path, beside: &Path) -> Result<Vec<String>, String> {
    let repo = repo.to_str().unwrap();
    let beside = |name: &str| beside.join(name).display().to_string();
    let out = beside("out");
    let elsewhere = beside("elsewhere");
    let source = beside("source");
    let branch = &*sound.branch;
    let reading: [&[&str]; 16] = [
        &["refs", repo],
        &["branch", repo, "list"],
        &["tag", repo, "list"],
        &["config", repo, "get"],
        &["ops", repo],
        &["log", repo, "--branch", branch],
        &["ls", "-r", repo, "--branch", branch],
        &["ls", "--shards", repo, "--branch", branch],
        &["diff", repo, branch, branch],
        &["stats", repo],
        &["verify", repo],
        &["verify", repo, "--chunks"],
        &["export", repo, &out, branch, "--skip-unreadable"],
        &["gc", repo, "--dry-run", "--older-than", "0s", "--yes"],
        &["expire", repo, "--dry-run", "--older-than", "0s", "--yes"],
        &["migrate", repo, "--dry-run"],
    ];
    let mut refused = Vec::new();
    for words in reading {
        run_noted(words, &mut refused)?;
    }
    for key in &sound.keys {
        run_noted(&["cat", repo, key, "--branch", branch], &mut refused)?;
    }

    mounted(repo, &["--branch", branch], &mut refused)?;
    if number.is_multiple_of(4) {
        mounted(repo, &["--branch", branch, "--read-only", "--io", "cached"], &mut refused)?;
    }

    std::fs::create_dir_all(&source).unwrap();
    std::fs::write(Path::new(&source).join("zarr.json"), r#"{"zarr_format":3,"node_type":"group","attributes":{}}"#)
        .unwrap();
    let writing: [&[&str]; 14] = [
        &["init", repo],
        &["branch", repo, "create", "new", "--at", branch],
        &["branch", repo, "reset", "new", "--to", branch, "--yes"],
        &["branch", repo, "delete", "new", "--yes"],
        &["tag", repo, "create", "new", "--at", branch],
        &["tag", repo, "delete", "new", "--yes"],
        &["config", repo, "set", "inline_chunk_threshold_bytes", "7"],
        &["import", &source, repo, "--branch", branch, "--path", "imported"],
        &["migrate", repo, "--to", &elsewhere, "--yes"],
        &["migrate", repo, "--yes"],
        &["amend", repo, "--branch", branch, "-m", "other words", "--yes"],
        &["squash", repo, "--branch", branch, "--last", "2", "-m", "two", "--yes"],
        &["rewrite-manifests", repo, "--branch", branch, "--yes"],
        &["expire", repo, "--older-than", "0s", "--yes"],
    ];
    for words in writing {
        run_noted(words, &mut refused)?;
    }
    run_noted(&["gc", repo, "--older-than", "0s", "--yes"], &mut refused)?;
    Ok(refused)
}

/// Runs a command, and records a refusal.
fn run_noted(words: &[&str], refused: &mut Vec<String>) -> Result<bool, String> {
    let done = icechunkfs(words)?;
    if !done {
        refused.push(words.join(" "));
    }
    Ok(done)
}

/// Mounts it, if it can be mounted, and uses the mount as programs and users would.
fn mounted(repo: &str, words: &[&str], refused: &mut Vec<String>) -> Result<(), String> {
    let mount = Mount::prepare();
    let place = mount.path().display().to_string();
    let scratch = mount.path().with_file_name("scratch").display().to_string();
    let is_writable = !words.contains(&"--read-only");
    let scratch: &[&str] = if is_writable { &["--scratch", &scratch] } else { &[] };
    let all = mount.arguments(repo, &[scratch, words].concat());
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let with_log = |why: String| format!("{why}\nlog of the mount:\n{}", mount.log());
    if !run_noted(&all, refused).map_err(with_log)? {
        return Ok(());
    }
    let mut command = bounded("sh");
    command.arg("-c").arg(LOOK).arg(&place);
    run(command).map_err(with_log)?;
    let file = |name: &str| mount.path().join(name);
    if is_writable {
        // A repository may be refused, or have a file in the place of a directory: any result is
        // accepted.
        let _ = std::fs::create_dir(file("made-here"));
        let _ = std::fs::write(file("made-here/zarr.json"), r#"{"zarr_format":3,"node_type":"group","attributes":{}}"#);
        let _ = std::fs::write(file("notes"), "mine");
    }
    let commands: [&[&str]; 6] = [
        &["status", &place],
        &["diff", &place],
        &["prefetch", &place],
        &["commit", &place, "-m", "from a mount"],
        &["refresh", &place],
        &["discard", &place],
    ];
    for words in commands.into_iter().filter(|words| is_writable || words[0] == "prefetch") {
        run_noted(words, refused).map_err(with_log)?;
    }
    if !icechunkfs(&["unmount", &place]).map_err(with_log)? {
        return Err(with_log(format!("{place} is not unmounted")));
    }
    match mount.log() {
        log if log.contains("panicked") => Err(log),
        _ => Ok(()),
    }
}

#[test]
fn no_command_panics_hangs_or_takes_all_memory() {
    if !place::needs_directory() {
        return;
    }
    let seed = number("ICECHUNKFS_SEED", 20_261_122) as u64;
    let count = length("ICECHUNKFS_MUTANTS", 6, 40) as u64;
    let only = std::env::var("ICECHUNKFS_MUTANT").ok().map(|text| text.parse::<u64>().expect("a number"));
    let range = only.map_or(0..count, |n| n..n + 1);
    watchdog();
    println!("{count} damaged repositories, seed {seed}");
    // Nothing here needs to survive a power cut.
    let memory = Path::new("/dev/shm");
    let directory = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
    let fixtures = FixtureSet::each().flat_map(|set| set.all().into_iter().chain(set.alphas()));
    let sound: Vec<Sound> = fixtures.map(|fixture| Sound::new(&fixture, directory.path())).collect();
    // The test must not use arguments that are refused anyway.
    for sound in sound.iter().filter(|sound| sound.name == "own-v2-basic" || sound.name == "own-v1-basic") {
        let place = tempfile::tempdir_in(directory.path()).unwrap();
        let repo = place.path().join("repo");
        sound.linked(&repo);
        let refused = through_everything(0, sound, &repo, place.path()).unwrap();
        let names: Vec<&str> = refused.iter().filter_map(|words| words.split(' ').next()).collect();
        let known: &[&str] =
            if sound.name == "own-v2-basic" { &["migrate", "init", "migrate", "migrate"] } else { &["ops", "init"] };
        assert_eq!(names, known, "{}: {refused:#?}", sound.name);
    }
    let mut targets: Vec<(&Sound, &String)> = Vec::new();
    for sound in &sound {
        targets.extend(sound.files.keys().filter(|key| !is_chunk(key)).map(|key| (sound, key)));
    }
    // Every file is damaged once before any is damaged twice.
    let mut random = Random::new(seed | 1);
    random.shuffle(&mut targets);
    let failures = Mutex::new(Vec::new());
    let next = AtomicU64::new(range.start);
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= range.end || failures.lock().unwrap().len() >= ENOUGH {
                        break;
                    }
                    let mut random = Random::new((seed ^ n.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1);
                    let _ = (random.next(), random.next());
                    let (sound, key) = targets[n as usize % targets.len()];
                    let place = tempfile::tempdir_in(directory.path()).unwrap();
                    let repo = place.path().join("repo");
                    sound.linked(&repo);
                    let mut damaged = vec![key];
                    // Sometimes several files are damaged together.
                    let others: Vec<&String> = sound.files.keys().filter(|key| !is_chunk(key)).collect();
                    damaged.extend((0..random.below(12).saturating_sub(9)).map(|_| others[random.below(others.len())]));
                    for key in &damaged {
                        std::fs::remove_file(repo.join(key)).ok();
                        std::fs::write(repo.join(key), mutate(&sound.files[*key], &mut random)).unwrap();
                    }
                    if let Err(why) = through_everything(n, sound, &repo, place.path()) {
                        let why =
                            format!("damaged repository {n} of seed {seed}: {} with {damaged:?}: {why}", sound.name);
                        eprintln!("{why}");
                        failures.lock().unwrap().push(why);
                    }
                    let done = done.fetch_add(1, Ordering::Relaxed) + 1;
                    if done.is_multiple_of(1000) {
                        println!("{done} done");
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} of {} failed: {}", failures.len(), done.into_inner(), failures.join("\n"));
    // The damaged file was a copy.
    for sound in &sound {
        assert!(read_files(&sound.place) == sound.files, "{} was written to", sound.name);
    }
}
