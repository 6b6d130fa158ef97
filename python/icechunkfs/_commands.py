"""Commands on a mount or a repository."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any, List, Mapping, Optional, Sequence, Union, overload

from . import _program, _progress
from ._mount import Mount
from ._options import split, to_words
from ._types import (
    Cloned,
    Commit,
    Committed,
    Discarded,
    Merged,
    Pushed,
    Refreshed,
    Refs,
    Restored,
    SnapshotDiff,
    Status,
    UncommittedDiff,
    from_json,
)

if TYPE_CHECKING:
    if sys.version_info >= (3, 12):
        from typing import Unpack
    else:
        from typing_extensions import Unpack

    from ._options import StoreOptions

PathLike = Union[str, "os.PathLike[str]"]


def commit(
    path: PathLike,
    message: str = "",
    *,
    metadata: Optional[Mapping[str, Any]] = None,
    amend: bool = False,
    on_conflict: Optional[str] = None,
    strict: bool = False,
    keep_unchanged: bool = False,
    progress: Optional[bool] = None,
) -> Committed:
    """Commit the changes in the mount at ``path``; the result is false if there was nothing to commit.

    ``on_conflict`` (``"ours"`` or ``"theirs"``) settles chunks and members of ``zarr.json`` that both sides changed; other conflicts
    raise :class:`ConflictError`, and :func:`resolve` settles them one by one. ``strict`` commits nothing if there are warnings. ``keep_unchanged``
    stores chunks again that were written with the bytes that they had. A progress bar is shown in notebooks and terminals if ``tqdm`` is installed; ``progress`` says
    whether.
    """
    words = ["commit", f"--message={message}", *_metadata(metadata)]
    words += to_words({"amend": amend, "on_conflict": on_conflict, "strict": strict, "keep_unchanged": keep_unchanged})
    watch = _progress.Watch() if _progress.is_shown(progress) else None
    return from_json(Committed, _program.run_json([*words, "--", os.fspath(path)], watch))


def _metadata(metadata: Optional[Mapping[str, Any]]) -> List[str]:
    words = []
    for key, value in (metadata or {}).items():
        if "=" in key:
            raise ValueError(f"metadata: the key {key!r} has a `=`")
        words.append(f"--metadata={key}={json.dumps(value)}")
    return words


def status(path: PathLike) -> Status:
    """Return a summary of the uncommitted changes in the mount at ``path``."""
    return from_json(Status, _program.run_json(["status", "--", os.fspath(path)]))


def discard(path: PathLike, inside: str = "") -> Discarded:
    """Discard uncommitted changes in the mount at ``path``: all of them, or those at and below the path ``inside``."""
    places = [os.fspath(path), *filter(None, [inside])]
    return from_json(Discarded, _program.run_json(["discard", "--", *places]))


def resolve(path: PathLike, *inside: str, side: str) -> int:
    """Settle the conflicts at and below the paths ``inside`` of the mount at ``path``; the next commit takes ``side``, ``"ours"`` or ``"theirs"``.

    Returns the number of conflicts. They are those that the last commit or refresh raised in a :class:`ConflictError`.
    """
    if side not in ("ours", "theirs"):
        raise ValueError(f"side: {side!r} is neither 'ours' nor 'theirs'")
    settled: int = _program.run_json(["resolve", f"--{side}", "--", os.fspath(path), *inside])["settled"]
    return settled


def refresh(path: PathLike) -> Refreshed:
    """Move the mount at ``path`` to its branch's newest commit. Uncommitted changes stay."""
    return from_json(Refreshed, _program.run_json(["refresh", "--", os.fspath(path)]))


@overload
def diff(place: PathLike) -> UncommittedDiff: ...


@overload
def diff(
    place: PathLike,
    old: str,
    new: str,
    path: Optional[str] = ...,
    *,
    chunks: bool = ...,
    content: bool = ...,
    **store: "Unpack[StoreOptions]",
) -> SnapshotDiff: ...


def diff(
    place: PathLike,
    old: Optional[str] = None,
    new: Optional[str] = None,
    path: Optional[str] = None,
    *,
    chunks: bool = False,
    content: bool = False,
    **store: "Unpack[StoreOptions]",
) -> Union[UncommittedDiff, SnapshotDiff]:
    """Return the uncommitted changes in the mount at ``place``, or the differences between two snapshots of the repository
    ``place``. A snapshot is a branch, a tag, an id, or one of them and ``~N`` for N commits before it. ``path`` is that of a node in
    either snapshot: then only this node and those below it are compared.
    """
    if old is None and new is None:
        return from_json(UncommittedDiff, _program.run_json(["diff", "--", os.fspath(place)]))
    if old is None or new is None:
        raise TypeError("diff compares two snapshots, or shows the changes in a mount")
    words = to_words({"chunks": chunks, "content": content, **_of_store(place, store)})
    return from_json(SnapshotDiff, _program.run_json(["diff", *words, "--", _repo(place), old, new, *([path] if path else [])]))


def merge(
    repo: PathLike,
    source: str,
    *,
    into: str = "main",
    message: Optional[str] = None,
    metadata: Optional[Mapping[str, Any]] = None,
    on_conflict: Optional[str] = None,
    ancestor: Optional[str] = None,
    keep_commits: bool = False,
    delete_source: bool = False,
    dry_run: bool = False,
    **store: "Unpack[StoreOptions]",
) -> Merged:
    """Merge ``source`` (a branch, tag or id) into the branch ``into``, as one commit, or with ``keep_commits`` as one for each of its own.

    The result is false if there was nothing to merge.

    Conflicts raise :class:`ConflictError`, and nothing is merged. ``on_conflict`` settles chunks and members of ``zarr.json``: ``"ours"`` keeps
    those of ``into``, ``"theirs"`` takes those of ``source``. ``ancestor`` (a branch, tag or id) is what both are compared with where their
    newest common ancestor is lost.
    """
    words = ["merge", f"--into={into}", *_metadata(metadata)]
    if message is not None:
        words.append(f"--message={message}")
    flags = {"on_conflict": on_conflict, "ancestor": ancestor, "keep_commits": keep_commits, "delete_source": delete_source,
             "dry_run": dry_run}
    words += to_words({**flags, **_of_store(repo, store)})
    return from_json(Merged, _program.run_json([*words, "--", _repo(repo), source]))


def clone(repo: PathLike, dest: PathLike, *, other: Sequence[str] = (), **store: "Unpack[StoreOptions]") -> Cloned:
    """Make ``dest`` a repository with everything that the branches and tags of ``repo`` reach. An interrupted clone continues.

    Where both are in object stores, ``store`` is for ``repo``, and ``other`` has options of ``dest``: ``["region=eu-west-1"]``.
    """
    words = ["clone", *_other(other), *to_words(_of_store(repo, store))]
    return from_json(Cloned, _program.run_json([*words, "--", _repo(repo), _repo(dest)]))


def push(
    repo: PathLike,
    dest: Optional[PathLike] = None,
    *refs: str,
    force: bool = False,
    dry_run: bool = False,
    other: Sequence[str] = (),
    **store: "Unpack[StoreOptions]",
) -> Pushed:
    """Bring branches and tags of ``dest`` to where ``repo`` has them, all or those in ``refs``.

    Without ``dest`` it is the repository that this user has cloned ``repo`` from.

    Refs that would lose commits or move a tag are refused, which raises :class:`ConflictError` when the others have moved.
    """
    return _bring("push", repo, dest, refs, {"force": force, "dry_run": dry_run}, other, store)


def pull(
    repo: PathLike,
    source: Optional[PathLike] = None,
    *refs: str,
    force: bool = False,
    dry_run: bool = False,
    other: Sequence[str] = (),
    **store: "Unpack[StoreOptions]",
) -> Pushed:
    """Bring branches and tags of ``repo`` to where ``source`` has them: :func:`push` the other way round."""
    return _bring("pull", repo, source, refs, {"force": force, "dry_run": dry_run}, other, store)


def _bring(
    command: str,
    repo: PathLike,
    partner: Optional[PathLike],
    refs: Sequence[str],
    flags: Mapping[str, Any],
    other: Sequence[str],
    store: Mapping[str, Any],
) -> Pushed:
    if partner is None and refs:
        raise ValueError("name the second repository, too: refs follow it")
    words = [command, *_other(other), *to_words({**flags, **_of_store(repo, store)})]
    partners = [] if partner is None else [_repo(partner)]
    return from_json(Pushed, _program.run_json([*words, "--", _repo(repo), *partners, *refs]))


def _other(options: Sequence[str]) -> List[str]:
    return [f"--other={option}" for option in options]


def restore(
    place: PathLike,
    path: str,
    source: str,
    *,
    branch: Optional[str] = None,
    message: Optional[str] = None,
    metadata: Optional[Mapping[str, Any]] = None,
    dry_run: bool = False,
    **store: "Unpack[StoreOptions]",
) -> Restored:
    """Make ``path``, and what is below it, what it was in ``source`` (a branch, tag, id or time). No chunk is read or stored again.

    In a mount (``place`` is a mountpoint or a :class:`Mount`) the result is an uncommitted change. In a repository it is one commit on
    ``branch`` (``main`` by default), and the result is false if there was nothing to change. Conflicts raise :class:`ConflictError`.
    """
    words = ["restore", f"--from={source}", *_metadata(metadata)]
    options = {"branch": branch, "message": message}
    words += [f"--{name}={value}" for name, value in options.items() if value is not None]
    of_store = {} if isinstance(place, Mount) else _of_store(place, store)
    words += to_words({"dry_run": dry_run, **of_store})
    return from_json(Restored, _program.run_json([*words, "--", os.fspath(place), path]))


def log(
    repo: PathLike,
    path: Optional[str] = None,
    *,
    chunks: Optional[str] = None,
    branch: Optional[str] = None,
    tag: Optional[str] = None,
    snapshot: Optional[str] = None,
    count: Optional[int] = None,
    all: bool = False,
    **store: "Unpack[StoreOptions]",
) -> List[Commit]:
    """Return the history of a branch (``main`` by default), tag or snapshot, newest first; with ``all`` of all of them.

    With ``path``, only the commits that touched that node or one below it; with ``chunks`` (``"0:10,:"``), those of its chunks.
    """
    which = {"branch": branch, "tag": tag, "snapshot": snapshot, "all": all, "chunks": chunks}
    words = to_words({**which, **_of_store(repo, store)})
    if count is not None:
        words.append(f"-n{int(count)}")
    places = [_repo(repo), *filter(None, [path])]
    commits = _program.run_json(["log", *words, "--", *places])
    return [from_json(Commit, one) for one in commits]


def refs(repo: PathLike, **store: "Unpack[StoreOptions]") -> Refs:
    """Return all branches and tags."""
    words = to_words(_of_store(repo, store))
    return from_json(Refs, _program.run_json(["refs", *words, "--", _repo(repo)]))


def _repo(place: PathLike) -> str:
    return place.repo if isinstance(place, Mount) else os.fspath(place)


def _of_store(place: PathLike, store: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options of the store: those of the mount, if ``place`` is one, and the given ones."""
    of_mount = split(place.options)[0] if isinstance(place, Mount) else {}
    return {**of_mount, **store}
