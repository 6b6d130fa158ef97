//! Arrays that a view leaves out, for the line that `mount` prints: the report lists them, and
//! nobody looks for a report.

use std::time::{Duration, Instant};

use crate::control_directory::NAME;
use icechunkfs_base::printable;
use icechunkfs_tree::tree::Tree;
use icechunkfs_tree::tree::nodes::NodeIndex;

/// Deeds of views.
pub(super) const LEAVES_OUT: &str = "leaves out";
pub(super) const SHOWS_AS_STORED: &str = "shows as stored";
/// Longest time that a mount waits for the look at its arrays.
const MAX_LOOK: Duration = Duration::from_millis(300);
/// Longest `zarr.json` that is looked into: longer ones take milliseconds each.
const MAX_DOCUMENT: usize = 256 << 10;

/// Arrays that a view leaves out or shows as stored, as far as their documents tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Omissions {
    /// Deed of the view.
    deed: &'static str,
    /// Arrays to which that happened.
    count: usize,
    /// Arrays that were looked at.
    seen: usize,
    /// True if there are others.
    has_more: bool,
    /// Path of the first of them, with the reason.
    first: Option<(String, String)>,
}

impl Omissions {
    /// Looks at the nodes of `tree` in their order. `reason` returns the reason why the view does
    /// `deed` to a node, and the last node for which that holds, too.
    pub(super) fn find(
        tree: &Tree,
        deed: &'static str,
        reason: impl Fn(NodeIndex) -> Option<(NodeIndex, String)>,
    ) -> Self {
        let begin = Instant::now();
        let table = tree.table();
        let mut found = Omissions { deed, ..Omissions::default() };
        let mut gone: Option<(NodeIndex, String)> = None;
        for node in 0..table.len() as NodeIndex {
            let is_array = table.array(node).is_some();
            if found.seen > 0 && begin.elapsed() > MAX_LOOK {
                found.has_more = true;
                break;
            }
            if gone.as_ref().is_none_or(|gone| node > gone.0) {
                let is_long = tree.zarr_json(node).is_some_and(|document| document.len() > MAX_DOCUMENT);
                if is_long {
                    found.has_more |= is_array;
                    continue;
                }
                gone = reason(node);
            }
            found.seen += usize::from(is_array);
            if let Some((_, reason)) = gone.as_ref().filter(|(last, _)| is_array && node <= *last) {
                found.count += 1;
                found.first.get_or_insert_with(|| (format!("/{}", table.path(node)), reason.clone()));
            }
        }
        found
    }

    /// Returns true if there are any.
    pub fn is_any(&self) -> bool {
        self.count > 0
    }

    /// Returns the line that says so of `view`; none if there are no such arrays.
    pub fn note(&self, view: &str) -> Option<String> {
        let (path, reason) = self.first.as_ref()?;
        let count = match (self.count, self.has_more) {
            (1, false) => String::new(),
            (count, false) => format!("{count} arrays, first "),
            (count, true) => format!("{count} of the first {} arrays, first ", self.seen),
        };
        let deed = self.deed;
        let [path, reason] = [path, reason].map(|part| printable::line(part));
        Some(format!("the view {view} {deed} {count}{path}: {reason}; {NAME}/{view} in the mount has the list"))
    }
}
