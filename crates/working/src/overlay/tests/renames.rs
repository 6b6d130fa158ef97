//! [`Namespace`](super::super::namespace::Namespace): renames.

use crate::lab::Lab;
use crate::lab::programs::{Programs, committed, refused};
use crate::overlay::namespace::RenameMode::{Exchange, NoReplace, Replace};
use icechunkfs_base::error::ErrorKind;

#[tokio::test]
async fn a_rename_that_must_not_replace_leaves_both() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    programs.put("own", "own").await;
    let before = programs.tree().await;
    for (from, to) in [("a/c/0", "a/c/1"), ("own", "a/c/1"), ("a/c/0", "own"), ("a", "m"), ("own", "own")] {
        assert_eq!(refused(programs.rename(from, to, NoReplace).await), ErrorKind::AlreadyExists, "{from} to {to}");
    }
    assert_eq!(programs.tree().await, before, "nothing was changed");
    programs.unlink("a/c/1").await.unwrap();
    programs.rename("own", "a/c/1", NoReplace).await.unwrap();
    assert_eq!(programs.get("a/c/1").await, "own", "the name of a removed file is free");
    assert!(!programs.is_there("own").await);
}

#[tokio::test]
async fn a_directory_is_not_moved_below_itself() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    programs.make_directory("d").await.unwrap();
    programs.make_directory("d/e").await.unwrap();
    programs.make_directory("d/e/f").await.unwrap();
    let before = programs.tree().await;
    for (from, to) in [("d", "d/e/x"), ("d", "d/x"), ("a", "a/c/x"), ("a", "a/x")] {
        assert_eq!(refused(programs.rename(from, to, Replace).await), ErrorKind::InvalidInput, "{from} to {to}");
        assert_eq!(refused(programs.rename(from, to, NoReplace).await), ErrorKind::InvalidInput, "{from} to {to}");
    }
    for (from, to) in [("d", "d/e/f"), ("d/e/f", "d"), ("a/c", "a"), ("a", "a/c")] {
        assert_eq!(refused(programs.rename(from, to, Exchange).await), ErrorKind::InvalidInput, "{from} with {to}");
    }
    assert_eq!(programs.tree().await, before, "nothing was changed");
    let programs = programs.restart(&lab).await;
    assert_eq!(programs.tree().await, before, "nothing was written either");
}

#[tokio::test]
async fn a_rename_replaces_only_what_is_of_its_kind_and_empty() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    programs.make_directory("full").await.unwrap();
    programs.make_directory("empty").await.unwrap();
    programs.put("full/file", "x").await;
    let before = programs.tree().await;
    let refusals = [
        ("full/file", "empty", ErrorKind::IsADirectory),
        ("a/c/0", "m", ErrorKind::IsADirectory),
        ("empty", "full/file", ErrorKind::NotADirectory),
        ("a/c", "m/c/0", ErrorKind::NotADirectory),
        ("empty", "full", ErrorKind::NotEmpty),
        ("full", "a", ErrorKind::NotEmpty),
        ("a", "m/c", ErrorKind::NotEmpty),
        ("none", "full", ErrorKind::NotFound),
    ];
    for (from, to, kind) in refusals {
        assert_eq!(refused(programs.rename(from, to, Replace).await), kind, "{from} to {to}");
    }
    assert_eq!(programs.tree().await, before, "nothing was changed");
    programs.mv("full", "empty").await;
    assert_eq!(programs.get("empty/file").await, "x", "an empty directory is replaced");
    programs.remove_all("m/c").await;
    programs.make_directory("m/c").await.unwrap();
    programs.mv("a/c", "m/c").await;
    assert_eq!(programs.list("m/c").await, ["0", "1", "7"], "also one that was made again");
    assert_eq!(programs.get("m/c/0").await, "zero zero", "and has the moved files");
}

#[tokio::test]
async fn a_rename_to_another_name_of_the_same_file_does_nothing() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    programs.link("a/c/0", "link").await.unwrap();
    programs.mv("a/c/0", "link").await;
    programs.mv("link", "link").await;
    programs.mv("a/c/1", "a/c/1").await;
    programs.mv("a", "a").await;
    for (path, text) in [("a/c/0", "zero zero"), ("link", "zero zero"), ("a/c/1", "one")] {
        assert_eq!(programs.get(path).await, text, "{path} is still there");
    }
    assert_eq!(programs.stat("link").await.unwrap().links, 2);
}

#[tokio::test]
async fn an_exchange_of_a_file_and_a_directory_moves_all_that_is_below() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    programs.put("own", "own").await;
    programs.rename("own", "a/c", Exchange).await.unwrap();
    assert_eq!((programs.get("a/c").await, programs.get("own/0").await), ("own".into(), "zero zero".into()));
    programs.rename("own/1", "m/c/0", Exchange).await.unwrap();
    assert_eq!((programs.get("own/1").await, programs.get("m/c/0").await), ("em".into(), "one".into()));
    let before = programs.tree().await;
    let programs = programs.restart(&lab).await;
    assert_eq!(programs.tree().await, before, "after a restart");
    programs.rename("a/c", "own", Exchange).await.unwrap();
    programs.rename("a/c/1", "m/c/0", Exchange).await.unwrap();
    assert!(programs.session.status().await.unwrap().clean, "all is back in its place: there is nothing to commit");
    assert_eq!(refused(programs.rename("own", "none", Exchange).await), ErrorKind::NotFound);
    assert_eq!(programs.get("own").await, "own");
}

#[tokio::test]
async fn a_moved_directory_is_there_once() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let below: Vec<String> = programs.tree_below("a").await.into_values().collect();
    programs.make_directory("g").await.unwrap();
    programs.mv("a", "g/b").await;
    assert!(!programs.is_there("a").await && !programs.is_there("a/c/0").await);
    programs.make_directory("a").await.unwrap();
    assert!(programs.list("a").await.is_empty(), "a directory of the old name is another one");
    programs.put("g/b/c/0", "changed").await;
    programs.mv("g/b", "g/d").await;
    let mut moved: Vec<String> = programs.tree_below("g/d").await.into_values().collect();
    assert_eq!(std::mem::replace(&mut moved[1], below[1].clone()), "changed");
    assert_eq!(moved, below, "all else is as it was");
    let before = programs.tree().await;
    let programs = programs.restart(&lab).await;
    assert_eq!(programs.tree().await, before, "after a restart");
    programs.commit().await;
    assert_eq!(programs.tree().await, before, "after a commit");
    assert_eq!(committed(&lab, "second").await["g/d/c/0"], "changed");
}

#[tokio::test]
async fn names_that_go_round_in_a_circle_leave_nothing_to_commit() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let before = programs.tree().await;
    for (from, to) in [("a/c/0", "x"), ("a/c/1", "a/c/0"), ("x", "a/c/1")] {
        programs.mv(from, to).await;
    }
    assert_eq!(programs.get("a/c/0").await, "one");
    assert_eq!(programs.session.status().await.unwrap().chunks_written, 2, "two chunks have changed their places");
    for (from, to) in
        [("a/c/0", "y"), ("a/c/1", "a/c/0"), ("y", "a/c/1"), ("a", "b"), ("m", "a"), ("a", "m"), ("b", "a")]
    {
        programs.mv(from, to).await;
    }
    assert_eq!(programs.tree().await, before);
    assert!(programs.session.status().await.unwrap().clean, "nothing differs from the snapshot");
    assert!(programs.commit().await.snapshot.is_none(), "nothing was committed");
}

#[tokio::test]
async fn two_arrays_change_their_places() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    programs.patch("a/c/0", 0, "Z").await;
    programs.rename("a", "m", Exchange).await.unwrap();
    programs.patch("a/c/0", 0, "E").await;
    let expected = [("m/c/0", "Zero zero"), ("m/c/7", "seven"), ("a/c/0", "Em")];
    for (path, text) in expected {
        assert_eq!(programs.get(path).await, text, "{path}");
    }
    assert_eq!(programs.list("a/c").await, ["0"], "no chunk of the other array");
    let programs = programs.restart(&lab).await;
    let before = programs.tree().await;
    programs.commit().await;
    assert_eq!(programs.tree().await, before, "after the commit");
    assert_eq!(committed(&lab, "second").await, before, "in another mount");
}

#[tokio::test]
async fn a_name_that_was_replaced_by_a_hard_link_has_one_file() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    programs.link("a/c/0", "m/c/3").await.unwrap();
    programs.mv("m/c/3", "a/c/1").await;
    programs.patch("a/c/0", 0, "BOTH").await;
    assert_eq!(programs.get("a/c/1").await, "BOTH zero", "two names of one file");
    programs.put("new", "new").await;
    programs.mv("new", "a/c/0").await;
    assert_eq!((programs.get("a/c/0").await, programs.get("a/c/1").await), ("new".into(), "BOTH zero".into()));
    let programs = programs.restart(&lab).await;
    programs.commit().await;
    let committed = committed(&lab, "second").await;
    assert_eq!((&*committed["a/c/0"], &*committed["a/c/1"]), ("new", "BOTH zero"), "both are committed");
}

/// `rename(2)`: "If oldpath and newpath are existing hard links referring to the same file, then
/// rename() does nothing", whatever the flags.
#[tokio::test]
async fn two_names_of_one_file_are_not_exchanged() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    programs.link("a/c/0", "link").await.unwrap();
    programs.rename("a/c/0", "link", Exchange).await.unwrap();
    assert_eq!(programs.stat("link").await.unwrap().links, 2);
    programs.unlink("link").await.unwrap();
    programs.forget_all();
    assert_eq!(programs.stat("a/c/0").await.unwrap().links, 1, "the other name has the file");
    assert!(programs.list("a/c").await.contains(&"0".to_owned()));
}
