//! Programs that run from a mount: nothing empties or changes the file that a process executes.

use std::fs::File;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::common::io_modes;
use crate::common::writing::Writable;

/// Time until a file of an ended process may be emptied: the kernel tells the mount of the end a
/// moment later.
const ENDED: Duration = Duration::from_secs(10);

/// Process that this test started; it ends with the test.
struct Running(Child);

impl Running {
    fn end(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn open(path: &Path, flags: i32) -> std::io::Result<File> {
    let access = flags & libc::O_ACCMODE;
    let mut options = File::options();
    options.read(access != libc::O_WRONLY).write(access != libc::O_RDONLY).custom_flags(flags & !libc::O_ACCMODE);
    options.open(path)
}

#[test]
fn a_refused_open_leaves_a_running_program_as_it_is() {
    let program = std::fs::read("/bin/sleep").unwrap();
    for mode in io_modes() {
        let mount = Writable::new(&["--io", mode]);
        let path = mount.root().join("program");
        std::fs::write(&path, &program).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        // Once with bytes of the scratch directory, and once by a daemon that has not yet opened
        // them.
        for _ in 0..2 {
            let mut running = Running(Command::new(&path).arg("600").spawn().unwrap());
            for flags in [libc::O_WRONLY, libc::O_RDWR, libc::O_WRONLY | libc::O_TRUNC, libc::O_RDONLY | libc::O_TRUNC]
            {
                let refused = open(&path, flags).map_err(|error| error.raw_os_error());
                assert_eq!(refused.err(), Some(Some(libc::ETXTBSY)), "{mode}, flags {flags:o}");
                assert!(std::fs::read(&path).unwrap() == program, "{mode}: flags {flags:o} changed the program");
            }
            assert!(running.0.try_wait().unwrap().is_none(), "{mode}: the program has ended");
            running.end();
            mount.unmount();
            mount.mount_again(None).success();
        }
        // The same open empties a file that nothing executes, even soon after.
        let mut running = Running(Command::new(&path).arg("600").spawn().unwrap());
        running.end();
        let begin = Instant::now();
        while let Err(error) = open(&path, libc::O_RDONLY | libc::O_TRUNC) {
            assert!(begin.elapsed() < ENDED, "{mode}: {error}");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0, "{mode}");
    }
}
