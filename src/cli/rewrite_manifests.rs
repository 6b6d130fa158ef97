//! `icechunkfs rewrite-manifests`: rewrites all manifests of a branch, split by the repository's
//! rules or by new ones.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::confirm::ConfirmArgs;
use super::open::MemoryLimits;
use super::repo_args::RepoArgs;
use super::{open, print, print_json, progress, replace_commits};
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::printable;
use icechunkfs_base::size;
use icechunkfs_base::times::system_clock;
use icechunkfs_format::format::ids::{NodeId, ObjectId};
use icechunkfs_format::format::snapshot::{Node, NodeData, Snapshot};
use icechunkfs_repo::commit::changes::ChangeSet;
use icechunkfs_repo::commit::engine::{CommitOutcome, Engine, EngineOptions, Request, Rewrite};
use icechunkfs_repo::commit::progress::CommitProgress;
use icechunkfs_repo::commit::request::KnownObjects;
use icechunkfs_repo::commit::squash;
use icechunkfs_repo::reader::Reader;
use icechunkfs_repo::repack::{self, RepackResult};
use icechunkfs_repo::repo::refs::DEFAULT_BRANCH;
use icechunkfs_repo::repo::{MAX_SNAPSHOT, Repository};

#[derive(Debug, Args)]
pub(crate) struct RewriteManifestsArgs {
    /// The branch that gets the commit.
    #[arg(long, value_name = "NAME", default_value = DEFAULT_BRANCH)]
    branch: String,
    /// Split arrays by this rule, not by the repository's configuration: [PATH:]DIM=N[,DIM=N], with
    /// N chunks along a dimension in one manifest. DIM is a number from 0, a name, or * for any;
    /// PATH is a regular expression for paths [default: all]. The first matching rule applies.
    /// `none` splits nothing. Later commits use the configuration again. Repeatable.
    #[arg(long, value_name = "RULE")]
    split: Vec<String>,
    /// Also pack small chunks that have their own object, or share one that is mostly garbage, into
    /// objects of some MiB. The old objects stay until garbage is collected.
    #[arg(long)]
    repack: bool,
    /// With --repack, pack chunks smaller than this.
    #[arg(long, value_name = "SIZE", default_value = "256K", value_parser = size::parse)]
    pack_below: u64,
    /// The commit message [default: Manifests rewritten, or with --amend that of the replaced
    /// commit].
    #[arg(short, long, value_name = "TEXT")]
    message: Option<String>,
    /// Set a metadata item; VALUE is JSON or text. With --amend the others stay. Repeatable.
    #[arg(long, value_name = "KEY=VALUE")]
    metadata: Vec<String>,
    /// Replace the branch's newest commit instead of adding one (version 2). This asks for
    /// confirmation.
    #[arg(long)]
    amend: bool,
    /// Print {"branch", "snapshot", "parent", "manifests", "bytes", "arrays"}: manifests and their
    /// bytes each as {"before", "after"}, and for each array {"path", "manifests"}. With --repack
    /// also "repacked": {"chunks", "bytes", "objects": {"before", "after"}, "complete"}; if it is
    /// not complete, run the command again.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    confirm: ConfirmArgs,
    #[command(flatten)]
    repo: RepoArgs,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Change {
    before: u64,
    after: u64,
}

/// Rewrites the manifests of a branch.
pub(crate) fn run(arguments: &RewriteManifestsArgs) -> Result<()> {
    let splitting = rules(&arguments.split)?;
    let set = replace_commits::metadata(&arguments.metadata)?;
    replace_commits::check_not_reserved(set.keys())?;
    let branch = &arguments.branch;
    open::run(async {
        let repository = arguments.repo.open().await?;
        repository.check_changes_allowed().await?;
        let limits = MemoryLimits::default();
        let tip = replace_commits::tip(&repository, branch).await?;
        let base = Arc::new(repository.snapshot(tip, limits.max_snapshot_size()?).await?);
        let mut message = "Manifests rewritten".to_owned();
        let mut metadata = Map::new();
        if arguments.amend {
            squash::check(&repository).await?;
            let replaced = repository.commit(tip).await?;
            replaced.message().clone_into(&mut message);
            metadata = replace_commits::kept_metadata(&replaced)?.into_inner();
            let question = replace_commits::question(branch, &replaced);
            replace_commits::confirm(&repository, branch, &[replaced], &question, arguments.confirm).await?;
        }
        metadata.extend(set);
        let storage = Arc::clone(repository.storage());
        let reader = Arc::new(Reader::new(Arc::clone(&storage), limits.budget(2 * base.size() as u64)?));
        let options =
            EngineOptions { memory: limits.uploads(), pack_below: arguments.pack_below, ..EngineOptions::default() };
        let mut changes = ChangeSet::default();
        let mut repacked = None;
        if arguments.repack {
            let sizes = options.sizes(&repository.config().await?);
            let bar = progress::begin("putting chunks together");
            let done = repack::repack(&storage, &reader, &base, sizes, |chunks| bar.set_position(chunks)).await;
            drop(bar);
            let mut done = done.context(|| repository.storage().location().to_owned())?;
            changes.chunks = std::mem::take(&mut done.chunks);
            repacked = Some(done);
        }
        let engine = Engine::new(storage, reader, system_clock, options);
        let request = Request {
            branch: branch.clone(),
            message: arguments.message.clone().unwrap_or(message),
            metadata,
            amend: arguments.amend,
            rewrite: Some(Rewrite { splitting }),
            known_objects: KnownObjects::of(&repository, tip, &changes).await?,
            ..Request::default()
        };
        let bar = progress::begin("writing manifests");
        let outcome = engine.commit(&base, &changes, &request, &CommitProgress::default()).await;
        drop(bar);
        match outcome.context(|| repository.storage().location().to_owned())? {
            CommitOutcome::Committed { snapshot, rebased_over, .. } => {
                // The commit may be based on a newer snapshot than the one read first.
                let before = rebased_over.last().copied().unwrap_or(tip);
                print_rewrite(&repository, [before, snapshot], repacked.as_ref(), arguments).await
            }
            CommitOutcome::Nothing | CommitOutcome::Conflicts(_) => {
                Err(Error::new(ErrorKind::Io, "the commit has no changes, which should not happen"))
            }
        }
    })
}

async fn print_rewrite(
    repository: &Repository,
    ids: [ObjectId; 2],
    repacked: Option<&RepackResult>,
    arguments: &RewriteManifestsArgs,
) -> Result<()> {
    let [before, after] = ids;
    let repository = Repository::open(Arc::clone(repository.storage())).await?;
    let (old, new) =
        (repository.snapshot(before, MAX_SNAPSHOT).await?, repository.snapshot(after, MAX_SNAPSHOT).await?);
    let change = |of: &dyn Fn(&Snapshot) -> u64| Change { before: of(&old), after: of(&new) };
    let manifests = change(&|snapshot| snapshot.manifests().len() as u64);
    let bytes = change(&|snapshot| snapshot.manifests().iter().map(|info| info.size).sum());
    if !arguments.json {
        let mut text = format!(
            "branch {}: {after}\n{} manifests ({}) are {} now ({})\n",
            printable::line(&arguments.branch),
            manifests.before,
            size::text(bytes.before),
            manifests.after,
            size::text(bytes.after)
        );
        if let Some(RepackResult { moved, objects_before, objects_after, is_complete, .. }) = repacked {
            text += &format!(
                "{} chunks ({}) of {objects_before} objects are in {objects_after} new ones\n",
                moved.chunks,
                size::text(moved.bytes)
            );
            if !is_complete {
                text += "more manifests are worth rewriting: run it again\n";
            }
        }
        return print(&text);
    }
    let was = arrays(&old);
    let is = arrays(&new);
    let arrays: Vec<Value> = is
        .iter()
        .map(|(id, (path, after))| {
            let before = was.get(id).map_or(0, |(_, count)| *count);
            json!({"path": path, "manifests": Change { before, after: *after }})
        })
        .collect();
    let parent = repository.commit(after).await?.parent;
    let mut out = json!({
        "branch": arguments.branch, "snapshot": after, "parent": parent,
        "manifests": manifests, "bytes": bytes, "arrays": arrays,
    });
    if let (Some(RepackResult { moved, objects_before, objects_after, is_complete, .. }), Some(out)) =
        (repacked, out.as_object_mut())
    {
        let objects = Change { before: *objects_before, after: *objects_after };
        let repacked =
            json!({"chunks": moved.chunks, "bytes": moved.bytes, "objects": objects, "complete": is_complete});
        out.insert("repacked".to_owned(), repacked);
    }
    print_json(&out)
}

/// Returns path and number of manifests of each array in a snapshot.
fn arrays(snapshot: &Snapshot) -> BTreeMap<NodeId, (&str, u64)> {
    let array = |node: Node<'_>| match &node.data {
        NodeData::Array(array) => Some(array.manifests().iter().map(|m| m.id).collect::<BTreeSet<_>>().len() as u64),
        _ => None,
    };
    snapshot.nodes().filter_map(|node| Some((node.id, (node.path, array(node.clone())?)))).collect()
}

/// Translates `--split` to the form of the configuration; none if it is not given.
fn rules(words: &[String]) -> Result<Option<Value>> {
    match words {
        [] => Ok(None),
        [none] if none == "none" => Ok(Some(json!({"split_sizes": []}))),
        _ => {
            let rules = words.iter().map(|word| rule(word).map_err(|e| e.context(format!("--split {word}"))));
            Ok(Some(json!({"split_sizes": rules.collect::<Result<Vec<_>>>()?})))
        }
    }
}

fn rule(word: &str) -> Result<Value> {
    let (path, dimensions) = match word.rsplit_once(':') {
        Some((path, dimensions)) => (Some(path), dimensions),
        None => (None, word),
    };
    let array = match path {
        None => json!("any_array"),
        Some(path) => {
            regex::Regex::new(path)
                .map_err(|e| Error::with_source(ErrorKind::InvalidInput, "a regular expression", e))?;
            json!({"path_matches": {"regex": path}})
        }
    };
    let dimensions = dimensions.split(',').map(|part| {
        let wrong = || Error::invalid(format!("`{part}` is not DIM=N, with a number of chunks from 1 on"));
        let (dimension, count) = part.split_once('=').ok_or_else(wrong)?;
        let count: u32 = count.parse().ok().filter(|count| *count > 0).ok_or_else(wrong)?;
        let condition = match dimension {
            "" => return Err(wrong()),
            "*" => json!("Any"),
            name => match name.parse::<u64>() {
                Ok(axis) => json!({"Axis": axis}),
                Err(_) => json!({"DimensionName": format!("^{}$", regex::escape(name))}),
            },
        };
        Ok(json!({"condition": condition, "num_chunks": count}))
    });
    Ok(json!([array, dimensions.collect::<Result<Vec<_>>>()?]))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn rules_are_said_in_short() {
        let parsed = |words: &[&str]| rules(&words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>());
        assert_eq!(parsed(&[]).unwrap(), None);
        assert_eq!(parsed(&["none"]).unwrap(), Some(json!({"split_sizes": []})));
        let expected = json!({"split_sizes": [
            [{"path_matches": {"regex": "^/a:b"}}, [
                {"condition": {"DimensionName": "^t\\.x$"}, "num_chunks": 10}, {"condition": {"Axis": 1}, "num_chunks": 3}
            ]],
            ["any_array", [{"condition": "Any", "num_chunks": 1000}]],
        ]});
        assert_eq!(parsed(&["^/a:b:t.x=10,1=3", "*=1000"]).unwrap(), Some(expected));
        for wrong in ["", "t", "t=", "t=0", "=3", "t=x", "(:t=1", "t=1,", "none:", "t=4294967296"] {
            assert!(parsed(&[wrong]).is_err(), "{wrong}");
        }
        assert!(parsed(&["none", "t=1"]).is_err());
    }
}
