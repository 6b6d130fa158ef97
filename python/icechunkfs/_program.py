"""Finding and running the program."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ._errors import Error, UsageError, error_of, NotFoundError
from ._progress import Watch

VARIABLE = "ICECHUNKFS_BINARY"


def program() -> str:
    """Return the path of the program.

    It is the value of ``ICECHUNKFS_BINARY``, or the program that was installed with this package, or the one in ``PATH``.
    """
    named = os.environ.get(VARIABLE)
    if named:
        return named
    places = [sysconfig.get_path("scripts"), os.path.dirname(sys.executable)]
    user = "posix_user"
    if user in sysconfig.get_scheme_names():
        places.append(sysconfig.get_path("scripts", user))
    for place in places:
        path = os.path.join(place, "icechunkfs")
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    found = shutil.which("icechunkfs")
    if found is None:
        raise NotFoundError(errno.ENOENT, f"the program icechunkfs was not found in {', '.join(places)} and PATH; set {VARIABLE}")
    return found


def version() -> str:
    """Return the version of the program."""
    return run(["--version"]).split()[-1]


def environment() -> Dict[str, str]:
    """Return the environment of the program: failures are described in JSON."""
    return {**os.environ, "ICECHUNKFS_ERROR_FORMAT": "json"}


def start(words: List[str], **options: Any) -> "subprocess.Popen[bytes]":
    """Start the program."""
    path = program()
    try:
        return subprocess.Popen([path, *words], env=environment(), **options)
    except OSError as failure:
        raise error_of(failure.errno or errno.EIO, f"{path}: {failure.strerror}") from failure


def run(words: List[str], watch: Optional[Watch] = None) -> str:
    """Run the program and return its standard output; ``watch`` shows its progress."""
    out, err = run_with_notes(words, watch)
    return out


def run_with_notes(words: List[str], watch: Optional[Watch] = None) -> Tuple[str, str]:
    """Run the program and return its standard output and standard error."""
    pipe = subprocess.PIPE
    try:
        passed = [] if watch is None else [watch.write]
        process = start(words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, pass_fds=passed)
        try:
            if watch is not None:
                watch.run()
            out, err = process.communicate()
        except BaseException:
            # An interrupt ends the command, too; the daemon finishes what it has begun.
            process.kill()
            process.communicate()
            raise
    finally:
        if watch is not None:
            watch.close()
    text = out.decode(errors="replace"), err.decode(errors="replace")
    if process.returncode != 0:
        raise failure_of(process.returncode, *text)
    return text


def run_json(words: List[str], watch: Optional[Watch] = None) -> Any:
    """Run the program with ``--json`` and return its result."""
    told = [] if watch is None else watch.words()
    return json.loads(run([words[0], "--json", *told, *words[1:]], watch))


def failure_of(status: int, out: str, err: str) -> Error:
    """Return the exception for a failed command."""
    conflicts: Any = None
    if out.lstrip().startswith("{"):
        try:
            conflicts = json.loads(out).get("conflicts")
        except ValueError:
            pass
    # Notes and the log come before the failure.
    for line in reversed(err.splitlines()):
        try:
            failure: Mapping[str, Any] = json.loads(line)
            return error_of(int(failure["errno"]), str(failure["message"]), conflicts)
        except (ValueError, KeyError, TypeError):
            continue
    text = err.strip().replace("error: ", "", 1)
    if status == 2:
        return UsageError(errno.EINVAL, text)
    if status < 0:
        return Error(errno.EIO, f"icechunkfs was killed by signal {-status}. {text}".strip())
    return Error(errno.EIO, text or f"icechunkfs ended with status {status}")
