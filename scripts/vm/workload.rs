//! Does the same random operations in a plain directory and in a mount, and checks both after a
//! power cut.
//!
//!   workload run SEED PLAIN MOUNT            until the machine is switched off; prints each operation that was answered
//!   workload check SEED PLAIN MOUNT LAST OLD after operation LAST was answered, and OLD was a few seconds before the cut
//!
//! The operations follow from the seed alone, so that the check knows them. The remaining names
//! must be those after one of the operations, at or behind the last one that was made durable or is
//! old. The bytes of a file must be those of one of its versions; or, behind the last version that
//! the file system must keep in full, a mixture of versions.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

/// More operations than any run reaches.
const MOST: usize = 20_000;
const ARRAY: &str = r#"{"zarr_format":3,"node_type":"array","shape":[64],"data_type":"uint8","chunk_grid":{"name":"regular","configuration":{"chunk_shape":[1]}},"chunk_key_encoding":{"name":"default","configuration":{"separator":"/"}},"fill_value":0,"codecs":[{"name":"bytes"},{"name":"gzip","configuration":{"level":1}}],"attributes":{}}"#;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    /// Bytes without a zero, so that a hole is noticed.
    fn bytes(&mut self) -> Vec<u8> {
        let longest = [100, 5_000, 100_000][self.below(3)];
        let length = 1 + self.below(longest);
        (0..length).map(|_| (self.next() % 255) as u8 + 1).collect()
    }
}

#[derive(Clone, Debug)]
enum Op {
    Create {
        path: String,
        bytes: Vec<u8>,
    },
    /// Writes at `offset`, which may be the end.
    Write {
        path: String,
        offset: u64,
        bytes: Vec<u8>,
    },
    /// `open(O_TRUNC)`, `write`, `close`.
    Rewrite {
        path: String,
        bytes: Vec<u8>,
    },
    /// `open(O_CREAT)` of `temporary`, `write`, `close`, `rename`.
    Replace {
        path: String,
        temporary: String,
        bytes: Vec<u8>,
        sync: bool,
    },
    Truncate {
        path: String,
        length: u64,
    },
    Unlink {
        path: String,
    },
    MakeDirectory {
        path: String,
    },
    Rename {
        from: String,
        to: String,
    },
    Link {
        from: String,
        to: String,
    },
    Sync {
        path: String,
        data_only: bool,
    },
    SyncDirectory {
        path: String,
    },
    Commit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    Directory,
    File(usize),
}

/// A version of a file's bytes, by the operation that made it.
struct Version {
    op: usize,
    bytes: Rc<Vec<u8>>,
    /// True if the file was emptied and rewritten: ext4 has all of it with its next commit.
    rewritten: bool,
}

#[derive(Default)]
struct Inode {
    versions: Vec<Version>,
    /// Operations from which on the version of that moment is kept in full, and whether the
    /// operation must be answered for it.
    kept: Vec<(usize, bool)>,
}

#[derive(Default)]
struct World {
    entries: BTreeMap<String, Entry>,
    inodes: Vec<Inode>,
    temporary: usize,
    /// Operations that are durable in the mount, with all before them, once another one was
    /// answered.
    durable: Vec<(usize, usize)>,
}

impl World {
    fn add(&mut self, op: usize, path: &str, bytes: Vec<u8>) {
        self.inodes.push(Inode::default());
        let inode = self.inodes.len() - 1;
        self.inodes[inode].versions.push(Version { op, bytes: Rc::new(bytes), rewritten: false });
        self.entries.insert(path.to_owned(), Entry::File(inode));
    }

    fn inode(&mut self, path: &str) -> &mut Inode {
        let Some(Entry::File(inode)) = self.entries.get(path) else { panic!("{path} is no file") };
        &mut self.inodes[*inode]
    }

    fn change(&mut self, op: usize, path: &str, rewritten: bool, change: impl FnOnce(&mut Vec<u8>)) {
        let inode = self.inode(path);
        let mut bytes = inode.versions.last().unwrap().bytes.to_vec();
        change(&mut bytes);
        inode.versions.push(Version { op, bytes: Rc::new(bytes), rewritten });
    }

    fn apply(&mut self, number: usize, op: &Op) {
        match op {
            Op::Create { path, bytes } => self.add(number, path, bytes.clone()),
            Op::Write { path, offset, bytes } => self.change(number, path, false, |old| {
                let end = *offset as usize + bytes.len();
                old.resize(old.len().max(end), 0);
                old[*offset as usize..end].copy_from_slice(bytes);
            }),
            Op::Rewrite { path, bytes } => self.change(number, path, true, |old| *old = bytes.clone()),
            Op::Replace { path, bytes, sync, .. } => {
                let replaces = self.entries.contains_key(path);
                self.add(number, path, bytes.clone());
                if replaces || *sync {
                    self.inode(path).kept.push((number, false));
                }
                if *sync {
                    // Operations before the flush of the temporary file.
                    self.durable.push((number - 1, number));
                }
            }
            Op::Truncate { path, length } => {
                self.change(number, path, false, |old| old.resize(*length as usize, 0));
            }
            Op::Unlink { path } => {
                self.entries.remove(path);
            }
            Op::MakeDirectory { path } => {
                self.entries.insert(path.clone(), Entry::Directory);
            }
            Op::Rename { from, to } => {
                let below = format!("{from}/");
                let moved: Vec<String> =
                    self.entries.keys().filter(|name| *name == from || name.starts_with(&below)).cloned().collect();
                for name in moved {
                    let entry = self.entries.remove(&name).unwrap();
                    self.entries.insert(format!("{to}{}", &name[from.len()..]), entry);
                }
            }
            Op::Link { from, to } => {
                let entry = self.entries[from];
                self.entries.insert(to.clone(), entry);
            }
            Op::Sync { path, .. } => {
                self.inode(path).kept.push((number, true));
                self.durable.push((number, number));
            }
            Op::SyncDirectory { .. } => self.durable.push((number, number)),
            Op::Commit => {
                self.durable.push((number, number));
                let tracked: Vec<usize> = self
                    .entries
                    .iter()
                    .filter(|(path, _)| is_key(path))
                    .filter_map(|(_, entry)| match entry {
                        Entry::File(inode) => Some(*inode),
                        Entry::Directory => None,
                    })
                    .collect();
                for inode in tracked {
                    self.inodes[inode].kept.push((number, true));
                }
            }
        }
    }

    fn pick(&self, random: &mut Random, wanted: impl Fn(&str, &Entry) -> bool) -> Option<String> {
        let found: Vec<&String> =
            self.entries.iter().filter(|(path, entry)| wanted(path, entry)).map(|(path, _)| path).collect();
        if found.is_empty() { None } else { Some(found[random.below(found.len())].clone()) }
    }

    /// Returns the next operation; None if the drawn one is not possible now.
    fn think(&mut self, random: &mut Random) -> Option<Op> {
        let is_file = |path: &str, entry: &Entry| matches!(entry, Entry::File(_)) && !path.ends_with(".json");
        let is_free = |path: &str| path.starts_with('u');
        let dice = random.below(100);
        self.temporary += 1;
        let fresh = format!("f{}", self.temporary);
        let folder = |world: &World, random: &mut Random| {
            world.pick(random, |path, entry| *entry == Entry::Directory && path != "a" || path == "a/c")
        };
        Some(match dice {
            0..=13 => {
                let chunk = format!("a/c/{}", random.below(64));
                let path = if random.below(2) == 0 && !self.entries.contains_key(&chunk) {
                    chunk
                } else {
                    format!("{}/{fresh}", self.pick(random, |path, entry| *entry == Entry::Directory && is_free(path))?)
                };
                Op::Create { path, bytes: random.bytes() }
            }
            14..=23 => {
                let path = self.pick(random, is_file)?;
                let length = self.inode(&path).versions.last().unwrap().bytes.len();
                let offset = if random.below(2) == 0 { length } else { random.below(length) };
                Op::Write { path, offset: offset as u64, bytes: random.bytes() }
            }
            24..=34 => Op::Rewrite { path: self.pick(random, is_file)?, bytes: random.bytes() },
            35..=58 => {
                let path = self.pick(random, is_file)?;
                let temporary = format!("{}/{fresh}.partial", path.rsplit_once('/')?.0);
                Op::Replace { path, temporary, bytes: random.bytes(), sync: random.below(4) == 0 }
            }
            59..=61 => {
                let path = self.pick(random, is_file)?;
                let length = self.inode(&path).versions.last().unwrap().bytes.len();
                // An empty chunk would be refused by the commit.
                Op::Truncate { path, length: 1 + random.below(length + 1) as u64 }
            }
            62..=68 => Op::Unlink { path: self.pick(random, is_file)? },
            69..=72 => {
                let above = self.pick(random, |path, entry| {
                    *entry == Entry::Directory && is_free(path) && path.matches('/').count() < 3
                });
                Op::MakeDirectory { path: format!("{}/d{}", above?, self.temporary) }
            }
            73..=76 => {
                let from = self.pick(random, |path, entry| *entry == Entry::Directory && path.contains("/d"))?;
                Op::Rename { to: format!("u0/d{}", self.temporary), from }
            }
            77..=81 => {
                let from = self.pick(random, |path, entry| is_file(path, entry) && is_free(path))?;
                Op::Rename { to: format!("{}/{fresh}", from.rsplit_once('/')?.0), from }
            }
            82..=84 => {
                let from = self.pick(random, |path, entry| is_file(path, entry) && is_free(path))?;
                Op::Link { to: format!("u1/{fresh}"), from }
            }
            85..=93 => Op::Sync { path: self.pick(random, is_file)?, data_only: random.below(2) == 0 },
            94..=95 => Op::SyncDirectory { path: folder(self, random)? },
            _ => {
                let chunk = self.pick(random, |path, entry| is_file(path, entry) && is_key(path));
                let path = chunk?;
                let temporary = format!("a/c/{fresh}.partial");
                Op::Replace { path, temporary, bytes: random.bytes(), sync: false }
            }
        })
    }
}

fn is_key(path: &str) -> bool {
    path == "a/zarr.json" || path.strip_prefix("a/c/").is_some_and(|name| name.bytes().all(|b| b.is_ascii_digit()))
}

/// All operations, and the resulting state.
struct Script {
    random: Random,
    world: World,
    number: usize,
    /// True if the program flushes next to nothing: the mount and the file system decide what is
    /// kept.
    is_lazy: bool,
    queue: Vec<Op>,
}

impl Script {
    fn new(seed: u64) -> Self {
        let mut queue = vec![
            Op::MakeDirectory { path: "a".into() },
            Op::Create { path: "a/zarr.json".into(), bytes: ARRAY.into() },
            Op::MakeDirectory { path: "a/c".into() },
            Op::MakeDirectory { path: "u0".into() },
            Op::MakeDirectory { path: "u1".into() },
            Op::Create { path: "a/c/0".into(), bytes: b"the first chunk".into() },
            Op::Commit,
        ];
        queue.reverse();
        Script { random: Random(seed), world: World::default(), number: 0, is_lazy: seed % 2 == 1, queue }
    }

    fn next(&mut self) -> (usize, Op) {
        let op = loop {
            if let Some(op) = self.queue.pop() {
                break op;
            }
            let Some(op) = self.world.think(&mut self.random) else { continue };
            let flushes = matches!(op, Op::Sync { .. } | Op::SyncDirectory { .. } | Op::Replace { sync: true, .. });
            if flushes && self.is_lazy && self.random.below(50) > 0 {
                continue;
            }
            // A commit needs changes.
            let tracked = matches!(&op, Op::Replace { path, sync: false, .. } if is_key(path));
            if tracked && self.random.below(if self.is_lazy { 50 } else { 4 }) == 0 {
                self.queue.push(Op::Commit);
            }
            break op;
        };
        self.number += 1;
        self.world.apply(self.number, &op);
        (self.number, op)
    }
}

fn perform(root: &Path, op: &Op, is_mount: bool) -> std::io::Result<()> {
    let at = |path: &String| root.join(path);
    match op {
        Op::Create { path, bytes } => OpenOptions::new().write(true).create_new(true).open(at(path))?.write_all(bytes),
        Op::Write { path, offset, bytes } => {
            let mut file = OpenOptions::new().write(true).open(at(path))?;
            file.seek(SeekFrom::Start(*offset))?;
            file.write_all(bytes)
        }
        Op::Rewrite { path, bytes } => fs::write(at(path), bytes),
        Op::Replace { path, temporary, bytes, sync } => {
            let mut file = File::create(at(temporary))?;
            file.write_all(bytes)?;
            if *sync {
                file.sync_all()?;
            }
            drop(file);
            fs::rename(at(temporary), at(path))
        }
        Op::Truncate { path, length } => OpenOptions::new().write(true).open(at(path))?.set_len(*length),
        Op::Unlink { path } => fs::remove_file(at(path)),
        Op::MakeDirectory { path } => fs::create_dir(at(path)),
        Op::Rename { from, to } => fs::rename(at(from), at(to)),
        Op::Link { from, to } => fs::hard_link(at(from), at(to)),
        Op::Sync { path, data_only } => {
            let file = File::open(at(path))?;
            if *data_only { file.sync_data() } else { file.sync_all() }
        }
        Op::SyncDirectory { path } => File::open(at(path))?.sync_all(),
        Op::Commit if is_mount => {
            OpenOptions::new().write(true).open(root.join(".icechunk/commit"))?.write_all(b"a commit\n")
        }
        Op::Commit => Ok(()),
    }
}

fn run(seed: u64, plain: &Path, mount: &Path) {
    let mut script = Script::new(seed);
    let mut pause = Random(!seed);
    for _ in 0..MOST {
        let (number, op) = script.next();
        for (root, is_mount) in [(plain, false), (mount, true)] {
            if let Err(error) = perform(root, &op, is_mount) {
                println!("vm: FAILED: {}: operation {number}, {op:?}: {error}", root.display());
                println!("{}", fs::read_to_string(mount.join(".icechunk/errors")).unwrap_or_default());
                return;
            }
        }
        println!("ack {number}");
        if pause.below(4) == 0 {
            std::thread::sleep(Duration::from_millis(pause.below(60) as u64));
        }
    }
}

/// Content of a path; None for a directory.
type Found = BTreeMap<String, Option<Result<Vec<u8>, String>>>;

fn read(root: &Path) -> Found {
    let mut found = Found::new();
    let mut open: Vec<PathBuf> = vec![root.to_owned()];
    while let Some(directory) = open.pop() {
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) => {
                println!("vm: BAD: {}: {error}", directory.display());
                continue;
            }
        };
        for entry in entries {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
            match fs::symlink_metadata(&path) {
                Ok(metadata) if metadata.is_dir() => {
                    found.insert(name, None);
                    open.push(path);
                }
                Ok(_) => drop(found.insert(name, Some(fs::read(&path).map_err(|e| e.to_string())))),
                Err(error) => drop(found.insert(name, Some(Err(error.to_string())))),
            }
        }
    }
    // The mount's root has a group's document that the plain directory lacks.
    found.remove("zarr.json");
    found
}

/// Returns the names after operation `number`, without those of temporary files.
fn names(world: &World) -> BTreeMap<String, Entry> {
    world.entries.clone()
}

/// Returns the index of the oldest version that may be found, if the names are those after
/// operation `now`.
fn floor(inode: &Inode, now: usize, last: usize, old: usize) -> usize {
    let at = |op: usize| inode.versions.iter().rposition(|version| version.op <= op).unwrap_or(0);
    let kept = inode.kept.iter().filter(|(op, answered)| *op <= if *answered { last } else { now });
    let kept = kept.map(|(op, _)| at(*op)).max().unwrap_or(0);
    let rewritten = inode.versions.iter().rposition(|version| version.rewritten && version.op <= old);
    kept.max(rewritten.unwrap_or(0))
}

/// Returns the version that `bytes` have, if they are one of `versions`, or a mixture of them. The
/// first version is kept in full if `is_kept`: zeros are found only behind its end, or where later
/// versions cut the file off.
fn fits(versions: &[&Version], bytes: &[u8], is_kept: bool) -> Result<Option<usize>, String> {
    if let Some(version) = versions.iter().rev().find(|version| *version.bytes == bytes) {
        return Ok(Some(version.op));
    }
    let lengths: Vec<(usize, usize)> = versions.iter().map(|version| (version.op, version.bytes.len())).collect();
    if is_kept && versions.len() <= 1 {
        return Err(format!("{} bytes, not one of its versions (operation, bytes): {lengths:?}", bytes.len()));
    }
    if versions.iter().all(|version| version.bytes.len() < bytes.len()) {
        return Err(format!("{} bytes, longer than its versions {lengths:?}", bytes.len()));
    }
    // From here on the file may be missing.
    let end = |version: &&Version| if version.rewritten { 0 } else { version.bytes.len() };
    let solid = if is_kept {
        let first = versions.first().map_or(0, |version| version.bytes.len());
        versions.iter().skip(1).map(end).min().map_or(first, |least| least.min(first))
    } else {
        0
    };
    if bytes.len() < solid {
        return Err(format!("{} bytes, shorter than its versions {lengths:?}", bytes.len()));
    }
    let strange = bytes.iter().enumerate().find(|(at, byte)| {
        (**byte != 0 || *at < solid) && !versions.iter().any(|version| version.bytes.get(*at) == Some(byte))
    });
    match strange {
        Some((at, byte)) => {
            Err(format!("byte {at} of {}, which is {byte}, is of none of its versions {lengths:?}", bytes.len()))
        }
        None => Ok(None),
    }
}

/// Returns the problems of `found` if the names are those after operation `now`; and the version of
/// each file that is there in full.
fn judge(
    entries: &BTreeMap<String, Entry>,
    world: &World,
    found: &Found,
    (now, last, old): (usize, usize, usize),
    at_least: &BTreeMap<usize, usize>,
) -> (Vec<String>, BTreeMap<usize, usize>) {
    let mut wrong = Vec::new();
    let mut whole = BTreeMap::new();
    for (path, entry) in entries {
        let (Entry::File(number), Some(Some(bytes))) = (entry, found.get(path)) else { continue };
        let inode = &world.inodes[*number];
        let mut floor = floor(inode, now, last, old);
        if let Some(op) = at_least.get(number) {
            floor = floor.max(inode.versions.iter().position(|version| version.op == *op).unwrap_or(0));
        }
        let versions: Vec<&Version> =
            inode.versions.iter().skip(floor).filter(|version| version.op <= last + 1).collect();
        let is_kept = floor > 0
            || inode.kept.iter().any(|(op, answered)| *op <= if *answered { last } else { now })
            || at_least.contains_key(number);
        match bytes {
            Err(error) => wrong.push(format!("{path}: {error}")),
            Ok(bytes) => match fits(&versions, bytes, is_kept) {
                Err(why) => wrong.push(format!("{path}: {why}")),
                Ok(Some(op)) => drop(whole.insert(*number, op)),
                Ok(None) => {}
            },
        }
    }
    (wrong, whole)
}

fn check(seed: u64, plain: &Path, mount: &Path, last: usize, old: usize) -> bool {
    let mut script = Script::new(seed);
    let mut past: Vec<BTreeMap<String, Entry>> = vec![BTreeMap::new()];
    let mut op_ahead = None;
    while past.len() <= last + 1 {
        let (_, op) = script.next();
        past.push(names(&script.world));
        op_ahead = Some(op);
    }
    let world = &script.world;
    let durable = world.durable.iter().filter(|(_, answered)| *answered <= last).map(|(op, _)| *op).max().unwrap_or(0);
    // A replacement has two steps: its temporary file may be there.
    let is_temporary = |name: &String| name.ends_with(".partial");
    let same = |entries: &BTreeMap<String, Entry>, found: &Found| {
        let found = found.iter().filter(|(name, _)| !is_temporary(name));
        found.clone().count() == entries.len()
            && found.clone().all(|(name, what)| match (entries.get(name), what) {
                (Some(Entry::Directory), None) | (Some(Entry::File(_)), Some(_)) => true,
                _ => false,
            })
    };
    let left = read(plain);
    let shown = read(mount);
    let mut good = true;
    let candidates = |found: &Found, from: usize| -> Vec<usize> {
        (from..=last + 1).rev().filter(|now| same(&past[*now], found)).collect()
    };
    // The plain directory, to learn which operations it kept.
    let kept_by_plain = candidates(&left, 0).first().copied();
    let mut at_least = BTreeMap::new();
    let mut torn = Vec::new();
    if let Some(now) = kept_by_plain {
        let (wrong, whole) = judge(&past[now], world, &left, (now, last, old), &BTreeMap::new());
        torn = wrong;
        at_least = whole.into_iter().filter(|(_, op)| *op <= old).collect();
    }
    let from = durable.max(old);
    let possible = candidates(&shown, from);
    let mut reasons = Vec::new();
    let fitting = possible.iter().find(|now| {
        let (wrong, _) = judge(&past[**now], world, &shown, (**now, last, old), &at_least);
        let fits = wrong.is_empty();
        reasons.push((**now, wrong));
        fits
    });
    match (fitting, reasons.iter().min_by_key(|(_, wrong)| wrong.len())) {
        (Some(now), _) => println!(
            "vm: ok: names after {now} of {last}, durable {durable}, old {old}; the plain directory {kept_by_plain:?}, {} files torn in it",
            torn.len()
        ),
        (None, Some((now, wrong))) => {
            good = false;
            for line in wrong {
                println!(
                    "vm: BAD: if the names are those after {now} of {last} ({durable} durable, {old} old): {line}"
                );
            }
        }
        (None, None) => {
            good = false;
            let before = candidates(&shown, 0).first().copied();
            println!(
                "vm: BAD: names of before {from} ({durable} durable, {old} old): {before:?} of {last}; next {op_ahead:?}"
            );
            let names = &past[last];
            let missing: Vec<&String> = names.keys().filter(|name| !shown.contains_key(*name)).collect();
            let strange: Vec<&String> = shown.keys().filter(|name| !names.contains_key(*name)).collect();
            println!("vm: BAD: not there {missing:?}, too many {strange:?}");
        }
    }
    good
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |at: usize| arguments[at].parse::<u64>().unwrap();
    let seed = number(2);
    let plain = Path::new(&arguments[3]);
    let mount = Path::new(&arguments[4]);
    match arguments[1].as_str() {
        "run" => run(seed, plain, mount),
        _ => {
            if !check(seed, plain, mount, number(5) as usize, number(6) as usize) {
                std::process::exit(1);
            }
        }
    }
}
