//! Commits by the engine, without a mount, as the reference implementation sees them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "common/fsck.rs"]
mod fsck;
#[path = "common/lab.rs"]
mod lab;

use icechunk::RepositoryConfig;
use icechunk::format::format_constants::SpecVersionBin;
use icechunkfs::format::envelope::SpecVersion;
use lab::{Lab, Model, create, history, reference_keys};

#[tokio::test]
async fn a_commit_is_what_the_reference_reads() {
    let place = tempfile::tempdir().unwrap();
    create(place.path(), SpecVersionBin::V2, RepositoryConfig::default()).await;
    let lab = Lab::open(place.path());
    let mut model = Model::default();
    model.group("/");
    model.group("/a");
    model.array("/a/b", &[4, 5]);
    model.array("/a-b", &[]);
    model.chunk("/a-b", &[], "scalar");
    for i in 0..4 {
        for j in 0..5 {
            let size = [1, 512, 513, 5000, 300_000][j as usize];
            model.chunk("/a/b", &[i, j], vec![(i * 16 + j) as u8; size]);
        }
    }
    lab.commit_model(&Model::default(), &model).await;
    assert_eq!(reference_keys(place.path()).await, model.keys());
    assert_eq!(fsck::check(place.path(), SpecVersion::V2), 1);
    // 4 large ones, and one object for 8 small ones.
    assert_eq!(std::fs::read_dir(place.path().join("chunks")).unwrap().count(), 5);

    let before = model.clone();
    model.chunk("/a/b", &[1, 1], "new");
    model.get("/a/b").chunks.remove(&vec![3, 4]);
    model.rename("/a", "/moved");
    model.delete("/a-b");
    lab.commit_model(&before, &model).await;
    assert_eq!(reference_keys(place.path()).await, model.keys());
    assert_eq!(fsck::check(place.path(), SpecVersion::V2), 2);
    assert_eq!(history(place.path()).await, ["a commit", "a commit", "Repository initialized"]);
}
