"""Mounts.

The daemon of a mount gets the read end of a pipe as its standard input (``--until-eof``), and this process keeps the write
end: the mount ends when this process ends, however that happens. No signal handler and no further process is needed.
"""

from __future__ import annotations

import errno
import fcntl
import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import warnings
import weakref
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Dict, Mapping, Optional, Tuple, Type, Union

from . import _program
from ._errors import BusyError, Error, NotFoundError, ReadOnlyError, UncommittedWarning
from ._options import to_words
from ._types import Committed

if TYPE_CHECKING:
    if sys.version_info >= (3, 12):
        from typing import Unpack
    else:
        from typing_extensions import Unpack

    from ._options import MountOptions

PathLike = Union[str, "os.PathLike[str]"]

#: Write ends of the pipes to the daemons, and claims to scratch directories. A forked child must not keep a mount alive.
_held: "weakref.WeakSet[IO[bytes]]" = weakref.WeakSet()
_lock = threading.Lock()


def _close_files_of_parent() -> None:
    for file in list(_held):
        try:
            file.close()
        except OSError:
            pass
    _held.clear()


os.register_at_fork(after_in_child=_close_files_of_parent)


class Mount:
    """A mount of a repository, which ends with the ``with`` block, with :meth:`unmount`, or with this process.

    ``with`` gives its path; the object itself is a path, too (``os.fspath``).
    """

    #: What the end of the block committed, if the mount was made with ``commit``.
    committed: Optional[Committed] = None

    def __init__(
        self,
        repo: PathLike,
        mountpoint: Optional[PathLike],
        options: Mapping[str, Any],
        message: Optional[str] = None,
        metadata: Optional[Mapping[str, Any]] = None,
    ) -> None:
        if metadata is not None and message is None:
            raise TypeError("metadata is for the commit at the end of the block: pass commit=MESSAGE, too")
        self.repo = os.fspath(repo)
        self.options: Dict[str, Any] = dict(options)
        self._message = message
        self._metadata = metadata
        words = to_words(self.options)
        temporary = mountpoint is None
        if message is not None:
            # A job, as of `icechunkfs run`: nothing of an earlier one is in its scratch directory, and nothing is left in it.
            words += ["--job", "--temporary"] if temporary else ["--job"]
        path = tempfile.mkdtemp(prefix="icechunkfs-") if mountpoint is None else os.fspath(mountpoint)
        # A later change of the working directory must not change what is unmounted.
        self.path = Path(os.path.abspath(path))
        try:
            self._pipe = _start(self.repo, str(self.path), words)
        except BaseException:
            if temporary:
                _remove(str(self.path))
            raise
        claim: Optional[IO[bytes]] = None
        if message is not None:
            try:
                self._scratch, claim = _claim_scratch(self.path)
            except BaseException:
                _end(os.getpid(), self._pipe, claim, str(self.path), temporary)
                raise
        # At the end of the interpreter too, and when the object is no longer used.
        self._finalizer = weakref.finalize(self, _end, os.getpid(), self._pipe, claim, str(self.path), temporary)

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        state = "mounted" if self.mounted else "not mounted"
        return f"<icechunkfs.Mount of {self.repo} at {self.path}: {state}>"

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        value: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        if self._message is None:
            self.unmount()
            return
        try:
            if kind is None:
                gc.collect()
                self._commit_job(self._message)
        finally:
            with warnings.catch_warnings():
                # Without a commit nothing is kept, and after one that failed the exception says where.
                warnings.simplefilter("ignore", UncommittedWarning)
                self.unmount()

    def _commit_job(self, message: str) -> None:
        from ._commands import commit  # It needs this module.

        # The block has succeeded: what it wrote stays, whatever ends this process, until it is committed.
        disposable = self._scratch / "disposable"
        disposable.unlink()
        try:
            self.committed = commit(self.path, message, metadata=self._metadata)
        except BaseException as failure:
            kept = f"what was written is kept, for a mount with scratch={str(self._scratch)!r}"
            if isinstance(failure, Error):
                failure.strerror = f"{failure}; {kept}"
            else:
                warnings.warn(kept, UncommittedWarning, stacklevel=3)
            raise
        disposable.touch()

    @property
    def mounted(self) -> bool:
        """True until the mount is removed, here or by ``umount``."""
        return self._finalizer.alive and _is_mounted(self.path)

    def unmount(self) -> None:
        """Remove the mount. Files that are still open keep working for ten seconds; uncommitted changes stay in the scratch
        directory, with an :class:`UncommittedWarning`."""
        if self._finalizer.alive:
            # Datasets that nobody refers to may still have files open.
            gc.collect()
            self._finalizer()


def _is_mounted(path: Path) -> bool:
    """Return True if an icechunkfs mount is at ``path``, by the kernel's table: a file system at the path may never answer.

    >>> _is_mounted(Path("/proc"))
    False
    """
    # The table has no symbolic links, and blanks and backslashes as octal numbers.
    place = os.fsencode(os.path.join(os.path.realpath(path.parent), path.name))
    for blank in (b"\\", b" ", b"\t", b"\n"):
        place = place.replace(blank, b"\\%03o" % ord(blank))
    with open("/proc/self/mountinfo", "rb") as table:
        lines = [line.split(b" ") for line in table]
    return any(line[4] == place and b"fuse.icechunkfs" in line[6:] for line in lines if len(line) > 6)


def mount(
    repo: PathLike,
    mountpoint: Optional[PathLike] = None,
    *,
    commit: Optional[str] = None,
    metadata: Optional[Mapping[str, Any]] = None,
    **options: "Unpack[MountOptions]",
) -> Mount:
    """Mount a branch, tag or snapshot of ``repo`` at ``mountpoint``, by default at a temporary directory.

    All options of ``icechunkfs mount`` are keyword arguments, with ``_`` for ``-``: ``tag="v1"``, ``read_only=True``,
    ``as_of=datetime.date(2026, 8, 20)``, ``cache="/var/cache/x"``. The branch ``main`` is mounted writable by default.

    With ``commit``, a message, the ``with`` block is one commit: its end commits what was written, with ``metadata``, and an
    exception discards it. Such a mount has a scratch directory of its own, and never shows what an earlier one has left. If the
    commit fails, what was written is kept, and the exception says where.

    >>> import icechunkfs
    >>> icechunkfs.mount("/no/such/repository")
    Traceback (most recent call last):
    icechunkfs._errors.NotFoundError: ...
    """
    return Mount(repo, mountpoint, options, commit, metadata)


def _start(repo: str, path: str, words: "list[str]") -> IO[bytes]:
    """Start the daemon; return the pipe that keeps it alive when the mount answers."""
    process = _program.start(
        ["mount", "--until-eof", *words, "--", repo, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None and process.stderr is not None
    pipe = process.stdin
    with _lock:
        _held.add(pipe)
    try:
        # Not communicate(), which closes standard input.
        text = process.stderr.read().decode(errors="replace")
        process.wait()
    except BaseException:
        # A daemon that is still starting sees the closed pipe when its mount answers.
        pipe.close()
        process.kill()
        process.wait()
        raise
    finally:
        process.stderr.close()
    if process.returncode != 0:
        pipe.close()
        raise _program.failure_of(process.returncode, "", text)
    for line in filter(None, text.splitlines()):
        warnings.warn(line.replace("icechunkfs: ", "", 1), UserWarning, stacklevel=4)
    return pipe


def _claim_scratch(path: Path) -> Tuple[Path, IO[bytes]]:
    """Return the scratch directory of a job's mount and a lock on it: until that is closed, nobody removes the directory, though
    the daemon may be killed."""
    scratch = json.loads((path / ".icechunk/info.json").read_bytes()).get("scratch")
    if scratch is None:
        raise ReadOnlyError(errno.EROFS, f"{path} is mounted read-only: leave out commit=")
    claim = open(Path(scratch) / "disposable", "rb")
    with _lock:
        _held.add(claim)
    fcntl.flock(claim, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return Path(scratch), claim


def _end(owner: int, pipe: IO[bytes], claim: Optional[IO[bytes]], path: str, temporary: bool) -> None:
    """Unmount, unless this is a forked child, whose parent has the mount. Warnings name the line after the ``with`` block."""
    if os.getpid() != owner:
        return
    if claim is not None:
        # What becomes of the work is decided.
        claim.close()
    notes = ""
    try:
        _, notes = _program.run_with_notes(["unmount", "--", path])
    except NotFoundError:
        # It was unmounted before.
        pass
    except BusyError as busy:
        warnings.warn(f"{busy}; the mount is detached, and open files fail soon", UserWarning, stacklevel=5)
        _detach(path)
    except Error as failure:
        warnings.warn(f"{failure}; the mount is detached", UserWarning, stacklevel=5)
        _detach(path)
    finally:
        # In any case the daemon ends with the pipe.
        pipe.close()
        if temporary:
            _remove(path)
    if any(word in notes for word in ("changes", "not committed", "discarded")):
        warnings.warn(notes.strip().replace("icechunkfs: ", "", 1), UncommittedWarning, stacklevel=5)


def _detach(path: str) -> None:
    try:
        _program.run(["unmount", "--force", "--", path])
    except Error as failure:
        warnings.warn(str(failure), UserWarning, stacklevel=6)


def _remove(path: str) -> None:
    """Remove an empty mountpoint. Whatever is in it is not ours."""
    try:
        os.rmdir(path)
    except OSError as failure:
        if failure.errno != errno.ENOENT:
            warnings.warn(f"the temporary mountpoint stays: {failure}", UserWarning, stacklevel=6)
