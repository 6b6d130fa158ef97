//! [`Namespace::list`](super::super::namespace::Namespace::list): a name that is there from the
//! beginning of a listing to its end is in it once.

use std::collections::BTreeSet;

use crate::lab::Lab;
use crate::lab::programs::Programs;
use crate::overlay::Ino;
use crate::overlay::listing::Listing;

/// A directory that a program reads, a few names at a time.
struct Reading<'a> {
    programs: &'a Programs,
    number: Ino,
    listing: Listing,
    offset: u64,
    names: Vec<String>,
}

impl<'a> Reading<'a> {
    async fn begin(programs: &'a Programs, path: &str) -> Self {
        let listing = programs.working().namespace().begin_listing();
        Reading { programs, number: programs.number(path).await.unwrap(), listing, offset: 0, names: Vec::new() }
    }

    /// Reads up to `most` further names. Returns those.
    async fn read(&mut self, most: usize) -> Vec<String> {
        let page = self.programs.list_page(self.number, self.offset, &self.listing, most).await;
        self.offset = page.last().map_or(self.offset, |(_, offset)| *offset);
        let names: Vec<String> = page.into_iter().map(|(name, _)| name).collect();
        self.names.extend(names.iter().cloned());
        names
    }

    /// Reads the rest, `most` names at a time. Returns all names, sorted.
    async fn finish(mut self, most: usize) -> Vec<String> {
        while !self.read(most).await.is_empty() {
            assert!(self.names.len() < 1000, "a listing ends: {:?}", self.names);
        }
        self.names.sort();
        self.names
    }
}

/// Checks that each of `stayed` is in `listed` once, and that nothing is in it twice.
fn check(listed: &[String], stayed: &[&str]) {
    let distinct: BTreeSet<&String> = listed.iter().collect();
    assert_eq!(distinct.len(), listed.len(), "a name is listed twice: {listed:?}");
    for name in stayed {
        assert!(listed.iter().any(|listed| listed == name), "{name} was there all the time: {listed:?}");
    }
}

/// Array with files of the snapshot and of the mount beside one another.
async fn mixed(lab: &Lab) -> Programs {
    let programs = Programs::with_arrays(lab).await;
    for name in ["2", "3", "x", "y", "z"] {
        programs.put(&format!("a/c/{name}"), name).await;
    }
    programs.patch("a/c/1", 0, "O").await;
    programs
}

const MIXED: [&str; 10] = [".", "..", "0", "1", "2", "3", "7", "x", "y", "z"];

#[tokio::test]
async fn pages_of_any_size_list_the_same() {
    let lab = Lab::new().await;
    let programs = mixed(&lab).await;
    for most in 1..12 {
        let listed = Reading::begin(&programs, "a/c").await.finish(most).await;
        assert_eq!(listed, MIXED, "{most} at a time");
    }
}

#[tokio::test]
async fn names_that_come_and_go_during_a_listing_hide_no_other() {
    for read_before in [0, 3, 4, 6, 8] {
        let lab = Lab::new().await;
        let programs = mixed(&lab).await;
        let mut reading = Reading::begin(&programs, "a/c").await;
        reading.read(read_before).await;
        programs.unlink("a/c/0").await.unwrap();
        programs.unlink("a/c/x").await.unwrap();
        programs.put("a/c/4", "made").await;
        programs.mv("a/c/2", "a/c/renamed").await;
        programs.patch("a/c/7", 0, "S").await;
        let listed = reading.finish(2).await;
        check(&listed, &[".", "..", "1", "3", "7", "y", "z"]);
    }
}

#[tokio::test]
async fn a_name_that_gets_another_file_during_a_listing_is_listed_once() {
    for read_before in [0, 3, 4, 6, 8] {
        let lab = Lab::new().await;
        let programs = mixed(&lab).await;
        let mut reading = Reading::begin(&programs, "a/c").await;
        reading.read(read_before).await;
        for name in ["0", "1", "2", "y"] {
            programs.put("new", "new").await;
            programs.mv("new", &format!("a/c/{name}")).await;
        }
        let listed = reading.finish(3).await;
        check(&listed, &MIXED);
        assert_eq!(listed.len(), MIXED.len(), "no other name: {listed:?}");
    }
}

#[tokio::test]
async fn a_program_that_renames_each_entry_that_it_reads_comes_to_an_end() {
    let lab = Lab::new().await;
    let programs = mixed(&lab).await;
    let mut reading = Reading::begin(&programs, "a/c").await;
    let mut renamed = BTreeSet::new();
    loop {
        let names = reading.read(2).await;
        if names.is_empty() {
            break;
        }
        for name in names.iter().filter(|name| !name.starts_with('.')) {
            assert!(renamed.insert(name.clone()), "{name} was renamed before");
            programs.mv(&format!("a/c/{name}"), &format!("a/c/{name}.bak")).await;
        }
    }
    assert_eq!(renamed.len(), MIXED.len() - 2, "each was read: {renamed:?}");
    assert!(programs.list("a/c").await.iter().all(|name| name.ends_with(".bak")));
}

#[tokio::test]
async fn a_directory_is_emptied_by_a_program_that_removes_what_it_reads() {
    let lab = Lab::new().await;
    let programs = mixed(&lab).await;
    let mut reading = Reading::begin(&programs, "a/c").await;
    loop {
        let names = reading.read(3).await;
        if names.is_empty() {
            break;
        }
        for name in names.iter().filter(|name| !name.starts_with('.')) {
            programs.unlink(&format!("a/c/{name}")).await.unwrap();
        }
    }
    programs.remove_directory("a/c").await.unwrap();
}

#[tokio::test]
async fn an_open_directory_that_is_moved_is_listed_to_its_end() {
    for read_before in [0, 3, 4, 6, 8] {
        let lab = Lab::new().await;
        let programs = mixed(&lab).await;
        let mut reading = Reading::begin(&programs, "a/c").await;
        reading.read(read_before).await;
        programs.mv("a", "m/a").await;
        let listed = reading.finish(4).await;
        assert_eq!(listed, MIXED, "{read_before} were read before the move");
    }
}

#[tokio::test]
async fn a_listing_that_goes_on_over_a_refresh_has_each_name_once() {
    for read_before in [0, 2, 3, 5, 7, 9] {
        let lab = Lab::new().await;
        // So that directories have the numbers of the snapshot.
        let programs = mixed(&lab).await.restart(&lab).await;
        let other = Programs::new(&lab, "second").await;
        let mut reading = Reading::begin(&programs, "a/c").await;
        reading.read(read_before).await;
        other.put("a/c/5", "five").await;
        other.unlink("a/c/0").await.unwrap();
        other.commit().await;
        programs.session.refresh().await.unwrap();
        check(&reading.finish(2).await, &[".", "..", "1", "2", "3", "7", "x", "y", "z"]);
    }
}

#[tokio::test]
async fn a_listing_of_a_directory_that_was_made_here_goes_on_over_a_commit() {
    for read_before in [0, 2, 3, 5, 7, 9] {
        let lab = Lab::new().await;
        let programs = mixed(&lab).await;
        let mut reading = Reading::begin(&programs, "a/c").await;
        reading.read(read_before).await;
        programs.commit().await;
        check(&reading.finish(2).await, &MIXED);
    }
}

/// Names of the upper layer become names of the base, some of them before the point from which the
/// listing goes on.
#[tokio::test]
async fn a_listing_of_a_directory_of_the_snapshot_goes_on_over_a_commit() {
    for read_before in [0, 2, 3, 4, 5, 6, 7, 9] {
        let lab = Lab::new().await;
        let programs = mixed(&lab).await.restart(&lab).await;
        programs.put("a/c/4", "4").await;
        let mut reading = Reading::begin(&programs, "a/c").await;
        reading.read(read_before).await;
        programs.commit().await;
        check(&reading.finish(2).await, &[".", "..", "0", "1", "2", "3", "4", "7", "x", "y", "z"]);
        let inodes = || programs.working().upper().lock().state.iter().count();
        let kept = inodes();
        programs.patch("a/c/1", 0, "1").await;
        programs.commit().await;
        assert!(inodes() < kept, "what was kept for the listing is gone");
    }
}

#[tokio::test]
async fn untracked_files_stay_in_a_listing_that_goes_on_over_a_discard() {
    for read_before in [0, 2, 5, 7, 9] {
        let lab = Lab::new().await;
        // So that directories have the numbers of the snapshot.
        let programs = mixed(&lab).await.restart(&lab).await;
        let mut reading = Reading::begin(&programs, "a/c").await;
        reading.read(read_before).await;
        programs.session.discard("").await.unwrap();
        check(&reading.finish(2).await, &["x", "y", "z"]);
    }
}
