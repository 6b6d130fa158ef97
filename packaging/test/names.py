"""A name server and a web server on loopback, for a test of how a static binary looks up names.

    names.py LOG    answers every name with 127.0.0.1 on port 53, and requests on port 8000, whose Host goes to LOG
"""

import http.server
import socket
import struct
import sys
import threading

LOG = open(sys.argv[1], "a", buffering=1)


def answer(query):
    """Answer a query for an address with 127.0.0.1, and any other one with nothing."""
    end = 12
    while query[end]:
        end += query[end] + 1
    (kind,) = struct.unpack(">H", query[end + 1 : end + 3])
    found = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 60, 4) + bytes([127, 0, 0, 1]) if kind == 1 else b""
    return query[:2] + b"\x81\x80" + struct.pack(">HHHH", 1, bool(found), 0, 0) + query[12 : end + 5] + found


def serve_names():
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 53))
    LOG.write("ready\n")
    while True:
        query, client = server.recvfrom(512)
        server.sendto(answer(query), client)


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers that there is nothing."""

    def do_GET(self):
        LOG.write(f"Host: {self.headers['Host']}\n")
        self.send_error(404)

    do_HEAD = do_GET

    def log_message(self, *_):
        """Keep quiet."""


threading.Thread(target=serve_names, daemon=True).start()
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
