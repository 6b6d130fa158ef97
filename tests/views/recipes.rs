//! The pages of `docs/recipes`: their commands run as they are, and print what the pages say.
//!
//! Besides what any page may have ([`pages`](crate::common::pages)), `console needs OPTION` runs if
//! `mount` has the option, and `console screen` runs on a screen, and its last command is a window.
//! The repository is that of `docs/recipes/demo.py`.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::common::pages::{Block, Desk, blocks, is_installed, run_commands};
use crate::common::writing::needed;
use crate::common::{entries, icechunkfs, place, project, python, run, wait_for, wait_until};

/// Colors of a picture that shows more than buttons and texts.
const MAP_COLORS: usize = 40;
/// Lowest number of the displays that are tried: lower ones may be the user's.
const FIRST_DISPLAY: u32 = 90;

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
    // Without `-noreset`, the screen begins anew when its first client has gone, and disconnects a
    // window that has just appeared.
    let server = start(Command::new("Xvfb").args([name.as_str(), "-noreset", "-screen", "0", "1100x800x24"]));
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
    let mut shown = start(desk.command(&format!("exec {}", window.0)).env("DISPLAY", &display));
    wait_for("a map on the screen", || {
        let ended = shown.0.try_wait().unwrap();
        assert!(ended.is_none(), "{what}: {}: the window has closed: {ended:?}", window.0);
        colors(desk, &display).filter(|colors| *colors >= MAP_COLORS)
    });
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
    let desk = Desk::new(demo, &[venv]);
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
                    desk.write(file, &block.text);
                }
            }
            None => {}
        }
    }
    assert!(count >= 3, "{name}: {count} commands");
    count
}

#[test]
#[ignore = "needs many programs: scripts/test --full"]
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
