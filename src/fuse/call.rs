//! Requests of the kernel while they are answered: each is counted ([`icechunkfs_base::metrics`]),
//! and logged if the user wants that ([`super::access_log`]).

use std::ffi::{OsStr, OsString};

use super::access_log;
use super::face::Face;
use icechunkfs_base::metrics::{Operation, Outcome, Timed};

/// Request that is being answered. It is counted when this is dropped.
#[derive(Debug)]
pub(super) struct Call {
    operation: &'static str,
    timed: Option<Timed>,
    face: Option<Face>,
    /// Name in directory `face`; kept for the log only.
    name: Option<OsString>,
    range: Option<(u64, u64)>,
}

impl From<&'static str> for Call {
    fn from(operation: &'static str) -> Self {
        // Programs close files, and the kernel releases them.
        let counted = if operation == "close" { Some(Operation::Release) } else { Operation::named(operation) };
        Call { operation, timed: counted.map(Timed::begin), face: None, name: None, range: None }
    }
}

impl Call {
    /// Begins the answer to a request on `face`.
    pub(super) fn on(operation: &'static str, face: Face) -> Self {
        Call { face: Some(face), ..Call::from(operation) }
    }

    /// Begins the answer to a request on the name `of` in directory `parent`.
    pub(super) fn of_name(operation: &'static str, parent: Face, of: &OsStr) -> Self {
        Call { name: access_log::is_on().then(|| of.to_owned()), ..Call::on(operation, parent) }
    }

    /// Counts the request as `operation`, and not as its name for messages says.
    pub(super) fn counted_as(mut self, operation: Operation) -> Self {
        match &mut self.timed {
            Some(timed) => timed.count_as(operation),
            None => self.timed = Some(Timed::begin(operation)),
        }
        self
    }

    /// Sets the bytes of the file that the request names.
    pub(super) fn range(self, offset: u64, length: u64) -> Self {
        Call { range: Some((offset, length)), ..self }
    }

    /// Returns the name for messages.
    pub(super) fn operation(&self) -> &'static str {
        self.operation
    }

    /// Ends the request. `describe` returns the path of a face.
    pub(super) fn end(mut self, outcome: Outcome, describe: impl FnOnce(Face) -> String) {
        if let Some(timed) = &mut self.timed {
            timed.end(outcome);
            if access_log::is_on() {
                let path = self.face.map(|face| {
                    let path = describe(face);
                    match &self.name {
                        Some(name) => format!("{}/{}", path.trim_end_matches('/'), name.to_string_lossy()),
                        None => path,
                    }
                });
                access_log::record(self.operation, path, self.range, outcome, timed.elapsed());
            }
        }
    }
}
