"""A receiver of spans over OTLP/HTTP, which reads requests with OpenTelemetry's own messages."""

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


class ReceivedSpan(NamedTuple):
    """A span as it was exported; `process` is the pid of its process."""

    name: str
    trace: bytes
    span: bytes
    parent: bytes
    links: list
    process: int
    client: str
    begin: int
    end: int


class OtlpReceiver:
    """The receiver, on a free port of this machine; `url` is for OTEL_EXPORTER_OTLP_ENDPOINT."""

    def __init__(self):
        self.spans = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                body = gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body
                assert self.path == "/v1/traces"
                receiver.spans += read(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.end_headers()
                self.wfile.write(ExportTraceServiceResponse().SerializeToString())

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def of(self, name):
        return [span for span in self.spans if span.name == name]


def read(request):
    """Yield the spans of a request."""
    for resource in request.resource_spans:
        facts = {each.key: each.value for each in resource.resource.attributes}
        for scope in resource.scope_spans:
            for span in scope.spans:
                said = {each.key: each.value for each in span.attributes}
                yield ReceivedSpan(
                    span.name,
                    span.trace_id,
                    span.span_id,
                    span.parent_span_id,
                    [link.span_id for link in span.links],
                    facts["process.pid"].int_value,
                    said["messaging.client.id"].string_value if "messaging.client.id" in said else "",
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                )
