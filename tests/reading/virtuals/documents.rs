//! The commands of the reference page on virtual chunks, run as written there.

use std::path::Path;
use std::process::Command;

use super::web::content;
use crate::common::made::{reference, repository};
use crate::common::{program, project, run};

/// Returns the lines of the page that are commands of icechunkfs.
fn commands() -> Vec<String> {
    let page = std::fs::read_to_string(project("docs/reference/virtual-chunks.md")).unwrap();
    page.lines().filter(|line| line.starts_with("icechunkfs ")).map(str::to_owned).collect()
}

#[test]
fn commands_of_the_reference_page_read_virtual_chunks() {
    let directory = tempfile::tempdir().unwrap();
    let netcdf = directory.path().join("data/netcdf");
    std::fs::create_dir_all(&netcdf).unwrap();
    std::fs::create_dir(directory.path().join("ocean")).unwrap();
    std::fs::write(netcdf.join("2026.nc"), content(0, 1000)).unwrap();
    let references =
        [reference("s3://bucket/netcdf/2026.nc", 10, 100), reference("https://data.example/nc/2026.nc", 20, 5)];
    repository(&directory.path().join("repo"), Vec::new(), &references);
    let programs = Path::new(program()).parent().unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let shell = |line: &str| {
        let mut command = Command::new("sh");
        command.args(["-ec", line]).current_dir(directory.path()).env("PATH", &path).env("HOME", "/nonexistent");
        run(&mut command)
    };
    let commands = commands();
    assert!(commands.len() >= 4, "{commands:?}");
    let mut shown = 0;
    for line in commands {
        let line = line.split(" #").next().unwrap().replace("/data/", &format!("{}/data/", directory.path().display()));
        if line.contains(" mount ") {
            shell(&format!("{line} --read-only --log-file log")).success();
            assert!(directory.path().join("ocean/v/c/0").exists(), "{line}");
            shell("icechunkfs unmount ocean").success();
        } else {
            assert_eq!(shell(&line).success(), content(10, 100), "{line}");
            shown += 1;
        }
    }
    assert!(shown > 0, "one of them reads a copy");
}
