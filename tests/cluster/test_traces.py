"""A trace of messages that crosses the processes of an experiment, as a collector gets it."""

import gzip
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

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


class OtlpReceiver(ThreadingHTTPServer):
    """A receiver of spans over OTLP/HTTP, on a free port; it reads requests with OpenTelemetry's own messages."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Receiving)
        self.url, self.spans = f"http://127.0.0.1:{self.server_port}", []

    def of(self, name):
        return [span for span in self.spans if span.name == name]


class Receiving(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        body = gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body
        assert self.path == "/v1/traces"
        self.server.spans += read(ExportTraceServiceRequest.FromString(body))
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.end_headers()
        self.wfile.write(ExportTraceServiceResponse().SerializeToString())

    def log_message(self, *_):
        pass


def read(request):
    """Yield the spans of a request, with the pid of their process and the messager that they name."""
    for resource in request.resource_spans:
        facts = {each.key: each.value for each in resource.resource.attributes}
        for span in (span for scope in resource.scope_spans for span in scope.spans):
            yield SimpleNamespace(
                name=span.name,
                trace=span.trace_id,
                span=span.span_id,
                parent=span.parent_span_id,
                begin=span.start_time_unix_nano,
                end=span.end_time_unix_nano,
                process=facts["process.pid"].int_value,
                client="".join(e.value.string_value for e in span.attributes if e.key == "messaging.client.id"),
            )


@pytest.fixture
def collector():
    with OtlpReceiver() as receiver:
        thread = threading.Thread(target=receiver.serve_forever)
        thread.start()
        yield receiver
        receiver.shutdown()
        thread.join()


@pytest.mark.long
def test_a_trace_crosses_all_processes_of_an_experiment(collector):
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
    [send], [accept], [write], [fetch], [handle] = map(collector.of, ("send", "accept", "write", "fetch", "handle"))
    asked, judged = sorted(collector.of("judge"), key=lambda span: span.client, reverse=True)
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
