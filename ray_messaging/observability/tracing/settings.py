"""Settings of tracing."""

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path

from ray_messaging.errors import ConfigError
from ray_messaging.observability.tracing.untraced import UNTRACED, AnyTracer

logger = logging.getLogger(__name__)

_FLUSH_S = 5.0


@dataclass(frozen=True)
class Tracing:
    """Settings of tracing by OpenTelemetry.

    A trace begins at a random share of the batches, and at a random share of the steps of each group. `sample` is this
    share, from 0 to 1. A batch is a number of messages that are sent together.

    A batch that is sent within a recorded span belongs to that span's trace, whatever `sample` is. `file` is the path
    of a file to which all processes of a node write their spans as lines of JSON. Without a file, spans go to the
    exporter that the environment variables of OpenTelemetry name.
    """

    sample: float = 0.001
    file: str | Path | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.sample, int | float) or not 0 <= self.sample <= 1:
            raise ConfigError(f"Tracing(sample={self.sample!r}) must be a share from 0 to 1: write Tracing(0.001)")
        if self.file is not None:
            # Ray's processes may have another working directory.
            object.__setattr__(self, "file", str(Path(self.file).absolute()))


def check_tracing(tracing: object) -> None:
    """Raise ConfigError unless `tracing` is None, or a Tracing whose file can be written.

    Raises: ImportError if OpenTelemetry is not installed.
    """
    if tracing is None:
        return
    if not isinstance(tracing, Tracing):
        raise ConfigError(f"tracing={tracing!r} is not a Tracing object: write tracing=Tracing(sample=0.001)")
    try:
        import opentelemetry.sdk.trace  # noqa: F401, PLC0415 - an extra
    except ImportError as error:
        raise ImportError("tracing needs OpenTelemetry: pip install 'ray-messaging[otel]'") from error
    if tracing.file is not None:
        from ray_messaging.observability.tracing.tracer import tracer_provider  # noqa: PLC0415 - an extra

        tracer_provider(tracing.file)


def tracer_of(tracing: Tracing | None, exp_id: str, name: str) -> AnyTracer:
    """Return the tracer of a messager, handle or interceptor.

    Raises: ConfigError if `tracing` is no Tracing, or its file cannot be written; ImportError without OpenTelemetry.
    """
    if tracing is None:
        return UNTRACED
    check_tracing(tracing)
    from ray_messaging.observability.tracing.tracer import Tracer  # noqa: PLC0415 - an extra

    return Tracer(tracing, exp_id, name)


async def flush_spans(tracing: Tracing | None) -> None:
    """Export the spans that have ended, if there is tracing. If this takes more than 5 s, log a warning and return."""
    if tracing is None:
        return
    from ray_messaging.observability.tracing.tracer import flush  # noqa: PLC0415 - an extra

    try:
        async with asyncio.timeout(_FLUSH_S):
            await asyncio.to_thread(flush, tracing.file)
    except TimeoutError:
        logger.warning("the last spans were not exported within %g s: does the collector run?", _FLUSH_S)
