//! Processes of another user that call themselves icechunkfs. Such a user can make the readers of
//! their command lines and environments wait.

use std::process::Command;

use crate::common::fake_mount::FakeMount;
use crate::common::users::{Commons, NOBODY, as_nobody};
use crate::common::{program, run};

#[test]
fn nothing_that_can_wait_is_read_of_a_process_of_another_user() {
    let commons = Commons::new();
    let place = commons.directory("mnt", NOBODY, 0o755);
    // No process has the mark of this mount, so that a list looks for command lines.
    let _fake = FakeMount::new(&place, NOBODY, true, &[]);
    let claims = commons.path("icechunkfs");
    run(Command::new("cp").arg("/bin/sleep").arg(&claims)).success();
    let mut claims = as_nobody(&claims).arg("60").spawn().unwrap();
    let name = || std::fs::read_to_string(format!("/proc/{}/comm", claims.id())).unwrap();
    crate::common::wait_until("the process has its name", || name() == "icechunkfs\n");
    let trace = commons.path("trace");
    for word in ["list", "doctor"] {
        let mut command = Command::new("strace");
        command.args(["-f", "-e", "trace=open,openat,openat2", "-o"]).arg(&trace).arg(program()).arg(word);
        run(&mut command);
        let opened = std::fs::read_to_string(&trace).expect("strace works here: it is needed for this test");
        assert!(opened.contains("/proc/"), "{word}: nothing was traced");
        let directory = format!("/proc/{}/", claims.id());
        let files: Vec<&str> =
            opened.lines().filter_map(|line| line.split(&directory).nth(1)?.split('"').next()).collect();
        let waits = |file: &&str| !["status", "stat", "comm", "fd"].contains(file);
        assert_eq!(files.into_iter().find(waits), None, "{word}");
    }
    claims.kill().unwrap();
    claims.wait().unwrap();
}
