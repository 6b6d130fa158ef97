//! Random trees of Zarr files, and their expected content.

use std::ffi::OsStr;
use std::path::Path;

use serde_json::Value;

use crate::common::random::Random;
use crate::common::writing::{GROUP, array, put};
use crate::common::{Files, Output, icechunkfs};

/// Returns random groups and arrays, with chunks of all kinds of sizes.
pub fn random(random: &mut Random) -> Files {
    let names = ["a", "a b", "a-b", "c", "0", "ä", "zarr"];
    let mut files = Files::new();
    files.insert("zarr.json".into(), GROUP.into());
    for group in ["", "g/", "g/h/"] {
        if !group.is_empty() {
            files.insert(format!("{group}zarr.json"), GROUP.into());
        }
        for name in names {
            match random.below(3) {
                0 => {}
                1 if name != "c" => drop(files.insert(format!("{group}{name}/zarr.json"), GROUP.into())),
                _ => array_at(&mut files, random, &format!("{group}{name}")),
            }
        }
    }
    files
}

fn array_at(files: &mut Files, random: &mut Random, path: &str) {
    let rank = random.below(4);
    let grid: Vec<u64> = (0..rank).map(|_| 1 + random.below(4) as u64).collect();
    files.insert(format!("{path}/zarr.json"), array(&grid, &vec![1; rank]).into());
    for at in 0..grid.iter().product::<u64>() {
        if random.below(4) == 0 {
            continue;
        }
        let mut rest = at;
        let coords: String = grid.iter().fold(String::new(), |key, length| {
            let coord = rest % length;
            rest /= length;
            format!("{key}/{coord}")
        });
        let most = [10, 600, 5000, 300_000][random.below(4)];
        let length = 1 + random.below(most);
        files.insert(format!("{path}/c{coords}"), random.bytes(length));
    }
}

/// Returns the files of a root group and an array `a`, whose chunks are `chunks`.
pub fn one_array(chunks: impl IntoIterator<Item = Vec<u8>>) -> Files {
    let mut files: Files = (0..).zip(chunks).map(|(at, bytes): (usize, _)| (format!("a/c/{at}"), bytes)).collect();
    files.insert("a/zarr.json".into(), array(&[files.len() as u64], &[1]).into());
    files.insert("zarr.json".into(), GROUP.into());
    files
}

/// Writes `files` below `place`.
pub fn write(place: &Path, files: &Files) {
    for (path, bytes) in files {
        put(&place.join(path), bytes).unwrap();
    }
}

pub fn command(words: &[&dyn AsRef<OsStr>]) -> Output {
    icechunkfs(words.iter().map(|word| word.as_ref().to_owned()))
}

#[track_caller]
pub fn json(words: &[&dyn AsRef<OsStr>]) -> Value {
    let mut all: Vec<&dyn AsRef<OsStr>> = words.to_vec();
    all.push(&"--json");
    command(&all).json()
}

/// Creates a repository of `files`.
#[track_caller]
pub fn repository(place: &Path, files: &Files) -> std::path::PathBuf {
    let source = place.join("source");
    let repo = place.join("repo");
    write(&source, files);
    command(&[&"import", &source, &repo]).success();
    repo
}
