//! Findings of a verification: rule, location and severity.

use std::collections::{BTreeMap, HashMap};

use parking_lot::Mutex;
use serde::Serialize;

use icechunkfs_base::printable;

/// Maximum number of findings kept, and of the bytes of their texts; more are only counted, because
/// one hostile file can break a rule everywhere, and have long names.
const MAX_FINDINGS: usize = 10_000;
const MAX_BYTES: usize = 8 << 20;
/// Longest description of a fault, in characters, which may have a value of a file in it.
const MAX_MESSAGE: usize = 2000;
/// Coordinates that are kept of a chunk.
const MAX_COORDS: usize = icechunkfs_format::zarr::array::MAX_RANK;
/// Chunks that one finding names.
const MAX_NAMED_CHUNKS: usize = 8;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// No fault: an object exists that nothing needs.
    Note,
    /// A readable object breaks a rule, which may make another program fail.
    Warning,
    /// Data or history is lost, or cannot be read.
    Error,
}

/// One finding, in one object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Severity.
    pub severity: Severity,
    /// Broken rule, as one word for scripts.
    pub rule: &'static str,
    /// Key of the object.
    pub object: String,
    /// Path of the group or array concerned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Coordinates of the first few chunks concerned.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub chunks: Vec<Vec<u32>>,
    /// Description of the fault.
    pub message: String,
    /// Number of occurrences; the message is that of the first.
    pub times: u64,
}

/// Numbers of checked objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Checked {
    /// Snapshot files.
    pub snapshots: u64,
    /// Transaction logs.
    pub transaction_logs: u64,
    /// Manifest files.
    pub manifests: u64,
    /// Chunk references, counted once per manifest.
    pub chunk_references: u64,
    /// Chunk objects that exist.
    pub chunk_objects: u64,
    /// Objects with virtual chunks that match their references.
    pub virtual_objects: u64,
    /// References to virtual chunks in objects that may not be read, if chunks were to be checked.
    pub virtual_chunks_not_checked: u64,
}

/// Result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// All findings, the worst first.
    pub findings: Vec<Finding>,
    /// Number of errors, including repetitions.
    pub errors: u64,
    /// Number of warnings, including repetitions.
    pub warnings: u64,
    /// Number of notes, including repetitions.
    pub notes: u64,
    /// Findings that are counted and not listed, because there were too many.
    pub not_listed: u64,
    /// Numbers of checked objects.
    pub checked: Checked,
}

impl Report {
    /// Returns the worst severity; none if there are no findings.
    pub fn worst(&self) -> Option<Severity> {
        match (self.errors, self.warnings, self.notes) {
            (0, 0, 0) => None,
            (0, 0, _) => Some(Severity::Note),
            (0, _, _) => Some(Severity::Warning),
            _ => Some(Severity::Error),
        }
    }
}

type FindingLocation = (&'static str, String, Option<String>);

/// Collector of findings from many threads. A rule broken many times by one node in one object is
/// one finding.
#[derive(Debug, Default)]
pub(super) struct Findings(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    all: Vec<Finding>,
    places: HashMap<FindingLocation, usize>,
    bytes: usize,
    counts: BTreeMap<Severity, u64>,
    not_listed: u64,
    checked: Checked,
}

/// Object that findings are about, or a node or chunk in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject<'a> {
    findings: &'a Findings,
    object: &'a str,
    node: Option<&'a str>,
    chunk: Option<&'a [u32]>,
}

impl<'a> Subject<'a> {
    pub(super) fn node(self, path: &'a str) -> Self {
        Subject { node: Some(path), ..self }
    }

    pub(super) fn chunk(self, coords: &'a [u32]) -> Self {
        Subject { chunk: Some(coords), ..self }
    }

    pub(super) fn error(&self, rule: &'static str, message: impl Into<String>) {
        self.add(Severity::Error, rule, message.into());
    }

    pub(super) fn warning(&self, rule: &'static str, message: impl Into<String>) {
        self.add(Severity::Warning, rule, message.into());
    }

    pub(super) fn note(&self, rule: &'static str, message: impl Into<String>) {
        self.add(Severity::Note, rule, message.into());
    }

    fn add(&self, severity: Severity, rule: &'static str, message: String) {
        let mut inner = self.findings.0.lock();
        *inner.counts.entry(severity).or_default() += 1;
        let place: FindingLocation = (rule, self.object.to_owned(), self.node.map(str::to_owned));
        let chunk = self.chunk.map(|coords| coords.iter().copied().take(MAX_COORDS).collect::<Vec<u32>>());
        if let Some(&at) = inner.places.get(&place)
            && let Some(known) = inner.all.get_mut(at)
        {
            known.times += 1;
            known.severity = known.severity.max(severity);
            if known.chunks.len() < MAX_NAMED_CHUNKS {
                known.chunks.extend(chunk);
            }
            return;
        }
        let message = printable::shorten(&message, MAX_MESSAGE).into_owned();
        inner.bytes += message.len() + 2 * (self.object.len() + self.node.map_or(0, str::len));
        if inner.all.len() >= MAX_FINDINGS || inner.bytes > MAX_BYTES {
            inner.not_listed += 1;
            return;
        }
        let at = inner.all.len();
        let (_, object, node) = place.clone();
        inner.all.push(Finding {
            severity,
            rule,
            object,
            node,
            chunks: chunk.into_iter().collect(),
            message,
            times: 1,
        });
        inner.places.insert(place, at);
    }
}

impl Findings {
    pub(super) fn object<'a>(&'a self, key: &'a str) -> Subject<'a> {
        Subject { findings: self, object: key, node: None, chunk: None }
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
        findings.object("chunks/").note("orphan", "3 objects");
        for n in 0..20 {
            findings.object("manifests/X").node("/a").chunk(&[n]).warning("zero-length", format!("{n}"));
        }
        findings.object("snapshots/X").error("missing", "gone");
        let report = findings.into_report();
        assert_eq!((report.errors, report.warnings, report.notes), (1, 20, 1));
        let shown: Vec<_> =
            report.findings.iter().map(|f| (f.rule, f.times, f.chunks.len(), f.message.as_str())).collect();
        assert_eq!(
            shown,
            [("missing", 1, 0, "gone"), ("zero-length", 20, MAX_NAMED_CHUNKS, "0"), ("orphan", 1, 0, "3 objects")]
        );
        assert_eq!(report.worst(), Some(Severity::Error));
    }
}
