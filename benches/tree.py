"""Whole trees of small files through a writable mount, beside the same on the local disk.

A plain tree is what `cp -r` out of a mount made. Where a pass is the second, the first one is not counted on either side.
"""
import os
import shutil
import statistics
from collections.abc import Callable
from pathlib import Path

import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

import data
from common import NATIVE, PLAIN_FIND, PLAIN_WARM, SMALL_CHUNK, Bench, in_turn, say, seconds_of
from harness import remove, run
from reading import WARM_SECONDS, read_files
from report import OBJECTS, S, US_PER_FILE, Baseline, at_least
from scale import chunked_document, put, put_arrays
from writing import commit_by_touch, copied, open_native, writable

COPIED = 20_000  # chunks of 4 KiB
COMMITTED = 40_000
ARRAYS = 50_000
QUICK_ARRAYS, QUICK_COPIED = 1_000, 1_000
PLAIN = "ext4"
INTO = "cp -r into the mount"


def tree(bench: Bench) -> None:
    """Trees of small files, read, copied, archived, listed and removed through a writable mount."""
    unchanged_chunks(bench)
    copies(bench)
    committed(bench)
    for name, repo in (("shared manifests", shared_arrays(bench)), ("a manifest each", separate_arrays(bench))):
        listings(bench, name, repo)
        commit_of_one(bench, name, repo)


def unchanged_chunks(bench: Bench) -> None:
    """open, read and close, and `tar c`, of chunks that no one has changed."""
    array = bench.small
    with copied(bench, array, "tree-small") as repo, writable(bench, repo) as mount:
        def reading(tree: Path, name: str) -> Callable[[], float]:
            files = bench.space.list_file(f"tree-{name}", array.files(tree))

            def measure() -> float:
                passes = read_files(bench.space, "read", files, array.chunk_bytes, warm=1, seconds=WARM_SECONDS)
                return statistics.median(a_pass.whole for a_pass in passes) / array.chunks * 1e6

            return measure

        samples = in_turn(bench.runs, {"ours": reading(mount.path, "ours"), "plain": reading(array.plain, "plain")})
        bench.report.add("writable open4k", US_PER_FILE, samples["ours"], Baseline(PLAIN_WARM, samples["plain"]), at_least(0.6))

        def archive(tree: Path) -> float:
            # Into a pipe: tar does not read what it archives to /dev/null.
            return seconds_of(lambda: run(["sh", "-c", f"tar c -C {tree} {data.ARRAY} | cat > /dev/null"]))

        archive(mount.path), archive(array.plain)
        samples = in_turn(bench.runs, {"ours": lambda: archive(mount.path), "plain": lambda: archive(array.plain)})
        bench.report.add("writable tar, second", S, samples["ours"], Baseline(PLAIN, samples["plain"]), at_least(0.5))


def copies(bench: Bench) -> None:
    """`cp -r` into the mount, within it, and `rm -r`."""
    chunks = COPIED if bench.full_scale else QUICK_COPIED
    say(f"making {chunks} chunks of 4 KiB")
    array = data.make_chunked_array(bench.space, "tree-copy", chunks, SMALL_CHUNK)
    source = array.plain / data.ARRAY
    into: list[float] = []
    within: list[float] = []
    gone: list[float] = []
    plain: list[float] = []
    plain_gone: list[float] = []
    for _ in range(bench.runs):
        with writable(bench, array.repo) as mount:
            os.sync()
            into.append(seconds_of(lambda: run(["cp", "-r", source, mount.path / "into"])))
            os.sync()
            within.append(seconds_of(lambda: run(["cp", "-r", mount.path / data.ARRAY, mount.path / "within"])))
            os.sync()
            gone.append(seconds_of(lambda: run(["rm", "-r", mount.path / "into"])))
        target = bench.space.plain("tree-again")
        os.sync()
        plain.append(seconds_of(lambda: run(["cp", "-r", source, target])))
        os.sync()
        plain_gone.append(seconds_of(lambda: run(["rm", "-r", target])))
    bench.report.add(f"cp -r of {chunks:,} within", S, within, Baseline(INTO, into), at_least(1.0))
    bench.report.add(f"cp -r of {chunks:,} into it", S, into, Baseline(PLAIN, plain), at_least(0.5))
    bench.report.add(f"rm -r of {chunks:,}", S, gone, Baseline(PLAIN, plain_gone), at_least(0.6))


def committed(bench: Bench) -> None:
    """The commit of small chunks, beside their bytes in one file and fsync."""
    chunks = COMMITTED if bench.full_scale else QUICK_COPIED
    tree = bench.space.plain("tree-committed")
    put(tree / "zarr.json", chunked_document(chunks * SMALL_CHUNK, SMALL_CHUNK))
    (tree / "c").mkdir()
    noise = os.urandom(SMALL_CHUNK * chunks)
    for number in range(chunks):
        (tree / "c" / str(number)).write_bytes(noise[number * SMALL_CHUNK:(number + 1) * SMALL_CHUNK])
    commits: list[float] = []
    plain: list[float] = []
    for number in range(bench.runs):
        repo = bench.space.repo(f"tree-committed-{number}")
        run([bench.space.binary, "init", repo, "--zarr-group"])
        with writable(bench, repo) as mount:
            run(["cp", "-r", tree, mount.path / data.ARRAY])
            os.sync()
            commits.append(seconds_of(lambda: commit_by_touch(mount)))
        remove(repo)
        os.sync()
        plain.append(seconds_of(lambda: write_synced(bench.space.plain("tree-one-file"), noise)))
    bench.report.add(f"commit of {chunks:,} chunks", S, commits, Baseline("their bytes in a file, fsync", plain),
                     at_least(1 / 3))


def write_synced(path: Path, noise: bytes) -> None:
    with open(path, "wb") as file:
        file.write(noise)
        file.flush()
        os.fsync(file.fileno())


def plain_arrays(bench: Bench) -> Path:
    """Groups of arrays of one chunk."""
    tree = bench.space.plain("tree-arrays")
    if not tree.exists():
        count = ARRAYS if bench.full_scale else QUICK_ARRAYS
        say(f"making {count} arrays")
        put_arrays(tree, count, count)
    return tree


def shared_arrays(bench: Bench) -> Path:
    repo = bench.space.repo("tree-shared")
    data.create_repository(repo)  # of version 1, which every release of icechunk commits to
    run([bench.space.binary, "import", plain_arrays(bench), repo], timeout=600)
    return repo


def separate_arrays(bench: Bench) -> Path:
    """The same, written by icechunk's own client."""
    tree, repo = plain_arrays(bench), bench.space.repo("tree-separate")
    repository = data.create_repository(repo)
    session = repository.writable_session("main")

    async def write() -> None:
        prototype = default_buffer_prototype().buffer
        files = [path for path in tree.rglob("*") if path.is_file()]
        # An array is there before its chunks.
        for path in sorted(files, key=lambda path: (path.name != "zarr.json", len(path.parts))):
            await session.store.set(str(path.relative_to(tree)), prototype.from_bytes(path.read_bytes()))

    sync(write())
    session.commit("arrays")
    return repo


def listings(bench: Bench, name: str, repo: Path) -> None:
    """`find`, the first after mounting, and again."""
    plain = plain_arrays(bench)
    first: list[float] = []
    second: list[float] = []
    theirs: list[float] = []
    find(plain)
    for _ in range(bench.runs):
        with writable(bench, repo) as mount:
            first.append(find(mount.path))
            second.append(find(mount.path))
        theirs.append(find(plain))
    manifests = len(os.listdir(repo / "manifests"))
    bench.report.add(f"manifests, {name}", OBJECTS, [manifests])
    bench.report.add(f"first find, {name}", S, first, Baseline(PLAIN_FIND, theirs), at_least(0.5))
    bench.report.add(f"second find, {name}", S, second, Baseline(PLAIN_FIND, theirs), at_least(0.7))


def find(tree: Path) -> float:
    return seconds_of(lambda: run(["find", tree, "-name", ".icechunk", "-prune", "-o", "-type", "f", "-name", "none"]))


def commit_of_one(bench: Bench, name: str, repo: Path) -> None:
    """One changed chunk among these arrays, and the commit."""
    theirs = bench.space.repo(f"{repo.name}-native")
    run(["cp", "-r", repo, theirs])
    numbers = iter(range(1, 10_000))

    def native() -> float:
        session = open_native(theirs).writable_session("main")
        opened = zarr.open_array(session.store, path="g0/a0", mode="r+")
        return seconds_of(lambda: (opened.__setitem__(slice(0, 1), next(numbers) % 100), session.commit("one")))

    with writable(bench, repo) as mount:
        def ours() -> float:
            file = mount.path / "g0" / "a0" / "c" / "0"
            return seconds_of(lambda: (file.write_bytes(bytes([next(numbers) % 200])), commit_by_touch(mount)))

        ours()
        samples = in_turn(bench.runs, {"ours": ours, "native": native})
    bench.report.add(f"commit one of arrays, {name}", S, samples["ours"], Baseline(NATIVE, samples["native"]), at_least(1.5))
    shutil.rmtree(theirs)
