//! The pages of `docs/recipes`: their commands run as they are, and print what the pages say.
//!
//! A fenced block `console` has commands after `$ ` and what they print, on a terminal. `console needs OPTION` runs if `mount` has the
//! option; `console screen` runs on a screen, and its last command is a window. Any other block with a file name after the
//! language, such as `r read.R`, is that file. All of a page happens in one directory with the repository of `docs/recipes/demo.py`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::common::writing::needed;
use crate::common::{copy_tree, entries, icechunkfs, place, program, project, python, run, wait_for, wait_until};

/// Colors of a picture that shows more than buttons and texts.
const MAP_COLORS: usize = 40;
/// Lowest number of the displays that are tried: lower ones may be the user's.
const FIRST_DISPLAY: u32 = 90;

/// Fenced block of a page.
struct Block {
    /// Words after the fence.
    info: Vec<String>,
    text: String,
}

impl Block {
    fn has(&self, word: &str) -> bool {
        self.info.iter().any(|info| info == word)
    }

    /// Returns the commands with what they print.
    fn commands(&self) -> Vec<(String, String)> {
        let mut commands: Vec<(String, String)> = Vec::new();
        for line in self.text.lines() {
            if let Some(command) = line.strip_prefix("$ ") {
                commands.push((command.to_owned(), String::new()));
            } else if let Some((_, printed)) = commands.last_mut() {
                printed.push_str(line);
                printed.push('\n');
            }
        }
        commands
    }
}

fn blocks(page: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut is_inside = false;
    for line in page.lines() {
        match line.strip_prefix("```") {
            Some(_) if is_inside => is_inside = false,
            Some(info) => {
                is_inside = true;
                let info = info.split_whitespace().map(str::to_owned).collect();
                blocks.push(Block { info, text: String::new() });
            }
            None if is_inside => {
                let block = blocks.last_mut().unwrap();
                block.text.push_str(line);
                block.text.push('\n');
            }
            None => {}
        }
    }
    blocks
}

/// Returns an output without spaces at the ends of lines.
fn trimmed(output: &str) -> String {
    output.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// Directory of a page. What is mounted there is unmounted in the end.
struct Desk {
    directory: tempfile::TempDir,
    path: OsString,
}

impl Desk {
    /// Prepares a directory with a copy of `demo`. `venv` is the Python of its programs.
    fn new(demo: &Path, venv: &Path) -> Desk {
        let prefix = format!("icechunkfs-test-{}-", std::process::id());
        let directory = tempfile::Builder::new().prefix(&prefix).tempdir().unwrap();
        copy_tree(demo, &directory.path().join("ocean"));
        let own = Path::new(program()).parent().unwrap();
        let usual = std::env::var_os("PATH").unwrap_or_default();
        let folders = [own.to_owned(), venv.to_owned()].into_iter().chain(std::env::split_paths(&usual));
        let path = std::env::join_paths(folders).unwrap();
        Desk { directory, path }
    }

    /// Returns the command of a line, which prints everything to one place.
    fn command(&self, line: &str) -> Command {
        let mut command = Command::new("bash");
        command.args(["-c", &format!("exec 2>&1; {line}")]).current_dir(self.directory.path()).env("PATH", &self.path);
        command
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        let place = self.directory.path().join("mnt").display().to_string();
        let table = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
        if table.lines().any(|line| line.split(' ').nth(1) == Some(&place)) {
            let _ = Command::new("umount").arg("-l").arg(&place).status();
        }
    }
}

/// Process that ends with its owner.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // A screen removes its files when it is asked to end.
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

fn start(command: &mut Command) -> Running {
    Running(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
}

/// Starts a screen without a monitor. Returns its name, too.
fn screen() -> (Running, String) {
    let is_free = |number: &u32| !Path::new(&format!("/tmp/.X11-unix/X{number}")).exists();
    let number = (FIRST_DISPLAY..FIRST_DISPLAY + 100).find(is_free).expect("a free display");
    let name = format!(":{number}");
    let server = start(Command::new("Xvfb").args([name.as_str(), "-screen", "0", "1100x800x24"]));
    (server, name)
}

/// Returns the number of colors on a screen, once it shows the window of a file.
fn colors(desk: &Desk, display: &str) -> Option<usize> {
    let line =
        "xdotool search --onlyvisible --name '[.]nc$' >/dev/null && import -window root png:- | identify -format %k -";
    run(desk.command(line).env("DISPLAY", display)).all().trim().parse().ok()
}

/// Runs the commands of a block; the last one is a window that must show a map.
fn run_on_screen(desk: &Desk, block: &Block, what: &str) -> usize {
    let commands = block.commands();
    let (window, before) = commands.split_last().unwrap();
    for (line, _) in before {
        let output = run(&mut desk.command(line));
        assert!(output.status.success(), "{what}: {line}: {}", output.all());
    }
    let (_server, display) = screen();
    wait_until("a screen", || {
        run(desk.command("xdotool getdisplaygeometry").env("DISPLAY", &display)).status.success()
    });
    let _window = start(desk.command(&format!("exec {}", window.0)).env("DISPLAY", &display));
    wait_for("a map on the screen", || colors(desk, &display).filter(|colors| *colors >= MAP_COLORS));
    commands.len()
}

/// Runs the commands of a block, and compares what they print.
fn run_commands(desk: &Desk, block: &Block, what: &str) -> usize {
    let commands = block.commands();
    for (line, printed) in &commands {
        let output = run(&mut desk.command(line));
        assert!(output.status.success(), "{what}: {line}: {}", output.all());
        assert_eq!(trimmed(&output.all()), trimmed(printed), "{what}: {line}");
    }
    commands.len()
}

/// Returns the programs that a page needs, beside those of Python.
fn programs(page: &str) -> &'static [&'static str] {
    match page {
        "ncview" => &["ncview", "Xvfb", "import", "identify", "xdotool"],
        "ncdump" => &["ncdump", "nccopy"],
        "cdo" => &["cdo"],
        "nco" => &["ncks", "ncra"],
        "gdal" => &["gdalinfo", "gdal_translate", "gdalmdiminfo"],
        "r" => &["Rscript"],
        "fortran" => &["gfortran", "nf-config"],
        _ => &[],
    }
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).exists())
}

/// Runs a page. Returns the number of its commands.
fn run_page(page: &Path, demo: &Path, options: &str) -> usize {
    let name = page.file_stem().unwrap().to_str().unwrap();
    for program in programs(name) {
        if !needed(is_installed(program), &format!("{program}: scripts/setup --programs installs it")) {
            return 0;
        }
    }
    let venv = project(if name == "zarr2" { "target/venv-zarr2/bin" } else { "target/venv/bin" });
    if !needed(venv.exists(), &format!("{}: scripts/setup --python --zarr2 makes it", venv.display())) {
        return 0;
    }
    let desk = Desk::new(demo, &venv);
    let mut count = 0;
    for block in blocks(&std::fs::read_to_string(page).unwrap()) {
        let what = page.display().to_string();
        match block.info.first().map(String::as_str) {
            Some("console") => {
                let missing = block.info.iter().find(|word| word.starts_with("--") && !options.contains(word.as_str()));
                if let Some(option) = missing {
                    eprintln!("NOT RUN: a part of {what} needs `mount {option}`");
                } else if block.has("screen") {
                    count += run_on_screen(&desk, &block, &what);
                } else {
                    count += run_commands(&desk, &block, &what);
                }
            }
            Some(_) => {
                if let Some(file) = block.info.get(1) {
                    std::fs::write(desk.directory.path().join(file), &block.text).unwrap();
                }
            }
            None => {}
        }
    }
    assert!(count >= 3, "{name}: {count} commands");
    count
}

#[test]
fn the_commands_of_the_recipes_print_what_the_pages_say() {
    let Some(python) = python() else { return };
    if !place::needs_directory() {
        return;
    }
    let work = tempfile::tempdir().unwrap();
    let demo = work.path().join("ocean");
    run(Command::new(&python).arg(project("docs/recipes/demo.py")).arg(&demo)).success();
    let options = icechunkfs(["mount", "--help"]).text();
    let mut pages: Vec<PathBuf> = entries(&project("docs/recipes"));
    pages.retain(|path| path.extension().is_some_and(|extension| extension == "md") && !path.ends_with("README.md"));
    pages.sort();
    let index = std::fs::read_to_string(project("docs/recipes/README.md")).unwrap();
    let mut count = 0;
    for page in &pages {
        let name = page.file_name().unwrap().to_str().unwrap();
        assert!(index.contains(&format!("({name})")), "the index has no {name}");
        count += run_page(page, &demo, &options);
    }
    println!("{count} commands of {} pages", pages.len());
    assert!(pages.len() >= 9, "{}", pages.len());
}
