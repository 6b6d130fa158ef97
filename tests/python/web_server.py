"""Python's own web server for a directory, which has no support for ranges. It refuses paths with empty segments, `.` or `..`.

    python web_server.py PORT DIRECTORY
"""
import functools
import sys
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

from front import is_plain


class Handler(SimpleHTTPRequestHandler):
    def send_head(self):
        if not is_plain(self.path):
            return self.send_error(404)
        return super().send_head()


handler = functools.partial(Handler, directory=sys.argv[2])
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), handler).serve_forever()
