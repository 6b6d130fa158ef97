"""The records that `dump.R` and `dump.f90` write of a NetCDF file: one form, because both languages can write numbers, not pickles.

A text is an int32 with its length, and its bytes. A record begins with an int32:

    1  variable: name, rank, names of the dimensions, sizes (the first varies slowest), 0 (float64) or 1 (int64) or 2 (bytes), count, values
    2  attribute: variable or "", name, 0 (float64) or 2 (a text), count, values
    3  variable that could not be read: name, reason
"""

import struct

import numpy as np

KINDS = {0: "f8", 1: "i8", 2: "S1"}


class Reader:
    def __init__(self, content):
        self.content, self.at = content, 0

    def int(self):
        self.at += 4
        return struct.unpack_from("<i", self.content, self.at - 4)[0]

    def bytes(self, count):
        self.at += count
        return self.content[self.at - count:self.at]

    def text(self):
        return self.bytes(self.int()).decode(errors="surrogateescape")

    def values(self):
        kind, count = np.dtype(KINDS[self.int()]), self.int()
        return np.frombuffer(self.bytes(count * kind.itemsize), kind)


def add(results, repository, group, content):
    """Adds the records of a file to the results of a program."""
    def path(name):
        return f"{group}/{name}" if group else name

    reader, own = Reader(content), {}
    attributes = {"": own}
    results.groups[repository["name"], group] = own
    while reader.at < len(content):
        kind, name = reader.int(), reader.text()
        if kind == 3:
            results.fail(repository["name"], path(name), reader.text())
        elif kind == 1:
            rank = reader.int()
            dimensions, sizes = [reader.text() for _ in range(rank)], [reader.int() for _ in range(rank)]
            attributes[name] = {}
            values = reader.values()
            if values.size == np.prod(sizes, dtype=int):
                results.add(repository["name"], path(name), values.reshape(sizes), dimensions, attributes[name])
            else:
                results.fail(repository["name"], path(name), f"{values.size} values of {sizes}")
        else:
            key, values = reader.text(), reader.values()
            if values.dtype.kind == "S":
                # A list of texts has a byte 0 between them.
                texts = values.tobytes().decode(errors="surrogateescape").split("\0")
                values = texts[0] if len(texts) == 1 else texts
            attributes.setdefault(name, {})[key] = values
