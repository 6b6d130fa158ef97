"""The arrays of a run as cases: what each view must show of them, and the features that the table of docs/views.md has rows for."""

import dataclasses
import pathlib

import expected
import numpy as np

# Rows of the table: a heading, or a feature of arrays.
ROWS = [
    "**Types**", "`int8`", "`int16`, `int32`", "`int64`", "`uint8`, `uint16`, `uint32`", "`uint64`", "`float32`, `float64`", "`float16`", "`bool`",
    "complex numbers", "dates, time spans", "bytes of fixed length", "text of fixed length", "text of any length", "raw bytes, structures",
    "**Storage**", "uncompressed", "`zstd`", "`gzip`", "`blosc`", "`crc32c`", "other codecs", "`transpose`", "big-endian", "shards",
    "missing chunks", "no chunk at all",
    "**Shape**", "rank 0", "rank 1 to 3", "rank 4", "rank 5", "rank 32",
    "**Names**", "dimension names", "unnamed dimensions", "names beyond ASCII",
    "**Attributes**", "texts", "numbers", "lists of numbers", "lists of texts", "nested values", "`_FillValue`",
    "attributes of groups", "decoded as the native view",
]
TYPES = {
    "`int8`": ["int8"], "`int16`, `int32`": ["int16", "int32"], "`int64`": ["int64"], "`uint8`, `uint16`, `uint32`": ["uint8", "uint16", "uint32"],
    "`uint64`": ["uint64"], "`float32`, `float64`": ["float32", "float64"], "`float16`": ["float16"], "`bool`": ["bool"],
    "complex numbers": ["complex64", "complex128"], "dates, time spans": expected.TIMES, "bytes of fixed length": ["null_terminated_bytes"],
    "text of fixed length": ["fixed_length_utf32"], "text of any length": ["string"], "raw bytes, structures": ["raw_bytes", "structured", "struct"],
}
OF_TYPE = {name: row for row, names in TYPES.items() for name in names}
CODECS = {"zstd": "`zstd`", "gzip": "`gzip`", "blosc": "`blosc`", "crc32c": "`crc32c`", "transpose": "`transpose`", "sharding_indexed": "shards"}


@dataclasses.dataclass
class Case:
    """An array of a repository, as a view must show it."""

    repository: str
    path: str
    document: dict
    stored: tuple
    values: np.ndarray
    dimensions: list
    attributes: dict
    # Of all arrays of the group: documents, and dimensions.
    siblings: list = dataclasses.field(default_factory=list)
    all_dimensions: list = dataclasses.field(default_factory=list)
    # True if an array of the group cannot be read at all.
    beside_unreadable: bool = False

    @property
    def sibling_kinds(self):
        return [expected.type_name(document) for document in self.siblings]

    @property
    def has_time_units(self):
        return any(" since " in str(document.get("attributes", {}).get("units")) for document in self.siblings)

    @property
    def kind(self):
        return expected.type_name(self.document)

    @property
    def group(self):
        return self.path.rpartition("/")[0]

    @property
    def name(self):
        return self.path.rpartition("/")[2]

    @property
    def rank(self):
        return len(self.document["shape"])

    @property
    def codecs(self):
        return list(expected.codec_names(self.document["codecs"]))

    @property
    def is_big_endian(self):
        settings = [codec.get("configuration") or {} for codec in self.document["codecs"] if isinstance(codec, dict)]
        return any(configuration.get("endian") == "big" for configuration in settings)

    @property
    def misses_chunks(self):
        return self.stored is not None and self.stored[0] < self.stored[1]

    def features(self):
        """Yields the rows of the table that the array counts for."""
        yield OF_TYPE[self.kind]
        codecs = set(self.codecs)
        if codecs <= {"bytes", "vlen-utf8"}:
            yield "uncompressed"
        yield from (row for name, row in CODECS.items() if name in codecs)
        if any(name.startswith("numcodecs.") for name in codecs):
            yield "other codecs"
        if self.is_big_endian:
            yield "big-endian"
        if self.misses_chunks:
            yield "missing chunks" if self.stored[0] else "no chunk at all"
        yield {0: "rank 0", 4: "rank 4", 5: "rank 5", 32: "rank 32"}.get(self.rank, "rank 1 to 3")
        names = self.document.get("dimension_names") or [None] * self.rank
        if any(names):
            yield "dimension names"
        if None in names:
            yield "unnamed dimensions"
        attributes = self.document.get("attributes", {})
        if not "".join([self.path, *attributes, *filter(None, names)]).isascii():
            yield "names beyond ASCII"
        yield from {attribute_row(name, value) for name, value in attributes.items()}


def attribute_row(name, value):
    if name == "_FillValue":
        return "`_FillValue`"
    if isinstance(value, str):
        return "texts"
    if isinstance(value, (bool, int, float)):
        return "numbers"
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return "lists of texts"
    if isinstance(value, list) and value and all(isinstance(item, (bool, int, float)) for item in value):
        return "lists of numbers"
    return "nested values"


def below_array(path, repository, reference):
    """Returns true for an array that is below another array."""
    parts = path.split("/")
    return any((repository, "/".join(parts[:depth])) in reference["arrays"] for depth in range(len(parts)))


def left_out(repository, view):
    """Returns the arrays that a view reports as left out."""
    lines = (pathlib.Path(repository[view]) / ".icechunk" / view).read_text().splitlines()
    parts = [line.split("\t") for line in lines]
    return {path[1:] for path, deed, *_ in parts if deed == "left out" and "@" not in path}


def netcdf(plan, reference, problems):
    """Returns the cases of the NetCDF view."""
    files, unreadable = {}, set()
    reported = {repository["name"]: left_out(repository, "netcdf") for repository in plan["repositories"]}
    for (repository, path), array in reference["arrays"].items():
        shown = expected.netcdf_shows(array["document"])
        if shown == (path in reported[repository]):
            problems.append(f"netcdf: {repository} /{path}: {'is left out' if shown else 'is not reported'}")
        group, _, name = path.rpartition("/")
        if "error" in array:
            unreadable.add((repository, group))
        if shown and "values" in array:
            values = expected.netcdf_values(array["values"])
            files.setdefault((repository, group), {})[expected.safe_name(name)] = (array, values)
    found = []
    for (repository, group), arrays in files.items():
        dimensions = expected.netcdf_dimensions({name: (array["document"], values) for name, (array, values) in arrays.items()})
        documents = [array["document"] for array, _ in arrays.values()]
        for name, (array, values) in arrays.items():
            document = array["document"]
            is_coordinate = (document.get("dimension_names") or [None])[:1] == [name]
            # Shards may miss inner chunks; bounds have no NaN in any case.
            chunks = array["chunks"]
            has_all = chunks is not None and chunks[0] == chunks[1] and "sharding_indexed" not in expected.codec_names(document["codecs"])
            attributes = expected.netcdf_attributes(document.get("attributes", {}), document, array["values"], not has_all and not is_coordinate)
            path = f"{group}/{name}" if group else name
            found.append(Case(repository, path, document, array["chunks"], values, dimensions[name], attributes, documents, list(dimensions.values()),
                              (repository, group) in unreadable))
    return found


def zarr2(plan, reference, problems):
    """Returns the cases of the Zarr version 2 view."""
    reported = {repository["name"]: left_out(repository, "zarr2") for repository in plan["repositories"]}
    found = []
    for (repository, path), array in reference["arrays"].items():
        if path in reported[repository] or "values" not in array or below_array(path, repository, reference):
            continue
        document = array["document"]
        attributes = {key: value for key, value in document.get("attributes", {}).items() if key != "_ARRAY_DIMENSIONS"}
        if "_FillValue" in attributes:
            attributes["_FillValue"] = expected.fill_attribute(attributes["_FillValue"], expected.type_name(document))
        names = document.get("dimension_names") or []
        own = document.get("attributes", {}).get("_ARRAY_DIMENSIONS")
        dimensions = list(names) if names and len(names) == len(document["shape"]) and all(names) else own
        dimensions = [] if document["shape"] == [] else dimensions
        values = array["values"]
        found.append(Case(repository, path, document, array["chunks"], values, dimensions, attributes))
    return found
