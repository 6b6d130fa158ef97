//! Files of which a program holds the inode without having them open: it watches them, or has a
//! path descriptor. The kernel keeps the pages of such files, also when their names belong to other
//! files.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::common::lengths::{length, number};
use crate::common::random::Random;
use crate::common::writing::{GROUP, Reference, Writable, array, put};
use crate::common::{io_modes, read_files, watchdog};

const CHUNKS: usize = 6;
/// Bytes of each chunk: the kernel would drop the pages of a file that gets another length.
const LENGTH: usize = 9000;
/// Path descriptors that are held at a time: those of a few rounds.
const HELD: usize = 40;

/// Contents of chunks, by name.
type Chunks = BTreeMap<String, Vec<u8>>;

fn name(n: usize) -> String {
    format!("a/c/{n}")
}

struct World {
    mount: Writable,
    reference: Reference,
    random: Random,
    committed: Chunks,
    view: Chunks,
    held: VecDeque<File>,
    log: Vec<String>,
}

impl World {
    fn new(io: &str, seed: u64) -> World {
        let mount = Writable::new(&["--io", io]);
        let root = mount.root();
        put(&root.join("zarr.json"), GROUP).unwrap();
        put(&root.join("a/zarr.json"), array(&[CHUNKS as u64], &[1])).unwrap();
        put(&root.join("b/zarr.json"), array(&[1000], &[1])).unwrap();
        let committed: Chunks = (0..CHUNKS).map(|n| (name(n), vec![n as u8 + 1; LENGTH])).collect();
        committed.iter().for_each(|(name, bytes)| put(&root.join(name), bytes).unwrap());
        mount.commit("made").unwrap();
        // The kernel knows them by the numbers of the snapshot.
        mount.remount();
        let reference = Reference::open(mount.repository());
        let view = committed.clone();
        let held = VecDeque::new();
        World { mount, reference, random: Random::new(seed), committed, view, held, log: vec![format!("{io} {seed}")] }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mount.root().join(name)
    }

    fn change(&mut self) {
        let [from, to] = [0; 2].map(|_| name(self.random.below(CHUNKS)));
        let step = self.random.below(5);
        let [old, new] = [&from, &to].map(|name| self.path(name));
        let has = |name: &String| self.view.contains_key(name);
        match step {
            0 | 1 if from != to && has(&from) && has(&to) => {
                renameat_with(CWD, &old, CWD, &new, RenameFlags::EXCHANGE).unwrap();
                let [one, other] = [&from, &to].map(|name| self.view[name].clone());
                self.view.extend([(from.clone(), other), (to.clone(), one)]);
            }
            2 if from != to && has(&from) => {
                fs::rename(&old, &new).unwrap();
                let bytes = self.view.remove(&from).unwrap();
                self.view.insert(to.clone(), bytes);
            }
            3 if has(&from) => {
                fs::remove_file(&old).unwrap();
                self.view.remove(&from);
            }
            4 => {
                let bytes = vec![self.random.below(200) as u8 + 20; LENGTH];
                put(&new, &bytes).unwrap();
                self.view.insert(to.clone(), bytes);
            }
            _ => return,
        }
        self.log.push(format!("{step}: {from} {to}"));
    }

    fn settle(&mut self, round: usize) {
        let step = self.random.below(5);
        self.log.push(["commit", "commit", "discard", "refresh", "remount"][step].to_owned());
        match step {
            0 | 1 => {
                self.mount.commit("ours").unwrap();
                self.committed = self.view.clone();
                let fresh = self.mount.fresh();
                let stored = fresh.iter().filter(|(name, _)| name.starts_with("a/c/"));
                assert!(stored.eq(self.committed.iter()), "{:#?}", self.log);
            }
            2 => {
                self.mount.touch("discard").unwrap();
                self.view = self.committed.clone();
            }
            3 => {
                self.reference.commit(&[(&format!("b/c/{round}"), b"theirs")], "theirs");
                self.mount.touch("refresh").unwrap();
            }
            _ => {
                self.held.clear();
                self.mount.remount();
            }
        }
    }

    fn assert_is(&mut self, what: &str) {
        let found = read_files(&self.mount.root());
        let found: Chunks = found.into_iter().filter(|(name, _)| name.starts_with("a/c/")).collect();
        let wrong: Vec<_> = found.iter().filter(|(name, bytes)| self.view.get(*name) != Some(bytes)).collect();
        let first = |bytes: &Vec<u8>| (bytes.len(), bytes.first().copied());
        let wrong: Vec<_> =
            wrong.iter().map(|(name, bytes)| (name, first(bytes), self.view.get(*name).map(first))).collect();
        assert!(wrong.is_empty() && found.len() == self.view.len(), "{what}: {wrong:?} {:#?}", self.log);
        let held = found.keys().map(|name| {
            OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(self.mount.root().join(name)).unwrap()
        });
        let held: Vec<_> = held.collect();
        self.held.extend(held);
        while self.held.len() > HELD {
            self.held.pop_front();
        }
    }
}

#[test]
fn a_name_has_the_bytes_of_its_file_while_programs_hold_others() {
    watchdog();
    let seed = number("ICECHUNKFS_WATCHED_SEED", 1);
    for io in io_modes() {
        for seed in seed..seed + 3 {
            let mut world = World::new(io, seed as u64);
            for round in 0..length("ICECHUNKFS_WATCHED_ROUNDS", 5, 15) {
                world.assert_is("before");
                (0..=world.random.below(4)).for_each(|_| world.change());
                world.assert_is("changed");
                world.settle(round);
                world.assert_is("settled");
            }
        }
    }
}
