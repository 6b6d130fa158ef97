//! Mounts whose branch's history was rewritten or expired.

use std::path::Path;

use super::command;
use crate::common::lab::{Lab, expire_before, set};
use crate::common::run_on;
use crate::common::writing::{Reference, Writable, array, put};

/// The reference commits three times to the array at `/x`, and all but the newest commit expires.
fn others_commit_and_expire(runtime: &tokio::runtime::Runtime, place: &Path, first: u32) {
    runtime.block_on(async {
        for n in first..first + 3 {
            set(place, &[(&format!("x/c/{n}"), b"theirs")], &format!("theirs {n}")).await;
        }
        expire_before(place, 0).await;
    });
    assert_eq!(Reference::open(place).history().len(), 2);
}

/// The base of a mount has expired, and so have all later commits except the newest, which has
/// their logs.
#[test]
fn uncommitted_work_continues_over_expired_history() {
    let mount = Writable::new(&[]);
    let root = mount.root();
    let place = mount.repository().to_owned();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    put(&root.join("x/zarr.json"), array(&[40], &[1])).unwrap();
    put(&root.join("x/c/0"), b"o").unwrap();
    run_on(&root, &["commit"]).success();
    // Beside the concurrent writes.
    put(&root.join("x/c/20"), b"a").unwrap();
    others_commit_and_expire(&runtime, &place, 1);
    run_on(&root, &["commit"]).success();
    let keys = Reference::open(&place).keys();
    assert_eq!((keys["x/c/0"].as_slice(), keys["x/c/2"].as_slice()), (b"o".as_slice(), b"theirs".as_slice()));
    assert_eq!(keys["x/c/20"], b"a");
    // The conflict is found by the log of a pruned commit.
    put(&root.join("x/c/5"), b"b").unwrap();
    others_commit_and_expire(&runtime, &place, 4);
    let refused = run_on(&root, &["commit"]).failure();
    assert!(refused.contains("/x"), "{refused}");
    assert!(mount.read_control("conflicts").contains("[5]"), "{}", mount.read_control("conflicts"));
    assert_eq!(Reference::open(&place).keys()["x/c/5"], b"theirs");
    run_on(&root, &["commit", "--on-conflict", "ours"]).success();
    assert_eq!(Reference::open(&place).keys()["x/c/5"], b"b");
    // Without the log the changes are unknown: then nothing is committed.
    put(&root.join("x/c/30"), b"c").unwrap();
    others_commit_and_expire(&runtime, &place, 10);
    let lab = Lab::open(&place);
    let tip = runtime.block_on(async {
        let repository = lab.repository().await;
        let tip = repository.branch_tip("main").await.unwrap().unwrap();
        repository.history(tip, 1).await.unwrap().remove(0)
    });
    let last = tip.pruned_ancestor_tx_logs.last().unwrap();
    std::fs::remove_file(place.join("transactions").join(last.to_string())).unwrap();
    let refused = run_on(&root, &["commit"]).failure();
    assert!(refused.contains("missing") && refused.contains(&last.to_string()), "{refused}");
    assert!(!Reference::open(&place).keys().contains_key("x/c/30"));
    assert_eq!(std::fs::read(root.join("x/c/30")).unwrap(), b"c", "the work is kept");
}

/// The command that replaces the base of a mount reports it, and so does the mount.
#[test]
fn replacing_the_base_of_a_mount_is_reported() {
    let mount = Writable::new(&[]);
    let root = mount.root();
    let place = mount.repository();
    put(&root.join("x/zarr.json"), array(&[4], &[1])).unwrap();
    run_on(&root, &["commit"]).success();
    put(&root.join("x/c/0"), b"o").unwrap();
    command("amend", place, ["-m", "other words", "--yes"]).success();
    let refused = run_on(&root, &["commit"]).failure();
    assert!(refused.contains("reset or amended"), "{refused}");
    assert_eq!(std::fs::read(root.join("x/c/0")).unwrap(), b"o", "the work is kept");
    // The operations name the replaced commit. Reset to it, the mount continues.
    let previous = command("ops", place, ["--json"]).json()[0]["previous"].as_str().unwrap().to_owned();
    command("branch", place, ["reset", "main", "--to", &previous, "--yes"]).success();
    run_on(&root, &["commit"]).success();
    assert_eq!(Reference::open(place).keys()["x/c/0"], b"o");
}
