//! Failures while a large chunk of a store is written in part: the bytes that were not written are
//! neither lost nor come back.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::moto::{Server, commit, icechunkfs, mount, repository, s3};
use crate::common::strace::Faults;
use crate::common::writing::{array, put};
use crate::common::{Mount, python, wait_until};

const LENGTH: usize = 3 << 20;
const CUT: usize = 2_000_000;

/// Makes a repository with one chunk, and mounts it with the scratch directory `scratch`.
fn mounted(server: &Server, repo: &str, scratch: &Path) -> Mount {
    icechunkfs(server.port, &["init", repo, "--zarr-group"]).success();
    let made = mount(server.port, repo, &["--ephemeral"]);
    put(&made.path().join("a/zarr.json"), array(&[LENGTH as u64], &[LENGTH as u64])).unwrap();
    put(&made.path().join("a/c/0"), vec![7; LENGTH]).unwrap();
    commit(&made).unwrap();
    made.unmount();
    mount(server.port, repo, &["--scratch", scratch.to_str().unwrap()])
}

fn content(mount: &Mount) -> Vec<u8> {
    fs::read(mount.path().join("a/c/0")).unwrap()
}

fn resize(mount: &Mount, length: usize) -> std::io::Result<()> {
    OpenOptions::new().write(true).open(mount.path().join("a/c/0"))?.set_len(length as u64)
}

/// Returns the bytes of the chunk in the repository.
fn committed(server: &Server, repo: &str) -> Vec<u8> {
    icechunkfs(server.port, &["cat", repo, "a/c/0"]).success()
}

#[test]
fn a_chunk_that_cannot_be_cut_keeps_its_bytes() {
    let Some(server) = s3() else { return };
    // The call fails, the process ends instead of it, and right after it.
    for (name, fault, length) in [
        ("fails", "ftruncate:error=EIO:when=1", LENGTH),
        ("ends", "ftruncate:signal=KILL:error=EIO:when=1", LENGTH),
        ("ends-after", "pwrite64:signal=KILL:error=EIO:when=1", CUT),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let repo = repository(&format!("cut-{name}"));
        let scratch = directory.path().join("scratch");
        let mut mount = mounted(&server, &repo, &scratch);
        let file = OpenOptions::new().write(true).open(mount.path().join("a/c/0")).unwrap();
        file.write_all_at(b"x", 1000).unwrap();
        drop(file);
        let mut expected = vec![7; LENGTH];
        expected[1000] = b'x';
        let Some(faults) = Faults::of(mount.daemon(), fault) else { return };
        assert!(resize(&mount, CUT).is_err(), "{name}");
        drop(faults);
        if name != "fails" {
            mount.unmount();
            mount = crate::common::moto::mount(server.port, &repo, &["--scratch", scratch.to_str().unwrap()]);
        }
        expected.truncate(length);
        assert!(content(&mount) == expected, "{name}");
        // Bytes that were cut off do not come back.
        resize(&mount, CUT).unwrap();
        resize(&mount, LENGTH).unwrap();
        expected.truncate(CUT);
        expected.resize(LENGTH, 0);
        assert!(content(&mount) == expected, "{name}");
        commit(&mount).unwrap();
        assert!(committed(&server, &repo) == expected, "{name}");
        mount.unmount();
    }
}

#[test]
fn a_sparse_copy_that_fails_halfway_hides_no_written_bytes() {
    let Some(server) = s3() else { return };
    let directory = tempfile::tempdir().unwrap();
    let repo = repository("halfway");
    let scratch = directory.path().join("scratch");
    let mount = mounted(&server, &repo, &scratch);
    let path = mount.path().join("a/c/0");
    // In another process: one that this test starts would close its copy of the file.
    let program = format!(
        "import os\nf = os.open({path:?}, os.O_WRONLY)\nos.pwrite(f, b'A' * (1 << 20), 0)\nprint('first', flush=True)\ninput()\n\
         os.pwrite(f, b'A' * {rest}, 1 << 20)\nos.close(f)\nprint('all', flush=True)",
        rest = LENGTH - (1 << 20)
    );
    let Some(python) = python() else { return };
    let mut writer =
        Command::new(python).args(["-c", &program]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(writer.stdout.take().unwrap()).lines();
    assert_eq!(said.next().unwrap().unwrap(), "first");
    // Another program reads: the file becomes a sparse copy, which takes two lines of the journal.
    let Some(faults) = Faults::of(mount.daemon(), "pwrite64:error=ENOSPC:when=2+2") else {
        writer.kill().and_then(|()| writer.wait()).unwrap();
        return;
    };
    let _ = fs::read(&path);
    let journal = || fs::read_to_string(scratch.join("journal")).unwrap();
    wait_until("no sparse copy is recorded", || journal().contains("borrowed"));
    assert!(!journal().contains("moved"), "{}", journal());
    drop(faults);
    writer.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert_eq!(said.next().unwrap().unwrap(), "all");
    assert!(writer.wait().unwrap().success());
    wait_until("the file is closed", || content(&mount) == vec![b'A'; LENGTH]);
    mount.unmount();
    let mount = crate::common::moto::mount(server.port, &repo, &["--scratch", scratch.to_str().unwrap()]);
    assert!(content(&mount) == vec![b'A'; LENGTH]);
    commit(&mount).unwrap();
    assert!(committed(&server, &repo) == vec![b'A'; LENGTH]);
}
