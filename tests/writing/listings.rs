//! Listings that the kernel keeps in a writable mount: none is ever older than the tree.

use std::collections::BTreeSet;
use std::path::Path;

use crate::common::lengths::number;
use crate::common::random::Random;
use crate::common::writing::{Writable, array, put};

const GROUP: &str = r#"{"zarr_format":3,"node_type":"group"}"#;

/// Returns the names in each directory below `root`, by their paths.
fn names(root: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut open = vec![root.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(&directory).unwrap() {
            let entry = entry.unwrap();
            if entry.file_name() == ".icechunk" {
                continue;
            }
            found.insert(entry.path().strip_prefix(root).unwrap().to_str().unwrap().to_owned());
            if entry.file_type().unwrap().is_dir() {
                open.push(entry.path());
            }
        }
    }
    found
}

/// Returns the number of requests for names in directories so far.
fn listed(mount: &Writable) -> u64 {
    let stats = mount.read_control("stats");
    let counts =
        stats.lines().filter(|line| line.starts_with("icechunkfs_request_seconds_count{operation=\"readdir\"}"));
    counts.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

#[test]
fn a_directory_that_does_not_change_is_listed_once() {
    let mount = Writable::new(&[]);
    for n in 0..30 {
        std::fs::create_dir(mount.root().join(format!("g{n}"))).unwrap();
        std::fs::write(mount.root().join(format!("g{n}/zarr.json")), GROUP).unwrap();
    }
    mount.commit("groups").unwrap();
    // Whatever the commit has replaced is listed anew, and kept from then on.
    names(&mount.root());
    let before = listed(&mount);
    let all = names(&mount.root());
    assert_eq!(all.len(), 60);
    assert_eq!(listed(&mount), before);
    // A change of one directory makes the kernel ask for that one.
    std::fs::create_dir(mount.root().join("g7/more")).unwrap();
    let after = names(&mount.root());
    assert_eq!(after.difference(&all).map(String::as_str).collect::<Vec<_>>(), ["g7/more"]);
    assert!((1..=6).contains(&(listed(&mount) - before)), "{} requests", listed(&mount) - before);
}

/// Two mounts of one branch, whose users change it in turn, discard and refresh.
#[test]
fn kept_listings_are_as_new_as_the_tree() {
    for seed in 0..number("ICECHUNKFS_LISTING_CASES", 4) as u64 {
        let mut random = Random::new(seed + 11);
        let first = Writable::new(&[]);
        let second = Writable::of(first.repository(), &[]);
        let mounts = [&first, &second];
        // Names of one mount are never those of the other: nothing conflicts.
        let prefixes = ["a", "b"];
        let mut branch: BTreeSet<String> = BTreeSet::new();
        let mut shown = [branch.clone(), branch.clone()];
        for step in 0..80 {
            let at = random.below(2);
            let mount = mounts[at];
            let root = mounts[at].root();
            let prefix = prefixes[at];
            let joined = |own: &BTreeSet<String>, others: &BTreeSet<String>| -> BTreeSet<String> {
                let own = own.iter().filter(|path| path.starts_with(prefix));
                own.chain(others.iter().filter(|path| !path.starts_with(prefix))).cloned().collect()
            };
            match random.below(10) {
                0..=4 => {
                    let name = format!("{prefix}{}", random.below(12));
                    if shown[at].contains(&name) {
                        std::fs::remove_dir_all(root.join(&name)).unwrap();
                        shown[at].retain(|path| path != &name && !path.starts_with(&format!("{name}/")));
                    } else {
                        std::fs::create_dir(root.join(&name)).unwrap();
                        std::fs::write(root.join(&name).join("zarr.json"), GROUP).unwrap();
                        shown[at].extend([name.clone(), format!("{name}/zarr.json")]);
                    }
                }
                5 | 6 if joined(&shown[at], &branch) != branch => {
                    mount.commit(&format!("step {step}")).unwrap();
                    branch = joined(&shown[at], &branch);
                    shown[at] = branch.clone();
                }
                7 | 8 => {
                    mount.touch("refresh").unwrap();
                    shown[at] = joined(&shown[at], &branch);
                }
                9 => {
                    mount.touch("discard").unwrap();
                    shown[at] = joined(&branch, &shown[at]);
                }
                _ => continue,
            }
            for (mount, shown) in mounts.iter().zip(&shown) {
                assert_eq!(&names(&mount.root()), shown, "seed {seed}, step {step}");
            }
        }
    }
}

#[test]
fn a_file_whose_size_cannot_be_found_out_is_listed_all_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let repo = directory.path().join("repo");
    crate::common::run_on(&repo, &["init", "--zarr-group"]).success();
    let mount = Writable::of(&repo, &[]);
    let root = mount.root();
    put(&root.join("a/zarr.json"), array(&[4], &[2])).unwrap();
    // Larger than a chunk that a manifest has in it.
    put(&root.join("a/c/0"), vec![1; 5000]).unwrap();
    put(&root.join("a/c/1"), vec![2; 5000]).unwrap();
    mount.commit("chunks").unwrap();
    std::fs::create_dir(root.join("kept")).unwrap();
    for n in 0..2 {
        std::fs::hard_link(root.join(format!("a/c/{n}")), root.join(format!("kept/{n}"))).unwrap();
    }
    mount.unmount();
    // The sizes are in a manifest.
    let manifests = repo.join("manifests");
    let away = repo.join("away");
    std::fs::rename(&manifests, &away).unwrap();
    mount.mount_again(None).success();
    let kept = mount.root().join("kept");
    let list = || {
        let entries: Vec<_> = std::fs::read_dir(&kept).unwrap().map(|entry| entry.unwrap()).collect();
        let sizes: Vec<Option<u64>> = entries.iter().map(|entry| entry.metadata().ok().map(|it| it.len())).collect();
        (entries.len(), sizes)
    };
    assert_eq!(list(), (2, vec![None, None]));
    std::fs::rename(&away, &manifests).unwrap();
    assert_eq!(list(), (2, vec![Some(5000), Some(5000)]));
    assert_eq!(std::fs::read(kept.join("1")).unwrap(), vec![2; 5000]);
}
