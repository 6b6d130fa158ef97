"""A progress bar for commits, by ``tqdm`` if it is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, Callable, Optional, Union

#: Seconds between two looks at the progress.
INTERVAL = 0.1


def is_shown(progress: Optional[bool]) -> bool:
    """Return True if a bar is shown: on request, or by default in notebooks and terminals."""
    if progress is not None:
        return progress and _tqdm() is not None
    return (_in_notebook() or sys.stderr.isatty()) and _tqdm() is not None


def _tqdm() -> Any:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None
    return tqdm


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return type(shell).__name__ == "ZMQInteractiveShell"


def of_commit(path: Union[str, "os.PathLike[str]"]) -> Callable[["subprocess.Popen[bytes]"], None]:
    """Return a function that shows a bar until a commit in the mount at ``path`` ends."""
    place = os.path.join(os.fspath(path), ".icechunk", "progress")

    def watch(process: "subprocess.Popen[bytes]") -> None:
        with _tqdm()(unit="B", unit_scale=True, unit_divisor=1024, leave=False, desc="commit") as bar:
            while True:
                try:
                    process.wait(INTERVAL)
                    return
                except subprocess.TimeoutExpired:
                    _draw(bar, place)

    return watch


def _draw(bar: Any, place: str) -> None:
    try:
        with open(place, "rb") as file:
            progress = json.load(file)
        bar.total = progress["bytes"] or None
        bar.n = progress["bytes_done"]
        bar.set_description(progress["stage"], refresh=True)
    except (OSError, ValueError, KeyError):
        # The commit goes on without the bar.
        pass
