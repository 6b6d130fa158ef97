//! Random operations of a writable mount, of programs that read in it, and of others' commits,
//! beside a model of plain maps.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use super::assert_agrees;
use crate::common::lengths::{length, number};
use crate::common::mapping::Mapping;
use crate::common::random::Random;
use crate::common::writing::{GROUP, Reference, Writable, array, put};
use crate::common::{Files, errno, io_modes, read_files, watchdog};

/// Identity of a file, as programs see it: a program that has it open reads what is written to it.
type FileId = usize;

struct Open {
    file: File,
    mapping: Option<Mapping>,
    id: FileId,
    /// Content; a mapping is compared only as long as nobody has changed it.
    expected: Vec<u8>,
    is_changed: bool,
}

struct World {
    mount: Writable,
    reference: Reference,
    random: Random,
    io: &'static str,
    /// Snapshot that the mount is on, and the newest one.
    base: Files,
    tip: Files,
    /// Names that others have changed since, and possibly changed back.
    theirs: BTreeSet<String>,
    /// Content of the mount.
    view: Files,
    ids: BTreeMap<String, FileId>,
    /// Files that a commit after a rename, or a discard, may make others of without a change of
    /// their bytes.
    unsure: BTreeSet<FileId>,
    next: FileId,
    readers: Vec<Open>,
    log: Vec<String>,
}

fn changed(from: &Files, to: &Files) -> BTreeSet<String> {
    from.keys().chain(to.keys()).filter(|name| from.get(*name) != to.get(*name)).cloned().collect()
}

impl World {
    fn new(io: &'static str, seed: u64) -> World {
        let mount = Writable::new(&["--io", io]);
        let root = mount.root();
        put(&root.join("zarr.json"), GROUP).unwrap();
        put(&root.join("a/zarr.json"), array(&[6], &[1])).unwrap();
        put(&root.join("b/zarr.json"), array(&[2, 2], &[1, 1])).unwrap();
        (0..4).for_each(|n| put(&root.join(format!("a/c/{n}")), format!("made {n}")).unwrap());
        put(&root.join("b/c/0/0"), "made").unwrap();
        put(&root.join("b/c/1/1"), "made, too").unwrap();
        mount.commit("made").unwrap();
        let view = read_files(&root);
        let ids: BTreeMap<String, FileId> = view.keys().cloned().zip(0..).collect();
        let reference = Reference::open(mount.repository());
        let base = view.clone();
        let tip = view.clone();
        let next = ids.len();
        let (theirs, unsure, readers, log) = Default::default();
        let random = Random::new(seed);
        World { mount, reference, random, io, base, tip, theirs, view, ids, unsure, next, readers, log }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mount.root().join(name)
    }

    fn name(&mut self) -> String {
        match self.random.below(10) {
            n @ 0..6 => format!("a/c/{n}"),
            n => format!("b/c/{}/{}", n % 2, n / 8),
        }
    }

    fn content(&mut self) -> Vec<u8> {
        self.next += 1;
        let length = [10, 900, 5000, 150_000, 600_000][self.random.below(5)] + self.random.below(50);
        format!("{}. ", self.next).into_bytes().into_iter().cycle().take(length).collect()
    }

    fn new_id(&mut self, name: &str) {
        self.next += 1;
        self.ids.insert(name.to_owned(), self.next);
    }

    /// Shows `to` from now on: what differs is another file.
    fn moves(&mut self, to: Files) {
        for name in changed(&self.view, &to) {
            self.new_id(&name);
        }
        self.view = to;
    }

    /// Returns the merge that `done`, a refresh or a commit, has made; none if it was refused
    /// because of a conflict.
    fn merge_of(&self, done: std::io::Result<()>) -> Option<Files> {
        let log = || format!("{}\n{}\n{}", self.io, self.mount.log(), self.log.join("\n"));
        // A chunk conflicts with a change of its array, too.
        let conflicts = |name: &String| {
            self.theirs.contains(name) || (name.starts_with("a/") && self.theirs.contains("a/zarr.json"))
        };
        let may_conflict = self.local().iter().any(conflicts);
        match (done, self.merged()) {
            (Ok(()), Some(merged)) => return Some(merged),
            (Ok(()), None) => panic!("no conflict: {}", log()),
            (Err(e), _) => assert!(may_conflict && e.raw_os_error() == Some(libc::ESTALE), "{e}: {}", log()),
        }
        None
    }

    fn local(&self) -> BTreeSet<String> {
        changed(&self.base, &self.view)
    }

    /// Returns the merge of the changes here and those of others; none if they conflict.
    fn merged(&self) -> Option<Files> {
        let ours = self.local();
        let theirs = changed(&self.base, &self.tip);
        let is_conflict =
            |name: &&String| ours.contains(*name) && (self.view.contains_key(*name) || self.tip.contains_key(*name));
        if theirs.iter().any(|name| is_conflict(&name)) {
            return None;
        }
        let mut merged = self.tip.clone();
        for name in ours {
            match self.view.get(&name) {
                Some(bytes) => drop(merged.insert(name, bytes.clone())),
                None => drop(merged.remove(&name)),
            }
        }
        Some(merged)
    }

    fn others_commit(&mut self) {
        let mut to = self.tip.clone();
        for _ in 0..=self.random.below(3) {
            match self.random.below(8) {
                0 => {
                    let name = self.name();
                    to.remove(&name);
                }
                1 => {
                    self.next += 1;
                    let name = if self.random.chance(50) { "a/zarr.json" } else { "zarr.json" };
                    let text = if name == "zarr.json" { GROUP.to_owned() } else { array(&[6], &[1]) };
                    // The same meaning, other bytes.
                    let text = format!("{}{}", text, " ".repeat(self.next % 7000));
                    to.insert(name.to_owned(), text.into_bytes());
                }
                _ => {
                    let name = self.name();
                    let content = self.content();
                    to.insert(name, content);
                }
            }
        }
        if to != self.tip {
            let names = changed(&self.tip, &to);
            self.log.push(format!("others commit {names:?}"));
            self.theirs.extend(names);
            self.reference.change(&self.tip, &to);
            self.tip = self.reference.keys();
        }
    }

    fn write(&mut self) {
        let name = self.name();
        let content = self.content();
        let path = self.path(&name);
        let id = self.ids.get(&name).copied().filter(|_| self.view.contains_key(&name));
        if let Some(id) = id.filter(|id| !self.unsure.contains(id) && self.random.chance(40)) {
            self.log.push(format!("write in place {name}"));
            fs::write(&path, &content).unwrap();
            for reader in self.readers.iter_mut().filter(|reader| reader.id == id) {
                (reader.expected, reader.is_changed) = (content.clone(), true);
            }
        } else {
            self.log.push(format!("replace {name}"));
            put(&self.path("new"), &content).unwrap();
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::rename(self.path("new"), &path).unwrap();
            self.new_id(&name);
        }
        self.view.insert(name, content);
    }

    fn remove_or_rename(&mut self) {
        let name = self.name();
        let other = self.name();
        let Some(content) = self.view.get(&name).cloned().filter(|_| name != other) else { return };
        if self.random.chance(40) {
            self.log.push(format!("remove {name}"));
            fs::remove_file(self.path(&name)).unwrap();
        } else {
            self.log.push(format!("rename {name} to {other}"));
            fs::create_dir_all(self.path(&other).parent().unwrap()).unwrap();
            fs::rename(self.path(&name), self.path(&other)).unwrap();
            let id = self.ids[&name];
            self.unsure.insert(id);
            self.ids.insert(other.clone(), id);
            self.view.insert(other, content);
        }
        self.view.remove(&name);
    }

    fn open(&mut self) {
        let name = self.name();
        let name = [name.as_str(), "a/zarr.json", "zarr.json"][self.random.below(8).saturating_sub(5)].to_owned();
        let Some(expected) = self.view.get(&name).cloned() else {
            assert_eq!(errno(File::open(self.path(&name))), libc::ENOENT, "{name}\n{}", self.log.join("\n"));
            return;
        };
        self.log.push(format!("open {name}"));
        let file = File::open(self.path(&name)).unwrap();
        let mapping = self.random.chance(30).then(|| Mapping::read_only(&file));
        let mut some = vec![0; 1 + self.random.below(expected.len())];
        if self.random.chance(60) {
            file.read_exact_at(&mut some, 0).unwrap();
            assert!(expected.starts_with(&some), "{}: {name}\n{}", self.io, self.log.join("\n"));
        }
        self.readers.push(Open { file, mapping, id: self.ids[&name], expected, is_changed: false });
    }

    fn check_readers(&mut self) {
        for (n, reader) in self.readers.iter().enumerate() {
            let mut bytes = vec![0; reader.expected.len() + 10];
            let mut count = 0;
            while let read @ 1.. = reader.file.read_at(&mut bytes[count..], count as u64).unwrap() {
                count += read;
            }
            let begin = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(8)]).into_owned();
            let found = begin(&bytes);
            let expected = begin(&reader.expected);
            let log = || {
                let io = self.io;
                let id = reader.id;
                let log = self.log.join("\n");
                format!(
                    "{io}: reader {n} of {id} has {count} bytes {found}, not {} bytes {expected}\n{log}",
                    reader.expected.len()
                )
            };
            assert!(bytes[..count] == reader.expected, "{}", log());
            assert_eq!(reader.file.metadata().unwrap().len(), count as u64, "{}", log());
            if let Some(mapping) = reader.mapping.as_ref().filter(|_| !reader.is_changed) {
                assert!(mapping.bytes() == reader.expected, "a mapping, {}", log());
            }
        }
    }

    fn check(&mut self) {
        let found = read_files(&self.mount.root());
        let differ = changed(&found, &self.view);
        assert!(differ.is_empty(), "{}: {differ:?}\n{}", self.io, self.log.join("\n"));
        self.check_readers();
        assert_agrees(&self.mount.root());
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..14 => self.others_commit(),
            14..30 => self.write(),
            30..36 => self.remove_or_rename(),
            36..62 => self.open(),
            62..72 if !self.readers.is_empty() => {
                let at = self.random.below(self.readers.len());
                self.log.push(format!("close reader {at}"));
                self.readers.swap_remove(at);
            }
            72..84 => {
                self.log.push("refresh".to_owned());
                let moved = self.mount.touch("refresh");
                if let Some(merged) = self.merge_of(moved) {
                    self.base = self.tip.clone();
                    self.theirs.clear();
                    self.moves(merged);
                }
                self.check();
            }
            84..93 => {
                self.log.push("commit".to_owned());
                let is_empty = self.local().is_empty();
                let done = self.mount.commit("mine");
                if let Some(merged) = self.merge_of(done).filter(|_| !is_empty) {
                    self.moves(merged);
                    self.theirs.clear();
                    (self.base, self.tip) = (self.view.clone(), self.view.clone());
                    assert!(self.reference.keys() == self.tip, "{}", self.log.join("\n"));
                }
                self.check();
            }
            93..97 => {
                self.log.push("discard".to_owned());
                // Nothing is expected of files that were changed here: their bytes are discarded.
                let local = self.local();
                let stay = |name: &&String| self.view.contains_key(*name) && !local.contains(*name);
                let stay: BTreeSet<FileId> = self.ids.keys().filter(stay).map(|name| self.ids[name]).collect();
                self.readers.retain(|reader| stay.contains(&reader.id));
                self.mount.touch("discard").unwrap();
                let base = self.base.clone();
                self.moves(base);
                self.unsure.extend(self.ids.values());
                self.check();
            }
            97 => {
                self.log.push("kill".to_owned());
                self.readers.clear();
                self.mount.kill_and_remount();
                // A mount without changes begins on the newest commit.
                if self.local().is_empty() {
                    let tip = self.tip.clone();
                    self.base = tip.clone();
                    self.theirs.clear();
                    self.moves(tip);
                }
                self.check();
            }
            _ => self.check_readers(),
        }
    }
}

#[test]
fn open_files_are_as_a_model_has_them() {
    let steps = length("ICECHUNKFS_READER_STEPS", 80, 250);
    let seed = number("ICECHUNKFS_SEED", 1) as u64;
    for io in io_modes() {
        watchdog();
        let mut world = World::new(io, seed);
        (0..steps).for_each(|_| world.step());
        world.check();
        world.readers.clear();
        world.check();
    }
}
