//! Common programs at a mount's path: shell tools, zarr-python, xarray, tensorstore.

use std::path::Path;
use std::process::Command;

use crate::common::{Fixture, FixtureSet, Mount, io_modes, project, python, run};

#[test]
fn shell_tools_see_a_plain_directory() {
    let fixture = FixtureSet::own().get("own-v2-basic");
    for io in io_modes() {
        let mount = Mount::new(&fixture.repository, &["--io", io]);
        let copies = tempfile::tempdir().unwrap();
        let root = mount.path();
        let sh = |script: &str| {
            let mut command = Command::new("bash");
            command.args(["-euo", "pipefail", "-c", script, "bash"]).arg(&root).arg(copies.path());
            run(&mut command).text()
        };
        let sums = |place: &str| {
            sh(&format!("cd \"{place}\" && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum"))
        };
        let mounted = sums("$1");
        assert!(mounted.lines().count() > 60, "{mounted}");
        // Each expected hash is one of a file's.
        let id = fixture.expected["branches"]["main"].as_str().unwrap();
        for (key, value) in fixture.expected["snapshots"][id]["fskeys"].as_object().unwrap() {
            let line = format!("{}  ./{key}", value[1].as_str().unwrap());
            assert!(mounted.lines().any(|shown| shown == line), "{line}");
        }
        sh("cp -r \"$1\" \"$2/cp\"");
        assert_eq!(sums("$2/cp"), mounted, "cp -r ({io})");
        sh("mkdir \"$2/tar\" && tar -C \"$1\" -cf - . | tar -C \"$2/tar\" -xf -");
        assert_eq!(sums("$2/tar"), mounted, "tar ({io})");
        let long = sh("ls -lR \"$1\"");
        assert!(long.contains("zarr.json") && !long.contains('?'), "{long}");
        let count = |script: &str| sh(script).trim().parse::<usize>().unwrap();
        assert_eq!(count("find \"$1\" -type f | wc -l"), count("find \"$2/cp\" -type f | wc -l"));
        assert_eq!(count("find \"$1\" -type d | wc -l"), count("find \"$2/cp\" -type d | wc -l"));
        // Copies keep the commit's time with the option for that.
        let times = sh("cp -a \"$1\" \"$2/a\" && stat -c %y \"$1/zarr.json\" \"$2/a/zarr.json\"");
        let times: Vec<&str> = times.lines().collect();
        assert_eq!(times[0], times[1]);
    }
}

fn check_values(set: &FixtureSet, python: &Path) {
    let mut equal = [0; 3];
    let script = project("tests/python/read_tools.py");
    for fixture in set.all() {
        // The snapshot of every ref; other snapshots are compared byte for byte elsewhere.
        let mut snapshots: Vec<&str> = tips(&fixture);
        snapshots.sort_unstable();
        snapshots.dedup();
        for id in snapshots {
            let mount = Mount::new(&fixture.repository, &["--snapshot", id]);
            let expected = set.expected_path(&fixture.name);
            let mut command = Command::new(python);
            command.arg(&script).arg(mount.path()).arg(expected).arg(id).arg("--virtual-unreadable");
            let output = run(&mut command);
            let what = format!("{} {id}: {}{}", fixture.name, String::from_utf8_lossy(&output.stdout), output.stderr);
            assert!(output.status.success(), "{what}");
            let line = String::from_utf8_lossy(&output.stdout).lines().last().unwrap().to_owned();
            let counts = line.split(' ').filter_map(|word| word.parse::<usize>().ok());
            std::iter::zip(&mut equal, counts).for_each(|(sum, count)| *sum += count);
        }
    }
    println!("{}: {equal:?} arrays equal with zarr-python, xarray and tensorstore", set.name);
    assert!(equal[0] > 200 && equal[1] > 2 && equal[2] > 150, "{equal:?}");
}

fn tips(fixture: &Fixture) -> Vec<&str> {
    ["branches", "tags"]
        .iter()
        .flat_map(|kind| fixture.expected[kind].as_object().unwrap().values())
        .map(|id| id.as_str().unwrap())
        .collect()
}

#[test]
fn zarr_programs_read_the_recorded_values_of_own_fixtures() {
    if let Some(python) = python() {
        check_values(&FixtureSet::own(), &python);
    }
}

#[test]
#[ignore = "takes long: scripts/test --full"]
fn zarr_programs_read_the_recorded_values_of_shared_fixtures() {
    if let (Some(python), Some(set)) = (python(), FixtureSet::shared()) {
        check_values(&set, &python);
    }
}
