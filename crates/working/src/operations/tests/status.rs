//! Status and diff say what was done, whichever way it was done.

use crate::lab::Lab;
use crate::lab::mount::ARRAY;
use crate::lab::programs::{Programs, WRITE};
use crate::operations::diff::NodeDiff;
use crate::overlay::set_attributes::SetAttrs;

async fn nodes(programs: &Programs) -> Vec<NodeDiff> {
    programs.session.diff().await.unwrap().nodes
}

#[tokio::test]
async fn written_and_deleted_chunks_are_counted_and_named() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    programs.patch("a/c/0", 0, "Z").await;
    programs.put("a/c/2", "two").await;
    programs.put("a/c/3", "three").await;
    programs.unlink("a/c/3").await.unwrap();
    programs.unlink("a/c/7").await.unwrap();
    let status = programs.session.status().await.unwrap();
    assert!(!status.clean);
    assert_eq!((status.chunks_written, status.chunks_deleted, status.arrays.len()), (2, 1, 1), "{status:?}");
    assert_eq!(status.bytes, 9 + 3, "bytes of the chunks that a commit would store");
    let nodes = nodes(&programs).await;
    assert_eq!((nodes.len(), &*nodes[0].path, nodes[0].what), (1, "/a", "chunks"));
    let mut written = nodes[0].written.clone();
    written.sort();
    assert_eq!((written, nodes[0].deleted.clone()), (vec![vec![0], vec![2]], vec![vec![7]]));
    let done = programs.commit().await;
    assert_eq!(done.chunks, 3, "the commit takes as many");
    assert!(programs.session.status().await.unwrap().clean && self::nodes(&programs).await.is_empty());
}

#[tokio::test]
async fn new_changed_moved_and_deleted_nodes_are_told_apart() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    programs.make_array("n").await;
    programs.commit().await;
    programs.make_array("new").await;
    programs.put("a/zarr.json", &ARRAY.replace("[8]", "[9]")).await;
    programs.mv("m", "moved").await;
    programs.remove_all("n").await;
    let status = programs.session.status().await.unwrap();
    assert_eq!(
        (status.added, status.changed, status.deleted),
        (vec!["/new".to_owned()], vec!["/a".to_owned()], vec!["/n".to_owned()])
    );
    let moved: Vec<(&str, &str)> = status.moved.iter().map(|one| (&*one.from, &*one.to)).collect();
    assert_eq!(moved, [("/m", "/moved")]);
    assert_eq!((status.chunks_written, status.chunks_deleted), (0, 0), "a move touches no chunk");
    let nodes = nodes(&programs).await;
    let found: Vec<(&str, &str)> = nodes.iter().map(|node| (&*node.path, node.what)).collect();
    assert_eq!(found, [("/a", "changed"), ("/moved", "moved"), ("/n", "deleted"), ("/new", "added")]);
    let changed = &nodes[0];
    assert_eq!(changed.before.as_ref().unwrap()["shape"][0], 8);
    assert_eq!(changed.after.as_ref().unwrap()["shape"][0], 9);
    assert_eq!(nodes[1].from.as_deref(), Some("/m"));
}

#[tokio::test]
async fn what_was_undone_is_no_change() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    programs.mv("a/c/0", "x").await;
    programs.mv("x", "a/c/0").await;
    programs.make_array("n").await;
    programs.remove_all("n").await;
    programs.mv("a", "b").await;
    programs.mv("b", "a").await;
    programs.link("a/c/1", "link").await.unwrap();
    programs.unlink("link").await.unwrap();
    programs.set("a/c/0", SetAttrs { mode: Some(0o600), ..SetAttrs::default() }).await;
    let opened = programs.open("a/c/7", WRITE).await.unwrap();
    programs.close(opened).await;
    let status = programs.session.status().await.unwrap();
    assert!(status.clean && status.untracked.is_empty(), "{status:?}");
    assert!(nodes(&programs).await.is_empty());
    assert!(programs.commit().await.snapshot.is_none());
}

#[tokio::test]
async fn open_untracked_and_wrong_files_are_listed() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    programs.put("notes", "untracked").await;
    programs.put("a/c/9", "outside").await;
    programs.put("a/c/2", "").await;
    let opened = programs.open("a/c/1", WRITE).await.unwrap();
    let status = programs.session.status().await.unwrap();
    assert_eq!(status.open_for_writing, ["/a/c/1"]);
    assert_eq!(status.untracked.iter().map(|file| &*file.path).collect::<Vec<_>>(), ["/notes"]);
    let mut violations: Vec<&str> = status.violations.iter().map(|violation| &*violation.path).collect();
    violations.sort_unstable();
    assert_eq!(violations, ["/a/c/2", "/a/c/9"]);
    assert!(!status.clean);
    programs.close(opened).await;
}

#[tokio::test]
async fn the_branch_is_reported_as_it_is_beside_the_own_changes() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let other = Programs::new(&lab, "second").await;
    programs.put("a/c/2", "two").await;
    other.put("m/c/1", "one").await;
    let tip = other.commit().await.snapshot;
    let status = programs.session.status().await.unwrap();
    assert!(status.branch_moved && !status.branch_reset && !status.branch_gone, "{status:?}");
    assert_eq!((status.tip, status.chunks_written), (tip, 1), "the other commit's chunk is not counted");
    programs.session.refresh().await.unwrap();
    let status = programs.session.status().await.unwrap();
    assert!(!status.branch_moved, "{status:?}");
    assert_eq!((Some(status.base), status.chunks_written), (tip, 1));
}
