//! The options of `-o`: every option of `icechunkfs mount` in the form of mount(8) and fstab, and their own options.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::repo_args::{RefArgs, RepoArgs};
use super::virtual_args::VirtualArgs;
use crate::error::{Error, Result};
use crate::fuse::io_mode::IoOption;
use crate::fuse::mount::Flag;
use crate::library::mounts::MountOptions;
use crate::library::open::MemoryLimits;
use crate::operations::UploadMode;
use crate::repo::refs::RefSpec;
use crate::size;
use crate::storage::settings::{Settings, Source};

/// Default interval between checks of a followed branch, in seconds; each check is a small request.
const DEFAULT_FOLLOW_INTERVAL: &str = "10";
/// Allowed intervals, in seconds: shorter ones are of no use, and longer ones hardly follow.
const INTERVALS: std::ops::RangeInclusive<f64> = 0.1..=86_400.0;

/// Parses the interval between checks of a followed branch, in seconds.
fn parse_follow_interval(text: &str) -> Result<Duration> {
    let wrong = || Error::invalid(format!("`{text}` is no number of seconds: from 0.1 to 86400"));
    let seconds: f64 = text.parse().map_err(|_| wrong())?;
    if !INTERVALS.contains(&seconds) {
        return Err(wrong());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Arguments of `icechunkfs mount`.
#[derive(Clone, Debug, Args)]
pub struct MountArgs {
    /// The mountpoint: an empty directory.
    #[arg(index = 2)]
    pub mountpoint: PathBuf,
    /// Snapshot to mount.
    #[command(flatten)]
    pub reference: RefArgs,
    /// Mount read-only. Tags, snapshots and past times always are.
    #[arg(long)]
    pub read_only: bool,
    /// Follow the branch: check for a newer commit every SECONDS [default: 10] and move to it. Open files keep their
    /// contents. Read-only.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = DEFAULT_FOLLOW_INTERVAL, value_parser = parse_follow_interval)]
    pub follow: Option<Duration>,
    /// Keep uncommitted changes in this directory [default: one per branch below /var/lib/icechunkfs (root) or
    /// $XDG_STATE_HOME/icechunkfs]. Other users must neither own it nor be able to write to it or to a directory above it, except
    /// sticky ones such as /tmp and those that ICECHUNKFS_SAFE_DIRECTORY lists, separated by `:`.
    #[arg(long, value_name = "DIR", conflicts_with = "ephemeral")]
    pub scratch: Option<PathBuf>,
    /// Discard the uncommitted changes of earlier mounts.
    #[arg(long)]
    pub discard: bool,
    /// Keep uncommitted changes in a temporary directory, which is removed at the end if everything was committed.
    #[arg(long)]
    pub ephemeral: bool,
    /// List the directory .icechunk at the root. It exists in any case.
    #[arg(long)]
    pub show_control: bool,
    /// Pack chunks smaller than this into objects of some MiB.
    #[arg(long, value_name = "SIZE", default_value = "256K", value_parser = size::parse)]
    pub pack_below: u64,
    /// Time at which chunks are uploaded to an object store: eager (as soon as they are closed, so that a commit has little left
    /// to do) or commit.
    #[arg(long, value_name = "WHEN", default_value = "eager", value_parser = str::parse::<UploadMode>)]
    pub upload: UploadMode,
    /// Stay in the foreground and log to standard error.
    #[arg(short, long)]
    pub foreground: bool,
    /// Prefetch at most this much for a program that reads chunk after chunk from an object store; 0 prefetches nothing
    /// [default: 1/16 of the memory].
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub ahead: Option<u64>,
    /// I/O mode of files: auto, cached (never ask the daemon on open) or passthrough (the kernel reads chunk files; needs root).
    #[arg(long, value_name = "MODE", default_value = "auto", value_parser = str::parse::<IoOption>)]
    pub io: IoOption,
    /// Allow access by other users; the kernel checks file modes.
    #[arg(long)]
    pub allow_other: bool,
    /// Options in the form of mount(8), such as ro,allow_other,tag=v1,memory=256M,nonempty.
    #[arg(short = 'o', value_name = "OPT[,OPT...]")]
    pub options: Vec<String>,
    /// Log to this file instead of the system log. Other users must neither own it nor be able to write to it.
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,
    /// The repository. Last, because the help heading of its settings applies to all later options.
    #[command(flatten)]
    pub repo: RepoArgs,
    /// Virtual chunks. Their help heading applies to all later options, too.
    #[command(flatten)]
    pub virtuals: VirtualArgs,
}

/// Options of `-o` that no other argument has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountFlags {
    /// True if the mountpoint may have files or mounts.
    pub nonempty: bool,
    /// Mount flags for the kernel.
    pub flags: Vec<Flag>,
    /// True to check everything, but not mount (`mount -f`).
    pub check_only: bool,
    /// Memory limit, in bytes.
    pub memory: Option<u64>,
    /// Verbosity, in addition to that of the command line.
    pub verbose: u8,
}

/// Applies `arguments.options` to the other members, and returns the options without a member.
pub fn apply(arguments: &mut MountArgs) -> Result<MountFlags> {
    let mut extra = MountFlags::default();
    let words: Vec<String> = arguments.options.iter().flat_map(|list| split(list)).collect();
    let sloppy = words.iter().any(|word| word == "sloppy");
    let mut store = Vec::new();
    for word in words {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word.as_str(), None),
        };
        let needed = || {
            value
                .filter(|v| !v.is_empty())
                .ok_or_else(|| Error::invalid(format!("-o {name} needs a value: {name}=...")))
        };
        let within = |error: Error| error.context(format!("-o {word}"));
        match name {
            "ro" => arguments.read_only = true,
            // mount(8) adds it by default; it does not demand a writable mount.
            "rw" => {}
            "branch" => arguments.reference.branch = Some(needed()?.to_owned()),
            "tag" => arguments.reference.tag = Some(needed()?.to_owned()),
            "snapshot" => arguments.reference.snapshot = Some(needed()?.to_owned()),
            "as_of" | "as-of" => arguments.reference.as_of = Some(needed()?.to_owned()),
            "follow" => {
                arguments.follow =
                    Some(parse_follow_interval(value.unwrap_or(DEFAULT_FOLLOW_INTERVAL)).map_err(within)?)
            }
            "scratch" => arguments.scratch = Some(needed()?.into()),
            "discard" => arguments.discard = true,
            "ephemeral" => arguments.ephemeral = true,
            "show_control" | "show-control" => arguments.show_control = true,
            "pack_below" | "pack-below" => {
                arguments.pack_below = size::parse(needed()?).map_err(within)?;
            }
            "memory" => extra.memory = Some(size::parse(needed()?).map_err(within)?),
            "ahead" => arguments.ahead = Some(size::parse(needed()?).map_err(within)?),
            "upload" => arguments.upload = needed()?.parse().map_err(within)?,
            "io" => arguments.io = needed()?.parse().map_err(within)?,
            "allow_other" | "allow-other" => arguments.allow_other = true,
            "log_file" | "log-file" => arguments.log_file = Some(needed()?.into()),
            "foreground" => arguments.foreground = true,
            "verbose" => extra.verbose += 1,
            "allow_virtual" | "allow-virtual" => arguments.virtuals.allow_virtual.push(needed()?.to_owned()),
            "virtual_map" | "virtual-map" => arguments.virtuals.virtual_map.push(needed()?.to_owned()),
            "virtual_option" | "virtual-option" => arguments.virtuals.virtual_option.push(needed()?.to_owned()),
            "nonempty" => extra.nonempty = true,
            "fake" => extra.check_only = true,
            "exec" => extra.flags.push(Flag::Exec),
            "noexec" => extra.flags.push(Flag::NoExec),
            "dev" => extra.flags.push(Flag::Dev),
            "suid" => extra.flags.push(Flag::Suid),
            _ if Settings::is_setting(name) => store.push(word),
            _ if is_ignored_option(name) || sloppy => {}
            _ => {
                return Err(Error::invalid(format!(
                    "unknown mount option `{word}`; `icechunkfs mount --help` lists them"
                )));
            }
        }
    }
    arguments.repo.store = std::mem::take(&mut arguments.repo.store)
        .or(Settings::parse(&store, Source::CommandLine).map_err(|error| error.context("-o"))?);
    check_follow(arguments)?;
    Ok(extra)
}

/// Returns the options of the mount of `spec` that `arguments` and `extra` define.
pub fn options(arguments: &MountArgs, extra: &MountFlags, spec: &RefSpec) -> MountOptions {
    let listed = json!({
        "upload_limit": arguments.repo.store.upload_limit,
        "allow_virtual": arguments.virtuals.allow_virtual,
        "virtual_map": arguments.virtuals.virtual_map,
    });
    MountOptions {
        spec: spec.clone(),
        // A check leaves nothing behind, not even a scratch directory.
        read_only: arguments.read_only || extra.check_only,
        follow: arguments.follow,
        scratch: arguments.scratch.clone(),
        discard: arguments.discard,
        ephemeral: arguments.ephemeral,
        show_control: arguments.show_control,
        pack_below: Some(arguments.pack_below),
        upload: arguments.upload,
        limits: MemoryLimits { ahead: arguments.ahead },
        io: arguments.io,
        allow_other: arguments.allow_other,
        nonempty: extra.nonempty,
        flags: extra.flags.clone(),
        listed: listed.as_object().cloned().unwrap_or_default(),
    }
}

/// Fails if a mount that follows its branch shows the past or is writable.
fn check_follow(arguments: &MountArgs) -> Result<()> {
    let of = &arguments.reference;
    let fixed = of.tag.is_some() || of.snapshot.is_some() || of.as_of.is_some();
    let written = arguments.scratch.is_some() || arguments.discard || arguments.ephemeral;
    match arguments.follow {
        Some(_) if fixed => {
            Err(Error::invalid("only a branch can be followed: tags, snapshots and times of the past stay"))
        }
        Some(_) if written => Err(Error::invalid(
            "a mount that follows its branch is read-only: it takes none of --scratch, --discard and --ephemeral",
        )),
        _ => Ok(()),
    }
}

/// Returns true for options of mount(8), systemd or the kernel's defaults, which icechunkfs ignores.
fn is_ignored_option(name: &str) -> bool {
    const KNOWN: &[&str] = &[
        "defaults",
        "auto",
        "noauto",
        "user",
        "users",
        "nouser",
        "owner",
        "group",
        "nofail",
        "_netdev",
        "sloppy",
        "nodev",
        "nosuid",
        "sync",
        "async",
        "dirsync",
        "atime",
        "noatime",
        "diratime",
        "nodiratime",
        "relatime",
        "norelatime",
        "strictatime",
        "nostrictatime",
        "lazytime",
        "nolazytime",
        "silent",
        "loud",
        "mand",
        "nomand",
        "default_permissions",
        "comment",
    ];
    KNOWN.contains(&name) || name.starts_with("x-") || name.starts_with("X-")
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
    use crate::cli::args::{Arguments, Command};
    use clap::Parser;

    fn mount(options: &[&str]) -> Result<(MountArgs, MountFlags)> {
        let words = ["icechunkfs", "mount", "/r", "/m"].into_iter().chain(options.iter().flat_map(|o| ["-o", o]));
        let Command::Mount(mut arguments) = Arguments::try_parse_from(words).unwrap().command else {
            unreachable!("not a mount command")
        };
        let extra = apply(&mut arguments)?;
        Ok((arguments, extra))
    }

    #[test]
    fn every_option_has_its_mount_form() {
        let (arguments, extra) = mount(&[
            "ro,allow_other,tag=v1,memory=64M,io=cached,log_file=/tmp/l",
            "upload=commit,upload_limit=10M",
            "nonempty,noexec,x-systemd.automount,noauto,user,_netdev",
        ])
        .unwrap();
        assert!(arguments.read_only && arguments.allow_other);
        assert_eq!(arguments.reference.tag.as_deref(), Some("v1"));
        assert_eq!((extra.memory, arguments.io), (Some(64 << 20), IoOption::Cached));
        assert_eq!((arguments.upload, arguments.repo.store.upload_limit), (UploadMode::Commit, Some(10 << 20)));
        assert_eq!((extra.nonempty, extra.flags, extra.check_only), (true, vec![Flag::NoExec], false));
    }

    #[test]
    fn names_may_have_commas() {
        let (arguments, _) = mount(&["branch=a\\,b\\\\c,ro"]).unwrap();
        assert_eq!(arguments.reference.branch.as_deref(), Some("a,b\\c"));
    }

    #[test]
    fn virtual_chunks_are_allowed_by_options_too() {
        let (arguments, _) = mount(&[
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
        let follow = |options: &[&str]| mount(options).map(|(arguments, _)| arguments.follow.unwrap().as_secs_f32());
        assert_eq!(follow(&["follow"]).unwrap(), 10.0);
        assert_eq!(follow(&["follow=2.5,branch=x,ro"]).unwrap(), 2.5);
        for wrong in ["follow=0", "follow=soon", "follow,tag=v1", "follow,as_of=2026-01-01", "follow,ephemeral"] {
            assert!(mount(&[wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn wrong_words_are_told() {
        for wrong in ["frobnicate", "tag", "memory=much", "io=fast", "upload=never", "upload_limit=0"] {
            assert!(mount(&[wrong]).is_err(), "{wrong}");
        }
        assert!(mount(&["sloppy,frobnicate"]).is_ok());
    }
}
