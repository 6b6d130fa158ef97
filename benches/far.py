"""The remote side: a server of Amazon's protocol, a simulated network to it, and the content of its bucket."""
import itertools
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import icechunk
import numpy as np
import zarr
from obstore.store import S3Store

from common import say
from data import REF_BATCH
from harness import BenchError, remove

BUCKET, ARRAY = "bench", "a"
REPO, PLAIN, REFERENCES, SPLIT = "repo", "plain", "references", "references-split"  # prefixes
KEYS = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "only-a-benchmark", "AWS_REGION": "us-east-1"}
TOOLS = Path(__file__).resolve().parent.parent / "target" / "tools" / "bench" / "bin"
CHUNK = 1 << 20
REFERENCE_GRID = (100, 100, 100)
REFERENCE_CHUNK = 1024  # bytes: more than is kept inline
START = 10  # seconds that a program may take until it answers


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_for(port: int) -> None:
    end = time.monotonic() + START
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.02)
    raise BenchError(f"nothing answers at port {port}")


@contextmanager
def program(*words: object, **more: object) -> Iterator[subprocess.Popen]:
    """Runs until the end of the block."""
    process = subprocess.Popen([str(word) for word in words], **more)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


# ---------------------------------------------------------------- server and line

@dataclass(frozen=True)
class Server:
    port: int
    root: Path


@contextmanager
def server() -> Iterator[Server]:
    """s3s-fs with an empty bucket."""
    root = Path(tempfile.mkdtemp(prefix="icechunkfs-bench-"))
    (root / BUCKET).mkdir()
    port = free_port()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    try:
        with program(TOOLS / "s3s-fs", "--access-key", KEYS["AWS_ACCESS_KEY_ID"], "--secret-key",
                     KEYS["AWS_SECRET_ACCESS_KEY"], "--host", "127.0.0.1", "--port", port, root, **quiet):
            wait_for(port)
            yield Server(port, root)
    finally:
        remove(root)


@dataclass(frozen=True)
class Request:
    """The transfer of one request, in microseconds of the line's clock and bytes."""

    begin: int
    end: int
    up: int
    down: int
    words: str


@dataclass(frozen=True)
class Line:
    """A running `line.rs`."""

    port: int
    round_trip: float  # ms
    gbit: float
    process: subprocess.Popen

    @property
    def megabytes_per_second(self) -> float:
        return self.gbit * 1000 / 8

    def take(self) -> list[Request]:
        """The requests since the last time."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        requests = []
        while words := self.process.stdout.readline().rstrip("\n"):
            begin, end, up, down, rest = words.split("\t", 4)
            requests.append(Request(int(begin), int(end), int(up), int(down), rest))
        return requests


@contextmanager
def line(to: Server, round_trip: float, gbit: float) -> Iterator[Line]:
    port = free_port()
    with program(TOOLS / "line", port, to.port, round_trip, gbit, to.root, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                 text=True) as process:
        wait_for(port)
        yield Line(port, round_trip, gbit, process)


def depth(requests: list[Request]) -> int:
    """Returns the length of the longest chain of requests in which each began after the last one's answer."""
    longest: list[tuple[int, int]] = []  # end and length of the longest chain that ends with each
    for request in sorted(requests, key=lambda request: request.begin):
        before = max((length for end, length in longest if end <= request.begin), default=0)
        longest.append((request.end, before + 1))
    return max((length for _, length in longest), default=0)


# ---------------------------------------------------------------- clients

def storage(port: int, prefix: str) -> icechunk.Storage:
    return icechunk.s3_storage(
        bucket=BUCKET, prefix=prefix, endpoint_url=f"http://127.0.0.1:{port}", allow_http=True, force_path_style=True,
        region=KEYS["AWS_REGION"], access_key_id=KEYS["AWS_ACCESS_KEY_ID"], secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"])


def objects(port: int, prefix: str) -> S3Store:
    return S3Store(BUCKET, prefix=prefix, endpoint=f"http://127.0.0.1:{port}", region=KEYS["AWS_REGION"],
                   access_key_id=KEYS["AWS_ACCESS_KEY_ID"], secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
                   client_options={"allow_http": True}, virtual_hosted_style_request=False)


def environment(port: int) -> dict[str, str]:
    """Returns the environment by which our programs find the server."""
    return os.environ | KEYS | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ALLOW_HTTP": "true"}


# ---------------------------------------------------------------- data

def make_arrays(to: Server, grid: tuple[int, int]) -> None:
    """One array twice: in a repository, and as plain Zarr."""
    say(f"writing {grid[0] * grid[1]} chunks of {CHUNK >> 20} MiB to a repository, and as plain Zarr")
    repository = icechunk.Repository.create(storage(to.port, REPO))
    session = repository.writable_session("main")
    values = np.frombuffer(np.random.default_rng(1).bytes(CHUNK), dtype="u1")
    for store in (session.store, zarr.storage.ObjectStore(objects(to.port, PLAIN))):
        array = zarr.create_array(store, name=ARRAY, shape=(*grid, CHUNK), chunks=(1, 1, CHUNK), dtype="u1", compressors=None)
        for row in range(grid[0]):
            array[row] = np.stack([np.roll(values, row * grid[1] + column) for column in range(grid[1])])
    session.commit("values")


def make_references(to: Server, prefix: str) -> None:
    """A repository of a million references: the first is to a separate chunk, all others are dangling.

    They are in one manifest, or with the prefix SPLIT in a hundred.
    """
    say(f"making a million references: {prefix}")
    config = icechunk.RepositoryConfig.default()
    if prefix == SPLIT:
        every = {icechunk.ManifestSplitCondition.AnyArray(): {icechunk.ManifestSplitDimCondition.Axis(0): 1}}
        config.manifest = icechunk.ManifestConfig(splitting=icechunk.ManifestSplittingConfig.from_dict(every))
    session = icechunk.Repository.create(storage(to.port, prefix), config).writable_session("main")
    array = zarr.create_array(session.store, name=ARRAY, shape=(*REFERENCE_GRID[:2], REFERENCE_GRID[2] * REFERENCE_CHUNK),
                              chunks=(1, 1, REFERENCE_CHUNK), dtype="u1", compressors=None, fill_value=0)
    specs = (icechunk.VirtualChunkSpec([first, second, third], f"s3://nowhere/{first:03}.nc",
                                       (second * REFERENCE_GRID[2] + third) * REFERENCE_CHUNK, REFERENCE_CHUNK)
             for first, second, third in itertools.product(*map(range, REFERENCE_GRID)))
    while batch := list(itertools.islice(specs, REF_BATCH)):
        session.store.set_virtual_refs(f"/{ARRAY}", batch, validate_containers=False)
    array[0, 0, :REFERENCE_CHUNK] = np.frombuffer(np.random.default_rng(2).bytes(REFERENCE_CHUNK), dtype="u1")
    session.commit("references")
