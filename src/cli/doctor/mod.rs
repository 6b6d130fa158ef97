//! `icechunkfs doctor`: checks this machine, and a store, for what a mount needs.
//!
//! Each check is an independent function that returns findings; none hangs, and none changes
//! anything, except the write check of [`store`], which must be asked for.

mod finding;
mod machine;
mod mounts;
mod space;
mod store;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use self::finding::{Finding, Severity};
use super::print_result;
use icechunkfs_base::error::Result;
use icechunkfs_base::printable;
use icechunkfs_store::storage::settings::Settings;

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// The repository: a path or a URL. Without it, only this machine is checked.
    #[arg(value_name = "REPO")]
    repo: Option<String>,
    /// Check this scratch directory, not the default one.
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// Check conditional writes with a temporary object `icechunkfs-doctor-...` beside those of
    /// REPO, which is removed again.
    #[arg(long, requires = "repo")]
    write: bool,
    /// Print {"ok", "checks": [{"check", "severity" (ok, warn or fail), "text", "remedy"}]}.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: Settings,
}

#[derive(Serialize)]
struct Examination {
    ok: bool,
    checks: Vec<Finding>,
}

/// Runs all checks and prints their findings.
pub(crate) fn run(arguments: &DoctorArgs) -> Result<ExitCode> {
    // The kernel is asked by a fork of this process, which must have one thread.
    let mut checks = machine::check();
    let (of_store, scratch) = match &arguments.repo {
        Some(repo) => store::check(repo, &arguments.store, arguments.write),
        None => (Vec::new(), None),
    };
    checks.extend(space::check_scratch(arguments.scratch.clone().or(scratch)));
    checks.extend(arguments.store.cache.as_ref().map(|cache| space::check_cache(PathBuf::from(cache))));
    checks.extend(mounts::check()?);
    checks.extend(of_store);
    let ok = checks.iter().all(|finding| finding.severity != Severity::Fail);
    let examination = Examination { ok, checks };
    print_result(arguments.json, &examination, || text(&examination.checks))?;
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn text(checks: &[Finding]) -> String {
    checks.iter().map(|finding| printable::line(&finding.to_string()) + "\n").collect()
}
