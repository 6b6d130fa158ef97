//! `commit --detach` and `run --detach`: snapshots that no branch leads to. The reference reads
//! them by their ids, and garbage collection removes them when they are old enough.

use icechunk::format::format_constants::SpecVersionBin;

use super::restore::empty;
use crate::common::writing::{GROUP, Reference, array};
use crate::common::{Mount, program, run, run_on};

#[test]
fn a_detached_snapshot_moves_no_branch_and_a_branch_can_be_made_of_it() {
    for version in [SpecVersionBin::V1, SpecVersionBin::V2] {
        let (_directory, place, reference) = empty(version);
        let document = array(&[140_000], &[70_000]);
        let chunk = vec![1; 70_000];
        let files: [(&str, &[u8]); 3] =
            [("zarr.json", GROUP.as_bytes()), ("a/zarr.json", document.as_bytes()), ("a/c/0", &chunk)];
        reference.commit(&files, "one");
        let before = (reference.history(), Reference::open(&place).keys());
        let mount = Mount::new(&place, &[]);
        std::fs::write(mount.path().join("a/c/1"), vec![2; 70_000]).unwrap();
        let detached = run_on(mount.path(), &["commit", "-m", "to look at", "--detach", "--json"]).json();
        assert_eq!(detached["detached"], true);
        let id = detached["snapshot"].as_str().unwrap();
        assert_eq!((Reference::open(&place).history(), Reference::open(&place).keys()), before);
        let status = run_on(mount.path(), &["status", "--json"]).json();
        assert_eq!((&status["clean"], &status["chunks_written"]), (&false.into(), &1.into()));
        // Later writes do not change the snapshot.
        let file = std::fs::OpenOptions::new().write(true).open(mount.path().join("a/c/1")).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[9; 70_000], 0).unwrap();
        drop(file);
        run_on(&place, &["branch", "create", "look", "--at", id]).success();
        let mut on_look = Reference::open(&place);
        assert_eq!(on_look.on("look").keys().get("a/c/1"), Some(&vec![2; 70_000]));
        assert_eq!(
            on_look.on("look").history()[..2].iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>(),
            ["to look at", "one"]
        );
        // The changes can still be committed.
        run_on(mount.path(), &["commit", "-m", "two"]).success();
        assert_eq!(Reference::open(&place).keys().get("a/c/1"), Some(&vec![9; 70_000]));
        run_on(&place, &["verify", "--chunks"]).success();
        for words in [&["--amend"][..], &["--on-conflict", "ours"]] {
            let refused = run_on(mount.path(), &[&["commit", "--detach"], words].concat());
            assert_eq!(refused.status.code(), Some(2));
        }
    }
}

#[test]
fn a_job_can_end_with_a_detached_snapshot_which_garbage_collection_removes() {
    let (directory, place, reference) = empty(SpecVersionBin::V2);
    reference.commit(&[("zarr.json", GROUP.as_bytes())], "one");
    let history = reference.history();
    let script = format!("mkdir g; printf '{GROUP}' > g/zarr.json");
    let mut job = std::process::Command::new(program());
    job.arg("run").arg(&place).args(["-m", "trial", "--detach", "--", "sh", "-ec", &script]);
    job.env("TMPDIR", directory.path()).env("XDG_STATE_HOME", directory.path().join("state"));
    let done = run(&mut job);
    assert!(done.status.success(), "{}", done.stderr);
    let id = done.stderr.split("stored snapshot ").nth(1).and_then(|rest| rest.split(',').next()).unwrap().to_owned();
    assert_eq!(Reference::open(&place).history(), history);
    let ops = run_on(&place, &["ops", "-n", "1", "--json"]).json();
    assert_eq!((&ops[0]["operation"], &ops[0]["snapshot"]), (&"new_detached_snapshot".into(), &id.as_str().into()));
    let listed = run_on(&place, &["ls", "--snapshot", &id]).text();
    assert!(listed.contains('g'), "{listed}");
    // `undo` passes it over: it moved no branch.
    assert!(run_on(&place, &["undo", "--dry-run"]).text().contains("\"one\""));
    run_on(&place, &["gc", "--older-than", "1h", "--yes"]).success();
    run_on(&place, &["ls", "--snapshot", &id]).success();
    std::thread::sleep(std::time::Duration::from_millis(1100));
    run_on(&place, &["gc", "--older-than", "1s", "--yes"]).success();
    run_on(&place, &["ls", "--snapshot", &id]).failure();
    assert_eq!(Reference::open(&place).history(), history);
}
