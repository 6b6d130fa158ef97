//! [`FileContents`](super::super::content::FileContents): copies, holes and allocations.

use crate::lab::Lab;
use crate::lab::programs::{Programs, TRUNCATE, WRITE, committed};
use crate::overlay::Ino;

const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
/// Bytes between which file systems can have a hole.
const FAR: u64 = 1 << 20;

/// Copies bytes until as many are copied as a program asked for, as `copy_file_range` does.
async fn copy(programs: &Programs, from: (Ino, u64), to: (Ino, u64), length: u64) -> u64 {
    let mut done = 0;
    while done < length {
        let copied = programs.working().contents().copy((from.0, from.1 + done), (to.0, to.1 + done), length - done);
        match copied.await.unwrap() {
            0 => break,
            copied => done += copied,
        }
    }
    done
}

#[tokio::test]
async fn a_punched_hole_reads_as_zeros_and_leaves_the_rest() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let opened = programs.open("a/c/0", WRITE).await.unwrap();
    programs.working().contents().allocate(opened.number, 2, 3, PUNCH).await.unwrap();
    assert_eq!(programs.read(&opened).await, "ze\0\0\0zero", "bytes of the snapshot");
    programs.working().contents().allocate(opened.number, 8, 100, PUNCH).await.unwrap();
    assert_eq!(programs.read(&opened).await, "ze\0\0\0zer\0", "a hole does not lengthen the file");
    programs.close(opened).await;
    let programs = programs.restart(&lab).await;
    assert_eq!(programs.get("a/c/0").await, "ze\0\0\0zer\0");
}

#[tokio::test]
async fn an_allocation_lengthens_a_file_by_zeros_unless_its_size_is_kept() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let opened = programs.open("a/c/1", WRITE).await.unwrap();
    programs.working().contents().allocate(opened.number, 0, 6, libc::FALLOC_FL_KEEP_SIZE).await.unwrap();
    assert_eq!(programs.read(&opened).await, "one");
    programs.working().contents().allocate(opened.number, 0, 6, 0).await.unwrap();
    assert_eq!(programs.read(&opened).await, "one\0\0\0");
    programs.write(&opened, 1, "N").await;
    programs.close(opened).await;
    assert_eq!(programs.get("a/c/1").await, "oNe\0\0\0");
}

#[tokio::test]
async fn an_allocation_in_the_middle_of_an_overwrite_loses_neither_side() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let opened = programs.open("a/c/0", WRITE).await.unwrap();
    programs.write(&opened, 0, "ABC").await;
    programs.working().contents().allocate(opened.number, 5, 2, PUNCH).await.unwrap();
    assert_eq!(programs.read(&opened).await, "ABCo \0\0ro");
    programs.write(&opened, 3, "DE").await;
    programs.close(opened).await;
    assert_eq!(programs.get("a/c/0").await, "ABCDE\0\0ro");
}

#[tokio::test]
async fn data_and_holes_are_found_where_they_are() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let opened = programs.create("a/c/2").await.unwrap();
    programs.write(&opened, FAR, "data").await;
    programs.truncate("a/c/2", 3 * FAR).await;
    let seek = async |offset, hole| programs.working().contents().seek(opened.number, offset, hole).await.unwrap();
    assert_eq!(seek(FAR, false).await, Some(FAR), "there is data");
    assert!(seek(0, false).await.is_some_and(|at| at <= FAR), "data is never skipped");
    let hole = seek(FAR, true).await.unwrap();
    assert!((FAR + 4..=3 * FAR).contains(&hole), "a hole begins behind the data: {hole}");
    assert_eq!(seek(3 * FAR, false).await, None, "nothing is behind the end");
    assert_eq!(seek(3 * FAR, true).await, None, "no hole either");
    programs.close(opened).await;
}

#[tokio::test]
async fn a_file_of_the_snapshot_is_data_up_to_its_end() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let opened = programs.open("a/c/0", WRITE).await.unwrap();
    for is_written in [false, true] {
        if is_written {
            programs.write(&opened, 0, "AB").await;
        }
        let seek = async |offset, hole| programs.working().contents().seek(opened.number, offset, hole).await.unwrap();
        assert_eq!((seek(0, false).await, seek(5, false).await), (Some(0), Some(5)), "written: {is_written}");
        assert_eq!((seek(0, true).await, seek(5, true).await), (Some(9), Some(9)), "the end counts as a hole");
        assert_eq!((seek(9, false).await, seek(9, true).await), (None, None), "nothing is behind the end");
    }
    programs.close(opened).await;
}

#[tokio::test]
async fn bytes_are_copied_within_a_file_and_into_the_middle_of_another() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let zero = programs.open("a/c/0", WRITE).await.unwrap();
    assert_eq!(copy(&programs, (zero.number, 0), (zero.number, 5), 4).await, 4);
    assert_eq!(programs.read(&zero).await, "zero zero");
    assert_eq!(copy(&programs, (zero.number, 3), (zero.number, 0), 2).await, 2);
    assert_eq!(programs.read(&zero).await, "o ro zero", "within a file of the snapshot");
    let seven = programs.open("a/c/7", WRITE).await.unwrap();
    assert_eq!(copy(&programs, (zero.number, 5), (seven.number, 1), 2).await, 2);
    assert_eq!(programs.read(&seven).await, "szeen", "the rest of the target stays");
    assert_eq!(copy(&programs, (zero.number, 7), (seven.number, 4), 100).await, 2, "a copy ends with the source");
    assert_eq!(programs.read(&seven).await, "szeero");
    assert_eq!(copy(&programs, (zero.number, 9), (seven.number, 0), 100).await, 0, "nothing is behind the end");
    programs.close(zero).await;
    programs.close(seven).await;
}

#[tokio::test]
async fn a_copy_by_reference_and_its_source_are_two_files() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let source = programs.number("a/c/0").await.unwrap();
    for path in ["a/c/2", "a/c/3", "m/c/4"] {
        let target = programs.create(path).await.unwrap();
        assert_eq!(copy(&programs, (source, 0), (target.number, 0), 9).await, 9);
        programs.close(target).await;
    }
    programs.check_data_files(0, "a whole chunk is copied by reference").await;
    programs.patch("a/c/2", 1, "COPY").await;
    programs.patch("a/c/0", 5, "SOUR").await;
    let expected = [("a/c/0", "zero SOUR"), ("a/c/2", "zCOPYzero"), ("a/c/3", "zero zero"), ("m/c/4", "zero zero")];
    for (path, text) in expected {
        assert_eq!(programs.get(path).await, text, "{path}");
    }
    let programs = programs.restart(&lab).await;
    programs.commit().await;
    let committed = committed(&lab, "second").await;
    for (path, text) in expected {
        assert_eq!(committed[path], text, "{path} after a restart and a commit");
    }
}

#[tokio::test]
async fn a_copy_into_a_file_that_is_not_empty_or_not_whole_copies_bytes() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let source = programs.number("a/c/1").await.unwrap();
    let target = programs.open("a/c/0", WRITE).await.unwrap();
    assert_eq!(copy(&programs, (source, 0), (target.number, 0), 3).await, 3);
    assert_eq!(programs.read(&target).await, "oneo zero", "the rest of the target stays");
    programs.close(target).await;
    let target = programs.open("a/c/7", TRUNCATE).await.unwrap();
    assert_eq!(copy(&programs, (source, 0), (target.number, 2), 3).await, 3);
    assert_eq!(programs.read(&target).await, "\0\0one", "behind zeros");
    programs.close(target).await;
}

#[tokio::test]
async fn a_copy_of_a_file_in_the_middle_of_an_overwrite_has_both_parts() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let source = programs.open("a/c/0", WRITE).await.unwrap();
    programs.write(&source, 0, "AB").await;
    let target = programs.create("a/c/2").await.unwrap();
    assert_eq!(copy(&programs, (source.number, 0), (target.number, 0), 9).await, 9);
    programs.write(&source, 2, "CD").await;
    assert_eq!(programs.read(&target).await, "ABro zero", "the source at the time of the copy");
    assert_eq!(programs.read(&source).await, "ABCD zero");
    programs.close(source).await;
    programs.close(target).await;
}

#[tokio::test]
async fn a_copy_outlives_its_source_and_the_commit_of_its_removal() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let source = programs.number("a/c/0").await.unwrap();
    let target = programs.create("m/c/5").await.unwrap();
    assert_eq!(copy(&programs, (source, 0), (target.number, 0), 9).await, 9);
    programs.close(target).await;
    programs.remove_all("a").await;
    assert_eq!(programs.get("m/c/5").await, "zero zero");
    let programs = programs.restart(&lab).await;
    programs.commit().await;
    assert_eq!(programs.get("m/c/5").await, "zero zero");
    assert_eq!(committed(&lab, "second").await["m/c/5"], "zero zero");
}
