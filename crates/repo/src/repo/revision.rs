//! Revisions: names of a snapshot, accepted wherever a command takes a ref.
//!
//! | revision | meaning |
//! |---|---|
//! | `main` | the branch or tag of that name, or else the snapshot with that id |
//! | `branch/main`, `tag/v1`, `snapshot/ID` | the same, without ambiguity |
//! | `main~2` | the commit two before it |
//! | `E5D7VV9W` | the commit of a branch or tag whose id begins so, if there is only one; of at
//!   least 7 characters, and of 4 behind `snapshot/` |
//!
//! Names may contain `/` and `~`. A name that exists takes precedence over `~N` and ids, but never
//! over the unambiguous forms: a word that begins like one means nothing else, so that no ref can
//! be made which it would mean some day. A branch that is itself called `tag/v1` is
//! `branch/tag/v1`. An ambiguous revision is an error that lists its meanings.

use super::Repository;
use super::history::walk_all;
use super::refs::{RefSpec, Refs, unknown_name};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::printable;
use icechunkfs_format::format::envelope::SpecVersion;
use icechunkfs_format::format::ids::ObjectId;

/// Fewest characters of an abbreviated id, as in git.
pub const MIN_PREFIX: usize = 4;
/// Fewest characters of a word that may as well be a mistyped name: a commit that it happens to
/// begin must not take the branch's place.
const MIN_PREFIX_OF_WORD: usize = 7;
/// Commits that are searched for an abbreviated id: in version 1 each costs a round trip.
const MAX_SEARCHED: usize = 20_000;
const MAX_SEARCHED_V1: usize = 300;
/// Commits that an ambiguous abbreviation lists.
const MAX_CANDIDATES: usize = 5;

/// A resolved revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// Snapshot that the revision names.
    pub id: ObjectId,
    /// Branch or tag, if the revision is the name of one; otherwise the snapshot id.
    pub spec: RefSpec,
}

impl Repository {
    /// Resolves revision `word`.
    ///
    /// Fails with [`ErrorKind::NotFound`] if it names nothing, and with [`ErrorKind::InvalidInput`]
    /// if it is ambiguous.
    pub async fn resolve_revision(&self, word: &str) -> Result<Resolved> {
        let refs = self.refs().await?;
        if let Some(found) = resolve_name_or_id(self, word, &refs).await? {
            return Ok(found);
        }
        let Some((base, steps)) = split_steps(word) else { return Err(unknown_revision(self, word).await) };
        let Some(base) = resolve_name_or_id(self, base, &refs).await? else {
            return Err(unknown_revision(self, base).await);
        };
        // The first entry is the commit itself.
        let mut found = None;
        let mut count = 0_usize;
        self.walk(base.id, |commit| {
            found = (count == steps).then_some(commit.id);
            count += 1;
            found.is_none()
        })
        .await?;
        let id = found.ok_or_else(|| {
            let precede = count.saturating_sub(1);
            Error::new(ErrorKind::NotFound, format!("`{word}`: only {precede} commits precede {}", base.spec))
        })?;
        Ok(Resolved { id, spec: RefSpec::Snapshot(id) })
    }
}

/// Resolves `word` without splitting off `~N`; none if it names nothing.
async fn resolve_name_or_id(repository: &Repository, word: &str, refs: &Refs) -> Result<Option<Resolved>> {
    if let Some(Ok(id)) = word.strip_prefix("snapshot/").map(str::parse::<ObjectId>) {
        let spec = RefSpec::Snapshot(id);
        return Ok(Some(Resolved { id: repository.resolve(&spec).await?, spec }));
    }
    let mut meanings = if is_of_snapshot(word) { Vec::new() } else { refs_named(word, refs) };
    // Names take precedence over ids: in version 1, an id is not known to exist before its
    // snapshot is read.
    if meanings.is_empty()
        && let Ok(id) = word.parse::<ObjectId>()
    {
        let spec = RefSpec::Snapshot(id);
        meanings.push(Resolved { id: repository.resolve(&spec).await?, spec });
    }
    if meanings.is_empty() {
        meanings.extend(with_prefix(repository, word, refs).await?);
    }
    match meanings.as_slice() {
        [first, rest @ ..] if rest.iter().any(|other| other.id != first.id) => {
            let all: Vec<String> = meanings.iter().map(|meaning| meaning.spec.to_string()).collect();
            Err(Error::invalid(format!(
                "`{word}` can mean {}: write branch/NAME, tag/NAME or snapshot/ID",
                all.join(" or ")
            )))
        }
        [] => Ok(None),
        [first, ..] => Ok(Some(first.clone())),
    }
}

/// Returns the commit of a ref whose id begins with `id`.
pub(super) async fn abbreviated(repository: &Repository, id: &str) -> Result<ObjectId> {
    let place = repository.storage().location();
    match search(repository, id, &repository.refs().await?).await? {
        Searched { found: Some(id), .. } => Ok(id),
        Searched { is_cut: true, .. } => Err(Error::invalid(format!(
            "`{id}` does not begin the id of a commit that was searched: the history of {place} is too long; write the \
             whole id"
        ))),
        Searched { .. } => Err(Error::new(
            ErrorKind::NotFound,
            format!(
                "no commit of a branch or tag of {place} has an id that begins with `{id}`; `icechunkfs log` lists a branch's"
            ),
        )),
    }
}

/// Returns true if `word` can be the beginning of an id.
pub fn is_abbreviation(word: &str) -> bool {
    word.len() >= MIN_PREFIX && word.bytes().all(is_digit_of_id)
}

fn is_digit_of_id(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() && !b"ILOUilou".contains(&byte)
}

/// Returns the commit of a ref whose id begins with `word`; none if `word` cannot be the beginning
/// of an id, or if there is no such commit among the newest [`MAX_SEARCHED`].
async fn with_prefix(repository: &Repository, word: &str, refs: &Refs) -> Result<Option<Resolved>> {
    let (word, least) = match word.strip_prefix("snapshot/") {
        Some(id) => (id, MIN_PREFIX),
        None => (word, MIN_PREFIX_OF_WORD),
    };
    if word.len() < least || !is_abbreviation(word) {
        return Ok(None);
    }
    match search(repository, word, refs).await {
        Ok(Searched { found, .. }) => Ok(found.map(|id| Resolved { id, spec: RefSpec::Snapshot(id) })),
        Err(error) if error.kind() == ErrorKind::InvalidInput => Err(error),
        // A history that cannot be read has no abbreviations; the word may be a mistyped name.
        Err(_) => Ok(None),
    }
}

/// Result of a search for an abbreviated id.
struct Searched {
    found: Option<ObjectId>,
    /// True if not all commits were looked at.
    is_cut: bool,
}

/// Searches for the commit of a ref whose id begins with `prefix`.
///
/// Errors: [`ErrorKind::InvalidInput`] if there are several, or may be, and those of reading.
async fn search(repository: &Repository, prefix: &str, refs: &Refs) -> Result<Searched> {
    let upper = prefix.to_ascii_uppercase();
    let mut found = Vec::new();
    let mut left = if repository.version() == SpecVersion::V1 { MAX_SEARCHED_V1 } else { MAX_SEARCHED };
    let tips: Vec<ObjectId> = refs.branches.values().chain(refs.tags.values()).copied().collect();
    let walked = walk_all(repository, tips, |commit| {
        if commit.id.to_string().starts_with(&upper) {
            found.push((commit.id, commit.title()));
        }
        left -= 1;
        Ok(left > 0 && found.len() < MAX_CANDIDATES)
    });
    walked.await?;
    match found.as_slice() {
        [] => Ok(Searched { found: None, is_cut: left == 0 }),
        [(id, _)] if left == 0 => Err(Error::invalid(format!(
            "`{prefix}` begins the id of {id}, and perhaps others: the history is too long to search; write the whole id"
        ))),
        [(id, _)] => Ok(Searched { found: Some(*id), is_cut: false }),
        _ => {
            let all: Vec<String> =
                found.iter().map(|(id, title)| format!("{id} \"{}\"", printable::line(title))).collect();
            Err(Error::invalid(format!("`{prefix}` begins the ids of several commits: {}", all.join(", "))))
        }
    }
}

async fn unknown_revision(repository: &Repository, word: &str) -> Error {
    let (kind, name) = match (word.strip_prefix("tag/"), word.strip_prefix("branch/")) {
        (Some(name), _) => ("tag", name),
        (None, Some(name)) => ("branch", name),
        (None, None) => ("branch, tag or snapshot", word),
    };
    let error = unknown_name(repository, kind, name).await;
    let is_like_id = word.bytes().all(is_digit_of_id) && word.bytes().any(|byte| byte.is_ascii_digit());
    if name == word && word.len() < MIN_PREFIX_OF_WORD && is_like_id {
        let hint = format!("an id can be cut to {MIN_PREFIX_OF_WORD} characters, or to {MIN_PREFIX} behind snapshot/");
        return Error::new(error.kind(), format!("{error}; {hint}"));
    }
    match repository.refs().await {
        Ok(refs) if name != word && refs.branches.contains_key(word) => {
            error.context(format!("the branch that is called `{word}` itself is branch/{word}"))
        }
        Ok(refs) if name != word && refs.tags.contains_key(word) => {
            error.context(format!("the tag that is called `{word}` itself is tag/{word}"))
        }
        _ => error,
    }
}

/// Returns the branches and tags that `word`, which names no snapshot, can name.
fn refs_named(word: &str, refs: &Refs) -> Vec<Resolved> {
    let branch =
        |name: &str| refs.branches.get(name).map(|id| Resolved { id: *id, spec: RefSpec::Branch(name.to_owned()) });
    let tag = |name: &str| refs.tags.get(name).map(|id| Resolved { id: *id, spec: RefSpec::Tag(name.to_owned()) });
    match (word.strip_prefix("branch/"), word.strip_prefix("tag/")) {
        (Some(name), _) => branch(name).into_iter().collect(),
        (None, Some(name)) => tag(name).into_iter().collect(),
        (None, None) => [branch(word), tag(word)].into_iter().flatten().collect(),
    }
}

/// Returns true if `word` is the unambiguous name of a snapshot, or of one some steps before it.
fn is_of_snapshot(word: &str) -> bool {
    let is_id = |word: &str| word.strip_prefix("snapshot/").is_some_and(|id| id.parse::<ObjectId>().is_ok());
    is_id(word) || split_steps(word).is_some_and(|(base, _)| is_id(base))
}

/// Returns true if a ref called `name` would be taken for another revision, or another for it: it
/// is an id, has steps behind a name, or begins like an unambiguous form.
pub(crate) fn is_revision_of_another(name: &str) -> bool {
    let is_form = name.starts_with("branch/") || name.starts_with("tag/") || is_of_snapshot(name);
    is_form || name.parse::<ObjectId>().is_ok() || split_steps(name).is_some()
}

/// Splits `main~2` into `main` and 2; `main~` is one step.
fn split_steps(word: &str) -> Option<(&str, usize)> {
    let (base, steps) = word.rsplit_once('~')?;
    let steps = if steps.is_empty() { 1 } else { steps.parse().ok()? };
    (!base.is_empty()).then_some((base, steps))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::repo::testing::open;
    use icechunkfs_format::format::testing::{id, repo};

    #[tokio::test]
    async fn revisions_resolve_to_snapshots() {
        let snapshots = [(id(1), -1), (id(2), 0), (id(3), 1)];
        let shadow = format!("snapshot/{}~1", id(2));
        let branches = [
            ("branch/main", 0),
            ("branch/only", 1),
            ("main", 2),
            ("old~1", 0),
            ("older", 1),
            (&shadow, 2),
            ("tag/x~", 1),
        ];
        let repository = open(repo(&snapshots, &branches)).await;
        let find = |word: &'static str| {
            let repository = &repository;
            async move { repository.resolve_revision(word).await.map(|found| found.id) }
        };
        let expected =
            [("main", 3), ("main~", 2), ("main~2", 1), ("old~1", 1), ("branch/older~1", 1), ("branch/tag/x~", 2)];
        for (word, n) in expected {
            assert_eq!(find(word).await.unwrap(), id(n), "{word}");
        }
        let said = id(2).to_string();
        assert_eq!(repository.resolve_revision(&said).await.unwrap().spec, RefSpec::Snapshot(id(2)));
        assert_eq!(repository.resolve_revision(&format!("snapshot/{said}~1")).await.unwrap().id, id(1));
        assert_eq!(find("branch/main").await.unwrap(), id(3), "not the branch of that name");
        assert_eq!(find("branch/branch/main").await.unwrap(), id(1));
        let error = find("main~3").await.unwrap_err();
        assert!(error.to_string().contains("only 2 commits precede branch main"), "{error}");
        let error = find("branch/only").await.unwrap_err();
        assert!(error.to_string().contains("is branch/branch/only"), "{error}");
        let error = find("mian").await.unwrap_err();
        assert!(error.to_string().contains("did you mean `main`"), "{error}");
        for nothing in ["", "~", "~1", "main~x", "tag/main", "snapshot/main", "main/~1", "branch/only", "tag/x~"] {
            assert_eq!(find(nothing).await.unwrap_err().kind(), ErrorKind::NotFound, "{nothing}");
        }
        assert_eq!(repository.resolve_revision(&id(9).to_string()).await.unwrap_err().kind(), ErrorKind::NotFound);
    }
    #[tokio::test]
    async fn ids_are_abbreviated_while_they_are_unique() {
        let like = |last: u8| ObjectId([7, 7, 7, 7, 7, 7, 7, 7, 7, 7, last, 1]);
        let repository = open(repo(&[(like(0), -1), (like(255), 0), (id(3), 1)], &[("main", 2)])).await;
        let find = async |word: &str| repository.resolve_revision(word).await.map(|found| found.id);
        let [one, other, third] = [like(0), like(255), id(3)].map(|id| id.to_string());
        assert_eq!(find(third.get(..7).unwrap()).await.unwrap(), id(3));
        assert_eq!(find(&format!("{}~1", third.get(..9).unwrap().to_lowercase())).await.unwrap(), like(255));
        assert_eq!(find(third.get(..6).unwrap()).await.unwrap_err().kind(), ErrorKind::NotFound);
        let error = find(one.get(..8).unwrap()).await.unwrap_err().to_string();
        assert!(error.contains("several commits") && error.contains(&one) && error.contains(&other), "{error}");
        assert_eq!(find(one.get(..18).unwrap()).await.unwrap(), like(0));
    }
}
