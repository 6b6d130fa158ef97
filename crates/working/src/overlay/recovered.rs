//! The changes that the last mount left in a scratch directory.

use std::path::Path;

use super::Origin;
use crate::scratch::data::Files;
use crate::scratch::directory::ScratchDirectory;
use crate::scratch::journal::{COVERS_SINCE, FORMAT, Journal, OLDEST_FORMAT};
use crate::scratch::record::Record;
use crate::scratch::work::WorkSearch;
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_format::format::ids::ObjectId;

/// Content of a scratch directory, before its base is loaded.
#[derive(Debug)]
pub struct Recovered {
    pub(super) journal: Option<Journal>,
    pub(super) records: Vec<Record>,
    /// Branch and repository of the changes; `None` if there are no changes yet.
    pub origin: Option<Origin>,
    /// Base of the changes; `None` if there are no changes yet.
    pub base: Option<ObjectId>,
    /// Snapshot that a commit was about to publish.
    pub publishing: Option<ObjectId>,
    /// True if there is uncommitted work.
    pub has_work: bool,
    /// True if the journal does not record which entries cover an entry of the base.
    pub(super) is_old: bool,
}

impl Recovered {
    /// Reads the journal in `scratch`, which must be about the branch of `origin`. The caller must
    /// check the repository ([`Recovered::origin`]).
    pub fn read(scratch: &ScratchDirectory, origin: &Origin) -> Result<Self> {
        let mut records = Vec::new();
        let mut first = None;
        let mut work = WorkSearch::default();
        let journal = Journal::open(scratch.directory(), |record| {
            work.add(&record);
            if first.is_none() {
                first = Some(record)
            } else {
                records.push(record)
            }
            Ok(())
        });
        let journal =
            journal.context(|| format!("{}: to start again, mount with --discard", scratch.path().display()))?;
        if journal.is_none() {
            refuse_without_journal(scratch)?;
        }
        let has_work = work.has_work();
        let mut is_old = false;
        let (origin, base) = match first {
            None => (None, None),
            Some(Record::Base { format, repository, branch, snapshot, identity })
                if (OLDEST_FORMAT..=FORMAT).contains(&format) =>
            {
                is_old = format < COVERS_SINCE;
                let identity = identity.map(|text| text.parse()).transpose()?;
                let recorded = Origin { repository, branch, identity };
                if recorded.branch != origin.branch && !has_work {
                    return Ok(Recovered::empty());
                }
                if recorded.branch != origin.branch {
                    return Err(recorded.mismatch_error(origin, scratch.path()));
                }
                (Some(recorded), Some(snapshot.parse()?))
            }
            Some(Record::Base { format, .. }) => {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    format!("{}: written by another version (format {format})", scratch.path().display()),
                ));
            }
            Some(_) => {
                return Err(Error::corrupt(format!(
                    "{}: the scratch journal does not begin with its first line: to start again, mount with --discard",
                    scratch.path().display()
                )));
            }
        };
        let publishing = records.iter().rev().find_map(|record| match record {
            Record::Publishing { snapshot } => Some(Some(snapshot.parse())),
            Record::Unpublished { .. } => Some(None),
            _ => None,
        });
        let publishing = publishing.flatten().transpose()?;
        Ok(Recovered { journal, records, origin, base, publishing, has_work, is_old })
    }

    /// Returns an empty content, for changes that are discarded.
    pub fn empty() -> Self {
        Recovered {
            journal: None,
            records: Vec::new(),
            origin: None,
            base: None,
            publishing: None,
            has_work: false,
            is_old: false,
        }
    }
}

/// Fails if `scratch`, which has no journal, has data files: they are uncommitted work, and a new
/// journal would make all of them unneeded.
fn refuse_without_journal(scratch: &ScratchDirectory) -> Result<()> {
    let count = Files::new(scratch.data()?).list()?.len();
    if count == 0 {
        return Ok(());
    }
    let path = scratch.path().display();
    Err(Error::corrupt(format!(
        "{path}: the file `journal` is missing, and {count} files with uncommitted bytes are in `data`: put the journal back, or name another \
         directory with --scratch; to delete these files, mount with --discard. Nothing was changed"
    )))
}

impl Origin {
    /// Returns the error for the scratch directory at `scratch` if its changes belong to this
    /// origin instead of `other`.
    pub fn mismatch_error(&self, other: &Origin, scratch: &Path) -> Error {
        Error::invalid(format!(
            "the scratch directory {} has changes to branch {} of {}, not to branch {} of {}: name another with \
             --scratch, or discard them with --discard",
            scratch.display(),
            self.branch,
            self.repository,
            other.branch,
            other.repository,
        ))
    }
}
