//! The page `docs/jobs.md`: its commands run as they are, and print what it says.

use std::process::Command;

use crate::common::pages::{Desk, blocks, run_commands};
use crate::common::{place, project, python, run};

#[test]
fn the_commands_of_the_page_print_what_it_says() {
    let Some(python) = python() else { return };
    if !place::needs_directory() {
        return;
    }
    let work = tempfile::tempdir().unwrap();
    let demo = work.path().join("ocean");
    run(Command::new(&python).arg(project("docs/recipes/demo.py")).arg(&demo)).success();
    let desk = Desk::new(&demo, &[python.parent().unwrap().to_owned()]);
    let mut count = 0;
    for block in blocks(&std::fs::read_to_string(project("docs/jobs.md")).unwrap()) {
        match block.info.get(1) {
            Some(name) => desk.write(name, &block.text),
            None if block.has("console") => count += run_commands(&desk, &block, "docs/jobs.md"),
            None => {}
        }
    }
    assert!(count >= 4, "{count} commands");
}
