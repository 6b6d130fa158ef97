//! Reach of the locks of a file system: one machine, or all that use it.
//!
//! A test of a lock on one machine cannot show its reach, so that the name of the file system and
//! its mount options decide. What they do not tell is unknown, and counts as unsafe. The table in
//! `docs/design/41-reach-of-locks.md` has the sources.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Reach of the locks of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Locks {
    /// Only this machine uses the file system.
    OneMachine,
    /// Locks hold between all machines that use the file system.
    Shared,
    /// Locks may not hold between machines, for this reason.
    Unsafe(&'static str),
    /// Locks may not hold between machines, or do not exist, and the user guarantees a single
    /// writer.
    Waived,
}

/// Magic numbers (statfs(2)) of file systems that belong to one machine.
const OF_ONE_MACHINE: [u64; 24] = [
    0xef53,      // ext2, ext3, ext4
    0x5846_5342, // XFS
    0x9123_683e, // Btrfs
    0x2fc1_2fc1, // ZFS
    0xf2f5_2010, // F2FS
    0xca45_1a4e, // bcachefs
    0x0102_1994, // tmpfs
    0x8584_58f6, // ramfs
    0x3153_464a, // JFS
    0x5265_4973, // ReiserFS
    0x3434,      // NILFS
    0x2405_1905, // UBIFS
    0x72b6,      // JFFS2
    0x5346_544e, // NTFS
    0x7366_746e, // NTFS3
    0x2011_bab0, // exFAT
    0x4d44,      // FAT
    0x482b,      // HFS+
    0xf15f,      // eCryptfs
    0x7371_7368, // squashfs
    0xe0f5_e1e2, // EROFS
    0x9660,      // ISO 9660
    0x1501_3346, // UDF
    0x137f,      // Minix
];
const CEPH: u64 = 0x00c3_6400;
const GFS2: u64 = 0x0116_1970;
const OCFS2: u64 = 0x7461_636f;
const NFS: u64 = 0x6969;
const CIFS: [u64; 3] = [0xff53_4d42, 0xfe53_4d42, 0x517b];
const LUSTRE: u64 = 0x0bd0_0bd0;
const FUSE: u64 = 0x6573_5546;
const OVERLAY: u64 = 0x794c_7630;

const UNKNOWN: &str = "it is not known whether its file system carries locks between machines, so commits of two \
    machines at a time could be lost; to commit anyway, guarantee a single writer with --unsafe-single-writer";
const LOCAL_NFS: &str = "its locks stay on this machine (NFS with nolock or local_lock), so commits of two machines at \
    a time could be lost. Mount NFS with locks, or guarantee a single writer with --unsafe-single-writer";
const LOCAL_LUSTRE: &str = "its locks stay on this machine (Lustre without flock), so commits of two machines at a \
    time could be lost. Mount Lustre with -o flock, or guarantee a single writer with --unsafe-single-writer";
const LOCAL_CIFS: &str = "its locks stay on this machine (SMB with nobrl), so commits of two machines at a time could \
    be lost. Mount SMB without nobrl, or guarantee a single writer with --unsafe-single-writer";
const LOCAL_CLUSTER: &str = "its locks stay on this machine (localflocks or lock_nolock), so commits of two machines \
    at a time could be lost. Mount the file system with its locks, or guarantee a single writer with \
    --unsafe-single-writer";
const SHARED_LAYERS: &str = "it is on an overlayfs whose layers may not be on a disk of this machine. Commits go into \
    its upper directory, and its locks stay on this machine. Use the repository in its own place, or guarantee a \
    single writer with --unsafe-single-writer";

impl Locks {
    /// Determines the reach of the locks on the file system of `directory`. Unsafe ones are waived
    /// for a `single_writer`.
    pub(super) fn of(directory: &OwnedFd, single_writer: bool) -> Locks {
        match Locks::detect(directory) {
            Locks::Unsafe(_) if single_writer => Locks::Waived,
            locks => locks,
        }
    }

    fn detect(directory: &OwnedFd) -> Locks {
        let Ok(stat) = rustix::fs::fstatfs(directory) else { return Locks::Unsafe(UNKNOWN) };
        let magic = magic(&stat);
        if OF_ONE_MACHINE.contains(&magic) {
            return Locks::OneMachine;
        }
        match Mount::of(directory) {
            Some(mount) => Locks::classify(magic, &mount, &magic_of),
            None => Locks::Unsafe(UNKNOWN),
        }
    }

    /// Classifies the file system with this magic number that is mounted by `mount`. `magic_of`
    /// returns the magic number of the file system of a directory, if that can be opened.
    fn classify(magic: u64, mount: &Mount, magic_of: &dyn Fn(&Path) -> Option<u64>) -> Locks {
        let has = |wanted: &str| mount.options().any(|option| option == wanted);
        let unless = |local: bool, why| if local { Locks::Unsafe(why) } else { Locks::Shared };
        match magic {
            magic if OF_ONE_MACHINE.contains(&magic) => Locks::OneMachine,
            CEPH => Locks::Shared,
            // Both show the option; GFS2 also where the lock protocol of the volume itself is
            // `lock_nolock`.
            GFS2 | OCFS2 => unless(has("localflocks") || has("lockproto=lock_nolock"), LOCAL_CLUSTER),
            // The kernel shows `none` if no lock is local, and `flock` if only that one is.
            NFS => unless(has("nolock") || !(has("local_lock=none") || has("local_lock=flock")), LOCAL_NFS),
            LUSTRE => unless(!has("flock") || has("localflock") || has("noflock"), LOCAL_LUSTRE),
            magic if CIFS.contains(&magic) => unless(has("nobrl"), LOCAL_CIFS),
            // A disk file system, served by a program of this machine.
            FUSE if mount.kind == "fuseblk" => Locks::OneMachine,
            OVERLAY if mount.has_local_layers(magic_of) => Locks::OneMachine,
            OVERLAY => Locks::Unsafe(SHARED_LAYERS),
            _ => Locks::Unsafe(UNKNOWN),
        }
    }
}

/// Returns the magic number of a file system. It has 32 bits; some kernels sign-extend it.
fn magic(stat: &rustix::fs::StatFs) -> u64 {
    stat.f_type as u64 & 0xffff_ffff
}

fn magic_of(directory: &Path) -> Option<u64> {
    let opened = File::open(directory).ok()?;
    rustix::fs::fstatfs(&opened).ok().map(|stat| magic(&stat))
}

/// Line of `/proc/self/mountinfo`, like
/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`
/// (proc_pid_mountinfo(5)).
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    /// Mount point.
    point: String,
    /// Type of the file system.
    kind: String,
    /// Options of the file system, as it shows them.
    options: String,
}

impl Mount {
    /// Returns the mount that `directory` is on.
    fn of(directory: &OwnedFd) -> Option<Mount> {
        let about = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", directory.as_raw_fd())).ok()?;
        let id = about.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim();
        let table = std::fs::read("/proc/self/mountinfo").ok()?;
        Mount::parse(&String::from_utf8_lossy(&table), id)
    }

    /// Returns the mount with this id in a table of mounts.
    fn parse(table: &str, id: &str) -> Option<Mount> {
        let line = table.lines().find(|line| line.split(' ').next() == Some(id))?;
        let (before, behind) = line.split_once(" - ")?;
        let point = before.split(' ').nth(4)?.to_owned();
        let mut fields = behind.split(' ');
        let kind = fields.next()?.to_owned();
        Some(Mount { point, kind, options: fields.next_back()?.to_owned() })
    }

    fn options(&self) -> impl Iterator<Item = &str> {
        self.options.split(',')
    }

    /// Returns true if all layers of this overlayfs are on disks of this machine. The root of a
    /// container counts as that: its layers cannot be opened from inside, and an upper directory
    /// belongs to one mount.
    fn has_local_layers(&self, magic_of: &dyn Fn(&Path) -> Option<u64>) -> bool {
        let is_local = |layer: PathBuf| magic_of(&layer).is_some_and(|magic| OF_ONE_MACHINE.contains(&magic));
        self.point == "/" || self.layers().is_some_and(|layers| layers.into_iter().all(is_local))
    }

    /// Returns the directories of all layers of an overlayfs, with the upper one; `None` for layers
    /// that were named relative to an unknown directory, or not at all.
    fn layers(&self) -> Option<Vec<PathBuf>> {
        let mut layers = Vec::new();
        for (name, value) in self.options().filter_map(|option| option.split_once('=')) {
            match name {
                "lowerdir" => layers.extend(split_layers(&unescape(value))),
                "upperdir" | "lowerdir+" | "datadir+" => layers.push(unescape(value)),
                _ => {}
            }
        }
        let layers: Vec<PathBuf> = layers.into_iter().map(PathBuf::from).collect();
        (!layers.is_empty() && layers.iter().all(|layer| layer.is_absolute())).then_some(layers)
    }
}

/// Splits a list of directories at `:`, or `::` before layers of data. A backslash makes the next
/// character a part of a name.
fn split_layers(list: &str) -> Vec<String> {
    let mut layers = vec![String::new()];
    let mut characters = list.chars();
    while let Some(c) = characters.next() {
        if c == ':' {
            layers.push(String::new());
        } else if let Some(layer) = layers.last_mut() {
            layer.push(if c == '\\' { characters.next().unwrap_or(c) } else { c });
        }
    }
    layers.retain(|layer| !layer.is_empty());
    layers
}

/// Decodes the octal escapes (`\040`) of a value in a table of mounts. A value that is not text
/// then is one that cannot be opened.
fn unescape(value: &str) -> String {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let Some((&byte, behind)) = rest.split_first() {
        let escaped = behind.get(..3).filter(|_| byte == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match escaped.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(decoded) => {
                bytes.push(decoded);
                rest = behind.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(byte);
                rest = behind;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const EXT4: u64 = 0xef53;
    const GPFS: u64 = 0x4750_4653;
    const BEEGFS: u64 = 0x1983_0326;
    const NINE_P: u64 = 0x0102_1997;

    /// Classifies the mount of a line of mountinfo. Directories below `/net` are on NFS, those
    /// below `/local` on a disk.
    fn classified(magic: u64, line: &str) -> Locks {
        let id = line.split(' ').next().unwrap();
        Locks::classify(magic, &Mount::parse(line, id).unwrap(), &|path| {
            let first = path.components().nth(1)?.as_os_str().to_str()?.to_owned();
            [("net", NFS), ("local", EXT4)].into_iter().find_map(|(name, magic)| (name == first).then_some(magic))
        })
    }

    #[test]
    fn a_mount_is_found_by_its_id() {
        let table = "25 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
            36 25 0:40 / /data\\040x rw,relatime shared:1 master:2 - nfs4 server:/x rw,vers=4.2,local_lock=none,addr=10.0.0.1\n";
        let mount = Mount::parse(table, "36").unwrap();
        assert_eq!((mount.point.as_str(), mount.kind.as_str()), ("/data\\040x", "nfs4"));
        assert_eq!(mount.options, "rw,vers=4.2,local_lock=none,addr=10.0.0.1");
        assert_eq!(Mount::parse(table, "3"), None);
        assert_eq!(
            Locks::of(&File::open(tempfile::tempdir().unwrap().path()).unwrap().into(), false),
            Locks::OneMachine
        );
    }

    #[test]
    fn mount_options_tell_whether_locks_reach_other_machines() {
        let cases = [
            (NFS, "nfs4", "rw,vers=4.2,local_lock=none", true),
            (NFS, "nfs", "rw,vers=3,nolock,local_lock=all", false),
            (NFS, "nfs", "rw,vers=3,local_lock=posix", false),
            (NFS, "nfs", "rw,vers=3,local_lock=flock", true),
            (NFS, "nfs", "rw,vers=3", false),
            (LUSTRE, "lustre", "rw,checksum,flock,user_xattr", true),
            (LUSTRE, "lustre", "rw,checksum,localflock", false),
            (LUSTRE, "lustre", "rw,flock,localflock", false),
            (LUSTRE, "lustre", "rw,noflock", false),
            (LUSTRE, "lustre", "rw", false),
            (0xff53_4d42, "cifs", "rw,vers=3.1.1", true),
            (0xff53_4d42, "cifs", "rw,vers=3.1.1,nobrl", false),
            (OCFS2, "ocfs2", "rw,_netdev,heartbeat=local,atime_quantum=60,cluster_stack=o2cb,coherency=full", true),
            // The kernel shows two commas here.
            (OCFS2, "ocfs2", "rw,_netdev,heartbeat=local,atime_quantum=60,localflocks,,cluster_stack=o2cb", false),
            (GFS2, "gfs2", "rw,acl", true),
            (GFS2, "gfs2", "rw,localflocks", false),
            (GFS2, "gfs2", "rw,lockproto=lock_nolock", false),
            (CEPH, "ceph", "rw,name=admin,secret=<hidden>,acl", true),
            (GPFS, "gpfs", "rw,relatime", false),
            (BEEGFS, "beegfs", "rw,relatime,cfgFile=/etc/beegfs/beegfs-client.conf", false),
            (FUSE, "fuse.sshfs", "rw", false),
            (FUSE, "virtiofs", "rw", false),
            (NINE_P, "9p", "rw", false),
        ];
        for (magic, kind, options, is_shared) in cases {
            let line = format!("36 25 0:40 / /data rw,relatime shared:1 - {kind} server:/x {options}");
            assert_eq!(classified(magic, &line) == Locks::Shared, is_shared, "{line}");
            assert_eq!(matches!(classified(magic, &line), Locks::Unsafe(_)), !is_shared, "{line}");
        }
        assert_eq!(classified(FUSE, "36 25 8:2 / /data rw - fuseblk /dev/sda2 rw"), Locks::OneMachine);
    }

    #[test]
    fn an_overlay_is_of_one_machine_if_all_of_its_layers_are() {
        let cases = [
            ("/", "lowerdir=/var/lib/docker/l/A:/var/lib/docker/l/B,upperdir=/var/lib/docker/diff,workdir=/x", true),
            ("/data", "lowerdir=/local/a:/local/b,upperdir=/local/u,workdir=/local/w", true),
            ("/data", "lowerdir+=/local/a,datadir+=/local/b,upperdir=/local/u", true),
            ("/data", "lowerdir=/local/a\\134:b::/local/c\\054d,upperdir=/local/u", true),
            ("/data", "lowerdir=/net/repositories,upperdir=/local/u,workdir=/local/w", false),
            ("/data", "lowerdir=/local/a,upperdir=/net/u,workdir=/net/w", false),
            ("/data", "lowerdir=/local/a:/net/b,upperdir=/local/u", false),
            ("/data", "lowerdir=/var/lib/elsewhere,upperdir=/local/u", false),
            ("/data", "lowerdir=relative,upperdir=/local/u", false),
            ("/data", "", false),
        ];
        for (point, layers, is_local) in cases {
            let line = format!("36 25 0:40 / {point} rw,relatime - overlay overlay rw,{layers},xino=off");
            let expected = if is_local { Locks::OneMachine } else { Locks::Unsafe(SHARED_LAYERS) };
            assert_eq!(classified(OVERLAY, &line), expected, "{line}");
        }
        let line = "36 25 0:40 / /data rw - overlay overlay rw,lowerdir=/a\\134:b::/c\\054d,upperdir=/u";
        let layers = Mount::parse(line, "36").unwrap().layers().unwrap();
        assert_eq!(layers, ["/a:b", "/c,d", "/u"].map(PathBuf::from));
    }
}
