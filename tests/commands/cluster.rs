//! The page `docs/how-do-i/many-writers.md`: its programs run as they are, and print what it says.
//! A stand-in for SLURM (`cluster/sbatch`) runs tasks in namespaces of their own; the objects of
//! Kubernetes are checked against its schemas.

use std::path::Path;
use std::process::Command;

use crate::common::pages::{Block, Desk, blocks, is_installed, run_commands};
use crate::common::writing::needed;
use crate::common::{icechunkfs, is_root, place, program, project, python, run};

const PAGE: &str = "docs/how-do-i/many-writers.md";

fn page() -> Vec<Block> {
    blocks(&std::fs::read_to_string(project(PAGE)).unwrap())
}

/// Prepares a directory with the repository of the page; none if something is missing.
fn desk() -> Option<(tempfile::TempDir, Desk)> {
    let venv = project("target/venv-python/bin");
    if !needed(venv.exists(), "target/venv-python: scripts/setup --package-python makes it")
        || !needed(is_installed("mpirun"), "mpirun: scripts/setup --programs installs it")
        || !needed(is_root(), "root, for namespaces of tasks")
        || !place::needs_directory()
    {
        return None;
    }
    let python = python()?;
    let work = tempfile::tempdir().unwrap();
    let demo = work.path().join("ocean");
    run(Command::new(&python).arg(project("docs/recipes/demo.py")).arg(&demo)).success();
    let desk = Desk::new(&demo, &[project("tests/commands/cluster"), venv])
        .with("PYTHONPATH", project("python"))
        .with("PYTHONDONTWRITEBYTECODE", "1")
        .with("ICECHUNKFS_BINARY", program())
        // A worker may be asking the scheduler for something when its cluster ends, and says so.
        .with("DASK_LOGGING", "{'distributed.worker': 'critical'}")
        // MPI refuses to run as root, and to run more ranks than there are cores.
        .with("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .with("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .with("OMPI_MCA_rmaps_base_oversubscribe", "1");
    Some((work, desk))
}

fn is_commands(block: &Block) -> bool {
    block.info.first().is_some_and(|word| word == "console")
}

fn write_files(desk: &Desk) {
    for block in page().iter().filter(|block| !is_commands(block)) {
        if let Some(name) = block.info.get(1) {
            desk.write(name, &block.text);
        }
    }
}

fn messages(ocean: &Path, branch: &str) -> Vec<String> {
    let log = icechunkfs(["log", ocean.to_str().unwrap(), "--branch", branch, "--json"]).json();
    log.as_array().unwrap().iter().map(|commit| commit["message"].as_str().unwrap().to_owned()).collect()
}

#[test]
#[ignore = "needs MPI and dask: scripts/test --full"]
fn the_programs_of_the_page_print_what_it_says() {
    let Some((_work, desk)) = desk() else { return };
    write_files(&desk);
    let mut count = 0;
    for block in page().iter().filter(|block| is_commands(block)) {
        count += run_commands(&desk, block, PAGE);
    }
    assert!(count >= 12, "{count} commands");
    // Four writers, and each ensemble is one commit: nobody saw a part of it.
    let history = messages(&desk.directory().join("ocean"), "main");
    let newest = ["Ranks of 4", "Ensemble of a job array", "Ensemble of dask", "Arrays for the ensembles"];
    assert_eq!(history.iter().take(4).collect::<Vec<_>>(), newest.iter().collect::<Vec<_>>());
    let checked = std::fs::read_to_string(desk.directory().join("validation.log")).unwrap();
    assert_eq!(checked.matches("passed").count(), 2, "{checked}");
}

#[test]
#[ignore = "needs MPI: scripts/test --full"]
fn a_task_that_fails_keeps_its_job_from_being_merged() {
    let Some((_work, desk)) = desk() else { return };
    write_files(&desk);
    let page = page();
    run_commands(&desk, page.iter().find(|block| is_commands(block)).unwrap(), PAGE);
    let ocean = desk.directory().join("ocean");
    let before = messages(&ocean, "main");
    let works = std::fs::read_to_string(desk.directory().join("member.py")).unwrap();
    desk.write("member.py", &format!("{works}\nif number == 2:\n    raise SystemExit('the model is unstable')\n"));
    run(&mut desk.command("bash submit.sh")).success();
    assert_eq!(messages(&ocean, "main"), before);
    let told = std::fs::read_to_string(desk.directory().join("member-2.log")).unwrap();
    assert!(told.contains("the model is unstable"), "{told}");
    // The others' work is on the branch of the job, which a task that is run again completes.
    let mut done = messages(&ocean, "job-1001");
    done.truncate(3);
    done.sort();
    assert_eq!(done, ["Member 0", "Member 1", "Member 3"]);
    desk.write("member.py", &works);
    let again = "mkdir again && icechunkfs mount ocean again --branch job-1001 --create --ephemeral && \
                 python member.py again/slurm 2 && icechunkfs commit again -m 'Member 2'; icechunkfs unmount again";
    run(&mut desk.command(again)).success();
    run(&mut desk.command("REPOSITORY=$PWD/ocean JOB=1001 bash merge.sbatch")).success();
    assert_eq!(messages(&ocean, "main").len(), before.len() + 1);
    assert!(!icechunkfs(["refs", ocean.to_str().unwrap()]).text().contains("job-"));
}
