"""Measure writing over a network: how long a commit of 1 GiB in 4 MiB chunks takes after the last file was closed.

A program writes chunk after chunk, with a temporary name as zarr-python does. With `--upload commit` the commit sends all of it:
that is bandwidth. With `--upload eager` it finds what the line could carry meanwhile there already; the program is held to nine
tenths of the line then, since what is written faster than the line carries waits for the line in any case.

benches/remote.py has the server and the line.
"""
import itertools
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from report import Report, S, Target, Unit

CHUNKS, CHUNK = 256, 4 << 20
OF_LINE = Unit("of the line", 2, more_is_better=True)
OF_PROGRAM = 0.9  # of the line, that a program writes when the line is to keep up with it
names: Iterator[int] = itertools.count()


def document() -> str:
    return json.dumps({
        "zarr_format": 3, "node_type": "array", "shape": [CHUNKS, CHUNK], "data_type": "uint8", "fill_value": 0, "attributes": {},
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1, CHUNK]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}}, "codecs": [{"name": "bytes"}]})


def write(root: Path, rate: float | None) -> None:
    values = bytearray(os.urandom(CHUNK))
    begin = time.perf_counter()
    for n in range(CHUNKS):
        values[:8] = n.to_bytes(8, "little")  # no two are the same
        folder = root / "a" / "c" / str(n)
        folder.mkdir(parents=True)
        partial = folder / "0.partial"
        with open(partial, "wb", buffering=0) as chunk:
            chunk.write(values)
        partial.rename(folder / "0")
        if rate:
            time.sleep(max(0.0, begin + (n + 1) * CHUNK / rate - time.perf_counter()))


def commit_after(binary: Path, bucket: str, environment: dict[str, str], rate: float | None, *words: str) -> float:
    """Seconds from the last close to the commit's end. The program writes `rate` bytes a second, or as fast as it can."""
    repository = f"s3://{bucket}/writing-{os.getpid()}-{next(names)}"
    quiet = {"env": os.environ | environment, "check": True, "stdout": subprocess.DEVNULL}
    subprocess.run([binary, "init", repository, "--zarr-group"], **quiet)
    with tempfile.TemporaryDirectory(prefix="icechunkfs-bench-") as place:
        subprocess.run([binary, "mount", repository, place, "--ephemeral", *words], **quiet)
        try:
            root = Path(place)
            (root / "a").mkdir()
            (root / "a" / "zarr.json").write_text(document())
            write(root, rate)
            begin = time.perf_counter()
            (root / ".icechunk" / "commit").write_text("written\n")
            return time.perf_counter() - begin
        finally:
            subprocess.run([binary, "unmount", place], **quiet)


def measure(report: Report, binary: Path, bucket: str, environment: dict[str, str], round_trip: float, gbit: float,
            runs: int) -> None:
    """`environment` has what is needed to reach the server over the line of `round_trip` ms and `gbit` Gbit/s."""
    line = gbit * 1e9 / 8
    at_30 = round_trip == 30
    eager, waiting, unpaced = [], [], []
    for _ in range(runs):
        waiting.append(commit_after(binary, bucket, environment, None, "--upload", "commit"))
        eager.append(commit_after(binary, bucket, environment, OF_PROGRAM * line, "--upload", "eager"))
        unpaced.append(commit_after(binary, bucket, environment, None, "--upload", "eager"))
    label = f"{round_trip:g} ms, commit of 1 GiB"
    report.add(f"{label}, eager", S, eager, None, Target("ours", 1.0, more_is_better=False) if at_30 else None)
    report.add(f"{label}, eager, a program in a hurry", S, unpaced)
    report.add(f"{label}, by the commit", S, waiting)
    report.add(f"{label}, by the commit", OF_LINE, [CHUNKS * CHUNK / taken / line for taken in waiting], None,
               Target("ours", 0.85) if at_30 else None)
