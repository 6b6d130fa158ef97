"""A progress bar for commits, by ``tqdm`` if it is installed."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, List, Optional


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


class Watch:
    """Shows what the program says about a commit. It alone looks into the mount, whose files may be anything."""

    def __init__(self) -> None:
        self._read, self.write = os.pipe()

    def words(self) -> List[str]:
        """Return the words that make the program write its progress to the pipe."""
        return [f"--progress-fd={self.write}"]

    def close(self) -> None:
        """Close what is left of the pipe."""
        for number in (self._read, self.write):
            if number >= 0:
                os.close(number)
        self._read = self.write = -1

    def run(self) -> None:
        """Show a bar until the program has closed its end of the pipe."""
        os.close(self.write)
        self.write = -1
        with os.fdopen(self._read, "rb") as lines, _tqdm()(
            unit="B", unit_scale=True, unit_divisor=1024, leave=False, desc="commit"
        ) as bar:
            self._read = -1
            for line in lines:
                _draw(bar, line)


def _draw(bar: Any, line: bytes) -> None:
    try:
        progress = json.loads(line)
        bar.total = progress["bytes"] or None
        bar.n = progress["bytes_done"]
        bar.set_description(progress["stage"], refresh=True)
    except (ValueError, KeyError, TypeError):
        # The commit goes on without the bar.
        pass
