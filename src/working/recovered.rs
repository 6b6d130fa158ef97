//! What the last mount left in a scratch directory.

use std::path::Path;

use super::Origin;
use crate::error::{Error, ErrorKind, Result};
use crate::format::ids::ObjectId;
use crate::scratch::journal::{FORMAT, Journal, OLDEST_FORMAT};
use crate::scratch::place::Place as ScratchPlace;
use crate::scratch::record::Record;

/// What was found in a scratch directory, before its snapshot is loaded.
#[derive(Debug)]
pub struct Recovered {
    pub(super) journal: Option<Journal>,
    pub(super) records: Vec<Record>,
    /// Which branch of which repository the changes are made to; none if there are no changes yet.
    pub told: Option<Origin>,
    /// The snapshot that the changes are relative to; none if there are no changes yet.
    pub base: Option<ObjectId>,
    /// The snapshot that a commit was about to become.
    pub publishing: Option<ObjectId>,
    /// The journal does not say which entries cover something of the base.
    pub(super) is_old: bool,
}

impl Recovered {
    /// Reads the journal in `scratch`, which must be about the branch of `origin`. Whether it is about that repository is for the
    /// caller to find out ([`Recovered::told`]).
    pub fn read(scratch: &ScratchPlace, origin: &Origin) -> Result<Self> {
        let mut records = Vec::new();
        let mut first = None;
        let journal = Journal::open(scratch.directory(), |record| {
            if first.is_none() {
                first = Some(record)
            } else {
                records.push(record)
            }
            Ok(())
        });
        let journal = journal
            .map_err(|e| e.context(format!("{}: to begin anew, mount with --discard", scratch.path().display())))?;
        let mut is_old = false;
        let (told, base) = match first {
            None => (None, None),
            Some(Record::Base { format, repository, branch, snapshot, identity })
                if (OLDEST_FORMAT..=FORMAT).contains(&format) =>
            {
                is_old = format < FORMAT;
                let identity = identity.map(|text| text.parse()).transpose()?;
                let told = Origin { repository, branch, identity };
                if told.branch != origin.branch {
                    return Err(told.is_not(origin, scratch.path()));
                }
                (Some(told), Some(snapshot.parse()?))
            }
            Some(Record::Base { format, .. }) => {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    format!("{}: written by another version (format {format})", scratch.path().display()),
                ));
            }
            Some(_) => {
                return Err(Error::corrupt(format!(
                    "{}: the scratch journal does not begin with its first line: to begin anew, mount with --discard",
                    scratch.path().display()
                )));
            }
        };
        let publishing = records.iter().rev().find_map(|record| match record {
            Record::Publishing { snapshot } => Some(Some(snapshot.parse())),
            Record::Unpublished { .. } => Some(None),
            _ => None,
        });
        Ok(Recovered { journal, records, told, base, publishing: publishing.flatten().transpose()?, is_old })
    }

    /// Nothing: what there was is given up.
    pub fn nothing() -> Self {
        Recovered { journal: None, records: Vec::new(), told: None, base: None, publishing: None, is_old: false }
    }
}

impl Origin {
    /// The error of a scratch directory, at `scratch`, whose changes were made to this and not to `other`.
    pub fn is_not(&self, other: &Origin, scratch: &Path) -> Error {
        Error::invalid(format!(
            "the scratch directory {} has changes to branch {} of {}, not to branch {} of {}: name another with --scratch, or give \
             them up with --discard",
            scratch.display(),
            self.branch,
            self.repository,
            other.branch,
            other.repository,
        ))
    }
}
