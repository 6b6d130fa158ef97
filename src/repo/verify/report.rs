//! What is wrong with a repository, where, and how bad.

use std::collections::{BTreeMap, HashMap};

use parking_lot::Mutex;
use serde::Serialize;

/// Findings of different kinds or places that are kept; more are only counted. One hostile file can break a rule everywhere.
const MOST: usize = 10_000;
/// Chunks that one finding names.
const NAMED_CHUNKS: usize = 8;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Nothing is wrong: something lies about that nothing needs.
    Note,
    /// It can be read, but breaks a rule: another program may stumble over it.
    Warning,
    /// Data or history is lost, or cannot be read.
    Error,
}

/// One thing that was found, in one object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The rule that is broken, as one word for scripts.
    pub rule: &'static str,
    /// The key of the object.
    pub object: String,
    /// The path of the group or array that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Coordinates of the chunks that it is about; of many, the first few.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub chunks: Vec<Vec<u32>>,
    /// What is wrong.
    pub message: String,
    /// How often: the message is that of the first time.
    pub times: u64,
}

/// What was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Checked {
    /// Snapshot files.
    pub snapshots: u64,
    /// Transaction logs.
    pub transaction_logs: u64,
    /// Manifest files.
    pub manifests: u64,
    /// References to chunks, each as often as it is in a manifest.
    pub chunk_references: u64,
    /// Chunk objects that were found to be there.
    pub chunk_objects: u64,
    /// Objects with virtual chunks that were found to be as the references say.
    pub virtual_objects: u64,
}

/// What came of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// All that was found, the worst first.
    pub findings: Vec<Finding>,
    /// How many of each severity, repetitions counted.
    pub errors: u64,
    /// How many warnings, repetitions counted.
    pub warnings: u64,
    /// How many notes, repetitions counted.
    pub notes: u64,
    /// Findings that are counted and not listed, because there were too many.
    pub not_listed: u64,
    /// What was looked at.
    pub checked: Checked,
}

impl Report {
    /// The worst that was found; none if there is nothing.
    pub fn worst(&self) -> Option<Severity> {
        match (self.errors, self.warnings, self.notes) {
            (0, 0, 0) => None,
            (0, 0, _) => Some(Severity::Note),
            (0, _, _) => Some(Severity::Warning),
            _ => Some(Severity::Error),
        }
    }
}

type Place = (&'static str, String, Option<String>);

/// Takes findings from many threads. The same rule broken many times by one node in one object is one finding.
#[derive(Debug, Default)]
pub(super) struct Findings(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    all: Vec<Finding>,
    places: HashMap<Place, usize>,
    counts: BTreeMap<Severity, u64>,
    not_listed: u64,
    checked: Checked,
}

impl Findings {
    pub(super) fn add(
        &self,
        severity: Severity,
        rule: &'static str,
        object: &str,
        node: Option<&str>,
        chunk: Option<Vec<u32>>,
        message: impl Into<String>,
    ) {
        let mut inner = self.0.lock();
        *inner.counts.entry(severity).or_default() += 1;
        let place: Place = (rule, object.to_owned(), node.map(str::to_owned));
        if let Some(&at) = inner.places.get(&place)
            && let Some(known) = inner.all.get_mut(at)
        {
            known.times += 1;
            known.severity = known.severity.max(severity);
            if known.chunks.len() < NAMED_CHUNKS {
                known.chunks.extend(chunk);
            }
            return;
        }
        if inner.all.len() >= MOST {
            inner.not_listed += 1;
            return;
        }
        let at = inner.all.len();
        inner.all.push(Finding {
            severity,
            rule,
            object: object.to_owned(),
            node: node.map(str::to_owned),
            chunks: chunk.into_iter().collect(),
            message: message.into(),
            times: 1,
        });
        inner.places.insert(place, at);
    }

    pub(super) fn error(&self, rule: &'static str, object: &str, message: impl Into<String>) {
        self.add(Severity::Error, rule, object, None, None, message);
    }

    pub(super) fn warning(&self, rule: &'static str, object: &str, message: impl Into<String>) {
        self.add(Severity::Warning, rule, object, None, None, message);
    }

    pub(super) fn note(&self, rule: &'static str, object: &str, message: impl Into<String>) {
        self.add(Severity::Note, rule, object, None, None, message);
    }

    pub(super) fn count(&self, add: impl FnOnce(&mut Checked)) {
        add(&mut self.0.lock().checked);
    }

    pub(super) fn into_report(self) -> Report {
        let mut inner = self.0.into_inner();
        inner.all.sort_by(|a, b| {
            b.severity.cmp(&a.severity).then_with(|| (&a.object, a.rule, &a.node).cmp(&(&b.object, b.rule, &b.node)))
        });
        let count = |severity| inner.counts.get(&severity).copied().unwrap_or_default();
        Report {
            errors: count(Severity::Error),
            warnings: count(Severity::Warning),
            notes: count(Severity::Note),
            not_listed: inner.not_listed,
            checked: inner.checked,
            findings: inner.all,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_are_one_finding_and_the_worst_comes_first() {
        let findings = Findings::default();
        findings.note("orphan", "chunks/", "3 objects");
        for n in 0..20 {
            findings.add(Severity::Warning, "zero-length", "manifests/X", Some("/a"), Some(vec![n]), format!("{n}"));
        }
        findings.error("missing", "snapshots/X", "gone");
        let report = findings.into_report();
        assert_eq!((report.errors, report.warnings, report.notes), (1, 20, 1));
        let shown: Vec<_> =
            report.findings.iter().map(|f| (f.rule, f.times, f.chunks.len(), f.message.as_str())).collect();
        assert_eq!(
            shown,
            [("missing", 1, 0, "gone"), ("zero-length", 20, NAMED_CHUNKS, "0"), ("orphan", 1, 0, "3 objects")]
        );
        assert_eq!(report.worst(), Some(Severity::Error));
    }
}
