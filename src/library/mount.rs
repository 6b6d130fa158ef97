//! Mounts that a program makes in its own process.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tracing::warn;

use super::mounts::{self, MountOptions, Scratch};
use super::{Inner, Repository};
use crate::fuse::mount_target::MountTarget;
use crate::fuse::served_mount::ServedMount;
use crate::fuse::unmount::UnmountMode;
use crate::fuse::{mount, preopened};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_repo::repo;
use icechunkfs_repo::repo::refs::RefSpec;
use icechunkfs_working::operations::{self, CommitOptions};

/// A mount to be made: of branch `main`, unless another snapshot is chosen.
///
/// A branch is mounted for writing if the repository can be written to. What is written stays in a
/// scratch directory of this user until it is committed, also after the end of the program: the
/// next mount of the branch shows it again.
#[derive(Clone, Debug)]
pub struct Mount {
    inner: Arc<Inner>,
    options: MountOptions,
}

/// A mount that is served by this process, until it is dropped or unmounted.
///
/// The drop unmounts too. While another program has a file open in it, the mount then leaves the
/// tree of directories at once, and ends when that file is closed.
#[derive(Debug)]
pub struct Mounted {
    inner: Arc<Inner>,
    served: ServedMount,
    /// Set until it is unmounted.
    running: Option<mount::Mounted>,
}

impl Mount {
    /// Creates a mount of branch `main` of `repository`.
    pub fn new(repository: &Repository) -> Self {
        Mount { inner: Arc::clone(&repository.0), options: MountOptions::default() }
    }

    /// Chooses the tip of branch `name`.
    #[must_use]
    pub fn branch(self, name: &str) -> Self {
        self.spec(RefSpec::Branch(name.to_owned()))
    }

    /// Chooses the snapshot that tag `name` points to, read-only.
    #[must_use]
    pub fn tag(self, name: &str) -> Self {
        self.spec(RefSpec::Tag(name.to_owned()))
    }

    /// Chooses snapshot `id`, read-only.
    #[must_use]
    pub fn snapshot(self, id: ObjectId) -> Self {
        self.spec(RefSpec::Snapshot(id))
    }

    fn spec(mut self, spec: RefSpec) -> Self {
        self.options.spec = spec;
        self
    }

    /// Mounts a branch read-only too.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.options.read_only = true;
        self
    }

    /// Keeps what is not committed in `directory`, not in the user's default one.
    #[must_use]
    pub fn scratch(mut self, directory: impl Into<PathBuf>) -> Self {
        self.options.scratch = Scratch::At(directory.into());
        self
    }

    /// Mounts at `mountpoint`, an empty directory, and serves the mount on threads of this process.
    /// Returns when it answers.
    pub fn at(self, mountpoint: impl AsRef<Path>) -> Result<Mounted> {
        let Mount { inner, options } = self;
        if preopened::descriptor(mountpoint.as_ref()).is_some() {
            return Err(Error::invalid(
                "a mountpoint /dev/fd/N is for the program: this process may use the descriptor itself",
            ));
        }
        let target = MountTarget::open(mountpoint.as_ref(), options.nonempty)?;
        let (content, kernel, _) = inner.handle.block_on(async {
            // The branch may have moved since the repository was opened.
            let storage = Arc::clone(inner.repository.storage());
            let repository = repo::Repository::open(storage).await?;
            mounts::prepare(&repository, target.path(), &options).await
        })?;
        let running = mount::Mounted::new(content, target, &kernel, inner.handle.clone())?;
        let served = running.served().clone();
        mounts::check_answers(&served)?;
        Ok(Mounted { inner, served, running: Some(running) })
    }
}

impl Mounted {
    /// Returns the mountpoint.
    pub fn path(&self) -> &Path {
        self.served.mountpoint()
    }

    /// Commits all changes. Returns the new snapshot; none if there was nothing to commit.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::ReadOnly`] if the mount is not writable, [`ErrorKind::Busy`] if files are open
    /// for writing, [`ErrorKind::InvalidInput`] if a file cannot be committed, [`ErrorKind::Stale`]
    /// if a concurrent commit conflicts. Nothing is committed then, and nothing lost.
    pub fn commit(&self, message: &str) -> Result<Option<ObjectId>> {
        let options = CommitOptions { message: message.to_owned(), ..CommitOptions::default() };
        Ok(self.inner.handle.block_on(self.session()?.commit(options))?.snapshot)
    }

    /// Discards all changes that are not committed.
    pub fn discard(&self) -> Result<()> {
        self.inner.handle.block_on(self.session()?.discard("")).map(drop)
    }

    /// Returns true if there are changes to commit.
    pub fn has_changes(&self) -> Result<bool> {
        Ok(!self.inner.handle.block_on(self.session()?.status())?.clean)
    }

    /// Unmounts. Changes that are not committed stay in the scratch directory.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Busy`] while a program has a file open in the mount, which then stays.
    pub fn unmount(&mut self) -> Result<()> {
        if self.running.is_some() {
            self.served.unmount(UnmountMode::Polite)?;
        }
        self.running.take().map_or(Ok(()), |running| mounts::wait(running, &self.inner.handle, &Scratch::Default))
    }

    fn session(&self) -> Result<&operations::Session> {
        let session = self.running.as_ref().and_then(|running| running.branch.as_deref());
        session.ok_or_else(|| {
            Error::new(ErrorKind::ReadOnly, format!("{} is not mounted for writing", self.path().display()))
        })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let Err(error) = self.unmount() else { return };
        warn!("{error}");
        let Some(running) = self.running.take() else { return };
        if let Err(error) = self.served.unmount(UnmountMode::Detach) {
            warn!("{error}");
        }
        // The mount ends when the last file is closed.
        let inner = Arc::clone(&self.inner);
        drop(std::thread::spawn(move || mounts::wait(running, &inner.handle, &Scratch::Default)));
    }
}
