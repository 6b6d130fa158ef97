//! Rules of `repo`, and of the copies of it that the operations log leads to.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use super::report::Subject;
use super::{Context, Listed, check_envelope, list, read};
use crate::repo::MAX_REPO_FILE;
use crate::repo::refs::DEFAULT_BRANCH;
use icechunkfs_base::error::{Context as _, ErrorKind, Result};
use icechunkfs_base::memory::{Meter, Metered};
use icechunkfs_base::times::format_time;
use icechunkfs_format::format::envelope::FileType;
pub(super) use icechunkfs_format::format::generated::icechunk as fb;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::metadata::Items;
use icechunkfs_format::format::repo_info::RepoInfo;
use icechunkfs_format::format::snapshot_info::{CommitText, SnapshotInfo};

const KEY: &str = "repo";
/// Tables that the reference implementation accepts in `repo`: its verifier's own limit.
const MAX_TABLES: usize = 1_000_000;
/// Tolerated lead of another clock over this machine's, in microseconds: the reference
/// implementation's ten minutes.
const MAX_SKEW: u64 = 600 * 1_000_000;
/// Copies that are followed one after another at most.
const MAX_CHAIN: usize = 10_000;

/// Snapshots that `repo` lists, by id, as far as they can be read.
pub(super) type Commits = Metered<BTreeMap<ObjectId, SnapshotInfo>>;

/// Bytes that an entry of a map or set takes besides what it holds.
const ENTRY: u64 = 64;

/// Copies of `repo` that operations logs name.
#[derive(Debug)]
struct NamedCopies {
    names: BTreeSet<String>,
    meter: Meter,
}

impl NamedCopies {
    fn insert(&mut self, name: &str) -> Result<()> {
        self.meter.count_items::<String>(1)?;
        self.meter.count(ENTRY + name.len() as u64)?;
        self.names.insert(name.to_owned());
        Ok(())
    }
}

/// Checks `repo` by itself, and returns the commits that it lists.
///
/// Errors: [`ErrorKind::OutOfMemory`] if the commits, or the metadata of one, do not fit.
pub(super) fn check(context: &Context, info: &Arc<RepoInfo>) -> Result<Commits> {
    let repo = context.object(KEY);
    let root = info.root();
    if root.spec_version() != 2 {
        repo.warning("repo-version", format!("it states version {}, not 2", root.spec_version()));
    }
    check_names(repo, info)?;
    let commits = check_snapshots(context, info)?;
    check_cycles(repo, &commits);
    check_time(context, KEY, "the status", root.status().set_at());
    let availability = root.status().availability().0;
    if availability > 2 {
        repo.warning("status", format!("its status {availability} is not known to clients"));
    }
    if let Err(error) = info.config() {
        repo.error("config", format!("the configuration cannot be read: {error}"));
    }
    for (what, flags) in [("enabled", root.enabled_feature_flags()), ("disabled", root.disabled_feature_flags())] {
        if flags.is_some_and(|flags| !flags.iter().is_sorted_by(|a, b| a < b)) {
            repo.warning("feature-flags", format!("the {what} feature flags are not sorted"));
        }
    }
    if let Some(why) = metadata_problem(root.metadata()) {
        repo.warning("metadata", format!("the repository's metadata: {why}"));
    }
    Ok(commits)
}

fn check_names(repo: Subject<'_>, info: &RepoInfo) -> Result<()> {
    let root = info.root();
    for (kind, list) in [("branch", root.branches()), ("tag", root.tags())] {
        if !list.iter().is_sorted_by(|a, b| a.name().as_bytes() < b.name().as_bytes()) {
            let why =
                format!("the {kind} names are not sorted, or contain a duplicate: other clients do not find them");
            repo.warning("refs-sorted", why);
        }
    }
    for (name, target) in info.branches().chain(info.tags()) {
        if let Err(error) = target {
            repo.error("ref-target", format!("ref `{name}`: {error}"));
        }
    }
    if info.branch(DEFAULT_BRANCH).is_none() {
        repo.warning("main", "there is no branch `main`: no client can write to the repository");
    }
    if !info.deleted_tags().is_sorted_by(|a, b| a.as_bytes() < b.as_bytes()) {
        repo.warning("refs-sorted", "the names of deleted tags are not sorted, or contain a duplicate");
    }
    let mut meter = Meter::new("the names of deleted tags");
    meter.count_items::<(&str, u64)>(info.root().deleted_tags().len())?;
    let deleted: HashSet<&str> = info.deleted_tags().collect();
    for (name, _) in info.tags() {
        if deleted.contains(name) {
            repo.warning("deleted-tag", format!("tag `{name}` exists although it is among the deleted ones"));
        }
    }
    Ok(())
}

fn check_snapshots(context: &Context, info: &Arc<RepoInfo>) -> Result<Commits> {
    let repo = context.object(KEY);
    let stored = info.root().snapshots();
    if !stored.iter().is_sorted_by(|a, b| a.id().0 < b.id().0) {
        let why = "the snapshots are not sorted by id, or contain a duplicate: other clients do not find them";
        repo.warning("snapshots-sorted", why);
    }
    let mut tables = stored.len() + info.root().branches().len() + info.root().tags().len();
    tables += 2 * info.root().latest_updates().len();
    let mut commits = BTreeMap::new();
    let mut meter = Meter::new("the list of snapshots");
    for (position, entry) in stored.iter().enumerate() {
        tables += entry.metadata().map_or(0, |items| items.len());
        let id = ObjectId::from(entry.id());
        if entry.pruned_ancestor_tx_logs().is_some_and(|logs| logs.is_empty()) {
            let why = format!("snapshot {id} has an empty list of pruned logs, which no client writes");
            repo.warning("pruned-empty", why);
        }
        if let Some(why) = metadata_problem(entry.metadata()) {
            repo.warning("metadata", format!("snapshot {id}: {why}"));
        }
        let parent = info.parent_id(position).unwrap_or_else(|error| {
            repo.error("parent", error.to_string());
            None
        });
        check_time(context, KEY, &format!("snapshot {id}"), entry.flushed_at());
        let text = CommitText::in_repo(info, position);
        // A damaged metadata value loses that value, not the commit.
        match text.metadata().context(|| format!("snapshot {id}")) {
            Err(error) if error.kind() == ErrorKind::OutOfMemory => return Err(error.context(KEY)),
            Err(error) => repo.error("metadata", error.to_string()),
            Ok(_) => {}
        }
        let pruned = entry.pruned_ancestor_tx_logs();
        meter.count_items::<ObjectId>(pruned.as_ref().map_or(0, |logs| logs.len()))?;
        let pruned_ancestor_tx_logs = pruned.iter().flatten().map(ObjectId::from).collect();
        let commit = SnapshotInfo { id, parent, flushed_at: entry.flushed_at(), pruned_ancestor_tx_logs, text };
        meter.count(ENTRY)?;
        meter.count_items::<SnapshotInfo>(1)?;
        if commits.insert(id, commit).is_some() {
            repo.error("snapshot-twice", format!("snapshot {id} is listed twice"));
        }
    }
    for commit in commits.values() {
        let Some(parent) = commit.parent.and_then(|parent| commits.get(&parent)) else { continue };
        if commit.flushed_at <= parent.flushed_at {
            let why = format!("snapshot {} is not younger than its parent {}", commit.id, parent.id);
            repo.warning("times-rise", why);
        }
    }
    if tables > MAX_TABLES {
        repo.warning("repo-size", format!("it has some {tables} tables: other clients read {MAX_TABLES} at most"));
    }
    Ok(meter.finish(commits))
}

/// Reports a time in microseconds that no clock can have shown yet.
pub(super) fn check_time(context: &Context, key: &str, what: &str, time: u64) {
    if i64::try_from(time).is_err() {
        context.object(key).error("time", format!("{what}: {time} microseconds is not a time"));
    } else if time > context.now.saturating_add(MAX_SKEW) {
        context
            .object(key)
            .warning("time-ahead", format!("{what} is of {}, which is in the future", format_time(time)));
    }
}

/// Checks that every commit leads to a root in fewer steps than there are commits.
pub(super) fn check_cycles<T>(repo: Subject<'_>, commits: &BTreeMap<ObjectId, SnapshotInfo<T>>) {
    let mut ends: HashSet<ObjectId> = HashSet::new();
    for &start in commits.keys() {
        let mut path = HashSet::new();
        let mut next = Some(start);
        while let Some(id) = next.filter(|id| !ends.contains(id)) {
            if !path.insert(id) {
                let why = format!("the history of snapshot {start} is a cycle: {id} is its own ancestor");
                repo.error("history-cycle", why);
                break;
            }
            next = commits.get(&id).and_then(|commit| commit.parent);
        }
        ends.extend(path);
    }
}

/// Returns the fault of a list of metadata items, apart from faults of their values.
pub(super) fn metadata_problem(items: Option<Items<'_>>) -> Option<&'static str> {
    let is_sorted = items?.iter().is_sorted_by(|a, b| a.name().as_bytes() < b.name().as_bytes());
    (!is_sorted).then_some("the metadata items are not sorted, or contain a duplicate")
}

/// Checks the operations log across its chain of copies. `copies` are the objects below
/// `overwritten/`; none if only one snapshot is checked, in which case only the log in `repo` is.
pub(super) async fn check_operations(context: &Context, info: &RepoInfo, copies: Option<&Listed>) -> Result<()> {
    let mut named = NamedCopies { names: BTreeSet::new(), meter: Meter::new("the names in the operations log") };
    let mut last = check_log(context, KEY, info, true, &mut named)?;
    let mut next = info.root().repo_before_updates().map(str::to_owned);
    let Some(copies) = copies else { return Ok(()) };
    let mut seen = HashSet::new();
    while let Some(name) = next.take() {
        named.insert(&name)?;
        if !seen.insert(name.clone()) || seen.len() > MAX_CHAIN {
            let why = format!("the operations log leads from copy to copy without end: {name}");
            context.object(KEY).warning("log-chain", why);
            break;
        }
        let key = format!("overwritten/{name}");
        let older = match read(context, &key, MAX_REPO_FILE, RepoInfo::decode).await {
            Ok(older) => older,
            Err(error) if error.kind() == ErrorKind::NotFound => break,
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported) => {
                context.object(&key).warning("log-chain", format!("the operations log ends here: {error}"));
                break;
            }
            Err(error) => return Err(error),
        };
        check_envelope(context, &key, &older.bytes, FileType::RepoInfo, older.value.has_identifier());
        let newest = older.value.root().latest_updates().iter().next().map(|update| update.updated_at());
        if newest.is_some_and(|newest| last.is_some_and(|last| newest >= last)) {
            let why = "its operations are not older than those of the file that leads to it";
            context.object(&key).warning("log-order", why);
        }
        last = check_log(context, &key, &older.value, false, &mut named)?.or(last);
        next = older.value.root().repo_before_updates().map(str::to_owned);
    }
    let named = named.names;
    let missing = named.iter().map(|name| format!("overwritten/{name}"));
    let missing: BTreeSet<String> = missing.filter(|key| !copies.contains_key(key)).collect();
    if !missing.is_empty() {
        // An update after the first listing adds a copy, which the newer `repo` names.
        let later = list(context, "overwritten/").await?;
        for key in missing.iter().filter(|key| !later.contains_key(*key)) {
            let why = "the operations log names this copy of `repo`, which does not exist";
            context.object(key).warning("backup-missing", why);
        }
    }
    let unused = copies.iter().filter(|(key, _)| {
        let name = key.strip_prefix("overwritten/").unwrap_or(key);
        name.starts_with("repo.") && !named.contains(name)
    });
    let (count, bytes) = unused.fold((0_u64, 0_u64), |sum, (_, object)| (sum.0 + 1, sum.1 + object.size));
    if count > 0 {
        let why = format!(
            "{count} copies of `repo` that the operations log does not name ({bytes} bytes), as lost races leave them"
        );
        context.object("overwritten/").note("backup-orphan", why);
    }
    Ok(())
}

/// Checks the operations in one file; returns the time of the oldest.
fn check_log(
    context: &Context,
    key: &str,
    info: &RepoInfo,
    is_current: bool,
    named: &mut NamedCopies,
) -> Result<Option<u64>> {
    let file = context.object(key);
    let updates = info.root().latest_updates();
    if updates.is_empty() {
        file.warning("log-empty", "the operations log has no entry: no client can write to the repository");
    }
    let mut last: Option<u64> = None;
    for (at, update) in updates.iter().enumerate() {
        check_time(context, key, "an operation", update.updated_at());
        if last.is_some_and(|last| update.updated_at() >= last) {
            let why =
                "the operations are not listed newest first, or two are of one time: other clients refuse to write";
            file.warning("log-order", why);
        }
        last = Some(update.updated_at());
        if update.update_type_type() == fb::UpdateType::NONE || update.update_type_type().variant_name().is_none() {
            let kind = update.update_type_type().0;
            file.warning("log-kind", format!("an operation of unknown kind {kind}: a newer program wrote it"));
        }
        match update.backup_path() {
            // The newest entry was written before the file was copied, so that it names no copy, in
            // the file or in its copy.
            Some(name) if at == 0 => {
                let rule =
                    "the newest operation names a copy of the file that it is in: other clients panic when they write";
                file.warning("log-newest", format!("{rule} ({name})"));
            }
            Some(name) => named.insert(name)?,
            None => {}
        }
    }
    let names = updates.iter().filter_map(|update| update.backup_path()).chain(info.root().repo_before_updates());
    for name in names {
        if !is_backup_name(name) {
            let what = if is_current { "" } else { " of this copy" };
            let expected = "expected repo.TIME.ID, without a folder";
            file.warning("backup-name", format!("the operations log{what} names the copy `{name}`: {expected}"));
        }
    }
    Ok(last)
}

fn is_backup_name(name: &str) -> bool {
    let is_time = |time: &str| time.len() == 14 && time.bytes().all(|byte| byte.is_ascii_digit());
    let parts: Vec<&str> = name.split('.').collect();
    matches!(parts.as_slice(), ["repo", time, id] if is_time(time) && id.parse::<ObjectId>().is_ok())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::report::Findings;
    use super::*;
    use icechunkfs_format::format::envelope::SpecVersion;
    use icechunkfs_format::format::repo_state::{LogEntry, Operation, RepoState};
    use icechunkfs_format::format::testing::{id, repo};
    use icechunkfs_store::storage::Condition;

    /// Returns the rules that an operations log breaks which names `copy`. `copy` is stored if
    /// `is_stored`, and was listed by nobody.
    async fn broken_rules(copy: &str, is_stored: bool) -> Vec<&'static str> {
        let info = RepoInfo::decode(&repo(&[(id(1), -1)], &[("main", 0)])).unwrap();
        let mut state = RepoState::from_info(&info).unwrap();
        let update = |updated_at, backup_path| LogEntry { operation: Operation::GcRan, updated_at, backup_path };
        state.updates = vec![update(2, None), update(1, Some(copy.to_owned()))];
        let file = state.encode().unwrap();
        let storage = Arc::clone(crate::repo::testing::open(file.clone()).await.storage());
        if is_stored {
            storage.put(&format!("overwritten/{copy}"), "old".into(), Condition::Always).await.unwrap();
        }
        let findings = Findings::default();
        let progress = Arc::default();
        let context = Context { storage, findings, now: 3, version: SpecVersion::V2, is_whole: true, progress };
        check_operations(&context, &RepoInfo::decode(&file).unwrap(), Some(&Listed::new())).await.unwrap();
        context.findings.into_report().findings.into_iter().map(|finding| finding.rule).collect()
    }

    #[tokio::test]
    async fn a_copy_that_an_update_adds_after_the_listing_is_not_missing() {
        let copy = "repo.30708000000000.1CECHNKREP0F1RSTCMT0";
        assert!(broken_rules(copy, true).await.is_empty());
        assert_eq!(broken_rules(copy, false).await, ["backup-missing"]);
    }

    #[test]
    fn names_of_copies() {
        assert!(is_backup_name("repo.30708000000000.1CECHNKREP0F1RSTCMT0"));
        for wrong in [
            "overwritten/repo.30708000000000.1CECHNKREP0F1RSTCMT0",
            "repo.3.1CECHNKREP0F1RSTCMT0",
            "repo.30708000000000.x",
            "repo",
        ] {
            assert!(!is_backup_name(wrong), "{wrong}");
        }
    }
}
