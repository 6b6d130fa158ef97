"""Exceptions, one for each meaning of an errno.

>>> error = error_of(116, "the branch has moved")
>>> type(error).__name__, error.errno, str(error)
('ConflictError', 116, 'the branch has moved')
>>> isinstance(error_of(2, "no branch `x`"), FileNotFoundError)
True
>>> type(error_of(5, "the store is on fire")).__name__
'Error'
"""

from __future__ import annotations

import errno as numbers
from dataclasses import dataclass
from typing import Any, Dict, Optional, Tuple, Type


class Error(OSError):
    """A failure of icechunkfs. ``errno`` has its kind, ``str()`` the message, with the remedy if there is one."""

    def __str__(self) -> str:
        return str(self.strerror)

    @property
    def message(self) -> str:
        """What failed, and why."""
        return str(self.strerror)


@dataclass(frozen=True)
class Conflict:
    """A change that conflicts with a concurrent commit."""

    kind: str
    path: str
    coords: Tuple[Tuple[int, ...], ...] = ()
    #: Id of the concurrent commit.
    other: str = ""
    #: Message of the concurrent commit.
    message: str = ""


class ConflictError(Error):
    """The branch has moved in a way that conflicts with the changes. Nothing is lost: the mount stays as it was."""

    #: The conflicts, if they are known one by one.
    conflicts: Tuple[Conflict, ...] = ()


class NotFoundError(Error, FileNotFoundError):
    """There is no such repository, branch, tag, snapshot, path or mount."""


class ExistsError(Error, FileExistsError):
    """The name exists already."""


class AccessError(Error, PermissionError):
    """The system or the store denies access, or the repository's settings do not permit the operation."""


class ReadOnlyError(Error):
    """The mount or the store accepts no writes."""


class BusyError(Error):
    """In use: a mountpoint, a scratch directory, a file that is open for writing; or another writer was faster."""


class StoreTimeoutError(Error, TimeoutError):
    """The store or the mount did not answer in time."""


class NoSpaceError(Error):
    """The disk or a quota is full."""


class OfflineError(Error):
    """The data are not on this machine, and the mount is offline."""


class InvalidError(Error, ValueError):
    """An argument is invalid, or the changes cannot be committed as they are."""


class UsageError(InvalidError):
    """There is no such option, or options contradict each other."""


class UncommittedWarning(UserWarning):
    """A mount ended with uncommitted changes. They stay in its scratch directory; the next mount resumes them."""


_CLASSES: Dict[int, Type[Error]] = {
    numbers.ENOENT: NotFoundError,
    numbers.EEXIST: ExistsError,
    numbers.EACCES: AccessError,
    numbers.EPERM: AccessError,
    numbers.EROFS: ReadOnlyError,
    numbers.EBUSY: BusyError,
    numbers.ENOTEMPTY: BusyError,
    numbers.ETIMEDOUT: StoreTimeoutError,
    numbers.ENOSPC: NoSpaceError,
    numbers.EDQUOT: NoSpaceError,
    numbers.ENETDOWN: OfflineError,
    numbers.EINVAL: InvalidError,
    numbers.ESTALE: ConflictError,
}


def error_of(errno: int, message: str, conflicts: Optional[Any] = None) -> Error:
    """Return the exception for a failure."""
    error = _CLASSES.get(errno, Error)(errno, message)
    if isinstance(error, ConflictError) and isinstance(conflicts, list):
        error.conflicts = tuple(_conflict(one) for one in conflicts if isinstance(one, dict))
    return error


def _conflict(value: Dict[str, Any]) -> Conflict:
    coords = tuple(tuple(int(n) for n in place) for place in value.get("coords") or ())
    text = {name: str(value.get(name, "")) for name in ("kind", "path", "other", "message")}
    return Conflict(coords=coords, **text)
