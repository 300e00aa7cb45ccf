"""A stand-in for a collector of spans: it takes what exporters send over OTLP/HTTP, and forgets it."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def span_sink() -> Iterator[None]:
    """Take the spans of all processes that start meanwhile."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = f"http://127.0.0.1:{server.server_port}"
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before
        server.shutdown()
        thread.join()
        server.server_close()
