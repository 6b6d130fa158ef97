//! Programs that change one file: editors, sed, dd, truncate.

use std::process::Command;

use super::copying::sh;
use super::scenario::commit_and_compare;
use crate::common::run;
use crate::common::writing::{GROUP, Writable, array, needed, put};

fn mount() -> Writable {
    let mount = Writable::new(&[]);
    put(&mount.root().join("zarr.json"), format!("{GROUP}\n")).unwrap();
    put(&mount.root().join("a/zarr.json"), array(&[4], &[2]) + "\n").unwrap();
    put(&mount.root().join("a/c/0"), "abcdefgh").unwrap();
    commit_and_compare(&mount, &[]);
    mount
}

#[test]
fn sed_and_dd_and_truncate_change_files() {
    let mount = mount();
    let outside = tempfile::tempdir().unwrap();
    let root = mount.root();
    let sh = |script: &str| sh(&root, outside.path(), script);
    sh("sed -i 's/\"attributes\":{}/\"attributes\":{\"by\":\"sed\"}/' \"$1/a/zarr.json\"");
    let keys = commit_and_compare(&mount, &[]);
    assert!(String::from_utf8_lossy(&keys["a/zarr.json"]).contains("\"by\":\"sed\""));

    sh("cp \"$1/a/c/0\" \"$1/a/c/1\"
        printf XY | dd of=\"$1/a/c/0\" bs=1 seek=2 conv=notrunc,fsync status=none
        truncate -s 5 \"$1/a/c/1\" && printf z >> \"$1/a/c/1\"");
    let keys = commit_and_compare(&mount, &[]);
    assert_eq!((&keys["a/c/0"][..], &keys["a/c/1"][..]), (&b"abXYefgh"[..], &b"abcdez"[..]));

    // A backup copy of an editor is untracked, and stays.
    sh("sed -i.bak 's/sed/again/' \"$1/a/zarr.json\" && fallocate -l 20 \"$1/a/c/1\"");
    let keys = commit_and_compare(&mount, &["a/zarr.json.bak"]);
    assert_eq!(keys["a/c/1"], b"abcdez\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    sh("mv \"$1/a/zarr.json.bak\" \"$1/a/zarr.json\"");
    let keys = commit_and_compare(&mount, &[]);
    assert!(String::from_utf8_lossy(&keys["a/zarr.json"]).contains("\"by\":\"sed\""));
}

#[test]
fn vim_saves_in_each_of_its_ways() {
    if !needed(Command::new("vim").arg("--version").output().is_ok(), "vim: scripts/setup --python installs it") {
        return;
    }
    let mount = mount();
    let file = mount.root().join("a/zarr.json");
    // Below the system's directory for temporary files vim saves in a simpler way, unless
    // `backupskip` is empty.
    let ways = [
        ("renamed", "set backupskip= nobackup writebackup backupcopy=no"),
        ("in place", "set backupskip= nobackup writebackup backupcopy=yes"),
        ("as it likes", "set backupskip= backupcopy=auto"),
        ("no copy", "set nobackup nowritebackup"),
    ];
    for (way, setting) in ways {
        let change =
            format!("%s/\"attributes\":{{.*}},\"chunk_grid/\"attributes\":{{\"way\":\"{way}\"}},\"chunk_grid/");
        let mut vim = Command::new("vim");
        vim.args(["-es", "-u", "NONE", "-c", "set swapfile", "-c", setting, "-c", &change, "-c", "wq"]).arg(&file);
        run(&mut vim).success();
        let keys = commit_and_compare(&mount, &[]);
        let text = String::from_utf8_lossy(&keys["a/zarr.json"]).into_owned();
        assert!(text.contains(&format!("\"way\":\"{way}\"")), "{way}: {text}");
    }
    // With a backup copy.
    let mut vim = Command::new("vim");
    vim.args(["-es", "-u", "NONE", "-c", "set backupskip= backup backupcopy=no", "-c", "%s/like/wish/e", "-c", "wq"]);
    run(vim.arg(&file)).success();
    commit_and_compare(&mount, &["a/zarr.json~"]);
}
