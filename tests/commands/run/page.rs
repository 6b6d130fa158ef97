//! The pages of `docs/how-do-i`: their commands run as they are, and print what the pages say. The
//! tour of the README runs as it is.

use std::process::Command;

use crate::common::pages::{Desk, blocks, is_installed, run_commands};
use crate::common::writing::needed;
use crate::common::{entries, place, project, python, run};

/// Pages that do not run here: they need servers of a file system, MPI (`tests/commands/cluster.rs`
/// runs that page), and systemd.
const ELSEWHERE: [&str; 3] = ["export-samba-nfs.md", "many-writers.md", "mount-at-boot.md"];

#[test]
fn the_commands_about_netcdf_files_print_what_the_page_says() {
    check("start-from-netcdf.md");
}

#[test]
fn the_commands_about_nightly_jobs_print_what_the_page_says() {
    check("nightly-job.md");
}

#[test]
fn the_commands_about_conflicts_print_what_the_page_says() {
    check("resolve-a-conflict.md");
}

#[test]
fn the_commands_about_rolling_back_print_what_the_page_says() {
    check("roll-back-a-commit.md");
}

#[test]
fn the_commands_about_old_versions_print_what_the_page_says() {
    check("compare-two-versions.md");
}

#[test]
fn the_commands_about_sharing_print_what_the_page_says() {
    check("share-on-one-machine.md");
}

#[test]
fn the_commands_about_publishing_print_what_the_page_says() {
    check("publish-and-mirror.md");
}

#[test]
fn the_commands_about_working_offline_print_what_the_page_says() {
    check("work-offline.md");
}

#[test]
fn the_commands_about_backups_print_what_the_page_says() {
    check("back-it-up.md");
}

#[test]
fn the_commands_about_chunks_of_dask_print_what_the_page_says() {
    check("write-whole-chunks-with-dask.md");
}

#[test]
fn the_commands_about_other_programs_print_what_the_page_says() {
    check("read-with-other-programs.md");
}

/// Each line of the tour, one after another. `diff` tells by its status that trees differ.
#[test]
fn the_tour_of_the_readme_runs() {
    let Some(desk) = desk() else { return };
    std::fs::remove_dir_all(desk.directory().join("ocean")).unwrap();
    let readme = std::fs::read_to_string(project("README.md")).unwrap();
    let (_, tour) = readme.split_once("## Two-minute tour").unwrap();
    let (tour, _) = tour.split_once("A repository can also be in").unwrap();
    let mut count = 0;
    for line in blocks(tour).iter().flat_map(|block| block.text.lines()) {
        if line.starts_with("ncdump") && !needed(is_installed("ncdump"), "programs: scripts/setup --programs") {
            continue;
        }
        let output = run(&mut desk.command(line));
        let is_expected = output.status.success() || line.starts_with("diff") && output.status.code() == Some(1);
        assert!(is_expected, "{line}: {}", output.all());
        count += 1;
    }
    assert!(count >= 18, "{count} commands");
}

#[test]
fn the_page_about_free_space_says_what_happens() {
    check("free-space.md");
}

#[test]
fn every_page_is_in_the_index_and_has_a_test() {
    let index = std::fs::read_to_string(project("docs/how-do-i/README.md")).unwrap();
    let tests = include_str!("page.rs");
    let mut count = 0;
    for path in entries(&project("docs/how-do-i")) {
        let name = path.file_name().unwrap().to_str().unwrap();
        if name != "README.md" {
            assert!(index.contains(&format!("({name})")), "the index has no {name}");
            let is_run = tests.contains(&format!("check(\"{name}\")"));
            assert!(is_run || ELSEWHERE.contains(&name), "no test runs {name}");
            count += 1;
        }
    }
    assert!(count >= 14, "{count} pages");
}

/// Returns a directory with the repository of the pages.
fn desk() -> Option<Desk> {
    let python = python()?;
    if !place::needs_directory() {
        return None;
    }
    let work = tempfile::tempdir().unwrap();
    let demo = work.path().join("ocean");
    run(Command::new(&python).arg(project("docs/recipes/demo.py")).arg(&demo)).success();
    Some(Desk::new(&demo, &[python.parent().unwrap().to_owned()]))
}

fn check(page: &str) {
    let Some(desk) = desk() else { return };
    let mut count = 0;
    for block in blocks(&std::fs::read_to_string(project("docs/how-do-i").join(page)).unwrap()) {
        match block.info.get(1) {
            Some(name) => desk.write(name, &block.text),
            None if block.has("console") => count += run_commands(&desk, &block, page),
            None => {}
        }
    }
    assert!(count >= 3, "{count} commands");
}
