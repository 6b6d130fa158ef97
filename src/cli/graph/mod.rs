//! The commit graph of a repository: commits and their parents, branches and tags.
//!
//! [`layout`] places each commit, [`terminal`] draws the graph with characters, [`svg`] as a picture. A snapshot has one
//! parent, so that lanes join downwards and nothing else: children are above their parents, the newest first.

pub(super) mod layout;
pub(super) mod svg;
pub(super) mod terminal;

use std::collections::HashMap;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::format::ids::ObjectId;
use crate::format::repo_info::SnapshotInfo;
use crate::printable;
use crate::repo::refs::{DEFAULT_BRANCH, Refs};
use crate::times::format_time;

/// A branch or tag beside a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Label {
    /// Name, escaped as one line.
    pub(crate) name: String,
    /// True for a tag.
    pub(crate) is_tag: bool,
}

/// A commit of the graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Commit {
    /// Snapshot id.
    pub(crate) id: ObjectId,
    /// Parent, which may lie beyond the drawn commits.
    pub(crate) parent: Option<ObjectId>,
    /// Time of the commit, in microseconds since 1970-01-01 UTC.
    pub(crate) time: u64,
    /// Commit message.
    pub(crate) message: String,
    /// Refs that point to the commit: `main` first, then branches, then tags.
    pub(crate) labels: Vec<Label>,
}

impl Commit {
    /// Returns the time of the commit, to the minute.
    pub(crate) fn minute(&self) -> String {
        let time = format_time(self.time);
        match (time.get(..10), time.get(11..16)) {
            (Some(day), Some(minute)) if time.get(10..11) == Some("T") => format!("{day} {minute}"),
            _ => time,
        }
    }

    /// Returns the first line of the message.
    pub(crate) fn title(&self) -> &str {
        self.message.lines().next().unwrap_or_default()
    }
}

/// Adds to `commits` the refs that point to them.
pub(crate) fn with_labels(commits: Vec<SnapshotInfo>, refs: &Refs) -> Vec<Commit> {
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

/// Truncates `text` to `room` columns, with `dots` at its end.
fn truncate(text: &str, room: usize, dots: &str) -> String {
    if text.width() <= room {
        return text.to_owned();
    }
    let Some(room) = room.checked_sub(dots.width()) else { return String::new() };
    let mut width = 0;
    let fits = |c: &char| {
        width += c.width().unwrap_or(0);
        width <= room
    };
    let kept: String = text.chars().take_while(fits).collect();
    format!("{}{dots}", kept.trim_end())
}
