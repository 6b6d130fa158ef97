"""moto's server, whose conditional writes are atomic as those of S3 are: moto looks at the condition first, and lets other requests in before it writes.

`moto_server.py -H ADDRESS -p PORT`

Paths with empty segments, `.` or `..` get 404, but in buckets named `slashed-...`, whose keys begin with a slash.
"""
import sys
import threading

from moto.moto_server.werkzeug_app import DomainDispatcherApplication
from moto.s3.responses import S3Response
from moto.server import main

from front import is_plain

WRITING = threading.Lock()
put_object = S3Response.put_object
dispatch = DomainDispatcherApplication.__call__


def put_object_alone(response: S3Response):
    with WRITING:
        return put_object(response)


def dispatch_plain(self: DomainDispatcherApplication, environ, start_response):
    path = environ["RAW_URI"]
    if is_plain(path) or path.startswith("/slashed-"):
        return dispatch(self, environ, start_response)
    start_response("404 Not Found", [("Content-Length", "0")])
    return [b""]


S3Response.put_object = put_object_alone
DomainDispatcherApplication.__call__ = dispatch_plain
main(sys.argv[1:])
