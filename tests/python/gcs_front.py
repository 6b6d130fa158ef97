"""Google's storage for the tests: the XML interface that the `object_store` crate uses, in front of gcp-storage-emulator, which
speaks JSON.

    python gcs_front.py PORT BUCKET

Only a translation: the emulator keeps the objects, their metadata and their generations. What it does not do (2026.7.19) is done
here: it looks at no precondition whatever (`ifGenerationMatch` and its like are not in its source), lists everything as one page,
has no suffix ranges, and gives neither tag nor generation with an object's bytes. So the requests for one key take turns, and
generations are compared in that turn. The parts of a multipart upload, which JSON does not have, wait here for its end.
"""
import http.client
import json
import re
import socket
import sys
import uuid
from datetime import datetime
from email.utils import format_datetime
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from gcp_storage_emulator.server import create_server

from front import Handler, Turns, serve

PAGE = 1000  # entries of a listing, as Google's are
META = "x-goog-meta-"
GENERATION_MATCH = "x-goog-if-generation-match"


class Refused(Exception):
    """An unsuccessful answer."""

    def __init__(self, status: int, code: str):
        super().__init__(code)
        self.status, self.code = status, code


class Emulator:
    """gcp-storage-emulator's JSON interface."""

    def __init__(self, bucket: str):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self.port = listener.getsockname()[1]
        self.server = create_server("127.0.0.1", self.port, in_memory=True, default_bucket=bucket)
        # It writes a list of all objects after each request, in memory too, where it is never read.
        self.server._storage._write_config_to_file = lambda: None
        self.server.start()
        # Otherwise it keeps deleted objects for a week.
        policy = json.dumps({"softDeletePolicy": {"retentionDurationSeconds": "0"}}).encode()
        self.ask("PATCH", f"/storage/v1/b/{bucket}", policy, {"Content-Type": "application/json"})

    def ask(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None):
        """Status, headers and body. It closes each connection after the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.status == 404:
            raise Refused(404, "NoSuchKey")
        if answer.status >= 300:
            raise Refused(answer.status, f"the emulator answers {content!r}")
        return answer.headers, content

    def about(self, bucket: str, key: str) -> dict:
        return json.loads(self.ask("GET", object_path(bucket, key))[1])

    def bytes(self, bucket: str, key: str) -> bytes:
        return self.ask("GET", object_path(bucket, key) + "?alt=media")[1]

    def put(self, bucket: str, key: str, body: bytes, about: dict) -> dict:
        """As a resumable upload of one piece, the only one that takes metadata and bytes that are not text."""
        path = f"/upload/storage/v1/b/{bucket}/o?uploadType=resumable&name={quote(key, safe='')}"
        headers = {"Content-Type": "application/json", "X-Upload-Content-Type": about.pop("contentType")}
        location = self.ask("POST", path, json.dumps(about).encode(), headers)[0]["Location"]
        parts = urlsplit(location)
        octets = {"Content-Type": "application/octet-stream"}
        return json.loads(self.ask("PUT", f"{parts.path}?{parts.query}", body, octets)[1])

    def copy(self, source: tuple[str, str], bucket: str, key: str) -> dict:
        path = f"{object_path(*source)}/copyTo/b/{bucket}/o/{quote(key, safe='')}"
        return json.loads(self.ask("POST", path)[1])

    def delete(self, bucket: str, key: str) -> None:
        self.ask("DELETE", object_path(bucket, key))

    def list(self, bucket: str, prefix: str, delimiter: str) -> dict:
        path = f"/storage/v1/b/{bucket}/o?prefix={quote(prefix, safe='')}"
        return json.loads(self.ask("GET", path + (f"&delimiter={quote(delimiter, safe='')}" if delimiter else ""))[1])


def object_path(bucket: str, key: str) -> str:
    return f"/storage/v1/b/{bucket}/o/{quote(key, safe='')}"


def tag(about: dict) -> str:
    return f'"{about["etag"]}"'


def xml(name: str, content: str) -> bytes:
    return f"<?xml version='1.0' encoding='UTF-8'?><{name}>{content}</{name}>".encode()


def chosen(words: str | None, size: int) -> tuple[int, int] | None:
    """The first byte and the one after the last that a Range header names; none without one."""
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", words or "")
    if not found or found.group(0) == "bytes=-":
        return None
    first, last = found.groups()
    if not first:
        begin, end = max(size - int(last), 0), size
    else:
        begin, end = int(first), min(int(last) + 1, size) if last else size
    if begin >= size or begin >= end:
        raise Refused(416, "InvalidRange")
    return begin, end


class Google(Handler):
    emulator: Emulator
    turns = Turns()
    uploads: dict[str, tuple[dict, dict[int, bytes]]] = {}  # by id: what is known of the object, and its parts

    def reply(self, body):
        parts = urlsplit(self.path)
        bucket, _, key = (unquote(part) for part in parts.path.lstrip("/").partition("/"))
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        try:
            if not key:
                return self.listing(bucket, query)
            with self.turns.of(f"{bucket}/{key}"):
                return self.of_object(bucket, key, query, body)
        except Refused as refused:
            return refused.status, [("Content-Type", "application/xml")], xml("Error", f"<Code>{escape(refused.code)}</Code>")

    def of_object(self, bucket: str, key: str, query: dict[str, str], body: bytes):
        if "uploads" in query or "uploadId" in query:
            return self.multipart(bucket, key, query, body)
        if self.command in ("GET", "HEAD"):
            return self.read(bucket, key, query)
        if self.command == "DELETE":
            self.emulator.delete(bucket, key)
            return 204, [], b""
        if self.command != "PUT":
            raise Refused(501, "NotImplemented")
        self.compare(bucket, key)
        if source := self.headers.get("x-goog-copy-source"):
            from_bucket, _, from_key = unquote(source).lstrip("/").partition("/")
            return self.written(self.emulator.copy((from_bucket, from_key), bucket, key), xml("CopyObjectResult", ""))
        return self.written(self.emulator.put(bucket, key, body, self.described()))

    def compare(self, bucket: str, key: str) -> None:
        """The precondition, which the emulator does not know. Zero stands for no object."""
        if (wanted := self.headers.get(GENERATION_MATCH)) is None:
            return
        try:
            there = self.emulator.about(bucket, key)["generation"]
        except Refused as refused:
            if refused.status != 404:
                raise
            there = "0"
        if there != wanted:
            raise Refused(412, "PreconditionFailed")

    def described(self) -> dict:
        """What the request says of the object that it brings."""
        own = {name.lower()[len(META):]: value for name, value in self.headers.items() if name.lower().startswith(META)}
        return {"contentType": self.headers.get("Content-Type", "application/octet-stream"), "metadata": own}

    def written(self, about: dict, body: bytes = b""):
        return 200, [("ETag", tag(about)), ("x-goog-generation", about["generation"])], body

    def read(self, bucket: str, key: str, query: dict[str, str]):
        about = self.emulator.about(bucket, key)
        if query.get("generation", about["generation"]) != about["generation"]:
            raise Refused(404, "NoSuchKey")
        if self.headers.get("If-Match", tag(about)) not in (tag(about), "*"):
            raise Refused(412, "PreconditionFailed")
        if self.headers.get("If-None-Match") in (tag(about), "*"):
            raise Refused(304, "NotModified")
        size = int(about["size"])
        changed = datetime.fromisoformat(about["updated"].replace("Z", "+00:00"))
        headers = [("ETag", tag(about)), ("x-goog-generation", about["generation"]), ("Content-Type", about["contentType"]),
                   ("Last-Modified", format_datetime(changed, usegmt=True)),
                   *((META + name, value) for name, value in (about.get("metadata") or {}).items())]
        if self.command == "HEAD":
            return 200, [*headers, ("Content-Length", str(size))], b""
        whole = self.emulator.bytes(bucket, key)
        if part := chosen(self.headers.get("Range"), size):
            begin, end = part
            return 206, [*headers, ("Content-Range", f"bytes {begin}-{end - 1}/{size}")], whole[begin:end]
        return 200, headers, whole

    def multipart(self, bucket: str, key: str, query: dict[str, str], body: bytes):
        if "uploads" in query:
            number = uuid.uuid4().hex
            self.uploads[number] = (self.described(), {})
            return 200, [], xml("InitiateMultipartUploadResult", f"<UploadId>{number}</UploadId>")
        if (upload := self.uploads.get(query["uploadId"])) is None:
            raise Refused(404, "NoSuchUpload")
        about, parts = upload
        if self.command == "PUT":
            number = int(query["partNumber"])
            parts[number] = body
            return 200, [("ETag", f'"{number}"')], b""
        del self.uploads[query["uploadId"]]
        if self.command == "DELETE":
            return 204, [], b""
        wanted = [int(found.text) for found in ElementTree.fromstring(body).iter("PartNumber")]
        done = self.emulator.put(bucket, key, b"".join(parts[number] for number in wanted), about)
        return self.written(done, xml("CompleteMultipartUploadResult", f"<ETag>{escape(tag(done))}</ETag>"))

    def listing(self, bucket: str, query: dict[str, str]):
        if self.command != "GET" or query.get("list-type") != "2":
            raise Refused(501, "NotImplemented")
        prefix, most = query.get("prefix", ""), int(query.get("max-keys", PAGE))
        found = self.emulator.list(bucket, prefix, query.get("delimiter", ""))
        after = max(query.get("continuation-token", ""), query.get("start-after", ""))
        entries = [(about["name"], about) for about in found.get("items", [])]
        entries += [(folder, None) for folder in found.get("prefixes", [])]
        entries = sorted((entry for entry in entries if entry[0] > after), key=lambda entry: entry[0])
        page, more = entries[:most], len(entries) > most
        words = []
        for name, about in page:
            if about is None:
                words.append(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>")
            else:
                words.append(f"<Contents><Key>{escape(name)}</Key><Generation>{about['generation']}</Generation>"
                             f"<LastModified>{about['updated']}</LastModified><ETag>{escape(tag(about))}</ETag>"
                             f"<Size>{about['size']}</Size></Contents>")
        words.append(f"<IsTruncated>{str(more).lower()}</IsTruncated>")
        if more:
            words.append(f"<NextContinuationToken>{escape(page[-1][0])}</NextContinuationToken>")
        return 200, [("Content-Type", "application/xml; charset=UTF-8")], xml("ListBucketResult", "".join(words))


if __name__ == "__main__":
    Google.emulator = Emulator(sys.argv[2])
    serve(int(sys.argv[1]), Google)
