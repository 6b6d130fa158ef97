//! The commits of a repository as a picture: what leads to what, and which branches and tags are where.
//!
//! [`layout`] decides where each commit is, [`terminal`] draws it with characters, [`svg`] as a picture. A snapshot has one
//! parent, so that lanes join downwards and nothing else: children are above their parents, the newest first.

pub mod layout;
pub mod svg;
pub mod terminal;

use std::collections::HashMap;

use crate::format::ids::ObjectId;
use crate::format::repo_info::SnapshotInfo;
use crate::printable;
use crate::repo::history::format_time;
use crate::repo::refs::{DEFAULT_BRANCH, Refs};

/// A branch or tag beside a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Its name, on one line.
    pub name: String,
    /// Whether it is a tag.
    pub is_tag: bool,
}

/// A commit as it is drawn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// Its id.
    pub id: ObjectId,
    /// Its parent, if it is drawn too or was left out for being one too many.
    pub parent: Option<ObjectId>,
    /// When it was made, in microseconds since 1970-01-01 UTC.
    pub time: u64,
    /// Its message.
    pub message: String,
    /// What points to it: `main` first, then branches, then tags.
    pub labels: Vec<Label>,
}

impl Commit {
    /// When it was made, to the minute.
    pub fn minute(&self) -> String {
        let time = format_time(self.time);
        match (time.get(..10), time.get(11..16)) {
            (Some(day), Some(minute)) if time.get(10..11) == Some("T") => format!("{day} {minute}"),
            _ => time,
        }
    }

    /// The first line of the message.
    pub fn title(&self) -> &str {
        self.message.lines().next().unwrap_or_default()
    }
}

/// `commits` with the refs that point to them.
pub fn with_labels(commits: Vec<SnapshotInfo>, refs: &Refs) -> Vec<Commit> {
    let mut labels: HashMap<ObjectId, Vec<Label>> = HashMap::new();
    let label = |name: &str, is_tag| Label { name: printable::line(name), is_tag };
    let main = refs.branches.get_key_value(DEFAULT_BRANCH);
    let others = refs.branches.iter().filter(|(name, _)| *name != DEFAULT_BRANCH);
    for (name, id) in main.into_iter().chain(others) {
        labels.entry(*id).or_default().push(label(name, false));
    }
    for (name, id) in &refs.tags {
        labels.entry(*id).or_default().push(label(name, true));
    }
    let commit = |info: SnapshotInfo| Commit {
        labels: labels.remove(&info.id).unwrap_or_default(),
        id: info.id,
        parent: info.parent,
        time: info.flushed_at,
        message: info.message,
    };
    commits.into_iter().map(commit).collect()
}
