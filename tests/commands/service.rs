//! Messages of `mount --foreground` to a service manager.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::failing::has_strace;
use crate::common::writing::needed;
use crate::common::{FixtureSet, Mount, is_root, program, project, run, signal, wait_until};

/// Watchdog interval of the tests.
const INTERVAL: Duration = Duration::from_secs(4);

/// A manager's socket.
struct Manager(UnixDatagram);

impl Manager {
    fn receive(&self, within: Duration) -> Option<String> {
        self.0.set_read_timeout(Some(within)).unwrap();
        let mut buffer = [0; 4096];
        let length = self.0.recv(&mut buffer).ok()?;
        Some(String::from_utf8(buffer[..length].to_vec()).unwrap())
    }

    /// Returns the next message, which must come soon.
    #[track_caller]
    fn next(&self) -> String {
        self.receive(Duration::from_secs(60)).expect("a message")
    }

    /// Discards messages that are there already.
    fn drain(&self) {
        while self.receive(Duration::from_millis(1)).is_some() {}
    }
}

/// A mount in the foreground, which is ended when it is dropped.
struct Foreground {
    child: Child,
    mount: Mount,
}

impl Foreground {
    fn new(address: &str, watchdog: bool) -> Foreground {
        let fixture = FixtureSet::own().get("own-v2-basic");
        let mount = Mount::prepare();
        let mut command = Command::new(program());
        command.args(mount.arguments(fixture.repository.to_str().unwrap(), &["--foreground", "--read-only"]));
        command.env("NOTIFY_SOCKET", address).env_remove("WATCHDOG_PID").env_remove("WATCHDOG_USEC");
        if watchdog {
            command.env("WATCHDOG_USEC", INTERVAL.as_micros().to_string());
        }
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Foreground { child, mount }
    }

    fn signal(&self, name: &str) {
        signal(self.child.id().try_into().unwrap(), name);
    }
}

impl Drop for Foreground {
    fn drop(&mut self) {
        // The mount's own guard unmounts.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_mount_reports_readiness_and_its_end() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify");
    let name = format!("icechunkfs-test-notify-{}", std::process::id());
    let abstract_socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    for (socket, address) in
        [(UnixDatagram::bind(&path).unwrap(), path.to_str().unwrap().to_owned()), (abstract_socket, format!("@{name}"))]
    {
        let manager = Manager(socket);
        let mut served = Foreground::new(&address, false);
        let ready = manager.next();
        // It is ready when it says so.
        assert!(served.mount.path().join("zarr.json").exists() && served.mount.mounted_as().is_some());
        assert!(ready.lines().any(|line| line == "READY=1"), "{ready}");
        let status = ready.lines().find_map(|line| line.strip_prefix("STATUS=")).unwrap();
        assert!(status.contains(served.mount.path().to_str().unwrap()), "{ready}");
        served.signal("-TERM");
        assert!(manager.next().lines().any(|line| line == "STOPPING=1"));
        assert!(served.child.wait().unwrap().success());
        assert!(served.mount.mounted_as().is_none());
        assert_eq!(manager.receive(Duration::from_millis(100)), None, "there is no watchdog");
    }
}

#[test]
fn the_watchdog_gets_signs_of_life_only_from_a_daemon_that_answers() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify");
    let manager = Manager(UnixDatagram::bind(&path).unwrap());
    let served = Foreground::new(path.to_str().unwrap(), true);
    assert!(manager.next().contains("READY=1"));
    assert_eq!((manager.next().as_str(), manager.next().as_str()), ("WATCHDOG=1", "WATCHDOG=1"));
    served.signal("-STOP");
    manager.drain();
    // The time is what is tested: nothing may come within the interval.
    assert_eq!(manager.receive(INTERVAL), None);
    served.signal("-CONT");
    assert_eq!(manager.next(), "WATCHDOG=1");
}

/// Threads that a tracer delays for minutes whenever they have received a request, until this is
/// dropped.
struct Delayed(Child);

impl Delayed {
    /// Delays the threads of process `id` whose names begin with `name`.
    fn new(id: u32, name: &str) -> Delayed {
        let mut tracer = Command::new("strace");
        tracer.args(["-q", "-o", "/dev/null", "-e", "trace=read", "-e", "inject=read:delay_exit=300000000"]);
        let mut count = 0;
        for task in std::fs::read_dir(format!("/proc/{id}/task")).unwrap().map(|task| task.unwrap().path()) {
            // A thread may have ended meanwhile.
            if std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.starts_with(name)) {
                tracer.arg("-p").arg(task.file_name().unwrap());
                count += 1;
            }
        }
        assert!(count > 0, "no thread is called {name}");
        let delayed = Delayed(tracer.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        let is_traced = |task: std::path::PathBuf| {
            // A thread may have ended meanwhile.
            let status = std::fs::read_to_string(task.join("status")).unwrap_or_default();
            status.lines().any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0"))
        };
        wait_until("the tracer attaches", || {
            let tasks = std::fs::read_dir(format!("/proc/{id}/task")).unwrap().map(|task| task.unwrap().path());
            tasks.filter(|task| is_traced(task.clone())).count() == count
        });
        delayed
    }
}

impl Drop for Delayed {
    fn drop(&mut self) {
        // A tracer that is killed lets the threads go on.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_session_that_hangs_gives_no_sign_of_life_although_the_process_runs() {
    if !needed(is_root(), "root, for tracing") || !needed(has_strace(), "strace") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify");
    let manager = Manager(UnixDatagram::bind(&path).unwrap());
    let served = Foreground::new(path.to_str().unwrap(), true);
    assert!(manager.next().contains("READY=1"));
    assert_eq!(manager.next(), "WATCHDOG=1");
    let delayed = Delayed::new(served.child.id(), "fuser-");
    // Each thread still answers what it waits for: the sign after that is the first that must not
    // come.
    manager.receive(INTERVAL);
    manager.drain();
    assert_eq!(manager.receive(INTERVAL), None);
    drop(delayed);
    assert_eq!(manager.next(), "WATCHDOG=1");
}

#[test]
fn a_daemon_in_the_background_leaves_the_manager_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify");
    let manager = Manager(UnixDatagram::bind(&path).unwrap());
    let fixture = FixtureSet::own().get("own-v2-basic");
    let mount = Mount::prepare();
    let words = mount.arguments(fixture.repository.to_str().unwrap(), &["--read-only"]);
    run(Command::new(program()).args(words).env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "100000")).success();
    mount.end();
    assert_eq!(manager.receive(Duration::from_millis(1)), None);
}

#[test]
fn a_wrong_socket_is_no_failure() {
    for address in ["/nonexistent/notify", "nonsense", ""] {
        let mut served = Foreground::new(address, true);
        wait_until("it mounts", || served.mount.path().join("zarr.json").exists());
        served.signal("-TERM");
        assert!(served.child.wait().unwrap().success(), "{address}");
    }
}

#[test]
fn unit_templates_name_options_that_exist() {
    for file in ["packaging/systemd/icechunkfs@.service", "packaging/systemd/user/icechunkfs@.service"] {
        let unit = std::fs::read_to_string(project(file)).unwrap();
        let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/local/bin/icechunkfs ")).unwrap();
        let fixture = FixtureSet::own().get("own-v2-basic");
        let mount = Mount::prepare();
        let words = start
            .replace("$OPTIONS", "--fake --branch main")
            .replace("${REPOSITORY}", fixture.repository.to_str().unwrap());
        let words = words.replace("${MOUNTPOINT}", mount.path().to_str().unwrap());
        run(Command::new(program()).args(words.split(' '))).success();
        assert!(
            unit.contains("Type=notify") && unit.contains("WatchdogSec=") && unit.contains("Restart=on-failure"),
            "{file}"
        );
    }
}
