//! Pages of the documentation whose commands run as they are.
//!
//! A fenced block `console` has commands after `$ ` and what they print, on a terminal. Any other
//! block with a file name after the language, such as `r read.R`, is that file. All of a page
//! happens in one directory with a copy of a small repository, `ocean`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{copy_tree, program, remove_default_scratch, run};

/// Fenced block of a page.
pub struct Block {
    /// Words after the fence.
    pub info: Vec<String>,
    pub text: String,
}

impl Block {
    pub fn has(&self, word: &str) -> bool {
        self.info.iter().any(|info| info == word)
    }

    /// Returns the commands with what they print.
    pub fn commands(&self) -> Vec<(String, String)> {
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

pub fn blocks(page: &str) -> Vec<Block> {
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
pub struct Desk {
    directory: tempfile::TempDir,
    path: OsString,
    variables: Vec<(&'static str, OsString)>,
}

impl Desk {
    /// Prepares a directory with a copy of `demo`. Programs are looked for in `folders` first.
    pub fn new(demo: &Path, folders: &[PathBuf]) -> Desk {
        let prefix = format!("icechunkfs-test-{}-", std::process::id());
        let directory = tempfile::Builder::new().prefix(&prefix).tempdir().unwrap();
        copy_tree(demo, &directory.path().join("ocean"));
        let own = Path::new(program()).parent().unwrap();
        let usual = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::iter::once(own.to_owned()).chain(folders.iter().cloned());
        let path = std::env::join_paths(folders.chain(std::env::split_paths(&usual))).unwrap();
        Desk { directory, path, variables: Vec::new() }
    }

    /// Sets a variable of the environment of all commands.
    #[must_use]
    pub fn with(mut self, variable: &'static str, value: impl Into<OsString>) -> Desk {
        self.variables.push((variable, value.into()));
        self
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Writes a file that a page has.
    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.directory().join(name), text).unwrap();
    }

    /// Returns the command of a line, which prints everything to one place.
    pub fn command(&self, line: &str) -> Command {
        let mut command = Command::new("bash");
        command.args(["-c", &format!("exec 2>&1; {line}")]).current_dir(self.directory()).env("PATH", &self.path);
        command.envs(self.variables.iter().cloned());
        command
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        let table = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
        for place in table.lines().filter_map(|line| line.split(' ').nth(1)) {
            if Path::new(place).starts_with(self.directory.path()) {
                let _ = Command::new("umount").arg("-l").arg(place).status();
            }
        }
        // The commands of a page name no scratch directory.
        remove_default_scratch(self.directory());
    }
}

/// Runs the commands of a block, and compares what they print.
pub fn run_commands(desk: &Desk, block: &Block, what: &str) -> usize {
    let commands = block.commands();
    for (line, printed) in &commands {
        let output = run(&mut desk.command(line));
        assert!(output.status.success(), "{what}: {line}: {}", output.all());
        assert_eq!(trimmed(&output.all()), trimmed(printed), "{what}: {line}");
    }
    commands.len()
}

/// Returns true if `PATH` has a program.
pub fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).exists())
}
