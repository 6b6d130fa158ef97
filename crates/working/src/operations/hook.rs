//! A command that runs after each commit of this mount, to notify people or to rebuild what depends
//! on the data.
//!
//! It runs after the commit is visible to everybody, and its failure changes nothing: it is logged.
//! The commit does not wait for it, so it may itself read or write in the mount. Commands run one
//! after another in the order of the commits. Others' commits run nothing here: their machines may,
//! and a lakeFS or git user expects no less.

use std::process::Stdio;
use std::sync::Arc;

use tokio::process::Command;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tracing::{info, warn};

use icechunkfs_base::printable;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_tree::mount_facts::MountFacts;

/// Bytes of a command's output that are logged.
const LOGGED: usize = 2000;

/// Characters of a value in the environment: the kernel takes 128 KiB, with up to 4 bytes a
/// character.
const MAX_VALUE: usize = 30_000;

/// Commit that a command is told of.
#[derive(Clone, Debug)]
pub(super) struct NewCommit {
    pub(super) snapshot: ObjectId,
    pub(super) parent: ObjectId,
    pub(super) message: String,
}

/// Command that runs after each commit.
#[derive(Debug)]
pub(super) struct Hook {
    commits: UnboundedSender<NewCommit>,
}

impl Hook {
    /// Creates a hook that runs `command` with `sh -c`. Needs a runtime.
    pub(super) fn new(command: String, facts: Arc<MountFacts>) -> Self {
        let (commits, received) = unbounded_channel();
        drop(tokio::spawn(run_all(command, facts, received)));
        Hook { commits }
    }

    /// Runs the command for `commit`, soon.
    pub(super) fn notify(&self, commit: NewCommit) {
        // It fails when the runtime ends, and with it the mount.
        let _ = self.commits.send(commit);
    }
}

async fn run_all(command: String, facts: Arc<MountFacts>, mut commits: UnboundedReceiver<NewCommit>) {
    while let Some(commit) = commits.recv().await {
        run(&command, &facts, &commit).await;
    }
}

async fn run(command: &str, facts: &MountFacts, commit: &NewCommit) {
    let info = facts.info(commit.snapshot);
    // An environment has no NUL bytes, and a bound for each value.
    let clean = |text: &str| text.chars().filter(|c| *c != '\0').take(MAX_VALUE).collect::<String>();
    let output = Command::new("/bin/sh")
        .args(["-c", command])
        .env("ICECHUNKFS_SNAPSHOT", commit.snapshot.to_string())
        .env("ICECHUNKFS_PARENT", commit.parent.to_string())
        .env("ICECHUNKFS_REPOSITORY", clean(&info.repository))
        .env("ICECHUNKFS_BRANCH", clean(&info.branch.unwrap_or_default()))
        .env("ICECHUNKFS_MESSAGE", clean(&commit.message))
        .env("ICECHUNKFS_MOUNTPOINT", &facts.mountpoint)
        .current_dir("/")
        .stdin(Stdio::null())
        .output()
        .await;
    match output {
        Ok(output) => {
            let said = [output.stdout, output.stderr].concat();
            let said = said.get(..LOGGED).unwrap_or(&said);
            let said = printable::line(String::from_utf8_lossy(said).trim());
            if output.status.success() {
                info!("--on-commit after {}: done {said}", commit.snapshot)
            } else {
                warn!("--on-commit after {}: {}: {said}", commit.snapshot, output.status)
            }
        }
        Err(error) => warn!("--on-commit after {}: /bin/sh: {error}", commit.snapshot),
    }
}
