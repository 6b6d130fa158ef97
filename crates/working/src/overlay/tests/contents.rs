//! [`FileContents`](super::super::content::FileContents): bytes that are read, written, cut and
//! lengthened.

use crate::lab::Lab;
use crate::lab::programs::{CHUNKS, Programs, READ, TRUNCATE, WRITE, committed};
use crate::overlay::set_attributes::SetAttrs;
use crate::scratch::record::Time;

#[tokio::test]
async fn a_write_beyond_the_end_leaves_zeros_between() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let opened = programs.create("a/c/2").await.unwrap();
    programs.write(&opened, 5, "end").await;
    assert_eq!(programs.read(&opened).await, "\0\0\0\0\0end", "in a new file");
    programs.close(opened).await;
    programs.patch("a/c/1", 6, "end").await;
    assert_eq!(programs.get("a/c/1").await, "one\0\0\0end", "in a file of the snapshot");
    let programs = programs.restart(&lab).await;
    assert_eq!(programs.get("a/c/1").await, "one\0\0\0end", "after a restart");
    programs.commit().await;
    let committed = committed(&lab, "second").await;
    assert_eq!((&*committed["a/c/1"], &*committed["a/c/2"]), ("one\0\0\0end", "\0\0\0\0\0end"));
}

#[tokio::test]
async fn a_write_in_the_middle_keeps_the_rest_of_the_file() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    programs.patch("a/c/0", 3, "XY").await;
    assert_eq!(programs.get("a/c/0").await, "zerXYzero");
    for (path, text) in &CHUNKS[1..] {
        assert_eq!(programs.get(path).await, *text, "another chunk is as it was");
    }
    programs.commit().await;
    assert_eq!(committed(&lab, "second").await["a/c/0"], "zerXYzero");
}

#[tokio::test]
async fn an_overwrite_from_the_beginning_keeps_what_it_does_not_reach() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let opened = programs.open("a/c/0", WRITE).await.unwrap();
    programs.write(&opened, 0, "AB").await;
    assert_eq!(programs.stat("a/c/0").await.unwrap().size, 9, "the file is not cut");
    programs.write(&opened, 2, "CD").await;
    assert_eq!(programs.get("a/c/0").await, "ABCD zero", "another program reads both parts");
    programs.write(&opened, 4, "E").await;
    assert_eq!(programs.read(&opened).await, "ABCDEzero");
    programs.close(opened).await;
    let opened = programs.open("a/c/1", WRITE).await.unwrap();
    programs.write(&opened, 0, "O").await;
    programs.close(opened).await;
    assert_eq!(programs.get("a/c/1").await, "One", "also if the file was closed after its first byte");
}

#[tokio::test]
async fn the_last_of_overlapping_writes_counts() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let one = programs.open("a/c/0", WRITE).await.unwrap();
    let other = programs.open("a/c/0", WRITE).await.unwrap();
    programs.write(&one, 0, "1111").await;
    programs.write(&other, 2, "2222").await;
    programs.write(&one, 4, "3333").await;
    programs.write(&other, 0, "4").await;
    assert_eq!(programs.read(&one).await, "41223333o", "by either handle");
    programs.close(one).await;
    assert_eq!(programs.read(&other).await, "41223333o", "the close of one writer changes nothing");
    programs.close(other).await;
    assert_eq!(programs.get("a/c/0").await, "41223333o");
}

#[tokio::test]
async fn an_overwrite_goes_on_under_another_name_and_without_one() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let opened = programs.open("a/c/0", WRITE).await.unwrap();
    programs.write(&opened, 0, "AB").await;
    programs.mv("a/c/0", "a/c/2").await;
    programs.write(&opened, 2, "CD").await;
    assert_eq!(programs.get("a/c/2").await, "ABCD zero", "the old bytes moved with the file");
    programs.write(&opened, 4, "E").await;
    programs.unlink("a/c/2").await.unwrap();
    assert_eq!(programs.read(&opened).await, "ABCDEzero", "and are there without a name");
    programs.close(opened).await;
    assert!(!programs.is_there("a/c/0").await && !programs.is_there("a/c/2").await);
}

#[tokio::test]
async fn a_file_that_is_cut_and_lengthened_has_zeros_and_not_its_old_bytes() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    programs.put("a/c/2", "own bytes").await;
    for (path, zeros) in [("a/c/0", "ze\0\0\0\0"), ("a/c/2", "ow\0\0\0\0")] {
        programs.truncate(path, 2).await;
        assert_eq!(programs.get(path).await, zeros[..2]);
        programs.truncate(path, 6).await;
        assert_eq!(programs.get(path).await, zeros, "{path}");
    }
    let programs = programs.restart(&lab).await;
    assert_eq!(programs.get("a/c/0").await, "ze\0\0\0\0", "after a restart");
    programs.truncate("a/c/1", 5).await;
    assert_eq!(programs.get("a/c/1").await, "one\0\0", "a file of the snapshot that is only lengthened");
    programs.truncate("a/c/7", 5).await;
    assert_eq!(programs.get("a/c/7").await, "seven", "cut to its length");
}

#[tokio::test]
async fn a_file_is_cut_in_the_middle_of_an_overwrite() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let opened = programs.open("a/c/0", WRITE).await.unwrap();
    programs.write(&opened, 0, "ABCD").await;
    programs.truncate("a/c/0", 6).await;
    assert_eq!(programs.read(&opened).await, "ABCD z", "what was written and what was not");
    programs.truncate("a/c/0", 2).await;
    programs.write(&opened, 4, "E").await;
    assert_eq!(programs.read(&opened).await, "AB\0\0E");
    programs.close(opened).await;
    assert_eq!(programs.get("a/c/0").await, "AB\0\0E");
}

#[tokio::test]
async fn an_emptied_file_is_empty_before_anything_is_written() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let opened = programs.open("m/c/0", TRUNCATE).await.unwrap();
    assert_eq!(programs.read(&opened).await, "");
    programs.close(opened).await;
    let programs = programs.restart(&lab).await;
    assert_eq!(programs.get("m/c/0").await, "", "after a restart");
    programs.patch("m/c/0", 3, "x").await;
    assert_eq!(programs.get("m/c/0").await, "\0\0\0x", "no old byte comes back");
}

#[tokio::test]
async fn reads_end_with_the_file() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    programs.put("a/c/2", "own bytes").await;
    for path in ["a/c/0", "a/c/2"] {
        let number = programs.number(path).await.unwrap();
        for (offset, size, length) in [(0, 4, 4), (7, 4, 2), (9, 4, 0), (1000, 4, 0), (1 << 40, 4, 0)] {
            let read = programs.working().contents().read(number, offset, size).await.unwrap();
            assert_eq!(read.to_vec().len(), length, "{size} bytes of {path} from {offset} on");
        }
    }
}

#[tokio::test]
async fn an_overwrite_that_the_daemon_did_not_survive_mixes_no_bytes() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let opened = programs.open("a/c/0", WRITE).await.unwrap();
    programs.write(&opened, 0, "NEW").await;
    let programs = programs.restart(&lab).await;
    let found = programs.get("a/c/0").await;
    assert!(["zero zero", "NEWo zero"].contains(&&*found), "as it was last closed, or as it was written: {found}");
}

#[tokio::test]
async fn times_modes_and_owners_that_were_set_survive_a_restart() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let [atime, mtime] = [Time(1_000_000_000, 1), Time(1_100_000_000, 123_456_789)];
    let mode = Some(0o640);
    let settings = SetAttrs { mode, uid: Some(11), gid: Some(12), size: None, atime: Some(atime), mtime: Some(mtime) };
    programs.put("a/c/2", "own").await;
    let paths = ["a/c/0", "a/c/2", "a/c", "a"];
    for path in paths {
        programs.set(path, settings).await;
    }
    let programs = programs.restart(&lab).await;
    for path in paths {
        let meta = programs.stat(path).await.unwrap().meta;
        let found = (Some(meta.mode), meta.uid, meta.gid, meta.atime, meta.mtime);
        assert_eq!(found, (mode, 11, 12, atime, mtime), "{path}");
    }
    assert_eq!(programs.get("a/c/0").await, "zero zero", "no byte was touched");
    assert_eq!(programs.session.status().await.unwrap().chunks_written, 1, "another mode is no write");
}

#[tokio::test]
async fn a_chunk_that_was_linked_into_the_repository_is_never_written_again() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let large = "x".repeat(300 << 10);
    programs.put("a/c/2", &large).await;
    programs.commit().await;
    let other = Programs::new(&lab, "second").await;
    let reader = programs.open("a/c/2", READ).await.unwrap();
    programs.patch("a/c/2", 10, "PATCH").await;
    assert!(other.get("a/c/2").await == large, "the snapshot has its bytes");
    assert_eq!(programs.read(&reader).await[8..17], *"xxPATCHxx", "one file, for all who had opened it");
    programs.truncate("a/c/2", 100).await;
    assert!(other.get("a/c/2").await == large, "the snapshot has its bytes after a truncation");
    programs.close(reader).await;
    programs.session.discard("/a/c/2").await.unwrap();
    assert!(programs.get("a/c/2").await == large, "they are what a discard brings back");
}
