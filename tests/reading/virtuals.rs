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

use crate::common::moto::plain;
use crate::common::{Output, run};

/// Runs `icechunkfs cat` of chunk `n`.
fn cat(repository: &Path, n: usize, words: &[&str]) -> Output {
    let key = format!("v/c/{n}");
    run(&mut plain(&[&["cat", repository.to_str().unwrap(), &key], words].concat()))
}
