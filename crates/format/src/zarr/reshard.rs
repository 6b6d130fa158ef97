//! Documents of arrays whose chunks are shown in other units: inner chunks of shards as chunks
//! ([`unshard`]), and chunks as inner chunks of shards ([`pack`]).
//!
//! The bytes of chunks stay as they are, so only `chunk_grid` and `codecs` change; all other
//! members keep their text. An array is left as it is where the result would not have exactly the
//! same values:
//!
//! - Codecs behind the shard other than a checksum: parts of the shard do not exist before all of
//!   it is decoded.
//! - Codecs before the shard that change values. Missing inner chunks are filled before such a
//!   codec is undone, and missing chunks after it. `transpose` moves elements: inner chunks then
//!   have permuted coordinates, and the codec moves into the chunk.

use super::array::{self, ArrayMetadata};
use super::document;
use super::members::{Members, list, quoted, shorten, string};
use super::shard::{MAX_INNER, ShardLayout};
use icechunkfs_base::error::Error;
use icechunkfs_base::memory::Meter;

/// Most elements of a chunk: programs count them in 63 bits.
const MAX_ELEMENTS: u64 = i64::MAX as u64;

/// Array whose chunks are the inner chunks of its stored shards.
#[derive(Debug)]
pub struct Unsharded {
    /// The array's document.
    pub zarr_json: String,
    /// Shards, the outermost first.
    pub levels: Vec<Level>,
    /// Guarantees of the shards that the chunks do not have.
    pub losses: Vec<String>,
}

/// One level of shards.
#[derive(Debug, PartialEq, Eq)]
pub struct Level {
    /// Layout of a shard.
    pub layout: ShardLayout,
    /// Dimension of the array for each dimension of the layout.
    pub axes: Box<[usize]>,
}

/// Array whose chunks are shards of its stored chunks.
#[derive(Debug)]
pub struct Packed {
    /// The array's document.
    pub zarr_json: String,
    /// Stored chunks per dimension of a shard.
    pub per_shard: Box<[u64]>,
}

/// Returns the form in which `zarr_json`, an array's, has the inner chunks of its shards as chunks;
/// none if it has no shards. Fails with the reason if the result would not be exactly the same.
/// Works on the reservation `room` ([`document::reserve_members`]).
pub fn unshard(zarr_json: &[u8], room: &mut Meter) -> Result<Option<Unsharded>, String> {
    if !ShardLayout::may_be_in(zarr_json) {
        return Ok(None);
    }
    let members = parse(zarr_json)?;
    let codecs = members.get("codecs").and_then(list).unwrap_or_default();
    let has_transformer = has_transformers(&members);
    if !has_transformer && !codecs.iter().any(|codec| is_sharding(codec)) {
        return Ok(None);
    }
    let outermost = ShardLayout::parse(zarr_json, room).map_err(reason)?;
    let Some(outermost) = outermost else { return Err(why_no_layout(&members, &codecs, room)) };
    let mut peeled = Peeled::new(codecs, outermost.grid.len());
    let mut layout = Some(outermost);
    if has_transformer {
        let text = members.get("storage_transformers").unwrap_or("null");
        let indexed = array::chunks_per_shard(&document::value(Some(text), room)).map_err(reason)?;
        if indexed.is_none() || list(text).is_none_or(|all| all.len() != 1) {
            return Err("it has other storage transformers".to_owned());
        }
        layout = layout.and_then(|transformer| peeled.add(transformer));
    }
    while let Some(level) = layout.take() {
        match peeled.peel(level, room) {
            Ok(next) => layout = next,
            Err(reason) if peeled.levels.is_empty() => return Err(reason),
            Err(reason) => peeled.losses.push(format!("its inner chunks are shown as shards: {reason}")),
        }
    }
    peeled.finish(&members, room).map(Some)
}

/// Levels of shards that were taken off, and the codecs of what is within.
struct Peeled<'a> {
    levels: Vec<Level>,
    /// Codecs before the shards.
    before: Vec<&'a str>,
    /// Codecs of the innermost chunks.
    codecs: Vec<&'a str>,
    axes: Vec<usize>,
    /// Shape of the innermost chunks, in the order of `axes`.
    shape: Vec<u64>,
    losses: Vec<String>,
}

impl<'a> Peeled<'a> {
    fn new(codecs: Vec<&'a str>, rank: usize) -> Self {
        let levels = Vec::new();
        let before = Vec::new();
        let losses = Vec::new();
        Peeled { levels, before, codecs, axes: (0..rank).collect(), shape: Vec::new(), losses }
    }

    /// Adds a level. Returns the layout of its inner chunks, if they are shards.
    fn add(&mut self, mut layout: ShardLayout) -> Option<ShardLayout> {
        let inner = layout.inner.take();
        self.shape.clone_from(&layout.inner_shape);
        self.levels.push(Level { layout, axes: self.axes.as_slice().into() });
        inner.map(|inner| *inner)
    }

    /// Takes the shard with `layout` off the codecs. Returns the layout of its inner chunks, if
    /// they are shards.
    fn peel(&mut self, layout: ShardLayout, room: &mut Meter) -> Result<Option<ShardLayout>, String> {
        let at = self.codecs.iter().position(|codec| is_sharding(codec)).ok_or("its codecs have no shards")?;
        let (before, rest) = self.codecs.split_at(at);
        let mut axes = self.axes.clone();
        for codec in before {
            let name = name_of(codec).unwrap_or_default();
            match name.as_str() {
                "transpose" => axes = permuted(&axes, codec, room)?,
                // Decoding changes no value.
                "bitround" | "numcodecs.bitround" => {}
                _ => return Err(format!("codec `{}` before its shards", shorten(&name))),
            }
        }
        let (sharding, behind) = rest.split_first().ok_or("its codecs have no shards")?;
        let configuration = configuration_of(sharding).ok_or("sharding_indexed without a configuration")?;
        let inner = configuration.get("codecs").and_then(list).ok_or("sharding_indexed without codecs")?;
        if !behind.is_empty() {
            self.losses.push("checksum of all of a shard left out".to_owned());
        }
        self.before.extend(before);
        (self.axes, self.codecs) = (axes, inner);
        let next = self.add(layout);
        if next.is_none() && self.codecs.iter().any(|codec| is_sharding(codec)) {
            self.losses.push(format!("its inner chunks are shown as shards: {}", compressed(&self.codecs)));
        }
        Ok(next)
    }

    fn finish(self, members: &Members<'_>, room: &mut Meter) -> Result<Unsharded, String> {
        let mut shape = self.shape.clone();
        for (axis, length) in std::iter::zip(&self.axes, &self.shape) {
            *shape.get_mut(*axis).ok_or("a transpose codec with another number of dimensions")? = *length;
        }
        let codecs: Vec<&str> = self.before.iter().chain(&self.codecs).copied().collect();
        let replaced = [("chunk_grid", regular_grid(&shape)), ("codecs", format!("[{}]", codecs.join(",")))];
        let zarr_json = rewrite(members, &replaced, &["storage_transformers"]);
        check_grid(&zarr_json, room)?;
        Ok(Unsharded { zarr_json, levels: self.levels, losses: self.losses })
    }
}

/// Returns the form in which `zarr_json`, an array's, has shards of `wanted` chunks per dimension.
/// For an array of another rank, the last numbers count; missing ones are 1. Fails with the reason
/// if the array cannot have them. Works on the reservation `room` ([`document::reserve_members`]).
pub fn pack(zarr_json: &[u8], wanted: &[u64], room: &mut Meter) -> Result<Packed, String> {
    let members = parse(zarr_json)?;
    if has_transformers(&members) {
        return Err("it has storage transformers".to_owned());
    }
    let codecs = members.get("codecs").filter(|codecs| list(codecs).is_some_and(|codecs| !codecs.is_empty()));
    let codecs = codecs.ok_or("it has no codecs")?;
    if list(codecs).into_iter().flatten().any(is_sharding) {
        return Err("its chunks are shards already".to_owned());
    }
    let data_type = members.get("data_type").and_then(name_of).unwrap_or_default();
    if is_record(&data_type) {
        return Err(format!("zarr-python does not read shards of the data type `{}`", shorten(&data_type)));
    }
    let grid = document::value(members.get("chunk_grid"), room);
    let chunk = array::regular_chunk(&grid).ok_or("its chunk grid is not regular")?;
    if chunk.is_empty() {
        return Err("it has no dimensions".to_owned());
    }
    if chunk.contains(&0) {
        return Err("its chunks have no elements".to_owned());
    }
    let missing = chunk.len().saturating_sub(wanted.len());
    let last = wanted.iter().skip(wanted.len().saturating_sub(chunk.len()));
    let per_shard: Box<[u64]> = std::iter::repeat_n(&1, missing).chain(last).copied().collect();
    let count = per_shard.iter().try_fold(1_u64, |count, length| count.checked_mul(*length));
    if count.is_none_or(|count| count > MAX_INNER) {
        return Err(format!("a shard would have more than {MAX_INNER} chunks"));
    }
    let shape: Option<Vec<u64>> =
        std::iter::zip(&chunk, &per_shard).map(|(length, count)| length.checked_mul(*count)).collect();
    let elements = |shape: &Vec<u64>| shape.iter().try_fold(1_u64, |count, length| count.checked_mul(*length));
    let shape = shape.filter(|shape| elements(shape).is_some_and(|count| count <= MAX_ELEMENTS));
    let shape = shape.ok_or("a shard would have more elements than programs can count")?;
    let sharding = format!(
        "[{{\"name\":\"sharding_indexed\",\"configuration\":{{\"chunk_shape\":{},\"codecs\":{codecs},\"index_codecs\":\
         [{{\"name\":\"bytes\",\"configuration\":{{\"endian\":\"little\"}}}},{{\"name\":\"crc32c\"}}],\
         \"index_location\":\"end\"}}}}]",
        numbers(&chunk)
    );
    let zarr_json = rewrite(&members, &[("chunk_grid", regular_grid(&shape)), ("codecs", sharding)], &[]);
    check_grid(&zarr_json, room)?;
    Ok(Packed { zarr_json, per_shard })
}

/// Returns the document of a group without consolidated metadata, which describes arrays as stored;
/// none if it has none. The caller has reserved the memory ([`document::reserve_members`]).
pub fn without_consolidated(zarr_json: &[u8]) -> Option<String> {
    const MEMBER: &str = "consolidated_metadata";
    // Escaped names are missed; no program writes them.
    let text = std::str::from_utf8(zarr_json).ok().filter(|text| text.contains(MEMBER))?;
    let members = Members::parse(text).ok()?;
    members.get(MEMBER)?;
    Some(rewrite(&members, &[], &[MEMBER]))
}

/// Returns the text of an object with the values of some members replaced and others left out.
pub fn rewrite(members: &Members<'_>, replaced: &[(&str, String)], left_out: &[&str]) -> String {
    let mut text = String::from("{");
    let mut add = |name: &str, value: &str| {
        text.push_str(if text.len() > 1 { "," } else { "" });
        text += &quoted(name);
        text.push(':');
        text += value;
    };
    for (name, value) in members.iter() {
        if !left_out.contains(&name) && !replaced.iter().any(|(other, _)| *other == name) {
            add(name, value);
        }
    }
    replaced.iter().for_each(|(name, value)| add(name, value));
    text.push('}');
    text
}

fn reason(error: Error) -> String {
    shorten(&error.to_string())
}

fn parse(zarr_json: &[u8]) -> Result<Members<'_>, String> {
    let wrong = |why: String| format!("its zarr.json cannot be read: {}", shorten(&why));
    Members::parse(std::str::from_utf8(zarr_json).map_err(|error| wrong(error.to_string()))?).map_err(wrong)
}

/// Returns true if the document has storage transformers, known ones or not.
fn has_transformers(members: &Members<'_>) -> bool {
    let transformers = members.get("storage_transformers").filter(|text| *text != "null");
    transformers.is_some_and(|text| list(text).is_none_or(|transformers| !transformers.is_empty()))
}

/// Checks that chunks of the array in `zarr_json` can be numbered.
fn check_grid(zarr_json: &str, room: &mut Meter) -> Result<(), String> {
    ArrayMetadata::parse_reserved(zarr_json.as_bytes(), room).map(drop).map_err(reason)
}

fn name_of(codec: &str) -> Option<String> {
    string(codec).or_else(|| Members::parse(codec).ok()?.get("name").and_then(string))
}

/// Returns true for data types with fill values that zarr-python before 3.2 cannot hash, which it
/// does for arrays with shards. `struct` is a type of later versions, which can.
fn is_record(data_type: &str) -> bool {
    let is_raw = |bits: &str| bits.parse::<u64>().is_ok();
    matches!(data_type, "raw_bytes" | "structured") || data_type.strip_prefix('r').is_some_and(is_raw)
}

fn is_sharding(codec: &str) -> bool {
    name_of(codec).as_deref() == Some("sharding_indexed")
}

fn configuration_of(codec: &str) -> Option<Members<'_>> {
    Members::parse(Members::parse(codec).ok()?.get("configuration")?).ok()
}

/// Returns `axes` in the order that the codec `transpose` gives them.
fn permuted(axes: &[usize], transpose: &str, room: &mut Meter) -> Result<Vec<usize>, String> {
    let codec = document::value(Some(transpose), room);
    let order = document::numbers(document::setting(&codec, "order"));
    let order = order.filter(|order| order.len() == axes.len()).ok_or("codec `transpose` without an order")?;
    let axes: Option<Vec<usize>> =
        order.into_iter().map(|axis| axes.get(usize::try_from(axis).ok()?).copied()).collect();
    axes.ok_or_else(|| "codec `transpose` without an order".to_owned())
}

/// Returns the reason why an array with shards has no layout of them.
fn why_no_layout(members: &Members<'_>, codecs: &[&str], room: &mut Meter) -> String {
    let grid = document::value(members.get("chunk_grid"), room);
    match array::regular_chunk(&grid) {
        None => "its chunk grid is not regular".to_owned(),
        Some(_) => compressed(codecs),
    }
}

/// Returns the reason why inner chunks cannot be read, with the codec behind the shard.
fn compressed(codecs: &[&str]) -> String {
    let behind = codecs.iter().skip_while(|codec| !is_sharding(codec)).skip(1);
    let name = behind.map(|codec| name_of(codec).unwrap_or_default()).find(|name| name != "crc32c");
    format!("codec `{}` behind its shards encodes them as a whole", shorten(&name.unwrap_or_default()))
}

fn regular_grid(shape: &[u64]) -> String {
    format!("{{\"name\":\"regular\",\"configuration\":{{\"chunk_shape\":{}}}}}", numbers(shape))
}

fn numbers(numbers: &[u64]) -> String {
    let numbers: Vec<String> = numbers.iter().map(u64::to_string).collect();
    format!("[{}]", numbers.join(","))
}

#[cfg(test)]
#[path = "reshard_tests.rs"]
mod tests;
