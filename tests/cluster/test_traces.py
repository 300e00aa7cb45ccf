"""A trace of messages that crosses the processes of an experiment, as a collector gets it."""

import gzip
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from support.cluster import wait_for

SOCIETY = """
import ray
from ray_messaging import Messaging, Tracing, rules

@ray.remote
def handle(east):
    with east.fetch_messages(timeout=60) as messages:
        return len(messages)

ray.init(address="local", num_cpus=1, include_dashboard=False, object_store_memory=80 * 2**20)
with Messaging.start("town", rules=[rules.Pattern(["bad"])], tracing=Tracing(sample=1.0)) as messaging:
    west, east = (messaging.create_group(name, agents) for name, agents in (("west", [1, 2]), ("east", [11])))
    west.send_columns([1, 2], [11, 11], [{"content": "hello"}, {"content": "hi"}])
    assert ray.get(handle.remote(east)) == 2
    input()
"""


class ReceivedSpan(NamedTuple):
    """A span as it was exported; `process` is the pid of its process."""

    name: str
    trace: bytes
    span: bytes
    parent: bytes
    process: int
    client: str
    begin: int
    end: int


class OtlpReceiver:
    """A receiver of spans over OTLP/HTTP, on a free port; it reads requests with OpenTelemetry's own messages."""

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
                    facts["process.pid"].int_value,
                    said["messaging.client.id"].string_value if "messaging.client.id" in said else "",
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                )


STAGES = ["send", "accept", "judge", "judge", "write", "fetch", "handle"]


@pytest.mark.long
def test_a_trace_crosses_all_processes_of_an_experiment():
    with OtlpReceiver() as collector:
        mine = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_ADDRESS", "OTEL_"))}
        mine |= {"PYTHONPATH": str(Path(__file__).parents[2]), "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
        mine["OTEL_BSP_SCHEDULE_DELAY"] = "200"  # ms: Ray ends the worker of a task without a last export
        with subprocess.Popen([sys.executable, "-c", SOCIETY], env=mine, stdin=subprocess.PIPE) as society:
            try:
                wait_for(lambda: collector.of("handle") or society.poll() is not None, "the last span", timeout=150)
                society.communicate(b"\n", timeout=60)
            finally:
                society.kill()
        assert society.returncode == 0
        stages = {name: collector.of(name) for name in STAGES}
    [send], [accept], [write], [fetch] = (stages[name] for name in ("send", "accept", "write", "fetch"))
    asked, judged = sorted(stages["judge"], key=lambda span: span.client, reverse=True)
    [handle] = stages["handle"]
    assert {span.trace for span in collector.spans} == {send.trace}
    assert send.parent == b""
    assert accept.parent == send.span
    assert asked.parent == write.parent == accept.span
    assert judged.parent == asked.span
    assert fetch.parent == write.span
    assert handle.parent == fetch.span
    assert (asked.client, judged.client, fetch.client) == ("west", "interceptor", "east")
    assert len({span.process for span in (send, accept, judged, fetch, handle)}) == 5  # driver, actors, the Ray task
    assert accept.process == asked.process == write.process
    assert asked.begin <= judged.begin <= judged.end <= asked.end <= write.end <= handle.begin <= handle.end
