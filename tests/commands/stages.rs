//! Operations tell what took how long.

use crate::common::writing::{GROUP, Writable, array, put};
use crate::common::{Output, icechunkfs, run_on};

/// Returns the stages that a command with `-v` has written, in order. Each has its seconds.
fn stages(output: &Output) -> Vec<String> {
    let stage = |line: &str| {
        let (stage, seconds) = line.strip_prefix("DEBUG ")?.rsplit_once(": ")?;
        seconds.strip_suffix(" s")?.parse::<f64>().ok().map(|_| stage.to_owned())
    };
    output.stderr.lines().filter_map(stage).collect()
}

fn has_in_order(stages: &[String], wanted: &[&str]) {
    let mut rest = stages.iter();
    assert!(wanted.iter().all(|wanted| rest.any(|stage| stage == wanted)), "{wanted:?} in {stages:?}");
}

#[test]
fn commands_tell_the_seconds_of_each_stage() {
    let mount = Writable::new(&[]);
    put(&mount.root().join("zarr.json"), GROUP).unwrap();
    put(&mount.root().join("a/zarr.json"), array(&[2], &[1])).unwrap();
    put(&mount.root().join("a/c/0"), "x").unwrap();
    let committed = run_on(mount.root(), &["commit", "-v", "-m", "first"]);
    let of_commit =
        ["finding changes", "storing chunks", "writing manifests", "publishing", "showing the new snapshot"];
    has_in_order(&stages(&committed), &of_commit);
    let progress = mount.control_json("progress");
    assert_eq!(progress["stage"], "done");
    let told: Vec<String> =
        progress["stages"].as_array().unwrap().iter().map(|one| one["stage"].as_str().unwrap().to_owned()).collect();
    has_in_order(&told, &of_commit);
    assert!(progress["stages"].as_array().unwrap().iter().all(|one| one["seconds"].as_f64().is_some()));
    mount.unmount();
    let place = tempfile::tempdir().unwrap();
    let repository = mount.repository().as_os_str();
    let copy = place.path().join("copy");
    let cloned = icechunkfs(["clone".as_ref(), "-v".as_ref(), repository, copy.as_os_str()]);
    has_in_order(&stages(&cloned), &["reading the history", "copying objects", "writing refs"]);
    let pushed = icechunkfs(["push".as_ref(), "-v".as_ref(), repository, copy.as_os_str()]);
    has_in_order(&stages(&pushed), &["comparing the histories", "copying objects", "moving refs"]);
    let collected = run_on(repository, &["gc", "-v", "--older-than", "1d", "--dry-run"]);
    has_in_order(&stages(&collected), &["listing objects", "finding reachable objects"]);
    run_on(repository, &["branch", "create", "side"]).success();
    let merged = run_on(repository, &["merge", "-v", "side", "--into", "main", "--dry-run"]);
    has_in_order(&stages(&merged), &["finding the common ancestor", "comparing both sides"]);
    assert!(stages(&run_on(repository, &["gc", "--older-than", "1d", "--dry-run"])).is_empty());
}
