//! `.icechunk` names all files of a mount, whatever their modes: it is for the mount's owner.

use std::path::Path;

use crate::common::users::{Commons, as_nobody, mode};
use crate::common::writing::{self, put, touch};
use crate::common::{Mount, run};

#[test]
fn control_files_are_for_the_owner_of_the_mount() {
    let commons = Commons::new();
    let repository = commons.path("repo");
    writing::create(&repository);
    let mount = Mount::prepare();
    crate::common::users::set_mode(mount.path().parent().unwrap(), 0o755);
    mount.command(&repository, &["--allow-other"]).success();
    let root = mount.path();
    put(&root.join("zarr.json"), writing::GROUP).unwrap();
    put(&root.join("secret/zarr.json"), writing::array(&[8], &[1])).unwrap();
    crate::common::users::set_mode(&root.join("secret"), 0o700);
    let control = root.join(".icechunk");
    let cat = |path: &Path| run(as_nobody("cat").arg(path));
    cat(&root.join("zarr.json")).success();
    cat(&root.join("secret/zarr.json")).failure();
    assert_eq!(mode(&control), 0o700);
    run(as_nobody("ls").arg(&control)).failure();
    for entry in std::fs::read_dir(&control).unwrap() {
        let path = entry.unwrap().path();
        let (expected, look) = if path.is_dir() { (0o700, "ls") } else { (0o600, "cat") };
        assert_eq!(mode(&path), expected, "{}", path.display());
        let output = run(as_nobody(look).arg(&path)).failure();
        assert!(output.contains("Permission denied"), "{}: {output}", path.display());
    }
    for name in ["at/branch", "at/branch/main/secret", "view/zarr"] {
        run(as_nobody("ls").arg(control.join(name))).failure();
    }
    for name in ["request", "commit", "discard", "refresh"] {
        run(as_nobody("touch").arg(control.join(name))).failure();
    }
    let program = commons.program();
    run(as_nobody(&program).arg("status").arg(&root)).failure();
    // The owner reads and commands as before.
    assert!(std::fs::read_to_string(control.join("diff")).unwrap().contains("secret"));
    touch(&control.join("commit")).unwrap();
    let refused = std::fs::write(control.join("status"), "x").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EACCES));
}

#[test]
fn a_read_only_mount_shows_other_branches_and_commits_to_its_owner_alone() {
    let commons = Commons::new();
    let repository = commons.path("repo");
    crate::common::copy_tree(&crate::common::FixtureSet::own().get("own-v2-basic").repository, &repository);
    let mount = Mount::prepare();
    crate::common::users::set_mode(mount.path().parent().unwrap(), 0o755);
    for words in
        [&["--allow-other", "--read-only"][..], &["--allow-other", "--follow"], &["--allow-other", "--view", "zarr2"]]
    {
        mount.command(&repository, words).success();
        let root = mount.path();
        let control = root.join(".icechunk");
        run(as_nobody("ls").arg(&root)).success();
        assert_eq!(mode(&control), 0o700, "{words:?}");
        for entry in std::fs::read_dir(&control).unwrap() {
            let path = entry.unwrap().path();
            assert_eq!(mode(&path), if path.is_dir() { 0o700 } else { 0o600 }, "{words:?} {}", path.display());
            let output = run(as_nobody(if path.is_dir() { "ls" } else { "cat" }).arg(&path)).failure();
            assert!(output.contains("Permission denied"), "{words:?} {}: {output}", path.display());
        }
        for path in ["at/branch", "at/branch/main", "at/tag/v1.0", "at/snapshot", "view", "view/netcdf", "info.json"] {
            let output = run(as_nobody("ls").arg(control.join(path))).failure();
            assert!(output.contains("Permission denied"), "{words:?} {path}: {output}");
            std::fs::metadata(control.join(path)).unwrap();
        }
        mount.unmount();
    }
}

#[test]
fn single_parts_of_icechunk_are_opened_by_an_option() {
    let commons = Commons::new();
    let repository = commons.path("repo");
    crate::common::copy_tree(&crate::common::FixtureSet::own().get("own-v2-basic").repository, &repository);
    let mount = Mount::prepare();
    crate::common::users::set_mode(mount.path().parent().unwrap(), 0o755);
    let may = |program: &str, path: &str| run(as_nobody(program).arg(mount.control(path))).status.success();
    // The list of mount(8) has the same option.
    let by_list =
        format!("allow_other,share_control=at,share_control=HEAD,scratch={}", commons.path("scratch").display());
    for words in [&["--allow-other", "--read-only", "--share-control", "at,HEAD"][..], &["-o", &by_list]] {
        mount.command(&repository, words).success();
        assert!(may("ls", "at/tag") && may("ls", "at/branch/main") && may("cat", "HEAD"), "{words:?}");
        assert!(!may("ls", "") && !may("ls", "view") && !may("cat", "info.json") && !may("cat", "log"), "{words:?}");
        assert_eq!((mode(&mount.control("")), mode(&mount.control("at"))), (0o711, 0o755), "{words:?}");
        assert_eq!((mode(&mount.control("HEAD")), mode(&mount.control("log"))), (0o644, 0o600), "{words:?}");
        run(as_nobody("touch").arg(mount.control("commit"))).failure();
        mount.unmount();
    }
    for (words, why) in [
        (&["--read-only", "--share-control", "at"][..], "--allow-other"),
        (&["--allow-other", "--share-control", "commit"], "not a part of .icechunk"),
    ] {
        let refused = mount.command(&repository, words).failure();
        assert!(refused.contains(why), "{words:?}: {refused}");
    }
}
