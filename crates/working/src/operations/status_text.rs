//! The status of the working tree as text: node by node, as version control tools show it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::paths::lost_root_message;
use super::status::{ArrayStatus, Status};
use icechunkfs_base::size::{self, counted};
use icechunkfs_base::{printable, shell};
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_repo::commit::warnings::Warning;

/// Lines of one kind; the rest is counted.
const LISTED: usize = 20;

/// Changes of one node.
#[derive(Default)]
struct NodeChanges {
    /// Change of the node itself.
    how: Option<&'static str>,
    details: Vec<String>,
}

impl Status {
    /// Formats the status as text.
    pub fn to_text(&self) -> String {
        let mut text = format!("On branch {} at {}\n", printable::line(&self.branch), self.base);
        self.write_branch(&mut text);
        if let Some(root) = &self.lost_root {
            let _ = writeln!(text, "{}", lost_root_message(root));
        }
        if let Some(landed) = &self.landed {
            let _ = writeln!(
                text,
                "commit {landed} of this mount is on the branch, though it seemed to have failed: commit to continue"
            );
        }
        self.write_nodes(&mut text);
        list(&mut text, "open for writing (a commit waits for them)", &self.open_for_writing);
        let untracked = self.untracked.iter().map(|file| match &file.why {
            Some(why) => format!("{}: {why}", file.path),
            None => file.path.clone(),
        });
        list(&mut text, "untracked (never committed)", untracked);
        if self.untracked.iter().any(|file| is_of_version_2(&file.path)) {
            text.push_str("  .zarray and .zgroup are of Zarr version 2, which is not stored: write version 3\n");
        }
        list(&mut text, "in a directory without zarr.json, so they do not belong to a group", &self.ungrouped);
        list(&mut text, "warnings (`commit --strict` refuses them)", self.warnings.iter().map(Warning::to_string));
        let violations = self.violations.iter().map(|violation| format!("{}: {}", violation.path, violation.why));
        list(&mut text, "cannot be committed", violations);
        self.write_summary(&mut text);
        text
    }

    /// Returns what to do if a program has emptied the root; none if it has not.
    pub fn emptied_root(&self) -> Option<String> {
        let place = shell::quote(&self.mountpoint);
        self.is_emptied.then(|| {
            format!(
                "everything was deleted: a program that replaces a store (to_zarr with mode=\"w\") deletes it first, and no program can remove \
                 a mountpoint. `icechunkfs discard {place}` brings it back; mount with --subdir NAME, and write to NAME in the mount"
            )
        })
    }

    fn write_branch(&self, text: &mut String) {
        let line = match self.tip {
            _ if self.branch_gone => {
                format!("{}, then commit", deleted_branch(&self.repository, &self.branch, self.base))
            }
            Some(tip) if self.branch_reset && self.clean => {
                format!("the branch was reset or amended: it is at {tip} now, and `refresh` shows that")
            }
            Some(tip) if self.branch_reset => {
                let repository = shell::quote(&self.repository);
                format!(
                    "the branch was reset to {tip}: copy your changes to another mount of the branch (with another \
                     --scratch), or of a branch at this snapshot: icechunkfs branch {repository} create NAME --at {}",
                    self.base
                )
            }
            Some(tip) if self.branch_moved => {
                format!("the branch has moved on, to {tip}: a commit is applied to that, `refresh` shows it")
            }
            _ => String::new(),
        };
        if !line.is_empty() {
            let _ = writeln!(text, "{line}");
        }
        if self.is_offline {
            let _ = writeln!(text, "offline: the branch is as it was seen last; a commit or refresh asks the store");
        }
        if let Some(why) = self.branch_unreadable.as_ref().filter(|_| self.is_branch_slow) {
            let _ = writeln!(text, "the current state of the branch is not known: {}", printable::line(why));
        } else if let Some(why) = &self.branch_unreadable {
            let _ = writeln!(
                text,
                "the branch cannot be read: {}. A commit fails until it can, and the changes below stay: check the storage with `icechunkfs \
                 doctor`, and the repository with `icechunkfs verify`",
                printable::line(why)
            );
        }
    }

    fn write_nodes(&self, text: &mut String) {
        let mut nodes: BTreeMap<&str, NodeChanges> = BTreeMap::new();
        for (paths, how) in [(&self.added, "added"), (&self.changed, "modified"), (&self.deleted, "deleted")] {
            for path in paths {
                let node = nodes.entry(path).or_default();
                // A node that was deleted and made again is a new one.
                node.how = if node.how.is_some() { Some("replaced") } else { Some(how) };
                node.details.extend((how == "modified").then(|| "zarr.json".to_owned()));
            }
        }
        for moved in &self.moved {
            let node = nodes.entry(&moved.to).or_default();
            node.how = Some("moved");
            node.details.push(format!("from {}", printable::line(&moved.from)));
        }
        for ArrayStatus { path, written, deleted } in &self.arrays {
            let node = nodes.entry(path).or_default();
            node.how.get_or_insert("modified");
            node.details.extend((*written > 0).then(|| counted(*written as u64, "chunk")));
            node.details.extend((*deleted > 0).then(|| format!("{} deleted", counted(*deleted as u64, "chunk"))));
        }
        for (path, NodeChanges { how, details }) in nodes.iter().take(LISTED) {
            let line = format!("  {:<9} {}  {}", how.unwrap_or_default(), printable::line(path), details.join(", "));
            let _ = writeln!(text, "{}", line.trim_end());
        }
        if nodes.len() > LISTED {
            let _ = writeln!(text, "  and {} more; status.json has all", nodes.len() - LISTED);
        }
    }

    fn write_summary(&self, text: &mut String) {
        if self.clean {
            *text += "nothing to commit\n";
            return;
        }
        let mut parts = Vec::new();
        if self.chunks_written > 0 {
            parts.push(counted(self.chunks_written as u64, "chunk"));
        }
        if self.chunks_deleted > 0 {
            parts.push(format!("{} deleted", counted(self.chunks_deleted as u64, "chunk")));
        }
        parts.push(size::text(self.bytes));
        let _ = write!(text, "{}", parts.join(", "));
        if self.uploaded_chunks > 0 {
            let chunks = counted(self.uploaded_chunks as u64, "chunk");
            let _ = write!(text, "; uploaded already: {chunks}, {}", size::text(self.uploaded_bytes));
        }
        match self.emptied_root() {
            Some(hint) => {
                let _ = writeln!(text, ". {hint}");
            }
            None if self.branch_reset || self.branch_gone => text.push_str(". A commit would fail: see above\n"),
            None if self.conflicts > 0 => {
                let conflicts = counted(self.conflicts as u64, "conflict");
                let _ = writeln!(
                    text,
                    ". {conflicts} with concurrent commits: .icechunk/conflicts has the commands that settle them"
                );
            }
            None if self.violations.is_empty() => {
                let _ =
                    writeln!(text, ". Commit with: icechunkfs commit {} -m MESSAGE", shell::quote(&self.mountpoint));
            }
            None => text.push('\n'),
        }
    }
}

/// Says that `branch` was deleted, on which changes are based at `base`, and what makes it again.
pub(super) fn deleted_branch(repository: &str, branch: &str, base: ObjectId) -> String {
    let [repository, branch] = [repository, branch].map(shell::quote);
    format!("the branch was deleted: `icechunkfs branch {repository} create --at={base} -- {branch}` makes it again")
}

/// Returns true for the names of documents of Zarr version 2.
pub(super) fn is_of_version_2(path: &str) -> bool {
    path.rsplit('/').next().is_some_and(|name| [".zarray", ".zgroup"].contains(&name))
}

fn list(text: &mut String, what: &str, paths: impl IntoIterator<Item: AsRef<str>>) {
    let paths: Vec<String> = paths.into_iter().map(|path| printable::line(path.as_ref())).collect();
    if paths.is_empty() {
        return;
    }
    *text += &format!("{what}: {}\n", paths.len());
    paths.iter().take(LISTED).for_each(|path| *text += &format!("  {path}\n"));
    if paths.len() > LISTED {
        *text += &format!("  and {} more; status.json has all\n", paths.len() - LISTED);
    }
}
