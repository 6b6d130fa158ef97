"""How time and memory grow with nodes, references, commits and refs, each alone, with the exponent of the growth.

The exponent is that of the largest two sizes: 0 is flat, 1 in proportion. Small sizes are all constant cost. `--pictures` draws the
curves.
"""
import itertools
import json
import math
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import data
from common import Bench, say, seconds_of
from harness import Mount, run
from report import MIB, S, Target, Unit

EXPONENT = Unit("", 2)
LINEAR, FLAT = 1.15, 0.3  # targets for exponents: noise of a tenth of a second is in both
RUNS = 3
GROUP_SIZE = 100  # arrays in a group
WORTH_AN_EXPONENT = 0.05  # seconds, or MiB for memory below: what takes less is the start of a process
MANY = 10_000_000  # references from which icechunk takes a quarter of an hour to sort them into a thousand manifests
# One manifest for each index of the first dimension, of 10,000 chunks.
SPLITTING = json.dumps({"split_sizes": [["any_array", [{"condition": {"Axis": 0}, "num_chunks": 1}]]]})
NODES, REFERENCES, COMMITS, REFS = "nodes", "references", "commits", "refs"
FULL_SIZES = {NODES: (1_000, 10_000, 100_000), REFERENCES: (10_000, 100_000, 1_000_000, 10_000_000),
              COMMITS: (10, 100, 1_000, 10_000), REFS: (1, 10, 100, 1_000)}
QUICK_SIZES = {NODES: (100, 1_000), REFERENCES: (1_000, 10_000), COMMITS: (10, 100), REFS: (1, 10)}
# What an operation has to touch, so that it may grow in proportion to it; it must stay flat otherwise.
PROPORTIONAL = {
    "mount": {NODES, COMMITS, REFS}, "first chunk": set(), "find": {NODES, REFERENCES}, "ls": {NODES, REFERENCES},
    "commit of one chunk": {NODES, COMMITS, REFS}, "log": {COMMITS}, "gc": {NODES, REFERENCES, COMMITS, REFS},
    "verify": {NODES, REFERENCES, COMMITS, REFS}, "memory": {NODES, REFERENCES, COMMITS, REFS}}


@dataclass
class Curves:
    """Samples by kind of size, operation and size."""

    samples: dict[tuple[str, str], dict[int, float]] = field(default_factory=dict)

    def add(self, kind: str, operation: str, size: int, value: float) -> None:
        self.samples.setdefault((kind, operation), {})[size] = value


def document(shape: int) -> str:
    return chunked_document(shape, 1)


def chunked_document(shape: int, chunk: int) -> str:
    return json.dumps({
        "zarr_format": 3, "node_type": "array", "shape": [shape], "data_type": "uint8", "fill_value": 0, "attributes": {},
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [chunk]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}}, "codecs": [{"name": "bytes"}]})


GROUP = json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {}})


def put(path: Path, text: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)


def commit(mount: Mount, message: str) -> None:
    (mount.path / ".icechunk" / "commit").write_text(message + "\n")


def put_arrays(tree: Path, count: int, with_chunks: int) -> None:
    """Makes groups of arrays, the first of which have a chunk."""
    put(tree / "zarr.json", GROUP)
    for number in range(count):
        group = tree / f"g{number // GROUP_SIZE}"
        if number % GROUP_SIZE == 0:
            put(group / "zarr.json", GROUP)
        put(group / f"a{number}" / "zarr.json", document(10))
        if number < with_chunks:
            put(group / f"a{number}" / "c" / "0", str(number))


def of_nodes(bench: Bench, size: int) -> tuple[Path, str]:
    """Groups of arrays, one of which has a chunk: no manifests beside one."""
    tree, repo = bench.space.plain(f"scale-nodes-{size}"), bench.space.repo(f"scale-nodes-{size}")
    put_arrays(tree, size, 1)
    run([bench.space.binary, "import", tree, repo], timeout=600)
    return repo, "g0/a0/c/0"


def of_references(bench: Bench, size: int) -> tuple[Path, str]:
    """One array of references in manifests of 10,000, and a small one beside it."""
    grid = (size // 10_000 or 1, 100, min(100, size // 100))
    splits_itself = size < MANY
    repo = data.make_reference_array(bench.space, grid, split=splits_itself).repo
    if not splits_itself:
        run([bench.space.binary, "config", repo, "set", "manifest.splitting", SPLITTING])
        run([bench.space.binary, "rewrite-manifests", repo, "--memory", "6G"], timeout=900)
    with Mount(bench.space, repo, "scale-prepare", scratch=bench.space.root / f"scratch-{repo.name}") as mount:
        put(mount.path / "one" / "zarr.json", document(10))
        put(mount.path / "one" / "c" / "0", b"1")
        commit(mount, "One more array")
    return repo, "one/c/0"


def small(bench: Bench, name: str) -> tuple[Path, Path]:
    repo = bench.space.repo(name)
    run([bench.space.binary, "init", repo, "--zarr-group"])
    return repo, bench.space.root / f"scratch-{name}"


def of_commits(bench: Bench, size: int) -> tuple[Path, str]:
    """A history of commits of one chunk each."""
    repo, scratch = small(bench, f"scale-commits-{size}")
    with Mount(bench.space, repo, "scale-prepare", scratch=scratch) as mount:
        put(mount.path / "a" / "zarr.json", document(10))
        for number in range(size):
            put(mount.path / "a" / "c" / "0", str(number))
            commit(mount, f"Commit {number}")
    return repo, "a/c/0"


def of_refs(bench: Bench, size: int) -> tuple[Path, str]:
    """Branches at one commit."""
    repo, scratch = small(bench, f"scale-refs-{size}")
    with Mount(bench.space, repo, "scale-prepare", scratch=scratch) as mount:
        put(mount.path / "a" / "zarr.json", document(10))
        put(mount.path / "a" / "c" / "0", "1")
        commit(mount, "One array")
    for number in range(size - 1):
        run([bench.space.binary, "branch", repo, "create", f"branch-{number}"])
    return repo, "a/c/0"


MAKERS: dict[str, Callable[[Bench, int], tuple[Path, str]]] = {
    NODES: of_nodes, REFERENCES: of_references, COMMITS: of_commits, REFS: of_refs}


def scale(bench: Bench) -> None:
    """Growth of time and memory with nodes, references, commits and refs."""
    sizes = FULL_SIZES if bench.full_scale else QUICK_SIZES
    curves = Curves()
    for kind, make in MAKERS.items():
        for size in sizes[kind]:
            say(f"making {size} {kind}")
            repo, chunk = make(bench, size)
            os.sync()
            for operation, value in measure(bench, repo, chunk):
                curves.add(kind, operation, size, value)
            subprocess.run(["rm", "-rf", "--", repo, bench.space.plain(f"scale-{kind}-{size}")], check=False)
        tell(bench, curves, kind)
    if bench.pictures:
        for operation in PROPORTIONAL:
            of_operation = {kind: curves.samples[kind, operation] for kind in MAKERS}
            name = f"scale-{operation.replace(' ', '-')}.svg"
            (bench.pictures / name).write_text(picture(operation, of_operation))


def measure(bench: Bench, repo: Path, chunk: str) -> Iterator[tuple[str, float]]:
    """Yields the operations with their medians in seconds, and the memory of a mount in MiB."""
    samples: dict[str, list[float]] = {}
    for number in range(RUNS):
        with Mount(bench.space, repo, f"scale-{repo.name}-{number}") as mount:
            samples.setdefault("mount", []).append(mount.ready_seconds)
            read = seconds_of((mount.path / chunk).read_bytes)
            samples.setdefault("first chunk", []).append(read)
            begin = time.perf_counter()
            run(["find", mount.path, "-path", mount.path / ".icechunk", "-prune", "-o", "-print"], timeout=600)
            samples.setdefault("find", []).append(time.perf_counter() - begin)
            samples.setdefault("memory", []).append(mount.daemon_memory()["VmHWM"] / (1 << 20))
        scratch = bench.space.root / f"scratch-{repo.name}-{number}"
        with Mount(bench.space, repo, f"scale-write-{number}", scratch=scratch) as mount:
            # The second commit of a mount: the first one reads what the mount has not read yet.
            for value in range(2):
                put(mount.path / chunk, f"{number}.{value}")
                taken = seconds_of(lambda: commit(mount, "One chunk"))
            samples.setdefault("commit of one chunk", []).append(taken)
        for operation, words in {"ls": ["ls", repo, "-r"], "log": ["log", repo], "verify": ["verify", repo],
                                 "gc": ["gc", repo, "--older-than", "7d", "--dry-run"]}.items():
            command = [str(bench.space.binary), *map(str, words)]
            # Virtual references of a repository without containers are warnings of `verify`, with status 3.
            taken = seconds_of(lambda: subprocess.run(command, capture_output=True, check=False, timeout=600))
            samples.setdefault(operation, []).append(taken)
    for operation, values in samples.items():
        yield operation, statistics.median(values)


def exponent(samples: dict[int, float]) -> float | None:
    """The exponent between the largest two sizes; none if the largest takes no more than a process that starts."""
    (small, before), (large, after) = sorted(samples.items())[-2:]
    if after < WORTH_AN_EXPONENT or before <= 0:
        return None
    return math.log(after / before) / math.log(large / small)


def tell(bench: Bench, curves: Curves, told: str) -> None:
    for (kind, operation), samples in curves.samples.items():
        if kind != told:
            continue
        unit = MIB if operation == "memory" else S
        for size, value in samples.items():
            bench.report.add(f"{operation}, {size} {kind}", unit, [value])
        grown = exponent(samples)
        if grown is not None:
            bound = LINEAR if kind in PROPORTIONAL[operation] else FLAT
            bench.report.add(f"{operation}, exponent of {kind}", EXPONENT, [grown], None,
                             Target("ours", bound, more_is_better=False))


# ---------------------------------------------------------------- pictures

WIDTH, HEIGHT, LEFT, BOTTOM, RIGHT, TOP = 560, 340, 64, 44, 110, 34
COLORS = {NODES: "#3465a4", REFERENCES: "#cc5500", COMMITS: "#2e8b57", REFS: "#8a2be2"}


def picture(operation: str, curves: dict[str, dict[int, float]]) -> str:
    """The curves of one operation, on logarithmic scales, as SVG."""
    sizes = [size for samples in curves.values() for size in samples]
    values = [value for samples in curves.values() for value in samples.values()]
    x_from, x_to = 0, math.ceil(math.log10(max(sizes)))
    y_from, y_to = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    y_to = max(y_to, y_from + 1)

    def x(size: float) -> float:
        return LEFT + (math.log10(size) - x_from) / (x_to - x_from) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (math.log10(value) - y_from) / (y_to - y_from) * (HEIGHT - BOTTOM - TOP)

    unit = "MiB" if operation == "memory" else "s"
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
             f'<text x="{LEFT}" y="20" font-size="14">{operation} ({unit})</text>']
    for power in range(x_from, x_to + 1):
        at = x(10 ** power)
        parts.append(f'<path d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#ddd"/>'
                     f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{10 ** power:,}</text>')
    for power in range(y_from, y_to + 1):
        at = y(10.0 ** power)
        parts.append(f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>'
                     f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{10.0 ** power:g}</text>')
    ends = []
    for kind, samples in curves.items():
        points = " ".join(f"{x(size):.1f},{y(value):.1f}" for size, value in sorted(samples.items()))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{COLORS[kind]}" stroke-width="2"/>')
        parts += [f'<circle cx="{x(size):.1f}" cy="{y(value):.1f}" r="3" fill="{COLORS[kind]}"/>'
                  for size, value in samples.items()]
        ends.append((y(samples[max(samples)]), x(max(samples)), kind))
    lowest = 0.0
    for at, end, kind in sorted(ends):
        lowest = max(at + 4, lowest + 14)  # names do not overlap
        grown = exponent(curves[kind])
        shown = "" if grown is None else f" {grown:.2f}"
        parts.append(f'<text x="{max(end + 8, LEFT):.1f}" y="{lowest:.1f}" fill="{COLORS[kind]}">{kind}{shown}</text>')
    return "\n".join(itertools.chain(parts, ["</svg>", ""]))
