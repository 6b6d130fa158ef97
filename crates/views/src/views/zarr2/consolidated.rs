//! The document `.zmetadata`, which has the documents of all nodes, and the report.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use tracing::warn;

use super::catalog::{Catalog, MAX_PATH, NodeForm};
use super::document::ArrayDocuments;
use crate::views::DOCUMENT_OF_MANY;
use crate::views::report::{self, Finding, Report};
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::Result;
use icechunkfs_base::memory;

/// Most bytes of `.zmetadata`: a few hundred thousand arrays. Programs hold several times as many
/// in memory.
const MAX_BYTES: usize = 512 << 20;
/// Bytes that are reserved at a time.
const STEP: usize = 1 << 20;
/// Arrays whose chunks are counted at a time.
const CONCURRENT_COUNTS: usize = 16;
/// Most findings in the report.
const MAX_FINDINGS: usize = 10_000;

/// Makes `.zmetadata`; none if it would be too large.
pub(super) async fn make(catalog: &Arc<Catalog>) -> Result<Option<Bytes>> {
    let arrays = {
        let catalog = Arc::clone(catalog);
        blocking(move || {
            let mut arrays = Vec::new();
            catalog.walk(|node, form| {
                if matches!(form, Some(NodeForm::Array { .. })) {
                    let documents = catalog.reason(node)?.ok().flatten();
                    arrays.extend(documents.filter(ArrayDocuments::depends_on_chunks).map(|_| node));
                }
                Ok(())
            })?;
            Ok(arrays)
        })
        .await?
    };
    let counts = stream::iter(arrays.into_iter().map(|node| {
        let catalog = Arc::clone(catalog);
        async move { catalog.count(node).await }
    }));
    counts.buffer_unordered(CONCURRENT_COUNTS).try_collect::<()>().await?;
    // The semaphore is never closed.
    let _only = DOCUMENT_OF_MANY.acquire().await;
    let catalog = Arc::clone(catalog);
    blocking(move || write(&catalog)).await
}

fn write(catalog: &Catalog) -> Result<Option<Bytes>> {
    const WHAT: &str = "the document .zmetadata";
    let mut text = String::from(r#"{"zarr_consolidated_format":1,"metadata":{"#);
    let mut held = memory::reserve_blocking(STEP as u64, WHAT)?;
    let mut is_too_large = false;
    catalog.walk(|node, form| {
        let Some(form) = form.filter(|_| !is_too_large) else { return Ok(()) };
        catalog.append_documents(node, form, &mut text)?;
        is_too_large = text.len() > MAX_BYTES;
        // A string grows by doubling.
        if text.capacity() as u64 > held.bytes() {
            held.resize(text.capacity().next_multiple_of(STEP) as u64, WHAT)?;
        }
        Ok(())
    })?;
    if is_too_large {
        warn!("the view zarr2 has no .zmetadata: it would have more than {MAX_BYTES} bytes");
        return Ok(None);
    }
    text += "}}";
    text.shrink_to_fit();
    held.resize(text.len() as u64, WHAT)?;
    Ok(Some(memory::with_reservation(text.into(), held)))
}

/// Makes the report of the nodes and attributes that the view leaves out.
pub(super) async fn report(catalog: &Arc<Catalog>) -> Result<Report> {
    let catalog = Arc::clone(catalog);
    blocking(move || {
        let mut findings = Vec::new();
        let mut more = 0_u64;
        let mut add = |mut path: String, deed: &str, reason: String| {
            if findings.len() < MAX_FINDINGS {
                path.truncate(path.floor_char_boundary(MAX_PATH));
                findings.push(Finding { path, deed: deed.to_owned(), reason });
            } else {
                more += 1;
            }
        };
        let tree = catalog.tree();
        let table = catalog.tree().table();
        for Finding { path, deed, reason } in report::nodes_with_long_names(tree) {
            add(path, &deed, reason);
        }
        catalog.walk(|node, form| {
            let path = || format!("/{}", table.path(node));
            let changed = match form {
                None => {
                    let reason = catalog.reason(node)?.err().unwrap_or_default();
                    add(path(), "left out", reason);
                    for below in table.subtree(node).skip(1).filter(|below| table.is_stored(*below)) {
                        add(format!("/{}", table.path(below)), "left out", "a node above it is left out".to_owned());
                    }
                    return Ok(());
                }
                Some(NodeForm::Array { has_checksum }) => {
                    if has_checksum {
                        add(path(), "checksum trimmed", "codec `crc32c`: programs cannot check its chunks".to_owned());
                    }
                    let documents = catalog.reason(node)?.ok().flatten();
                    if documents.as_ref().is_some_and(|documents| documents.has_lost_names) {
                        let reason = "only some dimensions have a name, and programs take a name for each or none";
                        add(path(), "dimension names left out", reason.to_owned());
                    }
                    documents.map(|documents| documents.changed).unwrap_or_default()
                }
                Some(NodeForm::Group) => match catalog.group(node)? {
                    None => Vec::new(),
                    Some(Ok(group)) => group.changed,
                    Some(Err(reason)) => {
                        add(path(), "attributes left out", reason);
                        Vec::new()
                    }
                },
            };
            for (name, reason) in changed {
                let name = icechunkfs_format::zarr::members::shorten(&name);
                add(path(), "attribute left out", format!("`{name}`: {reason}"));
            }
            Ok(())
        })?;
        if more > 0 {
            findings.push(Finding {
                path: "/".to_owned(),
                deed: "more".to_owned(),
                reason: format!("{more} findings"),
            });
        }
        Ok(Report::new("zarr2", &findings))
    })
    .await
}
