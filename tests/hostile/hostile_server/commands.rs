//! Commands without a mount, against every kind of wrong answer.

use std::collections::BTreeMap;
use std::time::Duration;

use super::measure::{Client, command, complaint, measure, seed, side_by_side};
use crate::common::hostile::{Lie, Store, To};

/// Wrong answers that can be given to any request.
const ANY: [Lie; 18] = [
    Lie::Silent,
    Lie::HeadDrip,
    Lie::BodyDrip,
    Lie::HugeClaim,
    Lie::EndlessBody,
    Lie::EndlessChunks,
    Lie::ShortBody,
    Lie::WrongRange,
    Lie::OverflowingRange,
    Lie::Redirects,
    Lie::Gzip,
    Lie::EndlessHeader,
    Lie::EndlessHeaders,
    Lie::Informational,
    Lie::GarbledChunks,
    Lie::EndlessRefusal,
    Lie::EndlessOverload,
    Lie::SlowReader,
];
/// Wrong answers that take effect at once, for commands that are similar to others.
const FEW: [Lie; 4] = [Lie::Silent, Lie::BodyDrip, Lie::EndlessChunks, Lie::EndlessRefusal];
/// Wrong answers to listings.
const LISTINGS: [Lie; 7] = [
    Lie::EndlessListing,
    Lie::RepeatedPage,
    Lie::Backwards,
    Lie::Outside,
    Lie::EmptyPages,
    Lie::SlowPages,
    Lie::EndlessPage,
];
const READ: [&[&str]; 8] = [
    &["refs", "REPO"],
    &["log", "REPO"],
    &["ls", "REPO"],
    &["stats", "REPO"],
    &["diff", "REPO", "main", "main~1"],
    &["verify", "REPO"],
    &["ops", "REPO"],
    &["config", "REPO", "get"],
];
const CAT: &[&str] = &["cat", "REPO", "a/c/1"];
const EXPORT: &[&str] = &["export", "REPO", "DEST"];
const VERIFY: &[&str] = &["verify", "REPO", "--chunks"];
const GC: &[&str] = &["gc", "REPO", "--older-than", "1d", "--yes"];
const WRITE: [&[&str]; 5] = [
    &["tag", "REPO", "create", "v1"],
    &["branch", "REPO", "create", "dev"],
    &["expire", "REPO", "--older-than", "1d", "--yes"],
    &["amend", "REPO", "-m", "x", "--yes"],
    &["init", "REPO", "--zarr-group"],
];

/// A command, and the wrong answer that it gets.
#[derive(Clone, Debug)]
struct Case {
    client: Client,
    words: Vec<&'static str>,
    to: To,
    lie: Lie,
}

fn cases(client: Client, words: &[&'static str], to: To, lies: &[Lie]) -> Vec<Case> {
    lies.iter().map(|&lie| Case { client, words: words.to_vec(), to, lie }).collect()
}

/// Runs `words` over a store that gives wrong answers to some requests, or to none.
fn run(client: Client, words: &[&str], to: To, lie: Lie) -> super::measure::Outcome {
    let objects = if words[0] == "init" { BTreeMap::new() } else { seed() };
    let store = Store::new(objects);
    store.lie(to, lie);
    let destination = tempfile::tempdir().unwrap();
    let place = destination.path().join("out").display().to_string();
    let words: Vec<&str> = words.iter().map(|word| if *word == "DEST" { &place } else { *word }).collect();
    measure(&mut command(client, &store, &words))
}

/// Runs `cases`, each of which must end in time and within its memory; those with detectable wrong
/// answers must fail.
fn check(cases: Vec<Case>) {
    seed();
    // The time of each command by itself.
    let honest = |case: &Case| {
        let honest = run(case.client, &case.words, To::Nobody, Lie::Silent);
        assert!(honest.success, "{:?} {:?}: {}", case.client, case.words, honest.stderr);
        honest.elapsed
    };
    let mut alone: BTreeMap<(Client, Vec<&str>), Duration> = BTreeMap::new();
    for case in &cases {
        alone.entry((case.client, case.words.clone())).or_insert_with(|| honest(case));
    }
    let count = cases.len();
    let complaints = side_by_side(cases, |case| {
        let outcome = run(case.client, &case.words, case.to, case.lie);
        let alone = alone[&(case.client, case.words.clone())];
        // The other test programs may keep the machine busier than it was then.
        complaint(&outcome, alone)
            .and_then(|_| complaint(&outcome, honest(case)))
            .or_else(|| (outcome.success && is_detectable(case)).then(|| "it succeeded".to_owned()))
    });
    assert!(complaints.is_empty(), "{} of {count}:\n{}", complaints.len(), complaints.join("\n"));
}

/// Returns true if the command cannot succeed under the lie. Others may succeed: a store answers as
/// it likes to writes, and a read of a whole object does not use ranges.
fn is_detectable(case: &Case) -> bool {
    match (case.to, case.lie) {
        // There is no commit to expire.
        (To::Writes, _) if case.words[0] == "expire" => false,
        (
            To::Writes,
            Lie::EndlessRefusal | Lie::EndlessOverload | Lie::Silent | Lie::HeadDrip | Lie::EndlessHeaders,
        ) => true,
        (To::Writes, _)
        | (_, Lie::SlowReader | Lie::Gzip | Lie::WrongRange | Lie::OverflowingRange | Lie::ShortBody) => false,
        _ => true,
    }
}

#[test]
#[ignore = "takes long: scripts/test --full"]
fn every_command_ends_whatever_the_server_answers() {
    let mut all = cases(Client::Amazon, READ[0], To::All, &ANY);
    for words in &READ[1..] {
        all.extend(cases(Client::Amazon, words, To::All, &FEW));
    }
    for words in [CAT, EXPORT] {
        all.extend(cases(Client::Amazon, words, To::Chunks, &ANY));
    }
    for client in [Client::Google, Client::Azure, Client::Web] {
        all.extend(cases(client, READ[0], To::All, &ANY));
        all.extend(cases(client, CAT, To::Chunks, &ANY));
    }
    check(all);
}

#[test]
fn every_command_ends_whatever_the_server_lists() {
    let mut all = Vec::new();
    for words in [VERIFY, GC, &["stats", "REPO"]] {
        all.extend(cases(Client::Amazon, words, To::Listings, &LISTINGS));
        all.extend(cases(Client::Amazon, words, To::Listings, &FEW));
    }
    for client in [Client::Google, Client::Azure] {
        all.extend(cases(client, GC, To::Listings, &LISTINGS));
    }
    let [.., init] = WRITE;
    all.extend(cases(Client::Amazon, init, To::Listings, &LISTINGS));
    check(all);
}

#[test]
fn every_command_ends_however_writes_are_answered() {
    let mut all = Vec::new();
    for words in WRITE {
        all.extend(cases(Client::Amazon, words, To::Writes, &FEW));
    }
    for client in [Client::Google, Client::Azure] {
        all.extend(cases(client, WRITE[0], To::Writes, &FEW));
    }
    all.extend(cases(Client::Amazon, WRITE[0], To::Writes, &ANY));
    check(all);
}
