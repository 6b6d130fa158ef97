//! [`Namespace`](super::super::namespace::Namespace): names that are made, linked, found and
//! removed.

use crate::lab::Lab;
use crate::lab::mount::ARRAY;
use crate::lab::programs::{Programs, committed, refused};
use crate::overlay::Ino;
use crate::overlay::namespace::{CreateAttrs, RenameMode};
use crate::overlay::set_attributes::SetAttrs;
use crate::scratch::record::Name;
use icechunkfs_base::error::ErrorKind;

#[tokio::test]
async fn a_name_is_made_once() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let before = programs.tree().await;
    for path in ["a", "a/c/0", "a/zarr.json"] {
        assert_eq!(refused(programs.create(path).await), ErrorKind::AlreadyExists, "a file {path}");
        assert_eq!(refused(programs.make_directory(path).await), ErrorKind::AlreadyExists, "a directory {path}");
        assert_eq!(refused(programs.make_symlink(path, "x").await), ErrorKind::AlreadyExists, "a link {path}");
        assert_eq!(refused(programs.link("a/c/1", path).await), ErrorKind::AlreadyExists, "a hard link {path}");
    }
    assert_eq!(programs.tree().await, before, "nothing was changed");
    programs.unlink("a/c/0").await.unwrap();
    let opened = programs.create("a/c/0").await.unwrap();
    programs.close(opened).await;
    assert_eq!(programs.get("a/c/0").await, "", "a removed name is free, and its old bytes are gone");
}

#[tokio::test]
async fn names_have_up_to_255_bytes() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let [longest, linked, moved] = ["x", "y", "z"].map(|letter| letter.repeat(255));
    programs.put(&longest, "bytes").await;
    programs.link(&longest, &linked).await.unwrap();
    programs.mv(&longest, &moved).await;
    let before = programs.tree().await;
    assert_eq!((&*before[&linked], &*before[&moved]), ("bytes", "bytes"));
    let longer = "n".repeat(256);
    assert_eq!(refused(programs.create(&longer).await), ErrorKind::NameTooLong);
    assert_eq!(refused(programs.make_directory(&longer).await), ErrorKind::NameTooLong);
    assert_eq!(refused(programs.link("a/c/0", &longer).await), ErrorKind::NameTooLong);
    assert_eq!(refused(programs.unlink(&longer).await), ErrorKind::NameTooLong);
    assert_eq!(refused(programs.stat(&longer).await), ErrorKind::NameTooLong);
    let to = Name::new(longer.as_bytes());
    let renamed = programs.working().namespace().rename(Ino::ROOT, Name::new(b"a"), Ino::ROOT, to, RenameMode::Replace);
    assert_eq!(refused(renamed.await), ErrorKind::NameTooLong);
    let programs = programs.restart(&lab).await;
    assert_eq!(programs.tree().await, before, "after a restart");
}

#[tokio::test]
async fn names_of_any_bytes_survive_a_restart() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let names: [&[u8]; 7] =
        [b"\xff\xfe", b"new\nline", b"\"quoted\"", b"back\\slash", b" ", b"{\"op\":1}", b"\xc3\xa9"];
    for bytes in names {
        let new = CreateAttrs {
            mode: libc::S_IFLNK,
            uid: 0,
            gid: 0,
            rdev: 0,
            target: Some(Name::new(bytes)),
            without_data: false,
        };
        programs.working().namespace().create(Ino::ROOT, Name::new(bytes), new, false).await.unwrap();
    }
    let programs = programs.restart(&lab).await;
    for bytes in names {
        let found = programs.look(Ino::ROOT, &Name::new(bytes)).await.unwrap().expect("the name is there");
        let target = programs.working().namespace().read_link(found.number).unwrap();
        assert_eq!((found.size, target), (bytes.len() as u64, Name::new(bytes)), "{:?}", Name::new(bytes));
    }
    assert_eq!(programs.list("").await.len(), names.len() + 3, "each is listed");
}

#[tokio::test]
async fn directories_are_removed_when_they_are_empty() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    programs.make_directory("d").await.unwrap();
    programs.put("d/file", "x").await;
    for path in ["a", "a/c", "d"] {
        assert_eq!(refused(programs.remove_directory(path).await), ErrorKind::NotEmpty, "{path}");
        assert_eq!(refused(programs.unlink(path).await), ErrorKind::IsADirectory, "{path}");
    }
    assert_eq!(refused(programs.remove_directory("a/c/0").await), ErrorKind::NotADirectory);
    assert_eq!(refused(programs.remove_directory("d/file").await), ErrorKind::NotADirectory);
    assert_eq!(refused(programs.remove_directory("d/none").await), ErrorKind::NotFound);
    programs.remove_all("a").await;
    programs.remove_all("d").await;
    assert_eq!(programs.list("").await, ["m", "zarr.json"], "they were empty");
    let programs = programs.restart(&lab).await;
    assert_eq!(programs.list("").await, ["m", "zarr.json"], "after a restart");
}

#[tokio::test]
async fn a_directory_of_the_snapshot_that_is_made_again_is_empty() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    programs.remove_all("a").await;
    programs.make_directory("a").await.unwrap();
    assert!(programs.list("a").await.is_empty(), "files of the snapshot do not show");
    programs.make_directory("a/c").await.unwrap();
    assert!(!programs.is_there("a/c/0").await && !programs.is_there("a/zarr.json").await);
    let programs = programs.restart(&lab).await;
    assert_eq!(programs.tree_below("a").await.into_keys().collect::<Vec<_>>(), ["a/c/"], "after a restart");
    programs.put("a/zarr.json", ARRAY).await;
    programs.put("a/c/3", "three").await;
    programs.commit().await;
    let expected = ["a/c/", "a/c/3", "a/zarr.json"];
    assert_eq!(programs.tree_below("a").await.into_keys().collect::<Vec<_>>(), expected, "after a commit");
    let fresh = Programs::new(&lab, "second").await;
    assert_eq!(fresh.tree_below("a").await.into_keys().collect::<Vec<_>>(), expected, "in another mount");
}

#[tokio::test]
async fn a_directory_that_was_removed_takes_no_names() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    programs.make_directory("d").await.unwrap();
    let number = programs.number("d").await.unwrap();
    let base = programs.number("a/c").await.unwrap();
    programs.remove_directory("d").await.unwrap();
    programs.remove_all("a").await;
    for number in [number, base] {
        let new = CreateAttrs { mode: libc::S_IFREG, uid: 0, gid: 0, rdev: 0, target: None, without_data: false };
        let made = programs.working().namespace().create(number, Name::new(b"x"), new, false).await;
        assert!(matches!(refused(made), ErrorKind::NotFound | ErrorKind::Stale), "{number}");
        let namespace = programs.working().namespace();
        let moved = namespace.rename(
            programs.number("m/c").await.unwrap(),
            Name::new(b"0"),
            number,
            Name::new(b"0"),
            RenameMode::Replace,
        );
        assert!(matches!(refused(moved.await), ErrorKind::NotFound | ErrorKind::Stale), "{number}");
    }
    assert_eq!(programs.get("m/c/0").await, "em", "the file is where it was");
    programs.check_data_files(0, "a file that could not be made has no bytes").await;
}

#[tokio::test]
async fn a_removed_name_does_not_come_back() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    programs.unlink("a/c/0").await.unwrap();
    programs.unlink("a/c/1").await.unwrap();
    programs.put("a/c/1", "again").await;
    let programs = programs.restart(&lab).await;
    assert!(!programs.is_there("a/c/0").await, "a whiteout survives a restart");
    assert_eq!(programs.get("a/c/1").await, "again", "so does a file that was made in its place");
    assert_eq!(refused(programs.unlink("a/c/0").await), ErrorKind::NotFound);
    programs.unlink("a/c/1").await.unwrap();
    let programs = programs.restart(&lab).await;
    assert_eq!(programs.list("a/c").await, ["7"], "the snapshot's file does not show when that is removed too");
    programs.commit().await;
    let fresh = Programs::new(&lab, "second").await;
    assert_eq!(fresh.list("a/c").await, ["7"]);
}

#[tokio::test]
async fn a_file_is_there_as_long_as_it_has_a_name() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    programs.link("a/c/0", "a/c/2").await.unwrap();
    programs.link("a/c/2", "link").await.unwrap();
    programs.patch("link", 0, "Z").await;
    programs.unlink("a/c/0").await.unwrap();
    assert_eq!((programs.get("a/c/2").await, programs.get("link").await), ("Zero zero".into(), "Zero zero".into()));
    programs.unlink("a/c/2").await.unwrap();
    let programs = programs.restart(&lab).await;
    programs.patch("link", 1, "E").await;
    assert_eq!(programs.get("link").await, "ZEro zero", "its last name leads to all of it");
    programs.commit().await;
    assert_eq!(programs.get("link").await, "ZEro zero", "an untracked name keeps its bytes");
    let committed = committed(&lab, "second").await;
    assert!(!committed.contains_key("a/c/0") && !committed.contains_key("a/c/2"), "{committed:?}");
}

#[tokio::test]
async fn directories_and_files_without_a_name_get_no_further_name() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    assert_eq!(refused(programs.link("a", "b").await), ErrorKind::NotPermitted);
    programs.put("a/c/2", "two").await;
    let opened = programs.open("a/c/2", crate::lab::programs::READ).await.unwrap();
    programs.unlink("a/c/2").await.unwrap();
    let linked = programs.working().namespace().link(opened.number, Ino::ROOT, Name::new(b"again")).await;
    assert_eq!(refused(linked), ErrorKind::NotFound, "the file was removed");
    programs.close(opened).await;
    assert_eq!(programs.list("").await, ["a", "m", "zarr.json"]);
}

#[tokio::test]
async fn a_symbolic_link_is_a_file_of_its_own() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    programs.unlink("a/c/0").await.unwrap();
    programs.make_symlink("a/c/0", "1").await.unwrap();
    programs.link("a/c/0", "also").await.unwrap();
    programs.mv("also", "moved").await;
    let programs = programs.restart(&lab).await;
    let found = programs.tree().await;
    assert_eq!((&*found["a/c/0"], &*found["moved"], &*found["a/c/1"]), ("-> 1", "-> 1", "one"));
    assert_eq!(programs.stat("moved").await.unwrap().links, 2, "they are one file");
    let file = programs.number("a/c/1").await.unwrap();
    assert_eq!(refused(programs.working().namespace().read_link(file)), ErrorKind::InvalidInput);
    programs.commit().await;
    assert_eq!(programs.tree().await, found, "symbolic links are untracked");
    assert!(!committed(&lab, "second").await.contains_key("a/c/0"), "and the key in its place is deleted");
}

#[tokio::test]
async fn a_file_that_the_kernel_knows_is_there_until_it_forgets_it() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    programs.put("a/c/2", "two").await;
    programs.forget_all();
    let number = programs.number("a/c/2").await.unwrap();
    let again = programs.number("a/c/2").await.unwrap();
    assert_eq!(number, again);
    programs.put("new", "new").await;
    programs.mv("new", "a/c/2").await;
    let contents = programs.working().contents();
    assert_eq!(contents.read(number, 0, 9).await.unwrap().to_vec(), b"two", "a program may be about to open it");
    programs.working().namespace().forget(number, 1);
    assert_eq!(contents.read(number, 0, 9).await.unwrap().to_vec(), b"two", "the kernel has found it twice");
    programs.forget_all();
    assert!(contents.read(number, 0, 9).await.is_err(), "nobody can ask for it any more");
    assert_eq!(programs.get("a/c/2").await, "new");
    programs.check_data_files(1, "its bytes are gone").await;
}

#[tokio::test]
async fn a_directory_may_give_its_group_to_what_is_made_in_it() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    programs.make_directory("d").await.unwrap();
    let settings = SetAttrs { mode: Some(0o2755), gid: Some(99), ..SetAttrs::default() };
    programs.set("d", settings).await;
    programs.put("d/file", "x").await;
    programs.make_directory("d/below").await.unwrap();
    programs.put("file", "x").await;
    let programs = programs.restart(&lab).await;
    let meta = async |path| programs.stat(path).await.unwrap().meta;
    assert_eq!((meta("d/file").await.gid, meta("d/file").await.mode), (99, 0o644));
    assert_eq!((meta("d/below").await.gid, meta("d/below").await.mode), (99, 0o2755), "directories pass it on");
    assert_eq!((meta("file").await.gid, meta("file").await.uid), (8, 7), "elsewhere a file is its maker's");
}
