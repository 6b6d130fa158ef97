//! The commit graph of a repository: commits and their parents, branches and tags.
//!
//! [`layout`] places each commit, [`terminal`] draws the graph with characters, [`svg`] as a
//! picture. A snapshot has one parent, to which its lane leads; a merge has a second lane, to what
//! it has merged. Children are above their parents, the newest first.

pub(super) mod layout;
pub(super) mod svg;
pub(super) mod terminal;

use std::collections::HashMap;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use icechunkfs_base::error::Result;
use icechunkfs_base::memory::{Meter, Metered};
use icechunkfs_base::printable;
use icechunkfs_base::times::format_time;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::snapshot_info::SnapshotInfo;
use icechunkfs_repo::commit::merge_record::MergeRecord;
use icechunkfs_repo::repo::refs::{DEFAULT_BRANCH, Refs};

/// Longest message that is kept, in characters: a tooltip has all of it.
const MAX_MESSAGE: usize = 4000;
/// Bytes of a commit besides its message, with its row, its place in maps, and its part of a
/// drawing.
const COMMIT: u64 = 1500;

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
    /// Commit that this one has merged, by its own record.
    pub(crate) merged: Option<ObjectId>,
    /// Time of the commit, in microseconds since 1970-01-01 UTC.
    pub(crate) time: u64,
    /// Beginning of the commit message.
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

/// Commits of a graph, as they are collected.
pub(crate) struct Commits {
    list: Vec<Commit>,
    labels: HashMap<ObjectId, Vec<Label>>,
    meter: Meter,
}

impl Commits {
    /// Begins to collect commits. Some of them may have `refs`.
    pub(crate) fn new(refs: &Refs) -> Self {
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
        Commits { list: Vec::new(), labels, meter: Meter::new("the commits of the graph") }
    }

    /// Adds a commit, with the beginning of its message, and returns the commit that it has merged.
    pub(crate) fn add(&mut self, info: SnapshotInfo) -> Result<Option<ObjectId>> {
        let message = printable::shorten(info.message(), MAX_MESSAGE);
        // A record that cannot be read costs a line of the picture.
        let record = MergeRecord::of(&info).ok().flatten();
        // With what is drawn of it.
        self.meter.count(COMMIT + 4 * message.len() as u64)?;
        let merged = record.map(|record| record.snapshot).filter(|merged| Some(*merged) != info.parent);
        self.list.push(Commit {
            labels: self.labels.remove(&info.id).unwrap_or_default(),
            id: info.id,
            parent: info.parent,
            merged,
            time: info.flushed_at,
            message: message.into_owned(),
        });
        Ok(merged)
    }

    /// Returns all commits.
    pub(crate) fn finish(self) -> Metered<Vec<Commit>> {
        self.meter.finish(self.list)
    }
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
