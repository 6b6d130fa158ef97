"""A user's file system that calls itself icechunkfs: every file is `.icechunk/info.json`, with lies or without end.

    impostor.py MOUNTPOINT lies|endless
"""

import array
import os
import socket
import struct
import subprocess
import sys

LOOKUP, FORGET, GETATTR, OPEN, READ, WRITE, RELEASE, FLUSH, INIT, OPENDIR, RELEASEDIR = 1, 2, 3, 14, 15, 16, 18, 25, 26, 27, 29
LIES = b'{"repository":"\\u001b[31m\\nfake","kind":"branch","ref":"x\\ny","snapshot":"\\u202e","pid":1}'


def mount(place):
    """Mounts with fusermount3; returns the descriptor of the connection."""
    own, helper = socket.socketpair()
    options = "subtype=icechunkfs,fsname=/fake\x1b[31m@branch:main"
    environment = {**os.environ, "_FUSE_COMMFD": str(helper.fileno())}
    subprocess.run(["fusermount3", "-o", options, "--", place], env=environment, pass_fds=[helper.fileno()], check=True)
    ancillary = own.recvmsg(16, socket.CMSG_SPACE(4))[1]
    return array.array("i", ancillary[0][2])[0]


def attributes(inode, is_directory):
    mode = 0o40755 if is_directory else 0o100666
    return struct.pack("<6Q9I4x", inode, 1 << 40, 0, 0, 0, 0, 0, 0, 0, mode, 1, os.getuid(), os.getgid(), 0, 4096)


def answer(kind, node, body, endless):
    """Returns the answer to a request, or None if it has none."""
    if kind == INIT:
        return struct.pack("<4I2H2I2H3I20x", 7, 31, 65536, 0, 12, 10, 65536, 1, 0, 0, 0, 0, 0)
    if kind == LOOKUP:
        return struct.pack("<4Q2I", node + 1, 0, 0, 0, 0, 0) + attributes(node + 1, body[:-1] == b".icechunk")
    if kind == GETATTR:
        return struct.pack("<Q2I", 0, 0, 0) + attributes(node, node < 3)
    if kind in (OPEN, OPENDIR):
        return struct.pack("<Q2I", 1, 1, 0)
    if kind == READ:
        offset, size = struct.unpack_from("<8xQI", body)
        return b" " * size if endless else LIES[offset:offset + size]
    if kind == WRITE:
        return struct.pack("<2I", struct.unpack_from("<16xI", body)[0], 0)
    return b"" if kind in (RELEASE, RELEASEDIR, FLUSH) else None


def main():
    connection = mount(sys.argv[1])
    while True:
        try:
            request = os.read(connection, 1 << 21)
        except OSError:
            return
        _, kind, unique, node = struct.unpack_from("<2I2Q", request)
        body = answer(kind, node, request[40:], sys.argv[2] == "endless")
        error, body = (0, body) if body is not None else (-38, b"")
        if kind != FORGET:
            os.write(connection, struct.pack("<IiQ", 16 + len(body), error, unique) + body)


if __name__ == "__main__":
    main()
