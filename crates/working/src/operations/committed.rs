//! Result of a commit, as commands and control files show it.

use serde::{Deserialize, Serialize};

use icechunkfs_base::size;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_repo::commit::warnings::Warning;

/// Result of a commit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Committed {
    /// ID of the new snapshot; none if there was nothing to commit.
    pub snapshot: Option<ObjectId>,
    /// True if no branch leads to it; the changes stay uncommitted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub detached: bool,
    /// Concurrent commits that the commit was rebased over, oldest first.
    pub rebased_over: Vec<ObjectId>,
    /// Nodes created, deleted, changed and moved.
    pub nodes: usize,
    /// Nodes of those that were deleted.
    #[serde(skip_serializing_if = "is_zero")]
    pub deleted: usize,
    /// True if nothing is left on the branch.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_empty: bool,
    /// Chunks written and deleted.
    pub chunks: usize,
    /// Chunks that were written here with the bytes that they had, which the commit leaves out.
    #[serde(skip_serializing_if = "is_zero")]
    pub unchanged: usize,
    /// Paths of untracked files, which the commit does not contain.
    pub untracked: Vec<String>,
    /// Nodes whose parent directory has no `zarr.json`: for Zarr they are members of no group.
    pub ungrouped: Vec<String>,
    /// Arrays that some programs cannot read as they are stored.
    pub warnings: Vec<Warning>,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl std::fmt::Display for Committed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.snapshot {
            Some(id) => {
                let deleted = match self.deleted {
                    0 => String::new(),
                    all if all == self.nodes => " deleted".to_owned(),
                    some => format!(" ({some} deleted)"),
                };
                let nodes = size::counted(self.nodes as u64, "node");
                let counts = format!("{nodes}{deleted}, {}", size::counted(self.chunks as u64, "chunk"));
                if self.detached {
                    write!(
                        f,
                        "stored snapshot {id}, to which no branch leads: {counts}; `icechunkfs branch create REPO \
                         NAME --at {id}` makes one"
                    )?;
                } else {
                    write!(f, "committed snapshot {id}: {counts}")?;
                }
            }
            None => f.write_str("nothing to commit")?,
        }
        if !self.rebased_over.is_empty() {
            write!(f, "; rebased onto {}", size::counted(self.rebased_over.len() as u64, "concurrent commit"))?;
        }
        match self.unchanged {
            0 => {}
            1 => f.write_str("; 1 chunk was left out, as its bytes are the same as before")?,
            count => write!(f, "; {count} chunks were left out, as their bytes are the same as before")?,
        }
        match self.untracked.len() {
            0 => {}
            1 => f.write_str("; 1 untracked file was not committed (status names it)")?,
            count => write!(f, "; {count} untracked files were not committed (status lists them)")?,
        }
        if self.is_empty {
            f.write_str("; warning: nothing is left on the branch: `icechunkfs undo REPO` takes the commit back")?;
        }
        match self.ungrouped.as_slice() {
            [] => {}
            [path] => {
                write!(f, "; warning: {path} is in a directory without zarr.json, so it does not belong to a group")?;
            }
            [path, rest @ ..] => write!(
                f,
                "; warning: {path} and {} more are in directories without zarr.json, so they do not belong to a group",
                rest.len()
            )?,
        }
        match self.warnings.as_slice() {
            [] => Ok(()),
            [one] => write!(f, "; warning: {one}"),
            [first, rest @ ..] => write!(f, "; warning: {first}; and {} more", rest.len()),
        }
    }
}
