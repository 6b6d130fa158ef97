"""Comparisons of writing and committing, through writable mounts.

The reference's commit is done when its files are in the page cache. Ours is done when they are on the disk.
"""
import itertools
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import icechunk
import numpy as np
import zarr

import data
from common import LARGE_CHUNK, NATIVE, SMALL_CHUNK, Bench, in_turn, say, seconds_of
from data import ReferenceArray
from harness import BenchError, Mount, remove, run, same_trees
from report import OBJECTS, S, Baseline, Target, at_least

MOST_OBJECTS = 200  # that a hundred thousand small chunks may become
FLAT = 0.67  # a commit into an array of ten times as many manifests may take half as long again: it is the same work
MOVE_SECONDS = 1.0
CACHE = Path(__file__).resolve().parent.parent / "target" / "bench-cache"
PLAIN_COPY = "cp -r of the plain tree"


# ---------------------------------------------------------------- new arrays

def write4m(bench: Bench) -> None:
    """zarr-python writes large chunks, and the commit: through the mount against icechunk's own store."""
    compare_writing(bench, "write4m", bench.sizes.large_chunks, LARGE_CHUNK)


def write4k(bench: Bench) -> None:
    """zarr-python writes small chunks, and the commit: the same; and how many objects it makes."""
    objects = compare_writing(bench, "write4k", bench.sizes.written_small_chunks, SMALL_CHUNK)
    bench.report.add("write4k objects", OBJECTS, objects["ours"], Baseline(NATIVE, objects["native"]),
                     Target("ours", MOST_OBJECTS, more_is_better=False))


def compare_writing(bench: Bench, name: str, chunks: int, chunk_bytes: int) -> dict[str, list[float]]:
    """Reports the time, and returns how many chunk objects there are after each run."""
    values = np.frombuffer(np.random.default_rng(data.SEED).bytes(chunks * chunk_bytes), dtype="int8")
    parts = {side: {"writing": [], "commit": [], "objects": []} for side in ("ours", "native", "plain")}

    def write(store, side: str, commit) -> float:
        os.sync()  # what came before must not be written to the disk now
        begin = time.perf_counter()
        zarr.create_group(store).create_array(
            data.ARRAY, shape=values.shape, chunks=(chunk_bytes,), dtype="int8", compressors=None, fill_value=0,
        )[:] = values
        written = time.perf_counter()
        commit()
        end = time.perf_counter()
        parts[side]["writing"].append(written - begin)
        parts[side]["commit"].append(end - written)
        return end - begin

    def ours() -> float:
        with fresh(bench, f"{name}-ours") as repo:
            with writable(bench, repo) as mount:
                taken = write(str(mount.path), "ours", lambda: commit_by_touch(mount))
            after("ours", repo)
        return taken

    def native() -> float:
        with fresh(bench, f"{name}-native") as repo:
            session = open_native(repo).writable_session("main")
            taken = write(session.store, "native", lambda: session.commit("values"))
            after("native", repo)
        return taken

    def after(side: str, repo: Path) -> None:
        if not parts[side]["objects"] and not np.array_equal(data.open_native(repo)[:], values):
            raise BenchError(f"{name}: icechunk reads other values than {side} wrote")
        parts[side]["objects"].append(len(objects_of(repo, "chunks")))

    def plain() -> float:
        tree = bench.space.plain(name)
        taken = write(str(tree), "plain", lambda: None)
        remove(tree)
        return taken

    samples = in_turn(bench.runs, {"ours": ours, "native": native, "plain": plain})
    bench.report.add(name, S, samples["ours"], Baseline(NATIVE, samples["native"]), at_least(1.0))
    # The limit of any mount: where this is below the target, zarr-python's file operations are slow.
    bench.report.add(f"{name} (by plain tree)", S, samples["plain"], Baseline(NATIVE, samples["native"]))
    for part in ("writing", "commit"):
        bench.report.add(f"{name} ({part})", S, parts["ours"][part], Baseline(NATIVE, parts["native"][part]))
    return {side: parts[side]["objects"] for side in parts}


# ---------------------------------------------------------------- one chunk of very many

def commit_one(bench: Bench) -> None:
    """One changed chunk among very many references, and the commit; and where the references are in many manifests."""
    array = bench.references[-1]
    with copied(bench, array, "one-ours") as repo, copied(bench, array, "one-native") as theirs:
        samples = in_turn(bench.runs, {"ours": lambda: mounted_commits(bench, array, repo),
                                       "native": lambda: native_commits(array, theirs)})
        for number, name in enumerate(("commit one, first", "commit one, next")):
            ours, native = ([sample[number] for sample in samples[side]] for side in ("ours", "native"))
            bench.report.add(f"{name} of {array.references:,}", S, ours, Baseline(NATIVE, native), at_least(2.0))
    few, many = (bench.reference_array(grid, split=True) for grid in bench.sizes.split_grids)
    with copied(bench, few, "split-few") as fewer, copied(bench, many, "split-many") as more:
        samples = in_turn(bench.runs, {"few": lambda: mounted_commits(bench, few, fewer),
                                       "many": lambda: mounted_commits(bench, many, more)})
        first = {side: [sample[0] for sample in samples[side]] for side in samples}
        bench.report.add(f"commit one, {many.grid[0]} manifests", S, first["many"],
                         Baseline(f"{few.grid[0]} manifests", first["few"]), at_least(FLAT))


changes = itertools.count(1)  # every commit has something to commit


def mounted_commits(bench: Bench, array: ReferenceArray, repo: Path) -> tuple[float, float]:
    """Seconds of the first change and commit after a mount, and of another one."""
    with writable(bench, repo) as mount:
        def change_and_commit() -> None:
            number = next(changes)
            with open(array.file(mount.path, number % array.references), "wb") as chunk:
                chunk.write(bytes([number % 255]))
            commit_by_touch(mount)

        before = tip(repo)
        taken = seconds_of(change_and_commit), seconds_of(change_and_commit)
    if tip(repo) == before:
        raise BenchError("nothing was committed")
    return taken


def native_commits(array: ReferenceArray, repo: Path) -> tuple[float, float]:
    """The same by icechunk's own store."""
    repository = open_native(repo)

    def change_and_commit(session: icechunk.Session, opened: zarr.Array) -> None:
        number = next(changes)
        opened[np.unravel_index(number % array.references, array.grid)] = number % 100 + 1
        session.commit("change")

    def once() -> float:
        session = repository.writable_session("main")
        opened = zarr.open_array(session.store, path=data.ARRAY, mode="r+")
        return seconds_of(lambda: change_and_commit(session, opened))

    return once(), once()


# ---------------------------------------------------------------- moves and copies

def move(bench: Bench) -> None:
    """`mv` of an array of very many chunks, and the commit: no chunk is looked at."""
    # Version 1 has no moves: there the array's manifests are written again.
    with own_references(bench, bench.sizes.grids[-1]) as repo:
        manifests = objects_of(repo, "manifests")

        def there_and_back() -> float:
            with writable(bench, repo) as mount:
                here = data.ARRAY if (mount.path / data.ARRAY).exists() else "moved"
                there = "moved" if here == data.ARRAY else data.ARRAY
                os.sync()
                return seconds_of(lambda: (run(["mv", mount.path / here, mount.path / there]), commit_by_touch(mount)))

        samples = in_turn(bench.runs, {"ours": there_and_back})["ours"]
        if objects_of(repo, "manifests") != manifests or objects_of(repo, "chunks"):
            raise BenchError("a move wrote manifests or chunks")
    bench.report.add(f"move of {math.prod(bench.sizes.grids[-1]):,} chunks", S, samples, None,
                     Target("ours", MOVE_SECONDS, more_is_better=False))
    move_without_chunks(bench)


def move_without_chunks(bench: Bench) -> None:
    """A move of chunks with objects of their own, which are removed meanwhile: no program can have read one."""
    array = bench.native_small
    with copied(bench, array, "move-blind") as repo:
        before = objects_of(repo, "chunks")
        with writable(bench, repo) as mount:
            (repo / "chunks").rename(repo / "away")
            run(["mv", mount.path / data.ARRAY, mount.path / "moved"])
            commit_by_touch(mount)
            if objects_of(repo, "chunks"):
                raise BenchError("a move wrote chunks")
            remove(repo / "chunks")
            (repo / "away").rename(repo / "chunks")
            same_trees(mount.path / "moved", array.plain / data.ARRAY)
        if objects_of(repo, "chunks") != before:
            raise BenchError("a move changed chunks")


def copy(bench: Bench) -> None:
    """`cp -r` of an array, and the commit: no chunk is stored again."""
    say(f"making {bench.sizes.copied_chunks} chunks of 4 KiB")
    array = data.make_chunked_array(bench.space, "copy", bench.sizes.copied_chunks, SMALL_CHUNK)
    before = objects_of(array.repo, "chunks")
    added: list[float] = []

    def ours() -> float:
        with writable(bench, array.repo) as mount:
            target = mount.path / f"copy-{len(added)}"
            os.sync()
            taken = seconds_of(lambda: (run(["cp", "-r", mount.path / data.ARRAY, target]), commit_by_touch(mount)))
            same_trees(target, array.plain / data.ARRAY)
        after = objects_of(array.repo, "chunks")
        if {name: after.get(name) for name in before} != before:
            raise BenchError("a copy changed objects")
        added.append(len(after) - len(before))
        return taken

    def plainly() -> float:
        target = bench.space.plain("copy-again")
        os.sync()
        taken = seconds_of(lambda: run(["cp", "-r", array.plain / data.ARRAY, target]))
        remove(target)
        return taken

    samples = in_turn(bench.runs, {"ours": ours, "plain": plainly})
    bench.report.add(f"copy of {array.chunks:,} chunks", S, samples["ours"], Baseline(PLAIN_COPY, samples["plain"]))
    bench.report.add("copy new objects", OBJECTS, added, None, Target("ours", 1, more_is_better=False))


# ---------------------------------------------------------------- repositories that change

def commit_by_touch(mount: Mount) -> None:
    run(["touch", mount.path / ".icechunk" / "commit"])


def open_native(repo: Path) -> icechunk.Repository:
    return icechunk.Repository.open(icechunk.local_filesystem_storage(str(repo)))


def tip(repo: Path) -> str:
    return open_native(repo).lookup_branch("main")


@contextmanager
def writable(bench: Bench, repo: Path) -> Iterator[Mount]:
    """A writable mount of `repo`, whose scratch directory is new and gone afterwards."""
    scratch = bench.space.scratch(repo.name)
    try:
        with Mount(bench.space, repo, repo.name, scratch=scratch) as mount:
            yield mount
    finally:
        remove(scratch)


@contextmanager
def fresh(bench: Bench, name: str) -> Iterator[Path]:
    """An empty repository, which is gone afterwards."""
    repo = bench.space.repo(name)
    data.create_repository(repo)
    try:
        yield repo
    finally:
        remove(repo)


@contextmanager
def own_references(bench: Bench, grid: tuple[int, int, int]) -> Iterator[Path]:
    """A repository of version 2 with one array of inline chunks of a byte, to be changed; gone afterwards.

    It is written through a mount, file by file, which takes minutes: a copy is kept beside the environment.
    """
    kept = CACHE / f"references-2-{'x'.join(map(str, grid))}"
    if not kept.is_dir():
        say(f"writing {math.prod(grid)} chunks, once")
        unfinished = bench.space.repo("own-references")
        run([bench.space.binary, "init", unfinished])
        with writable(bench, unfinished) as mount:
            zarr.create_group(str(mount.path)).create_array(
                data.ARRAY, shape=grid, chunks=(1, 1, 1), dtype="int8", compressors=None, fill_value=0)
            for first, second in itertools.product(range(grid[0]), range(grid[1])):
                folder = mount.path / data.ARRAY / "c" / str(first) / str(second)
                folder.mkdir(parents=True)
                for third in range(grid[2]):
                    (folder / str(third)).write_bytes(b"x")
            commit_by_touch(mount)
        CACHE.mkdir(parents=True, exist_ok=True)
        run(["mv", unfinished, kept])
    repo = bench.space.repo("own-references")
    run(["cp", "-r", kept, repo])
    try:
        yield repo
    finally:
        remove(repo)


@contextmanager
def copied(bench: Bench, array, name: str) -> Iterator[Path]:
    """A copy of an array's repository, to be changed; gone afterwards."""
    repo = bench.space.repo(name)
    run(["cp", "-r", array.repo, repo])
    try:
        yield repo
    finally:
        remove(repo)


def objects_of(repo: Path, kind: str) -> dict[str, tuple[int, int]]:
    """Inode and size of every object of a kind."""
    folder = repo / kind
    if not folder.is_dir():
        return {}
    return {entry.name: (entry.inode(), entry.stat().st_size) for entry in os.scandir(folder)}
