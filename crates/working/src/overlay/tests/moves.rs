//! [`TreeMoves`](super::super::rebase::TreeMoves): what a discard, a refresh or a restore puts in
//! the place of what was there, and what it leaves to programs that have it open.

use crate::lab::Lab;
use crate::lab::programs::{CHUNKS, Programs, READ, WRITE, committed, refused};
use crate::overlay::set_attributes::SetAttrs;
use icechunkfs_base::error::ErrorKind;

#[tokio::test]
async fn a_moment_ends_with_a_move_and_with_nothing_else() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let moment = programs.working().upper().moment();
    programs.put("a/c/2", "two").await;
    programs.mv("a", "b").await;
    programs.unlink("b/c/0").await.unwrap();
    assert_eq!(programs.working().upper().moment(), moment, "requests of programs move nothing");
    assert_eq!(refused(programs.session.discard("/none").await), ErrorKind::NotFound);
    assert_eq!(programs.working().upper().moment(), moment, "nor does a discard that is refused");
    programs.session.discard("").await.unwrap();
    let discarded = programs.working().upper().moment();
    assert_ne!(discarded, moment);
    programs.put("a/c/2", "two").await;
    programs.commit().await;
    assert_ne!(programs.working().upper().moment(), discarded);
}

#[tokio::test]
async fn a_discard_of_one_path_leaves_the_changes_beside_it() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    programs.patch("a/c/0", 0, "Z").await;
    programs.patch("a/c/1", 0, "O").await;
    programs.put("a/c/2", "two").await;
    programs.unlink("a/c/7").await.unwrap();
    programs.patch("m/c/0", 0, "E").await;
    programs.session.discard("/a/c/0").await.unwrap();
    let expected = [("a/c/0", "zero zero"), ("a/c/1", "One"), ("a/c/2", "two"), ("m/c/0", "Em")];
    for (path, text) in expected {
        assert_eq!(programs.get(path).await, text, "{path}");
    }
    assert!(!programs.is_there("a/c/7").await, "a deletion beside it stays");
    programs.session.discard("/a/c/2").await.unwrap();
    assert!(!programs.is_there("a/c/2").await, "a new chunk is gone");
    programs.session.discard("/a/c/7").await.unwrap();
    assert_eq!(programs.get("a/c/7").await, "seven", "a deleted one is back");
    let before = programs.tree().await;
    let programs = programs.restart(&lab).await;
    assert_eq!(programs.tree().await, before, "after a restart");
    programs.commit().await;
    assert_eq!(committed(&lab, "second").await, before, "after a commit");
}

#[tokio::test]
async fn a_discarded_file_is_read_to_its_end_by_those_who_have_it_open() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    programs.patch("a/c/0", 0, "Z").await;
    programs.put("a/c/2", "two").await;
    programs.unlink("a/c/1").await.unwrap();
    programs.put("a/c/1", "another").await;
    let mut readers = Vec::new();
    for (path, text) in [("a/c/0", "Zero zero"), ("a/c/2", "two"), ("a/c/1", "another"), ("a/c/7", "seven")] {
        readers.push((programs.open(path, READ).await.unwrap(), text));
    }
    programs.session.discard("").await.unwrap();
    for (reader, text) in &readers {
        assert_eq!(programs.read(reader).await, *text, "a program continues to read the old bytes");
    }
    for (reader, _) in readers {
        programs.close(reader).await;
    }
    for (path, text) in CHUNKS {
        assert_eq!(programs.get(path).await, text, "{path}: an open afterwards gets the snapshot's bytes");
    }
    programs.forget_all();
    programs.check_data_files(0, "no byte of the discarded files is left").await;
}

#[tokio::test]
async fn a_discard_that_is_refused_changes_nothing() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    programs.patch("a/c/0", 0, "Z").await;
    programs.remove_all("m").await;
    programs.make_directory("m").await.unwrap();
    let writer = programs.open("a/c/1", WRITE).await.unwrap();
    let before = programs.tree().await;
    assert_eq!(refused(programs.session.discard("/a").await), ErrorKind::Busy, "a file is open for writing");
    assert_eq!(refused(programs.session.discard("/m/c/0").await), ErrorKind::NotFound, "its directory is another one");
    assert_eq!(refused(programs.session.discard("/a/c/5").await), ErrorKind::NotFound, "neither side has it");
    assert_eq!(programs.tree().await, before);
    programs.session.discard("/a/c/0").await.unwrap();
    assert_eq!(programs.get("a/c/0").await, "zero zero", "an open file elsewhere is in nobody's way");
    programs.close(writer).await;
}

#[tokio::test]
async fn a_discard_brings_back_what_was_removed_and_keeps_untracked_files() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let snapshot = programs.tree().await;
    programs.remove_all("a").await;
    programs.make_array("n").await;
    programs.put("m/README", "untracked").await;
    programs.put("notes", "untracked").await;
    programs.make_symlink("link", "notes").await.unwrap();
    programs.put("m/c/x", "untracked").await;
    programs.make_directory("empty").await.unwrap();
    programs.session.discard("").await.unwrap();
    let mut expected = snapshot;
    for path in ["m/README", "notes", "m/c/x"] {
        expected.insert(path.to_owned(), "untracked".to_owned());
    }
    expected.insert("link".to_owned(), "-> notes".to_owned());
    assert_eq!(programs.tree().await, expected);
    let programs = programs.restart(&lab).await;
    assert_eq!(programs.tree().await, expected, "after a restart");
}

#[tokio::test]
async fn a_moved_node_goes_back_by_whichever_path_it_is_discarded() {
    for path in ["/a", "/b"] {
        let lab = Lab::new().await;
        let programs = Programs::with_arrays(&lab).await;
        let mut expected = programs.tree().await;
        programs.mv("a", "b").await;
        programs.patch("b/c/0", 0, "Z").await;
        programs.put("b/notes", "untracked").await;
        programs.patch("m/c/0", 0, "E").await;
        programs.session.discard(path).await.unwrap();
        expected.insert("a/notes".to_owned(), "untracked".to_owned());
        expected.insert("m/c/0".to_owned(), "Em".to_owned());
        assert_eq!(programs.tree().await, expected, "by {path}: untracked files go along");
        let programs = programs.restart(&lab).await;
        assert_eq!(programs.tree().await, expected, "by {path}, after a restart");
    }
}

#[tokio::test]
async fn a_hard_link_elsewhere_keeps_its_bytes_when_the_other_name_is_discarded() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    programs.link("a/c/0", "m/c/2").await.unwrap();
    programs.patch("a/c/0", 0, "Z").await;
    programs.session.discard("/a/c/0").await.unwrap();
    assert_eq!(programs.get("a/c/0").await, "zero zero", "the discarded name has the snapshot's bytes");
    assert_eq!(programs.get("m/c/2").await, "Zero zero", "the other one has those that were written");
    programs.patch("m/c/2", 1, "E").await;
    programs.patch("a/c/0", 5, "Z").await;
    assert_eq!(programs.get("a/c/0").await, "zero Zero", "they are two files");
    let programs = programs.restart(&lab).await;
    assert_eq!(programs.get("m/c/2").await, "ZEro zero");
    programs.commit().await;
    let committed = committed(&lab, "second").await;
    assert_eq!((&*committed["a/c/0"], &*committed["m/c/2"]), ("zero Zero", "ZEro zero"));
}

#[tokio::test]
async fn a_refresh_keeps_the_changes_of_both_sides() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let other = Programs::new(&lab, "second").await;
    programs.patch("a/c/0", 0, "Z").await;
    programs.unlink("a/c/7").await.unwrap();
    programs.put("notes", "untracked").await;
    other.patch("a/c/1", 0, "O").await;
    other.put("a/c/2", "two").await;
    other.unlink("m/c/0").await.unwrap();
    other.commit().await;
    programs.session.refresh().await.unwrap();
    let expected = [("a/c/0", "Zero zero"), ("a/c/1", "One"), ("a/c/2", "two"), ("notes", "untracked")];
    for (path, text) in expected {
        assert_eq!(programs.get(path).await, text, "{path}");
    }
    assert!(!programs.is_there("a/c/7").await && !programs.is_there("m/c/0").await, "so are both deletions");
    let before = programs.tree().await;
    let programs = programs.restart(&lab).await;
    assert_eq!(programs.tree().await, before, "after a restart");
    let status = programs.session.status().await.unwrap();
    assert_eq!((status.chunks_written, status.chunks_deleted), (1, 1), "only the own changes are left: {status:?}");
}

#[tokio::test]
async fn an_untracked_file_in_the_way_is_neither_lost_nor_hides_anything() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let other = Programs::new(&lab, "second").await;
    programs.put("b", "untracked").await;
    programs.patch("a/c/0", 0, "Z").await;
    other.make_array("b").await;
    other.commit().await;
    let before = programs.tree().await;
    assert_eq!(refused(programs.session.refresh().await), ErrorKind::Stale);
    assert_eq!(refused(programs.session.commit(Default::default()).await), ErrorKind::Stale);
    assert!(programs.session.conflicts_text().contains("/b"), "{}", programs.session.conflicts_text());
    assert_eq!(programs.tree().await, before, "nothing was changed");
    programs.mv("b", "elsewhere").await;
    programs.session.refresh().await.unwrap();
    assert_eq!(programs.get("elsewhere").await, "untracked");
    assert_eq!(programs.list("b").await, ["zarr.json"], "the other commit's node shows");
    assert_eq!(programs.get("a/c/0").await, "Zero zero");
}

#[tokio::test]
async fn a_refresh_leaves_open_files_to_their_readers() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let other = Programs::new(&lab, "second").await;
    let mut readers = Vec::new();
    for (path, text) in CHUNKS {
        readers.push((programs.open(path, READ).await.unwrap(), text));
    }
    other.put("a/c/0", "other").await;
    other.unlink("a/c/1").await.unwrap();
    other.commit().await;
    programs.session.refresh().await.unwrap();
    for (reader, text) in &readers {
        assert_eq!(programs.read(reader).await, *text, "an open file keeps its bytes and its length");
    }
    let [changed, _, same] = [&readers[0].0, &readers[1].0, &readers[2].0].map(|reader| reader.number);
    assert_ne!(programs.number("a/c/0").await.unwrap(), changed, "the new version is another inode");
    assert_eq!(programs.number("a/c/7").await.unwrap(), same, "a file that did not change is the same");
    let settings = SetAttrs { size: Some(0), ..SetAttrs::default() };
    assert_eq!(refused(programs.working().contents().set_attributes(changed, settings).await), ErrorKind::Stale);
    assert_eq!(refused(programs.open_number(changed, WRITE).await), ErrorKind::Stale, "an old version is not written");
    assert_eq!(programs.get("a/c/0").await, "other", "nor is the new one by its number");
    for (reader, _) in readers {
        programs.close(reader).await;
    }
    assert_eq!(programs.get("a/c/0").await, "other");
    assert!(!programs.is_there("a/c/1").await);
}

#[tokio::test]
async fn a_deleted_open_file_keeps_its_bytes_through_all_moves() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let other = Programs::new(&lab, "second").await;
    programs.patch("a/c/0", 0, "Z").await;
    programs.put("a/c/2", "two").await;
    let mut readers = Vec::new();
    for (path, text) in [("a/c/0", "Zero zero"), ("a/c/2", "two"), ("a/c/1", "one")] {
        readers.push((programs.open(path, READ).await.unwrap(), text));
        programs.unlink(path).await.unwrap();
    }
    let check = async |after: &str| {
        for (reader, text) in &readers {
            assert_eq!(programs.read(reader).await, *text, "after {after}");
        }
    };
    programs.commit().await;
    check("a commit").await;
    programs.put("a/c/1", "another").await;
    other.session.refresh().await.unwrap();
    other.put("m/c/1", "other").await;
    other.commit().await;
    programs.session.refresh().await.unwrap();
    check("a refresh").await;
    programs.session.discard("").await.unwrap();
    check("a discard").await;
    programs.put("a/c/0", "another").await;
    programs.commit().await;
    check("another commit").await;
    for (reader, _) in readers {
        programs.close(reader).await;
    }
    assert_eq!(programs.list("a/c").await, ["0", "7"]);
    programs.forget_all();
    programs.check_data_files(0, "no byte is left").await;
}

#[tokio::test]
async fn a_restore_changes_its_path_and_nothing_beside_it() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let old = programs.tree_below("a").await;
    programs.put("a/c/0", "second version").await;
    programs.unlink("a/c/1").await.unwrap();
    programs.put("a/c/2", "two").await;
    programs.put("m/c/1", "m one").await;
    programs.commit().await;
    programs.patch("m/c/0", 0, "E").await;
    programs.patch("a/c/7", 0, "S").await;
    programs.put("a/notes", "untracked").await;
    let before = programs.tree().await;
    programs.session.restore("/a", "main~1", true).await.unwrap();
    assert_eq!(programs.tree().await, before, "a dry run changes nothing");
    programs.session.restore("/a", "main~1", false).await.unwrap();
    let mut expected = old;
    expected.insert("a/notes".to_owned(), "untracked".to_owned());
    assert_eq!(programs.tree_below("a").await, expected, "the path is as it was, with its untracked files");
    assert_eq!((programs.get("m/c/0").await, programs.get("m/c/1").await), ("Em".into(), "m one".into()));
    let before = programs.tree().await;
    let programs = programs.restart(&lab).await;
    assert_eq!(programs.tree().await, before, "after a restart");
    programs.commit().await;
    assert_eq!(programs.tree().await, before, "after a commit");
    expected.remove("a/notes");
    let fresh = Programs::new(&lab, "second").await;
    assert_eq!(fresh.tree_below("a").await, expected, "in another mount");
}
