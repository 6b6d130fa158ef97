//! Requests that the snapshots below `.icechunk` cost.

use std::fs;
use std::time::Duration;

use crate::common::faulty::{Fault, Line};
use crate::common::moto::{commit, fill, icechunkfs, made, mount, s3};

#[test]
fn a_listing_of_tags_costs_one_request_and_entering_one_two() {
    let Some(server) = s3() else { return };
    let line = Line::to(server.port);
    let repo = made(line.port, "past");
    for n in 0..20 {
        icechunkfs(line.port, &["tag", &repo, "create", &format!("v{n}")]).success();
    }
    let writer = mount(line.port, &repo, &["--ephemeral"]);
    fill(&writer.path(), 7);
    commit(&writer).unwrap();
    let mount = mount(line.port, &repo, &["-o", "ro"]);
    let requests = |what: &dyn Fn()| {
        // The refs that were read before count as fresh no longer.
        std::thread::sleep(Duration::from_millis(1100));
        line.wait_until_quiet();
        line.decide(|_, _| Fault::Pass);
        what();
        line.wait_until_quiet();
        line.counts().0
    };
    let listed = requests(&|| assert_eq!(fs::read_dir(mount.control("at/tag")).unwrap().count(), 20));
    assert_eq!(listed, 1);
    let looked_up = requests(&|| assert!(fs::metadata(mount.control("at/tag/v3")).unwrap().is_dir()));
    assert_eq!(looked_up, 1);
    let document = || fs::read(mount.control("at/tag/v7/a/zarr.json")).unwrap();
    assert_eq!(requests(&|| drop(document())), 2, "the refs, the snapshot");
    assert_eq!(document(), fs::read(mount.path().join("a/zarr.json")).unwrap());
    assert_ne!(
        fs::read(mount.control("at/tag/v7/a/c/0")).unwrap(),
        fs::read(mount.path().join("a/c/0")).unwrap(),
        "the tag is older than the branch"
    );
}
