//! The options of `icechunkfs mount`, and their form in mount(8) and fstab: `-o KEY=VALUE,FLAG` is
//! translated to `--KEY=VALUE --FLAG`.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Arg, Args, CommandFactory, FromArgMatches, Parser};
use serde_json::json;

use super::args::{Arguments, Command};
use super::repo_args::{RefArgs, RepoArgs};
use super::short_help;
use super::values::{self, choice};
use super::view_args::ViewArgs;
use super::virtual_args::VirtualArgs;
use crate::fuse::control_parts::ControlParts;
use crate::fuse::io_mode::IoOption;
use crate::fuse::mount::Flag;
use crate::fuse::presentation::{Presentation, parse_mask};
use crate::library::mounts::{Leftovers, MountOptions, Scratch};
use crate::library::open::MemoryLimits;
use icechunkfs_base::error::{Error, Result};
use icechunkfs_base::printable;
use icechunkfs_base::size;
use icechunkfs_repo::repo::refs::{RefSpec, nearest};
use icechunkfs_tree::mount_facts::split_source;
use icechunkfs_tree::tree::nodes::MAX_NAME;
use icechunkfs_views::control_directory;
use icechunkfs_working::operations::UploadMode;

/// Default interval between checks of a followed branch, in seconds; each check is a small request.
const DEFAULT_FOLLOW_INTERVAL: &str = "10";
/// Allowed intervals, in seconds: shorter ones are of no use, and longer ones hardly follow.
const INTERVALS: std::ops::RangeInclusive<f64> = 0.1..=86_400.0;

/// Parses the interval between checks of a followed branch, in seconds.
fn parse_follow_interval(text: &str) -> Result<Duration> {
    let wrong =
        || Error::invalid(format!("`{text}` is not a valid number of seconds: write a number from 0.1 to 86400"));
    let seconds: f64 = text.parse().map_err(|_| wrong())?;
    if !INTERVALS.contains(&seconds) {
        return Err(wrong());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Parses the path of the node that is the root of a mount.
pub(super) fn parse_root(text: &str) -> Result<String> {
    let path = text.trim_matches('/');
    let is_wrong = |part: &str| part.is_empty() || part == "." || part == "..";
    if !path.is_empty() && path.split('/').any(is_wrong) {
        return Err(Error::invalid(format!(
            "`{text}` is not a valid path of a node: write a path such as /ocean/surface"
        )));
    }
    Ok(path.to_owned())
}

/// Parses the name under which a mount shows its hierarchy.
fn parse_subdir(text: &str) -> Result<String> {
    let is_wrong =
        ["", ".", "..", control_directory::NAME].contains(&text) || text.contains('/') || text.len() > MAX_NAME;
    if is_wrong {
        Err(Error::invalid(format!("`{text}` cannot be the name of a directory of the mount")))
    } else {
        Ok(text.to_owned())
    }
}

/// The part of the hierarchy that a mount shows, and where.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ShownArgs {
    /// Mount only this group or array, as the root of the mount and of the trees in .icechunk. A
    /// commit still covers the whole branch.
    #[arg(help_heading = "View", long, value_name = "PATH", value_parser = parse_root, default_value = "", hide_default_value = true)]
    pub(super) root: String,
    /// Show the hierarchy as directory NAME of the mount, so that programs can remove and recreate
    /// its root.
    #[arg(help_heading = "View", long, value_name = "NAME", value_parser = parse_subdir)]
    pub(super) subdir: Option<String>,
}

/// A branch that is created when it is mounted.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct NewBranchArgs {
    /// Create the branch if it does not exist.
    #[arg(help_heading = "Writing", long)]
    pub(super) create: bool,
    /// With --create, the start of the new branch: a branch, a tag, an id, or an earlier commit
    /// such as main~2 [default: main].
    #[arg(help_heading = "Writing", long, value_name = "REF", requires = "create")]
    pub(super) from: Option<String>,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct MountArgs {
    /// The mountpoint: an empty directory. Or /dev/fd/N, if the caller has opened /dev/fuse as
    /// descriptor N and mounts it.
    #[arg(index = 2)]
    pub(super) mountpoint: PathBuf,
    #[command(flatten, next_help_heading = "Snapshot")]
    pub(super) reference: RefArgs,
    #[command(flatten, next_help_heading = "View")]
    pub(super) view: ViewArgs,
    #[command(flatten)]
    pub(super) shown: ShownArgs,
    /// Mount read-only. Tags, snapshots and past times always are.
    #[arg(help_heading = "Snapshot", long, short_alias = 'r', alias = "ro")]
    pub(super) read_only: bool,
    /// Follow the branch: check for a newer commit every SECONDS [default: 10] and move to it. Open
    /// files keep their contents. Read-only.
    #[arg(help_heading = "Snapshot", long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = DEFAULT_FOLLOW_INTERVAL, value_parser = parse_follow_interval)]
    pub(super) follow: Option<Duration>,
    /// Keep uncommitted changes in this directory [default: one per branch below
    /// /var/lib/icechunkfs (root) or $XDG_STATE_HOME/icechunkfs]. Other users must not own or be
    /// able to change it or a directory above it. Sticky directories such as /tmp are allowed above
    /// it, and those in ICECHUNKFS_SAFE_DIRECTORY, separated by `:`.
    #[arg(help_heading = "Writing", long, value_name = "DIR", conflicts_with = "ephemeral")]
    pub(super) scratch: Option<PathBuf>,
    #[command(flatten)]
    pub(super) new_branch: NewBranchArgs,
    /// Discard the uncommitted changes of earlier mounts.
    #[arg(help_heading = "Writing", long)]
    pub(super) discard: bool,
    /// Fail if earlier mounts left uncommitted changes [default: show them again]. Otherwise a job
    /// commits what a failed one left.
    #[arg(help_heading = "Writing", long, conflicts_with = "discard")]
    pub(super) refuse_uncommitted: bool,
    /// Keep uncommitted changes in a temporary directory, which is removed at the end if everything
    /// was committed.
    #[arg(help_heading = "Writing", long)]
    pub(super) ephemeral: bool,
    /// List the directory .icechunk at the root. It exists in any case.
    #[arg(help_heading = "View", long)]
    pub(super) show_control: bool,
    /// Pack chunks smaller than this into objects of some MiB.
    #[arg(help_heading = "Writing", long, value_name = "SIZE", default_value = "256K", value_parser = size::parse)]
    pub(super) pack_below: u64,
    /// Upload chunks to an object store as soon as they are closed (eager), or at the commit.
    #[arg(help_heading = "Writing", long, value_name = "WHEN", default_value = "eager", hide_possible_values = true, value_parser = choice::<UploadMode>())]
    pub(super) upload: UploadMode,
    /// Stay in the foreground and log to standard error.
    #[arg(help_heading = "Mount", short, long)]
    pub(super) foreground: bool,
    /// Unmount at the end of standard input, when the program at the other end of a pipe ends.
    #[arg(help_heading = "Mount", long)]
    pub(super) until_eof: bool,
    /// Prefetch at most this much for a program that reads chunk after chunk from an object store;
    /// 0 disables it [default: 1/16 of the memory].
    #[arg(help_heading = "Reading", long, value_name = "SIZE", value_parser = size::parse)]
    pub(super) ahead: Option<u64>,
    /// I/O mode of files: auto, cached (never ask the daemon on open) or passthrough (the kernel
    /// reads chunk files; needs root).
    #[arg(help_heading = "Reading", long, value_name = "MODE", default_value = "auto", hide_possible_values = true, value_parser = choice::<IoOption>())]
    pub(super) io: IoOption,
    /// Take requests from the kernel through io_uring, about twice as fast for trees of small files
    /// (Linux 6.14; root has to allow it with `echo Y > /sys/module/fuse/parameters/enable_uring`).
    #[arg(help_heading = "Mount", long, env = "ICECHUNKFS_IO_URING", value_parser = clap::builder::FalseyValueParser::new())]
    pub(super) io_uring: bool,
    /// Allow access by other users; the kernel checks file modes.
    #[arg(help_heading = "Mount", long)]
    pub(super) allow_other: bool,
    /// Show this user as the owner of all files.
    #[arg(long, value_name = "ID")]
    pub(super) uid: Option<u32>,
    /// Show this group as the owner of all files.
    #[arg(long, value_name = "ID")]
    pub(super) gid: Option<u32>,
    /// Remove these permissions, in octal, from the modes: 666 of files, 777 of directories. The
    /// control files follow it: all who may write `.icechunk/commit` can commit. With --allow-other
    /// and --gid, a group shares the mount.
    #[arg(long, value_name = "MASK", value_parser = parse_mask)]
    pub(super) umask: Option<u16>,
    /// A mask like --umask, for files only.
    #[arg(long, value_name = "MASK", value_parser = parse_mask)]
    pub(super) fmask: Option<u16>,
    /// A mask like --umask, for directories only.
    #[arg(long, value_name = "MASK", value_parser = parse_mask)]
    pub(super) dmask: Option<u16>,
    /// With --allow-other, let other users read these parts of .icechunk: at, view, HEAD,
    /// info.json, log, status, stats, netcdf and others, separated by commas. Repeatable.
    #[arg(long, value_name = "PART", value_delimiter = ',', value_parser = ControlParts::named)]
    pub(super) share_control: Vec<ControlParts>,
    /// Answer requests for extended attributes (`getfattr -n user.icechunk.chunk FILE`) in a
    /// writable mount, too. Each write then takes another request.
    #[arg(long)]
    pub(super) xattrs: bool,
    /// Serve the counts of .icechunk/stats over HTTP, for Prometheus, at an address in numbers:
    /// 127.0.0.1:9919. All who can connect can read them.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(super) metrics: Option<SocketAddr>,
    /// Answer requests for the counts to this host name, too, not only to the address, `localhost`
    /// or the name of the machine. Repeatable.
    #[arg(long, value_name = "NAME", requires = "metrics")]
    pub(super) metrics_host: Vec<String>,
    /// Log each request to the daemon to this file, one JSON object a line. Other users must not
    /// own it or be able to write to it.
    #[arg(long, value_name = "FILE")]
    pub(super) access_log: Option<PathBuf>,
    /// Run this command with `sh -c` after each commit of this mount. It gets ICECHUNKFS_SNAPSHOT,
    /// ICECHUNKFS_PARENT, ICECHUNKFS_REPOSITORY, ICECHUNKFS_BRANCH, ICECHUNKFS_MESSAGE and
    /// ICECHUNKFS_MOUNTPOINT in its environment.
    #[arg(long, value_name = "COMMAND")]
    pub(super) on_commit: Option<String>,
    /// Source in `/proc/mounts`, for mount(8): it compares that with the lines of fstab [default:
    /// REPO@branch:NAME and similar].
    #[arg(long, value_name = "TEXT", hide = true)]
    pub(super) source: Option<String>,
    /// True for the mount of a job: it ends at the end of standard input only, and discards what
    /// is not committed, unless its scratch directory is marked.
    #[arg(long, hide = true, requires = "until_eof", conflicts_with_all = ["scratch", "ephemeral", "discard"])]
    pub(super) job: bool,
    /// True to remove the mountpoint when the mount ends.
    #[arg(long, hide = true)]
    pub(super) temporary: bool,
    /// True if the mountpoint may have files or mounts.
    #[arg(long, hide = true)]
    pub(super) nonempty: bool,
    /// True to check everything, but not mount (`mount -f`).
    #[arg(long = "fake", hide = true)]
    pub(super) check_only: bool,
    /// Mount flags for the kernel.
    #[arg(long = "kernel-flag", hide = true, value_parser = choice::<Flag>())]
    pub(super) flags: Vec<Flag>,
    /// Options in the form of mount(8), such as ro,allow_other,tag=v1,memory=256M,nonempty.
    #[arg(help_heading = "Mount", short = 'o', value_name = "OPT[,OPT...]")]
    pub(super) options: Vec<String>,
    /// Log to this file instead of the system log. Other users must not own it or be able to write
    /// to it.
    #[arg(help_heading = "Mount", long, value_name = "FILE")]
    pub(super) log_file: Option<PathBuf>,
    #[command(flatten)]
    pub(super) repo: RepoArgs,
    #[command(flatten)]
    pub(super) virtuals: VirtualArgs,
}

impl MountArgs {
    /// Returns the ref that is mounted. One that the repository's name has, as in
    /// `/data/ocean@tag:v1.0`, is cut off there.
    pub(super) fn take_spec(&mut self) -> Result<RefSpec> {
        let of = &self.reference;
        let is_named = of.branch.is_some() || of.tag.is_some() || of.snapshot.is_some() || of.as_of.is_some();
        match split_source(&self.repo.location) {
            // A repository may have such a name.
            Some((repository, spec)) if !is_named && !Path::new(&self.repo.location).exists() => {
                self.repo.location = repository.to_owned();
                Ok(spec)
            }
            _ => self.reference.spec(),
        }
    }

    /// Returns the options of the mount of `spec`.
    pub(super) fn options_of(&self, spec: &RefSpec) -> Result<MountOptions> {
        let listed = json!({
            "upload_limit": self.repo.store.upload_limit,
            "allow_virtual": self.virtuals.allow_virtual,
            "virtual_map": self.virtuals.virtual_map,
        });
        Ok(MountOptions {
            spec: spec.clone(),
            // A check leaves nothing behind, not even a scratch directory.
            read_only: self.read_only || self.check_only,
            view: self.view.options()?,
            root: self.shown.root.clone(),
            subdir: self.shown.subdir.clone(),
            follow: self.follow,
            scratch: self.scratch(),
            leftovers: match (self.discard, self.refuse_uncommitted) {
                (true, _) => Leftovers::Discard,
                (false, true) => Leftovers::Refuse,
                (false, false) => Leftovers::Resume,
            },
            show_control: self.show_control,
            pack_below: Some(self.pack_below),
            upload: self.upload,
            limits: MemoryLimits { ahead: self.ahead },
            io: self.io,
            io_uring: self.io_uring,
            allow_other: self.allow_other,
            nonempty: self.nonempty,
            flags: self.flags.clone(),
            presentation: Presentation {
                uid: self.uid,
                gid: self.gid,
                fmask: self.fmask.or(self.umask),
                dmask: self.dmask.or(self.umask),
                shared: self.share_control.iter().copied().fold(ControlParts::default(), ControlParts::with),
            },
            xattrs: self.xattrs,
            source: self.source.clone(),
            listed: listed.as_object().cloned().unwrap_or_default(),
        })
    }

    /// Returns the scratch directory that is asked for.
    pub(super) fn scratch(&self) -> Scratch {
        match &self.scratch {
            Some(path) => Scratch::At(path.clone()),
            None if self.job => Scratch::Job,
            None if self.ephemeral => Scratch::Ephemeral,
            None => Scratch::Default,
        }
    }

    /// Fails if the options contradict one another: if a mount that follows its branch shows the
    /// past or is writable, for instance.
    pub(crate) fn check(&self, spec: &RefSpec) -> Result<()> {
        let view = self.view.options()?;
        if !self.share_control.is_empty() && !self.allow_other {
            return Err(Error::invalid(
                "--share-control is for mounts that other users may enter: pass --allow-other, too",
            ));
        }
        if self.follow.is_some() && !view.is_native() {
            return Err(Error::invalid(format!("the view {view} cannot follow a branch: leave out --follow")));
        }
        if self.follow.is_some() && !matches!(spec, RefSpec::Branch(_)) {
            return Err(Error::invalid("only a branch can be followed: tags, snapshots and times of the past stay"));
        }
        if self.new_branch.create && (self.read_only || self.follow.is_some() || !matches!(spec, RefSpec::Branch(_))) {
            return Err(Error::invalid("--create is for a writable mount of a branch: name it with --branch"));
        }
        let is_for_writing = self.scratch() != Scratch::Default || self.discard || self.refuse_uncommitted;
        if self.follow.is_some() && is_for_writing {
            return Err(Error::invalid(
                "a mount that follows its branch is read-only: it does not take --scratch, --discard, \
                 --refuse-uncommitted or --ephemeral",
            ));
        }
        self.repo.store.endpoint().map(drop)
    }
}

/// Parses a command line. The lists of `-o` are translated to flags, so that each option has one
/// definition. They take precedence over flags, and both over the environment.
pub(crate) fn parse(words: &[OsString]) -> Result<Arguments, clap::Error> {
    let arguments = match Arguments::try_parse_from(words) {
        // Only help needs its texts.
        Err(error) if error.kind() == ErrorKind::DisplayHelp => {
            short_help::shortened().try_get_matches_from(words)?;
            return Err(error);
        }
        parsed => parsed?,
    };
    let flags = match &arguments.command {
        Command::Mount(mount) if !mount.options.is_empty() => translate(&mount.options)?,
        _ => return Ok(arguments),
    };
    let mut words = words.to_vec();
    // Words after a separator are positional.
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    words.splice(end..end, flags.into_iter().map(OsString::from));
    Arguments::from_arg_matches(&Arguments::command().args_override_self(true).try_get_matches_from(words)?)
}

/// Translates lists of mount options to flags of `icechunkfs mount`.
fn translate(lists: &[String]) -> Result<Vec<String>, clap::Error> {
    let program = Arguments::built();
    let known: Vec<&Arg> =
        program.find_subcommand("mount").into_iter().chain([&program]).flat_map(|c| c.get_arguments()).collect();
    // Requests for help or the version are not options of a mount.
    let is_known =
        |name: &str| known.iter().any(|arg| arg.get_long() == Some(name)) && !["help", "version"].contains(&name);
    let words: Vec<String> = lists.iter().flat_map(|list| split(list)).collect();
    let sloppy = words.iter().any(|word| word == "sloppy");
    let mut flags = Vec::new();
    for word in &words {
        let (option, value) = word.split_at(word.find('=').unwrap_or(word.len()));
        let name = option.replace('_', "-");
        if name == "ro" {
            flags.push("--read-only".to_owned());
        } else if is_known(&name) {
            flags.push(format!("--{name}{value}"));
        } else if values::is_name::<Flag>(&name) {
            flags.push(format!("--kernel-flag={name}"));
        } else if !sloppy && !is_ignored_option(option) {
            let meant = match name.as_str() {
                "readonly" | "r" => vec!["`ro`".to_owned()],
                // As fstab has them.
                name => {
                    let names = known.iter().filter_map(|arg| arg.get_long()).filter(|name| is_known(name));
                    let near = nearest(name, names);
                    near.into_iter().map(|name| name.replace('-', "_")).collect()
                }
            };
            let meant = if meant.is_empty() { String::new() } else { format!(" Did you mean {}?", meant.join(" or ")) };
            let word = printable::line(word);
            let message = format!("unknown mount option `{word}`: `icechunkfs mount --help` lists them.{meant}\n");
            return Err(clap::Error::raw(ErrorKind::UnknownArgument, message));
        }
    }
    Ok(flags)
}

/// Returns true for options of mount(8), systemd or the kernel's defaults, which icechunkfs
/// ignores.
fn is_ignored_option(name: &str) -> bool {
    // `rw` is added by mount(8) and does not demand a writable mount.
    const KNOWN: &str = " \
        rw defaults auto noauto user users nouser owner group nofail _netdev sloppy nodev nosuid sync async \
        dirsync atime noatime diratime nodiratime relatime norelatime strictatime nostrictatime lazytime \
        nolazytime silent loud mand nomand default_permissions comment";
    KNOWN.split_whitespace().any(|known| known == name) || name.starts_with("x-") || name.starts_with("X-")
}

/// Splits a list of options. A backslash escapes a comma, so that every ref name can be written.
fn split(list: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut letters = list.chars();
    while let Some(letter) = letters.next() {
        match (letter, words.last_mut()) {
            (',', _) => words.push(String::new()),
            ('\\', Some(word)) => word.extend(letters.next().filter(|c| matches!(c, ',' | '\\')).or(Some('\\'))),
            (letter, Some(word)) => word.push(letter),
            (_, None) => {}
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn mount(options: &[&str]) -> Result<MountArgs, String> {
        let words = ["icechunkfs", "mount", "/r", "/m"].into_iter().chain(options.iter().flat_map(|o| ["-o", o]));
        match parse(&words.map(OsString::from).collect::<Vec<_>>()).map_err(|error| error.to_string())?.command {
            Command::Mount(mut arguments) => {
                let spec = arguments.take_spec().map_err(|error| error.to_string())?;
                arguments.check(&spec).map(|()| *arguments).map_err(|error| error.to_string())
            }
            _ => Err("no mount command".to_owned()),
        }
    }

    #[test]
    fn every_option_has_its_mount_form() {
        let arguments = mount(&[
            "ro,allow_other,tag=v1,memory=64M,io=cached,log_file=/tmp/l",
            "upload=commit,upload_limit=10M",
            "nonempty,noexec,noauto,user",
            "_netdev,nofail,x-systemd.automount,x-systemd.requires=network-online.target,x-systemd.idle-timeout=1min,x-mount.mkdir",
        ])
        .unwrap();
        assert!(arguments.read_only && arguments.allow_other && arguments.nonempty && !arguments.check_only);
        assert_eq!((arguments.reference.tag.as_deref(), arguments.io), (Some("v1"), IoOption::Cached));
        assert_eq!((arguments.upload, arguments.repo.store.upload_limit), (UploadMode::Commit, Some(10 << 20)));
        assert_eq!(arguments.flags, [Flag::NoExec]);
        // A list overrides a flag, and positional words may follow a separator.
        let words =
            ["icechunkfs", "mount", "--tag=a", "-o", "tag=b,memory=64M,follow", "--", "/r", "/m"].map(OsString::from);
        let parsed = parse(&words).unwrap();
        assert_eq!(parsed.memory, Some(64 << 20));
        assert!(matches!(parsed.command, Command::Mount(mount) if mount.reference.tag.as_deref() == Some("b")));
    }

    #[test]
    fn names_may_have_commas() {
        let arguments = mount(&["branch=a\\,b\\\\c,ro"]).unwrap();
        assert_eq!(arguments.reference.branch.as_deref(), Some("a,b\\c"));
    }

    #[test]
    fn virtual_chunks_are_allowed_by_options_too() {
        let arguments = mount(&[
            "allow_virtual=s3://b/x,allow-virtual=/data,virtual_map=file:///a=/b",
            "virtual_option=s3://b\\,region=eu,virtual_option=s3://b\\,unchecked",
        ])
        .unwrap();
        let virtuals = arguments.virtuals;
        assert_eq!(virtuals.allow_virtual, ["s3://b/x", "/data"]);
        assert_eq!(virtuals.virtual_map, ["file:///a=/b"]);
        assert_eq!(virtuals.virtual_option, ["s3://b,region=eu", "s3://b,unchecked"]);
        assert!(virtuals.permissions().is_ok() && mount(&["allow_virtual"]).is_err());
    }

    #[test]
    fn branches_are_followed_and_nothing_else() {
        let follow = |options: &[&str]| mount(options).map(|arguments| arguments.follow.unwrap().as_secs_f32());
        assert_eq!(follow(&["follow"]).unwrap(), 10.0);
        assert_eq!(follow(&["follow=2.5,branch=x,ro"]).unwrap(), 2.5);
        for wrong in ["follow=0", "follow=soon", "follow,tag=v1", "follow,as_of=2026-01-01", "follow,ephemeral"] {
            assert!(mount(&[wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn wrong_words_are_told() {
        for wrong in [
            "frobnicate",
            "tag",
            "help",
            "options=x",
            "account_key=x",
            "memory=much",
            "io=fast",
            "upload=never",
            "upload_limit=0",
        ] {
            assert!(mount(&[wrong]).is_err(), "{wrong}");
        }
        assert!(mount(&["sloppy,frobnicate"]).is_ok());
    }
}
