"""A proxy in front of an object storage server: each front decides how requests are forwarded."""
import threading
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def is_plain(path: str) -> bool:
    """False if the path of a request has an empty segment, `.` or `..` in it."""
    segments = path.split("?")[0].removeprefix("/").removesuffix("/")
    return not segments or not any(segment in ("", ".", "..") for segment in segments.split("/"))


class Turns:
    """A lock for each key."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, threading.Lock] = defaultdict(threading.Lock)

    def of(self, key: str) -> threading.Lock:
        with self._guard:
            return self._locks[key]


class Handler(BaseHTTPRequestHandler):
    """One connection. A front defines the answer in `reply`."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # the answer leaves in one piece
    disable_nagle_algorithm = True

    def reply(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        """Status, headers and body of the answer. Without a length among the headers, the body's is added."""
        raise NotImplementedError

    def _answer(self) -> None:
        body = self._body()
        # As a server that does not merge slashes.
        status, headers, body = self.reply(body) if is_plain(self.path) else (404, [], b"")
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        if not any(name.lower() == "content-length" for name, _ in headers):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _answer

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass  # what may follow the last part
        return b"".join(parts)

    def log_message(self, *_: object) -> None:
        """Only failures are printed, by the server."""


class Front(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


def serve(port: int, handler: type[Handler]) -> None:
    Front(("127.0.0.1", port), handler).serve_forever()
