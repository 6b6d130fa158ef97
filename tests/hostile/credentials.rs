//! Where credentials, headers and passwords go, and where nobody may see them.

mod hosts;
mod redirects;
mod secrets;
use std::process::Command;

use crate::common::program;

/// What nobody may see, and no server but the one that it is for.
const SECRET: &str = "nobody-may-see-this";

/// The program, with nothing of the tester's own in its environment.
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
