//! `icechunkfs mount`: mounts a snapshot or branch and serves it, by default from a daemon.

use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{error, info};

use super::daemon::{self, DaemonReport, Process};
use super::end_signals::{EndSignals, Remains, unmount_at_end};
use super::metrics_server::Counts;
use super::mount_options::MountArgs;
use super::service_manager::ServiceManager;
use super::{logging, metrics_server, open};
use crate::fuse::access_log;
use crate::fuse::mount::Mounted;
use crate::fuse::mount_target::MountTarget;
use crate::fuse::preopened;
use crate::fuse::unmount::UnmountMode;
use crate::library::mounts;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::metrics;
use icechunkfs_base::stages::Stages;
use icechunkfs_base::times::system_clock;
use icechunkfs_base::trust;
use icechunkfs_repo::reader::Reader;
use icechunkfs_repo::repo::Repository;
use icechunkfs_repo::repo::change_refs::RefKind;
use icechunkfs_repo::repo::refs::{DEFAULT_BRANCH, RefSpec};

/// Mounts, and serves until it is unmounted: in this process, or in a daemon.
pub(crate) fn run(arguments: &MountArgs, verbose: u8) -> Result<()> {
    let mut arguments = arguments.clone();
    let spec = arguments.take_spec()?;
    arguments.check(&spec)?;
    let arguments = &arguments;
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
        Process::Command(answer) => answer.wait().map(drop),
        Process::Daemon(outcome) => {
            let logging = log_file.map_or_else(|| logging::to_syslog(verbose), |path| logging::to_file(&path, verbose));
            serve_as_daemon(arguments, &spec, outcome, logging);
            Ok(())
        }
    }
}

/// Serves the mount in this process, which is the daemon and ends if that fails.
pub(super) fn serve_as_daemon(arguments: &MountArgs, spec: &RefSpec, outcome: DaemonReport, logging: Result<()>) {
    let mut outcome = Some(outcome);
    if let Err(error) = logging.and_then(|()| serve(arguments, spec, Some(&mut outcome))) {
        error!("{error}");
        if let Some(outcome) = outcome.take() {
            outcome.report_failure(&error);
        }
        // The command has printed the error, or ended long ago.
        std::process::exit(i32::from(error.exit_code()));
    }
}

/// Serves the mount, from opening the repository to the end. Reports to `outcome` when the mount
/// answers.
fn serve(arguments: &MountArgs, spec: &RefSpec, outcome: Option<&mut Option<DaemonReport>>) -> Result<()> {
    if let Some(path) = &arguments.access_log {
        let path = std::path::absolute(path).map_err(|e| Error::io("the access log", e))?;
        let file = trust::open_log(&path).map_err(|e| e.context(format!("the access log {}", path.display())))?;
        access_log::start(file, &path)?;
    }
    let runtime = open::runtime()?;
    let target = MountTarget::open(&arguments.mountpoint, arguments.nonempty)?;
    let mut options = arguments.options_of(spec)?;
    let scratch = options.scratch.clone();
    let stages = Stages::begin("opening the repository");
    let (content, options, note) = runtime.block_on(async {
        let mut repository = arguments.repo.open_with(&arguments.virtuals).await?;
        if arguments.new_branch.create && create_branch(&repository, spec, arguments).await? {
            repository = arguments.repo.open_with(&arguments.virtuals).await?;
        }
        options.spec = repository.completed(options.spec.clone()).await?;
        stages.enter("preparing the mount");
        mounts::prepare(&repository, target.path(), &options).await
    })?;
    if arguments.check_only {
        return Ok(());
    }
    // Fallible steps come before there is a mount.
    let listener = arguments.metrics.map(|address| metrics_server::listen(&runtime, address)).transpose()?;
    // A signal that came right after the mount would otherwise leave a dead mount. A given
    // descriptor does not wait for its mount either: without one, the kernel refuses to read from
    // it.
    let signals = EndSignals::listen(&runtime, arguments)?;
    stages.enter("mounting");
    let remains = Arc::new(Remains::of(arguments, &content, target.path()));
    let mounted = Mounted::new(content, target, &options, runtime.handle().clone())?;
    let manager = if outcome.is_none() { ServiceManager::from_environment() } else { None };
    unmount_at_end(&runtime, signals, mounted.served().clone(), manager.clone(), Arc::downgrade(&remains));
    listen_to_signals(&runtime, Arc::clone(&mounted.reader))?;
    observe(&runtime, arguments, &mounted, listener);
    // The place of a descriptor that the caller mounts may be unknown.
    if preopened::descriptor(mounted.mountpoint()).is_none() {
        mounts::check_answers(mounted.served())?;
    }
    stages.end();
    if let Some(outcome) = outcome.and_then(Option::take) {
        let facts = remains.facts(mounted.served());
        // The command has ended, and nobody knows of the mount.
        outcome.report_ready(&facts, &note).inspect_err(|_| drop(mounted.served().unmount(UnmountMode::Detach)))?;
    }
    if let Some(manager) = &manager {
        let place = mounted.mountpoint();
        manager.report_ready(&format!("{} is mounted at {}", options.source, place.display()));
        manager.start_watchdog(mounted.served().clone(), runtime.handle().clone());
    }
    let served = mounts::wait(mounted, runtime.handle(), &scratch);
    // A thread that is blocked on a dead network file system must not keep the daemon alive.
    runtime.shutdown_background();
    served
}

/// Creates the branch that is mounted, unless it exists: a job that is started again goes on in its
/// branch. Returns true if it was created.
async fn create_branch(repository: &Repository, spec: &RefSpec, arguments: &MountArgs) -> Result<bool> {
    let RefSpec::Branch(branch) = spec else { return Ok(false) };
    if repository.branch_tip(branch).await?.is_some() {
        return Ok(false);
    }
    let from = arguments.new_branch.from.as_deref().unwrap_or(DEFAULT_BRANCH);
    let from = repository.resolve_revision(from).await.map_err(|e| e.context("--from"))?.id;
    if arguments.check_only {
        return Err(Error::new(
            ErrorKind::NotFound,
            format!("branch `{branch}` does not exist yet: mounting creates it at {from}"),
        ));
    }
    repository.check_changes_allowed().await?;
    match repository.create_ref(RefKind::Branch, branch, from, system_clock).await {
        Ok(()) => {
            info!("created branch {branch} at {from}");
            Ok(true)
        }
        // Another node of the job was faster.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(true),
        Err(error) => Err(error),
    }
}

/// Starts what others see of the mount at work: the metrics, and the command after commits.
fn observe(runtime: &Runtime, arguments: &MountArgs, mounted: &Mounted, listener: Option<TcpListener>) {
    metrics::begin();
    if let Some(listener) = listener {
        let counts = Counts { reader: Arc::clone(&mounted.reader), session: mounted.branch.clone() };
        metrics_server::serve_all(runtime, listener, counts, &arguments.metrics_host);
    }
    if let (Some(command), Some(session)) = (&arguments.on_commit, &mounted.branch) {
        let _runtime = runtime.enter();
        session.run_on_commit(command.clone());
    }
}

/// Logs the gauges on SIGUSR1, to find out why a program waits, and more of everything on SIGUSR2.
fn listen_to_signals(runtime: &Runtime, reader: Arc<Reader>) -> Result<()> {
    let _runtime = runtime.enter();
    let mut requests = signal(SignalKind::user_defined1()).map_err(|e| Error::io("listening for signals", e))?;
    let mut raises = signal(SignalKind::user_defined2()).map_err(|e| Error::io("listening for signals", e))?;
    runtime.spawn(async move {
        while raises.recv().await.is_some() {
            let level = logging::raise_level();
            info!("the log has level {} now", level.as_str().to_lowercase());
        }
    });
    runtime.spawn(async move {
        while requests.recv().await.is_some() {
            info!("gauges: {}", serde_json::to_string(&reader.gauges()).unwrap_or_default());
        }
    });
    Ok(())
}
