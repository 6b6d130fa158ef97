//! Log files that another user has put in place.

use std::os::unix::fs::symlink;
use std::path::Path;

use crate::common::users::{Commons, NOBODY, as_nobody, by_nobody, fifo, set_mode, set_owner};
use crate::common::{FixtureSet, Mount, Output, run};

fn mount(commons: &Commons, log: &Path) -> (Mount, Output) {
    let mount = Mount::prepare();
    let mut command = std::process::Command::new(crate::common::program());
    command.arg("mount").arg(FixtureSet::own().get("own-v2-basic").repository).arg(mount.path());
    let output = run(command.args(["-o", "ro", "--log-file"]).arg(log).current_dir(commons.path(".")));
    (mount, output)
}

#[test]
fn a_log_file_of_another_owner_is_refused() {
    let commons = Commons::new();
    let shared = commons.directory("shared", 0, 0o1777);
    let victim = commons.path("victim");
    std::fs::write(&victim, "of root").unwrap();
    set_mode(&victim, 0o600);
    by_nobody(|| {
        std::fs::write(shared.join("hers"), "").unwrap();
        symlink(&victim, shared.join("link")).unwrap();
        symlink(commons.path("new"), shared.join("dangling")).unwrap();
        symlink(commons.path("."), shared.join("folder")).unwrap();
        std::fs::create_dir(shared.join("own")).unwrap();
        fifo(&shared.join("fifo"));
    });
    std::fs::write(shared.join("open"), "").unwrap();
    set_mode(&shared.join("open"), 0o666);
    std::fs::hard_link(&victim, shared.join("linked")).unwrap();
    for name in ["hers", "link", "dangling", "folder/log", "own/log", "fifo", "open", "linked"] {
        let (mount, output) = mount(&commons, &shared.join(name));
        let said = output.failure();
        assert!(said.contains("the log file") && mount.mounted_as().is_none(), "{name}: {said}");
    }
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "of root");
    assert!(!commons.path("new").exists() && !commons.path("log").exists());
    assert_eq!(std::fs::read_to_string(shared.join("hers")).unwrap(), "");
    // A file of root's is accepted there as elsewhere, and so are links that root made.
    let log = shared.join("roots");
    symlink(&log, shared.join("alias")).unwrap();
    for name in ["roots", "alias"] {
        mount(&commons, &shared.join(name)).1.success();
    }
    assert!(std::fs::read_to_string(&log).unwrap().contains("is mounted at"));
    mount(&commons, Path::new("/dev/null")).1.success();
    // The directory is as `/var/log` of some systems.
    let of_a_group = commons.directory("group", 0, 0o775);
    std::os::unix::fs::chown(&of_a_group, None, Some(NOBODY)).unwrap();
    mount(&commons, &of_a_group.join("log")).1.success();
    symlink(&victim, of_a_group.join("link")).unwrap();
    std::os::unix::fs::lchown(of_a_group.join("link"), Some(NOBODY), Some(NOBODY)).unwrap();
    mount(&commons, &of_a_group.join("link")).1.failure();
}

#[test]
fn users_log_to_their_own_files() {
    let commons = Commons::new();
    let home = commons.directory("home", NOBODY, 0o755);
    let place = commons.directory("home/mnt", NOBODY, 0o755);
    let repository = FixtureSet::own().get("own-v2-basic").repository;
    crate::common::copy_tree(&repository, &commons.path("repo"));
    let log = home.join("log");
    let mut command = as_nobody(commons.program());
    command.arg("mount").arg(commons.path("repo")).arg(&place).args(["-o", "ro", "--log-file"]).arg(&log);
    run(&mut command).success();
    run(as_nobody(commons.program()).arg("unmount").arg(&place)).success();
    // The same file is refused to root, and one of root's to the user.
    let (_mount, output) = mount(&commons, &log);
    assert!(output.failure().contains("the log file"));
    set_owner(&log, 0);
    run(&mut command).failure();
}

#[test]
fn logs_are_for_their_owner() {
    let commons = Commons::new();
    let log = commons.path("log");
    let accesses = commons.path("accesses");
    let mount = Mount::prepare();
    // Another process, since the mask of this one is that of all its threads.
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "umask 022 && exec \"$@\"", "sh", crate::common::program(), "mount"]);
    command.arg(FixtureSet::own().get("own-v2-basic").repository).arg(mount.path());
    run(command.args(["-o", "ro", "--log-file"]).arg(&log).arg("--access-log").arg(&accesses)).success();
    std::fs::read(mount.path().join("zarr.json")).unwrap();
    mount.unmount();
    for file in [&log, &accesses] {
        assert_eq!(crate::common::users::mode(file), 0o600, "{}", file.display());
        assert!(file.metadata().unwrap().len() > 0, "{}", file.display());
        run(as_nobody("cat").arg(file)).failure();
    }
    // A user who wants others to read a log makes it before.
    set_mode(&log, 0o644);
    let mut command = std::process::Command::new(crate::common::program());
    command.arg("mount").arg(FixtureSet::own().get("own-v2-basic").repository).arg(mount.path());
    run(command.args(["-o", "ro", "--log-file"]).arg(&log)).success();
    assert_eq!(crate::common::users::mode(&log), 0o644);
}
