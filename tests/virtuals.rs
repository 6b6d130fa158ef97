//! Virtual chunks: read where the user allows it, and nowhere else. Over real files and servers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;
#[path = "common/lab.rs"]
mod lab;
#[path = "common/moto.rs"]
mod moto;
#[path = "common/shard.rs"]
mod shard;
#[path = "common/writing.rs"]
mod writing;

#[path = "virtuals/buckets.rs"]
mod buckets;
#[path = "virtuals/commands.rs"]
mod commands;
#[path = "virtuals/documents.rs"]
mod documents;
#[path = "virtuals/files.rs"]
mod files;
#[path = "virtuals/fixtures.rs"]
mod fixtures;
#[path = "virtuals/made.rs"]
mod made;
#[path = "virtuals/mounts.rs"]
mod mounts;
#[path = "virtuals/servers.rs"]
mod servers;
#[path = "virtuals/web.rs"]
mod web;

use std::path::Path;
use std::process::Command;

use common::{Output, program, run};

/// The program, with nothing of the tester's own in its environment.
fn plain(words: &[&str]) -> Command {
    let mut command = Command::new(program());
    let own = |name: &str| ["AWS_", "ICECHUNKFS_", "AZURE_", "GOOGLE_"].iter().any(|begin| name.starts_with(begin));
    for (name, _) in std::env::vars().filter(|(name, _)| own(name)) {
        command.env_remove(name);
    }
    command.env("HOME", "/nonexistent").args(words);
    command
}

/// `icechunkfs cat` of chunk `n`.
fn cat(repository: &Path, n: usize, words: &[&str]) -> Output {
    let key = format!("v/c/{n}");
    run(&mut plain(&[&["cat", repository.to_str().unwrap(), &key], words].concat()))
}
