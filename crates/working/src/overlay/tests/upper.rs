//! [`Upper`](super::super::upper::Upper): attributes, numbers, the frozen copy, and data files that
//! nobody needs.

use crate::lab::Lab;
use crate::lab::programs::{Programs, READ, WRITE, refused};
use crate::overlay::frozen::FrozenEntry;
use crate::overlay::namespace::RenameMode;
use crate::overlay::set_attributes::SetAttrs;
use crate::scratch::record::{Name, Time};
use icechunkfs_base::error::ErrorKind;

const OLD: Time = Time(1_000_000_000, 5);

#[tokio::test]
async fn a_file_of_the_snapshot_has_the_time_of_the_commit_and_the_modes_of_every_mount() {
    let lab = Lab::new().await;
    Programs::with_arrays(&lab).await;
    let [fresh, other] = [Programs::new(&lab, "second").await, Programs::new(&lab, "third").await];
    let time = fresh.working().upper().base().time;
    for (path, kind, mode) in [("a", libc::S_IFDIR, 0o755), ("a/c/0", libc::S_IFREG, 0o644)] {
        let found = fresh.stat(path).await.unwrap();
        assert_eq!((found.kind, found.meta.mode, found.links), (kind, mode, 1), "{path}");
        assert_eq!((found.meta.mtime, found.meta.ctime), (time, time), "{path} has the time of the commit");
        assert_eq!(found.number, other.number(path).await.unwrap(), "{path} has the same number in every mount");
    }
    assert_eq!(fresh.stat("a/c/0").await.unwrap().size, 9, "the size is known without reading the chunk");
}

#[tokio::test]
async fn a_changed_file_keeps_its_number_through_writes_renames_and_commits() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let number = programs.number("a/zarr.json").await.unwrap();
    programs.patch("a/zarr.json", 0, "{ ").await;
    assert_eq!(programs.number("a/zarr.json").await.unwrap(), number, "after a write");
    programs.mv("a/zarr.json", "a/old.json").await;
    assert_eq!(programs.number("a/old.json").await.unwrap(), number, "after a rename");
    programs.mv("a/old.json", "a/zarr.json").await;
    programs.put("a/zarr.json", crate::lab::mount::ARRAY).await;
    programs.put("a/c/2", "two").await;
    programs.commit().await;
    assert_eq!(programs.number("a/zarr.json").await.unwrap(), number, "after a commit");
}

#[tokio::test]
async fn the_number_of_a_removed_file_is_of_no_other_file() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    programs.put("a/c/2", "removed").await;
    let number = programs.number("a/c/2").await.unwrap();
    programs.unlink("a/c/2").await.unwrap();
    programs.forget_all();
    assert_eq!(refused(programs.working().upper().attributes(number).await), ErrorKind::Stale);
    for text in ["a/c/2", "a/c/3", "a/c/4"] {
        programs.put(text, "another").await;
        assert_ne!(programs.number(text).await.unwrap(), number, "a number is given once");
    }
}

#[tokio::test]
async fn both_names_of_a_file_count_its_links() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    programs.link("a/c/0", "a/c/2").await.unwrap();
    let [one, other] = [programs.stat("a/c/0").await.unwrap(), programs.stat("a/c/2").await.unwrap()];
    assert_eq!((one.number, one.links), (other.number, 2), "one file of two names");
    programs.unlink("a/c/0").await.unwrap();
    assert_eq!(programs.stat("a/c/2").await.unwrap().links, 1, "one name is left");
}

#[tokio::test]
async fn a_directory_is_modified_by_each_change_of_its_names_and_by_no_other() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let reset = || async {
        programs.set("a/c", SetAttrs { mtime: Some(OLD), ..SetAttrs::default() }).await;
    };
    let mtime = || async { programs.stat("a/c").await.unwrap().meta.mtime };
    reset().await;
    programs.patch("a/c/0", 0, "x").await;
    assert_eq!(mtime().await, OLD, "a write to a file in it changes no name");
    programs.put("a/c/2", "two").await;
    assert_ne!(mtime().await, OLD, "a file was made");
    reset().await;
    programs.link("a/c/2", "a/c/3").await.unwrap();
    assert_ne!(mtime().await, OLD, "a link was made");
    reset().await;
    programs.unlink("a/c/1").await.unwrap();
    assert_ne!(mtime().await, OLD, "a file was removed");
    reset().await;
    programs.mv("a/c/2", "m/c/2").await;
    assert_ne!(mtime().await, OLD, "a file was moved away");
    reset().await;
    programs.mv("m/c/2", "a/c/4").await;
    assert_ne!(mtime().await, OLD, "a file was moved here");
}

#[tokio::test]
async fn a_write_modifies_a_file_and_a_new_name_changes_it() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    programs.set("a/c/0", SetAttrs { mtime: Some(OLD), ..SetAttrs::default() }).await;
    let before = programs.stat("a/c/0").await.unwrap().meta;
    assert_eq!(before.mtime, OLD, "times can be set to the past");
    programs.link("a/c/0", "a/c/2").await.unwrap();
    let linked = programs.stat("a/c/0").await.unwrap().meta;
    assert_eq!(linked.mtime, OLD, "a link does not modify the bytes");
    assert!(linked.ctime >= before.ctime, "a link changes the file");
    programs.patch("a/c/2", 3, "x").await;
    let written = programs.stat("a/c/0").await.unwrap().meta;
    assert!(written.mtime > OLD, "a write through either name modifies the file");
    assert!(written.ctime > OLD, "and changes it");
}

#[tokio::test]
async fn opening_and_reading_leaves_the_times_of_a_file() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let before = programs.stat("a/c/0").await.unwrap().meta;
    let opened = programs.open("a/c/0", WRITE).await.unwrap();
    programs.close(opened).await;
    programs.get("a/c/0").await;
    assert_eq!(programs.stat("a/c/0").await.unwrap().meta, before, "nothing was written");
    let status = programs.session.status().await.unwrap();
    assert!(status.clean, "opening alone changes nothing: {status:?}");
}

#[tokio::test]
async fn a_frozen_copy_has_the_names_of_its_moment() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    programs.put("notes", "before").await;
    programs.unlink("a/c/0").await.unwrap();
    let frozen = programs.working().upper().freeze();
    programs.unlink("notes").await.unwrap();
    programs.put("a/c/0", "again").await;
    let root = frozen.get(crate::overlay::frozen::Frozen::ROOT).unwrap();
    assert!(matches!(root.entries.get(&Name::new(b"notes")), Some(FrozenEntry::File(_))), "{root:?}");
    let hides = frozen.directories().iter().any(|directory| {
        matches!(directory.entries.get(&Name::new(b"0")), Some(FrozenEntry::Whiteout))
            && directory.covering.contains(&Name::new(b"0"))
    });
    assert!(hides, "the removal is in the copy, though the file was made again: {frozen:?}");
}

#[tokio::test]
async fn files_open_for_writing_are_named_by_their_present_paths() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let writer = programs.open("a/c/0", WRITE).await.unwrap();
    let reader = programs.open("a/c/1", READ).await.unwrap();
    let other = programs.create("m/c/3").await.unwrap();
    programs.mv("a", "moved").await;
    programs.rename("m/c/3", "moved/c/3", RenameMode::NoReplace).await.unwrap();
    let frozen = programs.working().upper().freeze();
    assert_eq!(frozen.open_for_writing, ["/moved/c/0", "/moved/c/3"], "where the files are now");
    assert_eq!(programs.working().upper().describe(reader.number), "/moved/c/1", "also of one that is only read");
    for opened in [writer, reader, other] {
        programs.close(opened).await;
    }
    assert!(programs.working().upper().freeze().open_for_writing.is_empty());
}

#[tokio::test]
async fn no_data_file_is_left_when_nothing_is_changed_any_more() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    programs.check_data_files(0, "the commit took everything").await;
    programs.put("a/c/2", "made").await;
    programs.patch("a/c/0", 2, "patched").await;
    programs.truncate("a/c/1", 1).await;
    programs.put("replaced", "old").await;
    programs.put("new", "new").await;
    programs.mv("new", "replaced").await;
    programs.forget_all();
    programs.check_data_files(4, "one for each file that has bytes of its own").await;
    programs.session.discard("").await.unwrap();
    programs.forget_all();
    programs.check_data_files(1, "the untracked file stays").await;
    programs.unlink("replaced").await.unwrap();
    programs.forget_all();
    programs.check_data_files(0, "no byte is left").await;
}

#[tokio::test]
async fn a_deleted_file_that_was_open_when_the_daemon_died_leaves_no_data_file() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let opened = programs.create("a/c/2").await.unwrap();
    programs.write(&opened, 0, "lost with the program").await;
    programs.unlink("a/c/2").await.unwrap();
    let base = programs.open("a/c/0", WRITE).await.unwrap();
    programs.write(&base, 2, "also").await;
    programs.unlink("a/c/0").await.unwrap();
    let before = programs.tree().await;
    let programs = programs.restart(&lab).await;
    assert_eq!(programs.tree().await, before, "the names are as they were");
    programs.check_data_files(0, "files without names do not outlive the mount").await;
}
