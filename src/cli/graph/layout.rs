//! Places each commit of the graph in a row and a lane.
//!
//! A drawn commit leaves a lane behind, which leads down to its parent. Several lanes to one parent
//! join just above it, in the leftmost of them. A line of commits is drawn down to where it joins
//! another before the next one begins, so that unrelated lines are not mixed. A merge leaves a
//! second lane behind, to the commit that it has merged.

use std::collections::{BinaryHeap, HashMap};

use super::Commit;
use icechunkfs_base::error::Result;
use icechunkfs_base::memory::{Meter, Metered};
use icechunkfs_format::format::ids::ObjectId;

/// A row of the drawing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// Position of the commit in the list.
    pub(crate) commit: usize,
    /// Lane of the commit, from the left.
    pub(crate) lane: usize,
    /// The other lanes that pass by, down to later commits, in order.
    pub(crate) passing: Vec<usize>,
    /// The lanes that end here, having joined this one just above, in order.
    pub(crate) joining: Vec<usize>,
    /// True if a line comes down the commit's own lane from above.
    pub(crate) has_child_line: bool,
    /// True if a line leads down from the commit.
    pub(crate) has_parent_line: bool,
    /// The lane, right of this one, that begins just below the commit and leads to what it has
    /// merged.
    pub(crate) opening: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Lane {
    Free,
    /// Reserved for this commit; nothing is drawn before it.
    Reserved(ObjectId),
    /// Leads down to this commit.
    To(ObjectId),
}

/// Bytes of a lane in a row: its number, and what is drawn of it, in color.
const LANE: u64 = 40;

/// Lays out `commits`, of which the first `limit` are drawn. `first`, if it is among them, gets the
/// leftmost lane.
///
/// Fails with [`ErrorKind::OutOfMemory`](icechunkfs_base::error::ErrorKind::OutOfMemory) if there
/// are too many lanes side by side.
pub(crate) fn rows(commits: &[Commit], first: Option<ObjectId>, limit: usize) -> Result<Metered<Vec<Row>>> {
    let plain = Below::of(commits, |_| None);
    if commits.iter().any(|commit| commit.merged.is_some()) {
        let linked = Below::of(commits, |commit| commit.merged);
        // A record that names a later commit would keep commits from being drawn.
        if linked.clone().drawable() == plain.clone().drawable()
            && let Ok(rows) = lay_out(commits, first, limit, linked)
        {
            return Ok(rows);
        }
    }
    lay_out(commits, first, limit, plain)
}

/// The commits to which lines lead down from each commit, by their positions.
#[derive(Clone)]
struct Below {
    /// Parent, and what was merged.
    places: Vec<[Option<usize>; 2]>,
    /// Lines to each commit that are not drawn yet.
    children: Vec<usize>,
}

impl Below {
    fn of(commits: &[Commit], merged: impl Fn(&Commit) -> Option<ObjectId>) -> Self {
        let positions: HashMap<ObjectId, usize> =
            commits.iter().enumerate().map(|(n, commit)| (commit.id, n)).collect();
        let place_of = |id: Option<ObjectId>| positions.get(&id?).copied();
        let places: Vec<[Option<usize>; 2]> =
            commits.iter().map(|commit| [place_of(commit.parent), place_of(merged(commit))]).collect();
        let mut children = vec![0_usize; commits.len()];
        for place in places.iter().flatten().flatten() {
            if let Some(count) = children.get_mut(*place) {
                *count += 1;
            }
        }
        Below { places, children }
    }

    /// Returns the positions of commits to which no line leads.
    fn tips(&self) -> impl Iterator<Item = usize> + '_ {
        self.children.iter().enumerate().filter(|(_, count)| **count == 0).map(|(n, _)| n)
    }

    /// Draws a line to the commit at `place`. Returns true if it was the last.
    fn draw(&mut self, place: usize) -> bool {
        let Some(count) = self.children.get_mut(place) else { return false };
        *count = count.saturating_sub(1);
        *count == 0
    }

    /// Returns the number of commits that can be drawn: all but those of cycles, and below them.
    fn drawable(mut self) -> usize {
        let mut ready: Vec<usize> = self.tips().collect();
        let mut drawn = 0;
        while let Some(n) = ready.pop().filter(|_| drawn < self.places.len()) {
            drawn += 1;
            let below = self.places.get(n).copied().unwrap_or_default();
            ready.extend(below.into_iter().flatten().filter(|place| self.draw(*place)));
        }
        drawn
    }
}

/// Lays out the commits with the lines of `below`.
fn lay_out(commits: &[Commit], first: Option<ObjectId>, limit: usize, mut below: Below) -> Result<Metered<Vec<Row>>> {
    let mut meter = Meter::new("the lanes of the graph");
    let mut tips: BinaryHeap<(u64, usize)> = BinaryHeap::new();
    for (n, commit) in below.tips().filter_map(|n| Some((n, commits.get(n)?))) {
        tips.push((commit.time, usize::MAX - n));
    }
    let is_there = |id: &ObjectId| commits.iter().any(|commit| commit.id == *id);
    let mut lanes: Vec<Lane> = first.filter(is_there).map(Lane::Reserved).into_iter().collect();
    let mut rows = Vec::new();
    let mut next: Option<usize> = None;
    // A damaged history may be a cycle: its commits have no tip and are not drawn.
    while let Some(n) = next.take().or_else(|| tips.pop().map(|(_, n)| usize::MAX - n)) {
        let Some(commit) = commits.get(n).filter(|_| rows.len() < limit) else { break };
        let [parent, merged] = below.places.get(n).copied().unwrap_or_default();
        let id_at = |place: Option<usize>| commits.get(place?).map(|commit| commit.id);
        let mut row = place(&mut lanes, n, commit.id, id_at(parent));
        row.opening = id_at(merged).map(|merged| open(&mut lanes, row.lane, merged));
        meter.count(LANE * (row.passing.len() + row.joining.len() + 1) as u64)?;
        rows.push(row);
        // The parent is next if all its children are drawn, and what was merged in its turn.
        next = parent.filter(|parent| below.draw(*parent));
        if let Some(merged) = merged.filter(|merged| below.draw(*merged)) {
            tips.push((commits.get(merged).map_or(0, |commit| commit.time), usize::MAX - merged));
        }
    }
    Ok(meter.finish(rows))
}

/// Opens a lane right of `lane` that leads to `merged`, and returns it.
fn open(lanes: &mut Vec<Lane>, lane: usize, merged: ObjectId) -> usize {
    if lanes.len() <= lane {
        lanes.resize(lane + 1, Lane::Free);
    }
    let free = lanes.iter().skip(lane + 1).position(|other| *other == Lane::Free);
    let opened = free.map_or(lanes.len(), |n| n + lane + 1);
    if opened == lanes.len() {
        lanes.push(Lane::Free);
    }
    if let Some(own) = lanes.get_mut(opened) {
        *own = Lane::To(merged);
    }
    opened
}

/// Puts `commit` into its lane, which then leads to `parent`.
fn place(lanes: &mut Vec<Lane>, commit: usize, id: ObjectId, parent: Option<ObjectId>) -> Row {
    let mut joining: Vec<usize> =
        lanes.iter().enumerate().filter(|(_, lane)| **lane == Lane::To(id)).map(|(n, _)| n).collect();
    let reserved = lanes.iter().position(|lane| *lane == Lane::Reserved(id));
    let lane = match (reserved, joining.first()) {
        (Some(reserved), _) => reserved,
        (None, Some(first)) => *first,
        (None, None) => lanes.iter().position(|lane| *lane == Lane::Free).unwrap_or(lanes.len()),
    };
    let has_child_line = joining.contains(&lane);
    joining.retain(|other| *other != lane);
    for other in &joining {
        if let Some(other) = lanes.get_mut(*other) {
            *other = Lane::Free;
        }
    }
    if lane >= lanes.len() {
        lanes.resize(lane + 1, Lane::Free);
    }
    if let Some(own) = lanes.get_mut(lane) {
        *own = parent.map_or(Lane::Free, Lane::To);
    }
    let passes = |(n, other): (usize, &Lane)| (n != lane && matches!(other, Lane::To(_))).then_some(n);
    let passing = lanes.iter().enumerate().filter_map(passes).collect();
    while lanes.last() == Some(&Lane::Free) {
        lanes.pop();
    }
    Row { commit, lane, passing, joining, has_child_line, has_parent_line: parent.is_some(), opening: None }
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    pub(in crate::cli::graph) fn id(n: u8) -> ObjectId {
        ObjectId([n; 12])
    }

    /// Creates commits from numbers and parents; the times rise with the numbers.
    pub(in crate::cli::graph) fn commits(all: &[(u8, u8)]) -> Vec<Commit> {
        let commit = |(n, parent): &(u8, u8)| Commit {
            id: id(*n),
            parent: (*parent > 0).then(|| id(*parent)),
            merged: None,
            time: u64::from(*n) * 60_000_000,
            message: format!("commit {n}"),
            labels: Vec::new(),
        };
        all.iter().map(commit).collect()
    }

    /// A file of 300 KB has so many branches.
    #[test]
    fn lanes_side_by_side_are_counted() {
        let commit = |n: u32| {
            let mut bytes = [0; 12];
            bytes[..4].copy_from_slice(&n.to_be_bytes());
            let parent = (n > 0).then_some(ObjectId([0; 12]));
            let time = u64::from(n);
            Commit { id: ObjectId(bytes), parent, merged: None, time, message: String::new(), labels: Vec::new() }
        };
        let star: Vec<Commit> = (0..20_000).map(commit).collect();
        assert!(rows(&star, None, usize::MAX).is_err());
        assert_eq!(rows(&star, None, 100).unwrap().len(), 100);
    }
}
