"""Results of commands: frozen dataclasses made from their JSON.

Members that a newer program adds are ignored; those that an older one lacks have their defaults.

>>> from_json(Committed, {"snapshot": None, "rebased_over": ["A"], "nodes": 0, "chunks": 0, "new": 1})
Committed(snapshot=None, rebased_over=('A',), nodes=0, chunks=0, unchanged=0, untracked=(), ungrouped=(), warnings=())
>>> from_json(Status, {"branch": "main", "moved": [{"from": "a", "to": "b"}]}).moved
(Move(from_='a', to='b'),)
>>> from_json(Commit, {"id": "A", "written_at": "2026-08-20T12:00:00Z"}).written_at.year
2026
"""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Dict, Mapping, Optional, Tuple, Type, TypeVar

_T = TypeVar("_T")


@dataclass(frozen=True)
class ArrayWarning:
    """An array that some programs cannot read as it is stored."""

    path: str = ""
    why: str = ""


@dataclass(frozen=True)
class Committed:
    """Result of a commit."""

    #: Id of the new snapshot; ``None`` if there was nothing to commit.
    snapshot: Optional[str] = None
    #: Ids of the concurrent commits that the commit was rebased over, oldest first.
    rebased_over: Tuple[str, ...] = ()
    #: Number of nodes created, deleted, changed and moved.
    nodes: int = 0
    #: Number of chunks written and deleted.
    chunks: int = 0
    #: Number of chunks that were left out, as they were written with the bytes that they had.
    unchanged: int = 0
    #: Files that the commit does not contain.
    untracked: Tuple[str, ...] = ()
    #: Nodes whose parent directory has no ``zarr.json``.
    ungrouped: Tuple[str, ...] = ()
    #: Arrays that some programs cannot read as they are stored.
    warnings: Tuple[ArrayWarning, ...] = ()

    def __bool__(self) -> bool:
        return self.snapshot is not None


@dataclass(frozen=True)
class Move:
    """A node that was moved."""

    from_: str = ""
    to: str = ""


@dataclass(frozen=True)
class ArrayChanges:
    """Numbers of changed chunks of one array."""

    path: str = ""
    written: int = 0
    deleted: int = 0


@dataclass(frozen=True)
class Untracked:
    """A file that a commit leaves out."""

    path: str = ""
    why: str = ""


@dataclass(frozen=True)
class Violation:
    """A reason for which a commit is refused."""

    path: str = ""
    why: str = ""


@dataclass(frozen=True)
class Status:
    """Summary of the uncommitted changes in a mount."""

    repository: str = ""
    branch: str = ""
    #: Id of the snapshot that the changes are based on.
    base: str = ""
    #: Id of the branch's newest commit, if it could be read.
    tip: Optional[str] = None
    branch_moved: bool = False
    branch_reset: bool = False
    branch_gone: bool = False
    #: Reason that the branch could not be read; ``None`` otherwise.
    branch_unreadable: Optional[str] = None
    #: True if the store is not asked: nothing is said of the branch.
    is_offline: bool = False
    #: Path of the mount's root if other commits moved, deleted or made it anew; ``None`` otherwise.
    lost_root: Optional[str] = None
    #: True if there is nothing to commit.
    clean: bool = True
    added: Tuple[str, ...] = ()
    changed: Tuple[str, ...] = ()
    deleted: Tuple[str, ...] = ()
    moved: Tuple[Move, ...] = ()
    arrays: Tuple[ArrayChanges, ...] = ()
    chunks_written: int = 0
    chunks_deleted: int = 0
    bytes: int = 0
    uploaded_chunks: int = 0
    uploaded_bytes: int = 0
    #: Files open for writing, for which a commit is refused.
    open_for_writing: Tuple[str, ...] = ()
    untracked: Tuple[Untracked, ...] = ()
    ungrouped: Tuple[str, ...] = ()
    #: Arrays that some programs cannot read as they are stored.
    warnings: Tuple[ArrayWarning, ...] = ()
    #: Commit of this mount that seemed to fail but is on the branch.
    landed: Optional[str] = None
    #: Reasons for which a commit is refused.
    faults: Tuple[Violation, ...] = ()
    #: Directory that keeps the changes.
    scratch: str = ""


@dataclass(frozen=True)
class NodeChange:
    """Uncommitted change of one node."""

    path: str = ""
    #: ``added``, ``changed``, ``deleted``, ``moved`` or ``chunks``.
    what: str = ""
    from_: Optional[str] = None
    #: ``zarr.json`` before and now.
    before: Any = None
    after: Any = None
    #: Coordinates of chunks.
    written: Tuple[Tuple[int, ...], ...] = ()
    deleted: Tuple[Tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class UncommittedDiff:
    """Uncommitted changes in a mount, node by node."""

    nodes: Tuple[NodeChange, ...] = ()


@dataclass(frozen=True)
class ChunkCount:
    """A number of chunks and their bytes."""

    count: int = 0
    bytes: int = 0
    bytes_before: Optional[int] = None


@dataclass(frozen=True)
class ChunkCounts:
    """Chunks that differ."""

    added: ChunkCount = ChunkCount()
    changed: ChunkCount = ChunkCount()
    removed: ChunkCount = ChunkCount()


@dataclass(frozen=True)
class NodeDifference:
    """Difference of one node between two snapshots."""

    path: str = ""
    #: ``group`` or ``array``.
    kind: str = ""
    #: Some of ``added``, ``removed``, ``moved``, ``changed``, ``chunks``.
    what: Tuple[str, ...] = ()
    from_: Optional[str] = None
    before: Any = None
    after: Any = None
    chunks: Optional[ChunkCounts] = None
    #: Coordinates by ``added``, ``changed``, ``removed``, if they were asked for.
    coords: Optional[Mapping[str, Any]] = None


@dataclass(frozen=True)
class NodeCount:
    """Numbers of groups and arrays."""

    groups: int = 0
    arrays: int = 0


@dataclass(frozen=True)
class Summary:
    """Numbers of differences."""

    added: NodeCount = NodeCount()
    removed: NodeCount = NodeCount()
    moved: NodeCount = NodeCount()
    changed: NodeCount = NodeCount()
    chunks: ChunkCounts = ChunkCounts()


@dataclass(frozen=True)
class SnapshotDiff:
    """Differences between two snapshots."""

    from_: str = ""
    to: str = ""
    nodes: Tuple[NodeDifference, ...] = ()
    summary: Summary = Summary()


@dataclass(frozen=True)
class Discarded:
    """Result of a discard."""

    #: What was discarded, as text.
    discarded: str = ""


@dataclass(frozen=True)
class Refreshed:
    """Result of a refresh."""

    #: Id of the snapshot that the mount is now based on.
    base: str = ""


@dataclass(frozen=True)
class Merged:
    """Result of a merge."""

    #: Branch that has the changes now.
    branch: str = ""
    #: Id of the new snapshot; ``None`` if there was nothing to merge, or for a dry run.
    snapshot: Optional[str] = None
    #: Ids of all snapshots that were made, oldest first: more than one with ``keep_commits``.
    made: Tuple[str, ...] = ()
    #: Ids of the merged snapshot, and of the common ancestor.
    source: str = ""
    base: str = ""
    #: Ids of the merged commits, newest first.
    commits: Tuple[str, ...] = ()
    #: Number of nodes and of chunks that change.
    nodes: int = 0
    chunks: int = 0
    #: True if the merged branch was deleted.
    deleted: bool = False

    def __bool__(self) -> bool:
        return self.snapshot is not None


@dataclass(frozen=True)
class Copied:
    """Node that a restore copied, because the original was moved since."""

    #: Path of the copy, and of the original.
    path: str = ""
    now: str = ""


@dataclass(frozen=True)
class Restored:
    """Result of a restore."""

    #: Path that was restored, and its name in the source.
    path: str = ""
    found_at: str = ""
    #: Id of the snapshot that the path was restored from: the member ``from``.
    from_: str = ""
    #: Branch of the mount, or that got the commit.
    branch: str = ""
    #: Id of the new snapshot; ``None`` in a mount, if there was nothing to change, or for a dry run.
    snapshot: Optional[str] = None
    #: Paths of nodes.
    created: Tuple[str, ...] = ()
    deleted: Tuple[str, ...] = ()
    updated: Tuple[str, ...] = ()
    moved: Tuple[Move, ...] = ()
    #: Number of chunks that change.
    chunks: int = 0
    #: Nodes that were copied because the originals are elsewhere now.
    elsewhere: Tuple[Copied, ...] = ()
    #: Groups above the path that were missing.
    parents: Tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.snapshot is not None or bool(self.created or self.deleted or self.updated or self.moved or self.chunks)


@dataclass(frozen=True)
class Cloned:
    """Result of a clone: what the new repository has, and what was copied now."""

    branches: int = 0
    tags: int = 0
    commits: int = 0
    objects: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class PushedRef:
    """Ref of the source, and its change at the destination."""

    #: ``"branch"`` or ``"tag"``.
    kind: str = ""
    name: str = ""
    #: Target before, ``None`` if the ref is new: the member ``from``.
    from_: Optional[str] = None
    #: Target in the source.
    to: str = ""
    #: ``"unchanged"``, ``"created"``, ``X or ``"refused"``.
    change: str = ""
    #: Reason of a refusal.
    why: Optional[str] = None


@dataclass(frozen=True)
class Pushed:
    """Result of a push or pull."""

    refs: Tuple[PushedRef, ...] = ()
    #: Number of commits that were missing, and of objects and bytes that were copied.
    commits: int = 0
    objects: int = 0
    bytes: int = 0

    def __bool__(self) -> bool:
        return any(ref.change in ("created", "forward", "forced") for ref in self.refs)


@dataclass(frozen=True)
class Refs:
    """Branches and tags, with the ids of their snapshots."""

    branches: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Commit:
    """A commit of a history."""

    id: str = ""
    parent_id: Optional[str] = None
    message: str = ""
    written_at: Optional[datetime] = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    #: Branches and tags that point to it, such as ``branch/main``, if they were asked for.
    refs: Tuple[str, ...] = ()
    #: Path of the node then, if the commits of a node were asked for.
    path: Optional[str] = None


def from_json(kind: Type[_T], value: Mapping[str, Any]) -> _T:
    """Make a dataclass from a JSON object."""
    hints = typing.get_type_hints(kind)
    members: Dict[str, Any] = {}
    for member in dataclasses.fields(typing.cast(Any, kind)):
        name = member.name.rstrip("_")
        if name in value:
            members[member.name] = _convert(hints[member.name], value[name])
    return kind(**members)


def _convert(hint: Any, value: Any) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Union:
        return None if value is None else _convert(arguments[0], value)
    if origin is tuple:
        return tuple(_convert(arguments[0], one) for one in value or ())
    if dataclasses.is_dataclass(hint) and isinstance(value, dict):
        return from_json(typing.cast(Any, hint), value)
    if hint is datetime:
        return _time(value)
    return value


def _time(text: str) -> datetime:
    """Parse a time in UTC; fractions of a second have any number of digits.

    >>> _time("2026-08-20T12:00:00.123456789Z").microsecond
    123456
    """
    whole, _, fraction = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{whole}.{(fraction + '000000')[:6]}+00:00")
