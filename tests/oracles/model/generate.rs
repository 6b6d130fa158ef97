//! Draws the next operations, by the model's state, so that most of them have a target.

use super::apply::SLOTS;
use super::ops::{MARKED_SPAN, Op, Style};
use super::subject::OTHERS;
use super::tree::{Content, Tree};
use super::zarr::{Array, BELOW_BAD, Encoding, View, array_document, group_document};
use crate::common::random::Random;

/// Beyond this many names the generator removes more than it adds.
const ENOUGH: usize = 160;
const NODES: [&str; 8] = ["a", "b", "c", "0", "x y", "é", "+1", "n1"];
const NOTES: [&str; 6] = ["notes.txt", ".zarr.json.swp", "4913", "zarr.json~", "lock.__lock", "sedAbC123"];
const BAD: [&str; 6] = [
    "",
    "{\"zarr_format\": 3, \"node_type\": \"group\", \"attributes\": {\"x\": NaN}}",
    "{\"zarr_format\": 2, \"node_type\": \"group\"}",
    "{\"zarr_format\": 3}",
    "{\"zarr_format\": 3, \"node_type\": \"group\"",
    "not json",
];

/// State of the tree, as the generator needs it.
pub struct Sight {
    files: Vec<String>,
    directories: Vec<String>,
    arrays: Vec<(String, Array)>,
    documents: Vec<String>,
    repairs: Vec<Op>,
}

impl Sight {
    pub fn new(tree: &Tree, view: &View) -> Sight {
        let ours = |name: &&String| !name.starts_with(OTHERS);
        let mut sight = Sight {
            files: Vec::new(),
            directories: Vec::new(),
            arrays: view.arrays.iter().filter(|(name, _)| ours(name)).map(|(n, a)| (n.clone(), a.clone())).collect(),
            documents: view.keys.keys().filter(ours).filter(|name| name.ends_with("zarr.json")).cloned().collect(),
            repairs: Vec::new(),
        };
        for (name, entry) in tree.iter().filter(|(name, _)| ours(name)) {
            match &entry.content {
                Content::Directory => sight.directories.push(name.clone()),
                _ => sight.files.push(name.clone()),
            }
        }
        for (name, why) in view.faults.iter().chain(&view.unclear).filter(|(name, _)| ours(name)) {
            if *why == BELOW_BAD {
                continue;
            }
            sight.repairs.push(match (*why, matches!(tree[name].content, Content::Directory)) {
                ("not a valid zarr.json", false) => {
                    Op::Document { path: name.clone(), text: group_document(0), style: Style::Rename, parents: false }
                }
                ("an empty chunk", false) => {
                    Op::WriteFile { path: name.clone(), len: 9, seed: 9, style: Style::InPlace, parents: false }
                }
                (_, true) => Op::RemoveAll { path: name.clone() },
                (_, false) => Op::Unlink { path: name.clone() },
            });
        }
        sight
    }
}

pub struct Generator {
    random: Random,
    tag: u64,
}

impl Generator {
    pub fn new(seed: u64) -> Generator {
        Generator { random: Random::new(seed), tag: 0 }
    }

    fn tag(&mut self) -> u64 {
        self.tag += 1;
        self.tag
    }

    /// Draws the next operation. `open` are the slots that hold a file.
    pub fn draw(&mut self, sight: &Sight, open: &[usize]) -> Vec<Op> {
        if sight.files.len() + sight.directories.len() > ENOUGH && self.random.chance(15) {
            let path = self.directory(sight);
            return vec![Op::RemoveAll { path }];
        }
        match self.random.below(1000) {
            0..130 => vec![self.document(sight)],
            130..370 => vec![self.chunk(sight)],
            370..460 => vec![self.open(sight)],
            460..700 if open.len() < 2 => vec![self.open(sight)],
            460..700 => vec![self.on_handle(open)],
            700..960 => vec![self.on_path(sight)],
            // Drawn again with a fresh sight.
            960..976 => vec![Op::Commit { how: "touch".into() }],
            976..979 => vec![Op::Discard],
            979..982 => vec![Op::DiscardBelow { path: self.somewhere(sight) }],
            982..986 => vec![Op::Refresh],
            986..989 => vec![Op::Remount],
            989..991 => vec![Op::Kill],
            991..995 => vec![Op::Others { seed: self.random.next() >> 40 }],
            _ => vec![Op::Check],
        }
    }

    /// Draws a commit, with repairs that make it possible in most cases.
    pub fn draw_commit(&mut self, sight: &Sight) -> Vec<Op> {
        let mut ops = Vec::new();
        if self.random.chance(85) {
            ops.extend((0..SLOTS).map(|slot| Op::Close { slot }));
        }
        if self.random.chance(85) {
            ops.extend(sight.repairs.iter().cloned());
        }
        let how = ["touch", "echo", "command"][self.random.below(3)].to_owned();
        ops.push(Op::Commit { how });
        ops
    }

    fn length(&mut self) -> usize {
        match self.random.below(100) {
            0..3 => 0,
            3..60 => 1 + self.random.below(600),
            60..90 => 1 + self.random.below(5000),
            90..98 => 1 + self.random.below(100_000),
            _ => 1 + self.random.below(300_000),
        }
    }

    fn style(&mut self) -> Style {
        [Style::InPlace, Style::Rename, Style::Rename, Style::Link][self.random.below(4)]
    }

    fn node(&mut self, sight: &Sight) -> String {
        let name = NODES[self.random.below(NODES.len())];
        let arrays: Vec<&String> = sight.arrays.iter().map(|(path, _)| path).collect();
        for _ in 0..4 {
            let Some(parent) = self.random.pick_any(&sight.directories).cloned() else { break };
            let in_array = arrays.iter().any(|array| parent == **array || parent.starts_with(&format!("{array}/")));
            if parent.matches('/').count() < 3 && (!in_array || self.random.chance(2)) && self.random.chance(70) {
                return format!("{parent}/{name}");
            }
        }
        name.to_owned()
    }

    fn document(&mut self, sight: &Sight) -> Op {
        let style = self.style();
        let parents = self.random.chance(90);
        let note = self.tag();
        let existing = self.random.pick_any(&sight.arrays).cloned();
        if let (true, Some((path, array))) = (self.random.chance(40), existing) {
            // An existing array gets a new shape; sometimes everything about it is new.
            let anew = self.random.chance(4);
            let encoding = if anew { Encoding::ALL[self.random.below(4)] } else { array.encoding };
            let rank = if anew { self.random.below(4) } else { array.grid.len() };
            let shape: Vec<u64> = (0..rank)
                .map(|n| {
                    let old = array.grid.get(n).copied().unwrap_or(1);
                    if self.random.chance(85) {
                        old + self.random.below(2) as u64
                    } else {
                        1 + self.random.below(3) as u64
                    }
                })
                .collect();
            let text = array_document(&shape, &vec![1; rank], encoding, note);
            return Op::Document { path: format!("{path}/zarr.json"), text, style, parents };
        }
        let path = if self.random.chance(4) { "zarr.json".into() } else { format!("{}/zarr.json", self.node(sight)) };
        let text = match self.random.below(100) {
            0..4 => BAD[self.random.below(BAD.len())].to_owned(),
            4..40 => group_document(note),
            _ if path == "zarr.json" => group_document(note),
            _ => {
                let rank = [0, 1, 1, 2, 2, 3][self.random.below(6)];
                let chunks: Vec<u64> = (0..rank).map(|_| 1 + self.random.below(3) as u64).collect();
                let shape: Vec<u64> = chunks.iter().map(|chunk| chunk * (1 + self.random.below(4) as u64)).collect();
                let encoding =
                    if self.random.chance(60) { Encoding::DefaultSlash } else { Encoding::ALL[self.random.below(4)] };
                array_document(&shape, &chunks, encoding, note)
            }
        };
        Op::Document { path, text, style, parents }
    }

    /// Draws a chunk's name, sometimes a wrong one.
    fn chunk_name(&mut self, sight: &Sight) -> Option<String> {
        let (path, array) = self.random.pick_any(&sight.arrays)?.clone();
        let mut coordinates: Vec<u64> =
            array.grid.iter().map(|length| self.random.below((*length).max(1) as usize) as u64).collect();
        match self.random.below(300) {
            0 => coordinates.push(0),
            1 => coordinates.iter_mut().for_each(|at| *at += 9),
            2 => return Some(format!("{path}/c/00")),
            3 => return Some(format!("{path}/c/x")),
            _ => {}
        }
        Some(format!("{path}/{}", array.encoding.name(&coordinates)))
    }

    fn chunk(&mut self, sight: &Sight) -> Op {
        let Some(path) = self.chunk_name(sight) else { return self.document(sight) };
        let len = self.length();
        Op::WriteFile { path, len, seed: self.tag(), style: self.style(), parents: self.random.chance(97) }
    }

    /// Draws a file that exists, or may exist.
    fn file(&mut self, sight: &Sight) -> String {
        match self.random.below(10) {
            0..6 => self.random.pick_any(&sight.files).cloned().unwrap_or_else(|| "a/none".into()),
            6..8 => self.chunk_name(sight).unwrap_or_else(|| "notes.txt".into()),
            8 => self.note(sight),
            _ => self.somewhere(sight),
        }
    }

    fn note(&mut self, sight: &Sight) -> String {
        let name = NOTES[self.random.below(NOTES.len())];
        match self.random.pick_any(&sight.directories) {
            Some(parent) => format!("{parent}/{name}"),
            None => name.to_owned(),
        }
    }

    fn directory(&mut self, sight: &Sight) -> String {
        self.random.pick_any(&sight.directories).cloned().unwrap_or_else(|| "a".into())
    }

    fn somewhere(&mut self, sight: &Sight) -> String {
        match self.random.below(3) {
            0 => self.directory(sight),
            1 => self.node(sight),
            _ => self.random.pick_any(&sight.documents).cloned().unwrap_or_else(|| "b".into()),
        }
    }

    fn open(&mut self, sight: &Sight) -> Op {
        let how = ["r", "rw", "rw", "rw", "rwc", "rwc", "rwc", "rwct", "rac", "wcx", "w"][self.random.below(11)];
        let path = self.file(sight);
        // Random bytes in a document are only a violation: documents are opened for reading mostly.
        let how = if path.ends_with("zarr.json") && self.random.chance(95) { "r" } else { how };
        Op::Open { slot: self.random.below(SLOTS), path, how: how.into() }
    }

    fn on_handle(&mut self, open: &[usize]) -> Op {
        let one = |random: &mut Random| open[random.below(open.len())];
        let slot = one(&mut self.random);
        let at = self.random.below(6000) as u64;
        let len = 1 + self.random.below(3000);
        match self.random.below(24) {
            0..5 => Op::Pwrite { slot, at, len, seed: self.tag() },
            5..7 => Op::Write { slot, len, seed: self.tag() },
            7..9 => Op::Pread { slot, at, len },
            9..11 => Op::Ftruncate { slot, size: at },
            11 => Op::Fsync { slot, data_only: self.random.chance(50) },
            12..14 => {
                let mode = ["allocate", "keep_size", "punch", "zero"][self.random.below(4)].into();
                Op::Fallocate { slot, mode, at, len: len as u64 }
            }
            14..17 => Op::MapWrite { slot, at, len, seed: self.tag(), sync: self.random.chance(50) },
            17 => Op::MapRead { slot },
            18 => Op::Holes { slot },
            19 => Op::Fstat { slot },
            20..22 => {
                let to = one(&mut self.random);
                let to_at = self.random.below(6000) as u64;
                let at = self.random.below(500) as u64;
                Op::CopyRange { from: slot, to, at, to_at, len: len as u64 }
            }
            _ => Op::Close { slot },
        }
    }

    fn on_path(&mut self, sight: &Sight) -> Op {
        match self.random.below(100) {
            0..12 => Op::ReadFile { path: self.file(sight) },
            12..20 => Op::Unlink { path: self.file(sight) },
            20..24 => {
                let path = self.file(sight);
                if path.ends_with("zarr.json") { Op::Stat { path } } else { self.truncate(path) }
            }
            24..34 => self.rename(sight),
            34..44 => Op::CopyFile { from: self.file(sight), to: self.file_or_chunk(sight) },
            44..51 => Op::Link { from: self.file(sight), to: self.file_or_chunk(sight) },
            51..54 => {
                let target = ["zarr.json", "c", "nowhere", "0", "a"][self.random.below(5)].into();
                Op::Symlink { target, path: self.note(sight) + ".link" }
            }
            54..58 => Op::Mkdir { path: self.node(sight), parents: self.random.chance(50) },
            58..62 => Op::Rmdir { path: self.directory(sight) },
            62..65 => Op::RemoveAll { path: self.directory(sight) },
            65..70 => {
                let mode = [0o644, 0o600, 0o664, 0o755, 0o640][self.random.below(5)];
                let directory = self.random.chance(25);
                if directory {
                    Op::Chmod { path: self.directory(sight), mode: mode | 0o700 }
                } else {
                    Op::Chmod { path: self.file(sight), mode }
                }
            }
            70..77 => {
                let path = if self.random.chance(20) { self.directory(sight) } else { self.file(sight) };
                Op::Utimens { path, offset: self.random.below(MARKED_SPAN as usize) as u32 }
            }
            77..80 => Op::FsyncDir { path: self.directory(sight) },
            80..87 => Op::Stat { path: self.file(sight) },
            87..92 => Op::List { path: self.directory(sight) },
            92..96 => {
                let path = self.note(sight);
                let len = self.length();
                Op::WriteFile { path, len, seed: self.tag(), style: self.style(), parents: false }
            }
            _ => Op::Stat { path: self.somewhere(sight) },
        }
    }

    fn truncate(&mut self, path: String) -> Op {
        let size = if self.random.chance(10) { 0 } else { 1 + self.random.below(9000) as u64 };
        Op::Truncate { path, size }
    }

    fn file_or_chunk(&mut self, sight: &Sight) -> String {
        let chunk = if self.random.chance(70) { self.chunk_name(sight) } else { None };
        chunk.unwrap_or_else(|| self.file(sight))
    }

    fn rename(&mut self, sight: &Sight) -> Op {
        let flag = ["replace", "replace", "replace", "noreplace", "exchange"][self.random.below(5)].to_owned();
        // Whole nodes, chunk to chunk, and anything to anywhere.
        let (from, to) = match self.random.below(10) {
            0..4 => (self.directory(sight), self.node(sight)),
            4..7 => (self.file(sight), self.file_or_chunk(sight)),
            7 => (self.directory(sight), self.directory(sight)),
            _ => (self.file(sight), self.note(sight)),
        };
        Op::Rename { from, to, flag }
    }
}
