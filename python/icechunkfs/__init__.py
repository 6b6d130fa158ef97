"""Mount Icechunk repositories as plain directories of Zarr files.

    import icechunkfs

    with icechunkfs.mount("s3://bucket/ocean", tag="v1") as path:
        ...                                      # path is a pathlib.Path

    with icechunkfs.mount("ocean") as path:      # a branch is writable
        ...
        icechunkfs.commit(path, "Salinity of May", metadata={"run": 7})

A mount ends with its ``with`` block, and with the process that made it, however that process ends. Failures are
exceptions, see :class:`Error`.
"""

from ._commands import clone, commit, diff, discard, log, merge, pull, push, refresh, refs, resolve, restore, status
from ._errors import (
    AccessError,
    BusyError,
    Conflict,
    ConflictError,
    Error,
    ExistsError,
    InvalidError,
    NoSpaceError,
    NotFoundError,
    OfflineError,
    ReadOnlyError,
    StoreTimeoutError,
    UncommittedWarning,
    UsageError,
)
from ._mount import Mount, mount
from ._options import MountOptions, StoreOptions
from ._program import program, version
from ._types import (
    ArrayChanges,
    ArrayWarning,
    ChunkCount,
    ChunkCounts,
    Cloned,
    Commit,
    Committed,
    Copied,
    Discarded,
    Merged,
    Move,
    NodeChange,
    NodeCount,
    NodeDifference,
    Pushed,
    PushedRef,
    Refreshed,
    Refs,
    Restored,
    SnapshotDiff,
    Status,
    Summary,
    UncommittedDiff,
    Untracked,
    Violation,
)

__all__ = [
    "AccessError",
    "ArrayChanges",
    "ArrayWarning",
    "BusyError",
    "ChunkCount",
    "ChunkCounts",
    "Cloned",
    "Commit",
    "Committed",
    "Copied",
    "Conflict",
    "ConflictError",
    "Discarded",
    "Error",
    "ExistsError",
    "InvalidError",
    "Merged",
    "Mount",
    "MountOptions",
    "Move",
    "NoSpaceError",
    "NodeChange",
    "NodeCount",
    "NodeDifference",
    "NotFoundError",
    "OfflineError",
    "Pushed",
    "PushedRef",
    "ReadOnlyError",
    "Refreshed",
    "Refs",
    "Restored",
    "SnapshotDiff",
    "Status",
    "StoreOptions",
    "StoreTimeoutError",
    "Summary",
    "UncommittedDiff",
    "UncommittedWarning",
    "Untracked",
    "UsageError",
    "Violation",
    "clone",
    "commit",
    "diff",
    "discard",
    "log",
    "merge",
    "mount",
    "program",
    "pull",
    "push",
    "refresh",
    "refs",
    "resolve",
    "restore",
    "status",
    "version",
]
