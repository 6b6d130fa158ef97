//! Programs that copy whole trees: into the mount, inside it, and again.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use super::scenario::commit_and_compare;
use crate::common::writing::{Reference, Writable, array, put};
use crate::common::{FixtureSet, Mount, copy_tree, read_files, run};

/// Runs a script of bash with the mount as `$1` and a place outside of it as `$2`.
#[track_caller]
pub(crate) fn sh(mount: &Path, outside: &Path, script: &str) -> String {
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c", script, "bash"]).arg(mount).arg(outside);
    run(&mut command).text()
}

/// Returns a plain directory with everything that a fixture has: all key encodings, empty names,
/// sharded and large arrays.
fn source() -> tempfile::TempDir {
    let fixture = FixtureSet::own().get("own-v2-basic");
    let mount = Mount::new(&fixture.repository, &["-o", "ro"]);
    let directory = tempfile::tempdir().unwrap();
    copy_tree(&mount.path(), &directory.path().join("tree"));
    assert!(read_files(directory.path()).len() > 60);
    directory
}

fn below(files: &BTreeMap<String, Vec<u8>>, name: &str) -> BTreeMap<String, Vec<u8>> {
    let prefix = format!("{name}/");
    files.iter().filter_map(|(key, bytes)| Some((key.strip_prefix(&prefix)?.to_owned(), bytes.clone()))).collect()
}

#[test]
fn trees_are_copied_into_the_mount() {
    let source = source();
    let wanted = below(&read_files(source.path()), "tree");
    let copies = [
        ("cp-r", "cp -r \"$2/tree\" \"$1/cp-r\""),
        ("cp-a", "cp -a \"$2/tree\" \"$1/cp-a\""),
        ("rsync", "rsync -a \"$2/tree/\" \"$1/rsync/\""),
        ("inplace", "rsync -a --inplace \"$2/tree/\" \"$1/inplace/\""),
        ("tar", "mkdir \"$1/tar\" && tar --format=posix -C \"$2/tree\" -cf - . | tar -C \"$1/tar\" -xf -"),
        ("install", "cd \"$2/tree\" && find . -type f -exec install -D -m 644 {} \"$1/install/{}\" \\;"),
    ];
    let mount = Writable::new(&[]);
    for (name, script) in copies {
        let output = sh(&mount.root(), source.path(), script);
        assert_eq!(output, "", "{name}");
        assert!(below(&read_files(&mount.root()), name) == wanted, "{name}");
    }
    // Times and modes are kept where the program keeps them.
    for name in ["cp-a", "rsync", "inplace", "tar"] {
        let list = "-printf '%P %y %m %TY-%Tm-%Td %TT %s\\n'";
        let script = format!("cd \"$1/{name}\" && find . -type f {list} | LC_ALL=C sort");
        let kept = sh(&mount.root(), source.path(), &script);
        let original =
            sh(&mount.root(), source.path(), &format!("cd \"$2/tree\" && find . -type f {list} | LC_ALL=C sort"));
        assert_eq!(kept, original, "{name}");
    }
    // A second run has nothing to do.
    let again =
        "rsync -a --itemize-changes \"$2/tree/\" \"$1/rsync/\"; rsync -a --itemize-changes \"$2/tree/\" \"$1/cp-a/\"";
    assert_eq!(sh(&mount.root(), source.path(), again), "", "rsync copied something a second time");
    // After this one it has, and reports it.
    let changed = "printf x >> \"$2/tree/zarr.json\"; rsync -a --itemize-changes \"$2/tree/\" \"$1/rsync/\"";
    let changed = sh(&mount.root(), source.path(), changed);
    assert!(changed.contains("zarr.json") && changed.lines().count() <= 2, "{changed}");
    sh(&mount.root(), source.path(), "truncate -s -1 \"$2/tree/zarr.json\"; rsync -a \"$2/tree/\" \"$1/rsync/\"");

    run(Command::new("touch").arg(mount.control("commit"))).success();
    let fresh = mount.fresh();
    let working = read_files(&mount.root());
    let keys = Reference::open(mount.repository()).keys();
    for (name, _) in copies {
        assert!(below(&working, name) == wanted, "{name} in the mount");
        assert!(below(&fresh, name) == wanted, "{name} in a fresh mount");
        // The reference lists chunks by their coordinates: as many keys, and the same documents.
        let stored = below(&keys, name);
        assert_eq!(stored.len(), wanted.len(), "{name}");
        let documents = |files: &BTreeMap<String, Vec<u8>>| {
            files
                .iter()
                .filter(|(key, _)| key.ends_with("zarr.json"))
                .map(|(k, b)| (k.clone(), b.clone()))
                .collect::<Vec<_>>()
        };
        assert_eq!(documents(&stored), documents(&wanted), "{name}");
    }
}

/// Committed nodes are copied and moved inside the mount.
#[test]
fn committed_nodes_are_copied_and_moved() {
    let mount = Writable::new(&[]);
    let root = mount.root();
    put(&root.join("g/a/zarr.json"), array(&[6, 4], &[1, 1])).unwrap();
    put(&root.join("g/zarr.json"), crate::common::writing::GROUP).unwrap();
    for n in 0..6_u8 {
        put(&root.join(format!("g/a/c/{n}/0")), vec![n; 300]).unwrap();
        put(&root.join(format!("g/a/c/{n}/1")), vec![n; 70_000]).unwrap();
    }
    commit_and_compare(&mount, &[]);
    let array_files = below(&read_files(&root.join("g")), "a");
    let outside = tempfile::tempdir().unwrap();
    let sh = |script: &str| sh(&root, outside.path(), script);

    sh("cp -r \"$1/g/a\" \"$1/copy\" && cp -a \"$1/g\" \"$1/g2\" && mv \"$1/g/a\" \"$1/moved\"");
    let keys = commit_and_compare(&mount, &[]);
    for name in ["copy", "g2/a", "moved"] {
        assert!(below(&keys, name) == array_files, "{name}");
    }
    assert!(below(&keys, "g/a").is_empty());

    // Moved, and changed in the same commit; a group with its content; a chunk; over another node.
    sh("mv \"$1/moved\" \"$1/g/a\" && printf new > \"$1/g/a/c/0/0\" && rm \"$1/g/a/c/1/0\"
        mv \"$1/g\" \"$1/h\" && mv \"$1/h/a/c/2/0\" \"$1/h/a/c/3/0\"
        mv -T \"$1/g2/a\" \"$1/other\" && rm -r \"$1/g2\" && mv -f \"$1/copy/c/0/1\" \"$1/copy/c/0/0\"");
    let keys = commit_and_compare(&mount, &[]);
    let mut wanted = array_files.clone();
    wanted.insert("c/0/0".into(), b"new".to_vec());
    wanted.remove("c/1/0");
    let moved = wanted.remove("c/2/0").unwrap();
    wanted.insert("c/3/0".into(), moved);
    assert!(below(&keys, "h/a") == wanted && below(&keys, "other") == array_files);
    assert!(!keys.contains_key("copy/c/0/1") && keys["copy/c/0/0"] == array_files["c/0/1"]);

    // Everything is removed, and an empty repository is left; directories may stay.
    sh("rm -rf \"$1\"/*");
    assert!(commit_and_compare(&mount, &[]).is_empty());
    assert!(mount.control("commit").exists());
}
