//! The result of a restore, for people and for programs.

use serde_json::{Value, json};

use super::Plan;
use crate::commit::conflict::Conflict;
use icechunkfs_base::printable;
use icechunkfs_format::format::ids::ObjectId;

/// Paths that a text lists; the rest is counted.
const LISTED: usize = 10;

impl Plan {
    /// Returns the result as JSON. `path` is the restored path of `branch`, `source` the snapshot
    /// that it is restored from, and `snapshot` the new one, if there is one.
    pub fn report(
        &self,
        path: &str,
        source: ObjectId,
        branch: &str,
        snapshot: Option<ObjectId>,
        conflicts: &[Conflict],
    ) -> Value {
        let changes = &self.changes;
        let written = |nodes: &[crate::commit::changes::WrittenNode]| -> Vec<String> {
            nodes.iter().map(|node| node.path.clone()).collect()
        };
        let deleted: Vec<&str> = changes.deleted.iter().map(|node| node.path.as_str()).collect();
        let moved: Vec<Value> = changes.moved.iter().map(|moved| json!({"from": moved.from, "to": moved.to})).collect();
        json!({
            "path": path,
            "found_at": self.target.source_of(path),
            "from": source,
            "created": written(&changes.created),
            "deleted": deleted,
            "updated": written(&changes.updated),
            "moved": moved,
            "chunks": changes.chunk_count(),
            "elsewhere": self.notes.elsewhere,
            "parents": self.notes.parents,
            "branch": branch,
            "snapshot": snapshot,
            "conflicts": conflicts,
        })
    }

    /// Returns the numbers of changes as text.
    pub fn counts(&self) -> String {
        self.changes.counted()
    }

    /// Returns lines on what a user may not expect: another name, nodes that are elsewhere now,
    /// groups that were missing.
    pub fn remarks(&self) -> String {
        let mut text = String::new();
        if self.target.is_renamed() {
            let now = printable::line(&self.target.node);
            let then = printable::line(&self.target.source);
            text += &format!("{now} was called {then} in that snapshot\n");
        }
        for elsewhere in self.notes.elsewhere.iter().take(LISTED) {
            let path = printable::line(&elsewhere.path);
            let now = printable::line(&elsewhere.now);
            text +=
                &format!("{path} was moved since: it is a copy, and {now} stays as it is (to restore that, name it)\n");
        }
        if self.notes.elsewhere.len() > LISTED {
            text += &format!("and {} more nodes that were moved since\n", self.notes.elsewhere.len() - LISTED);
        }
        for parent in &self.notes.parents {
            text += &format!("group {} was missing and is restored too\n", printable::line(parent));
        }
        text
    }
}
