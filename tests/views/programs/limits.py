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
    Limit("CDO", "netcdf", ["`_FillValue`", "numbers", "texts"], "adds `axis`, `standard_name`, `missing_value` and similar, and drops `coordinates` and `valid_range`",
          lambda case: True, attributes=["axis", "standard_name", "long_name", "missing_value", "_FillValue", "coordinates", "add_offset", "valid_range"], may=True),
    Limit("CDO", "netcdf", ["lists of numbers"], "makes values outside of `valid_range` missing", lambda case: case.attributes.get("valid_range") == [0, 400],
          values=in_range, attributes=["valid_range"]),
    Limit("CDO", "netcdf", ["texts"], "cuts attributes to 8,191 bytes", has(lambda name, value: isinstance(value, str) and len(value) > 8191), attributes=True),
    Limit("CDO", "netcdf", ["unnamed dimensions"], "refuses files in which an array has a dimension twice and another has it once",
          lambda case: any(len(set(names)) < len(names) for names in case.all_dimensions), unread=True, may=True),
]

LIMITS = [*NETCDF]
