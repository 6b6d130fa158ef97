//! The daemon is killed and the branch mounted again: everything that was not committed is there as
//! it was, and a commit afterwards has it.

use crate::lab::Lab;
use crate::lab::mount::ARRAY;
use crate::lab::programs::{CHUNKS, Programs, committed};
use crate::overlay::namespace::RenameMode;

/// Changes a mount, and kills its daemon twice. Checks that it shows the same, and that a commit
/// has what of that is `tracked`.
async fn survives(change: impl AsyncFn(&Programs), is_tracked: impl Fn(&str) -> bool) {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let snapshot = programs.tree().await;
    change(&programs).await;
    let before = programs.tree().await;
    assert_ne!(before, snapshot, "the test changes something");
    let status = programs.session.status().await.unwrap().to_text();
    let mut programs = programs;
    for time in ["first", "second"] {
        programs = programs.restart(&lab).await;
        assert_eq!(programs.tree().await, before, "after the {time} restart");
        assert_eq!(programs.session.status().await.unwrap().to_text(), status, "after the {time} restart");
    }
    programs.commit().await;
    assert_eq!(programs.tree().await, before, "after a commit");
    let tracked = before.into_iter().filter(|(path, _)| is_tracked(path)).collect();
    assert_eq!(committed(&lab, "fresh").await, tracked, "in another mount");
}

fn all(_: &str) -> bool {
    true
}

#[tokio::test]
async fn a_new_array_survives() {
    let change = async |programs: &Programs| {
        programs.make_array("n").await;
        programs.put("n/c/3", "three").await;
    };
    survives(change, all).await;
}

#[tokio::test]
async fn a_write_in_the_middle_survives() {
    survives(async |programs: &Programs| programs.patch("a/c/0", 3, "XY").await, all).await;
}

#[tokio::test]
async fn a_truncation_survives() {
    let change = async |programs: &Programs| {
        programs.truncate("a/c/0", 3).await;
        programs.truncate("a/c/1", 30).await;
    };
    survives(change, all).await;
}

#[tokio::test]
async fn a_deletion_and_a_file_in_its_place_survive() {
    let change = async |programs: &Programs| {
        programs.unlink("a/c/0").await.unwrap();
        programs.unlink("a/c/1").await.unwrap();
        programs.put("a/c/1", "again").await;
    };
    survives(change, all).await;
}

#[tokio::test]
async fn a_removed_array_and_another_one_in_its_place_survive() {
    let change = async |programs: &Programs| {
        programs.remove_all("m").await;
        programs.remove_all("a").await;
        programs.make_array("a").await;
        programs.put("a/c/4", "four").await;
    };
    survives(change, all).await;
}

#[tokio::test]
async fn a_chain_of_renames_survives() {
    let change = async |programs: &Programs| {
        for (from, to) in [("a/c/0", "x"), ("a/c/1", "a/c/0"), ("x", "a/c/1"), ("a/c/7", "m/c/7"), ("m/c/0", "a/c/7")] {
            programs.mv(from, to).await;
        }
    };
    survives(change, all).await;
}

#[tokio::test]
async fn a_move_of_a_changed_array_into_a_group_survives() {
    let change = async |programs: &Programs| {
        programs.patch("a/c/0", 0, "Z").await;
        programs.make_directory("g").await.unwrap();
        programs.put("g/zarr.json", r#"{"zarr_format":3,"node_type":"group"}"#).await;
        programs.mv("a", "g/b").await;
        programs.patch("g/b/c/1", 0, "O").await;
        programs.unlink("g/b/c/7").await.unwrap();
    };
    survives(change, all).await;
}

#[tokio::test]
async fn an_exchange_of_arrays_and_of_chunks_survives() {
    let change = async |programs: &Programs| {
        programs.rename("a/c/0", "m/c/0", RenameMode::Exchange).await.unwrap();
        programs.rename("a", "m", RenameMode::Exchange).await.unwrap();
        programs.rename("m/c/1", "m/c/7", RenameMode::Exchange).await.unwrap();
    };
    survives(change, all).await;
}

#[tokio::test]
async fn a_file_that_was_replaced_again_and_again_survives() {
    let change = async |programs: &Programs| {
        for text in ["first", "second", "third"] {
            programs.put("a/new", text).await;
            programs.mv("a/new", "a/c/0").await;
            programs.patch("a/c/0", 0, "X").await;
        }
    };
    survives(change, all).await;
}

#[tokio::test]
async fn hard_links_survive() {
    let change = async |programs: &Programs| {
        programs.link("a/c/0", "m/c/1").await.unwrap();
        programs.link("m/c/1", "m/c/2").await.unwrap();
        programs.patch("m/c/2", 0, "Z").await;
        programs.unlink("a/c/0").await.unwrap();
    };
    survives(change, all).await;
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    programs.link("a/c/0", "m/c/1").await.unwrap();
    let programs = programs.restart(&lab).await;
    programs.patch("a/c/0", 0, "Z").await;
    assert_eq!(programs.get("m/c/1").await, "Zero zero", "they are one file after a restart");
    assert_eq!(programs.stat("m/c/1").await.unwrap().links, 2);
}

#[tokio::test]
async fn untracked_files_links_and_empty_directories_survive() {
    let untracked = ["notes", "a/notes", "link", "fifo", "empty/"];
    let change = async |programs: &Programs| {
        programs.put("notes", "one").await;
        programs.put("a/notes", "two").await;
        programs.make_symlink("link", "a/c/0").await.unwrap();
        programs.make("fifo", libc::S_IFIFO | 0o600, None, false).await.unwrap();
        programs.make_directory("empty").await.unwrap();
        programs.put("a/c/2", "two").await;
    };
    survives(change, |path| !untracked.contains(&path)).await;
}

#[tokio::test]
async fn a_copy_by_reference_survives() {
    let change = async |programs: &Programs| {
        let source = programs.number("a/c/0").await.unwrap();
        for path in ["a/c/2", "m/c/2"] {
            let target = programs.create(path).await.unwrap();
            programs.working().contents().copy((source, 0), (target.number, 0), 9).await.unwrap();
            programs.close(target).await;
        }
        programs.patch("m/c/2", 0, "COPY").await;
        programs.unlink("a/c/0").await.unwrap();
    };
    survives(change, all).await;
}

#[tokio::test]
async fn a_changed_document_survives() {
    let changed = ARRAY.replace("[8]", "[9]");
    let change = async |programs: &Programs| {
        programs.put("a/zarr.json", &changed).await;
        programs.put("a/c/8", "eight").await;
    };
    survives(change, all).await;
}

#[tokio::test]
async fn what_is_left_of_a_discard_survives() {
    let change = async |programs: &Programs| {
        programs.patch("a/c/0", 0, "Z").await;
        programs.patch("a/c/1", 0, "O").await;
        programs.mv("m", "n").await;
        programs.link("a/c/0", "n/c/1").await.unwrap();
        programs.session.discard("/a/c/0").await.unwrap();
        programs.session.discard("/n/c/0").await.unwrap();
    };
    survives(change, all).await;
}

#[tokio::test]
async fn what_is_written_between_restarts_adds_up() {
    let lab = Lab::new().await;
    let mut programs = Programs::with_arrays(&lab).await;
    for (at, text) in ["A", "B", "C", "D"].into_iter().enumerate() {
        programs.patch("a/c/0", at as u64, text).await;
        programs.put(&format!("a/c/{}", at + 2), text).await;
        programs = programs.restart(&lab).await;
    }
    assert_eq!(programs.get("a/c/0").await, "ABCD zero");
    assert_eq!(programs.list("a/c").await, ["0", "1", "2", "3", "4", "5", "7"]);
    for (path, text) in &CHUNKS[1..] {
        assert_eq!(programs.get(path).await, *text);
    }
    programs.commit().await;
    assert_eq!(committed(&lab, "fresh").await, programs.tree().await);
}
