//! The protocol of a service manager such as systemd: readiness, status, watchdog (sd_notify(3),
//! sd_watchdog_enabled(3)).
//!
//! A message is one datagram to the socket that `NOTIFY_SOCKET` names, a path or, after `@`, an
//! abstract name. Nothing depends on its arrival, so failures are only logged. Only `--foreground`
//! talks to the manager: a daemon in the background is not the process that the manager started.

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use tokio::runtime::Handle;
use tracing::{debug, info, warn};

use crate::fuse::health::Health;
use crate::fuse::served_mount::ServedMount;
use icechunkfs_base::printable;

/// Connection to the manager.
#[derive(Debug)]
pub(crate) struct ServiceManager {
    socket: UnixDatagram,
    address: SocketAddr,
    /// Time after which the manager restarts a daemon that sends no sign of life.
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// Returns the manager that started this process, if there is one.
    pub(crate) fn from_environment() -> Option<Arc<Self>> {
        let variable = |name: &str| std::env::var_os(name);
        let address = address(&variable("NOTIFY_SOCKET")?);
        let address = address.inspect_err(|e| warn!("NOTIFY_SOCKET cannot be used: {e}")).ok()?;
        let socket = UnixDatagram::unbound().inspect_err(|e| warn!("no socket for the service manager: {e}")).ok()?;
        let number = |name: &str| variable(name)?.to_str()?.parse::<u64>().ok();
        // The variables may be inherited from a process that they were meant for.
        let is_ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog = number("WATCHDOG_USEC").filter(|&time| is_ours && time > 0).map(Duration::from_micros);
        Some(Arc::new(ServiceManager { socket, address, watchdog }))
    }

    /// Reports that the mount answers.
    pub(crate) fn report_ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={}", printable::line(status)));
    }

    /// Reports that the daemon ends.
    pub(crate) fn report_stopping(&self) {
        self.send("STOPPING=1\nSTATUS=Unmounting");
    }

    /// Starts sending signs of life, at half the manager's interval, as long as the daemon of the
    /// mount `served` answers.
    pub(crate) fn start_watchdog(self: &Arc<Self>, served: ServedMount, runtime: Handle) {
        let Some(interval) = self.watchdog else { return };
        let manager = Arc::clone(self);
        let watch = move || {
            loop {
                std::thread::sleep(interval / 2);
                // Both checks together end before the manager's interval does.
                match check_progress(&runtime, interval / 8).and_then(|()| check_session(&served, interval / 4)) {
                    Ok(()) => manager.send("WATCHDOG=1"),
                    Err(why) => warn!("no sign of life to the service manager: {why}"),
                }
            }
        };
        match std::thread::Builder::new().name("watchdog".to_owned()).spawn(watch) {
            Ok(_) => info!("the service manager gets a sign of life every {:?}", interval / 2),
            Err(error) => warn!("no thread for the watchdog: {error}"),
        }
    }

    fn send(&self, message: &str) {
        if let Err(error) = self.socket.send_to_addr(message.as_bytes(), &self.address) {
            debug!("the service manager does not receive `{}`: {error}", printable::line(message));
        }
    }
}

fn address(name: &OsStr) -> std::io::Result<SocketAddr> {
    match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        [b'/', ..] => SocketAddr::from_pathname(name),
        _ => Err(std::io::Error::other("it is neither an absolute path nor an abstract name")),
    }
}

/// Checks that the threads of the runtime run new tasks.
fn check_progress(runtime: &Handle, timeout: Duration) -> Result<(), &'static str> {
    let (sender, receiver) = mpsc::sync_channel(1);
    drop(runtime.spawn(async move { sender.send(()) }));
    match receiver.recv_timeout(timeout) {
        // The runtime is gone at the end of a mount, when changes are flushed.
        Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => Ok(()),
        Err(mpsc::RecvTimeoutError::Timeout) => Err("the daemon's threads run no new task"),
    }
}

/// Checks that the kernel gets a reply from the daemon. A mount that was removed needs none: its
/// daemon still flushes changes.
fn check_session(served: &ServedMount, timeout: Duration) -> Result<(), &'static str> {
    match served.health(timeout) {
        Some(Health::Hanging) => Err("the mount does not answer"),
        Some(Health::Dead) => Err("the mount is dead"),
        Some(Health::Alive | Health::Private | Health::Covered | Health::Unknown) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn messages_reach_sockets_of_both_kinds() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let name = format!("icechunkfs-test-{}", std::process::id());
        let by_path = UnixDatagram::bind(&path).unwrap();
        let by_name = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        for (receiver, shown) in [(by_path, path.to_str().unwrap().to_owned()), (by_name, format!("@{name}"))] {
            receiver.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            let socket = UnixDatagram::unbound().unwrap();
            let manager = ServiceManager { socket, address: address(shown.as_ref()).unwrap(), watchdog: None };
            manager.report_ready("one\ntwo");
            let mut buffer = [0; 100];
            let length = receiver.recv(&mut buffer).unwrap();
            assert_eq!(std::str::from_utf8(buffer.get(..length).unwrap()).unwrap(), "READY=1\nSTATUS=one\\ntwo");
        }
        assert!(address(OsStr::new("relative")).is_err());
    }

    #[test]
    fn a_runtime_without_a_free_thread_makes_no_progress() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        assert!(check_progress(runtime.handle(), Duration::from_secs(10)).is_ok());
        let (release, blocked) = mpsc::channel::<()>();
        drop(runtime.spawn(async move { blocked.recv() }));
        assert!(check_progress(runtime.handle(), Duration::from_millis(200)).is_err());
        drop(release);
    }
}
