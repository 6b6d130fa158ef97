//! The library: reading and mounting without the command line.
use std::fs;

use icechunkfs::{ErrorKind, Kind, Mount, Repository, StoreSettings};

use crate::common::{self, FixtureSet};

fn open(fixture: &common::Fixture) -> Repository {
    Repository::open(fixture.repository.to_str().unwrap(), &StoreSettings::default()).unwrap()
}

#[test]
fn history_and_files_are_read_by_the_library() {
    let fixture = FixtureSet::own().all().into_iter().find(|fixture| fixture.name == "own-v2-basic").unwrap();
    let repository = open(&fixture);
    let refs = repository.refs().unwrap();
    assert_eq!(refs.branches["main"].to_string(), fixture.expected["branches"]["main"].as_str().unwrap());
    let log = repository.log("main").unwrap();
    let expected = &fixture.expected["snapshots"][log[0].id.to_string()];
    assert_eq!(log[0], repository.snapshot("branch/main").unwrap());
    assert_eq!(log[0].message, expected["message"].as_str().unwrap());
    assert_eq!(log[0].time, expected["written_at"].as_str().unwrap().parse().unwrap());
    assert_eq!(log[0].parent, Some(log[1].id));
    assert_eq!(log.last().unwrap().parent, None);

    let session = repository.session("main").unwrap();
    let names: Vec<String> = session.list("a/b").unwrap().into_iter().map(|entry| entry.name).collect();
    assert!(["zarr.json", "grid", "x"].iter().all(|name| names.iter().any(|other| other == name)), "{names:?}");
    for (key, value) in expected["keys"].as_object().unwrap() {
        let Some(size) = value[0].as_u64() else { continue };
        let attributes = session.attributes(key).unwrap();
        assert_eq!((attributes.kind, attributes.size), (Kind::File, size), "{key}");
        let bytes = session.read(key).unwrap();
        assert_eq!(bytes.len() as u64, size, "{key}");
        assert_eq!(session.read_range(key, 1..3).unwrap(), bytes[1..3.min(bytes.len())], "{key}");
    }
    let missing = session.read("a/none").unwrap_err();
    assert_eq!((missing.kind(), session.read("a").unwrap_err().kind()), (ErrorKind::NotFound, ErrorKind::IsADirectory));
}

#[test]
fn a_mount_of_the_library_ends_with_its_guard() {
    let fixture = FixtureSet::own().all().into_iter().find(|fixture| fixture.name == "own-v2-basic").unwrap();
    let repository = open(&fixture);
    let place = tempfile::tempdir().unwrap();
    let mounted = Mount::new(&repository).read_only().at(place.path()).unwrap();
    let document = repository.session("main").unwrap().read("zarr.json").unwrap();
    assert_eq!(fs::read(mounted.path().join("zarr.json")).unwrap(), document);
    assert_eq!(mounted.commit("nothing").unwrap_err().kind(), ErrorKind::ReadOnly);
    drop(mounted);
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    // The same place can be mounted again, and is free after an explicit unmount.
    let mut mounted = Mount::new(&repository).tag("v1.0").at(place.path()).unwrap();
    assert!(fs::read_dir(place.path()).unwrap().count() > 0);
    mounted.unmount().unwrap();
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
}
