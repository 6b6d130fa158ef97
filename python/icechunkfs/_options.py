"""Options of commands, as keyword arguments.

>>> to_words({"read_only": True, "as_of": None, "memory": "256M", "shard": (64, 64), "allow_virtual": ["/a", "/b"]})
['--read-only', '--memory=256M', '--shard=64,64', '--allow-virtual=/a', '--allow-virtual=/b']
>>> to_words({"follow": True}), to_words({"follow": 2.5}), to_words({"discard": False})
(['--follow'], ['--follow=2.5'], [])
>>> to_words({"umask": 0o007}), to_words({"umask": "007"})
(['--umask=007'], ['--umask=007'])
"""

from __future__ import annotations

import os
from datetime import date, datetime
from typing import Any, List, Mapping, Sequence, Tuple, TypedDict, Union

Path = Union[str, "os.PathLike[str]"]
Size = Union[int, str]


class StoreOptions(TypedDict, total=False):
    """Options of every command that opens a repository: ``icechunkfs log --help`` explains them."""

    region: str
    endpoint_url: str
    profile: str
    anonymous: bool
    requester_pays: bool
    addressing: str
    access_key_id: str
    credentials: Path
    account: str
    secrets: Path
    ca_bundle: Path
    timeout: float
    min_rate: Size
    max_listed: int
    max_requests: int
    cache: Path
    cache_size: Size
    offline: bool
    upload_limit: Size
    unsafe_single_writer: bool
    memory: Size


class MountOptions(StoreOptions, total=False):
    """Options of a mount: ``icechunkfs mount --help`` explains them."""

    branch: str
    tag: str
    snapshot: str
    as_of: Union[str, date, datetime]
    create: bool
    from_: str
    read_only: bool
    refuse_uncommitted: bool
    follow: Union[bool, float]
    view: str
    unshard: bool
    shard: Sequence[int]
    consolidated: bool
    netcdf_record_dimension: str
    netcdf_classic_types: bool
    netcdf_groups: str
    root: str
    subdir: str
    show_control: bool
    scratch: Path
    discard: bool
    ephemeral: bool
    pack_below: Size
    upload: str
    ahead: Size
    io: str
    io_uring: bool
    allow_other: bool
    uid: int
    gid: int
    umask: Union[int, str]
    fmask: Union[int, str]
    dmask: Union[int, str]
    xattrs: bool
    metrics: str
    metrics_host: Sequence[str]
    share_control: Sequence[str]
    access_log: Path
    on_commit: str
    log_file: Path
    allow_virtual: Sequence[str]
    virtual_map: Sequence[str]
    virtual_option: Sequence[str]


#: Options that this package sets, or that have no meaning in it.
RESERVED = ("foreground", "until_eof", "error_format", "json", "help", "version")

#: Options that are octal numbers.
MASKS = ("umask", "fmask", "dmask")


def to_words(options: Mapping[str, Any]) -> List[str]:
    """Return options as words of the command line. ``None`` and ``False`` leave an option out."""
    words: List[str] = []
    for name, value in options.items():
        if name in RESERVED:
            raise TypeError(f"icechunkfs sets the option {name} itself")
        words += _words(name, value)
    return words


def _words(name: str, value: Any) -> List[str]:
    # A keyword of Python has an underscore at its end.
    flag = "--" + name.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return []
    if value is True:
        return [flag]
    if name == "shard" and not isinstance(value, str):
        value = ",".join(str(int(length)) for length in value)
    if isinstance(value, (list, tuple, set, frozenset)):
        return [f"{flag}={_text(name, one)}" for one in value]
    return [f"{flag}={_text(name, value)}"]


def _text(name: str, value: Any) -> str:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(f"{name}: {value!r} has no time zone")
        return value.isoformat()
    if isinstance(value, date):
        return value.isoformat()
    if name in MASKS and isinstance(value, int):
        return f"{value:03o}"
    if isinstance(value, (str, int, float, os.PathLike)):
        return os.fsdecode(value) if isinstance(value, os.PathLike) else str(value)
    raise TypeError(f"{name}: {value!r} is not a text, number, path or time")


def split(options: Mapping[str, Any]) -> Tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the options of the store, and all others."""
    names = StoreOptions.__annotations__
    store = {name: value for name, value in options.items() if name in names}
    return store, {name: value for name, value in options.items() if name not in names}
