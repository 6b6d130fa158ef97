"""Mounts on the workers of a ``dask.distributed`` cluster.

    from icechunkfs.dask import MountPlugin, worker_path

    client.register_plugin(MountPlugin("s3://bucket/ocean", tag="v1", name="ocean"))
    client.submit(lambda: sum(1 for _ in worker_path("ocean").glob("**/zarr.json"))).result()

Each worker has a mount of its own, from its start until its end.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Optional, Union

from distributed import WorkerPlugin, get_worker

from ._mount import Mount

if TYPE_CHECKING:
    import sys

    if sys.version_info >= (3, 12):
        from typing import Unpack
    else:
        from typing_extensions import Unpack

    from ._options import MountOptions

PathLike = Union[str, "os.PathLike[str]"]


class MountPlugin(WorkerPlugin):  # type: ignore[misc, unused-ignore]
    """Mounts ``repo`` on each worker, with the options of :func:`icechunkfs.mount`.

    Mounts are read-only unless ``read_only=False`` is given: only one mount of a machine can write to a branch, unless each
    has its own scratch directory (``ephemeral=True``).
    """

    def __init__(
        self,
        repo: PathLike,
        mountpoint: Optional[PathLike] = None,
        *,
        name: Optional[str] = None,
        **options: "Unpack[MountOptions]",
    ) -> None:
        self.repo = os.fspath(repo)
        self.mountpoint = None if mountpoint is None else os.fspath(mountpoint)
        self.options: Dict[str, Any] = {"read_only": True, **options}
        self.name = name or f"icechunkfs-{self.repo}"
        self.mount: Optional[Mount] = None

    def setup(self, worker: Any) -> None:
        """Mount, when a worker starts."""
        self.mount = Mount(self.repo, self.mountpoint, self.options)

    def teardown(self, worker: Any) -> None:
        """Unmount, when a worker ends."""
        if self.mount is not None:
            self.mount.unmount()
            self.mount = None

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "mount": None}

    @property
    def path(self) -> Path:
        """Path of the mount on this worker."""
        if self.mount is None:
            raise RuntimeError(f"{self.name} is not mounted in this process")
        return self.mount.path


def worker_path(name: str) -> Path:
    """Return the path of the mount that the plugin ``name`` made on the worker that runs this task."""
    plugin = get_worker().plugins[name]
    assert isinstance(plugin, MountPlugin)
    return plugin.path
