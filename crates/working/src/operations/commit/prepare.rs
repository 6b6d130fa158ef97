//! Before a commit: what would be committed, and whether it may be.

use std::collections::HashMap;
use std::sync::Arc;

use super::super::changes::Violation;
use super::super::changes::guard::reject_unexplained_deletions;
use super::super::committed::Committed;
use super::super::status_text::is_of_version_2;
use super::super::{DetectedChanges, Session};
use super::{CLOSE_TIMEOUT, Commit, POLL_INTERVAL, listed};
use crate::overlay::Base;
use crate::overlay::frozen::Frozen;
use crate::overlay::uploads::UploadPause;
use crate::scratch::data::{FLUSH_FAILED, Files, WriterState};
use crate::scratch::record::DataFileId;
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::size;
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_repo::commit::changes::{ChangeSet, ChunkChange};
use icechunkfs_repo::commit::membership::ungrouped_by;
use icechunkfs_repo::commit::progress::Stage;
use icechunkfs_repo::commit::unchanged::drop_unchanged;
use icechunkfs_repo::commit::warnings::{Warning, warnings_of};
use icechunkfs_repo::repo::MAX_SNAPSHOT;
use icechunkfs_repo::repo::refs::RefSpec;

/// Paths with the same cause that a refusal names one by one.
const NAMED: usize = 5;

/// Changes that may be committed.
pub(super) struct Prepared {
    /// Base of the changes.
    pub(super) base: Arc<Base>,
    pub(super) detected: DetectedChanges,
    /// Untracked files and warnings.
    pub(super) report: Committed,
    /// False if there is nothing to commit.
    pub(super) is_needed: bool,
    /// Set from when the changes refer to uploads: no other one begins until the tree shows the
    /// commit.
    pub(super) uploads_wait: Option<UploadPause>,
}

impl Commit<'_> {
    /// Detects the changes, once programs have closed what they wrote, and refuses those that
    /// cannot be committed.
    pub(super) async fn prepare(&self) -> Result<Prepared> {
        let Commit { session, options, .. } = self;
        let upper = session.working.upper();
        session.wait_for_closes().await;
        self.progress.enter(Stage::Detecting);
        let (frozen, detected) = session.detect_changes().await?;
        refuse_open(&frozen)?;
        refuse_violations(&detected)?;
        reject_unexplained_deletions(&upper.base().tree, &frozen, &detected.changes)?;
        let detected = self.refuse_mapped(detected).await?;
        let detected = self.own_foreign(detected).await?;
        let base = upper.base();
        let report = Committed { untracked: detected.untracked_paths(), ..Committed::default() };
        if options.strict {
            refuse_version_2(&report.untracked)?;
        }
        // An earlier commit that seemed to fail may have landed; an empty change set then has to
        // undo it.
        if detected.changes.is_empty() && !options.amend && upper.unpublished().is_empty() {
            return Ok(Prepared { base, detected, report, is_needed: false, uploads_wait: None });
        }
        let ungrouped = self.ungrouped(&base, &detected.changes).await;
        let (detected, warnings) = session.find_warnings(detected).await?;
        if options.strict {
            refuse_warnings(&ungrouped, &warnings)?;
        }
        let (detected, unchanged) = self.leave_out_unchanged(detected, &base).await?;
        let report = Committed { ungrouped, warnings, unchanged, ..report };
        Ok(Prepared { base, detected, report, is_needed: true, uploads_wait: None })
    }

    /// Returns the nodes that will be in no group, also not in one that others have made since.
    async fn ungrouped(&self, base: &Base, changes: &ChangeSet) -> Vec<String> {
        let ungrouped = ungrouped_by(base.tree.snapshot(), None, changes);
        // A detached commit follows the base, whatever is on the branch.
        if ungrouped.is_empty() || self.options.detach {
            return ungrouped;
        }
        match self.newer_than(base).await {
            Ok(Some(tip)) => ungrouped_by(base.tree.snapshot(), Some(&tip), changes),
            // The commit says what is wrong with the branch.
            _ => ungrouped,
        }
    }

    /// Returns the newest snapshot of the branch; none if that is `base`.
    async fn newer_than(&self, base: &Base) -> Result<Option<Snapshot>> {
        let repository = self.session.repository().await?;
        let branch = self.session.working.upper().origin().branch.clone();
        let tip = repository.resolve(&RefSpec::Branch(branch)).await?;
        if tip == base.id() {
            return Ok(None);
        }
        repository.snapshot(tip, MAX_SNAPSHOT).await.map(Some)
    }

    /// Completes the chunks, and leaves out those that have the bytes of `base`. Returns their
    /// number, too.
    async fn leave_out_unchanged(
        &self,
        mut detected: DetectedChanges,
        base: &Base,
    ) -> Result<(DetectedChanges, usize)> {
        // Their missing ranges are the base's.
        self.session.working.contents().complete_sparse(&detected.data_files()).await?;
        if self.options.keep_unchanged {
            return Ok((detected, 0));
        }
        let count = drop_unchanged(&self.session.reader, base.tree.snapshot(), &mut detected.changes).await?;
        Ok((detected, count))
    }

    /// Makes the foreign chunks inodes of the working tree with their own bytes: the commit deletes
    /// those that they show. They are then untracked files like others.
    async fn own_foreign(&self, detected: DetectedChanges) -> Result<DetectedChanges> {
        if detected.foreign.is_empty() {
            return Ok(detected);
        }
        self.session
            .working
            .moves()
            .preserve(&self.guard, &detected.untracked_entries(), &detected.foreign_places())
            .await?;
        Ok(self.session.detect_changes().await?.1)
    }

    /// Refuses files that are mapped for writing. A mapping of a passthrough file outlives the
    /// handle, and the kernel does not report its end; bytes written through it after the commit
    /// would be lost, or change the object that the file was linked to.
    async fn refuse_mapped(&self, mut detected: DetectedChanges) -> Result<DetectedChanges> {
        if !self.session.working.handles().was_passthrough_used() {
            return Ok(detected);
        }
        // The kernel's passthrough handles are open for writing, whatever programs do with them.
        // Their files are not linked.
        let backed = self.session.working.handles().passthrough_data();
        let look = move || {
            let mut mapped = Vec::new();
            for change in detected.changes.chunk_changes_mut() {
                let ChunkChange::File(file) = change else { continue };
                let Some(number) = DataFileId::from_file_name(&file.name).filter(|number| !backed.contains(number))
                else {
                    continue;
                };
                match Files::writer_state(&file.open()?) {
                    WriterState::AtRest => {}
                    WriterState::Written => mapped.push((number, file.clone())),
                    WriterState::Unknown => file.can_link = false,
                }
            }
            // The kernel drops its reference to a file shortly after the close.
            let deadline = std::time::Instant::now() + CLOSE_TIMEOUT;
            while !mapped.is_empty() && std::time::Instant::now() < deadline {
                std::thread::sleep(POLL_INTERVAL);
                mapped.retain(|(_, file)| {
                    file.open().is_ok_and(|file| Files::writer_state(&file) == WriterState::Written)
                });
            }
            Ok((detected, mapped))
        };
        let (detected, mapped) = blocking(look).await?;
        if mapped.is_empty() {
            return Ok(detected);
        }
        let numbers = mapped.iter().map(|(number, _)| *number).collect();
        Err(busy("mapped", &self.session.working.upper().paths_of_data(&numbers)))
    }
}

impl Session {
    /// Returns the warnings about a change set, with the change set itself.
    pub(in super::super) async fn find_warnings(
        &self,
        detected: DetectedChanges,
    ) -> Result<(DetectedChanges, Vec<Warning>)> {
        let base = self.working.upper().base();
        blocking(move || {
            let warnings = warnings_of(base.tree.snapshot(), &detected.changes);
            Ok((detected, warnings))
        })
        .await
    }
}

pub(in super::super) fn refuse_open(frozen: &Frozen) -> Result<()> {
    match frozen.open_for_writing.as_slice() {
        [] => Ok(()),
        open => Err(busy("open", open)),
    }
}

fn busy(how: &str, paths: &[String]) -> Error {
    let paths = listed(paths);
    Error::new(
        ErrorKind::Busy,
        format!("{how} for writing: {paths}. Close them, or try again when their program has ended"),
    )
}

fn refuse_violations(detected: &DetectedChanges) -> Result<()> {
    if detected.violations.is_empty() {
        return Ok(());
    }
    let violations = by_cause(&detected.violations);
    let has_flush_failed = detected.violations.iter().any(|violation| violation.why == FLUSH_FAILED);
    let kind = if has_flush_failed { ErrorKind::Io } else { ErrorKind::InvalidInput };
    Err(Error::new(kind, format!("not committed; {}", listed(&violations))))
}

/// Describes violations, those of one cause together.
fn by_cause(violations: &[Violation]) -> Vec<String> {
    let mut causes: Vec<(&str, Vec<&str>)> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for Violation { path, why } in violations {
        let place = *places.entry(why).or_insert(causes.len());
        match causes.get_mut(place) {
            Some((_, paths)) => paths.push(path),
            None => causes.push((why, vec![path])),
        }
    }
    let described = causes.into_iter().map(|(why, paths)| match paths.as_slice() {
        [path] => format!("{path}: {why}"),
        paths if paths.len() <= NAMED => format!("{}: {why}", paths.join(", ")),
        [first, .., last] => format!("{} from {first} to {last}: {why}", size::counted(paths.len() as u64, "path")),
        [] => why.to_owned(),
    });
    described.collect()
}

/// Refuses documents of Zarr version 2: they were written to be committed.
fn refuse_version_2(untracked: &[String]) -> Result<()> {
    match untracked.iter().find(|path| is_of_version_2(path)) {
        None => Ok(()),
        Some(path) => Err(Error::invalid(format!(
            "not committed (--strict); {path} is of Zarr version 2, which is not stored: write version 3, or move it away"
        ))),
    }
}

/// Refuses a change set with warnings.
fn refuse_warnings(ungrouped: &[String], warnings: &[Warning]) -> Result<()> {
    let no_group = ungrouped.iter().map(|path| format!("{path}: it is in a directory without zarr.json"));
    let all: Vec<String> =
        no_group.chain(warnings.iter().filter(|warning| !warning.is_note).map(Warning::to_string)).collect();
    if all.is_empty() {
        return Ok(());
    }
    Err(Error::invalid(format!("not committed, because warnings are refused (--strict); {}", listed(&all))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn violations_of_one_cause_are_told_together() {
        let violation = |path: &str, why: &str| Violation { path: path.to_owned(), why: why.to_owned() };
        let mut all = vec![violation("/a", "wrong"), violation("/b", "bad"), violation("/c", "wrong")];
        assert_eq!(by_cause(&all), ["/a, /c: wrong", "/b: bad"]);
        all.extend((0..5000).map(|n| violation(&format!("/d/{n}"), "bad")));
        assert_eq!(by_cause(&all), ["/a, /c: wrong", "5,001 paths from /b to /d/4999: bad"]);
        assert!(by_cause(&[]).is_empty());
    }
}
