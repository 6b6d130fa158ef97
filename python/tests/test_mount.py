"""Mounting: what it shows, how it ends, how it fails."""

import ast
import datetime
import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import warnings

import pytest
from conftest import mounts, program, wait_until

import icechunkfs

DOCUMENT = '{"zarr_format":3,"node_type":"group","attributes":{}}'


def write_group(path, name):
    (path / name).mkdir()
    (path / name / "zarr.json").write_text(DOCUMENT)


def test_a_mount_lasts_as_long_as_its_block(repo, scratch):
    with icechunkfs.mount(repo, scratch=scratch()) as path:
        assert path.is_absolute() and path.is_dir() and str(path) in mounts()
        assert (path / "zarr.json").exists()
    assert str(path) not in mounts() and not path.exists()


def test_a_failure_inside_unmounts_too(repo, scratch):
    with pytest.raises(ZeroDivisionError):
        with icechunkfs.mount(repo, scratch=scratch()) as path:
            1 / 0
    assert str(path) not in mounts()


def test_a_named_mountpoint_stays(repo, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a mount, here").mkdir()
    mount = icechunkfs.mount(repo, "a mount, here", read_only=True)
    # A later change of the working directory changes nothing.
    monkeypatch.chdir("/")
    assert mount.mounted and os.fspath(mount) == str(tmp_path / "a mount, here")
    mount.unmount()
    assert not mount.mounted and (tmp_path / "a mount, here").is_dir()
    mount.unmount()


def test_options_reach_the_program(repo, scratch):
    with icechunkfs.mount(repo, scratch=scratch()) as path:
        write_group(path, "a")
        first = icechunkfs.commit(path, "one").snapshot
    program("tag", repo, "create", "v1", "--at", first)
    with icechunkfs.mount(repo, tag="v1") as path:
        assert (path / "a/zarr.json").exists()
        with pytest.raises(OSError) as refused:
            (path / "b").mkdir()
        assert refused.value.errno == errno.EROFS
        with pytest.raises(icechunkfs.ReadOnlyError):
            icechunkfs.commit(path, "no")
    with icechunkfs.mount(repo, root="a", read_only=True, memory="64M") as path:
        assert os.listdir(path) == ["zarr.json"]
    now = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(minutes=1)
    with icechunkfs.mount(repo, as_of=now) as path:
        assert (path / "a/zarr.json").exists()


def test_every_option_of_the_program_has_a_type():
    import re

    listed = set(re.findall(r"^ +(?:-\w, )?--([a-z-]+)", program("mount", "--help"), re.MULTILINE))
    reserved = {"help", "version", "verbose", "foreground", "until-eof", "error-format"}
    typed = {name.rstrip("_").replace("_", "-") for name in icechunkfs.MountOptions.__annotations__}
    # What --view takes as modifiers has options of its own, which the help leaves out.
    modifiers = {"unshard", "shard", "consolidated"}
    modifiers |= {f"netcdf-{name}" for name in ("record-dimension", "classic-types", "groups")}
    assert listed - reserved == typed - modifiers
    assert modifiers <= typed


def test_wrong_options_are_refused(repo, scratch):
    with pytest.raises(icechunkfs.UsageError, match="no-such-option"):
        icechunkfs.mount(repo, no_such_option=True)
    with pytest.raises(ValueError, match="name only one of a branch, a tag and a snapshot"):
        icechunkfs.mount(repo, branch="main", tag="v1")
    with pytest.raises(TypeError, match="until_eof"):
        icechunkfs.mount(repo, until_eof=True)
    with pytest.raises(ValueError, match="time zone"):
        icechunkfs.mount(repo, as_of=datetime.datetime(2026, 8, 20))
    # A value is never taken for an option.
    with pytest.raises(icechunkfs.NotFoundError, match="--read-only"):
        icechunkfs.mount(repo, branch="--read-only", scratch=scratch())


def test_a_mount_that_fails_says_why_and_leaves_nothing(repo, tmp_path, scratch):
    with pytest.raises(icechunkfs.NotFoundError, match="no/repo"):
        icechunkfs.mount(tmp_path / "no/repo")
    with pytest.raises(FileNotFoundError, match="v9"):
        icechunkfs.mount(repo, tag="v9")
    with pytest.raises(icechunkfs.NotFoundError):
        icechunkfs.mount(repo, tmp_path / "no mountpoint")
    place = scratch()
    with icechunkfs.mount(repo, scratch=place):
        with pytest.raises(icechunkfs.BusyError):
            icechunkfs.mount(repo, scratch=place)


def test_a_missing_program_is_said(repo, monkeypatch, tmp_path):
    monkeypatch.setenv("ICECHUNKFS_BINARY", str(tmp_path / "gone"))
    with pytest.raises(icechunkfs.NotFoundError, match="gone"):
        icechunkfs.mount(repo)


def test_uncommitted_changes_are_announced_and_resumed(repo, scratch):
    place = scratch()
    with pytest.warns(icechunkfs.UncommittedWarning, match="1 node,"):
        with icechunkfs.mount(repo, scratch=place) as path:
            write_group(path, "later")
    with pytest.warns(UserWarning, match="resumed|uncommitted"):
        mount = icechunkfs.mount(repo, scratch=place)
    with mount as path:
        assert icechunkfs.status(path).added == ("/later",) or icechunkfs.status(path).added == ("later",)
        icechunkfs.discard(path)


def test_open_files_do_not_keep_a_mount(repo, scratch):
    with pytest.warns(UserWarning, match="in use"):
        with icechunkfs.mount(repo, scratch=scratch()) as path:
            file = open(path / "zarr.json")
    assert str(path) not in mounts()
    assert "zarr_format" in file.read()
    file.close()


def kernel(repo, scratch, more, **options):
    """Start a process that mounts, prints the path and runs more code."""
    code = f"""
        import icechunkfs, os, signal, sys, tempfile, time
        mount = icechunkfs.mount({str(repo)!r}, scratch={str(scratch)!r})
        print(mount.path, flush=True)
    """
    code = textwrap.dedent(code) + textwrap.dedent(more)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, **options)


def mounted_by(process):
    path = process.stdout.readline().strip()
    assert path in mounts()
    return path


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_mount_ends_with_a_process_that_is_killed(repo, scratch, tmp_path, how):
    place = scratch()
    process = kernel(repo, place, "time.sleep(60)", env={**os.environ, "TMPDIR": str(tmp_path)}, stderr=subprocess.DEVNULL)
    path = mounted_by(process)
    write_group(type(repo)(path), "kept")
    process.send_signal(how)
    process.wait(30)
    wait_until("unmounted", lambda: path not in mounts())
    # The work is not lost.
    with pytest.warns(UserWarning):
        mount = icechunkfs.mount(repo, scratch=place)
    with mount as path:
        assert (path / "kept/zarr.json").exists()
        icechunkfs.commit(path, "after the kill")


def test_a_mount_ends_with_a_killed_process_that_has_children(repo, scratch, tmp_path):
    more = """
        import multiprocessing, subprocess
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(200,))
        child.start()
        other = subprocess.Popen(["sleep", "200"], close_fds=False)
        print(child.pid, other.pid, flush=True)
        time.sleep(60)
    """
    process = kernel(repo, scratch(), more, env={**os.environ, "TMPDIR": str(tmp_path)}, stderr=subprocess.DEVNULL)
    path = mounted_by(process)
    children = [int(word) for word in process.stdout.readline().split()]
    process.kill()
    process.wait(30)
    try:
        wait_until("unmounted", lambda: path not in mounts())
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)


def test_a_forked_child_does_not_unmount(repo, scratch):
    with icechunkfs.mount(repo, scratch=scratch()) as path:
        child = os.fork()
        if child == 0:
            # The child ends as a program does, with its finalizers, but not pytest's.
            try:
                import weakref

                weakref.finalize._exitfunc()
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert str(path) in mounts() and (path / "zarr.json").exists()


def test_a_mount_ends_with_its_object_and_with_the_interpreter(repo, scratch, tmp_path):
    mount = icechunkfs.mount(repo, scratch=scratch())
    path = str(mount.path)
    assert path in mounts()
    del mount
    assert path not in mounts()
    process = kernel(repo, scratch(), "", env={**os.environ, "TMPDIR": str(tmp_path)})
    path = process.stdout.readline().strip()
    assert path and process.wait(30) == 0 and path not in mounts()


def test_a_mount_that_was_unmounted_elsewhere_ends_quietly(repo, scratch):
    with icechunkfs.mount(repo, scratch=scratch()) as path:
        program("unmount", path)
        assert str(path) not in mounts()


def daemon_of(path):
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        if entry.isdigit() and words[0].endswith(b"icechunkfs") and os.fsencode(path) in words:
            return int(entry)
    raise AssertionError(f"no daemon serves {path}")


def test_a_mount_whose_daemon_was_killed_is_removed(repo, scratch):
    place = scratch()
    with icechunkfs.mount(repo, scratch=place) as path:
        write_group(path, "kept")
        os.kill(daemon_of(path), signal.SIGKILL)
        with pytest.raises(OSError):
            os.listdir(path)
        with pytest.raises(icechunkfs.Error):
            icechunkfs.commit(path, "no")
    assert str(path) not in mounts()
    with pytest.warns(UserWarning), icechunkfs.mount(repo, scratch=place) as path:
        assert (path / "kept/zarr.json").exists()
        icechunkfs.discard(path)


def test_a_mountpoint_that_is_not_empty_is_refused(repo, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").write_text("mine")
    with pytest.raises(icechunkfs.BusyError):
        icechunkfs.mount(repo, tmp_path / "full", read_only=True)
    assert (tmp_path / "full/file").read_text() == "mine"


def test_threads_may_mount_and_end(repo, scratch):
    import threading

    made = []
    thread = threading.Thread(target=lambda: made.append(icechunkfs.mount(repo, read_only=True)))
    thread.start()
    thread.join(60)
    # The thread has ended; its mount has not.
    with made[0] as path:
        assert (path / "zarr.json").exists()


def test_a_block_with_a_message_is_one_commit_or_none(repo, tmp_path):
    before = len(icechunkfs.log(repo))
    job = icechunkfs.mount(repo, commit="Night", metadata={"run": 7})
    with job as path:
        write_group(path, "night")
    assert job.committed and not path.exists()
    newest = icechunkfs.log(repo)[0]
    assert (newest.id, newest.message, newest.metadata["run"]) == (job.committed.snapshot, "Night", 7)
    # An exception discards what was written, and the next block commits its own work alone.
    with pytest.raises(ZeroDivisionError), warnings.catch_warnings():
        warnings.simplefilter("error")
        with icechunkfs.mount(repo, commit="Crash") as path:
            write_group(path, "crashed")
            1 / 0
    assert not path.exists()
    with icechunkfs.mount(repo, commit="Next night") as path:
        write_group(path, "next")
    with icechunkfs.mount(repo, read_only=True) as path:
        assert sorted(entry.name for entry in path.iterdir() if entry.is_dir()) == ["next", "night"]
    assert len(icechunkfs.log(repo)) == before + 2
    with pytest.raises(TypeError):
        icechunkfs.mount(repo, metadata={"run": 7})
    with pytest.raises(icechunkfs.UsageError):
        icechunkfs.mount(repo, commit="Night", scratch=tmp_path)
    with pytest.raises(icechunkfs.ReadOnlyError):
        icechunkfs.mount(repo, commit="Night", read_only=True)


def test_what_a_failed_commit_leaves_is_kept(repo):
    with pytest.raises(icechunkfs.Error) as failed:
        with icechunkfs.mount(repo, commit="Mine") as path:
            write_group(path, "a")
            file = open(path / "a/zarr.json", "r+")
    file.close()
    scratch = ast.literal_eval(str(failed.value).rsplit("scratch=", 1)[1])
    with icechunkfs.mount(repo, scratch=scratch) as path:
        icechunkfs.commit(path, "Later")
    assert icechunkfs.log(repo)[0].message == "Later"


def test_a_block_whose_process_is_killed_is_discarded(repo):
    code = """
        import os, signal, sys, icechunkfs
        with icechunkfs.mount(sys.argv[1], commit="Killed") as path:
            (path / "a").mkdir()
            (path / "a/zarr.json").write_text('{"zarr_format":3,"node_type":"group"}')
            print(path, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(code), repo], capture_output=True, text=True)
    path = ended.stdout.strip()
    assert ended.returncode == -signal.SIGKILL and path
    wait_until("it is gone", lambda: path not in mounts() and not os.path.exists(path))
    with icechunkfs.mount(repo, commit="Next") as path:
        assert not (path / "a").exists()


def test_a_job_that_is_unmounted_leaves_nothing(repo):
    job = icechunkfs.mount(repo, commit="Night")
    scratch = json.loads((job.path / ".icechunk/info.json").read_bytes())["scratch"]
    write_group(job.path, "a")
    # A forked child keeps nothing.
    ready, release = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(release)
        os.read(ready, 1)
        os._exit(0)
    os.close(ready)
    try:
        with pytest.warns(icechunkfs.UncommittedWarning):
            job.unmount()
        wait_until("it is gone", lambda: not os.path.exists(scratch) and not os.path.exists(job.path))
    finally:
        os.close(release)
        os.waitpid(child, 0)
    assert not any(commit.message == "Night" for commit in icechunkfs.log(repo))
