"""Metrics of an actor, reported to Ray, which shows them in its dashboard and to Prometheus."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ray.util import metrics

from ray_messaging.common.task_health import TaskHealth
from ray_messaging.observability.metrics.families import Family, Labels, named_values

logger = logging.getLogger(__name__)

EVERY_S = 5.0
SERVER_S = 15.0  # seconds between two reads of the server's metrics, each of which opens a connection
_PREFIX = "messaging_"  # Ray puts ray_ before this prefix


class RayMetrics:
    """Reporter of metrics to Ray, every few seconds: the growth of counters, and the values of gauges.

    The buckets of a histogram are reported as gauges, because Ray would append `_total` to their names if they were
    counters, and because Ray's histograms need each single value.
    """

    def __init__(
        self,
        families: Callable[[], list[Family] | Awaitable[list[Family]]],
        labels: Labels,
        every_s: float | None = None,
    ) -> None:
        self._families = families
        self._every_s = every_s
        self._labels = labels
        self._told: dict[tuple[str, Labels], float] = {}
        self._instruments: dict[str, metrics.Counter | metrics.Gauge] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self, ended: Callable[[], bool] = lambda: False) -> None:
        """Begin to report to Ray. This ends when `stop` is called, or when `ended` returns True."""
        self._task = asyncio.create_task(self._run(ended), name="ray_messaging metrics")

    async def _run(self, ended: Callable[[], bool]) -> None:
        going = True
        while going:
            going = not ended()
            await self._tell()
            if going:
                await asyncio.sleep(EVERY_S if self._every_s is None else self._every_s)

    async def _tell(self) -> None:
        try:
            found = self._families()
            self.tell(found if isinstance(found, list) else await found)
        except Exception:  # the next report may succeed, and an error of metrics must not stop messages
            logger.exception("the metrics of %s could not be reported to Ray", dict(self._labels))

    def tell(self, families: list[Family]) -> None:
        """Report these metrics to Ray once."""
        for family in families:
            kind = metrics.Counter if family.kind == "counter" else metrics.Gauge
            for name, labels, value in named_values(family):
                tags = dict((*self._labels, *labels))
                if name not in self._instruments:
                    self._instruments[name] = kind(_PREFIX + name, description=family.help, tag_keys=tuple(tags))
                instrument, grown = self._instruments[name], value - self._told.get((name, labels), 0.0)
                if isinstance(instrument, metrics.Gauge):
                    instrument.set(value, tags)
                elif grown > 0:  # Ray refuses to add 0 to a counter
                    instrument.inc(grown, tags)
                    self._told[name, labels] = value

    def health(self) -> list[TaskHealth]:
        """Return the health of the task that reports, or an empty list before `start` and after `stop`."""
        return [] if self._task is None else [TaskHealth("metrics", not self._task.done(), busy=False, age_s=0.0)]

    async def stop(self, *, tell: bool = True) -> None:
        """Stop reporting. With `tell`, report a last time.

        Pass tell=False if the metrics are read from another process, which may not answer.
        """
        if self._task is not None:
            self._task.cancel()
            self._task = None
            if tell:
                await self._tell()
