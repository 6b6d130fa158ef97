"""Comparisons of `export` and `import`: trees of many chunks, out of a repository and into one.

Every side ends when its files are on the disk. Nothing is removed before the end: ext4 takes minutes to make files where many
were removed a short while ago, since it takes care not to use their inodes again too soon.
"""
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from common import KIB, Bench, in_turn, say, seconds_of
from harness import BenchError, Mount, Skipped, run
from report import S, Baseline, at_least

OF_PLAIN = 0.8  # of what the disk gives a plain parallel copy
OF_MOUNT = 1.0
COPIERS = 8  # processes of the plain copy: as many as we have jobs
PLAIN = f"find | xargs -P {COPIERS} cp --parents"
THROUGH_MOUNT = "cp -r through the mount"
DOCUMENT = ('{"zarr_format":3,"node_type":"array","shape":[%d],"data_type":"uint8","fill_value":0,"attributes":{},'
            '"chunk_grid":{"name":"regular","configuration":{"chunk_shape":[%d]}},'
            '"chunk_key_encoding":{"name":"default","configuration":{"separator":"/"}},"codecs":[{"name":"bytes"}]}')
TREES_A_RUN = 7  # that are written and stay: three for an export, four for an import, whose mount keeps a scratch directory
GROUP = '{"zarr_format":3,"node_type":"group","attributes":{}}'


@dataclass(frozen=True)
class Tree:
    """A plain tree of one array."""

    place: Path
    chunks: int
    chunk_bytes: int


def transfer4k(bench: Bench) -> None:
    """Many small chunks, which share objects."""
    compare(bench, make_tree(bench, "4k", bench.sizes.transferred_small, 4 * KIB))


def transfer64k(bench: Bench) -> None:
    """Chunks of 64 KiB, which share objects too."""
    compare(bench, make_tree(bench, "64k", bench.sizes.transferred_medium, 64 * KIB))


def make_tree(bench: Bench, name: str, chunks: int, chunk_bytes: int) -> Tree:
    needed = (2 + TREES_A_RUN * bench.runs) * chunks * (chunk_bytes + KIB) * 2
    free = shutil.disk_usage(bench.space.root).free
    if free < needed:
        raise Skipped(f"it needs {needed >> 30} GiB of disk, half of them to leave room for others, and {free >> 30} are free")
    say(f"making a tree of {chunks} chunks of {chunk_bytes // KIB} KiB")
    place = bench.space.plain(f"transfer-{name}")
    folder = place / "data" / "c"
    folder.mkdir(parents=True)
    (place / "zarr.json").write_text(GROUP)
    (place / "data" / "zarr.json").write_text(DOCUMENT % (chunks * chunk_bytes, chunk_bytes))
    noise = os.urandom(chunk_bytes + chunks)
    for index in range(chunks):
        (folder / str(index)).write_bytes(noise[index:index + chunk_bytes])
    os.sync()
    return Tree(place, chunks, chunk_bytes)


def compare(bench: Bench, tree: Tree) -> None:
    name = f"{tree.chunks:,} chunks of {tree.chunk_bytes // KIB} KiB"
    repo = bench.space.repo(f"{tree.place.name}-export")
    run([bench.space.binary, "import", tree.place, repo])
    sides = {"ours": lambda place: run([bench.space.binary, "export", repo, place]),
             "mount": lambda place: through_mount(bench, repo, place),
             "plain": lambda place: plain_copy(tree.place, place)}
    report(bench, tree, f"export, {name}", sides)
    sides = {"ours": lambda place: run([bench.space.binary, "import", tree.place, place]),
             "mount": lambda place: into_mount(bench, tree, place),
             "plain": lambda place: plain_copy(tree.place, place)}
    report(bench, tree, f"import, {name}", sides)


def report(bench: Bench, tree: Tree, name: str, sides: dict[str, Callable[[Path], object]]) -> None:
    done = {side: 0 for side in sides}

    def measured(side: str, work: Callable[[Path], object]) -> Callable[[], float]:
        def once() -> float:
            place = bench.space.root / "out" / f"{tree.place.name}-{name[:6]}-{side}-{done[side]}"
            place.parent.mkdir(exist_ok=True)
            done[side] += 1
            os.sync()  # what came before must not be written to the disk now
            taken = seconds_of(lambda: work(place))
            if side == "ours" and done[side] == 1:
                check(bench, tree, place, name)
            return taken
        return once

    samples = in_turn(bench.runs, {side: measured(side, work) for side, work in sides.items()})
    bench.report.add(name, S, samples["ours"], Baseline(PLAIN, samples["plain"]), at_least(OF_PLAIN))
    bench.report.add(name, S, samples["ours"], Baseline(THROUGH_MOUNT, samples["mount"]), at_least(OF_MOUNT))


def check(bench: Bench, tree: Tree, place: Path, name: str) -> None:
    """Checks that the result has the original files."""
    exported = place
    if (place / "repo").exists():
        exported = place.with_name(f"{place.name}-checked")
        run([bench.space.binary, "export", place, exported])
    try:
        run(["diff", "--recursive", "--brief", tree.place, exported])
    except BenchError as error:
        raise BenchError(f"{name}: {error}") from error


def plain_copy(source: Path, place: Path) -> None:
    place.mkdir()
    run(["bash", "-euo", "pipefail", "-c",
         'cd "$1" && find . -type d -print0 | xargs -0 -I DIR mkdir -p "$2/DIR" && '
         'find . -type f -print0 | xargs -0 -n 512 -P "$3" cp --parents --target-directory "$2"', "bash",
         source, place, COPIERS])
    sync(place)


def through_mount(bench: Bench, repo: Path, place: Path) -> None:
    with Mount(bench.space, repo, f"{place.name}-mount") as mount:
        run(["cp", "-r", f"{mount.path}/.", place])
        sync(place)


def into_mount(bench: Bench, tree: Tree, place: Path) -> None:
    run([bench.space.binary, "init", place])
    with Mount(bench.space, place, place.name, scratch=bench.space.scratch(place.name)) as mount:
        run(["cp", "-r", f"{tree.place}/.", mount.path])
        run(["touch", mount.path / ".icechunk" / "commit"])


def sync(place: Path) -> None:
    run(["sync", "--file-system", place])
