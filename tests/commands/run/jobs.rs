//! Jobs as users run them: success, failure, signals, and what is kept.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use super::Place;
use crate::common::writing::needed;
use crate::common::{Mount, all_together, errno, program, run, run_on, signal, wait_until};

#[test]
fn a_job_that_succeeds_is_one_commit_and_leaves_nothing() {
    let place = Place::new();
    let script =
        r#"test "$(pwd)" = "$ICECHUNKFS_MOUNT"; printf 1 > a/c/0; printf 2 > a/c/1; echo done; echo x > a/log"#;
    let done = place.run(script, &["-m", "27 November", "--metadata", "run=7"]);
    assert!(done.stderr.contains("2 chunks"), "{}", done.stderr);
    // A file that no commit takes goes with the mount, which is told.
    assert!(done.stderr.contains("a/log"), "{}", done.stderr);
    assert_eq!(done.text(), "done\n", "only the command writes there");
    assert_eq!(place.messages()[..2], ["27 November", "array"]);
    assert_eq!((place.chunk(0), place.chunk(1)), (Some(b"1".to_vec()), Some(b"2".to_vec())));
    let log = run_on(&place.repository, &["log", "--json"]).json();
    assert_eq!(log[0]["metadata"]["run"], 7);
    assert_eq!(place.remains(), [""; 0].map(std::path::PathBuf::from));
    // Nothing to commit is success.
    let idle = place.run("true", &["-m", "nothing"]);
    assert!(idle.stderr.contains("nothing to commit"), "{}", idle.stderr);
    assert_eq!((idle.status.code(), place.messages().len()), (Some(0), 4));
    place.wait_until_clean();
}

#[test]
fn the_night_after_a_crash_commits_its_own_work_alone() {
    let place = Place::new();
    let before = place.messages();
    let crashed = place.run("printf 1 > a/c/0; exit 3", &["-m", "first night"]);
    assert_eq!(crashed.status.code(), Some(3), "{}", crashed.stderr);
    assert!(crashed.stderr.contains("nothing is committed"), "{}", crashed.stderr);
    assert_eq!(place.messages(), before);
    place.wait_until_clean();
    place.run("printf 2 > a/c/1", &["-m", "second night"]).success();
    assert_eq!((place.chunk(0), place.chunk(1)), (None, Some(b"2".to_vec())));
    // A program that is not there fails too.
    let mut missing = Command::new(program());
    missing.arg("run").arg(&place.repository).args(["--", "/no/such/program"]).env("TMPDIR", place.path("tmp"));
    let missing = run(missing.env("XDG_STATE_HOME", place.path("state"))).failure();
    assert!(missing.contains("/no/such/program"), "{missing}");
    place.wait_until_clean();
}

#[test]
fn work_is_kept_where_that_is_asked_for_and_where_the_commit_fails() {
    let place = Place::new();
    let scratch_of = |text: &str| {
        let rest = text.split("--scratch ").nth(1).unwrap_or_else(|| panic!("{text}"));
        rest.split_whitespace().next().unwrap().trim_matches('\'').to_owned()
    };
    let kept = place.run("printf 1 > a/c/0; exit 4", &["--keep"]);
    assert_eq!(kept.status.code(), Some(4));
    let again = Mount::new(&place.repository, &["--scratch", &scratch_of(&kept.stderr)]);
    assert_eq!(std::fs::read(again.path().join("a/c/0")).unwrap(), b"1");
    run_on(again.path(), &["commit", "-m", "looked at"]).success();
    again.end();
    assert_eq!(place.messages()[0], "looked at");
    // Success leaves nothing, also with the option.
    place.run("printf 2 > a/c/1", &["--keep"]).success();
    // A conflict: the job commits the same chunk in another way.
    let conflict = r#""$PROGRAM" run "$REPO" -m other -- sh -c 'printf 8 > a/c/2'; printf 9 > a/c/2"#;
    let refused = place.run(conflict, &["-m", "mine"]);
    assert_eq!(refused.status.code(), Some(1), "{}", refused.stderr);
    let refused = refused.failure();
    assert!(refused.contains("nothing was committed") && refused.contains("kept"), "{refused}");
    assert_eq!((place.messages()[0].as_str(), place.chunk(2)), ("other", Some(b"8".to_vec())));
    let again = Mount::new(&place.repository, &["--scratch", &scratch_of(&refused)]);
    assert_eq!(std::fs::read(again.path().join("a/c/2")).unwrap(), b"9");
    run_on(again.path(), &["commit", "-m", "mine", "--on-conflict", "ours"]).success();
    again.end();
    assert_eq!(place.chunk(2), Some(b"9".to_vec()));
    // A job that says which side counts has no conflict.
    let ours = place.run(&conflict.replace("c/2", "c/3"), &["-m", "mine", "--on-conflict", "ours"]);
    assert_eq!((ours.status.code(), place.chunk(3)), (Some(0), Some(b"9".to_vec())), "{}", ours.stderr);
}

#[test]
fn signals_reach_the_job_and_its_end_decides() {
    let place = Place::new();
    let before = place.messages();
    let started = place.path("started");
    let run = |script: &str, name: &str| {
        let _ = std::fs::remove_file(&started);
        let mut job = place.start(&script.replace("STARTED", &started.display().to_string()));
        wait_until("the job begins", || started.exists());
        signal(job.id().try_into().unwrap(), name);
        let status = job.wait().unwrap();
        place.wait_until_clean();
        assert_eq!(status.signal(), None);
        status.code().unwrap()
    };
    let wait = "touch STARTED; while :; do sleep 0.02; done";
    assert_eq!(run(&format!("printf 1 > a/c/0; {wait}"), "-TERM"), 128 + 15);
    assert_eq!(run(&format!("printf 1 > a/c/0; {wait}"), "-INT"), 128 + 2);
    assert_eq!(place.messages(), before);
    // One that ends as it should is committed.
    assert_eq!(run(&format!("trap 'printf 2 > a/c/1; exit 0' TERM; {wait}"), "-TERM"), 0);
    assert_eq!((place.chunk(0), place.chunk(1)), (None, Some(b"2".to_vec())));
    assert_eq!(run(&format!("trap 'printf 3 > a/c/2; exit 0' USR1; {wait}"), "-USR1"), 0);
    assert_eq!(place.chunk(2), Some(b"3".to_vec()));
}

/// The terminal sends ^C to the job itself.
#[test]
fn a_key_of_the_terminal_reaches_the_job_once() {
    let place = Place::new();
    if !needed(Command::new("script").arg("--version").output().is_ok(), "script(1) of util-linux") {
        return;
    }
    let count = place.path("count");
    let started = place.path("started");
    let script = format!(
        "trap 'echo INT >> {0}' INT; : > {1}; n=0; while [ ! -e {0} ] && [ $n -lt 500 ]; do sleep 0.02 || true; n=$((n+1)); done; sleep 0.5",
        count.display(),
        started.display()
    );
    let shown = place.path("shown");
    let mut terminal = in_terminal(&place.job(&script, &["-m", "key"]), &shown);
    wait_until("the job begins", || started.exists());
    std::io::Write::write_all(terminal.stdin.as_mut().unwrap(), b"\x03").unwrap();
    wait_until("the job has the signal", || count.exists());
    let input = terminal.stdin.take();
    let status = terminal.wait().unwrap();
    assert!(status.success(), "{status}: {}", std::fs::read_to_string(shown).unwrap());
    drop(input);
    assert_eq!(std::fs::read_to_string(&count).unwrap(), "INT\n");
    place.wait_until_clean();
}

#[test]
fn a_job_has_the_branch_the_part_and_the_mountpoint_that_it_asks_for() {
    let place = Place::new();
    let given = place.path("mnt").display().to_string();
    let script = format!("test \"$(pwd)\" = {given}/top; printf 5 > a/c/5");
    let words = ["--branch", "trial", "--create", "--mountpoint", &given, "--subdir", "top", "-m", "trial"];
    place.run(&script, &words).success();
    assert!(place.path("mnt").exists(), "a directory of the user stays");
    assert_eq!(place.chunk(5), None);
    let trial = run_on(&place.repository, &["log", "--branch", "trial"]).text();
    assert!(trial.contains("trial"), "{trial}");
    place.run("printf 6 > c/6", &["--root", "a", "-m", "below a"]).success();
    assert_eq!(place.chunk(6), Some(b"6".to_vec()));
    // Nothing runs where nothing can be written.
    let none = place.path("none").display().to_string();
    let mut wrong = Command::new(program());
    wrong.args(["run", &none, "--", "touch", &given]).env("TMPDIR", place.path("tmp"));
    run(&mut wrong).failure();
    place.wait_until_clean();
}

#[test]
fn programs_that_outlive_the_job_change_nothing() {
    let place = Place::new();
    let script = "printf 1 > a/c/0; (exec 3<a/c/0; sleep 3; printf 2 > a/c/1; sleep 60) >/dev/null 2>&1 &";
    let done = place.run(script, &["-m", "left one"]);
    assert_eq!(done.status.code(), Some(0), "{}", done.stderr);
    assert_eq!((place.chunk(0), place.chunk(1)), (Some(b"1".to_vec()), None));
    place.wait_until_clean();
    assert_eq!((place.chunk(1), place.messages()[0].as_str()), (None, "left one"));
}

#[test]
fn a_mount_refuses_what_an_earlier_one_left_if_it_is_told_to() {
    let place = Place::new();
    let mount = Mount::new(&place.repository, &["--refuse-uncommitted"]);
    std::fs::write(mount.path().join("a/c/0"), "1").unwrap();
    mount.unmount();
    let refused = mount.command(&place.repository, &["--refuse-uncommitted"]);
    assert!(refused.stderr.contains("--discard") && refused.stderr.contains("uncommitted"), "{}", refused.stderr);
    refused.failure();
    assert_eq!(errno(std::fs::read(mount.path().join("a/c/0"))), libc::ENOENT);
    // Nothing was lost by it.
    mount.command(&place.repository, &[]).success();
    assert_eq!(std::fs::read(mount.path().join("a/c/0")).unwrap(), b"1");
    run_on(mount.path(), &["commit", "-m", "late"]).success();
    mount.unmount();
    mount.command(&place.repository, &["--refuse-uncommitted"]).success();
}

#[test]
fn two_jobs_do_not_share_a_mountpoint() {
    let place = Place::new();
    let given = place.path("mnt").display().to_string();
    let inner =
        format!("\"$PROGRAM\" run \"$REPO\" --mountpoint {given} -- true || echo refused >&2; printf 1 > a/c/0");
    let outer = place.run(&inner, &["--mountpoint", &given, "-m", "outer"]);
    assert!(outer.stderr.contains("in use") && outer.stderr.contains("refused"), "{}", outer.stderr);
    assert_eq!((outer.status.code(), place.messages()[0].as_str()), (Some(0), "outer"));
    // Of two that begin together, each has its own work under its own message, or was refused.
    let ended = all_together(&[1, 2], |_, chunk: &usize| {
        let script = format!("printf 7 > a/c/{chunk}; sleep 0.3");
        place.run(&script, &["--mountpoint", &given, "-m", &chunk.to_string()]).status.success()
    });
    let messages = place.messages();
    for (is_committed, chunk) in std::iter::zip(&ended, [1, 2]) {
        assert_eq!(*is_committed, messages.contains(&chunk.to_string()), "{ended:?} {messages:?}");
        assert_eq!(*is_committed, place.chunk(chunk) == Some(b"7".to_vec()), "{ended:?}");
    }
    assert!(ended.contains(&true));
    place.wait_until_clean();
}

/// A signal of the terminal reaches a command in a group of its own, too.
#[test]
fn a_key_of_the_terminal_ends_a_job_with_a_group_of_its_own() {
    let place = Place::new();
    if !needed(Command::new("script").arg("--version").output().is_ok(), "script(1) of util-linux") {
        return;
    }
    let started = place.path("started");
    // A shell goes on if a program that it waits for ends as the key is pressed: it has a trap. And
    // timeout(1) leaves it behind if the key comes before it knows its number: it ends by itself.
    let script = format!(
        "exec timeout 60 sh -c 'trap \"exit 5\" INT; : > {}; n=0; while [ $n -lt 2000 ]; do sleep 0.02; n=$((n+1)); done'",
        started.display()
    );
    let began = std::time::Instant::now();
    let shown = place.path("shown");
    let mut terminal = in_terminal(&place.job(&script, &["-m", "key"]), &shown);
    wait_until("the job begins", || started.exists());
    std::io::Write::write_all(terminal.stdin.as_mut().unwrap(), b"\x03").unwrap();
    let input = terminal.stdin.take();
    assert!(!terminal.wait().unwrap().success());
    drop(input);
    let shown = std::fs::read_to_string(shown).unwrap();
    assert!(began.elapsed() < std::time::Duration::from_secs(40), "{:?}: {shown}", began.elapsed());
    place.wait_until_clean();
}

/// Directories that are made for a job are its user's alone, whatever others may write to.
#[test]
fn a_job_runs_with_any_umask() {
    let place = Place::new();
    let job = place.job("printf 1 > a/c/1", &["-m", "one"]);
    let mut without = Command::new("sh");
    without.args(["-c", "umask 0; exec \"$@\"", "sh"]).arg(job.get_program()).args(job.get_args());
    without.envs(job.get_envs().filter_map(|(name, value)| Some((name, value?))));
    run(&mut without).success();
    assert_eq!(run_on(&place.repository, &["cat", "a/c/1"]).success(), b"1");
    place.wait_until_clean();
}

/// Starts `job` in a terminal of its own, whose keys are its standard input, and which shows in the
/// file `shown`.
pub fn in_terminal(job: &Command, shown: &std::path::Path) -> std::process::Child {
    let words: Vec<String> = std::iter::once(job.get_program())
        .chain(job.get_args())
        .map(|word| format!("'{}'", word.to_string_lossy().replace('\'', r"'\''")))
        .collect();
    let mut terminal = Command::new("script");
    // A shell that stays between them would end by the key, too.
    let command = format!("exec {}", words.join(" "));
    terminal.args(["--quiet", "--flush", "--return", "--command", &command]).arg(shown).env("SHELL", "/bin/sh");
    terminal.envs(job.get_envs().filter_map(|(name, value)| Some((name, value?))));
    terminal.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::null()).spawn().unwrap()
}
