//! `icechunkfs refs`: lists branches and tags with their snapshot ids.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;

use super::args::RefsArgs;
use super::{open, print, print_json};
use crate::error::Result;
use crate::format::ids::ObjectId;
use crate::printable;

#[derive(Serialize)]
struct Listing {
    branches: BTreeMap<String, String>,
    tags: BTreeMap<String, String>,
}

/// Prints all refs.
pub fn run(arguments: &RefsArgs) -> Result<()> {
    let refs =
        open::runtime()?.block_on(async { open::repository(&arguments.repo, &arguments.store).await?.refs().await })?;
    if arguments.json {
        let spelled =
            |ids: BTreeMap<String, ObjectId>| ids.into_iter().map(|(name, id)| (name, id.to_string())).collect();
        return print_json(&Listing { branches: spelled(refs.branches), tags: spelled(refs.tags) });
    }
    let mut text = String::new();
    for (kind, ids) in [("branch", &refs.branches), ("tag", &refs.tags)] {
        for (name, id) in ids {
            // Writing into a string cannot fail.
            let _ = writeln!(text, "{id}  {kind:<6}  {}", printable::line(name));
        }
    }
    print(&text)
}
