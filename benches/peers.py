"""Ways to the same bytes: our mount, alternative mounts, and zarr-python's stores."""
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import icechunk
import zarr

from far import ARRAY, BUCKET, CHUNK, KEYS, PLAIN, REPO, environment, objects, storage
from harness import BenchError, mountpoints, unmount_below

MOUNTED = 20  # seconds that a mount may take
Order = list[tuple[int, int]]


@contextmanager
def ours(binary: Path, port: int, *words: str, prefix: str = REPO) -> Iterator[Path]:
    """Our mount, read-only unless `words` have a scratch directory."""
    with tempfile.TemporaryDirectory(prefix="icechunkfs-bench-") as place:
        how = () if "--scratch" in words else ("--read-only",)
        command = [binary, "mount", f"s3://{BUCKET}/{prefix}", place, *how, *words]
        # Without pipes to read, it would look every 50 ms whether the command has ended.
        subprocess.run(command, env=environment(port), check=True, capture_output=True, timeout=MOUNTED)
        try:
            yield Path(place)
        finally:
            subprocess.run([binary, "unmount", place], check=True, stdout=subprocess.DEVNULL)


@contextmanager
def foreign(port: int, command: list[str], variables: dict[str, str]) -> Iterator[Path]:
    """Mounts the bucket with another program: `command` stays in the foreground, with PLACE for the mountpoint."""
    with tempfile.TemporaryDirectory(prefix="icechunkfs-bench-") as place:
        words = [place if word == "PLACE" else word for word in command]
        # rclone 1.60 does not start with this one; nothing here is encrypted anyway.
        surroundings = {name: value for name, value in os.environ.items() if name != "AWS_CA_BUNDLE"}
        process = subprocess.Popen(words, env=surroundings | KEYS | variables, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            end = time.monotonic() + MOUNTED
            while Path(place) not in mountpoints():
                if process.poll() is not None or time.monotonic() > end:
                    process.kill()
                    raise BenchError(f"{command[0]} does not mount: {process.stderr.read().decode(errors='replace')[-2000:]}")
                time.sleep(0.02)
            yield Path(place) / PLAIN
        finally:
            unmount_below(Path(place))
            try:
                process.wait(MOUNTED)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stderr.close()


def rclone(port: int):
    # Without the second option it asks for each object's time of change; with it, it takes the listing's.
    command = ["rclone", "mount", f"far:{BUCKET}", "PLACE", "--read-only", "--use-server-modtime", "--config", "/dev/null"]
    variables = {"TYPE": "s3", "PROVIDER": "Other", "ENDPOINT": f"http://127.0.0.1:{port}", "ENV_AUTH": "true",
                 "REGION": KEYS["AWS_REGION"], "FORCE_PATH_STYLE": "true"}
    return foreign(port, command, {f"RCLONE_CONFIG_FAR_{name}": value for name, value in variables.items()})


def s3fs(port: int):
    options = f"url=http://127.0.0.1:{port},endpoint={KEYS['AWS_REGION']},use_path_request_style"
    # Version 1.90 supports no other names of the credentials' variables.
    keys = {"AWSACCESSKEYID": KEYS["AWS_ACCESS_KEY_ID"], "AWSSECRETACCESSKEY": KEYS["AWS_SECRET_ACCESS_KEY"]}
    return foreign(port, ["s3fs", BUCKET, "PLACE", "-f", "-o", options], keys)


MOUNTS = {"rclone": rclone, "s3fs": s3fs}


def installed(name: str) -> bool:
    return shutil.which(name) is not None


def read_files(tree: Path, order: Order) -> float:
    """Megabytes a second of one program that opens, reads and closes one chunk after another."""
    begin, count = time.perf_counter(), 0
    for row, column in order:
        with open(f"{tree}/{ARRAY}/c/{row}/{column}/0", "rb", buffering=0) as chunk:
            while part := chunk.read(CHUNK):
                count += len(part)
    taken = time.perf_counter() - begin
    if count != len(order) * CHUNK:
        raise BenchError(f"{tree}: {count} bytes were read, not {len(order) * CHUNK}")
    return count / taken / 1e6


def arrays(port: int) -> dict[str, zarr.Array]:
    """The array through each of zarr-python's stores, opened."""
    session = icechunk.Repository.open(storage(port, REPO)).readonly_session("main")
    stores = {"icechunk": session.store, "obstore": zarr.storage.ObjectStore(objects(port, PLAIN), read_only=True)}
    return {name: zarr.open_array(store, path=ARRAY, mode="r") for name, store in stores.items()}


def read_chunks(array: zarr.Array, order: Order) -> float:
    begin = time.perf_counter()
    count = sum(array[row, column].size for row, column in order)
    return count / (time.perf_counter() - begin) / 1e6


def read_rows(array: zarr.Array, rows: int) -> float:
    begin = time.perf_counter()
    count = sum(array[row].size for row in range(rows))
    return count / (time.perf_counter() - begin) / 1e6


def read_whole(array: zarr.Array) -> float:
    begin = time.perf_counter()
    count = array[:].size
    return count / (time.perf_counter() - begin) / 1e6
