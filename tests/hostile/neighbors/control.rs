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
