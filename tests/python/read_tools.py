"""Read one snapshot of a mount with the tools people use, as plain paths, and compare all values.

    python read_tools.py MOUNT EXPECTED.json SNAPSHOT_ID [--virtual-unreadable]

Every array of the snapshot is opened with zarr-python, every group that xarray takes with xarray, and
every array that tensorstore knows with tensorstore. EXPECTED.json says what the values are; it was
written by the reference implementation.

An array with a virtual chunk that the reference could not read must fail here too: no tool may see the
fill value in its place. With --virtual-unreadable the mount has no access to virtual chunks, so that
arrays which hold them (`notes.virtual` names them) may fail; when they do not, their values must be right.

The last line counts; "skipped" are arrays that not even zarr could be compared on. Exit code 1: a value
differs, a read failed that should not have, or tensorstore read fewer than half of what zarr read.
"""
import argparse
import collections
import hashlib
import json
import math
import os
import sys
import warnings
from pathlib import Path

import numpy as np
import tensorstore
import xarray
import zarr
from zarr.core.chunk_key_encodings import ChunkKeyEncoding
from zarr.core.common import parse_named_configuration
from zarr.registry import register_chunk_key_encoding

warnings.filterwarnings("ignore")
LONGEST_NAME = 255
TENSORSTORE_TYPES = {
    "bool", "int4", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bfloat16",
    "float16", "float32", "float64", "complex64", "complex128"}
TENSORSTORE_CODECS = {"bytes", "transpose", "gzip", "blosc", "zstd", "crc32c", "sharding_indexed"}


# ---------------------------------------------------------------- what zarr has to be taught

class SuffixChunkKeyEncoding(ChunkKeyEncoding):
    """The registered extension `suffix`: another encoding's name with an ending."""

    name = "suffix"

    def __init__(self, suffix, base):
        object.__setattr__(self, "suffix", suffix)
        object.__setattr__(self, "base", base)

    @classmethod
    def from_dict(cls, data):
        from zarr.core.chunk_key_encodings import parse_chunk_key_encoding
        _, configuration = parse_named_configuration(data)
        base = configuration.get("base-encoding") or configuration.get("base_encoding")
        return cls(configuration["suffix"], parse_chunk_key_encoding(base))

    def encode_chunk_key(self, chunk_coords):
        return self.base.encode_chunk_key(chunk_coords) + self.suffix


def teach_zarr():
    register_chunk_key_encoding("suffix", SuffixChunkKeyEncoding)
    try:
        zarr.config.set({"array.rectilinear_chunks": True})
    except Exception:  # a zarr that does not know the grid
        pass


def zarr_version():
    return tuple(int(part) for part in zarr.__version__.split(".")[:2])


# ---------------------------------------------------------------- the expected side

class Expected:
    def __init__(self, path, snapshot_id, virtual_unreadable):
        whole = json.loads(Path(path).read_text())
        self.snapshot = whole["snapshots"][snapshot_id]
        self.arrays = self.snapshot.get("arrays", {})
        # Releases before 0.2 could not read all of theirs: these have a document, and nothing to compare with.
        documents = self.snapshot.get("zarr_json", {}).items()
        self.all_arrays = set(self.arrays) | {("/" + key).removesuffix("/zarr.json") or "/" for key, document in documents
                                              if document.get("node_type") == "array"}
        self.virtual = virtual_nodes(whole.get("notes") or {}) if virtual_unreadable else set()

    def groups(self):
        """The nodes that are known not to be arrays: those whose document the reference could read."""
        unread = self.snapshot.get("errors", {})
        return [node for node in self.snapshot["nodes"] if node not in self.all_arrays and self.can_be_shown(node)
                and (node[1:] + "/zarr.json").lstrip("/") not in unread]

    def can_be_shown(self, node):
        """A node has no folder when its name cannot be one, or when a file takes the name."""
        parts = node[1:].split("/") if node != "/" else []
        possible = all(p not in ("", ".", "..") and "\0" not in p and len(p.encode()) <= LONGEST_NAME for p in parts)
        files = self.snapshot.get("fskeys")
        return possible and (files is None or "/".join([*parts, "zarr.json"]) in files)

    def must_fail(self, node):
        prefix = f"{node[1:]}/c" if node != "/" else "c"
        return any("virtual" in words and (key == prefix or key.startswith(prefix + "/"))
                   for key, words in self.snapshot.get("errors", {}).items())

    def may_fail(self, node):
        return node in self.virtual


def virtual_nodes(notes):
    """The nodes with virtual chunks, of either form in which the notes name them."""
    virtual = notes.get("virtual", {})
    named = ["/" + array for array in virtual.get("refs_as_set_in_order", {})]
    return set(named) | {"/" + ref[0].rsplit("/c", 1)[0] for ref in virtual.get("refs", [])}


# ---------------------------------------------------------------- comparing

def differences(values, expected):
    """Describes the differences; empty if all is equal."""
    if list(values.shape) != expected["shape"]:
        return [f"shape {list(values.shape)} instead of {expected['shape']}"]
    if not same_dtype(values.dtype, expected["dtype"]):
        return [f"dtype {values.dtype} instead of {expected['dtype']}"]
    wanted = expected.get("sha256_of_c_order_little_endian")
    if wanted is not None:
        return [] if little_endian_hash(values) == wanted else ["other values"]
    if "values" in expected:
        return [] if [str(v) for v in values.reshape(-1)] == expected["values"] else ["other values"]
    return [f"{name} {found!r} instead of {expected[name]!r}" for name, found in marks(values)
            if name in expected and not same_scalar(found, expected[name])]


def comparable(expected):
    return any(name in expected for name in ("sha256_of_c_order_little_endian", "values", "first", "sum"))


def same_dtype(found, expected):
    """By kind for text, whose dtype differs from tool to tool."""
    if expected.startswith("StringDType") or expected == "object":
        return found.kind in "OTU"
    return found.newbyteorder("=") == np.dtype(expected).newbyteorder("=")


def little_endian_hash(values):
    return hashlib.sha256(np.ascontiguousarray(values.astype(values.dtype.newbyteorder("<"))).tobytes()).hexdigest()


def marks(values):
    """The few numbers that stand for an array where no hash was kept."""
    flat = values.reshape(-1)
    if flat.size and values.dtype.kind != "c":
        yield "first", flat[0]
        yield "last", flat[-1]
    if values.dtype.kind in "iub":
        yield "sum", sum(int(v) for v in flat)
    if values.dtype.kind == "f":
        wide = flat.astype("float64")
        yield "nan_count", int(np.isnan(wide).sum())
        yield "sum", float(wide[np.isfinite(wide)].sum())


def same_scalar(found, expected):
    if str(found) == str(expected):
        return True
    try:
        a, b = float(found), float(expected)
    except (TypeError, ValueError):
        return False
    return math.isclose(a, b, rel_tol=1e-6) or math.isnan(a) and math.isnan(b)


# ---------------------------------------------------------------- reading

class Reader:
    def __init__(self, mount, expected):
        self.mount, self.expected = Path(mount).absolute(), expected  # tensorstore wants a whole path
        self.equal = collections.Counter()
        self.skipped = collections.Counter()  # (tool, reason) -> count
        self.wrong = []
        self.equal_with_zarr = set()

    def path(self, node):
        return str(self.mount / node[1:]) if node != "/" else str(self.mount)

    def document(self, node):
        return json.loads((Path(self.path(node)) / "zarr.json").read_bytes())

    def compare(self, tool, node, values):
        different = differences(values, self.expected.arrays[node])
        if different:
            self.wrong.append(f"{tool} {node}: {', '.join(different)}")
            return False
        self.equal[tool] += 1
        return True

    def skip(self, tool, reason):
        self.skipped[tool, reason] += 1

    # zarr

    def read_with_zarr(self, node):
        if not self.expected.can_be_shown(node):
            return self.skip("zarr", "no directory can hold the name")
        try:
            values = np.asarray(zarr.open_array(as_zarr_takes_it(self.path(node)), mode="r")[...])
        except Exception as error:
            return self.failed_with_zarr(node, error)
        if self.expected.must_fail(node):
            self.wrong.append(f"zarr {node}: was read, although a virtual chunk of it cannot be")
        elif not comparable(self.expected.arrays[node]):
            self.skip("zarr", "no expected values")
        elif self.compare("zarr", node, values):
            self.equal_with_zarr.add(node)

    def failed_with_zarr(self, node, error):
        if self.expected.must_fail(node) or self.expected.may_fail(node):
            self.skip("zarr", "virtual chunks that cannot be read here")
        elif not comparable(self.expected.arrays[node]):
            self.skip("zarr", "no expected values")
        elif self.has_grid_of_later_zarr(node):
            self.skip("zarr", "chunk grid of a later zarr")
        else:
            self.wrong.append(f"zarr {node}: {type(error).__name__}: {str(error).splitlines()[:1]}")

    def has_grid_of_later_zarr(self, node):
        try:
            document = self.document(node)
        except OSError:  # then it was not the grid that zarr stumbled over
            return False
        return document["chunk_grid"]["name"] != "regular" and zarr_version() < (3, 2)

    # xarray

    def read_with_xarray(self, group):
        prefix = group.rstrip("/") + "/"
        children = [n for n in sorted(self.expected.all_arrays) if n.startswith(prefix) and "/" not in n[len(prefix):]]
        children = [n for n in children if self.expected.can_be_shown(n)]
        reason = self.why_not_with_xarray(children)
        if reason:
            self.skipped["xarray", reason] += len(children)
            return
        try:
            dataset = xarray.open_zarr(self.path(group), consolidated=False, decode_cf=False, chunks=None)
            for node in children:
                self.compare("xarray", node, np.asarray(dataset[node[len(prefix):]].load().values))
        except Exception as error:
            self.wrong.append(f"xarray {group}: {type(error).__name__}: {error}")

    def why_not_with_xarray(self, children):
        """xarray opens a group as a whole, and only when every array in it has names for its dimensions."""
        sizes = {}
        for node in children:
            if node not in self.equal_with_zarr:
                return "in a group with an array that was not compared"
            document = self.document(node)
            names = document.get("dimension_names") or []
            if len(names) != len(document["shape"]) or None in names or len(set(names)) != len(names):
                return "in a group with an array without names for its dimensions"
            if any(sizes.setdefault(name, size) != size for name, size in zip(names, document["shape"])):
                return "in a group with one dimension in two sizes"
        return None

    # tensorstore

    def read_with_tensorstore(self, node):
        reason = why_not_with_tensorstore(node, self.document(node))
        if reason:
            return self.skip("tensorstore", reason)
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": self.path(node) + "/"}}
        try:
            values = tensorstore.open(spec, open=True, read=True).result().read().result()
        except Exception as error:
            self.wrong.append(f"tensorstore {node}: {type(error).__name__}: {error}")
            return
        self.compare("tensorstore", node, np.asarray(values))

    def read_all(self):
        for node in self.expected.arrays:
            self.read_with_zarr(node)
        for group in self.expected.groups():
            self.read_with_xarray(group)
        for node in sorted(self.equal_with_zarr):
            self.read_with_tensorstore(node)
        if 2 * self.equal["tensorstore"] < self.equal["zarr"]:
            self.wrong.append(f"tensorstore read {self.equal['tensorstore']} of {self.equal['zarr']} arrays")

    def report(self):
        for (tool, reason), count in sorted(self.skipped.items()):
            print(f"  {tool} skipped {count}: {reason}")
        for line in self.wrong:
            print(f"  WRONG {line}")
        skipped = sum(count for (tool, _), count in self.skipped.items() if tool == "zarr")
        print(f"read_tools: {self.equal['zarr']} arrays equal with zarr, {self.equal['xarray']} with xarray, "
              f"{self.equal['tensorstore']} with tensorstore, {skipped} skipped")
        return 1 if self.wrong else 0


def as_zarr_takes_it(path):
    """A string, as people write it; but zarr parses strings as URLs, which loses line breaks and tabs."""
    return Path(path) if any(c in path for c in "\n\r\t") else path


def why_not_with_tensorstore(node, document):
    """What of an array tensorstore does not know, judged by the document: a failed read is never an excuse."""
    if "\\" in node:
        return "a backslash in the path, which it takes for a slash"
    if not isinstance(document["data_type"], str) or document["data_type"] not in TENSORSTORE_TYPES:
        return "data type " + name_of(document["data_type"])
    unknown = [c for c in codec_names(document["codecs"]) if c not in TENSORSTORE_CODECS]
    if unknown:
        return "codec " + unknown[0]
    if document["chunk_grid"]["name"] != "regular":
        return "chunk grid " + document["chunk_grid"]["name"]
    if name_of(document["chunk_key_encoding"]) not in ("default", "v2"):
        return "chunk key encoding " + name_of(document["chunk_key_encoding"])
    return None


def name_of(extension):
    return extension if isinstance(extension, str) else extension["name"]


def codec_names(codecs):
    """All names, those inside a sharding codec too."""
    for codec in codecs:
        yield name_of(codec)
        if name_of(codec) == "sharding_indexed":
            yield from codec_names(codec["configuration"]["codecs"])
            yield from codec_names(codec["configuration"].get("index_codecs", []))


def main():
    parser = argparse.ArgumentParser(description="Compare what tools read below a mount with expected values.")
    parser.add_argument("mount")
    parser.add_argument("expected")
    parser.add_argument("snapshot")
    parser.add_argument("--virtual-unreadable", action="store_true")
    arguments = parser.parse_args()
    teach_zarr()
    reader = Reader(arguments.mount, Expected(arguments.expected, arguments.snapshot, arguments.virtual_unreadable))
    reader.read_all()
    return reader.report()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a failed read leaves zarr tasks behind, which fill the screen when the interpreter ends
