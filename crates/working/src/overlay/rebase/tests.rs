//! Moves of a tree in which a directory is where the base has a file.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::rc::Rc;

use crate::lab::Lab;
use crate::lab::kernel::Kernel;
use crate::lab::mount::{Branch, Mount};

async fn make_directories(kernel: &Kernel, paths: &[&str]) {
    for path in paths {
        kernel.create(path, libc::S_IFDIR | 0o755).await.unwrap();
    }
}

async fn make_file(kernel: &Kernel, path: &str) {
    let handle = kernel.create(path, libc::S_IFREG | 0o644).await.unwrap();
    kernel.write(&handle, 0, b"untracked").await.unwrap();
    kernel.close(handle).await.unwrap();
}

/// Nobody else has changed what was removed or moved away here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_in_the_place_of_a_file_that_is_gone_does_not_keep_a_refresh_from_anything() {
    for moves in [false, true] {
        let lab = Lab::new().await;
        let branch = Branch::default();
        let chunks: [(&str, &[u8]); 2] = [("0", b"zero"), ("1", b"one")];
        let mount = Mount::with_arrays(&lab, "first", &branch, &chunks).await;
        let mut other = Mount::new(&lab, "second", &Rc::clone(&branch)).await;
        let kernel = &mount.kernel;
        if moves {
            kernel.rename("a", "b").await.unwrap();
            make_directories(kernel, &["a", "a/c"]).await;
        } else {
            kernel.remove("a/c/0").await.unwrap();
        }
        make_directories(kernel, &["a/c/0"]).await;
        make_file(kernel, "a/c/0/x").await;
        other.write("m/c/1", b"of others").await;
        other.commit().await;

        mount.session.refresh().await.unwrap();
        let read = async |path: &str| {
            let handle = kernel.open(path, crate::overlay::handles::OpenOptions::default()).await.unwrap();
            let bytes = kernel.read(&handle).await.unwrap();
            kernel.close(handle).await.unwrap();
            bytes
        };
        assert_eq!(read("m/c/1").await, b"of others", "moves: {moves}");
        assert_eq!(read("a/c/0/x").await, b"untracked", "moves: {moves}");
        assert_eq!(kernel.list("a/c/0").await.unwrap(), ["x"], "moves: {moves}");
        if moves {
            assert_eq!(read("b/c/0").await, b"zero", "the array has moved with its chunks");
            assert_eq!(kernel.list("a/c").await.unwrap(), ["0"], "nothing of it is left");
        } else {
            assert_eq!(read("a/c/1").await, b"one");
        }
        let report = mount.session.status().await.unwrap();
        assert!(report.violations.is_empty(), "{:?}", report.violations);
    }
}

/// It does not hide the file that others have put there since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_in_the_place_of_a_file_that_others_changed_keeps_a_refresh_back() {
    let lab = Lab::new().await;
    let branch = Branch::default();
    let mount = Mount::with_arrays(&lab, "first", &branch, &[("1", b"one")]).await;
    let mut other = Mount::new(&lab, "second", &branch).await;
    make_directories(&mount.kernel, &["a/c/0"]).await;
    make_file(&mount.kernel, "a/c/0/x").await;
    other.write("a/c/0", b"of others").await;
    other.commit().await;
    let refused = mount.session.refresh().await.unwrap_err();
    assert!(refused.to_string().contains("/a/c/0"), "{refused}");
}
