//! Rules of one manifest, and of the arrays that refer to it.

use std::cmp::Ordering;
use std::sync::Arc;

use percent_encoding::percent_decode_str;

use super::chunks::{ChunkCheck, Reference};
use super::nodes::{ArrayUse, ManifestUse};
use super::report::Severity;
use super::virtuals::VirtualObjects;
use super::{Context, check_envelope, read, report_fault};
use crate::blocking::blocking;
use crate::error::Result;
use crate::format::MAX_FILE;
use crate::format::chunk_payload::ChunkPayload;
use crate::format::envelope::{FileType, Header, SpecVersion};
use crate::format::generated::icechunk as fb;
use crate::format::ids::{NodeId, ObjectId};
use crate::format::manifest::{ArrayRefs, Manifest};
use crate::storage::decoded::Decoded;

/// Beginning of a location that names a container instead of a URL.
const BY_NAME: &str = "vcc://";

/// Names and URL prefixes of the containers of virtual chunks.
type Containers = Vec<(String, String)>;

/// Objects that manifests refer to, and the containers that they may name.
#[derive(Clone, Debug)]
pub(super) struct Targets {
    pub(super) presence: Arc<ChunkCheck>,
    pub(super) objects: Arc<VirtualObjects>,
    pub(super) containers: Arc<Containers>,
}

/// Checks manifest `id`, which `used` refers to.
pub(super) async fn check(context: &Arc<Context>, id: ObjectId, used: &ManifestUse, targets: &Targets) -> Result<()> {
    let key = format!("manifests/{id}");
    let found = read(context, &key, MAX_FILE, |file| Manifest::decode(file, MAX_FILE)).await;
    let Decoded { value: manifest, bytes: file, .. } = match found {
        Ok(found) => found,
        Err(error) => return report_fault(context, "manifest", &key, &error),
    };
    let work = Work {
        context: Arc::clone(context),
        key,
        used: used.clone(),
        targets: targets.clone(),
        version: Header::parse(&file).map_or(SpecVersion::V2, |(header, _)| header.version),
    };
    let references = blocking(move || Ok(work.check(id, &manifest, &file))).await?;
    context.findings.count(|checked| {
        checked.manifests += 1;
        checked.chunk_references += references;
    });
    Ok(())
}

struct Work {
    context: Arc<Context>,
    key: String,
    used: ManifestUse,
    targets: Targets,
    version: SpecVersion,
}

impl Work {
    /// Returns the number of references.
    fn check(&self, id: ObjectId, manifest: &Manifest, file: &[u8]) -> u64 {
        let findings = &self.context.findings;
        check_envelope(&self.context, &self.key, file, FileType::Manifest, manifest.buffer.has_identifier());
        if manifest.id() != id {
            findings.error("id", &self.key, format!("the file states that it is manifest {}", manifest.id()));
        }
        let arrays = manifest.root().arrays();
        if !arrays.iter().is_sorted_by(|a, b| a.node_id().0 < b.node_id().0) {
            findings.warning(
                "manifest-sorted",
                &self.key,
                "the arrays are not sorted by id, or one is there twice: other clients do not find them",
            );
        }
        let total: u64 = arrays.iter().map(|array| array.refs().len() as u64).sum();
        for info in &self.used.infos {
            if info.size != file.len() as u64 {
                let why = format!(
                    "it has {} bytes, but a snapshot states {}: other clients read that many",
                    file.len(),
                    info.size
                );
                findings.error("manifest-size", &self.key, why);
            }
            if u64::from(info.chunk_refs) != total {
                let why = format!("it has {total} references, but a snapshot states {}", info.chunk_refs);
                findings.warning("manifest-count", &self.key, why);
            }
        }
        let mut present = Vec::new();
        for (node, refs) in manifest.iter_arrays() {
            present.push(node);
            self.check_array(node, &refs);
        }
        for (node, uses) in &self.used.arrays {
            if !present.contains(node)
                && let Some(one) = uses.first()
            {
                let why = format!("snapshot {} states that it has chunks here, but there are none", one.snapshot);
                findings.add(Severity::Warning, "manifest-array", &self.key, Some(&one.path), None, why);
            }
        }
        total
    }

    fn check_array(&self, node: NodeId, refs: &ArrayRefs<'_>) {
        let uses = self.used.arrays.get(&node).map(Vec::as_slice).unwrap_or_default();
        let name = uses.first().map_or_else(|| format!("node {node}").into(), |one| Arc::clone(&one.path));
        let add = |severity, rule, coords: Option<&[u32]>, why: String| {
            self.context.findings.add(severity, rule, &self.key, Some(&name), coords.map(<[u32]>::to_vec), why);
        };
        if refs.is_empty() {
            add(
                Severity::Warning,
                "manifest-empty",
                None,
                "it is listed without any chunk, which no client writes".into(),
            );
        }
        let mut last: Option<Vec<u32>> = None;
        let mut boxed: Vec<(u32, u32)> = Vec::new();
        for at in 0..refs.len() {
            let coords: Vec<u32> = refs.coords(at).iter().collect();
            match last.as_ref().map(|last| last.cmp(&coords)) {
                Some(Ordering::Equal) => {
                    let why = "it is listed twice, as release 1.1 did after the rules for splitting had changed: the first counts";
                    add(Severity::Warning, "chunk-twice", Some(&coords), why.into());
                }
                Some(Ordering::Greater) => {
                    let why = "the chunks are not sorted: searches fail";
                    add(Severity::Error, "chunks-sorted", Some(&coords), why.into());
                }
                _ => {}
            }
            if boxed.is_empty() {
                boxed = coords.iter().map(|c| (*c, c.saturating_add(1))).collect();
            }
            for (side, c) in std::iter::zip(&mut boxed, &coords) {
                *side = (side.0.min(*c), side.1.max(c.saturating_add(1)));
            }
            let is_needed = check_place(&coords, uses, &add);
            self.check_payload(refs, at, &coords, is_needed, &name, &add);
            last = Some(coords);
        }
        let is_tight = |one: &&ArrayUse| one.extents == boxed || one.extents.is_empty() || refs.is_empty();
        if let Some(loose) = uses.iter().find(|one| !is_tight(one)) {
            let why = format!("its extents are {:?}, and its chunks lie in {boxed:?}", loose.extents);
            add(Severity::Warning, "extents-tight", None, why);
        }
    }

    fn check_payload(
        &self,
        refs: &ArrayRefs<'_>,
        at: usize,
        coords: &[u32],
        is_needed: bool,
        name: &Arc<str>,
        add: &impl Fn(Severity, &'static str, Option<&[u32]>, String),
    ) {
        let stored = refs.raw(at);
        let kinds = kinds(&stored);
        if kinds > 1 {
            add(Severity::Warning, "payload", Some(coords), "it has bytes in several places at a time".into());
        }
        if stored.compressed_location().is_some() && self.version == SpecVersion::V1 {
            add(Severity::Warning, "location", Some(coords), "a compressed location in a file of version 1".into());
        }
        let payload = match refs.payload(at) {
            Ok(payload) => payload,
            Err(error) => return add(Severity::Error, "payload", Some(coords), error.to_string()),
        };
        let empty =
            || add(Severity::Warning, "zero-length", Some(coords), "it has no bytes: newer clients refuse it".into());
        let from = || Reference { manifest: self.key.clone(), path: Arc::clone(name), coords: coords.to_vec() };
        match payload {
            ChunkPayload::Inline([]) => empty(),
            ChunkPayload::Inline(_) => {}
            ChunkPayload::Native { length: 0, .. } | ChunkPayload::Virtual { length: 0, .. } => empty(),
            ChunkPayload::Native { chunk, offset, length } if is_needed => {
                self.targets.presence.require(&self.context.findings, chunk, offset.saturating_add(length), from);
            }
            ChunkPayload::Native { .. } => {}
            ChunkPayload::Virtual { location, offset, length, checksum } => {
                match offset.checked_add(length) {
                    Some(end) if is_needed => {
                        self.targets.objects.require(&self.context.findings, &location, checksum, end, from);
                    }
                    Some(_) => {}
                    None => {
                        let why = "its offset and length are beyond any file";
                        add(Severity::Error, "payload", Some(coords), why.into());
                    }
                }
                if let Some(why) = location_problem(&location, &self.targets.containers) {
                    add(Severity::Warning, "location", Some(coords), format!("`{location}`: {why}"));
                }
            }
        }
    }
}

/// Returns the number of places that a reference names for its bytes.
fn kinds(stored: &fb::ChunkRef<'_>) -> usize {
    let is_virtual = stored.location().is_some() || stored.compressed_location().is_some();
    [stored.chunk_id().is_some(), is_virtual, stored.inline().is_some()].into_iter().filter(|is| *is).count()
}

/// Checks the position of a chunk in the arrays that refer to it. Returns true if any of them has the chunk.
fn check_place(
    coords: &[u32],
    uses: &[ArrayUse],
    add: &impl Fn(Severity, &'static str, Option<&[u32]>, String),
) -> bool {
    let mut is_needed = false;
    for one in uses {
        let Some(grid) = &one.grid else {
            is_needed = true;
            continue;
        };
        if coords.len() != grid.len() {
            let why = format!(
                "it has {} coordinates in an array of {} dimensions: no client finds it",
                coords.len(),
                grid.len()
            );
            add(Severity::Warning, "chunk-rank", Some(coords), why);
            continue;
        }
        if std::iter::zip(coords, grid.iter()).any(|(c, chunks)| c >= chunks) {
            add(
                Severity::Warning,
                "chunk-grid",
                Some(coords),
                format!("it is outside the grid {grid:?}: no client finds it"),
            );
            continue;
        }
        if contains_coords(&one.extents, coords) {
            is_needed = true;
        } else if one.all.iter().any(|other| contains_coords(&other.extents, coords)) {
            let why = "it is outside the extents of this manifest and inside those of another: a leftover reference";
            add(Severity::Warning, "chunk-stale", Some(coords), why.into());
        } else {
            let why = format!(
                "it is outside the extents {:?} that snapshot {} has for this manifest: no client finds it",
                one.extents, one.snapshot
            );
            add(Severity::Error, "chunk-extents", Some(coords), why);
        }
    }
    is_needed
}

/// Returns true if a lookup of `coords` tries a manifest with these extents.
fn contains_coords(extents: &[(u32, u32)], coords: &[u32]) -> bool {
    std::iter::zip(extents, coords).all(|((from, to), c)| (from..to).contains(&c))
}

/// Returns the reason why nothing can be read from `location`, if there is one.
fn location_problem(location: &str, containers: &Containers) -> Option<String> {
    if let Some(rest) = location.strip_prefix(BY_NAME) {
        return match rest.split_once('/') {
            Some((name, key)) if !name.is_empty() && !key.is_empty() => {
                let is_known = containers.iter().any(|(known, _)| known == name);
                (!is_known).then(|| format!("the repository has no container called `{name}`"))
            }
            _ => Some("it does not name a container and something in it".into()),
        };
    }
    let url = match url::Url::parse(location) {
        Ok(url) => url,
        Err(error) => return Some(format!("it is no absolute URL: {error}")),
    };
    if url.scheme() != "file" && url.host_str().is_none_or(str::is_empty) {
        return Some("it names no bucket or host".into());
    }
    let decoded = percent_decode_str(location).decode_utf8_lossy();
    let is_contained =
        containers.iter().any(|(_, prefix)| decoded.starts_with(prefix.as_str()) || location.starts_with(prefix));
    (!is_contained).then(|| "the repository has no container for it".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_need_a_container() {
        let containers = vec![("data".to_owned(), "s3://bucket/a b/".to_owned()), ("f".into(), "file:///x/".into())];
        for good in ["s3://bucket/a%20b/c", "s3://bucket/a b/c", "file:///x/y", "vcc://data/c"] {
            assert_eq!(location_problem(good, &containers), None, "{good}");
        }
        for bad in
            ["", "x", "/x/y", "s3:///a b/c", "s3://other/c", "vcc://data", "vcc:///c", "vcc://none/c", "file:///y"]
        {
            assert!(location_problem(bad, &containers).is_some(), "{bad}");
        }
    }
}
