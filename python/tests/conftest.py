"""Repositories for tests, and a check that no test leaves a mount behind."""

import os
import pathlib
import shutil
import subprocess
import time
from urllib.parse import unquote

import pytest

import icechunkfs


def mounts():
    """Paths of all mounts of icechunkfs on this machine."""
    lines = pathlib.Path("/proc/mounts").read_text().splitlines()
    found = (line.split(" ") for line in lines)
    # Spaces and other letters are octal there.
    return {words[1].encode().decode("unicode_escape") for words in found if words[2] == "fuse.icechunkfs"}


def wait_until(what, condition, seconds=30):
    """Wait for a condition with a deadline."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.05)


def program(*words):
    """Run the program and return its output."""
    done = subprocess.run([icechunkfs.program(), *map(str, words)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(autouse=True)
def no_mount_is_left(tmp_path, monkeypatch):
    """Unmount whatever a test leaves, and fail."""
    # Scratch directories and temporary mountpoints of this test only.
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    before = mounts()
    yield
    left = {path for path in mounts() - before if path.startswith(str(tmp_path))}
    for path in left:
        subprocess.run(["umount", "-l", path], check=False, timeout=30)
    assert not left, f"mounts are left: {left}"
    stay = [name for name in os.listdir(tmp_path / "temporary") if name.startswith("icechunkfs-")]
    assert not stay, "temporary mountpoints are left"


@pytest.fixture
def repo(tmp_path):
    """An empty repository with a root group; its path has a space and a quote."""
    path = tmp_path / "my 'repo"
    program("init", path, "--zarr-group")
    yield path
    # Root's default scratch directories are the machine's.
    for place in pathlib.Path("/var/lib/icechunkfs").glob("*"):
        if unquote(place.name) == str(path):
            shutil.rmtree(place)


@pytest.fixture
def scratch(tmp_path):
    """Returns a new scratch directory for each call: root's default one is the machine's."""
    numbers = iter(range(100))
    return lambda: tmp_path / f"scratch {next(numbers)}"
