//! The pages `docs/jobs.md` and `docs/archives.md`: their commands run as they are, and print what
//! the pages say.

use std::process::Command;

use crate::common::pages::{Desk, blocks, run_commands};
use crate::common::{place, project, python, run};

#[test]
fn the_commands_of_the_page_print_what_it_says() {
    check("docs/jobs.md");
}

#[test]
fn the_commands_of_the_page_about_archives_print_what_it_says() {
    check("docs/archives.md");
}

fn check(page: &str) {
    let Some(python) = python() else { return };
    if !place::needs_directory() {
        return;
    }
    let work = tempfile::tempdir().unwrap();
    let demo = work.path().join("ocean");
    run(Command::new(&python).arg(project("docs/recipes/demo.py")).arg(&demo)).success();
    let desk = Desk::new(&demo, &[python.parent().unwrap().to_owned()]);
    let mut count = 0;
    for block in blocks(&std::fs::read_to_string(project(page)).unwrap()) {
        match block.info.get(1) {
            Some(name) => desk.write(name, &block.text),
            None if block.has("console") => count += run_commands(&desk, &block, page),
            None => {}
        }
    }
    assert!(count >= 4, "{count} commands");
}
