"""The tracer of one messager, handle or interceptor, the spans of a batch, and OpenTelemetry's provider of tracers.

The provider of a process writes spans to a file, or belongs to the program, or is made from environment variables.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from random import Random
from struct import Struct
from time import time

import numpy as np
from opentelemetry import trace
from opentelemetry.context import Context, get_current
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    get_current_span,
    set_span_in_context,
    use_span,
)

from ray_messaging.addressing.channels import AgentId
from ray_messaging.errors import ConfigError, MessagingError
from ray_messaging.message import Message
from ray_messaging.messages import Slice
from ray_messaging.model.batch import Batch, TracePoint
from ray_messaging.model.call_usage import CallMeter, CallUsage
from ray_messaging.model.fates import NAMES
from ray_messaging.observability.tracing.settings import Tracing
from ray_messaging.observability.tracing.untraced import UNTRACED, AnySpans
from ray_messaging.receipt import Outcome

_GROUP = "opentelemetry_traces_exporter"  # the group of entry points in which packages register exporters of spans
_PACKED = Struct(">QQQB")
_SYSTEM = "ray_messaging"
_random = Random().random  # noqa: S311 - no secret. A model may use the process's own generator


# -- the provider -----------------------------------------------------------------------------------------------------


class SpanFile(SpanExporter):
    """Exporter that appends spans to a file, each as a line in the form of OpenTelemetry's `to_json`."""

    def __init__(self, path: str | Path) -> None:
        """Open the file, and make its folder; raise ConfigError if that fails."""
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            self._file = Path(path).open("ab", buffering=0)  # noqa: SIM115 - open as long as the process runs
        except OSError as error:
            # mkdir says "File exists" if a file has the name of the folder
            why = f"{error.filename} is not a folder" if isinstance(error, FileExistsError) else error.strerror
            raise ConfigError(f"cannot write spans to {str(path)!r} ({why}): choose another file") from error

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Append spans in a single write, so that other processes cannot write spans between their bytes."""
        lines = "".join(span.to_json(indent=None) + "\n" for span in spans).encode()
        if self._file.write(lines) != len(lines):
            raise OSError(f"the disk of {str(self._file.name)!r} is full: not all spans were written")
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Close the file."""
        self._file.close()


def tracer_provider(file: str | Path | None = None) -> trace.TracerProvider:
    """Return a provider of tracers that writes spans to a file.

    Without a file, return the provider of the program or of Ray's tracing hook. If there is no such provider, make one
    from the OTEL_* variables.

    Raises: ConfigError if the file cannot be written, or the variables name an exporter that is not installed.
    """
    if file is not None:
        return _of_file(file)
    found = trace.get_tracer_provider()
    return _by_environment() if isinstance(found, trace.ProxyTracerProvider) else found


def flush(file: str | Path | None = None) -> None:
    """Export all spans that have ended.

    OpenTelemetry exports the last spans only when a process exits, but Ray kills the processes of actors.

    Args: `file` is the file to which the spans are written, as for `tracer_provider`.
    """
    found = trace.get_tracer_provider()
    if file is not None:
        found = _of_file(file)
    elif isinstance(found, trace.ProxyTracerProvider) and _by_environment.cache_info().currsize:
        found = _by_environment()
    if isinstance(found, TracerProvider):
        found.force_flush()


@cache
def _of_file(file: str | Path) -> TracerProvider:
    return _exported_by([SpanFile(file)])


@cache
def _by_environment() -> TracerProvider:
    """Build the provider as `opentelemetry-instrument` does.

    It does not become the global provider, because the program may set its own.
    """
    return _exported_by(_exporters())


def _exported_by(exporters: Iterable[SpanExporter]) -> TracerProvider:
    named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    facts = {} if named else {"service.name": "ray_messaging"}
    provider = TracerProvider(resource=Resource.create({**facts, "process.pid": os.getpid()}))
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _exporters() -> Iterator[SpanExporter]:
    for name in os.environ.get("OTEL_TRACES_EXPORTER", "otlp").split(","):
        wanted = name.strip()
        if wanted == "otlp":
            variable = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
            protocol = variable or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
            wanted = "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"
        if wanted in {"", "none"}:
            continue
        found = [*entry_points(group=_GROUP, name=wanted)]
        if not found:
            raise ConfigError(
                f"tracing exports spans by {wanted!r}, which is not installed: pip install "
                "opentelemetry-exporter-otlp-proto-http (or -grpc, with OTEL_EXPORTER_OTLP_PROTOCOL=grpc), name "
                "another exporter in OTEL_TRACES_EXPORTER, or write Tracing(file='spans.jsonl')"
            )
        yield found[0].load()()


# -- contexts, as frames carry them -----------------------------------------------------------------------------------


def packed(span: Span) -> bytes:
    """Return the context of a span as bytes: the trace's id, the span's id, and the flags."""
    context = span.get_span_context()
    trace_id = context.trace_id
    return _PACKED.pack(trace_id >> 64, trace_id & (2**64 - 1), context.span_id, context.trace_flags)


def unpacked(data: bytes) -> Context:
    """Return a context with the parent span that `packed` has encoded; if the span's ids are 0, without a parent."""
    high, low, span_id, flags = _PACKED.unpack(data)
    found = SpanContext(high << 64 | low, span_id, is_remote=True, trace_flags=TraceFlags(flags))
    return set_span_in_context(NonRecordingSpan(found), Context())


# -- spans ------------------------------------------------------------------------------------------------------------


class SentBatch:
    """The spans of one batch: accept (it collects messages), judge (it waits for verdicts), write (it is sent).

    The judge and write spans are children of the accept span. A batch that is judged again has another judge span.
    """

    __slots__ = ("_accept", "_context", "_judge", "_tracer", "_write")

    def __init__(self, tracer: "Tracer", accept: Span) -> None:
        self._tracer = tracer
        self._accept = accept
        self._context = set_span_in_context(accept, Context())
        self._judge: Span | None = None
        self._write: Span | None = None

    def taken(self, batch: Batch) -> None:
        """End the accept span: the batch collects no more messages."""
        self._accept.set_attribute("messaging.batch.message_count", batch.rows)
        self._accept.end()

    def asking(self, batch: Batch) -> None:
        """Start a judge span when verdicts are asked for. The request carries the span's context."""
        self._judge = self._tracer.start("judge", self._context, SpanKind.CLIENT, messages=batch.rows)
        batch.trace = TracePoint(packed(self._judge), time())

    def judged(self, blocked: Sized, deferred: Sized, route: str) -> None:
        """End the judge span, and record in it how many messages were blocked and deferred, and the `route`.

        `route` is the kind of access to the rules, such as "lane" for a socket of the interceptor.
        """
        assert self._judge is not None
        counts = {"ray_messaging.blocked": len(blocked), "ray_messaging.deferred": len(deferred)}
        self._judge.set_attributes({**counts, "ray_messaging.route": route})
        self._judge.end()
        self._judge = None

    def writing(self, outgoing: Batch) -> None:
        """Start the write span when frames of the batch are made. The frames carry the span's context."""
        if self._write is None:
            self._write = self._tracer.start("write", self._context, SpanKind.PRODUCER, messages=outgoing.rows)
        outgoing.trace = TracePoint(packed(self._write), 0.0)

    def done(self, outcome: Outcome, errors: Mapping[int, MessagingError]) -> None:
        """End the last span of the batch, and record in it the number of messages by fate, and the first error."""
        last = self._judge or self._write
        if last is None:
            return
        counts = zip(NAMES, np.bincount(outcome.fates, minlength=len(NAMES)).tolist(), strict=True)
        last.set_attributes({f"ray_messaging.{fate}": count for fate, count in counts if count})
        error = next(iter(errors.values()), None)
        if error is not None:
            last.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
        last.end()


class Tracer:
    """Maker of spans for one messager, handle or interceptor, which is called `name`.

    Only a batch that belongs to a trace gets spans. This is decided when the batch's first message is accepted.
    """

    def __init__(self, tracing: Tracing, exp_id: str, name: str) -> None:
        self._tracer = tracer_provider(tracing.file).get_tracer(_SYSTEM)
        self._sample = tracing.sample
        self._held: list[Slice] = []  # traced messages that the next fetch commits
        self._facts = {"messaging.system": _SYSTEM, "messaging.client.id": name, "ray_messaging.experiment": exp_id}

    def start(self, name: str, parent: Context, kind: SpanKind, since: float | None = None, messages: int = 0) -> Span:
        """Start a span. `since` is its beginning in unix seconds (None: now).

        Args: `messages` is the number of messages that the span records (0: no number is recorded).
        """
        begin = None if since is None else int(since * 1e9)
        facts = self._facts | ({"messaging.batch.message_count": messages} if messages else {})
        return self._tracer.start_span(name, parent, kind, facts, start_time=begin, links=_links(parent))

    # -- sending --------------------------------------------------------------------------------------------------

    def open(self) -> AnySpans:
        """Return an object that records the spans of a new batch, or does nothing if the batch is not traced."""
        parent = self._parent()
        return UNTRACED if parent is None else self._accept(parent, None)

    def follow(self, point: TracePoint | None) -> AnySpans:
        """Return the spans of a batch that another process has begun; `point` is None if the batch is not traced."""
        return UNTRACED if point is None else self._accept(unpacked(point.sent), point.since)

    def _accept(self, parent: Context, since: float | None) -> AnySpans:
        accept = self.start("accept", parent, SpanKind.PRODUCER, since)
        # OpenTelemetry's sampler may have decided not to record this span.
        return SentBatch(self, accept) if accept.is_recording() else UNTRACED

    def _parent(self) -> Context | None:
        """Return the context in which a batch, call or step that begins now is traced; None: it is not traced.

        The context is that of the caller's span, or an empty context if the batch, call or step is sampled.

        The current span of a background task is the span in which the task was started, such as the span of an actor's
        constructor. That span may have ended, and a span that has ended is not used as a parent.
        """
        current = get_current_span()
        context = current.get_span_context()
        if context.is_valid and not context.trace_flags.sampled:
            return None
        if current.is_recording() or context.is_remote:
            return get_current()
        return Context() if _random() < self._sample else None

    @contextmanager
    def sending(self, batches: Sequence[Batch]) -> Iterator[None]:
        """Trace a call that sends batches through the actor of a group, if the call is sampled."""
        parent = self._parent()
        if parent is None:
            yield
            return
        span = self.start("send", parent, SpanKind.PRODUCER, messages=sum(batch.rows for batch in batches))
        if span.is_recording():
            for batch in batches:
                batch.trace = TracePoint(packed(span), time())
        with use_span(span, end_on_exit=True):
            yield

    @contextmanager
    def judging(self, batch: Batch) -> Iterator[None]:
        """Trace the work of rules on a batch, if the batch is traced.

        Spans that rules make become children of the judge span.
        """
        if batch.trace is None:
            yield
            return
        span = self.start("judge", unpacked(batch.trace.sent), SpanKind.SERVER, messages=batch.rows)
        with use_span(span, end_on_exit=True):
            yield

    # -- steps ----------------------------------------------------------------------------------------------------

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Trace the work of a group's model in one step, if the step is sampled."""
        parent = self._parent()
        if parent is None:
            yield
            return
        span = self.start("step", parent, SpanKind.INTERNAL)
        span.set_attribute("ray_messaging.step", number)
        with use_span(span, end_on_exit=True):
            yield

    @contextmanager
    def calling(self, function: str, agent: AgentId, meter: CallMeter) -> Iterator[None]:
        """Trace one try of a call by `me.remember`, if the step is traced.

        If the call reports its usage, the span gets the attributes of OpenTelemetry's conventions for generative AI.
        """
        if not get_current_span().is_recording():
            yield
            return
        facts = {"ray_messaging.function": function, "gen_ai.agent.id": str(agent)}
        with self._tracer.start_as_current_span(f"remember {function}", None, SpanKind.CLIENT, facts) as span:
            try:
                yield
            except BaseException as error:
                span.set_attribute("error.type", type(error).__qualname__)
                raise
            finally:
                if meter.used is not None:
                    _set_usage(span, meter.used)

    # -- receiving ------------------------------------------------------------------------------------------------

    def fetched(self, slices: Iterable[Slice]) -> None:
        """Add spans for the time from the arrival of traced messages in this process until the fetch that ends now."""
        for part in slices:
            point = part.batch.trace
            if point is not None:
                parent, rows = unpacked(point.sent), part.high - part.low
                span = self.start("fetch", parent, SpanKind.CONSUMER, point.since, rows)
                span.end()
                part.batch.trace = TracePoint(point.sent, time(), packed(span))

    def hold(self, slices: Iterable[Slice]) -> None:
        """Remember traced messages that a fetch has returned, and that the next fetch will commit."""
        self._held = [part for part in slices if part.batch.trace is not None]

    def committed(self, slices: Callable[[], Iterable[Slice]] | None = None) -> None:
        """Add spans for the handling of messages, which ends now with the messages' commit.

        Args: `slices` returns the messages; None: the messages that `hold` has remembered.
        """
        if slices is None:
            found, self._held = self._held, []
        else:
            found = [*slices()]
        for part in found:
            point = part.batch.trace
            if point is not None:
                self._handle(point, part.high - part.low, point.since).end()

    @contextmanager
    def handling(self, message: Message) -> Iterator[None]:
        """Trace the handler of one message, if the message is traced.

        The spans of what the handler does, and of what it sends, become children of the handle span.
        """
        point = message._batch.trace
        if point is None:
            yield
            return
        with use_span(self._handle(point, 1, None), end_on_exit=True):
            yield

    def _handle(self, point: TracePoint, messages: int, since: float | None) -> Span:
        return self.start("handle", unpacked(point.fetched or point.sent), SpanKind.CONSUMER, since, messages)


def _set_usage(span: Span, used: CallUsage) -> None:
    span.set_attribute("gen_ai.operation.name", "chat")
    span.set_attribute("gen_ai.usage.input_tokens", used.input)
    span.set_attribute("gen_ai.usage.output_tokens", used.output)
    if used.cached:
        span.set_attribute("gen_ai.usage.cache_read.input_tokens", used.cached)
    if used.model is not None:
        span.update_name(f"chat {used.model}")
        span.set_attribute("gen_ai.request.model", used.model)


def _links(parent: Context) -> list[Link]:
    """Return a list with a link to the current span, such as the span of the Ray task that fetches.

    Return [] if the current span is the parent, or is not recorded.
    """
    current, known = get_current_span(), get_current_span(parent).get_span_context()
    context = current.get_span_context()
    return [Link(context)] if current.is_recording() and context.span_id != known.span_id else []
