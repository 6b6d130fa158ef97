//! `icechunkfs verify`: finds everything that is wrong with a repository, with location and
//! severity.

use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;

use super::progress::State;
use super::repo_args::RepoArgs;
use super::virtual_args::VirtualArgs;
use super::{open, print_result, progress};
use icechunkfs_base::error::Result;
use icechunkfs_base::printable;
use icechunkfs_base::size;
use icechunkfs_base::times::system_clock;
use icechunkfs_repo::repo::Repository;
use icechunkfs_repo::repo::progress::Progress;
use icechunkfs_repo::repo::verify::report::{Finding, Report, Severity};
use icechunkfs_repo::repo::verify::{self, VerifyOptions};

/// Exit status for warnings without errors.
const WARNINGS: u8 = 3;
/// Exit status for errors, the same as `fsck`'s.
const ERRORS: u8 = 4;

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// Check only what this branch, tag or snapshot needs [default: all commits, and unneeded
    /// objects].
    #[arg(index = 2, value_name = "REF")]
    reference: Option<String>,
    /// Also check that chunk objects exist and are long enough. Objects with virtual chunks are
    /// checked if they may be read (--allow-virtual), and must not have changed.
    #[arg(long)]
    chunks: bool,
    /// Print {"findings": [{"severity", "rule", "object", "node", "chunks", "message", "times"}],
    /// "errors", "warnings", "notes", "not_listed", "checked": {"snapshots", "transaction_logs",
    /// "manifests", "chunk_references", "chunk_objects", "virtual_objects",
    /// "virtual_chunks_not_checked"}}.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    repo: RepoArgs,
    #[command(flatten)]
    virtuals: VirtualArgs,
}

/// Checks a repository and prints the findings.
pub(crate) fn run(arguments: &VerifyArgs) -> Result<ExitCode> {
    let progress = Arc::new(Progress::default());
    let state = || State::of("checking", progress.files(), "files");
    let report = progress::watched(state, || open::run(check(arguments, &progress)))?;
    print_result(arguments.json, &report, || text(&report, arguments.chunks))?;
    Ok(match report.worst() {
        Some(Severity::Error) => ExitCode::from(ERRORS),
        Some(Severity::Warning) => ExitCode::from(WARNINGS),
        Some(Severity::Note) | None => ExitCode::SUCCESS,
    })
}

async fn check(arguments: &VerifyArgs, progress: &Arc<Progress>) -> Result<Report> {
    let permissions = arguments.virtuals.permissions()?;
    let storage = open::store(&arguments.repo.location, &arguments.repo.store).await?;
    let snapshot = match &arguments.reference {
        Some(word) => Some(Repository::open(Arc::clone(&storage)).await?.resolve_revision(word).await?.id),
        None => None,
    };
    let virtuals = if arguments.chunks && !permissions.is_empty() {
        let repository = Repository::open(Arc::clone(&storage)).await?;
        Some(repository.allowing(permissions, &arguments.repo.store).virtuals().await)
    } else {
        None
    };
    let wanted = VerifyOptions { snapshot, chunks: arguments.chunks, virtuals };
    verify::verify(&storage, wanted, system_clock(), progress).await
}

fn text(report: &Report, with_chunks: bool) -> String {
    let mut text = String::new();
    for finding in &report.findings {
        text += &printable::line(&line(finding));
        text.push('\n');
    }
    if report.not_listed > 0 {
        text += &format!("and {} more that are not listed\n", report.not_listed);
    }
    let checked = &report.checked;
    text += &format!(
        "checked {} snapshots, {} transaction logs, {} manifests with {} chunk references",
        checked.snapshots, checked.transaction_logs, checked.manifests, checked.chunk_references
    );
    if with_chunks {
        text += &format!(", {} chunk objects", checked.chunk_objects);
        if checked.virtual_objects > 0 {
            text += &format!(", {} objects with virtual chunks", checked.virtual_objects);
        }
        if checked.virtual_chunks_not_checked > 0 {
            text += &format!(
                ", but not {} without a permission (--allow-virtual)",
                size::counted(checked.virtual_chunks_not_checked, "virtual chunk")
            );
        }
    }
    text += &format!(": {} errors, {} warnings, {} notes\n", report.errors, report.warnings, report.notes);
    text
}

fn line(finding: &Finding) -> String {
    let severity = match finding.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Note => "note",
    };
    let mut line = format!("{severity}: {}", finding.object);
    if let Some(node) = &finding.node {
        line += &format!(": {node}");
    }
    if !finding.chunks.is_empty() {
        let chunks: Vec<String> = finding.chunks.iter().map(|coords| format!("{coords:?}")).collect();
        let more = if finding.times > finding.chunks.len() as u64 { ", ..." } else { "" };
        line += &format!(": chunk {}{more}", chunks.join(", "));
    }
    line += &format!(": {} [{}]", finding.message, finding.rule);
    if finding.times > 1 {
        line += &format!(" ({} times)", finding.times);
    }
    line
}
