//! Rules of the refs of version 1, one small file each.

use std::collections::BTreeSet;

use object_store::path::PathPart;
use percent_encoding::percent_decode_str;

use super::report::Subject;
use super::{Context, report_fault};
use crate::repo::ref_files::{MAX_REF_FILE, branch_key};
use crate::repo::refs::DEFAULT_BRANCH;
use crate::repo::v1::parse_ref;
use icechunkfs_base::error::Result;
use icechunkfs_format::format::ids::ObjectId;

/// Checks all refs, and returns the snapshots that they point to.
pub(super) async fn check(context: &Context) -> Result<BTreeSet<ObjectId>> {
    let objects = context.storage.list("refs/").await?;
    let keys: BTreeSet<&str> = objects.iter().map(|object| object.key.as_str()).collect();
    let mut tips = BTreeSet::new();
    let mut has_main = false;
    for key in &keys {
        let object = context.object(key);
        let Some((folder, file)) = key.strip_prefix("refs/").and_then(|rest| rest.rsplit_once('/')) else {
            object.note("unknown", "the format does not have this name");
            continue;
        };
        let name = folder.strip_prefix("branch.").or_else(|| folder.strip_prefix("tag."));
        match (name, file) {
            (Some(name), "ref.json") => {
                check_name(object, folder, name);
                has_main |= *key == branch_key(DEFAULT_BRANCH);
                if let Some(tip) = target(context, key).await?
                    && !keys.contains(format!("{key}.deleted").as_str())
                {
                    tips.insert(tip);
                }
            }
            (Some(_), "ref.json.deleted") if folder.starts_with("tag.") => {
                if !keys.contains(key.trim_end_matches(".deleted")) {
                    object.note("tombstone", "the tag that it marks as deleted has no file");
                }
            }
            _ => object.note("unknown", "the format does not have this name"),
        }
    }
    if !has_main {
        let main = context.object("refs/branch.main/ref.json");
        main.warning("main", "there is no branch `main`: no client finds the repository");
    }
    Ok(tips)
}

/// Checks that clients find the name, which they look up only under the key that they derive from
/// it.
fn check_name(object: Subject<'_>, folder: &str, name: &str) {
    let Ok(decoded) = percent_decode_str(folder).decode_utf8() else {
        return object.warning("ref-name", format!("the name `{name}` is not UTF-8"));
    };
    if PathPart::from(&*decoded).as_ref() != folder {
        object.note("ref-name", format!("clients that encode names do not look for `{decoded}` here"));
    }
}

async fn target(context: &Context, key: &str) -> Result<Option<ObjectId>> {
    let read = context.storage.get(key, MAX_REF_FILE).await.and_then(|bytes| parse_ref(key, &bytes));
    match read {
        Ok(id) => Ok(Some(id)),
        Err(error) => report_fault(context, "ref-target", key, &error, "").map(|()| None),
    }
}
