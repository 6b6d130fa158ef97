"""Makes a server of Amazon's protocol compare before it writes, which s3s-fs does in two steps.

    python serial_front.py PORT SERVER_PORT

s3s-fs looks at the object, and then writes: of two writers that bring the same `If-Match`, both may be let in. And a reader may
get an old object with the new one's tag, for it opens the file first and asks for the tag then; what he writes on top of it
loses what was between. So conditional writes of one key are passed on one at a time, and reads of that key not meanwhile.
Everything else goes straight through.
"""
import http.client
import socket
import sys
import threading

from front import Handler, Turns, serve

CONDITIONS = ("If-Match", "If-None-Match")
# Of one connection only: http.client has seen to them, or does it again.
HOP = {"connection", "transfer-encoding", "keep-alive"}


class Serial(Handler):
    server_port: int
    turns = Turns()
    compared: set[str] = set()  # keys that were written so
    own = threading.local()

    def reply(self, body):
        key = self.path.split("?")[0]
        if self.command == "PUT" and any(name in self.headers for name in CONDITIONS):
            self.compared.add(key)
        if key in self.compared:
            with self.turns.of(key):
                return self.passed_on(body)
        return self.passed_on(body)

    def passed_on(self, body: bytes):
        # Each client's connection has a thread here, and each thread has a connection to the server.
        if getattr(self.own, "connection", None) is None:
            self.own.connection = http.client.HTTPConnection("127.0.0.1", self.server_port)
        connection = self.own.connection
        try:
            # The client's own Host, which it has signed.
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in HOP | {"content-length", "expect"}:
                    connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            # It sends head and body apart, and waits for an acknowledgement between them: 40 ms without TCP_QUICKACK.
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException):
            connection.close()
            self.own.connection = None
            raise
        headers = [(name, value) for name, value in answer.getheaders() if name.lower() not in HOP]
        return answer.status, headers, content


if __name__ == "__main__":
    Serial.server_port = int(sys.argv[2])
    serve(int(sys.argv[1]), Serial)
