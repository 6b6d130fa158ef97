//! Runs a scenario of `tests/python/write_tools.py`: after each stage a commit, and the stage read
//! back from three places.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use crate::common::writing::{Reference, Writable, put};
use crate::common::{self, Mount, assert_same, project, python, read_files, run};

/// Time limit of one stage: dask's processes have to start.
const STAGE: Duration = Duration::from_secs(90);

/// Commits as a user does, and compares the reference's content with the working tree. Only the
/// names in `untracked` may be no Zarr keys.
#[track_caller]
pub(crate) fn commit_and_compare(mount: &Writable, untracked: &[&str]) -> BTreeMap<String, Vec<u8>> {
    run(Command::new("touch").arg(mount.control("commit"))).success();
    let keys = Reference::open(mount.repository()).keys();
    let mut working = read_files(&mount.root());
    for name in untracked {
        assert!(working.remove(*name).is_some() && !keys.contains_key(*name), "{name}");
    }
    assert_same("the commit", &keys, &working);
    keys
}

/// Runs a scenario of this many stages.
pub(crate) fn run_scenario(name: &str, stages: usize) {
    common::watchdog();
    let Some(python) = python() else { return };
    let mount = Writable::new(&[]);
    let script = project("tests/python/write_tools.py");
    let mut child = Command::new(python)
        .arg("-B")
        .arg(script)
        .arg(name)
        .arg(mount.root().join("data"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (sender, lines) = mpsc::channel();
    let output = BufReader::new(child.stdout.take().unwrap());
    std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    let mut errors = child.stderr.take().unwrap();
    let errors = std::thread::spawn(move || std::io::read_to_string(&mut errors).unwrap_or_default());

    let mut passed = 0;
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        while let Ok(line) = lines.recv_timeout(STAGE) {
            let Some(stage) = line.strip_prefix("stage ") else { return line == "done" };
            println!("{name}: {stage}");
            let keys = commit_and_compare(&mount, &[]);
            let copy = tempfile::tempdir().unwrap();
            keys.iter().for_each(|(key, bytes)| put(&copy.path().join(key), bytes).unwrap());
            let fresh = Mount::new(mount.repository(), &["-o", "ro"]);
            let places = [mount.root(), fresh.path(), copy.path().to_owned()];
            let places: Vec<String> = places.iter().map(|place| place.join("data").display().to_string()).collect();
            writeln!(child.stdin.as_mut().unwrap(), "{}", places.join("\t")).unwrap();
            // The places stay until the script has read them: it prints the next stage, or that it
            // is done.
            match lines.recv_timeout(STAGE) {
                Ok(next) if next == "read" => passed += 1,
                other => {
                    eprintln!("{name}, {stage}: {other:?}");
                    return false;
                }
            }
        }
        false
    }));
    let done = matches!(outcome, Ok(true));
    if !done {
        let _ = child.kill();
    }
    let status = child.wait().unwrap();
    let said = errors.join().unwrap();
    if let Err(panic) = outcome {
        eprintln!("{name}: {said}");
        std::panic::resume_unwind(panic);
    }
    assert!(done && status.success() && passed == stages, "{name}, after {passed} stages: {status}\n{said}");
}
