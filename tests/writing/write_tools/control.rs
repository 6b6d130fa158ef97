//! `.icechunk/commit`: every way to write it makes one commit, and the program gets the error of a
//! failure.

use std::process::Command;

use crate::common::mapping::Mapping;
use crate::common::writing::{GROUP, Reference, Writable, array, put};
use crate::common::{Output, icechunkfs, io_modes, python, run, run_on};

/// Ways to commit, as scripts with the control file as `$1` and a file with a message as `$2`; and
/// the resulting message of each.
const WAYS: [(&str, &str, Option<&str>); 19] = [
    ("touch", "touch \"$1\"", None),
    ("touch, with a time", "touch -d 2026-01-01 \"$1\"", None),
    ("echo", "echo \"a message\" > \"$1\"", Some("a message")),
    ("echo of dash", "exec dash -c 'echo \"a message\" > \"$0\"' \"$1\"", Some("a message")),
    ("printf without an end of line", "printf \"a message\" > \"$1\"", Some("a message")),
    ("echo at the end", "echo \"a message\" >> \"$1\"", Some("a message")),
    ("several lines", "cat > \"$1\" <<< $'a message\\n\\nwith more'", Some("a message\n\nwith more")),
    // Bash writes line by line: the first write must commit, because the shell ignores errors of
    // later ones.
    ("several lines of bash", "printf 'a message\\n\\nwith more\\n' > \"$1\"", Some("a message")),
    ("here document", "cat > \"$1\" <<< \"a message\"", Some("a message")),
    ("cp", "cp \"$2\" \"$1\"", Some("from a file")),
    ("cp with times", "cp -p \"$2\" \"$1\"", Some("from a file")),
    (
        "python, a copy",
        "\"$3\" -c 'import shutil, sys; shutil.copy2(sys.argv[1], sys.argv[2])' \"$2\" \"$1\"",
        Some("from a file"),
    ),
    ("cat", "cat \"$2\" > \"$1\"", Some("from a file")),
    ("tee", "echo \"a message\" | tee \"$1\" > /dev/null", Some("a message")),
    ("tee at the end", "echo \"a message\" | tee -a \"$1\" > /dev/null", Some("a message")),
    ("dd", "printf \"a message\" | dd of=\"$1\" status=none", Some("a message")),
    ("dd without truncating", "printf \"a message\" | dd of=\"$1\" conv=notrunc status=none", Some("a message")),
    ("python", "\"$3\" -c 'import sys; open(sys.argv[1], \"w\").write(\"a message\")' \"$1\"", Some("a message")),
    (
        "python, closed",
        "\"$3\" -c 'import sys\nwith open(sys.argv[1], \"w\") as f: f.write(\"a message\\n\")' \"$1\"",
        Some("a message"),
    ),
];

fn act(mount: &Writable, script: &str, message: &std::path::Path, python: &std::path::Path) -> Output {
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c", script, "bash"]).arg(mount.control("commit")).arg(message).arg(python);
    run(&mut command)
}

#[test]
fn each_way_to_commit_makes_one_commit_and_gets_its_error() {
    let Some(python) = python() else { return };
    let mount = Writable::new(&[]);
    let outside = tempfile::tempdir().unwrap();
    let message_file = outside.path().join("message");
    std::fs::write(&message_file, "from a file\n").unwrap();
    let reference = Reference::open(mount.repository());
    let bad = mount.root().join("bad/zarr.json");
    for (n, (way, script, message)) in WAYS.into_iter().enumerate() {
        let before = reference.history().len();
        put(&mount.root().join(format!("g{n}/zarr.json")), GROUP).unwrap();
        act(&mount, script, &message_file, &python).success();
        let history = reference.history();
        assert_eq!(history.len(), before + 1, "{way}: {history:?}");
        match message {
            Some(message) => assert_eq!(history[0].1.trim_end(), message, "{way}"),
            None => assert!(!history[0].1.trim().is_empty(), "{way}: a commit has a message"),
        }
        assert!(mount.read_control("commit").contains(&history[0].0), "{way}: {}", mount.read_control("commit"));
        assert_eq!(
            mount.read_control("commit").contains("note: "),
            way == "several lines of bash",
            "{}",
            mount.read_control("commit")
        );

        put(&bad, "{\"zarr_format\": 3, \"node_type\": \"group\", \"attributes\": {\"x\": NaN}}").unwrap();
        let refused = act(&mount, script, &message_file, &python);
        // A Python program that leaves the file to the garbage collector gets no error: the control
        // file shows it instead.
        if way != "python" {
            assert!(!refused.status.success(), "{way}: it was not told of the failure");
        }
        assert_eq!(reference.history().len(), before + 1, "{way}: a refused commit is none");
        assert!(mount.read_control("commit").contains("bad/zarr.json"), "{way}: {}", mount.read_control("commit"));
        assert!(mount.root().join("bad/zarr.json").exists());
        std::fs::remove_file(&bad).unwrap();
        std::fs::remove_dir(bad.parent().unwrap()).unwrap();
    }
}

#[test]
fn a_commit_without_changes_succeeds_and_adds_nothing() {
    let Some(python) = python() else { return };
    let mount = Writable::new(&[]);
    put(&mount.root().join("zarr.json"), GROUP).unwrap();
    mount.touch("commit").unwrap();
    let reference = Reference::open(mount.repository());
    let history = reference.history();
    for (way, script, _) in WAYS {
        let output = act(&mount, script, std::path::Path::new("/dev/null"), &python);
        // A copy of an empty file writes nothing, and so it need not commit.
        assert!(output.status.success(), "{way}: {}", output.stderr);
        assert_eq!(reference.history(), history, "{way}");
    }
    let output = run_on(mount.root(), &["commit", "-m", "none"]).success();
    assert!(String::from_utf8(output).unwrap().contains("nothing to commit"));
    let output = icechunkfs(["commit", mount.root().to_str().unwrap(), "-m", "none", "--json"]).json();
    assert!(output["snapshot"].is_null(), "{output}");
}

#[test]
fn a_file_open_for_writing_is_named() {
    let mount = Writable::new(&[]);
    put(&mount.root().join("zarr.json"), GROUP).unwrap();
    let open = std::fs::OpenOptions::new().append(true).open(mount.root().join("zarr.json")).unwrap();
    let refused = mount.touch("commit").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EBUSY), "{refused}");
    assert!(mount.read_control("commit").contains("zarr.json"), "{}", mount.read_control("commit"));
    let refused = run_on(mount.root(), &["commit", "-m", "x"]).failure();
    assert!(refused.contains("zarr.json"), "{refused}");
    drop(open);
    // A commit succeeds right after the close, although the kernel reports the close later.
    mount.touch("commit").unwrap();
    assert_eq!(Reference::open(mount.repository()).history().len(), 2);
}

/// A mapping counts as an open file, also when the kernel made it without a request and the file
/// was closed.
#[test]
fn a_file_mapped_for_writing_is_named() {
    for mode in io_modes() {
        let mount = Writable::new(&["--io", mode]);
        const LENGTH: usize = 1 << 20;
        put(&mount.root().join("zarr.json"), GROUP).unwrap();
        put(&mount.root().join("a/zarr.json"), array(&[2], &[1])).unwrap();
        put(&mount.root().join("a/c/0"), vec![1; LENGTH]).unwrap();
        let path = mount.root().join("a/c/1");
        put(&path, vec![1; LENGTH]).unwrap();
        let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let mapping = Mapping::shared(&file);
        drop(file);
        let refused = mount.touch("commit").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EBUSY), "{mode}: {refused}");
        let output = mount.read_control("commit");
        assert!(output.contains("a/c/1") && !output.contains("a/c/0"), "{mode}: {output}");
        mapping.write(9, b"mapped");
        drop(mapping);
        mount.touch("commit").unwrap();
        let fresh = crate::common::Mount::new(mount.repository(), &["-o", "ro"]);
        assert_eq!(std::fs::read(fresh.path().join("a/c/1")).unwrap()[9..15], *b"mapped", "{mode}");
    }
}

#[test]
fn all_violations_are_listed_at_once() {
    let mount = Writable::new(&[]);
    let root = mount.root();
    let faults = [
        ("bad/zarr.json", "{"),
        ("old/zarr.json", r#"{"zarr_format":2,"node_type":"group"}"#),
        ("a/c/0/0", ""),
        ("a/c/9/0", "outside the grid"),
        ("a/c/0", "of the wrong rank"),
        ("a/c/01/0", "not canonical"),
        ("a/b/zarr.json", GROUP),
        ("no-array/c/0", "a chunk of nothing"),
    ];
    put(&root.join("a/zarr.json"), array(&[2, 2], &[1, 1])).unwrap();
    put(&root.join("gone/zarr.json"), array(&[2], &[1])).unwrap();
    put(&root.join("gone/c/1"), "left behind").unwrap();
    mount.touch("commit").unwrap();
    let history = Reference::open(mount.repository()).history();
    std::fs::remove_file(root.join("gone/zarr.json")).unwrap();
    let mut wrong: Vec<&str> = vec!["gone"];
    for (name, content) in faults {
        // `a/c/0` cannot be a file and a directory.
        let name = if name == "a/c/0" { "a/c/1" } else { name };
        put(&root.join(name), content).unwrap();
        wrong.push(name);
    }
    let refused = mount.touch("commit").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EINVAL), "{refused}");
    let output = mount.read_control("commit");
    let unnamed: Vec<&&str> = wrong.iter().filter(|name| !output.contains(**name)).collect();
    assert!(unnamed.is_empty(), "not named: {unnamed:?} in {output}");
    assert_eq!(Reference::open(mount.repository()).history(), history);
    // Refused changes are all still there, and are committed when they are corrected.
    wrong[1..].iter().for_each(|name| std::fs::remove_file(root.join(name)).unwrap());
    std::fs::remove_file(root.join("gone/c/1")).unwrap();
    mount.touch("commit").unwrap();
    assert_eq!(Reference::open(mount.repository()).keys().into_keys().collect::<Vec<_>>(), ["a/zarr.json"]);
}
