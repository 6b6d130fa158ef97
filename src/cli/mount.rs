//! `icechunkfs mount`: mounts a snapshot or branch and serves it, by default from a daemon.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{error, info, warn};

use super::daemon::{self, DaemonReport, Process};
use super::mount_options::MountArgs;
use super::{logging, open, writable};
use crate::error::{Error, ErrorKind, Result};
use crate::follow::Follower;
use crate::fuse::io_mode::{self, IoMode, IoOption};
use crate::fuse::mount::{self, GRACE, Mounted, Options, Served};
use crate::fuse::unmount::{self, UnmountMode};
use crate::reader::Reader;
use crate::repo::refs::RefSpec;
use crate::tree::numbering::Numbering;

/// Mounts, and serves until it is unmounted: in this process, or in a daemon.
pub(crate) fn run(arguments: &MountArgs, verbose: u8) -> Result<()> {
    arguments.check()?;
    let spec = arguments.reference.spec()?;
    // A daemon loses the working directory that relative paths depend on.
    let log_file = arguments.log_file.as_deref().map(std::path::absolute).transpose();
    let log_file = log_file.map_err(|e| Error::io("the log file", e))?;
    if arguments.foreground || arguments.check_only {
        match &log_file {
            Some(path) => logging::to_file(path, verbose)?,
            None => logging::to_foreground(verbose),
        }
        return serve(arguments, &spec, None);
    }
    match daemon::fork()? {
        Process::Command(answer) => answer,
        Process::Daemon(outcome) => {
            let logging = log_file.map_or_else(|| logging::to_syslog(verbose), |path| logging::to_file(&path, verbose));
            let mut outcome = Some(outcome);
            let served = logging.and_then(|()| serve(arguments, &spec, Some(&mut outcome)));
            if let Err(error) = &served {
                error!("{error}");
                if let Some(outcome) = outcome.take() {
                    outcome.report_failure(error);
                }
                // The command has printed the error, or ended long ago.
                std::process::exit(i32::from(error.exit_code()));
            }
            Ok(())
        }
    }
}

/// Serves the mount, from opening the repository to the end. Reports to `outcome` when the mount answers.
fn serve(arguments: &MountArgs, spec: &RefSpec, outcome: Option<&mut Option<DaemonReport>>) -> Result<()> {
    let runtime = open::runtime()?;
    let mountpoint = mount::prepare(&arguments.mountpoint, arguments.nonempty)?;
    // A check leaves nothing behind, not even a scratch directory.
    let read_only = arguments.read_only || arguments.follow.is_some() || arguments.check_only;
    let prepared = runtime.block_on(prepare(arguments, spec, &mountpoint, read_only))?;
    let (mode, reason) = io_mode::choose(arguments.io, prepared.tree().table(), prepared.tree().reader().has_files())?;
    // Data files are always local files: the kernel can move their bytes whatever the chunks' size.
    let writable = matches!(prepared.served, Served::Branch(..));
    let mode = if writable && arguments.io == IoOption::Auto && io_mode::obstacle(true).is_none() {
        IoMode::Passthrough
    } else {
        mode
    };
    info!("mounting {spec}: it is snapshot {}; I/O mode {mode}: {reason}", prepared.tree().snapshot().id());
    if arguments.check_only {
        return Ok(());
    }
    let options = Options {
        source: prepared.source.clone(),
        allow_other: arguments.allow_other,
        nonempty: arguments.nonempty,
        flags: arguments.flags.clone(),
        mode,
        insist: arguments.io != IoOption::Auto,
        writable,
    };
    let reader = Arc::clone(prepared.tree().reader());
    let Prepared { served, note, .. } = prepared;
    let session = match &served {
        Served::Branch(session, _) => Some(Arc::clone(session)),
        Served::Snapshot(_) | Served::Followed(_) => None,
    };
    let mounted = Mounted::new(served, mountpoint, &options, runtime.handle().clone())?;
    unmount_on_signals(&runtime, mounted.mountpoint().to_owned())?;
    log_gauges_on_signal(&runtime, Arc::clone(&reader))?;
    check_mount_answers(mounted.mountpoint())?;
    if let Some(outcome) = outcome.and_then(Option::take) {
        outcome.report_ready(&note)?;
    }
    let served = mounted.wait();
    info!("unmounted");
    if let Some(session) = session {
        runtime.block_on(writable::end_mount(session, arguments.ephemeral));
    }
    runtime.block_on(reader.flush_disk_cache());
    // A thread that is blocked on a dead network file system must not keep the daemon alive.
    runtime.shutdown_background();
    served
}

/// An opened repository, ready to be mounted.
struct Prepared {
    served: Served,
    source: String,
    /// Note for the user.
    note: String,
}

impl Prepared {
    fn tree(&self) -> Arc<crate::tree::Tree> {
        match &self.served {
            Served::Snapshot(tree) => Arc::clone(tree),
            Served::Followed(follower) => Arc::clone(follower.shown().view().tree()),
            Served::Branch(session, _) => Arc::clone(&session.working().base().tree),
        }
    }
}

async fn prepare(arguments: &MountArgs, spec: &RefSpec, mountpoint: &Path, read_only: bool) -> Result<Prepared> {
    let repository = arguments.repo.open_with(&arguments.virtuals).await?;
    let source = repository.storage().location().to_owned();
    let mut note = String::new();
    if let (RefSpec::Branch(branch), false) = (spec, read_only) {
        match repository.read_only_reason(branch).await? {
            None => {
                let (session, control, resumed) = writable::open(&repository, branch, arguments, mountpoint).await?;
                let served = Served::Branch(session, control);
                return Ok(Prepared { served, source, note: resumed.unwrap_or_default() });
            }
            Some(why) if arguments.scratch.is_some() || arguments.discard || arguments.ephemeral => {
                return Err(Error::new(ErrorKind::ReadOnly, format!("{source} cannot be written to: {why}")));
            }
            Some(why) => {
                note = format!("mounted read-only: {why}");
                warn!("{note}");
            }
        }
    }
    if let (Some(interval), RefSpec::Branch(branch)) = (arguments.follow, spec) {
        let mut numbering = Numbering::with_headroom();
        let tree = open::tree_after(&repository, spec, arguments.limits(), &mut numbering).await?;
        let follower = Follower::new(&repository, branch, tree, numbering, interval);
        return Ok(Prepared { served: Served::Followed(follower), source, note });
    }
    let tree = open::tree(&repository, spec, arguments.limits()).await?;
    Ok(Prepared { served: Served::Snapshot(tree), source, note })
}

/// Checks that the mount answers: a failure is better reported now than met by the first program.
fn check_mount_answers(mountpoint: &Path) -> Result<()> {
    match std::fs::metadata(mountpoint) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(Error::new(ErrorKind::Io, format!("{}: the mount is not a directory", mountpoint.display()))),
        Err(error) => {
            // No program can use it: do not leave it behind.
            let _ = unmount::unmount(mountpoint, UnmountMode::Detach);
            Err(Error::io(format!("{}: the mount does not answer", mountpoint.display()), error))
        }
    }
}

/// Logs the gauges on SIGUSR1, to find out why a program waits.
fn log_gauges_on_signal(runtime: &Runtime, reader: Arc<Reader>) -> Result<()> {
    let _runtime = runtime.enter();
    let mut requests = signal(SignalKind::user_defined1()).map_err(|e| Error::io("listening for signals", e))?;
    runtime.spawn(async move {
        while requests.recv().await.is_some() {
            info!("gauges: {}", serde_json::to_string(&reader.gauges()).unwrap_or_default());
        }
    });
    Ok(())
}

/// Unmounts on SIGTERM and SIGINT; programs with open files get [`GRACE`] to close them.
fn unmount_on_signals(runtime: &Runtime, mountpoint: PathBuf) -> Result<()> {
    let _runtime = runtime.enter();
    let listen = |kind| signal(kind).map_err(|e| Error::io("listening for signals", e));
    let (mut terminate, mut interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    // The end of a terminal must not end a mount.
    let mut hangup = listen(SignalKind::hangup())?;
    runtime.spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                _ = hangup.recv() => {}
            }
        }
        info!("unmounting {} as the signal asks", mountpoint.display());
        let place = mountpoint.clone();
        let outcome = tokio::task::spawn_blocking(move || {
            unmount::unmount(&place, UnmountMode::Polite).or_else(|error| match error.kind() {
                ErrorKind::Busy => {
                    warn!(
                        "{error}; no new program gets in, and this daemon ends in {} s at the latest",
                        GRACE.as_secs()
                    );
                    unmount::unmount(&place, UnmountMode::Detach)
                }
                _ => Err(error),
            })
        });
        if let Ok(Err(error)) = outcome.await {
            error!("{error}");
        }
        tokio::time::sleep(GRACE).await;
        error!("{}: programs still have files open; they get errors from now on", mountpoint.display());
        std::process::exit(0);
    });
    Ok(())
}
