"""moto's server, whose conditional writes are atomic as those of S3 are: moto looks at the condition first, and lets other requests in before it writes.

`moto_server.py -H ADDRESS -p PORT`
"""
import sys
import threading

from moto.s3.responses import S3Response
from moto.server import main

WRITING = threading.Lock()
put_object = S3Response.put_object


def put_object_alone(response: S3Response):
    with WRITING:
        return put_object(response)


S3Response.put_object = put_object_alone
main(sys.argv[1:])
