"""Known limitations of programs. Each array to which one applies must differ in exactly the way that it describes, and at least one must."""

import dataclasses
import typing

import numpy as np


@dataclasses.dataclass
class Limit:
    """A limitation of a program, as a note of the table in docs/views.md."""

    program: str
    view: str
    # Rows of the table that have the note.
    rows: typing.Sequence[str]
    text: str
    # Returns true for the cases to which it applies.
    applies: typing.Callable
    # The array is not read: an error, or not there.
    unread: bool = False
    # Other values are read.
    wrong: bool = False
    # Converts the expected values to those that the program gives.
    values: typing.Callable | None = None
    # Converts the expected dimensions; a result of None stands for any.
    dimensions: typing.Callable | None = None
    # Names of attributes that may differ or be absent, or true for all.
    attributes: typing.Sequence[str] | bool = ()
    # Not every array to which it applies has to differ.
    may: bool = False


def one_of(*kinds):
    return lambda case: case.kind in kinds


def with_codec(*names):
    return lambda case: any(name in case.codecs for name in names)


def has(test):
    """Returns a predicate of cases with an attribute for which `test` is true."""
    return lambda case: any(test(name, value) for name, value in case.attributes.items())


def is_list_of_texts(name, value):
    return isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value)


def to(dtype):
    return lambda values: values.astype(dtype)


def double(values):
    return values.astype("f8") if values.dtype.kind in "iu" else values


def in_range(values):
    """Returns values within the range 0 to 400 of the generated dataset; others are missing."""
    return np.where((values >= 0) & (values <= 400), values, np.nan).astype(values.dtype)


def joined(values):
    """Returns characters as texts."""
    rows = np.frombuffer(values.tobytes(), f"S{values.shape[-1]}").reshape(values.shape[:-1])
    return np.array([row.decode() for row in rows.reshape(-1)], dtype=object).reshape(rows.shape)


def any_dimensions(_):
    return None


TEXT_KINDS = ("null_terminated_bytes", "fixed_length_utf32", "string")
TEXTS = ["bytes of fixed length", "text of fixed length", "text of any length"]
TIMES = ("numpy.datetime64", "numpy.timedelta64")


def is_coordinate(case):
    """Returns true for the variable of a dimension, and for one that is called like another's dimension."""
    return any(case.name in dimensions for dimensions in case.all_dimensions)


NETCDF = [
    *[Limit(program, "netcdf", ["`bool`"], "gives booleans, as from the native view", one_of("bool"), values=to("?"), attributes=["dtype"])
      for program in ["xarray", "xarray, h5netcdf"]],
    Limit("GDAL", "netcdf", ["`int8`", "`bool`"], "before 3.7 has no `int8`: gives `int16`", lambda case: case.values.dtype == "i1", values=to("i2")),
    Limit("GDAL", "netcdf", TEXTS, "gives lists of texts as texts, without the dimension of their characters",
          lambda case: case.kind in TEXT_KINDS and case.rank <= 1, values=joined, dimensions=lambda names: names[:-1]),
    Limit("GDAL", "netcdf", TEXTS, "gives texts in two and more dimensions as their bytes (`uint8`)",
          lambda case: case.kind in TEXT_KINDS and case.rank > 1, values=lambda values: values.view("u1")),
    Limit("R", "netcdf", ["`int64`", "`uint64`", "dates, time spans"], "has `double` for all integers of 64 bits: beyond 2^53 they are rounded",
          lambda case: case.values.dtype.itemsize == 8 and case.values.dtype.kind in "iu", values=to("f8"), may=True),
    Limit("R", "netcdf", ["unnamed dimensions"], "takes a variable with the name of another dimension for its coordinate",
          lambda case: is_coordinate(case) and case.dimensions[0] != case.name, dimensions=any_dimensions),
    Limit("R", "netcdf", ["names beyond ASCII"], "crashes on names of 200 bytes", lambda case: len(case.name.encode()) >= 200, unread=True),
    Limit("Fortran", "netcdf", ["`uint64`"], "has no numbers from 2^63 on: an error",
          lambda case: case.values.dtype == "u8" and bool((case.values >= 2**63).any()), unread=True),
    Limit("Fortran", "netcdf", ["lists of texts", "texts"], "does not read attributes that are lists of texts, or longer than 60,000 bytes",
          has(lambda name, value: is_list_of_texts(name, value) or isinstance(value, str) and len(value) > 60_000), attributes=True),
    Limit("CDO", "netcdf", TEXTS, "skips texts", one_of(*TEXT_KINDS), unread=True),
    Limit("CDO", "netcdf", ["rank 0"], "skips variables without dimensions beside others", lambda case: case.rank == 0, unread=True, may=True),
    Limit("CDO", "netcdf", ["rank 4", "rank 5", "rank 32"], "has at most 4 dimensions, one of them time", lambda case: case.rank > 3, unread=True),
    Limit("CDO", "netcdf", ["`int64`", "`uint64`", "dates, time spans"], "gives integers of 64 bits as `double`",
          lambda case: case.values.dtype.itemsize == 8 and case.values.dtype.kind in "iu", values=to("f8"), may=True),
    Limit("CDO", "netcdf", ["dates, time spans"], "takes one variable with `units` of time as the axis, renames its dimension, and skips others",
          lambda case: any(kind in TIMES for kind in case.sibling_kinds) or case.has_time_units, unread=True, may=True),
    Limit("CDO", "netcdf", ["dates, time spans"], "takes one variable with `units` of time as the axis, renames its dimension, and skips others",
          lambda case: any(kind in TIMES for kind in case.sibling_kinds) or case.has_time_units, wrong=True, values=double, dimensions=any_dimensions,
          attributes=True, may=True),
    Limit("CDO", "netcdf", ["dimension names"], "gives coordinates as `double`", is_coordinate, values=double, dimensions=any_dimensions,
          attributes=["axis", "standard_name", "long_name", "calendar", "units", "_FillValue"], may=True),
    Limit("CDO", "netcdf", ["`_FillValue`", "numbers", "texts"], "adds `axis`, `standard_name`, `missing_value` and similar, drops `coordinates` and `valid_range`",
          lambda case: True, attributes=["axis", "standard_name", "long_name", "missing_value", "_FillValue", "coordinates", "add_offset", "valid_range"], may=True),
    Limit("CDO", "netcdf", ["lists of numbers"], "makes values outside of `valid_range` missing", lambda case: case.attributes.get("valid_range") == [0, 400],
          values=in_range, attributes=["valid_range"]),
    Limit("CDO", "netcdf", ["texts"], "cuts attributes to 8,191 bytes", has(lambda name, value: isinstance(value, str) and len(value) > 8191), attributes=True),
    Limit("CDO", "netcdf", ["unnamed dimensions"], "refuses files in which an array has a dimension twice and another has it once",
          lambda case: any(len(set(names)) < len(names) for names in case.all_dimensions), unread=True, may=True),
]

NCZARR_TYPES = ["bool", "float16", "complex64", "complex128", *TIMES, "fixed_length_utf32", "string", "raw_bytes", "structured"]
# Codecs of numcodecs that programs do not have.
NOT_GDAL = [f"numcodecs.{name}" for name in
            ["adler32", "crc32", "fletcher32", "jenkins_lookup3", "fixedscaleoffset", "quantize", "astype", "bitround", "shuffle", "bz2", "packbits"]]
NOT_NCZARR = ["gzip", *(f"numcodecs.{name}" for name in
              ["adler32", "crc32", "jenkins_lookup3", "fixedscaleoffset", "quantize", "astype", "bitround", "delta", "lz4", "lzma", "gzip"])]


def is_nested(name, value):
    return not isinstance(value, (str, bool, int, float)) and not (isinstance(value, list) and value and len({type(item) for item in value}) == 1)


def setting(case, codec, name):
    """Returns a setting of a codec of an array, or None."""
    codecs = [item for item in case.document["codecs"] if isinstance(item, dict) and item["name"] == codec]
    return (codecs[0].get("configuration") or {}).get(name) if codecs else None


def zstd_level(case):
    return setting(case, "zstd", "level") or 0


def has_unusual_numcodecs(case):
    """Returns true for differences of bytes or of another type, and for LZMA in a form before XZ."""
    own, stored = setting(case, "numcodecs.delta", "dtype"), setting(case, "numcodecs.delta", "astype")
    return (own or "")[1:] in ("i1", "u1") or stored not in (None, own) or setting(case, "numcodecs.lzma", "format") == 2


def is_reversed(case):
    order = setting(case, "transpose", "order")
    return bool(order) and order != sorted(order)


def unnamed(case):
    return case.rank > 0 and case.dimensions is None


ZARR2 = [
    Limit("xarray", "zarr2", ["unnamed dimensions"], "refuses groups with an array without dimension names, as in version 3", unnamed, unread=True),
    *[Limit(program, "zarr2", ["`_FillValue`"], "takes the `fill_value` of an array for its `_FillValue`",
            lambda case: True, attributes=["_FillValue"], may=True) for program in ["xarray", "GDAL"]],
    Limit("GDAL", "zarr2", ["`int8`"], "before 3.7 has no `int8`: gives `int16`", one_of("int8"), values=to("i2")),
    Limit("GDAL", "zarr2", ["`bool`"], "gives 0 and 1 as `uint8`", one_of("bool"), values=to("u1")),
    Limit("GDAL", "zarr2", ["`float16`"], "gives `float32`", one_of("float16"), values=to("f4")),
    Limit("GDAL", "zarr2", ["bytes of fixed length"], "gives texts", one_of("null_terminated_bytes"), values=lambda values: np.char.decode(values, "utf8")),
    Limit("GDAL", "zarr2", ["dates, time spans", "text of any length"], "does not list the array", one_of(*TIMES, "string"), unread=True),
    Limit("GDAL", "zarr2", ["raw bytes, structures"], "does not list raw bytes", one_of("raw_bytes"), unread=True),
    Limit("GDAL", "zarr2", ["text of fixed length"], "reads fill values wrongly", lambda case: case.kind == "fixed_length_utf32" and case.misses_chunks, wrong=True),
    Limit("GDAL", "zarr2", ["no chunk at all"], "does not list arrays with a dimension of size 0", lambda case: 0 in case.document["shape"], unread=True),
    Limit("GDAL", "zarr2", ["`uint64`"], "reads the fill value 2^64 - 1 wrongly", lambda case: case.document["fill_value"] == 2**64 - 1 and case.misses_chunks, wrong=True),
    Limit("GDAL", "zarr2", ["dimension names"], "loses a name that other arrays have with another size", lambda case: case.path == "grid/other_lat",
          dimensions=any_dimensions, attributes=["_ARRAY_DIMENSIONS"]),
    Limit("GDAL", "zarr2", ["complex numbers"], "does not list complex numbers with a `fill_value`",
          lambda case: case.kind.startswith("complex") and case.misses_chunks, unread=True),
    Limit("GDAL", "zarr2", ["other codecs"], "does not list arrays with filters other than `delta`, nor `bz2`", with_codec(*NOT_GDAL), unread=True),
    Limit("GDAL", "zarr2", ["other codecs"], "fails to undo `delta` of bytes or with `astype`, and `lzma` that is not XZ", has_unusual_numcodecs, unread=True),
    Limit("netCDF4-python", "zarr2", ["`bool`", "`float16`", "complex numbers", "dates, time spans", "text of fixed length", "text of any length",
                                      "raw bytes, structures"], "refuses the group", one_of(*NCZARR_TYPES), unread=True),
    Limit("netCDF4-python", "zarr2", ["rank 0"], "does not list the array", lambda case: case.rank == 0, unread=True),
    Limit("netCDF4-python", "zarr2", ["`gzip`", "other codecs"], "has no such filter, or fails without its level", with_codec(*NOT_NCZARR), unread=True),
    Limit("netCDF4-python", "zarr2", ["`zstd`"], "has no negative levels", lambda case: zstd_level(case) < 0, unread=True),
    Limit("netCDF4-python", "zarr2", ["`transpose`"], "ignores `\"order\": \"F\"`: other values", is_reversed, wrong=True),
    Limit("netCDF4-python", "zarr2", ["big-endian"], "reads other values where chunks are missing", lambda case: case.is_big_endian and case.misses_chunks, wrong=True),
    Limit("netCDF4-python", "zarr2", ["bytes of fixed length"], "reads other values where chunks are missing, or bytes are no text", one_of("null_terminated_bytes"), wrong=True),
    Limit("netCDF4-python", "zarr2", ["nested values", "texts"], "loses or changes nested values, long texts, texts beyond ASCII and `CLASS`",
          has(lambda name, value: is_nested(name, value) or name == "CLASS" or isinstance(value, str) and not value.isascii()), attributes=True),
]

LIMITS = [*NETCDF, *ZARR2]


@dataclasses.dataclass
class GroupLimit:
    """A limitation about the attributes of groups."""

    program: str
    view: str
    text: str
    # Returns true for the names and values that may differ; the value is None if only the program has it.
    applies: typing.Callable


GROUP_LIMITS = [
    GroupLimit("CDO", "netcdf", "adds `Conventions`", lambda name, value: name == "Conventions"),
    GroupLimit("CDO", "netcdf", "skips lists of texts and numbers of 8 bits", lambda name, value: is_list_of_texts(name, value) or isinstance(value, bool)),
    GroupLimit("Fortran", "netcdf", "does not read attributes that are lists of texts, or longer than 60,000 bytes", is_list_of_texts),
    GroupLimit("GDAL", "zarr2", "rounds integers beyond 2^53", lambda name, value: isinstance(value, int) and abs(value) >= 2**63),
]
