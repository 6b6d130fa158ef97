//! Branches, tags, and the ways to specify a snapshot.

use std::collections::BTreeMap;

use tracing::warn;

use super::history::newest_not_after;
use super::ref_files::Layout;
use super::{Generation, Repository, revision};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::memory::{Meter, SharedReservation};
use icechunkfs_base::shell;
use icechunkfs_format::format::ids::ObjectId;

/// Branch that is used when none is named (spec, "References").
pub const DEFAULT_BRANCH: &str = "main";
/// Number of similar names that an error proposes at most.
const MAX_SUGGESTIONS: usize = 3;
/// Similarity from which on a name is proposed: 0 for nothing in common, 1 for equality
/// (Jaro-Winkler).
const MIN_SIMILARITY: f64 = 0.75;

/// Bytes that a ref takes besides its name.
const REF: u64 = 128;

/// Specification of one snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefSpec {
    /// Tip of a branch.
    Branch(String),
    /// Target of a tag.
    Tag(String),
    /// A snapshot by its id.
    Snapshot(ObjectId),
    /// The snapshot of a branch or tag whose id begins so ([`Repository::completed`]).
    Abbreviated(String),
    /// Newest commit of a branch that is not after a time.
    AsOf {
        /// Name of the branch.
        branch: String,
        /// Microseconds since 1970-01-01 UTC.
        time: u64,
    },
}

impl Default for RefSpec {
    fn default() -> Self {
        RefSpec::Branch(DEFAULT_BRANCH.to_owned())
    }
}

impl std::fmt::Display for RefSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RefSpec::Branch(name) => write!(f, "branch {name}"),
            RefSpec::Tag(name) => write!(f, "tag {name}"),
            RefSpec::Snapshot(id) => write!(f, "snapshot {id}"),
            RefSpec::Abbreviated(id) => write!(f, "snapshot {id}"),
            RefSpec::AsOf { branch, time } => {
                write!(f, "branch {branch} as of {}", icechunkfs_base::times::format_time(*time))
            }
        }
    }
}

/// All refs of a repository, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refs {
    /// Branches and the snapshots they point to.
    pub branches: BTreeMap<String, ObjectId>,
    /// Tags and their targets, without deleted tags.
    pub tags: BTreeMap<String, ObjectId>,
    /// Memory of the names.
    pub(crate) memory: SharedReservation,
}

/// Treatment of a ref whose target cannot be read since it is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Damaged {
    /// It is left out, with a warning: it must not hide the others.
    LeftOut,
    /// It is an error: what it leads to would be lost to a caller that does not know it.
    Refused,
}

impl Damaged {
    /// Returns the target that was read from the file of a ref; none if there is no file, or if it
    /// is damaged and left out.
    pub(super) fn treat_file<T>(self, target: Result<Option<T>>) -> Result<Option<T>> {
        self.treat(target, "put the file back from a copy, or remove it to discard that branch or tag")
    }

    /// Returns the target of a ref; none if it is damaged and left out. The error for a refused one
    /// ends with `remedy`.
    fn treat<T>(self, target: Result<Option<T>>, remedy: &str) -> Result<Option<T>> {
        match target {
            Err(why) if why.kind() == ErrorKind::Corrupt && self == Damaged::LeftOut => {
                warn!("{why}; it is left out");
                Ok(None)
            }
            Err(why) if why.kind() == ErrorKind::Corrupt => Err(Error::corrupt(format!(
                "{why}: a branch or tag is damaged, so that the commits it leads to are not known; nothing was changed; {remedy}"
            ))),
            target => target,
        }
    }
}

impl Repository {
    /// Returns all branches and tags. A damaged one is left out, with a warning.
    pub async fn refs(&self) -> Result<Refs> {
        read_refs(self, Damaged::LeftOut).await
    }

    /// Returns all branches and tags, for callers that would lose what a missing one leads to.
    ///
    /// Fails with [`ErrorKind::Corrupt`] if one is damaged.
    pub async fn complete_refs(&self) -> Result<Refs> {
        read_refs(self, Damaged::Refused).await
    }

    /// Returns `spec` with the whole id of a snapshot that it abbreviates.
    pub async fn completed(&self, spec: RefSpec) -> Result<RefSpec> {
        match &spec {
            RefSpec::Abbreviated(_) => self.resolve(&spec).await.map(RefSpec::Snapshot),
            _ => Ok(spec),
        }
    }

    /// Resolves `spec` to a snapshot. The error for a name that does not exist proposes similar
    /// ones.
    pub async fn resolve(&self, spec: &RefSpec) -> Result<ObjectId> {
        match spec {
            RefSpec::Abbreviated(id) => revision::abbreviated(self, id).await,
            RefSpec::Branch(name) => resolve_name(self, "branch", name).await,
            RefSpec::Tag(name) => resolve_name(self, "tag", name).await,
            RefSpec::Snapshot(id) => match &self.generation {
                // A missing snapshot is detected when its file is read.
                Generation::Alpha(_) | Generation::V1(_) => Ok(*id),
                Generation::V2(info) if info.position(*id).is_some() => Ok(*id),
                Generation::V2(_) => Err(Error::new(
                    ErrorKind::NotFound,
                    format!(
                        "there is no snapshot {id} in {}; `icechunkfs log` lists a branch's",
                        self.storage.location()
                    ),
                )),
            },
            RefSpec::AsOf { branch, time } => {
                let tip = resolve_name(self, "branch", branch).await?;
                newest_not_after(self, tip, *time).await?.ok_or_else(|| {
                    Error::new(
                        ErrorKind::NotFound,
                        format!(
                            "branch `{branch}` has no commit as old as {}; `icechunkfs log` shows the oldest",
                            icechunkfs_base::times::format_time(*time)
                        ),
                    )
                })
            }
        }
    }
}

async fn read_refs(repository: &Repository, damaged: Damaged) -> Result<Refs> {
    match &repository.generation {
        Generation::Alpha(layout) => layout.refs(&*repository.storage, damaged).await,
        Generation::V1(_) => Layout::V1.refs(&*repository.storage, damaged).await,
        Generation::V2(info) => {
            let mut meter = Meter::new("the names of branches and tags").beside(info.size());
            let branches = readable(info.branches(), damaged, &mut meter)?;
            let tags = readable(info.tags(), damaged, &mut meter)?;
            Ok(Refs { branches, tags, memory: meter.into() })
        }
    }
}

async fn resolve_name(repository: &Repository, kind: &str, name: &str) -> Result<ObjectId> {
    let found = match &repository.generation {
        _ if kind == "branch" => repository.branch_tip(name).await?,
        Generation::Alpha(layout) => layout.tag(&*repository.storage, name).await?,
        Generation::V1(_) => Layout::V1.tag(&*repository.storage, name).await?,
        Generation::V2(info) => info.tag(name).transpose()?,
    };
    match found {
        Some(id) => Ok(id),
        None => Err(unknown_name(repository, kind, name).await),
    }
}

/// Returns the error for a name that does not exist. A failure to list the refs for its
/// proposals must not hide it.
pub(crate) async fn unknown_name(repository: &Repository, kind: &str, name: &str) -> Error {
    let mut message = format!("there is no {kind} `{name}` in {}", repository.storage.location());
    if let Ok(refs) = repository.refs().await {
        let any: BTreeMap<String, ObjectId>;
        let none = BTreeMap::new();
        let (same, other, other_kind) = match kind {
            "tag" => (&refs.tags, &refs.branches, "branch"),
            "branch" => (&refs.branches, &refs.tags, "tag"),
            _ => {
                any = refs.branches.iter().chain(&refs.tags).map(|(name, id)| (name.clone(), *id)).collect();
                (&any, &none, "")
            }
        };
        let near = nearest(name, same.keys());
        if other.contains_key(name) {
            // Commands that change a branch take no tag.
            let readers = if other_kind == "tag" { " for commands that read" } else { "" };
            let option = format!("--{other_kind} {}", shell::quote(name));
            message += &format!("; there is a {other_kind} of that name: {option}{readers}");
        } else if !near.is_empty() {
            message += &format!("; did you mean {}?", near.join(" or "));
        } else if same.is_empty() {
            message += &format!("; it does not have any {kind}");
        } else {
            let some: Vec<String> = same.keys().take(MAX_SUGGESTIONS).map(|n| format!("`{n}`")).collect();
            let more = if same.len() > some.len() { ", ..." } else { "" };
            message += &format!("; there is {}{more}", some.join(", "));
        }
    }
    Error::new(ErrorKind::NotFound, message)
}

/// Copies refs, which `meter` counts.
fn readable<'a>(
    refs: impl Iterator<Item = (&'a str, Result<ObjectId>)>,
    damaged: Damaged,
    meter: &mut Meter,
) -> Result<BTreeMap<String, ObjectId>> {
    let mut copies = BTreeMap::new();
    for (name, target) in refs {
        if let Some(target) = damaged.treat(target.map(Some), "`icechunkfs verify` has details")? {
            meter.count(REF + name.len() as u64)?;
            copies.insert(name.to_owned(), target);
        }
    }
    Ok(copies)
}

/// Returns the names most like `name`, best first, in backquotes.
pub fn nearest<S: AsRef<str>>(name: &str, names: impl Iterator<Item = S>) -> Vec<String> {
    let wanted = name.to_lowercase();
    let mut scored: Vec<(f64, S)> = names
        .map(|candidate| (strsim::jaro_winkler(&wanted, &candidate.as_ref().to_lowercase()), candidate))
        .filter(|(score, _)| *score >= MIN_SIMILARITY)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0));
    scored.into_iter().take(MAX_SUGGESTIONS).map(|(_, candidate)| format!("`{}`", candidate.as_ref())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_names_are_proposed() {
        let names: Vec<String> = ["main", "release-2024", "release-2025", "x"].map(String::from).to_vec();
        assert_eq!(nearest("Mian", names.iter()), ["`main`"]);
        assert_eq!(nearest("relaese-2025", names.iter()), ["`release-2025`", "`release-2024`"]);
        assert!(nearest("zzz", names.iter()).is_empty());
    }
}
