//! Virtual chunks: read where the user allows it, and nowhere else. Over real files and servers.

mod buckets;
mod commands;
mod documents;
mod files;
mod fixtures;
mod mounts;
mod servers;
mod web;
use std::path::Path;
use std::process::Command;

use crate::common::{Output, program, run};

/// Returns the program with an empty environment.
fn plain(words: &[&str]) -> Command {
    let mut command = Command::new(program());
    let own = |name: &str| ["AWS_", "ICECHUNKFS_", "AZURE_", "GOOGLE_"].iter().any(|begin| name.starts_with(begin));
    for (name, _) in std::env::vars().filter(|(name, _)| own(name)) {
        command.env_remove(name);
    }
    command.env("HOME", "/nonexistent").args(words);
    command
}

/// Runs `icechunkfs cat` of chunk `n`.
fn cat(repository: &Path, n: usize, words: &[&str]) -> Output {
    let key = format!("v/c/{n}");
    run(&mut plain(&[&["cat", repository.to_str().unwrap(), &key], words].concat()))
}
