//! Three repositories with branches, the steps that change them, and what the model says of each
//! step.

use std::collections::{BTreeMap, HashMap};

use icechunkfs::format::ids::{NodeId, ObjectId};

use super::merging::{self, MergeOutcome};
use super::model::{Content, Events, Part, State, above, differences, is_group, paths};
use super::repo::{Repo, by_path};
use super::{CHUNKS, Counts, is_replayed};
use crate::common::lab::{GROUP, array_json};
use crate::common::random::Random;
use crate::common::{assert_same, differences as differing_files};

pub const BRANCHES: [&str; 3] = ["main", "dev", "feat"];

/// Paths of arrays, in the root and in the only other group.
const ARRAYS: [&str; 5] = ["/a", "/b", "/c", "/g/a", "/g/b"];
const GROUPS: [&str; 1] = ["/g"];

/// Kind of a step, with its share of all steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Commit,
    ReferenceCommit,
    Merge,
    Squash,
    Amend,
    ReferenceAmend,
    Rewrite,
    Restore,
    Branch,
    Push,
    Clone,
    Collect,
    Expire,
    Migrate,
    Kill,
}

const SHARES: [(Kind, usize); 15] = [
    (Kind::Commit, 330),
    (Kind::ReferenceCommit, 40),
    (Kind::Merge, 330),
    (Kind::Squash, 40),
    (Kind::Amend, 25),
    (Kind::ReferenceAmend, 30),
    (Kind::Rewrite, 25),
    (Kind::Restore, 60),
    (Kind::Branch, 15),
    (Kind::Push, 80),
    (Kind::Clone, 6),
    (Kind::Collect, 15),
    (Kind::Expire, 4),
    (Kind::Migrate, 5),
    (Kind::Kill, 6),
];

impl Kind {
    pub fn random(random: &mut Random) -> Kind {
        let mut at = random.below(SHARES.iter().map(|(_, share)| share).sum());
        for (kind, share) in SHARES {
            if at < share {
                return kind;
            }
            at -= share;
        }
        Kind::Commit
    }
}

pub struct World {
    pub repos: Vec<Repo>,
    /// State of each commit; copies have the same id.
    pub states: HashMap<ObjectId, State>,
    pub events: Events,
    /// Ids that merges have given to nodes which they moved, with the ids that the model knows
    /// these nodes by.
    renamed: HashMap<NodeId, NodeId>,
    pub random: Random,
    pub counts: Counts,
    /// Steps as they were made, for the report of a failure.
    pub log: Vec<String>,
    /// True once histories were expired: then merges may be refused.
    pub is_expired: bool,
    /// True if this step has compared the branches with what they must be.
    is_checked: bool,
    serial: usize,
}

pub fn short(id: ObjectId) -> String {
    id.to_string().chars().take(5).collect()
}

impl World {
    pub async fn new(seed: u64) -> Result<World, String> {
        let mut world = World {
            repos: vec![Repo::new(seed.is_multiple_of(3)).await],
            states: HashMap::new(),
            events: Events::default(),
            renamed: HashMap::new(),
            random: Random::new(seed),
            counts: Counts::default(),
            log: Vec::new(),
            is_expired: false,
            is_checked: false,
            serial: 0,
        };
        let tip = world.repos[0].branches().await["main"];
        world.states.insert(tip, State::default());
        world.repos[0].tips.insert("main".to_owned(), tip);
        let mut content = Content::new();
        for path in ["/", "/g", "/a", "/g/b"] {
            world.create(&mut content, path);
        }
        world.commit_content(0, "main", content).await?;
        let tip = world.repos[0].tips["main"];
        for branch in &BRANCHES[1..] {
            world.create_branch(0, branch, tip).await;
        }
        for _ in 1..3 {
            let copy = super::copies::clone_of(&world.repos[0], None).await?;
            world.repos.push(copy);
        }
        Ok(world)
    }

    /// Makes step `number`, whose choices depend on its own numbers: they stay when other steps are
    /// left out.
    pub async fn step(&mut self, kind: Kind, seed: u64) -> Result<(), String> {
        self.random = Random::new(seed);
        self.counts.steps += 1;
        self.is_checked = false;
        let at = self.random.below(self.repos.len());
        match kind {
            Kind::Commit => self.commit(at, false).await?,
            Kind::ReferenceCommit => self.commit(at, true).await?,
            Kind::Merge => merging::merge(self, at).await?,
            Kind::Squash => super::rewriting::squash(self, at, false).await?,
            Kind::Amend => super::rewriting::squash(self, at, true).await?,
            Kind::ReferenceAmend => super::rewriting::amend_by_the_reference(self, at).await?,
            Kind::Rewrite => super::rewriting::rewrite(self, at).await?,
            Kind::Restore => super::restoring::restore(self, at).await?,
            Kind::Branch => self.branch(at).await?,
            Kind::Push => super::copies::push(self, at).await?,
            Kind::Clone => super::copies::clone(self, at).await?,
            Kind::Collect => super::upkeep::collect(self, at).await?,
            Kind::Expire => super::upkeep::expire(self, at).await?,
            Kind::Migrate => super::upkeep::migrate(self, at).await?,
            Kind::Kill => super::upkeep::kill(self, at).await?,
        }
        if self.is_checked { Ok(()) } else { self.check_tips(at).await }
    }

    pub fn say(&mut self, what: String) {
        self.log.push(what);
    }

    /// Returns a branch of repository `at`.
    pub fn pick_branch(&mut self, at: usize) -> String {
        let branches: Vec<String> = self.repos[at].tips.keys().cloned().collect();
        self.random.pick(&branches).clone()
    }

    pub fn tip_state(&self, at: usize, branch: &str) -> &State {
        &self.states[&self.repos[at].tips[branch]]
    }

    /// Returns the commits of a branch whose states are known, newest first, without the first one,
    /// which has nothing.
    pub async fn known_history(&self, at: usize, branch: &str) -> Vec<ObjectId> {
        let history = self.repos[at].history(branch).await;
        let is_known = |id: &ObjectId| self.states.get(id).is_some_and(|state| !state.paths().is_empty());
        history.into_iter().filter(is_known).collect()
    }

    /// Returns what a snapshot has, with the ids of nodes that the model knows.
    pub async fn read(&self, at: usize, id: ObjectId) -> Result<Content, String> {
        let mut content = Content::new();
        for ((node, part), bytes) in self.repos[at].read(id).await? {
            let known = self.renamed.get(&node).copied().unwrap_or(node);
            if content.insert((known, part), bytes).is_some() {
                return Err(format!("nodes {node:?} and {known:?} are one, and both are there"));
            }
        }
        Ok(content)
    }

    /// Notes the nodes that a merge has moved to where it has deleted others, which makes them new
    /// nodes: a transaction log cannot say both.
    async fn learn_new_ids(&mut self, at: usize, tip: ObjectId, before: &State, wanted: &State) -> Result<(), String> {
        let found = paths(&self.repos[at].read(tip).await?);
        let before = before.paths();
        let wanted = wanted.paths();
        for (path, id) in &found {
            let is_known = self.renamed.contains_key(id) || self.events.has_node(*id);
            let Some(node) = wanted.get(path).filter(|_| !is_known) else { continue };
            if before.get(path).is_none_or(|other| other == node) {
                return Err(format!("the node at {path} has got a new id, and no other one was deleted there"));
            }
            self.renamed.insert(*id, *node);
            self.counts.renamed += 1;
        }
        Ok(())
    }

    /// Notes that a branch has a new tip in this state, and checks its content.
    pub async fn moved(&mut self, at: usize, branch: &str, state: State) -> Result<(), String> {
        let branches = self.repos[at].branches().await;
        let tip = branches.get(branch).copied().ok_or("the branch is gone")?;
        let found = self.read(at, tip).await?;
        let differing = differences(&found, &state.content());
        if !differing.is_empty() {
            return Err(format!("{branch} of {at} at {}: {differing:#?}", short(tip)));
        }
        if self.random.chance(3) {
            let read = self.repos[at].read_by_the_reference(branch).await;
            assert_same("as the reference reads it", &read, &by_path(&state.content()));
        }
        self.say(format!("  {branch} of {at} is now at {}", short(tip)));
        self.states.insert(tip, state);
        let tips = &mut self.repos[at].tips;
        tips.insert(branch.to_owned(), tip);
        self.is_checked = true;
        if branches == *tips {
            Ok(())
        } else {
            Err(format!("the branches of {at} are {branches:?} instead of {tips:?}"))
        }
    }

    /// Checks that the branches of a repository are where they must be.
    async fn check_tips(&self, at: usize) -> Result<(), String> {
        let repo = &self.repos[at];
        let branches = repo.branches().await;
        if branches == repo.tips {
            Ok(())
        } else {
            Err(format!("the branches of {at} are {branches:?} instead of {:?}", repo.tips))
        }
    }

    /// Checks the content of all branches of a repository.
    pub async fn check_contents(&self, at: usize) -> Result<(), String> {
        let repo = &self.repos[at];
        for (branch, tip) in &repo.tips {
            let differing = differences(&self.read(at, *tip).await?, &self.states[tip].content());
            if !differing.is_empty() {
                return Err(format!("{branch} of {at}: {differing:#?}"));
            }
        }
        Ok(())
    }

    /// Checks everything of all repositories.
    pub async fn check_all(&mut self) -> Result<(), String> {
        for at in 0..self.repos.len() {
            self.repos[at].forget();
            self.check_tips(at).await?;
            self.check_contents(at).await?;
            self.repos[at].verify().await.map_err(|why| format!("repository {at}: {why}"))?;
            let branch = self.pick_branch(at);
            let read = self.repos[at].read_by_the_reference(&branch).await;
            let differing = differing_files(&read, &by_path(&self.tip_state(at, &branch).content()));
            if !differing.is_empty() {
                return Err(format!("the reference reads {branch} of {at}: {differing:#?}"));
            }
        }
        Ok(())
    }

    pub async fn create_branch(&mut self, at: usize, name: &str, tip: ObjectId) {
        use icechunkfs::repo::change_refs::RefKind;
        let repository = self.repos[at].open().await;
        repository.create_ref(RefKind::Branch, name, tip, icechunkfs::times::system_clock).await.unwrap();
        self.repos[at].tips.insert(name.to_owned(), tip);
    }

    /// Makes a branch of another one's commit, in place of one that is deleted.
    async fn branch(&mut self, at: usize) -> Result<(), String> {
        use icechunkfs::repo::change_refs::RefKind;
        let name = (*self.random.pick(&BRANCHES[1..])).to_owned();
        let from = self.pick_branch(at);
        let history = self.known_history(at, &from).await;
        let tip = history[self.random.below(3.min(history.len()))];
        if let Some(old) = self.repos[at].tips.remove(&name) {
            let repository = self.repos[at].open().await;
            repository.delete_ref(RefKind::Branch, &name, old, icechunkfs::times::system_clock).await.unwrap();
        }
        self.say(format!("branch {name} of {at} := {} of {from}", short(tip)));
        self.create_branch(at, &name, tip).await;
        Ok(())
    }

    fn number(&mut self) -> usize {
        self.serial += 1;
        self.serial
    }

    fn bytes(&mut self) -> Vec<u8> {
        let mut bytes = format!("write {}  ", self.number()).into_bytes();
        // Some are inline, the others have objects.
        bytes.resize(if self.random.chance(50) { 16 } else { 600 }, b'.');
        bytes
    }

    fn document(&mut self, is_group: bool) -> Vec<u8> {
        let note = format!("note {}", self.number());
        let group = || GROUP.replace(r#""attributes":{}"#, &format!(r#""attributes":{{"note":"{note}"}}"#));
        if is_group { group() } else { array_json(&[CHUNKS], &[1], &note) }.into_bytes()
    }

    /// Creates a node with all chunks.
    fn create(&mut self, content: &mut Content, path: &str) {
        let id = NodeId::random().unwrap();
        let is_group = path == "/" || GROUPS.contains(&path);
        content.insert((id, Part::Path), path.as_bytes().to_vec());
        content.insert((id, Part::Document), self.document(is_group));
        for at in 0..if is_group { 0 } else { CHUNKS } {
            content.insert((id, Part::Chunk(at)), self.bytes());
        }
    }

    /// Returns the arrays, and the places where another may be.
    fn arrays(content: &Content) -> (Vec<NodeId>, Vec<&'static str>) {
        let all = paths(content);
        let is_array = |id: &NodeId| !is_group(&content[&(*id, Part::Document)]);
        let arrays = all.values().copied().filter(is_array).collect();
        let is_free = |path: &&str| !all.contains_key(*path) && all.contains_key(above(path));
        (arrays, ARRAYS.into_iter().filter(is_free).collect())
    }

    fn move_one(&mut self, content: &mut Content) {
        let (arrays, places) = World::arrays(content);
        if let (Some(id), Some(place)) = (self.random.pick_any(&arrays), self.random.pick_any(&places)) {
            content.insert((*id, Part::Path), place.as_bytes().to_vec());
        }
    }

    /// Makes one random change.
    fn mutate(&mut self, content: &mut Content) {
        let all = paths(content);
        let (arrays, places) = World::arrays(content);
        let array = self.random.pick_any(&arrays).copied();
        let chunk = Part::Chunk(self.random.below(CHUNKS as usize) as u32);
        let place = self.random.pick_any(&places).copied();
        match (self.random.below(100), array) {
            (0..64, Some(id)) => {
                content.insert((id, chunk), self.bytes());
            }
            (64..74, Some(id)) => {
                content.remove(&(id, chunk));
            }
            (74..84, ..) => {
                let ids: Vec<NodeId> = all.values().copied().collect();
                let key = (*self.random.pick(&ids), Part::Document);
                let is_group = is_group(&content[&key]);
                content.insert(key, self.document(is_group));
            }
            (84..88, Some(id)) => content.retain(|(node, _), _| *node != id),
            (88..89, ..) => {
                let below: Vec<NodeId> =
                    all.iter().filter(|(path, _)| path.starts_with("/g")).map(|(_, id)| *id).collect();
                content.retain(|(node, _), _| !below.contains(node));
            }
            _ => {
                let free: Vec<&str> = GROUPS.into_iter().filter(|path| !all.contains_key(*path)).chain(place).collect();
                if let Some(path) = self.random.pick_any(&free).copied() {
                    self.create(content, path);
                }
            }
        }
    }

    /// Returns the content of a branch after a few changes.
    pub fn changed(&mut self, at: usize, branch: &str, may_move: bool) -> (Content, Content) {
        let from = self.tip_state(at, branch).content();
        let mut to = from.clone();
        // The engine deletes and creates a node that is moved to where the same commit has deleted
        // one.
        if may_move && !self.repos[at].is_v1 && self.random.chance(9) {
            self.move_one(&mut to);
        } else {
            for _ in 0..1 + self.random.below(2) {
                self.mutate(&mut to);
            }
        }
        (from, to)
    }

    async fn commit(&mut self, at: usize, by_reference: bool) -> Result<(), String> {
        let branch = self.pick_branch(at);
        let (from, to) = self.changed(at, &branch, !by_reference);
        if from == to {
            return Ok(());
        }
        let what = if by_reference { "reference commit" } else { "commit" };
        self.say(format!("{what} to {branch} of {at}: {:?}", differences(&to, &from)));
        if !by_reference {
            return self.commit_content(at, &branch, to).await;
        }
        self.repos[at].commit_by_the_reference(&branch, &from, &to, false).await;
        self.changed_by_the_reference(at, &branch, to).await
    }

    /// Notes that the reference implementation has made a commit of `wanted`, in which it has
    /// chosen the ids of new nodes.
    pub async fn changed_by_the_reference(&mut self, at: usize, branch: &str, wanted: Content) -> Result<(), String> {
        let tip = self.repos[at].branches().await[branch];
        let found = self.read(at, tip).await?;
        let differing = differing_files(&by_path(&found), &by_path(&wanted));
        if !differing.is_empty() {
            return Err(format!("the reference wrote {differing:#?}"));
        }
        let before = self.states[&self.repos[at].tips[branch]].clone();
        let state = before.after(&found, &mut self.events);
        self.moved(at, branch, state).await
    }

    async fn commit_content(&mut self, at: usize, branch: &str, to: Content) -> Result<(), String> {
        use icechunkfs::commit::engine::{CommitOutcome, Request};
        let before = self.tip_state(at, branch).clone();
        let tip = self.repos[at].tips[branch];
        let base = self.repos[at].snapshot(tip).await;
        let repo = &mut self.repos[at];
        let ids: HashMap<String, NodeId> = base.nodes().map(|node| (node.path.to_owned(), node.id)).collect();
        let ids = before.paths().into_iter().filter_map(|(path, node)| Some((node, *ids.get(&path)?))).collect();
        let changes = repo.changes(&with_ids(&before.content(), &ids), &with_ids(&to, &ids));
        let request = Request { branch: branch.into(), message: "a commit".into(), ..Request::default() };
        match repo.engine.commit(&base, &changes, &request, &Default::default()).await {
            Ok(CommitOutcome::Committed { .. }) => {}
            other => return Err(format!("the commit ended with {other:?}")),
        }
        let state = before.after(&to, &mut self.events);
        self.moved(at, branch, state).await
    }

    /// Returns true if repository `at` lacks a commit that one of these states was made from, so
    /// that it cannot know everything of them.
    async fn is_lossy(&self, at: usize, states: [&State; 2]) -> bool {
        for (id, state) in &self.states {
            let is_part = states.iter().any(|one| one.knows_all_of(state));
            if is_part && self.repos[at].storage.size(&format!("snapshots/{id}")).await.is_err() {
                return true;
            }
        }
        false
    }

    /// Judges what a merge came to.
    pub async fn judge(
        &mut self,
        at: usize,
        branch: &str,
        source: &State,
        wanted: &merging::MergeWords,
        outcome: MergeOutcome,
    ) -> Result<(), String> {
        let target = self.tip_state(at, branch).clone();
        let merge = target.merge(source, &mut self.events);
        if !merge.conflicts.is_empty() {
            self.say(format!("  conflicts in {:?}", merge.conflicts));
        }
        match outcome {
            MergeOutcome::Nothing if merge.is_nothing => self.counts.nothing += 1,
            MergeOutcome::Nothing => return Err("nothing was merged although the source knows more".to_owned()),
            MergeOutcome::Conflicts(what) => {
                if !merge.conflicts.is_empty() || merge.is_broken || merge.is_coarse || wanted.keeps_commits {
                    self.counts.refused += 1;
                } else if self.is_lossy(at, [source, &target]).await {
                    self.counts.refused_for_loss += 1;
                } else if is_replayed() {
                    return Err(format!("refused without a reason: {what}"));
                } else {
                    self.counts.unexplained += 1;
                }
            }
            MergeOutcome::Doubt(why) => {
                self.say(format!("  in doubt: {why}"));
                if self.is_expired { self.counts.doubtful_after_expiration += 1 } else { self.counts.doubtful += 1 }
            }
            MergeOutcome::Failed(why) => return Err(format!("the merge failed: {why}")),
            MergeOutcome::Made => {
                let is_theirs = wanted.resolution == Some(merging::Whose::Theirs);
                let mut state = if is_theirs { merge.source_wins } else { merge.target_wins };
                let tip = self.repos[at].branches().await[branch];
                self.learn_new_ids(at, tip, &target, &state).await?;
                let found = self.read(at, tip).await?;
                let values = state.content();
                let is_resolved = |key: &(NodeId, Part)| {
                    wanted.resolution.is_some() && key.1 != Part::Path && found.get(key) == values.get(key)
                };
                for key in &merge.conflicts {
                    if is_resolved(key) {
                        self.counts.resolved += 1;
                        continue;
                    }
                    let allowed = merge.undone.get(key).into_iter().flatten();
                    let Some(register) = allowed.into_iter().find(|one| one.shows(found.get(key))) else {
                        return Err(format!(
                            "merged in spite of a conflict in {key:?}: {:?}",
                            differences(&found, &values)
                        ));
                    };
                    self.counts.undone += 1;
                    state.put(*key, register.clone());
                }
                if !state.is_tree() {
                    return Err("merged although that cannot be a tree".to_owned());
                }
                self.counts.merged += 1;
                self.moved(at, branch, state).await?;
            }
        }
        Ok(())
    }
}

/// Returns `content` with other ids of nodes.
fn with_ids(content: &Content, ids: &HashMap<NodeId, NodeId>) -> Content {
    let renamed = |((node, part), bytes): (&(NodeId, Part), &Vec<u8>)| {
        ((ids.get(node).copied().unwrap_or(*node), *part), bytes.clone())
    };
    content.iter().map(renamed).collect()
}

/// Returns the paths that are in one of both, and only once.
pub fn all_paths(one: &State, other: &State) -> Vec<String> {
    let both: BTreeMap<String, NodeId> = one.paths().into_iter().chain(other.paths()).collect();
    both.into_keys().collect()
}
