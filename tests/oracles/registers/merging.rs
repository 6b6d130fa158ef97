//! Merges, in this process or by the command.

use icechunkfs::commit::engine::OnConflict;
use icechunkfs::error::Error;
use icechunkfs::format::ids::ObjectId;
use icechunkfs::merge::{self, MergeOptions};

use super::repo::Repo;
use super::world::{World, short};
use crate::common::icechunkfs;

/// Side whose chunks win, as in git.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    Ours,
    Theirs,
}

/// Options of a merge.
#[derive(Clone, Copy, Debug)]
pub struct MergeWords {
    pub resolution: Option<Whose>,
    pub keeps_commits: bool,
}

#[derive(Debug)]
pub enum MergeOutcome {
    Made,
    Nothing,
    Conflicts(String),
    /// Refused, as nothing tells what both sides have in common.
    Doubt(String),
    Failed(String),
}

pub async fn merge(world: &mut World, at: usize) -> Result<(), String> {
    let tips = &world.repos[at].tips;
    let pairs = tips.keys().flat_map(|from| tips.keys().map(move |into| (from.clone(), into.clone())));
    let pairs: Vec<(String, String)> = pairs.filter(|(from, into)| from != into).collect();
    let is_new = |(from, into): &&(String, String)| !world.tip_state(at, into).knows_all_of(world.tip_state(at, from));
    let new: Vec<(String, String)> = pairs.iter().filter(is_new).cloned().collect();
    let all = if new.is_empty() || world.random.chance(10) { &pairs } else { &new };
    let Some((from, branch)) = world.random.pick_any(all).cloned() else { return Ok(()) };
    let history = world.known_history(at, &from).await;
    let back = if world.random.chance(25) { world.random.below(4.min(history.len())) } else { 0 };
    let source = history[back];
    let resolution = *world.random.pick(&[None, None, Some(Whose::Ours), Some(Whose::Theirs)]);
    let wanted = MergeWords { resolution, keeps_commits: world.random.chance(10) };
    let by_command = world.random.chance(2);
    let sides = format!("{} ({from}~{back}) into {branch} of {at}", short(source));
    world.say(format!("merge {sides}: {wanted:?}{}", if by_command { " by the command" } else { "" }));
    let outcome = if by_command {
        by_the_command(&world.repos[at], source, &branch, wanted)
    } else {
        in_process(&world.repos[at], source, &branch, wanted).await
    };
    let source = world.states[&source].clone();
    world.judge(at, &branch, &source, &wanted, outcome).await
}

async fn in_process(repo: &Repo, source: ObjectId, branch: &str, wanted: MergeWords) -> MergeOutcome {
    let options = MergeOptions {
        source,
        source_name: format!("snapshot {source}"),
        into: branch.to_owned(),
        keep_commits: wanted.keeps_commits,
        message: "a merge".to_owned(),
        metadata: Default::default(),
        // For the engine, ours are the changes that are committed.
        on_conflict: match wanted.resolution {
            None => OnConflict::Fail,
            Some(Whose::Ours) => OnConflict::Theirs,
            Some(Whose::Theirs) => OnConflict::Ours,
        },
        ancestor: None,
    };
    match merge::merge(repo.open().await, &repo.reader, &repo.engine, &options).await {
        Ok(merged) if !merged.plan.conflicts.is_empty() => {
            MergeOutcome::Conflicts(merged.plan.conflicts.iter().map(|one| format!("{one}; ")).collect())
        }
        Ok(merged) if merged.snapshot.is_none() => MergeOutcome::Nothing,
        Ok(_) => MergeOutcome::Made,
        Err(error) => refusal(&chain(&error)),
    }
}

fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(next) = cause {
        text += &format!(": {next}");
        cause = next.source();
    }
    text
}

/// Returns what the text of an error says.
pub fn refusal(text: &str) -> MergeOutcome {
    if text.contains("changed the same things") {
        MergeOutcome::Conflicts(text.to_owned())
    } else if text.contains("--ancestor") {
        MergeOutcome::Doubt(text.to_owned())
    } else if text.contains("--keep-commits") {
        // Commits that do not lead back to one of the branch cannot be kept.
        MergeOutcome::Conflicts(text.to_owned())
    } else {
        MergeOutcome::Failed(text.to_owned())
    }
}

/// Returns the words of the command.
pub fn words(repo: &Repo, source: ObjectId, branch: &str, wanted: MergeWords) -> Vec<String> {
    let mut words = vec!["merge".to_owned(), repo.name().to_owned(), source.to_string()];
    words.extend(["--into", branch].map(str::to_owned));
    let whose = wanted.resolution.map(|whose| if whose == Whose::Ours { "ours" } else { "theirs" });
    words.extend(whose.iter().flat_map(|whose| ["--on-conflict".to_owned(), (*whose).to_owned()]));
    words.extend(wanted.keeps_commits.then(|| "--keep-commits".to_owned()));
    words
}

fn by_the_command(repo: &Repo, source: ObjectId, branch: &str, wanted: MergeWords) -> MergeOutcome {
    let output = icechunkfs(words(repo, source, branch, wanted));
    match output.status.code() {
        Some(0) if output.all().contains("has all changes") => MergeOutcome::Nothing,
        Some(0) => MergeOutcome::Made,
        // 2 is for what has to be asked for in another way.
        Some(1 | 2) => refusal(&output.stderr),
        _ => MergeOutcome::Failed(format!("{}: {}", output.status, output.all())),
    }
}
