"""Write a snapshot as a plain directory of Zarr files, by reading its keys with the reference implementation.

    python plain_tree.py REPOSITORY SNAPSHOT_ID NEW_FOLDER

`read_tools.py` run on that folder shows whether the expected values and the tools agree before a mount is
in play. A chunk that the reference cannot read (a virtual one without its target) becomes a file that
cannot be opened, because a missing file would be read as the fill value.
"""
import asyncio
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "fixtures"))
import expect  # noqa: E402
import icechunk  # noqa: E402


def write_tree(repository, snapshot_id, folder):
    repo = icechunk.Repository.open(icechunk.local_filesystem_storage(str(repository)))
    snapshot = asyncio.run(expect.Snapshot(repo, snapshot_id).read())
    names = snapshot.file_names()
    folder.mkdir(parents=True)
    for key, name in names.items():
        write_file(folder / name, snapshot.bytes.get(key))
    return len(names)


def write_file(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    if content is None:
        path.symlink_to(path.name)  # a loop: opening it fails even for root, and not with "no such file"
    else:
        path.write_bytes(content)


if __name__ == "__main__":
    count = write_tree(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
    print(f"plain_tree: {count} files", flush=True)
    os._exit(0)  # the reference has been seen to crash at interpreter exit, after all work was done
