"""Ray actor that writes the event log."""

import asyncio
import time
from typing import Any

import pyarrow as pa

from ray_messaging.cluster.actors.log_host import LogHost
from ray_messaging.cluster.actors.restarts import ActorStart, OfHost, worth_a_retry
from ray_messaging.cluster.handles.remote_log import Seen
from ray_messaging.cluster.ray_metrics import RayMetrics
from ray_messaging.cluster.spec import Experiment
from ray_messaging.common.process_tuning import tune_process
from ray_messaging.common.task_health import TaskHealth
from ray_messaging.errors import MessagingError
from ray_messaging.observability.health.findings import Disk, Report
from ray_messaging.observability.metrics.experiment_metrics import of_log
from ray_messaging.observability.metrics.families import Family

_LOST_REMEDY = "shut the experiment down, see why the server lost its data, and start again by on_existing='resume'"


of_host = OfHost[LogHost]()


class LogActor:
    """Ray actor that writes the event log and answers queries. Each of its calls can be repeated without harm."""

    async def __init__(self, experiment: Experiment, on_existing: str) -> None:  # type: ignore[misc]
        # The system's allocator is used, because Arrow's own allocator takes 50% more memory.
        pa.set_memory_pool(pa.system_memory_pool())
        self._experiment = experiment
        self._on_existing = on_existing
        self._start = ActorStart(f"the event log of {experiment.exp_id}", self._begin, worth_a_retry)
        await self._start.run()
        self._metrics: RayMetrics | None = None
        if experiment.metrics:
            self._metrics = RayMetrics(self._families, (("experiment", experiment.exp_id),))
            self._metrics.start()
        tune_process()

    async def _begin(self) -> None:
        self._newest = LogHost(self._experiment, self._on_existing)
        try:
            await self._newest.start()
        except BaseException:
            await self._newest.abandon()
            raise

    @property
    def _host(self) -> LogHost:
        """Return the plain object that does the actor's work; raise the error that prevents its start."""
        self._start.check()
        return self._newest

    async def ready(self) -> None:
        """Wait until the log is being written; raise the error that prevents the start."""
        self._start.check()

    note_start = of_host(lambda host: host.note_start)
    note_model = of_host(lambda host: host.note_model)
    ask = of_host(lambda host: host.ask)
    since = of_host(lambda host: host.since)
    wait = of_host(lambda host: host.wait)
    count_blocked = of_host(lambda host: host.count_blocked)
    rows = of_host(lambda host: host.rows)
    clear = of_host(lambda host: host.clear)
    write_rule_changes = of_host(lambda host: host.write_rule_changes)

    async def blocked(self, cursor: int, seen: Seen | None, timeout_s: float) -> tuple[pa.Table, Seen] | MessagingError:
        """Return the blocked messages after the first `cursor` ones. If there are none, wait up to `timeout_s` for one.

        The second value of the result is the position up to which the log was read. The next call takes this value as
        `seen` (None: there was no call before). An error is returned instead of raised, because Ray would print a
        raised error if the listener was closed meanwhile.
        """
        try:
            return await self._host.blocked(cursor, seen, timeout_s)
        except MessagingError as error:
            return error

    async def stats(self) -> dict[str, Any]:
        """Return the writer's counters, such as rows, segments and lag, and its error.

        If the actor's start has failed, return only this error, and whether rows of the log are lost.
        """
        failure = self._start.failure
        return (
            self._host.stats() if failure is None else {"error": str(failure), "lost": getattr(failure, "lost", False)}
        )

    async def health(self) -> Report:
        """Return a health report, at once and without a call to the server."""
        assert self._experiment.log_dir is not None
        return await asyncio.to_thread(log_report, await self.stats(), self._experiment.log_dir)

    async def _families(self) -> list[Family]:
        return of_log(await self.stats())

    async def close(self) -> None:
        """Write the log's rows of all messages that were sent, and stop."""
        if self._metrics is not None:
            await self._metrics.stop()
        retried = await self._start.stop()
        if self._start.failure is None:
            await asyncio.shield(self._host.close())
        elif retried:  # rows that an earlier process of the actor has read may be in no file, so the error is raised
            self._start.check()


def log_report(stats: dict[str, Any], path: str) -> Report:
    """Return the health report of the event log's actor."""
    error = str(stats.get("error") or "")
    remedy = _LOST_REMEDY if stats.get("lost") else ""
    loops = [] if error else [TaskHealth("writer", alive=True, busy=False, age_s=0.0)]
    return Report(time.time(), error=error, remedy=remedy, loops=loops, stats=stats, disk=Disk.of(path))
