//! Moves of a tree in which a directory is where the base has a file.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::lab::Lab;
use crate::lab::programs::Programs;

/// Nobody else has changed what was removed or moved away here.
#[tokio::test]
async fn a_directory_in_the_place_of_a_file_that_is_gone_does_not_keep_a_refresh_from_anything() {
    for moves in [false, true] {
        let lab = Lab::new().await;
        let programs = Programs::with_arrays(&lab).await;
        let other = Programs::new(&lab, "second").await;
        let bytes = programs.get("a/c/0").await;
        if moves {
            programs.mv("a", "b").await;
            programs.make_directory("a").await.unwrap();
            programs.make_directory("a/c").await.unwrap();
        } else {
            programs.unlink("a/c/0").await.unwrap();
        }
        programs.make_directory("a/c/0").await.unwrap();
        programs.put("a/c/0/x", "untracked").await;
        other.put("m/c/1", "of others").await;
        other.commit().await;

        programs.session.refresh().await.unwrap();
        assert_eq!(programs.get("m/c/1").await, "of others", "moves: {moves}");
        assert_eq!(programs.get("a/c/0/x").await, "untracked", "moves: {moves}");
        assert_eq!(programs.list("a/c/0").await, ["x"], "moves: {moves}");
        if moves {
            assert_eq!(programs.get("b/c/0").await, bytes, "the array has moved with its chunks");
            assert_eq!(programs.list("a/c").await, ["0"], "nothing of it is left");
        } else {
            assert_eq!(programs.list("a/c").await, ["0", "1", "7"]);
        }
        let report = programs.session.status().await.unwrap();
        assert!(report.violations.is_empty(), "{:?}", report.violations);
    }
}

/// It does not hide the file that others have put there since.
#[tokio::test]
async fn a_directory_in_the_place_of_a_file_that_others_changed_keeps_a_refresh_back() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let other = Programs::new(&lab, "second").await;
    programs.make_directory("a/c/2").await.unwrap();
    programs.put("a/c/2/x", "untracked").await;
    other.put("a/c/2", "of others").await;
    other.commit().await;
    let refused = programs.session.refresh().await.unwrap_err();
    assert!(refused.to_string().contains("/a/c/2"), "{refused}");
}
