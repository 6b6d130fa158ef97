//! Destinations of credentials, headers and passwords, and places where they must not appear.

mod hosts;
mod redirects;
mod secrets;
use std::process::Command;

use crate::common::program;

/// A secret that must appear nowhere, except at the server that it is for.
const SECRET: &str = "nobody-may-see-this";

/// Returns the program with an empty environment.
fn plain(words: &[&str]) -> Command {
    let mut command = Command::new(program());
    let own = |name: &str| {
        let name = name.to_uppercase();
        ["AWS_", "ICECHUNKFS_", "AZURE_", "GOOGLE_", "STORAGE_"].iter().any(|begin| name.starts_with(begin))
            || name.ends_with("_PROXY")
    };
    for (name, _) in std::env::vars().filter(|(name, _)| own(name)) {
        command.env_remove(name);
    }
    command.env("HOME", "/nonexistent").args(words);
    command
}
