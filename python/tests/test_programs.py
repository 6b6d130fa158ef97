"""The package with xarray, zarr and dask.distributed."""

import numpy as np
import pytest
from conftest import mounts, wait_until

import icechunkfs


def write(repo, scratch):
    import xarray as xr

    with icechunkfs.mount(repo, scratch=scratch()) as path:
        dataset = xr.Dataset({"salinity": (("y", "x"), np.arange(24.0).reshape(4, 6))}, attrs={"title": "May"})
        dataset.to_zarr(path, mode="a", consolidated=False, encoding={"salinity": {"chunks": (2, 3)}})
        return icechunkfs.commit(path, "Salinity of May").snapshot


def test_xarray_writes_and_reads_back(repo, scratch):
    import xarray as xr

    snapshot = write(repo, scratch)
    with icechunkfs.mount(repo, snapshot=snapshot) as path:
        with xr.open_zarr(path, consolidated=False) as dataset:
            assert dataset.attrs["title"] == "May"
            np.testing.assert_array_equal(dataset.salinity.values, np.arange(24.0).reshape(4, 6))
        del dataset


def test_zarr_changes_one_chunk(repo, scratch):
    import zarr

    write(repo, scratch)
    with icechunkfs.mount(repo, scratch=scratch()) as path:
        array = zarr.open_array(str(path / "salinity"), mode="r+")
        array[0, 0] = -1
        assert icechunkfs.commit(path, "one chunk").chunks == 1
        assert icechunkfs.diff(repo, "main~1", "main").summary.chunks.changed.count == 1


def test_each_worker_of_a_cluster_has_its_mount(repo, scratch):
    from distributed import Client, LocalCluster

    from icechunkfs.dask import MountPlugin, worker_path

    write(repo, scratch)

    def total(rows):
        import zarr

        path = worker_path("ocean")
        return str(path), float(zarr.open_array(str(path / "salinity"), mode="r")[rows].sum())

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster, Client(cluster) as client:
        client.register_plugin(MountPlugin(repo, name="ocean"))
        workers = list(client.scheduler_info()["workers"])
        jobs = [client.submit(total, slice(2 * i, 2 * i + 2), workers=[worker]) for i, worker in enumerate(workers)]
        results = client.gather(jobs)
        assert sum(value for _, value in results) == np.arange(24.0).sum()
        made = {path for path, _ in results}
        assert len(made) == 2 and made <= mounts()
    wait_until("the workers' mounts are removed", lambda: not (made & mounts()))


def test_a_plugin_that_cannot_mount_fails(repo):
    from distributed import Client, LocalCluster

    from icechunkfs.dask import MountPlugin

    with LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster, Client(cluster) as client:
        with pytest.raises(FileNotFoundError, match="v9"):
            client.register_plugin(MountPlugin(repo, tag="v9"))
