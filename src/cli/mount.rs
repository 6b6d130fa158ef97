//! `icechunkfs mount`: mounts a snapshot or branch and serves it, by default from a daemon.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{error, info, warn};

use super::daemon::{self, DaemonReport, Process};
use super::mount_options::MountArgs;
use super::{logging, open};
use crate::error::{Error, ErrorKind, Result};
use crate::fuse::mount::{self, GRACE, Mounted};
use crate::fuse::unmount::{self, UnmountMode};
use crate::library::mounts;
use crate::reader::Reader;
use crate::repo::refs::RefSpec;

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
    let options = arguments.options_of(spec)?;
    let (content, options, note) = runtime.block_on(async {
        let repository = arguments.repo.open_with(&arguments.virtuals).await?;
        mounts::prepare(&repository, &mountpoint, &options).await
    })?;
    if arguments.check_only {
        return Ok(());
    }
    let mounted = Mounted::new(content, mountpoint, &options, runtime.handle().clone())?;
    unmount_on_signals(&runtime, mounted.mountpoint().to_owned())?;
    log_gauges_on_signal(&runtime, Arc::clone(&mounted.reader))?;
    mounts::check_answers(mounted.mountpoint())?;
    if let Some(outcome) = outcome.and_then(Option::take) {
        outcome.report_ready(&note)?;
    }
    let served = mounts::wait(mounted, runtime.handle(), arguments.ephemeral);
    // A thread that is blocked on a dead network file system must not keep the daemon alive.
    runtime.shutdown_background();
    served
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
