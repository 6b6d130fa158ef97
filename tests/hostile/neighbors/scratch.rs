//! Scratch directories that another user has put in place, or may write to.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::users::{Commons, NOBODY, as_nobody, by_nobody, fifo, mode, set_mode, set_owner};
use crate::common::writing::{self, put};
use crate::common::{Mount, Output, entries, program, run};

/// Mounts a new repository with the scratch directory at `scratch`.
fn mount(commons: &Commons, scratch: &Path) -> (Mount, Output) {
    mount_with(commons, scratch, None)
}

/// Mounts as [`mount`], with a directory that is declared safe.
fn mount_with(commons: &Commons, scratch: &Path, safe: Option<&Path>) -> (Mount, Output) {
    let repository = commons.path("repo");
    if !repository.exists() {
        writing::create(&repository);
    }
    let mount = Mount::prepare();
    let mut command = Command::new(program());
    command.arg("mount").arg(&repository).arg(mount.path()).arg("--scratch").arg(scratch);
    command.arg("--log-file").arg(mount.path().with_file_name("log")).env_remove("ICECHUNKFS_SAFE_DIRECTORY");
    let output = run(command.envs(safe.map(|safe| ("ICECHUNKFS_SAFE_DIRECTORY", safe))));
    (mount, output)
}

#[test]
fn a_directory_that_is_declared_safe_is_used() {
    let commons = Commons::new();
    // Containers have such volumes.
    let volume = commons.directory("volume", 0, 0o777);
    let scratch = volume.join("scratch");
    let said = mount(&commons, &scratch).1.failure();
    assert!(said.contains("ICECHUNKFS_SAFE_DIRECTORY") && !scratch.exists(), "{said}");
    mount_with(&commons, &scratch, Some(&commons.path("other"))).1.failure();
    mount_with(&commons, &scratch, Some(&volume)).1.success();
    assert_eq!(mode(&scratch), 0o700);
    // The content of the directory is checked as elsewhere.
    set_owner(&scratch, NOBODY);
    mount_with(&commons, &scratch, Some(&volume)).1.failure();
}

/// Returns names and modes of everything below `directory`.
fn state(directory: &Path) -> Vec<(PathBuf, u32)> {
    let mut found = vec![(directory.to_owned(), mode(directory))];
    if directory.symlink_metadata().unwrap().is_dir() {
        let mut inner = entries(directory);
        inner.sort();
        found.extend(inner.iter().flat_map(|path| state(path)));
    }
    found
}

#[track_caller]
fn refused(commons: &Commons, scratch: &Path, why: &str) {
    let before = state(scratch);
    let (mount, output) = mount(commons, scratch);
    let said = output.failure();
    assert!(said.contains("the scratch directory") && said.contains(why), "{said}");
    assert!(mount.mounted_as().is_none());
    assert_eq!(state(scratch), before, "a refused directory must stay unchanged");
}

#[test]
fn a_scratch_directory_of_another_owner_is_refused() {
    let commons = Commons::new();
    let shared = commons.directory("shared", 0, 0o1777);
    by_nobody(|| {
        std::fs::create_dir(shared.join("hers")).unwrap();
        std::fs::create_dir(shared.join("open")).unwrap();
        std::fs::create_dir(shared.join("parent")).unwrap();
        set_mode(&shared.join("open"), 0o777);
        symlink(commons.path("target"), shared.join("link")).unwrap();
    });
    refused(&commons, &shared.join("hers"), "nobody");
    refused(&commons, &shared.join("open"), "nobody");
    // A directory that root made below a user's directory can be swapped by that user.
    std::fs::create_dir(shared.join("parent/scratch")).unwrap();
    set_mode(&shared.join("parent/scratch"), 0o700);
    refused(&commons, &shared.join("parent/scratch"), "nobody");
    let missing = shared.join("parent/new");
    mount(&commons, &missing).1.failure();
    assert!(!missing.exists());
    commons.directory("target", 0, 0o700);
    refused(&commons, &shared.join("link"), "link");
    assert_eq!(state(&commons.path("target")).len(), 1);
}

#[test]
fn a_scratch_directory_that_others_may_write_to_is_refused() {
    let commons = Commons::new();
    for (name, bits) in [("all", 0o777), ("sticky", 0o1777), ("others", 0o702)] {
        refused(&commons, &commons.directory(name, 0, bits), "may write");
    }
    let group = commons.directory("group", 0, 0o770);
    std::os::unix::fs::chown(&group, None, Some(NOBODY)).unwrap();
    refused(&commons, &group, "may write");
    set_mode(&group, 0o2770);
    refused(&commons, &group, "may write");
    let parent = commons.directory("parent", 0, 0o777);
    let inner = commons.directory("parent/scratch", 0, 0o700);
    refused(&commons, &inner, "may write");
    set_mode(&parent, 0o1777);
    mount(&commons, &inner).1.success();
    // A group without other members is accepted.
    let private = commons.directory("private", 0, 0o770);
    mount(&commons, &private).1.success();
    assert_eq!(mode(&private), 0o700);
}

/// The permissions of the group are those of every user whom the list names.
#[test]
fn a_scratch_directory_with_an_access_control_list_is_refused() {
    let commons = Commons::new();
    let scratch = commons.directory("scratch", 0, 0o700);
    // acl(5) as the kernel has it: version, then tag, permissions and number of owner, user, group,
    // mask and others.
    let entries =
        [(1_u16, 7_u16, u32::MAX), (2, 7, NOBODY), (4, 0, u32::MAX), (0x10, 7, u32::MAX), (0x20, 0, u32::MAX)];
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, number) in entries {
        list.extend([tag.to_le_bytes(), permissions.to_le_bytes()].concat());
        list.extend(number.to_le_bytes());
    }
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(&scratch, "system.posix_acl_access", &list, flags).expect("/tmp has access control lists");
    by_nobody(|| std::fs::write(scratch.join("README"), "hers").unwrap());
    std::fs::remove_file(scratch.join("README")).unwrap();
    assert_eq!(mode(&scratch), 0o770, "by the mode alone, only root's own group may write");
    refused(&commons, &scratch, "may write");
}

#[test]
fn files_that_others_left_in_a_scratch_directory_are_refused() {
    let commons = Commons::new();
    let victim = commons.path("victim");
    std::fs::write(&victim, "of root").unwrap();
    let scratch = commons.path("scratch");
    let (first, output) = mount(&commons, &scratch);
    output.success();
    put(&first.path().join("zarr.json"), writing::GROUP).unwrap();
    put(&first.path().join("a/zarr.json"), writing::array(&[8], &[1])).unwrap();
    put(&first.path().join("a/c/1"), vec![7; 9000]).unwrap();
    first.unmount();
    for path in ["journal", "data", "lock"].map(|name| scratch.join(name)) {
        set_owner(&path, NOBODY);
        refused(&commons, &scratch, "nobody");
        set_owner(&path, 0);
    }
    set_mode(&scratch.join("data"), 0o777);
    refused(&commons, &scratch, "may write");
    set_mode(&scratch.join("data"), 0o700);
    for name in ["journal", "lock", "boot", "README"] {
        let aside = scratch.with_file_name("aside");
        std::fs::rename(scratch.join(name), &aside).unwrap();
        symlink(&victim, scratch.join(name)).unwrap();
        let said = mount(&commons, &scratch).1.failure();
        assert!(said.contains(name), "{name}: {said}");
        std::fs::remove_file(scratch.join(name)).unwrap();
        fifo(&scratch.join(name));
        let said = mount(&commons, &scratch).1.failure();
        assert!(said.contains(name), "{name}: {said}");
        std::fs::remove_file(scratch.join(name)).unwrap();
        std::fs::rename(&aside, scratch.join(name)).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "of root");
    let (last, output) = mount(&commons, &scratch);
    output.success();
    assert_eq!(std::fs::read(last.path().join("a/c/1")).unwrap(), vec![7; 9000]);
}

#[test]
fn root_does_not_use_the_scratch_directory_of_a_user() {
    let commons = Commons::new();
    let home = commons.directory("home", NOBODY, 0o755);
    let repository = commons.path("repo");
    writing::create(&repository);
    crate::common::run(std::process::Command::new("chown").args(["-R", "65534:65534"]).arg(&repository)).success();
    let place = commons.directory("home/mnt", NOBODY, 0o755);
    let scratch = home.join("scratch");
    let mut command = as_nobody(commons.program());
    command.arg("mount").arg(&repository).arg(&place).arg("--scratch").arg(&scratch);
    run(command.arg("--log-file").arg(home.join("log"))).success();
    run(as_nobody(commons.program()).arg("unmount").arg(&place)).success();
    refused(&commons, &scratch, "nobody");
}
