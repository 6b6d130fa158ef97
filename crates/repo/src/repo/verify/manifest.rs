//! Rules of one manifest, and of the arrays that refer to it.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::sync::Arc;

use percent_encoding::percent_decode_str;

use super::chunks::ChunkCheck;
use super::nodes::{ArrayUse, ManifestUse};
use super::report::Subject;
use super::required::Reference;
use super::virtuals::VirtualObjects;
use super::{Context, check_envelope, read, report_fault};
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::Result;
use icechunkfs_format::format::MAX_FILE;
use icechunkfs_format::format::chunk_payload::ChunkPayload;
use icechunkfs_format::format::envelope::{FileType, Header, SpecVersion};
use icechunkfs_format::format::ids::{NodeId, ObjectId};
use icechunkfs_format::format::manifest::{ArrayRefs, Manifest};
use icechunkfs_format::zarr::is_in_grid;
use icechunkfs_store::storage::decoded::Decoded;

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
        Err(error) => return report_fault(context, "manifest", &key, &error, &used.needed_by()),
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
        let object = self.context.object(&self.key);
        check_envelope(&self.context, &self.key, file, FileType::Manifest, manifest.has_identifier());
        if manifest.id() != id {
            object.error("id", format!("the file states that it is manifest {}", manifest.id()));
        }
        let arrays = manifest.root().arrays();
        if !arrays.iter().is_sorted_by(|a, b| a.node_id().0 < b.node_id().0) {
            let why = "the arrays are not sorted by id, or contain a duplicate: other clients do not find them";
            object.warning("manifest-sorted", why);
        }
        let total: u64 = arrays.iter().map(|array| array.refs().len() as u64).sum();
        for info in &self.used.infos {
            if info.size != file.len() as u64 {
                let bytes = file.len();
                let stated = info.size;
                let why = format!("it has {bytes} bytes, but a snapshot states {stated}: other clients read that many");
                object.error("manifest-size", why);
            }
            if u64::from(info.chunk_refs) != total {
                let why = format!("it has {total} references, but a snapshot states {}", info.chunk_refs);
                object.warning("manifest-count", why);
            }
        }
        let mut present = HashSet::new();
        for (node, refs) in manifest.iter_arrays() {
            present.insert(node);
            self.check_array(node, &refs);
        }
        for (node, uses) in &self.used.arrays {
            if !present.contains(node)
                && let Some(one) = uses.first()
            {
                let why = format!("snapshot {} states that it has chunks here, but there are none", one.snapshot);
                object.node(&one.path).warning("manifest-array", why);
            }
        }
        total
    }

    fn check_array(&self, node: NodeId, refs: &ArrayRefs<'_>) {
        let uses = self.used.arrays.get(&node).map(Vec::as_slice).unwrap_or_default();
        let name = uses.first().map_or_else(|| format!("node {node}").into(), |one| Arc::clone(&one.path));
        let object = self.context.object(&self.key).node(&name);
        if refs.is_empty() {
            object.warning("manifest-empty", "it is listed without any chunk, which no client writes");
        }
        let mut last: Option<Vec<u32>> = None;
        let mut boxed: Vec<(u32, u32)> = Vec::new();
        for at in 0..refs.len() {
            let coords: Vec<u32> = refs.coords(at).iter().collect();
            let chunk = object.chunk(&coords);
            match last.as_ref().map(|last| last.cmp(&coords)) {
                Some(Ordering::Equal) => {
                    let why = "it is listed twice, as release 1.1 did after the rules for splitting had changed: the first counts";
                    chunk.warning("chunk-twice", why);
                }
                Some(Ordering::Greater) => chunk.error("chunks-sorted", "the chunks are not sorted: searches fail"),
                _ => {}
            }
            if boxed.is_empty() {
                boxed = coords.iter().map(|c| (*c, c.saturating_add(1))).collect();
            }
            for (side, c) in std::iter::zip(&mut boxed, &coords) {
                *side = (side.0.min(*c), side.1.max(c.saturating_add(1)));
            }
            let is_needed = check_place(chunk, &coords, uses);
            if let Some(why) = length_problem(uses, refs.length(at)).filter(|_| is_needed) {
                chunk.warning("chunk-length", why);
            }
            let from = || Reference { manifest: self.key.clone(), path: Arc::clone(&name), coords: coords.clone() };
            self.check_payload(chunk, refs, at, is_needed, from);
            last = Some(coords);
        }
        let is_tight =
            |one: &&ArrayUse| one.manifest.extents == boxed || one.manifest.extents.is_empty() || refs.is_empty();
        if let Some(loose) = uses.iter().find(|one| !is_tight(one)) {
            let why = format!("its extents are {:?}, and its chunks lie in {boxed:?}", loose.manifest.extents);
            object.warning("extents-tight", why);
        }
    }

    fn check_payload(
        &self,
        object: Subject<'_>,
        refs: &ArrayRefs<'_>,
        at: usize,
        is_needed: bool,
        from: impl FnOnce() -> Reference,
    ) {
        let stored = refs.raw(at);
        let is_virtual = stored.location().is_some() || stored.compressed_location().is_some();
        let kinds = [stored.chunk_id().is_some(), is_virtual, stored.inline().is_some()];
        if kinds.into_iter().filter(|is| *is).count() > 1 {
            object.warning("payload", "it has bytes in several places at a time");
        }
        if stored.compressed_location().is_some() && self.version == SpecVersion::V1 {
            object.warning("location", "a compressed location in a file of version 1");
        }
        let payload = match refs.payload(at) {
            Ok(payload) => payload,
            Err(error) => return object.error("payload", error.to_string()),
        };
        if payload.length() == 0 {
            object.warning("zero-length", "it has no bytes: newer clients refuse it");
        }
        match payload {
            ChunkPayload::Native { chunk, offset, length } if is_needed && length > 0 => {
                self.targets.presence.require(&self.context, chunk, offset.saturating_add(length), from);
            }
            ChunkPayload::Virtual { location, offset, length, checksum } if length > 0 => {
                match offset.checked_add(length) {
                    Some(end) if is_needed => {
                        self.targets.objects.require(&self.context, &location, checksum, end, from);
                    }
                    Some(_) => {}
                    None => object.error("payload", "its offset and length are beyond any file"),
                }
                if let Some(why) = location_problem(&location, &self.targets.containers) {
                    object.warning("location", format!("`{location}`: {why}"));
                }
            }
            _ => {}
        }
    }
}

/// Returns the reason why a chunk of `length` bytes is right in none of the arrays that refer to
/// it, if there is one.
fn length_problem(uses: &[ArrayUse], length: u64) -> Option<String> {
    let mut problems = uses.iter().map(|one| one.rules?.length_problem(length));
    let first = problems.next()??;
    (length > 0 && problems.all(|problem| problem.is_some())).then_some(first)
}

/// Checks the position of a chunk in the arrays that refer to it. Returns true if any of them has
/// the chunk.
fn check_place(object: Subject<'_>, coords: &[u32], uses: &[ArrayUse]) -> bool {
    let mut is_needed = false;
    for one in uses {
        let Some(grid) = &one.grid else {
            is_needed = true;
            continue;
        };
        if coords.len() != grid.len() {
            let has = coords.len();
            let rank = grid.len();
            let why = format!("it has {has} coordinates in an array of {rank} dimensions: no client finds it");
            object.warning("chunk-rank", why);
        } else if !is_in_grid(coords, grid) {
            object.warning("chunk-grid", format!("it is outside the grid {grid:?}: no client finds it"));
        } else if one.manifest.covers(coords) {
            is_needed = true;
        } else if one.all.iter().any(|other| other.covers(coords)) {
            let why = "it is outside the extents of this manifest and inside those of another: a leftover reference";
            object.warning("chunk-stale", why);
        } else {
            let why = format!(
                "it is outside the extents {:?} that snapshot {} has for this manifest: no client finds it",
                one.manifest.extents, one.snapshot
            );
            object.error("chunk-extents", why);
        }
    }
    is_needed
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
        Err(error) => return Some(format!("it is not an absolute URL: {error}")),
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
