//! Objects that nothing refers to: no fault, but space that `icechunkfs gc` frees.

use std::collections::HashSet;

use super::chunks::ChunkCheck;
use super::nodes::Uses;
use super::repo_file::Commits;
use super::{Context, Listed, Listings};
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::repo_info::RepoInfo;

/// Names that a note mentions.
const MAX_NAMED: usize = 3;

/// Notes unneeded objects. `repo` is that of version 2, with its commits.
pub(super) fn note(
    context: &Context,
    listings: &Listings,
    snapshots: &HashSet<ObjectId>,
    uses: &Uses,
    presence: &ChunkCheck,
    repo: Option<(&RepoInfo, &Commits)>,
) {
    let commits = repo.iter().flat_map(|(_, commits)| commits.values());
    let pruned: HashSet<&ObjectId> = commits.flat_map(|commit| &commit.pruned_ancestor_tx_logs).collect();
    unused(context, "snapshots/", &listings.snapshots, |id| snapshots.contains(id));
    unused(context, "transactions/", &listings.logs, |id| snapshots.contains(id) || pruned.contains(id));
    unused(context, "manifests/", &listings.manifests, |id| uses.contains_key(id));
    let (chunks, bytes) = presence.unused();
    if chunks > 0 {
        let text = format!("{chunks} objects that no manifest refers to ({bytes} bytes)");
        context.object("chunks/").note("orphan", text);
    }
    if let Some((info, commits)) = repo {
        let mut seen: HashSet<ObjectId> = HashSet::new();
        for (_, tip) in info.branches().chain(info.tags()) {
            let mut next = tip.ok();
            while let Some(id) = next.filter(|id| seen.insert(*id)) {
                next = commits.get(&id).and_then(|commit| commit.parent);
            }
        }
        let apart = commits.keys().filter(|id| !seen.contains(id)).count();
        if apart > 0 {
            let text = format!("{apart} commits are in the history of no branch or tag");
            context.object("repo").note("unreachable", text);
        }
    }
}

fn unused(context: &Context, folder: &str, objects: &Listed, is_used: impl Fn(&ObjectId) -> bool) {
    let mut count = 0_u64;
    let mut bytes = 0_u64;
    let mut names = Vec::new();
    for (key, object) in objects {
        let name = key.strip_prefix(folder).unwrap_or(key);
        match name.parse::<ObjectId>() {
            Ok(id) if id.to_string() == name => {
                if !is_used(&id) {
                    count += 1;
                    bytes += object.size;
                    if names.len() < MAX_NAMED {
                        names.push(name);
                    }
                }
            }
            _ => context.object(key).note("unknown", "the format does not have this name; no command removes it"),
        }
    }
    if count > 0 {
        let more = if count > names.len() as u64 { ", ..." } else { "" };
        let text = format!("{count} objects that nothing refers to ({bytes} bytes): {}{more}", names.join(", "));
        context.object(folder).note("orphan", text);
    }
}
