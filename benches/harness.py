"""The benchmark's place, mounts and programs. Everything mounted here is unmounted here."""
import contextlib
import os
import pwd
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

COMMAND_TIMEOUT = 900  # seconds; nothing here takes long, but a mount that hangs must not hang the benchmark
MOUNT_TIMEOUT = 60  # seconds
DAEMON_END = 15  # seconds that a daemon may take to end after its mount is gone
BUSY_RETRIES = 20  # a program that has just ended may hold the mount for a moment
BUSY_PAUSE = 0.25  # seconds
FAR_NS = 200  # for a cache line to go to another processor and back: 75 to 130 measured on one die, 350 to 440 between dies
NOT_A_DISK = {"tmpfs", "ramfs"}


class BenchError(Exception):
    """The benchmark cannot continue, or read wrong values."""


class Skipped(Exception):
    """One comparison is not possible here."""


# ---------------------------------------------------------------- programs

@dataclass(frozen=True)
class User:
    """A user without privilege."""

    name: str
    uid: int
    gid: int

    @classmethod
    def named(cls, name: str) -> "User":
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            raise BenchError(f"there is no user {name}: --user takes one without privilege") from None
        if entry.pw_uid == 0:
            raise BenchError(f"--user {name} is root: name a user without privilege")
        return cls(name, entry.pw_uid, entry.pw_gid)


def run(command: list, user: User | None = None, timeout: float = COMMAND_TIMEOUT) -> str:
    """Returns the output of `command`. `user` runs it if not this process's user: `setuid` drops every capability too."""
    who = {"user": user.uid, "group": user.gid, "extra_groups": []} if user else {}
    words = [str(part) for part in command]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, cwd="/", **who)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BenchError(f"{' '.join(words)}: {error}") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()[-2000:]
        raise BenchError(f"{' '.join(words)}: status {done.returncode}: {said}")
    return done.stdout


# ---------------------------------------------------------------- the place

@dataclass
class Workspace:
    """A folder with everything in it, removed at the end.

    Mountpoints are below `mnt/` and plain trees below `plain/`: as deep as each other, so that the kernel walks as many
    names to a file of the one as of the other.
    """

    root: Path
    binary: Path
    readers: Path
    handover: Path
    problems: list[str] = field(default_factory=list)
    mounts: int = 0

    def __post_init__(self) -> None:
        for name in ("repos", "plain", "mnt", "logs", "lists", "scratch"):
            (self.root / name).mkdir()

    def repo(self, name: str) -> Path:
        return self.root / "repos" / name

    def plain(self, name: str) -> Path:
        return self.root / "plain" / name

    def scratch(self, name: str) -> Path:
        return self.root / "scratch" / name

    def list_file(self, name: str, paths: list[str]) -> Path:
        file = self.root / "lists" / name
        file.write_text("".join(f"{path}\n" for path in paths))
        return file

    def log_problems(self) -> list[str]:
        """Warnings and errors in the logs of all mounts, each kind once."""
        seen: dict[str, int] = {}
        for log in sorted((self.root / "logs").iterdir()):
            for line in log.read_text(errors="replace").splitlines():
                if re.search(r"\b(WARN|ERROR)\b", line) or "panicked" in line:
                    words = re.sub(r"^\S+\s+", "", line).replace(str(self.root), "DIR")
                    seen[words] = seen.get(words, 0) + 1
        return [f"{words} (x{count})" if count > 1 else words for words, count in seen.items()]


@contextlib.contextmanager
def workspace(parent: Path | None, binary: Path) -> Iterator[Workspace]:
    """A new folder below `parent` with copies of what is run from there; gone afterwards, and every mount with it."""
    root = Path(tempfile.mkdtemp(prefix="icechunkfs-bench-", dir=parent or local_disk())).resolve()
    try:
        if file_system(root) in NOT_A_DISK:
            raise BenchError(f"{root} is in memory: --dir must name a folder on a local disk")
        root.chmod(0o755)  # the unprivileged user works here too
        tools = root / "bin"
        tools.mkdir()
        # A copy: a build may run meanwhile, and the unprivileged user may not see the original.
        copied = Path(shutil.copy(binary, tools / "icechunkfs"))
        copied.chmod(0o755)
        yield Workspace(root, copied, *(compiled(name, tools) for name in ("readers", "handover")))
    finally:
        unmount_below(root)
        remove(root)


def compiled(name: str, folder: Path) -> Path:
    """Compiles the program `name`, whose source lies beside this file."""
    source = Path(__file__).resolve().parent / f"{name}.c"
    run(["gcc", "-O2", "-Wall", "-pthread", "-o", folder / name, source])
    return folder / name


def local_disk() -> str:
    """A folder for temporary files that is not in memory."""
    candidates = [tempfile.gettempdir(), "/var/tmp", os.getcwd()]
    for folder in candidates:
        if os.path.isdir(folder) and os.access(folder, os.W_OK) and file_system(Path(folder)) not in NOT_A_DISK:
            return folder
    raise BenchError(f"none of {', '.join(candidates)} is on a local disk: name a folder with --dir")


def file_system(path: Path) -> str:
    return run(["stat", "--file-system", "--format=%T", path]).strip()


def remove(*folders: Path) -> None:
    """Not shutil: it takes minutes for a million files. And never into a mount that could not be removed."""
    subprocess.run(["rm", "-rf", "--one-file-system", "--", *map(str, folders)], check=False)


# ---------------------------------------------------------------- mounts

class Mount:
    """A repository, mounted while the `with` block lasts: read-only, or writable with uncommitted work in `scratch`."""

    def __init__(self, space: Workspace, repo: Path, name: str, io: str = "auto", user: User | None = None,
                 scratch: Path | None = None, view: str = "zarr"):
        self.space, self.repo, self.io, self.user, self.scratch, self.view = space, repo, io, user, scratch, view
        self.path = space.root / "mnt" / name
        self.log = space.root / "logs" / f"{space.mounts:04}-{name}.log"
        self.ready_seconds = 0.0
        space.mounts += 1

    def __enter__(self) -> "Mount":
        self.path.mkdir(exist_ok=True)
        self.log.touch()
        if self.user:
            for owned in (self.path, self.log):
                os.chown(owned, self.user.uid, self.user.gid)
        command = [self.space.binary, "mount", self.repo, self.path, "--io", self.io, "--log-file", self.log]
        command += ["--scratch", self.scratch] if self.scratch else ["--read-only", "--view", self.view]
        begin = time.perf_counter()
        try:
            run(command, self.user, MOUNT_TIMEOUT)
        except BaseException:
            unmount_below(self.path)
            raise
        self.ready_seconds = time.perf_counter() - begin
        return self

    def __exit__(self, *_: object) -> None:
        daemon = self.daemon()
        try:
            self._unmount()
        except BenchError as error:
            self.space.problems.append(str(error))
            unmount_below(self.path)
        self._wait_for_end(daemon)

    def _unmount(self) -> None:
        for attempt in range(BUSY_RETRIES):
            try:
                run([self.space.binary, "unmount", self.path], self.user, MOUNT_TIMEOUT)
                return
            except BenchError as error:
                if "busy" not in str(error) or attempt == BUSY_RETRIES - 1:
                    raise
                time.sleep(BUSY_PAUSE)

    def _wait_for_end(self, daemon: int | None) -> None:
        """Its last work, giving back memory, must not be measured as part of what comes next."""
        end = time.monotonic() + DAEMON_END
        while daemon and runs(daemon):
            if time.monotonic() > end:
                self.space.problems.append(f"process {daemon} still runs {DAEMON_END} s after its unmount")
                return
            time.sleep(0.01)

    def daemon(self) -> int | None:
        """Process id of the one that serves this mount: no other has its mountpoint as an argument."""
        wanted = os.fsencode(self.path)
        for entry in os.scandir("/proc"):
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                arguments = Path(entry.path, "cmdline").read_bytes().split(b"\0")
                if b"mount" in arguments and wanted in arguments:
                    return int(entry.name)
        return None

    def daemon_memory(self) -> dict[str, int]:
        """VmHWM and VmRSS of the daemon, in bytes."""
        daemon = self.daemon()
        if daemon is None:
            raise BenchError(f"no process serves {self.path}")
        status = Path(f"/proc/{daemon}/status").read_text()
        found = re.findall(r"^(VmHWM|VmRSS):\s+(\d+) kB", status, re.MULTILINE)
        return {name: int(kib) * 1024 for name, kib in found}


def runs(process: int) -> bool:
    """Not if it has ended and only waits for its parent, which may be a careless init of a container, to take note."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False


def unmount_below(root: Path) -> None:
    """Removes every mount at or below `root`, whatever its state. Accessing the mount itself might hang."""
    command = ["umount", "--lazy"] if os.geteuid() == 0 else ["fusermount3", "-uz"]
    for mountpoint in reversed(mountpoints()):
        if mountpoint == root or root in mountpoint.parents:
            subprocess.run([*command, str(mountpoint)], check=False)


def mountpoints() -> list[Path]:
    octal = re.compile(rb"\\([0-7]{3})")
    unescape = lambda name: octal.sub(lambda digits: bytes([int(digits[1], 8)]), name)
    table = Path("/proc/self/mountinfo").read_bytes().splitlines()
    return [Path(os.fsdecode(unescape(line.split(b" ")[4]))) for line in table]


# ---------------------------------------------------------------- handover.c

def processors_are_far(space: Workspace) -> bool:
    """Whether the two processors (or the first two of more) share no cache now: a virtual machine's may be moved at any time."""
    processors = sorted(os.sched_getaffinity(0))[:2]
    return len(processors) == 2 and int(run([space.handover, *processors])) > FAR_NS


# ---------------------------------------------------------------- readers.c

@dataclass(frozen=True)
class Pass:
    """One walk over a list of files, in seconds."""

    first: float  # its first file
    whole: float


def read_files(space: Workspace, mode: str, files: Path, size: int, warm: int, seconds: float,
               user: User | None = None) -> list[Pass]:
    """Runs readers.c; see there. `size` is that of every file, in bytes."""
    output = run([space.readers, mode, files, size, warm, seconds], user)
    numbers = [[int(word) / 1e9 for word in line.split()] for line in output.splitlines()]
    return [Pass(first, whole) for first, whole in numbers]


def same_trees(ours: Path, plain: Path, user: User | None = None) -> None:
    """Fails unless both trees have the same files with the same bytes."""
    run(["diff", "-rq", ours, plain], user)
