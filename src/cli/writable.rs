//! Opens and ends writable mounts.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;
use tracing::{info, warn};

use super::mount_options::MountArgs;
use crate::commit::engine::{Engine, EngineOptions};
use crate::control::Control;
use crate::error::{Error, Result};
use crate::memory;
use crate::operations::{self, Facts, RecoveryOptions, Session, UploadMode};
use crate::reader::Reader;
use crate::repo::Repository;
use crate::scratch::directory::default_path;
use crate::scratch::relocate::{self, ScratchKey};
use crate::times::system_clock;

/// Opens `branch` for writing. Returns a note for the user, too.
pub(crate) async fn open(
    repository: &Repository,
    branch: &str,
    arguments: &MountArgs,
    mountpoint: &Path,
) -> Result<(Arc<Session>, Arc<Control>, Option<String>)> {
    let limits = arguments.limits();
    let limit = limits.max_snapshot_size()?;
    let storage = Arc::clone(repository.storage());
    let local = storage.local_path();
    let scratch = scratch(repository, branch, arguments)?;
    let is_default = arguments.scratch.is_none() && !arguments.ephemeral;
    let relocated = match (&local, is_default) {
        (Some(_), true) => relocate_scratch(repository, branch, &scratch, mountpoint).await?,
        _ => None,
    };
    let opening = RecoveryOptions {
        branch,
        scratch: &scratch,
        mountpoint,
        local: local.as_deref(),
        discard: arguments.discard,
        limit,
    };
    let virtuals = repository.virtuals();
    let reader =
        |fixed: u64| Ok(Reader::new(Arc::clone(&storage), limits.budget(fixed)?).with_virtuals(Arc::clone(virtuals)));
    let (working, reader, note) = operations::open(repository, &opening, reader).await?;
    let note = [relocated, note].into_iter().flatten().reduce(|one, other| format!("{one}; {other}"));
    let options =
        EngineOptions { pack_below: arguments.pack_below, memory: limits.uploads(), ..EngineOptions::default() };
    let engine = Engine::new(Arc::clone(&storage), Arc::clone(&reader), system_clock, options);
    let shown = arguments.show_control;
    let options = json!({
        "scratch": scratch.to_string_lossy(),
        "ephemeral": arguments.ephemeral,
        "allow_other": arguments.allow_other,
        "show_control": shown,
        "pack_below": arguments.pack_below,
        "memory": memory::explicit_bound(),
        "upload": arguments.upload,
        "upload_limit": arguments.repo.store.upload_limit,
        "allow_virtual": arguments.virtuals.allow_virtual,
        "virtual_map": arguments.virtuals.virtual_map,
    });
    let facts = Facts {
        mountpoint: mountpoint.to_owned(),
        spec_version: repository.version().number(),
        options: options.as_object().cloned().unwrap_or_default(),
    };
    let session = Arc::new(Session::new(working, storage, reader, engine, facts));
    if arguments.upload == UploadMode::Eager {
        session.begin_uploads();
    }
    let control = Arc::new(Control::new(Arc::clone(&session), shown));
    Ok((session, control, note))
}

/// Relocates the scratch directory of a moved repository to `scratch`. Returns a note for the user.
async fn relocate_scratch(
    repository: &Repository,
    branch: &str,
    scratch: &Path,
    mountpoint: &Path,
) -> Result<Option<String>> {
    let identity = match repository.identity().await {
        Ok(Some(identity)) => identity.to_string(),
        // The commands that need the identity report the error.
        Ok(None) | Err(_) => return Ok(None),
    };
    relocate::relocate(&ScratchKey { path: scratch, branch, identity: &identity, mountpoint })
}

fn scratch(repository: &Repository, branch: &str, arguments: &MountArgs) -> Result<PathBuf> {
    if let Some(path) = &arguments.scratch {
        return std::path::absolute(path).map_err(|e| Error::io("the scratch directory", e));
    }
    if arguments.ephemeral {
        let made = tempfile::Builder::new().prefix("icechunkfs-").tempdir();
        let made = made.map_err(|e| Error::io("making a temporary scratch directory", e))?;
        // `end_mount` removes the directory if all of its contents were committed.
        return Ok(made.keep());
    }
    default_path(&scratch_location(repository), branch)
}

/// Returns the name of `repository` in paths of scratch directories: its real location, whatever path the user gave.
pub(super) fn scratch_location(repository: &Repository) -> String {
    let storage = repository.storage();
    let local = storage.local_path().map(|path| path.to_string_lossy().into_owned());
    local.unwrap_or_else(|| storage.location().to_owned())
}

/// Ends a mount: logs uncommitted changes, and removes an ephemeral scratch directory if there are none.
pub(crate) async fn end_mount(session: Arc<Session>, ephemeral: bool) {
    session.end_uploads();
    // Nothing is written to the directory after this.
    if let Err(error) = session.working().make_durable().await {
        warn!("{error}: the last writes may be lost if the power fails");
    }
    let path = session.working().scratch().path().to_owned();
    match session.status().await {
        Ok(status) if status.clean && (!ephemeral || status.untracked.is_empty()) => {
            if ephemeral && let Err(error) = std::fs::remove_dir_all(&path) {
                warn!("the scratch directory {} is left behind: {error}", path.display());
            }
        }
        Ok(status) => info!(
            "uncommitted changes stay in {}: {} chunks, {} bytes, {} untracked files",
            path.display(),
            status.chunks_written + status.chunks_deleted,
            status.bytes,
            status.untracked.len()
        ),
        Err(error) => warn!("{}: {error}", path.display()),
    }
}
