"""A server that speaks as much of S3 as pyarrow's file system asks for. It keeps its objects in memory.

As a real store does, it shows an object when all of it has come, and then whole. What it was never asked for in these
tests (versions, signatures) it does not know. `moto_server` of the package moto can stand in its place.
"""

import re
import threading
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from uuid import uuid4
from xml.sax.saxutils import escape, unescape

BUCKET = "bucket"
_KEY = "somebody"


class ObjectStore:
    """A server with one bucket; `environment` is what processes need to reach it. `objects` are by key."""

    def __init__(self):
        self.objects, self.uploads, self.lock = {}, {}, threading.Lock()
        self.refused = None  # a pattern: writes of keys that it matches fail

    def __enter__(self):
        store = self

        class Handler(_Handler):
            objects, uploads, lock = store.objects, store.uploads, store.lock
            of = store

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def environment(self):
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._server.server_port}",
            "AWS_ACCESS_KEY_ID": _KEY,
            "AWS_SECRET_ACCESS_KEY": "a secret of the tests",
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def _serve(self):
        split = urlsplit(self.path)
        bucket, _, key = unquote(split.path).lstrip("/").partition("/")
        query = {name: values[0] for name, values in parse_qs(split.query, keep_blank_values=True).items()}
        body = self._body()
        if f"Credential={_KEY}/" not in self.headers.get("Authorization", ""):
            self._fail(403, "AccessDenied")
        elif bucket != BUCKET:
            self._fail(404, "NoSuchBucket")
        elif not key:
            self._bucket(query, body)
        elif self.command in {"GET", "HEAD"}:
            self._get(key)
        else:
            with self.lock:
                self._change(key, query, body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815 - http.server's names

    def _body(self):
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            sent = self._chunks()
        else:
            sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if "aws-chunked" not in self.headers.get("Content-Encoding", ""):
            return sent
        found, at = [], 0
        while size := int(re.match(rb"[0-9a-fA-F]+", sent[at:])[0], 16):
            at = sent.index(b"\r\n", at) + 2
            found.append(sent[at : at + size])
            at += size + 2
        return b"".join(found)

    def _chunks(self):
        found = b""
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return found

    def _change(self, key, query, body):
        if self.of.refused is not None and re.search(self.of.refused, key):
            self._fail(403, "AccessDenied")
        elif self.command == "DELETE":
            self.uploads.pop(query.get("uploadId"), None)
            if "uploadId" not in query:
                self.objects.pop(key, None)
            self._answer(204)
        elif "uploads" in query:
            self.uploads[upload := uuid4().hex] = {}
            self._xml(f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>")
        elif "partNumber" in query:
            self.uploads[query["uploadId"]][int(query["partNumber"])] = body
            self._answer(200, ETag=_etag(body))
        elif "uploadId" in query:
            parts = self.uploads.pop(query["uploadId"])
            named = map(int, re.findall(rb"<PartNumber>(\d+)<", body))
            self.objects[key] = whole = b"".join(parts[number] for number in named)
            self._xml(f"<CompleteMultipartUploadResult><ETag>{_etag(whole)}</ETag></CompleteMultipartUploadResult>")
        elif "x-amz-copy-source" in self.headers:
            _, _, source = unquote(self.headers["x-amz-copy-source"]).lstrip("/").partition("/")
            self.objects[key] = self.objects[source]
            self._xml(f"<CopyObjectResult><ETag>{_etag(self.objects[key])}</ETag></CopyObjectResult>")
        else:
            self.objects[key] = body
            self._answer(200, ETag=_etag(body))

    def _get(self, key):
        data = self.objects.get(key)
        if data is None:
            self._fail(404, "NoSuchKey")
            return
        facts = {"ETag": _etag(data), "Last-Modified": "Sun, 29 Nov 2026 10:00:00 GMT", "Accept-Ranges": "bytes"}
        if found := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            first, last = int(found[1]), min(int(found[2] or len(data)), len(data) - 1)
            facts["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
            self._answer(206, data[first : last + 1], **facts)
        else:
            self._answer(200, data, **facts)

    def _bucket(self, query, body):
        if self.command == "POST":  # several objects are deleted
            with self.lock:
                for key in re.findall(rb"<Key>(.*?)</Key>", body):
                    self.objects.pop(unescape(key.decode(), {"&quot;": '"'}), None)
            self._xml("<DeleteResult></DeleteResult>")
        elif self.command == "GET":
            self._list(query.get("prefix", ""), query.get("delimiter"), int(query.get("max-keys", 1000)), query)
        else:
            self._answer(200)

    def _list(self, prefix, delimiter, most, query):
        found = {}
        for key, data in sorted(dict(self.objects).items()):
            if key.startswith(prefix):
                head, cut, _ = key.removeprefix(prefix).partition(delimiter) if delimiter else (key, "", "")
                found[prefix + head + cut if cut else key] = None if cut else data
        names = [name for name in found if name > query.get("continuation-token", "")]
        parts = ["<ListBucketResult>", f"<KeyCount>{len(names[:most])}</KeyCount>"]
        parts.append(f"<IsTruncated>{str(len(names) > most).lower()}</IsTruncated>")
        if len(names) > most:
            parts.append(f"<NextContinuationToken>{escape(names[most - 1])}</NextContinuationToken>")
        for name in names[:most]:
            if found[name] is None:
                parts.append(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>")
            else:
                size = f"<Size>{len(found[name])}</Size><LastModified>2026-11-29T10:00:00.000Z</LastModified>"
                parts.append(f"<Contents><Key>{escape(name)}</Key>{size}</Contents>")
        self._xml("".join([*parts, "</ListBucketResult>"]))

    def _xml(self, text, status=200):
        self._answer(status, f'<?xml version="1.0" encoding="UTF-8"?>{text}'.encode(), **{"Content-Type": "text/xml"})

    def _fail(self, status, code):
        self._xml(f"<Error><Code>{code}</Code><Message>{code}</Message></Error>", status)

    def _answer(self, status, data=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _etag(data):
    return f'"{md5(data, usedforsecurity=False).hexdigest()}"'
