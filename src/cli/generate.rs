//! `icechunkfs generate`: writes the manual pages and the shells' completions, which packages
//! contain, from the definition of the command line.

use std::path::{Path, PathBuf};

use clap::{Arg, Args, Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, italic, roman};

use super::args::Arguments;
use icechunkfs_base::error::{Error, Result};

const MANUAL: &str = "icechunkfs";

#[derive(Debug, Args)]
pub(crate) struct GenerateArgs {
    /// The directory, in which files have their places below /usr/share.
    directory: PathBuf,
}

/// Writes all files.
pub(crate) fn run(GenerateArgs { directory }: &GenerateArgs) -> Result<()> {
    let program = Arguments::build(Arguments::command().disable_help_subcommand(true));
    write_pages(&program, &directory.join("man/man1"))?;
    write(&directory.join("man/man8/mount.icechunkfs.8"), &mount_helper_page(&program)?)?;
    for (shell, place) in [
        (Shell::Bash, "bash-completion/completions/icechunkfs"),
        (Shell::Zsh, "zsh/site-functions/_icechunkfs"),
        (Shell::Fish, "fish/vendor_completions.d/icechunkfs.fish"),
    ] {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut program.clone(), "icechunkfs", &mut script);
        write(&directory.join(place), &script)?;
    }
    Ok(())
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).map_err(|e| Error::io(directory.display(), e))?;
    }
    std::fs::write(path, bytes).map_err(|e| Error::io(path.display(), e))
}

/// Writes a page for a command and for each one below it that is not hidden.
fn write_pages(command: &Command, directory: &Path) -> Result<()> {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        write_pages(below, directory)?;
    }
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    write(&directory.join(format!("{name}.1")), &page(command, name)?)
}

fn page(command: &Command, name: &str) -> Result<Vec<u8>> {
    let source = format!("icechunkfs {}", env!("CARGO_PKG_VERSION"));
    // The line of NAME is what whatis(1) shows: the first sentence.
    let brief = first_sentence(&command.get_about().map(ToString::to_string).unwrap_or_default());
    let man = Man::new(command.clone()).title(name.to_uppercase()).source(source).manual(MANUAL);
    let mut page = Vec::new();
    let mut name_section = Roff::new();
    name_section.control("SH", ["NAME"]).text([roman(format!("{name} - {brief}"))]);
    let rendered = man
        .render_title(&mut page)
        .and_then(|()| name_section.to_writer(&mut page))
        .and_then(|()| man.render_synopsis_section(&mut page))
        .and_then(|()| man.render_description_section(&mut page))
        .and_then(|()| man.render_options_section(&mut page))
        .and_then(|()| {
            if command.get_subcommands().any(|below| !below.is_hide_set()) {
                man.render_subcommands_section(&mut page)
            } else {
                Ok(())
            }
        })
        .and_then(|()| examples(command).to_writer(&mut page))
        .and_then(|()| exit_status_and_see_also(name).to_writer(&mut page));
    rendered.map_err(|e| Error::io(format!("the manual page {name}"), e))?;
    Ok(page)
}

fn first_sentence(about: &str) -> String {
    let first = about.split_once(". ").map_or(about, |(first, _)| first);
    first.trim().trim_end_matches('.').to_owned()
}

fn examples(command: &Command) -> Roff {
    let mut roff = Roff::new();
    let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let lines: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("  ")).collect();
    if !lines.is_empty() {
        listing(roff.control("SH", ["EXAMPLES"]), &lines);
    }
    roff
}

/// Adds lines that are not filled.
fn listing(roff: &mut Roff, lines: &[&str]) {
    roff.control("PP", []).control("nf", []);
    for line in lines {
        roff.text([roman(*line)]);
    }
    roff.control("fi", []);
}

fn exit_status_and_see_also(name: &str) -> Roff {
    let mut roff = Roff::new();
    // The description of `verify` has its own.
    if name != "icechunkfs-verify" {
        roff.control("SH", ["EXIT STATUS"])
            .text([roman("0 on success, 2 for usage errors, 1 for every other failure.")]);
    }
    roff.control("SH", ["SEE ALSO"]);
    let also = match name {
        "icechunkfs" => vec!["icechunkfs-mount(1)", "mount.icechunkfs(8)", "fusermount3(1)"],
        "icechunkfs-mount" => {
            vec!["icechunkfs(1)", "icechunkfs-unmount(1)", "icechunkfs-commit(1)", "mount.icechunkfs(8)"]
        }
        _ => vec!["icechunkfs(1)", "icechunkfs-mount(1)"],
    };
    roff.text([roman(also.join(", "))]);
    roff
}

/// Returns the page of the helper by which mount(8) and fstab know the type `icechunkfs`.
fn mount_helper_page(program: &Command) -> Result<Vec<u8>> {
    let version = format!("icechunkfs {}", env!("CARGO_PKG_VERSION"));
    let mut roff = Roff::new();
    roff.control("TH", ["MOUNT.ICECHUNKFS", "8", "", &version, MANUAL]);
    roff.control("SH", ["NAME"])
        .text([roman("mount.icechunkfs - mount an Icechunk repository with mount(8) or fstab(5)")]);
    roff.control("SH", ["SYNOPSIS"]);
    roff.text([
        bold("mount -t icechunkfs"),
        roman(" "),
        italic("REPO MOUNTPOINT"),
        roman(" [-o "),
        italic("OPTIONS"),
        roman("]"),
    ]);
    roff.control("SH", ["DESCRIPTION"]);
    roff.text([roman(
        "mount(8) runs mount.icechunkfs for the file system type icechunkfs. It mounts as `icechunkfs mount` does: a daemon serves the \
         mount until it is unmounted with umount(8). REPO is a directory or a URL (s3://, gs://, az://, abfs://, https://). A mount of a \
         branch is writable; `touch MOUNTPOINT/.icechunk/commit` commits all changes.",
    )]);
    roff.control("PP", []).text([roman(
        "An unmount keeps uncommitted changes in the scratch directory, and the next mount resumes them.",
    )]);
    roff.control("SH", ["OPTIONS"]);
    roff.text([roman(
        "Every option of icechunkfs-mount(1), without the dashes in front; `_` may stand for `-`. Options are separated by commas; a \
         backslash before a comma makes it part of a value. Besides these, the options of mount(8) that every file system takes: ro, \
         nonempty, noexec, nosuid, nodev, user, noauto, nofail, _netdev and x-*.",
    )]);
    let of_mount = program.find_subcommand("mount").into_iter().flat_map(Command::get_arguments);
    let shown = of_mount.filter(|arg| {
        !arg.is_hide_set() && !["options", "foreground", "help", "version"].contains(&arg.get_id().as_str())
    });
    for arg in shown {
        helper_option(&mut roff, arg);
    }
    roff.control("SH", ["FSTAB"]);
    listing(
        &mut roff,
        &[
            "/data/ocean        /mnt/ocean   icechunkfs  noauto,branch=main,scratch=/data/ocean.scratch  0 0",
            "/data/ocean        /mnt/before  icechunkfs  ro,noauto,user,tag=v1.0                         0 0",
            "s3://bucket/ocean  /mnt/now     icechunkfs  _netdev,nofail,follow,allow_other,anonymous     0 0",
        ],
    );
    roff.control("PP", []).text([roman(
        "A mount needs fusermount3(1) unless root makes it. `user` lets users make the mount: their own configuration and credentials are \
         used then. Do not write secrets into fstab, which everybody can read: name a file with `secrets`, or a profile.",
    )]);
    roff.control("SH", ["EXAMPLES"]);
    listing(&mut roff, &["mount -t icechunkfs /data/ocean /mnt/before -o tag=v1.0", "umount /mnt/before"]);
    roff.control("SH", ["FILES"]);
    roff.control("TP", []).text([italic("/var/lib/icechunkfs, $XDG_STATE_HOME/icechunkfs")]);
    roff.text([roman(
        "Scratch directories of root and of other users: uncommitted changes, one directory for each branch.",
    )]);
    roff.control("TP", []).text([italic("/etc/fuse.conf")]);
    roff.text([roman("user_allow_other is needed for allow_other, unless root mounts.")]);
    roff.control("SH", ["SEE ALSO"]).text([roman("icechunkfs(1), icechunkfs-mount(1), mount(8), fstab(5), umount(8)")]);
    let mut page = Vec::new();
    roff.to_writer(&mut page).map_err(|e| Error::io("the manual page mount.icechunkfs", e))?;
    Ok(page)
}

fn helper_option(roff: &mut Roff, arg: &Arg) {
    let Some(long) = arg.get_long() else { return };
    let value = if arg.get_action().takes_values() {
        arg.get_value_names().and_then(|names| names.first()).map(|name| format!("={name}"))
    } else {
        None
    };
    roff.control("TP", []).text([bold(long.replace('-', "_")), italic(value.unwrap_or_default())]);
    roff.text([roman(arg.get_help().map(ToString::to_string).unwrap_or_default())]);
}
