//! Facts about a mount: what `.icechunk/info.json`, `.icechunk/HEAD` and the source in
//! `/proc/mounts` say of it.
//!
//! The snapshot that a program looks at must be visible from the mount itself, without the command
//! that made it: in a notebook that has only the path, in a log that is read a year later, in the
//! list of mounts of a machine with twenty of them.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use icechunkfs_base::error::Result;
use icechunkfs_base::memory::{self, Meter, Metered};
use icechunkfs_base::printable;
use icechunkfs_base::times::{format_time, parse_time};
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_repo::repo::Repository;
use icechunkfs_repo::repo::refs::RefSpec;

/// Most bytes of `.icechunk/log`, and the part of the memory of all decoded data that it may take.
const MAX_LOG: usize = 16 << 20;
const LOG_PART: u64 = 8;
/// Longest message in it, in characters.
const MAX_MESSAGE: usize = 1000;

/// Constant facts about a mount.
#[derive(Clone, Debug, Default)]
pub struct MountFacts {
    /// Location of the repository.
    pub repository: String,
    /// Ref that is mounted.
    pub spec: RefSpec,
    /// Relation of the mount to its ref.
    pub access: Access,
    /// Mountpoint.
    pub mountpoint: PathBuf,
    /// Spec version of the repository.
    pub spec_version: u8,
    /// Status, metadata and feature flags of the repository when it was mounted; none before
    /// version 2.
    pub properties: Option<Value>,
    /// Scratch directory of a writable mount.
    pub scratch: Option<PathBuf>,
    /// Options of the mount.
    pub options: Map<String, Value>,
}

/// Relation of a mount to its ref.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// It shows one snapshot as long as it lives.
    #[default]
    ReadOnly,
    /// It shows the tip of a branch, which it follows.
    Follow,
    /// It shows a branch with uncommitted changes.
    Write,
}

/// Content of `.icechunk/info.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MountInfo {
    /// Location of the repository.
    pub repository: String,
    /// `branch`, `tag`, `snapshot` or `as_of`.
    pub kind: String,
    /// Name of the branch or tag; the id of a snapshot.
    #[serde(rename = "ref")]
    pub reference: String,
    /// Branch that is mounted or whose past is; none for tags and snapshots.
    pub branch: Option<String>,
    /// Time in the past that was asked for.
    pub as_of: Option<String>,
    /// Snapshot that is shown, or is the base of the uncommitted changes.
    pub snapshot: String,
    /// Relation of the mount to its ref.
    pub access: Access,
    /// Version of the repository's format.
    pub spec_version: u8,
    /// Status, metadata and feature flags of the repository when it was mounted; none before
    /// version 2.
    #[serde(default)]
    pub properties: Option<Value>,
    /// Scratch directory of a writable mount.
    pub scratch: Option<String>,
    /// Mountpoint.
    pub mountpoint: String,
    /// Options of the mount.
    pub options: Map<String, Value>,
    /// Process that serves the mount.
    pub pid: u32,
    /// Version of this program.
    pub version: String,
}

impl MountFacts {
    /// Returns what the mount is now: it shows `snapshot`.
    pub fn info(&self, snapshot: ObjectId) -> MountInfo {
        let (branch, as_of) = match &self.spec {
            RefSpec::Branch(branch) => (Some(branch.clone()), None),
            RefSpec::AsOf { branch, time } => (Some(branch.clone()), Some(format_time(*time))),
            RefSpec::Tag(_) | RefSpec::Snapshot(_) | RefSpec::Abbreviated(_) => (None, None),
        };
        let (kind, reference) = kind_and_name(&self.spec);
        MountInfo {
            repository: self.repository.clone(),
            kind: kind.to_owned(),
            reference,
            branch,
            as_of,
            snapshot: snapshot.to_string(),
            access: self.access,
            spec_version: self.spec_version,
            properties: self.properties.clone(),
            scratch: self.scratch.as_ref().map(|path| path.to_string_lossy().into_owned()),
            mountpoint: self.mountpoint.to_string_lossy().into_owned(),
            options: self.options.clone(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// Returns the content of `.icechunk/HEAD` while the mount shows `snapshot`: the ref, and the
    /// snapshot, a line each.
    pub fn head(&self, snapshot: ObjectId) -> String {
        match &self.spec {
            RefSpec::Snapshot(_) | RefSpec::Abbreviated(_) => format!("snapshot {snapshot}\n"),
            spec => format!("{}\nsnapshot {snapshot}\n", printable::line(&spec.to_string())),
        }
    }

    /// Returns the status of a read-only mount that shows `snapshot`, a commit of `time`.
    pub fn status(&self, snapshot: ObjectId, time: u64) -> String {
        let how = match self.access {
            Access::Follow => "read-only; the mount moves to newer commits by itself",
            _ => "read-only; the mount stays at this snapshot",
        };
        let spec = self.spec.to_string();
        format!("{}\nsnapshot {snapshot} of {}\n{how}\n", printable::line(&spec), format_time(time))
    }

    /// Returns the source of the mount in `/proc/mounts`: repository and ref, such as
    /// `/data/ocean@tag:v1.0`.
    pub fn source(&self) -> String {
        let (kind, reference) = kind_and_name(&self.spec);
        match &self.spec {
            RefSpec::AsOf { time, .. } => {
                format!("{}@branch:{reference}@{}", self.repository, format_time(*time))
            }
            _ => format!("{}@{kind}:{reference}", self.repository),
        }
    }
}

/// Splits `REPO@branch:NAME`, `REPO@branch:NAME@TIME`, `REPO@tag:NAME` or `REPO@snapshot:ID`, as
/// [`MountFacts::source`] joins them, into the repository and the ref; none if `source` names a
/// repository alone.
pub fn split_source(source: &str) -> Option<(&str, RefSpec)> {
    let marks = ["@branch:", "@tag:", "@snapshot:"];
    // Refs may contain the marks, too; a repository whose path does is named by an option.
    let (at, mark) = marks.iter().filter_map(|mark| Some((source.find(mark)?, *mark))).min()?;
    let repository = source.get(..at)?;
    let name = source.get(at + mark.len()..)?;
    let spec = match mark {
        "@tag:" => RefSpec::Tag(name.to_owned()),
        "@snapshot:" => RefSpec::Snapshot(name.parse().ok()?),
        _ => match name.rsplit_once('@').and_then(|(branch, time)| Some((branch, parse_time(time).ok()?))) {
            Some((branch, time)) => RefSpec::AsOf { branch: branch.to_owned(), time },
            None => RefSpec::Branch(name.to_owned()),
        },
    };
    (!repository.is_empty() && !name.is_empty()).then_some((repository, spec))
}

/// Returns `tip` and its ancestors, at most `limit`, as the text of `.icechunk/log`: a line each,
/// with id, time and message. The text is kept as long as the mount shows the snapshot, whose
/// author decides how many commits there are and how long their messages: very long ones are cut,
/// and a last line stands for the oldest commits where all of them would be too long.
pub async fn log_text(repository: &Repository, tip: ObjectId, limit: usize) -> Result<Metered<String>> {
    let most = MAX_LOG.min(usize::try_from(memory::reservable() / LOG_PART).unwrap_or(MAX_LOG));
    let mut meter = Meter::new("`.icechunk/log`");
    let mut text = String::new();
    let mut count = 0;
    repository
        .try_walk(tip, |commit| {
            let message = printable::shorten(commit.message(), MAX_MESSAGE);
            let line = format!("{} {} {}\n", commit.id, format_time(commit.flushed_at), printable::line(&message));
            let is_full = text.len() + line.len() > most;
            let line = if is_full { "older commits: see `icechunkfs log`\n" } else { &line };
            meter.count(2 * line.len() as u64)?;
            text += line;
            count += 1;
            Ok(count < limit && !is_full)
        })
        .await?;
    Ok(meter.finish(text))
}

/// Returns the kind of a ref, as `info.json` has it, and its name; the branch for a time in the
/// past.
pub fn kind_and_name(spec: &RefSpec) -> (&'static str, String) {
    match spec {
        RefSpec::Branch(name) => ("branch", name.clone()),
        RefSpec::Tag(name) => ("tag", name.clone()),
        RefSpec::Snapshot(id) => ("snapshot", id.to_string()),
        RefSpec::Abbreviated(id) => ("snapshot", id.clone()),
        RefSpec::AsOf { branch, .. } => ("as_of", branch.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(spec: RefSpec) -> MountFacts {
        MountFacts { repository: "/data/ocean".to_owned(), spec, ..MountFacts::default() }
    }

    #[test]
    fn the_source_names_the_ref() {
        let id = ObjectId([7; 12]);
        let as_of = RefSpec::AsOf { branch: "b".to_owned(), time: 1_700_000_000_000_000 };
        for (spec, expected) in [
            (RefSpec::default(), "/data/ocean@branch:main".to_owned()),
            (RefSpec::Tag("v1.0".to_owned()), "/data/ocean@tag:v1.0".to_owned()),
            (RefSpec::Snapshot(id), format!("/data/ocean@snapshot:{id}")),
            (as_of, "/data/ocean@branch:b@2023-11-14T22:13:20+00:00".to_owned()),
        ] {
            assert_eq!(facts(spec.clone()).source(), expected);
            assert_eq!(split_source(&expected), Some(("/data/ocean", spec)));
        }
        for alone in ["/data/ocean", "s3://user@host/x", "/data/x@tag", "@tag:v1", "/data/x@tag:", "/data/x@snapshot:7"]
        {
            assert_eq!(split_source(alone), None, "{alone}");
        }
        assert_eq!(split_source("/r@tag:a@branch:b"), Some(("/r", RefSpec::Tag("a@branch:b".to_owned()))));
    }

    #[test]
    fn a_head_has_one_line_for_the_ref_and_one_for_the_snapshot() {
        let id = ObjectId([7; 12]);
        assert_eq!(facts(RefSpec::Tag("a\nb".to_owned())).head(id).lines().count(), 2);
        assert_eq!(facts(RefSpec::Snapshot(id)).head(id), format!("snapshot {id}\n"));
    }
}
