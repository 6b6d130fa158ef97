//! [`Handles`](super::super::handles::Handles): a program that has opened a file has that file,
//! whatever becomes of its name.

use std::os::unix::fs::FileExt;

use crate::lab::Lab;
use crate::lab::programs::{Descriptor, Programs, READ, TRUNCATE, WRITE, committed, refused};
use crate::operations::CommitOptions;
use crate::overlay::handles::OpenOptions;
use crate::overlay::namespace::RenameMode;
use icechunkfs_base::error::ErrorKind;

#[tokio::test]
async fn a_rename_over_an_open_file_leaves_its_bytes_to_those_who_opened_it() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    programs.put("a/c/2", "own").await;
    for (path, old) in [("a/c/0", "zero zero"), ("a/c/2", "own")] {
        let opened = programs.open(path, READ).await.unwrap();
        programs.put("a/new", "new").await;
        programs.mv("a/new", path).await;
        assert_eq!(programs.read(&opened).await, old, "{path}: the handle has the old file");
        assert_eq!(programs.get(path).await, "new", "{path}: the name has the new one");
        assert_ne!(programs.number(path).await.unwrap(), opened.number, "{path}: they are two files");
        programs.close(opened).await;
        assert_eq!(programs.get(path).await, "new", "{path}: after the close");
    }
}

#[tokio::test]
async fn a_deleted_file_is_read_and_written_until_it_is_closed_and_then_takes_no_space() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    programs.put("a/c/2", "own").await;
    for path in ["a/c/2", "a/c/0"] {
        let opened = programs.open(path, WRITE).await.unwrap();
        let before = programs.read(&opened).await;
        programs.unlink(path).await.unwrap();
        assert_eq!(programs.read(&opened).await, before, "{path} is read without a name");
        programs.write(&opened, 1, "WRITTEN").await;
        assert_eq!(programs.read(&opened).await[..8], *format!("{}WRITTEN", &before[..1]), "{path} is written");
        programs.forget_all();
        assert!(programs.read(&opened).await.contains("WRITTEN"), "{path} is there as long as it is open");
        programs.close(opened).await;
        assert!(!programs.is_there(path).await, "{path} does not come back");
        programs.check_data_files(0, &format!("{path} takes no space")).await;
    }
    let programs = programs.restart(&lab).await;
    assert!(!programs.is_there("a/c/0").await && !programs.is_there("a/c/2").await, "after a restart");
}

#[tokio::test]
async fn a_file_made_under_the_name_of_a_deleted_open_one_is_another_file() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let old = programs.open("a/c/0", WRITE).await.unwrap();
    programs.unlink("a/c/0").await.unwrap();
    programs.put("a/c/0", "another").await;
    programs.write(&old, 0, "of the old one").await;
    assert_eq!(programs.get("a/c/0").await, "another", "a write to the old file is not in the new one");
    programs.patch("a/c/0", 0, "AN").await;
    assert_eq!(programs.read(&old).await, "of the old one", "nor the other way round");
    programs.close(old).await;
    programs.commit().await;
    assert_eq!(committed(&lab, "second").await["a/c/0"], "ANother");
}

#[tokio::test]
async fn a_program_that_reads_sees_the_file_emptied_and_written_by_another() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let reader = programs.open("a/c/0", READ).await.unwrap();
    assert_eq!(programs.read(&reader).await, "zero zero");
    let writer = programs.open("a/c/0", TRUNCATE).await.unwrap();
    assert_eq!(programs.read(&reader).await, "", "it is one file: emptied for all");
    programs.write(&writer, 2, "new").await;
    assert_eq!(programs.read(&reader).await, "\0\0new", "and written for all");
    programs.close(writer).await;
    assert_eq!(programs.read(&reader).await, "\0\0new");
    programs.close(reader).await;
}

#[tokio::test]
async fn open_files_go_along_with_their_directory() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let base = programs.open("a/c/0", WRITE).await.unwrap();
    let own = programs.create("a/c/2").await.unwrap();
    let reader = programs.open("a/c/1", READ).await.unwrap();
    programs.mv("a", "b").await;
    programs.write(&base, 5, "ZERO").await;
    programs.write(&own, 0, "two").await;
    assert_eq!(programs.read(&reader).await, "one");
    for (path, text) in [("b/c/0", "zero ZERO"), ("b/c/2", "two"), ("b/c/1", "one")] {
        assert_eq!(programs.get(path).await, text, "{path} by its new name");
    }
    assert!(!programs.is_there("a").await);
    for opened in [base, own, reader] {
        programs.close(opened).await;
    }
    programs.commit().await;
    let committed = committed(&lab, "second").await;
    assert_eq!((&*committed["b/c/0"], &*committed["b/c/2"]), ("zero ZERO", "two"));
    assert!(!committed.contains_key("a/"));
}

#[tokio::test]
async fn an_exchange_of_open_files_exchanges_names_alone() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let zero = programs.open("a/c/0", WRITE).await.unwrap();
    let em = programs.open("m/c/0", WRITE).await.unwrap();
    programs.write(&zero, 0, "Z").await;
    programs.rename("a/c/0", "m/c/0", RenameMode::Exchange).await.unwrap();
    programs.write(&zero, 1, "E").await;
    programs.write(&em, 0, "E").await;
    assert_eq!((programs.read(&zero).await, programs.read(&em).await), ("ZEro zero".into(), "Em".into()));
    programs.close(zero).await;
    programs.close(em).await;
    assert_eq!((programs.get("m/c/0").await, programs.get("a/c/0").await), ("ZEro zero".into(), "Em".into()));
}

#[tokio::test]
async fn one_of_two_names_is_removed_while_the_file_is_open_by_the_other() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    programs.link("a/c/0", "m/c/3").await.unwrap();
    let opened = programs.open("a/c/0", WRITE).await.unwrap();
    programs.write(&opened, 0, "Z").await;
    programs.unlink("a/c/0").await.unwrap();
    programs.write(&opened, 1, "E").await;
    programs.close(opened).await;
    assert_eq!(programs.get("m/c/3").await, "ZEro zero", "the file has its other name");
    let programs = programs.restart(&lab).await;
    assert_eq!(programs.get("m/c/3").await, "ZEro zero", "after a restart");
    assert!(!programs.is_there("a/c/0").await, "the removed name does not come back");
}

#[tokio::test]
async fn only_files_open_for_writing_refuse_a_commit() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    programs.put("a/c/2", "two").await;
    let reader = programs.open("a/c/0", READ).await.unwrap();
    let writer = programs.open("a/c/1", WRITE).await.unwrap();
    assert!(programs.working().handles().any_open_for_writing());
    let error = programs.session.commit(CommitOptions::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.to_string().contains("/a/c/1") && !error.to_string().contains("/a/c/0"), "{error}");
    assert_eq!(programs.get("a/c/2").await, "two", "nothing was changed");
    programs.close(writer).await;
    assert!(!programs.working().handles().any_open_for_writing());
    assert!(programs.commit().await.snapshot.is_some(), "a reader is in nobody's way");
    assert_eq!(programs.read(&reader).await, "zero zero");
    programs.close(reader).await;
}

#[tokio::test]
async fn an_open_that_is_refused_leaves_no_handle_and_no_change() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let executed = programs.open("a/c/0", OpenOptions { execute: true, ..READ }).await.unwrap();
    let emptying = OpenOptions { unless_executed: true, ..TRUNCATE };
    assert_eq!(refused(programs.open("a/c/0", emptying).await), ErrorKind::Executed);
    assert_eq!(programs.read(&executed).await, "zero zero", "the file was not emptied");
    programs.put("a/c/2", "two").await;
    let number = programs.number("a/c/2").await.unwrap();
    programs.unlink("a/c/2").await.unwrap();
    programs.forget_all();
    for options in [READ, WRITE, TRUNCATE] {
        assert_eq!(refused(programs.open_number(number, options).await), ErrorKind::Stale, "{options:?}");
    }
    assert!(!programs.working().handles().any_open_for_writing(), "a failed open is never closed");
    programs.close(executed).await;
    let opened = programs.open("a/c/0", emptying).await.unwrap();
    programs.close(opened).await;
    assert_eq!(programs.get("a/c/0").await, "", "the process has ended");
}

#[tokio::test]
async fn what_the_kernel_writes_by_itself_is_read_and_committed() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    programs.put("a/c/2", "own").await;
    let options = OpenOptions { passthrough: true, ..WRITE };
    let number = programs.number("a/c/2").await.unwrap();
    let opened = programs.working().handles().open_file(number, options).await.unwrap();
    let backing = opened.backing.expect("a file of the scratch directory can be passed through");
    backing.write_all_at(b"KERNEL", 2).unwrap();
    assert_eq!(programs.get("a/c/2").await, "owKERNEL", "other programs read it at once");
    drop(backing);
    let second = programs.working().handles().open_file(number, options).await.unwrap();
    second.backing.expect("all handles have one backing").write_all_at(b"k", 2).unwrap();
    let kind = crate::overlay::opens::HandleKind { writes: true, backed: true, executes: false };
    for _ in 0..2 {
        assert_eq!(refused(programs.session.commit(CommitOptions::default()).await), ErrorKind::Busy);
        programs.working().handles().release(number, kind).await.unwrap();
    }
    programs.commit().await;
    assert_eq!(committed(&lab, "second").await["a/c/2"], "owkERNEL");
}

/// Opens files that are open over a commit of them.
async fn readers_over_a_commit(programs: &Programs, passthrough: bool) -> Vec<(Descriptor, String)> {
    let mut readers = Vec::new();
    for path in ["a/c/0", "a/c/1", "a/c/2", "a/c/3"] {
        let opened = programs.open(path, OpenOptions { passthrough, ..READ }).await.unwrap();
        let bytes = programs.read(&opened).await;
        readers.push((opened, bytes));
    }
    readers
}

#[tokio::test]
async fn programs_that_read_go_on_over_the_commit_of_their_files() {
    for passthrough in [false, true] {
        let lab = Lab::new().await;
        let programs = Programs::with_arrays(&lab).await;
        programs.patch("a/c/0", 0, "Z").await;
        programs.put("a/c/2", &"large".repeat(60 << 10)).await;
        programs.put("a/c/3", "three").await;
        let readers = readers_over_a_commit(&programs, passthrough).await;
        programs.commit().await;
        for (opened, bytes) in &readers {
            assert!(programs.read(opened).await == *bytes, "{opened:?} is read over a commit");
        }
        programs.unlink("a/c/3").await.unwrap();
        programs.put("a/c/4", "four").await;
        programs.commit().await;
        for (opened, bytes) in readers {
            assert!(programs.read(&opened).await == bytes, "{opened:?} is read over the next commit");
            programs.close(opened).await;
        }
        programs.forget_all();
        programs.check_data_files(0, "no byte is kept for files that are closed").await;
        assert_eq!(programs.tree().await, committed(&lab, "second").await, "the mount shows what was committed");
    }
}
