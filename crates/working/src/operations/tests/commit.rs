//! Commits: what they take, what they leave, and what they refuse.

use crate::lab::Lab;
use crate::lab::mount::ARRAY;
use crate::lab::programs::{Programs, committed, refused};
use crate::operations::CommitOptions;
use crate::overlay::namespace::RenameMode;
use icechunkfs_base::error::ErrorKind;
use icechunkfs_repo::commit::engine::OnConflict;

fn amend() -> CommitOptions {
    CommitOptions { amend: true, ..CommitOptions::default() }
}

fn resolving(on_conflict: OnConflict) -> CommitOptions {
    CommitOptions { on_conflict: Some(on_conflict), ..CommitOptions::default() }
}

/// Returns the number of commits that led to the base.
async fn commits(programs: &Programs) -> usize {
    let log = programs.session.log().await.unwrap();
    log.lines().filter(|line| !line.trim().is_empty()).count()
}

#[tokio::test]
async fn a_commit_without_changes_adds_no_commit() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let before = programs.working().upper().base().id();
    programs.put("notes", "untracked").await;
    programs.make_directory("empty").await.unwrap();
    programs.put("a/c/3", "three").await;
    programs.unlink("a/c/3").await.unwrap();
    let committed = programs.commit().await;
    assert_eq!((committed.snapshot, committed.untracked), (None, vec!["/notes".to_owned()]));
    assert_eq!(programs.working().upper().base().id(), before);
    assert_eq!(programs.get("notes").await, "untracked");
    assert!(programs.list("empty").await.is_empty(), "empty directories stay");
}

#[tokio::test]
async fn the_mount_shows_the_same_before_and_after_a_commit_and_so_do_others() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    programs.patch("a/c/0", 0, "Z").await;
    programs.unlink("a/c/1").await.unwrap();
    programs.put("a/c/2", "two").await;
    programs.make_array("n").await;
    programs.put("n/c/5", "five").await;
    programs.mv("m", "moved").await;
    let before = programs.tree().await;
    let done = programs.commit().await;
    assert!(done.snapshot.is_some() && done.untracked.is_empty(), "{done}");
    assert_eq!(programs.tree().await, before, "in this mount");
    assert_eq!(committed(&lab, "second").await, before, "in another one");
    assert!(programs.session.status().await.unwrap().clean, "nothing is left to commit");
    programs.forget_all();
    programs.check_data_files(0, "the scratch directory holds untracked files only").await;
    let programs = programs.restart(&lab).await;
    assert_eq!(programs.tree().await, before, "after a restart");
}

#[tokio::test]
async fn what_is_written_after_a_commit_is_in_the_next_one() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    for (at, text) in [(0, "1"), (1, "2"), (2, "3")] {
        programs.patch("a/c/0", at, text).await;
        programs.put("a/c/2", text).await;
        let status = programs.session.status().await.unwrap();
        assert_eq!(status.chunks_written, 2, "{text}: {status:?}");
        assert!(programs.commit().await.snapshot.is_some());
    }
    let found = committed(&lab, "second").await;
    assert_eq!((&*found["a/c/0"], &*found["a/c/2"]), ("123o zero", "3"));
}

#[tokio::test]
async fn two_names_of_a_file_become_two_files() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    programs.link("a/c/0", "m/c/3").await.unwrap();
    programs.link("a/c/0", "notes").await.unwrap();
    programs.patch("notes", 0, "Z").await;
    programs.commit().await;
    for path in ["a/c/0", "m/c/3", "notes"] {
        assert_eq!(programs.get(path).await, "Zero zero", "{path} has the bytes of the file");
    }
    programs.patch("a/c/0", 1, "A").await;
    programs.patch("m/c/3", 1, "M").await;
    programs.patch("notes", 1, "N").await;
    let expected = [("a/c/0", "ZAro zero"), ("m/c/3", "ZMro zero"), ("notes", "ZNro zero")];
    for (path, text) in expected {
        assert_eq!(programs.get(path).await, text, "{path} is a file of its own");
    }
    let programs = programs.restart(&lab).await;
    programs.commit().await;
    for (path, text) in expected {
        assert_eq!(programs.get(path).await, text, "{path} after a restart and a commit");
    }
}

#[tokio::test]
async fn chunks_that_were_moved_copied_over_and_exchanged_are_committed_by_their_names() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    programs.mv("a/c/0", "m/c/0").await;
    programs.rename("a/c/1", "a/c/7", RenameMode::Exchange).await.unwrap();
    programs.mv("a/c/1", "a/c/3").await;
    programs.put("a/c/0", "new").await;
    let before = programs.tree().await;
    let expected = [("m/c/0", "zero zero"), ("a/c/7", "one"), ("a/c/3", "seven"), ("a/c/0", "new")];
    for (path, text) in expected {
        assert_eq!(before[path], text, "{path}");
    }
    programs.commit().await;
    assert_eq!(programs.tree().await, before, "in this mount");
    assert_eq!(committed(&lab, "second").await, before, "in another one");
}

#[tokio::test]
async fn an_array_that_was_made_again_has_no_chunk_of_the_old_one() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    programs.remove_all("a").await;
    programs.make_array("a").await;
    programs.put("a/c/4", "four").await;
    let before = programs.tree().await;
    let programs = programs.restart(&lab).await;
    programs.commit().await;
    assert_eq!(programs.tree().await, before, "in this mount");
    assert_eq!(committed(&lab, "second").await, before, "in another one");
    assert_eq!(programs.list("a/c").await, ["4"]);
}

#[tokio::test]
async fn untracked_files_stay_through_commits_and_restarts() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    programs.put("a/notes", "one").await;
    programs.put("a/c/x.partial", "two").await;
    programs.make_symlink("a/link", "c/0").await.unwrap();
    programs.mv("a/c/0", "a/c/old").await;
    let before = programs.tree().await;
    let done = programs.commit().await;
    assert_eq!(done.untracked, ["/a/c/old", "/a/c/x.partial", "/a/link", "/a/notes"]);
    assert_eq!(programs.tree().await, before, "after a commit");
    let programs = programs.restart(&lab).await;
    assert_eq!(programs.tree().await, before, "after a restart");
    assert_eq!(programs.get("a/c/old").await, "zero zero", "a chunk that was moved away has its bytes");
    let fresh = Programs::new(&lab, "second").await;
    assert_eq!(fresh.list("a/c").await, ["1", "7"], "no commit takes them");
}

#[tokio::test]
async fn all_violations_refuse_a_commit_and_nothing_is_lost() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    programs.put("a/c/8", "outside").await;
    programs.put("a/c/2", "").await;
    programs.put("m/zarr.json", "{").await;
    programs.put("a/c/3", "three").await;
    let before = programs.tree().await;
    let base = programs.working().upper().base().id();
    let error = programs.session.commit(CommitOptions::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    for path in ["/a/c/8", "/a/c/2", "/m/zarr.json"] {
        assert!(error.to_string().contains(path), "all are listed at once: {error}");
    }
    assert_eq!(programs.tree().await, before);
    assert_eq!(programs.working().upper().base().id(), base);
    programs.unlink("a/c/8").await.unwrap();
    programs.put("a/c/2", "two").await;
    programs.put("m/zarr.json", ARRAY).await;
    assert!(programs.commit().await.snapshot.is_some(), "it can be corrected");
}

#[tokio::test]
async fn a_strict_commit_is_refused_where_another_one_warns() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    programs.make_directory("g").await.unwrap();
    programs.make_array("g/b").await;
    let base = programs.working().upper().base().id();
    let strict = CommitOptions { strict: true, ..CommitOptions::default() };
    let error = programs.session.commit(strict).await.unwrap_err();
    assert!(error.to_string().contains("/g/b"), "{error}");
    assert_eq!(programs.working().upper().base().id(), base, "nothing was committed");
    let done = programs.commit().await;
    assert!(done.ungrouped.contains(&"/g/b".to_owned()), "{done}");
    assert!(done.snapshot.is_some());
}

#[tokio::test]
async fn a_chunk_with_the_bytes_that_it_had_is_left_out_of_a_commit() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let bytes = programs.get("a/c/0").await;
    let write = async || {
        programs.put("new", &bytes).await;
        programs.mv("new", "a/c/0").await;
    };
    write().await;
    let count = commits(&programs).await;
    let done = programs.commit().await;
    assert_eq!((done.snapshot, done.unchanged), (None, 1), "{done}");
    assert_eq!(commits(&programs).await, count, "nothing was left to commit");
    assert!(programs.session.status().await.unwrap().clean, "and nothing waits any more");
    write().await;
    programs.put("a/c/1", "other").await;
    let done = programs.commit().await;
    assert_eq!((done.chunks, done.unchanged), (1, 1), "{done}");
    write().await;
    let keep = CommitOptions { keep_unchanged: true, ..CommitOptions::default() };
    let done = programs.session.commit(keep).await.unwrap();
    assert_eq!((done.chunks, done.unchanged), (1, 0), "{done}");
    assert_eq!(programs.get("a/c/0").await, bytes);
}

#[tokio::test]
async fn an_amend_replaces_the_newest_commit_by_both_changes() {
    let lab = Lab::new().await;
    let [programs, other] = Programs::two(&lab).await;
    programs.put("a/c/2", "two").await;
    programs.commit().await;
    let count = commits(&programs).await;
    programs.put("a/c/3", "three").await;
    programs.unlink("a/c/0").await.unwrap();
    let before = programs.tree().await;
    assert!(programs.session.commit(amend()).await.unwrap().snapshot.is_some());
    assert_eq!(commits(&programs).await, count, "no commit was added");
    assert_eq!(programs.tree().await, before, "with both changes");
    assert_eq!(committed(&lab, "third").await, before);
    other.put("m/c/1", "one").await;
    other.commit().await;
    programs.put("a/c/4", "four").await;
    let error = programs.session.commit(amend()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Stale, "the newest commit is another one: {error}");
    assert_eq!(programs.get("a/c/4").await, "four", "the change stays");
    programs.commit().await;
    assert_eq!(programs.get("m/c/1").await, "one");
}

#[tokio::test]
async fn the_first_commit_of_a_repository_is_not_amended() {
    let lab = Lab::without_commits().await;
    let programs = Programs::new(&lab, "first").await;
    programs.make_array("a").await;
    assert_eq!(refused(programs.session.commit(amend()).await), ErrorKind::InvalidInput);
    assert_eq!(programs.get("a/zarr.json").await, ARRAY, "the change stays");
    assert!(programs.commit().await.snapshot.is_some(), "it can be committed");
}

#[tokio::test]
async fn disjoint_changes_of_two_mounts_are_both_committed() {
    let lab = Lab::new().await;
    let [programs, other] = Programs::two(&lab).await;
    programs.patch("a/c/0", 0, "Z").await;
    programs.put("notes", "untracked").await;
    other.patch("a/c/1", 0, "O").await;
    other.unlink("a/c/7").await.unwrap();
    other.make_array("b").await;
    other.commit().await;
    let done = programs.commit().await;
    assert_eq!(done.rebased_over.len(), 1, "{done}");
    let found = committed(&lab, "third").await;
    assert_eq!((&*found["a/c/0"], &*found["a/c/1"]), ("Zero zero", "One"));
    assert!(!found.contains_key("a/c/7") && found.contains_key("b/zarr.json"));
    let mut shown = programs.tree().await;
    assert_eq!(shown.remove("notes").as_deref(), Some("untracked"));
    assert_eq!(shown, found, "the mount shows the merge");
}

#[tokio::test]
async fn a_conflict_loses_nothing_on_either_side() {
    let lab = Lab::new().await;
    let [programs, other] = Programs::two(&lab).await;
    programs.put("a/c/0", "mine").await;
    programs.put("a/c/2", "mine too").await;
    other.put("a/c/0", "theirs").await;
    other.commit().await;
    let before = programs.tree().await;
    for _ in 0..2 {
        assert_eq!(refused(programs.session.commit(CommitOptions::default()).await), ErrorKind::Stale);
        assert_eq!(refused(programs.session.refresh().await), ErrorKind::Stale);
    }
    let text = programs.session.conflicts_text();
    assert!(text.contains("/a") && text.contains('0'), "the conflict is named: {text}");
    assert_eq!(programs.tree().await, before, "the changes stay");
    assert_eq!(committed(&lab, "third").await["a/c/0"], "theirs", "nothing was committed");
    let programs = programs.restart(&lab).await;
    assert_eq!(programs.tree().await, before, "after a restart");
    programs.session.discard("/a/c/0").await.unwrap();
    programs.commit().await;
    assert_eq!((programs.get("a/c/0").await, programs.get("a/c/2").await), ("theirs".into(), "mine too".into()));
    assert_eq!(programs.session.conflicts_text(), "no conflicts\n");
}

#[tokio::test]
async fn conflicts_of_chunks_are_resolved_as_the_user_says() {
    for (how, expected) in [(OnConflict::Ours, "mine"), (OnConflict::Theirs, "theirs")] {
        let lab = Lab::new().await;
        let [programs, other] = Programs::two(&lab).await;
        programs.put("a/c/0", "mine").await;
        programs.put("a/c/2", "mine too").await;
        programs.unlink("a/c/1").await.unwrap();
        other.put("a/c/0", "theirs").await;
        other.put("a/c/3", "theirs too").await;
        other.commit().await;
        let reader = programs.open("a/c/2", crate::lab::programs::READ).await.unwrap();
        programs.session.commit(resolving(how)).await.unwrap();
        assert_eq!(programs.read(&reader).await, "mine too");
        programs.close(reader).await;
        let found = committed(&lab, "third").await;
        assert_eq!(found["a/c/0"], expected, "{how:?}");
        assert_eq!((&*found["a/c/2"], &*found["a/c/3"]), ("mine too", "theirs too"), "{how:?}: the rest is merged");
        assert!(!found.contains_key("a/c/1"), "{how:?}");
        assert_eq!(programs.tree().await, found, "{how:?}: the mount shows what was committed");
        assert!(programs.session.status().await.unwrap().clean, "{how:?}: nothing is left to commit");
    }
}
