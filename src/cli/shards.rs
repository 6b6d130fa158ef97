//! `icechunkfs ls --shards`: lists the inner chunks of shards, as their indexes have them.
//!
//! Only indexes are read. Each inner chunk is one line, written when it is found: a shard may have
//! a million of them, and be made of shards again. Invalid entries are not followed, so that a
//! hostile index does not lead in circles.

use std::ops::Range;
use std::sync::Arc;

use bytes::BytesMut;
use serde_json::json;

use super::ls::{self, LsArgs};
use super::{open, print, print_raw};
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::memory::Meter;
use icechunkfs_base::printable;
use icechunkfs_format::zarr::Coords;
use icechunkfs_format::zarr::document;
use icechunkfs_format::zarr::shard::{FaultKind, Index, IndexFault, IndexLocation, ShardLayout};
use icechunkfs_tree::inodes::Ino;
use icechunkfs_tree::tree::array::Array;
use icechunkfs_tree::tree::chunks::Chunks;
use icechunkfs_tree::tree::nodes::{NodeIndex, TreePlace};
use icechunkfs_tree::tree::{Kind, Tree};

/// Bytes per read.
const STEP: u64 = 1 << 20;
/// Shards per lookup.
const PAGE: usize = 1000;
/// Bytes of output per write.
const BUFFER: usize = 64 << 10;

/// Output, and the faults found so far.
struct Output {
    json: bool,
    text: String,
    /// Number of entries in the outermost list so far.
    shards: u64,
    first: Option<Error>,
    faults: u64,
}

/// A shard, or an inner chunk that is one.
struct Shard<'a> {
    tree: &'a Arc<Tree>,
    /// Inode of the file.
    inode: Ino,
    /// Path for messages.
    path: &'a str,
    sharding: &'a ShardLayout,
    /// Range in the file.
    place: Range<u64>,
    depth: usize,
}

/// Prints the shards of an array, of all arrays in a group, or of one chunk.
pub(super) fn run(arguments: &LsArgs) -> Result<()> {
    let spec = arguments.reference.spec()?;
    let mut output = Output { json: arguments.json, text: String::new(), shards: 0, first: None, faults: 0 };
    open::run(async {
        let repository = arguments.repo.open_with(&arguments.virtuals).await?;
        let tree = open::tree(&repository, &spec, open::MemoryLimits::default()).await?;
        let found = tree.resolve(&arguments.path).await?;
        match tree.table().place(found.inode) {
            Some(TreePlace::Chunk(node, coords)) if found.kind == Kind::File => {
                let (array, sharding) = sharded(&tree, node)?;
                output.shard(&tree, node, array, &sharding, &coords, found.size).await
            }
            Some(TreePlace::Directory(node)) => {
                let alone = tree.table().array(node).is_some() && !arguments.recursive;
                let nodes = if alone { vec![node] } else { ls::nodes(&tree, node, arguments.recursive) };
                for node in nodes {
                    match sharded(&tree, node) {
                        Ok((array, sharding)) => output.array(&tree, node, array, &sharding).await?,
                        Err(error) if alone => return Err(error),
                        // Most nodes of a group have no shards.
                        Err(_) => {}
                    }
                }
                Ok(())
            }
            _ => {
                let message = format!("`{}` is not a group, array or chunk", arguments.path);
                Err(Error::new(ErrorKind::InvalidInput, message))
            }
        }
    })?;
    output.end()
}

/// Returns the array at `node` and the layout of its shards. Fails with the reason if it has none.
fn sharded(tree: &Tree, node: NodeIndex) -> Result<(&Array, ShardLayout)> {
    let place = || format!("/{}", tree.table().path(node));
    let Some(array) = tree.table().array(node) else {
        return Err(Error::new(ErrorKind::InvalidInput, format!("{} is not an array", place())));
    };
    let zarr_json = tree.zarr_json(node).unwrap_or_default();
    let mut room = document::reserve(zarr_json).context(place)?;
    let sharding = ShardLayout::parse(zarr_json, &mut room).context(place)?;
    let none = || {
        let message = format!("{}: its chunks are not shards that can be read in parts", place());
        Error::new(ErrorKind::InvalidInput, message)
    };
    Ok((array, sharding.ok_or_else(none)?))
}

impl Output {
    async fn array(&mut self, tree: &Arc<Tree>, node: NodeIndex, array: &Array, sharding: &ShardLayout) -> Result<()> {
        let chunks = Chunks::new(array, tree.table(), tree.reader());
        let rank = array.grid.len();
        let mut after: Option<Coords> = None;
        loop {
            let page = chunks.page(&[], rank, after.as_deref(), PAGE).await?;
            for (coords, size) in &page {
                self.shard(tree, node, array, sharding, coords, *size).await?;
            }
            match page.last() {
                // An array without dimensions has one chunk.
                Some((last, _)) if page.len() == PAGE && rank > 0 => after = Some(last.clone()),
                _ => return Ok(()),
            }
        }
    }

    async fn shard(
        &mut self,
        tree: &Arc<Tree>,
        node: NodeIndex,
        array: &Array,
        sharding: &ShardLayout,
        coords: &[u32],
        size: u64,
    ) -> Result<()> {
        let path = format!("/{}/{}", tree.table().path(node), array.encoding.key(coords)).replace("//", "/");
        let inode = tree.table().inode(&TreePlace::Chunk(node, Coords::from_slice(coords)));
        if self.json {
            self.text.push_str(if self.shards == 0 { "[\n" } else { ",\n" });
            self.text += &format!("{{\"path\": {}, ", json!(path));
        } else {
            self.text.push_str(&path);
        }
        self.shards += 1;
        let shard = Shard { tree, inode, path: &path, sharding, place: 0..size, depth: 0 };
        self.contents(&shard).await?;
        self.flush(false)
    }

    /// Writes everything about a shard after its name.
    async fn contents(&mut self, shard: &Shard<'_>) -> Result<()> {
        let sharding = shard.sharding;
        let length = shard.place.end - shard.place.start;
        let index = match sharding.index_range(length) {
            None => Err(Error::corrupt(format!(
                "{} at offset {}: no room for an index of {} bytes in {length}",
                shard.path,
                shard.place.start,
                sharding.index_length()
            ))),
            Some(place) => {
                let from = shard.place.start.saturating_add(place.start);
                let bytes = shard.read(from..from.saturating_add(place.end - place.start)).await?;
                Index::decode(sharding, length, bytes.freeze())
                    .context(|| format!("{} at offset {}", shard.path, shard.place.start))
            }
        };
        let checksum = match &index {
            Ok(_) if sharding.checksum => "right",
            Ok(_) => "none",
            Err(_) => "wrong",
        };
        self.head(shard, checksum);
        let index = match index {
            Ok(index) => index,
            Err(error) => {
                return self.tail(shard, [error]);
            }
        };
        let mut meter = Meter::new("the faults of a shard");
        let faults = index.faults(&mut meter).context(|| shard.path.to_owned())?;
        let is_faulty = |number: u64| faults.binary_search_by_key(&number, |fault| fault.number).is_ok();
        let mut is_first = true;
        for number in 0..index.entry_count() {
            let Some((offset, bytes)) = index.entry(number) else { continue };
            let place = index
                .range(number)
                .filter(|_| !is_faulty(number))
                .map(|place| shard.place.start + place.start..shard.place.start + place.end);
            self.inner(shard, number, shard.place.start.checked_add(offset).unwrap_or(offset), bytes, is_first);
            is_first = false;
            match (sharding.inner.as_deref(), place) {
                (Some(inner), Some(place)) => {
                    if self.json {
                        self.text.push_str(", ");
                    }
                    let inner = Shard { sharding: inner, place, depth: shard.depth + 1, ..*shard };
                    Box::pin(self.contents(&inner)).await?;
                }
                _ => self.text.push_str(if self.json { "}" } else { "\n" }),
            }
            self.flush(false)?;
        }
        self.tail(shard, faults.iter().map(|fault| shard.describe(fault)))
    }

    fn head(&mut self, shard: &Shard<'_>, checksum: &str) {
        let Shard { sharding, place, .. } = shard;
        let length = place.end - place.start;
        let index = sharding.index_range(length);
        let offset = index.map(|index| place.start + index.start);
        let location = if sharding.location == IndexLocation::Start { "start" } else { "end" };
        let order = if sharding.big_endian { "big" } else { "little" };
        if self.json {
            let index = json!({"offset": offset, "bytes": sharding.index_length(), "location": location,
                "byte_order": order, "checksum": checksum});
            let grid = json!(sharding.grid);
            let shape = json!(sharding.inner_shape);
            if shard.depth == 0 {
                self.text += &format!("\"bytes\": {length}, ");
            }
            self.text +=
                &format!("\"index\": {index}, \"grid\": {grid}, \"inner_shape\": {shape}, \"inner_chunks\": [");
            return;
        }
        let checksum = match checksum {
            "none" => "no checksum".to_owned(),
            other if sharding.checksum => format!("CRC-32C {other}"),
            other => other.to_owned(),
        };
        let offset = offset.map_or("nowhere".to_owned(), |offset| format!("at {offset}"));
        self.text += &format!(
            "  {length} bytes, {:?} inner chunks of {:?}; index {offset} ({location}), {} bytes, {order}-endian, {checksum}\n",
            sharding.grid,
            sharding.inner_shape,
            sharding.index_length()
        );
    }

    /// Writes an inner chunk, except its end.
    fn inner(&mut self, shard: &Shard<'_>, number: u64, offset: u64, bytes: u64, is_first: bool) {
        let coords = shard.sharding.coords(number);
        if self.json {
            let comma = if is_first { "\n" } else { ",\n" };
            let coords = json!(coords.as_slice());
            self.text += &format!("{comma}{{\"coords\": {coords}, \"offset\": {offset}, \"bytes\": {bytes}");
        } else {
            let indent = "  ".repeat(shard.depth + 1);
            let coords = format!("{:?}", coords.as_slice());
            self.text += &format!("{indent}{coords:<12}  {offset:>12}  {bytes:>10}");
        }
    }

    /// Reports the faults of a shard, and ends its output.
    fn tail(&mut self, shard: &Shard<'_>, faults: impl IntoIterator<Item = Error>) -> Result<()> {
        let indent = "  ".repeat(shard.depth + 1);
        if self.json {
            self.text += "], \"faults\": [";
        }
        for (number, fault) in faults.into_iter().enumerate() {
            match self.json {
                true if number > 0 => self.text += &format!(",{}", json!(fault.to_string())),
                true => self.text += &json!(fault.to_string()).to_string(),
                false => self.text += &format!("{indent}WRONG: {fault}\n"),
            }
            self.faults += 1;
            self.first.get_or_insert(fault);
            self.flush(false)?;
        }
        if self.json {
            self.text += "]}";
        }
        Ok(())
    }

    fn flush(&mut self, all: bool) -> Result<()> {
        if all || self.text.len() >= BUFFER {
            if self.json {
                print_raw(printable::json(&self.text).as_bytes())?
            } else {
                print(&self.text)?
            }
            self.text.clear();
        }
        Ok(())
    }

    /// Ends the output. Fails if there was a fault.
    fn end(mut self) -> Result<()> {
        if self.json {
            self.text.push_str(if self.shards == 0 { "[]\n" } else { "\n]\n" });
        }
        self.flush(true)?;
        match self.first {
            None => Ok(()),
            Some(first) if self.faults == 1 => Err(first),
            Some(first) => Err(Error::corrupt(format!("{first}; and {} more that are wrong", self.faults - 1))),
        }
    }
}

impl Shard<'_> {
    async fn read(&self, range: Range<u64>) -> Result<BytesMut> {
        let mut bytes = BytesMut::new();
        let mut at = range.start;
        while at < range.end {
            let size = u32::try_from((range.end - at).min(STEP)).unwrap_or(u32::MAX);
            let part = self.tree.read(self.inode, at, size).await?;
            if part.is_empty() {
                return Err(Error::corrupt(format!("{}: it ends before {}", self.path, range.end)));
            }
            bytes.extend_from_slice(&part);
            at += part.len() as u64;
        }
        Ok(bytes)
    }

    fn describe(&self, fault: &IndexFault) -> Error {
        let coords = self.sharding.coords(fault.number);
        let offset = self.place.start.checked_add(fault.offset).unwrap_or(fault.offset);
        let bytes = fault.length;
        let why = match fault.kind {
            FaultKind::Outside => format!("outside of the shard, which ends at {}", self.place.end),
            FaultKind::OverlapsIndex => "over the index".to_owned(),
            FaultKind::Overlaps(other) => format!("over inner chunk {:?}", self.sharding.coords(other).as_slice()),
            FaultKind::HalfAbsent => "there according to one half of the entry only".to_owned(),
        };
        let coords = coords.as_slice();
        Error::corrupt(format!("{}: inner chunk {coords:?}, {bytes} bytes at offset {offset}, is {why}", self.path))
    }
}
