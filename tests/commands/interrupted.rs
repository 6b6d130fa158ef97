//! ^C during `commit`: the user is told that the mount goes on and where the outcome will be; a
//! second one cancels the commit as long as nothing is published.

use std::io::Write;
use std::process::{Child, Command, Stdio};

use super::run::jobs::in_terminal;
use crate::common::writing::{GROUP, Reference, Writable, needed};
use crate::common::{program, run_on, signal, wait_until};

/// Returns a mount with a group that is not committed, whose next commit stalls at `point`.
fn stalled(point: &str) -> Writable {
    let writable = Writable::new(&[]);
    std::fs::create_dir(writable.root().join("g")).unwrap();
    std::fs::write(writable.root().join("g/zarr.json"), GROUP).unwrap();
    writable.mount().unmount();
    writable.mount_again(Some(&format!("{point}=stall"))).success();
    writable
}

fn commit(writable: &Writable) -> Command {
    // A shell starts programs in the background with the signals of the terminal ignored.
    let mut command = Command::new("env");
    command.args(["--default-signal=INT", program(), "commit"]).arg(writable.root()).args(["-m", "a group"]);
    command
}

/// Presses ^C `count` times when the commit is at `stage`, and returns what the terminal showed,
/// and true if the command succeeded.
fn pressed(writable: &Writable, stage: &str, count: usize) -> (String, bool) {
    let shown = writable.root().with_file_name("shown");
    let mut terminal = in_terminal(&commit(writable), &shown);
    wait_for(writable, stage);
    for n in 0..count {
        terminal.stdin.as_mut().unwrap().write_all(b"\x03").unwrap();
        let text = || std::fs::read_to_string(&shown).unwrap_or_default();
        wait_until("the key is answered", || text().matches("icechunkfs: ").count() > n || is_ended(&mut terminal));
    }
    let input = terminal.stdin.take();
    let status = terminal.wait().unwrap();
    drop(input);
    (std::fs::read_to_string(shown).unwrap(), status.success())
}

fn is_ended(child: &mut Child) -> bool {
    child.try_wait().unwrap().is_some()
}

fn wait_for(writable: &Writable, stage: &str) {
    let progress = writable.root().join(".icechunk/progress");
    wait_until(stage, || std::fs::read_to_string(&progress).unwrap().contains(stage));
}

fn messages(writable: &Writable) -> Vec<String> {
    Reference::open(writable.repository()).history().into_iter().map(|(_, message)| message).collect()
}

#[test]
fn the_second_key_cancels_a_commit_that_is_not_published() {
    if !needed(Command::new("script").arg("--version").output().is_ok(), "script(1) of util-linux") {
        return;
    }
    let writable = stalled("commit.manifests");
    let before = messages(&writable);
    let (shown, is_success) = pressed(&writable, "writing manifests", 2);
    assert!(shown.contains(".icechunk/commit") && shown.contains("again cancels"), "{shown}");
    assert!(!is_success && shown.contains("was canceled") && shown.contains("the changes stay"), "{shown}");
    assert_eq!(messages(&writable), before);
    // The same changes can be committed, and nothing of the ticket stays.
    run_on(writable.root(), &["commit", "-m", "again"]).success();
    assert_eq!(messages(&writable)[0], "again");
}

#[test]
fn a_commit_that_is_being_published_is_not_cancelled() {
    if !needed(Command::new("script").arg("--version").output().is_ok(), "script(1) of util-linux") {
        return;
    }
    let writable = stalled("commit.publish");
    let (shown, is_success) = pressed(&writable, "publishing", 2);
    assert!(is_success && shown.contains("cannot be canceled"), "{shown}");
    assert_eq!(messages(&writable)[0], "a group");
    // One key alone changes nothing.
    let writable = stalled("commit.manifests");
    let (shown, is_success) = pressed(&writable, "writing manifests", 1);
    assert!(is_success && shown.contains("again cancels"), "{shown}");
    assert_eq!(messages(&writable)[0], "a group");
}

#[test]
fn without_a_terminal_the_command_ends_and_says_where_the_outcome_will_be() {
    let writable = stalled("commit.manifests");
    let waiting = commit(&writable).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    wait_for(&writable, "writing manifests");
    signal(waiting.id().try_into().unwrap(), "-INT");
    let ended = waiting.wait_with_output().unwrap();
    let told = String::from_utf8(ended.stderr).unwrap();
    assert!(told.contains(".icechunk/commit") && !told.contains("again"), "{told}");
    assert!(!ended.status.success());
    wait_until("the commit", || messages(&writable)[0] == "a group");
    let outcome = writable.root().join(".icechunk/commit");
    wait_until("the outcome", || std::fs::read_to_string(&outcome).unwrap().contains("committed"));
}
