//! The end of a mount: SIGTERM, SIGINT, and the end of standard input where that is asked for.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tracing::{error, info, warn};

use super::mount_options::MountArgs;
use super::service_manager::ServiceManager;
use crate::fuse::mount::{Content, GRACE, Served};
use crate::fuse::preopened;
use crate::fuse::served_mount::ServedMount;
use crate::fuse::unmount::UnmountMode;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_working::scratch::jobs;

/// Directories that the mount of a job makes, which are removed when this is dropped.
#[derive(Debug, Default)]
pub(super) struct Remains {
    scratch: Option<PathBuf>,
    mountpoint: Option<PathBuf>,
}

impl Remains {
    /// Returns those of the mount of `content` at `mountpoint`.
    pub(super) fn of(arguments: &MountArgs, content: &Content, mountpoint: &Path) -> Self {
        let scratch = match &content.served {
            Served::Branch(session, _) if arguments.job => Some(session.working().upper().scratch().path().to_owned()),
            _ => None,
        };
        Remains { scratch, mountpoint: arguments.temporary.then(|| mountpoint.to_owned()) }
    }

    /// Returns what the program that runs the job has to know: the number of the file system, and
    /// the path of the scratch directory after a NUL. Empty for other mounts.
    pub(super) fn facts(&self, served: &ServedMount) -> Vec<u8> {
        let device = served.device().unwrap_or_default();
        let facts = |scratch: &PathBuf| [device.as_bytes(), b"\0", scratch.as_os_str().as_bytes()].concat();
        self.scratch.as_ref().map(facts).unwrap_or_default()
    }

    /// Removes them.
    fn remove(&self) {
        if let Some(scratch) = &self.scratch {
            jobs::remove(scratch);
        }
        // Nothing is removed that has something in it.
        if let Some(mountpoint) = &self.mountpoint
            && let Err(error) = std::fs::remove_dir(mountpoint)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            warn!("the mountpoint {} is left behind: {error}", mountpoint.display());
        }
    }
}

impl Drop for Remains {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Signals that end a mount.
pub(super) struct EndSignals {
    terminate: Signal,
    interrupt: Signal,
    /// True if those do not end the mount, as it is a job's. One to all processes of a service
    /// would take the mount away from the command, which may have something to finish.
    is_job: bool,
    /// The end of a terminal, which must not end a mount.
    hangup: Signal,
    /// The end of standard input, if that ends the mount.
    input: Option<oneshot::Receiver<()>>,
}

impl EndSignals {
    /// Begins to listen; to the end of standard input, too, if the mount ends with it.
    pub(super) fn listen(runtime: &Runtime, arguments: &MountArgs) -> Result<Self> {
        let _runtime = runtime.enter();
        let listen = |kind| signal(kind).map_err(|e| Error::io("listening for signals", e));
        let terminate = listen(SignalKind::terminate())?;
        let interrupt = listen(SignalKind::interrupt())?;
        let input = if arguments.until_eof { Some(end_of_input()?) } else { None };
        Ok(EndSignals { terminate, interrupt, hangup: listen(SignalKind::hangup())?, input, is_job: arguments.job })
    }

    /// Waits for what ends the mount, and returns its name.
    async fn receive(&mut self) -> &'static str {
        let input = self.input.take();
        let ended = async {
            match input {
                Some(input) => drop(input.await),
                None => std::future::pending().await,
            }
        };
        tokio::pin!(ended);
        loop {
            tokio::select! {
                _ = self.terminate.recv() => if !self.is_job { return "the signal asks" },
                _ = self.interrupt.recv() => if !self.is_job { return "the signal asks" },
                () = &mut ended => return "standard input has ended",
                _ = self.hangup.recv() => {}
            }
        }
    }
}

/// Returns a receiver of the end of standard input. The descriptor is a copy: a daemon closes its
/// own when the mount answers.
fn end_of_input() -> Result<oneshot::Receiver<()>> {
    let failed = |e| Error::io("standard input", e);
    let input = std::io::stdin().as_fd().try_clone_to_owned().map_err(failed)?;
    let (sender, receiver) = oneshot::channel();
    // A thread of its own: a blocking task of the runtime would keep the runtime from ending.
    let wait = move || {
        // A failed read means the same as the end: the pipe is of no more use.
        let _ = std::io::copy(&mut File::from(input), &mut std::io::sink());
        let _ = sender.send(());
    };
    std::thread::Builder::new().name("until-eof".to_owned()).spawn(wait).map_err(failed)?;
    Ok(receiver)
}

/// Unmounts at the end that `signals` tell; programs with open files get [`GRACE`] to close them.
pub(super) fn unmount_at_end(
    runtime: &Runtime,
    mut signals: EndSignals,
    served: ServedMount,
    manager: Option<Arc<ServiceManager>>,
    remains: Weak<Remains>,
) {
    runtime.spawn(async move {
        let cause = signals.receive().await;
        info!("unmounting {}: {cause}", served.mountpoint().display());
        if let Some(manager) = manager {
            manager.report_stopping();
        }
        let mount = served.clone();
        let outcome = tokio::task::spawn_blocking(move || {
            let place = mount.mountpoint();
            if preopened::descriptor(place).is_some() {
                warn!("{}: the program that mounted it must unmount it", place.display());
                return Ok(());
            }
            mount.unmount(UnmountMode::Polite).or_else(|error| match error.kind() {
                ErrorKind::Busy => {
                    warn!(
                        "{error}; no new program gets in, and this daemon ends in {} s at the latest",
                        GRACE.as_secs()
                    );
                    mount.unmount(UnmountMode::Detach)
                }
                _ => Err(error),
            })
        });
        if let Ok(Err(error)) = outcome.await {
            error!("{error}");
        }
        tokio::time::sleep(GRACE).await;
        error!("{}: programs still have files open; they get errors from now on", served.mountpoint().display());
        // This is no return from the function that holds them.
        if let Some(remains) = remains.upgrade() {
            remains.remove();
        }
        std::process::exit(0);
    });
}
