"""Ray actor that writes the event log."""

import asyncio
import logging
import time
from typing import Any

import pyarrow as pa

from ray_messaging.cluster.actors.log_host import LogHost
from ray_messaging.cluster.actors.restarts import restarted, worth_a_retry
from ray_messaging.cluster.handles.remote_log import Seen
from ray_messaging.cluster.spec import Experiment
from ray_messaging.common.backoff import ACTOR_RECONNECT, ACTOR_START_RETRY
from ray_messaging.common.process_tuning import tune_process
from ray_messaging.common.task_health import TaskHealth
from ray_messaging.errors import MessagingError
from ray_messaging.observability.health.reports import Disk, Report

logger = logging.getLogger(__name__)

_LOST_REMEDY = "shut the experiment down, see why the server lost its data, and start again by on_existing='resume'"


class LogActor:
    """Ray actor that writes the log and answers queries; all of its calls may be repeated."""

    async def __init__(self, experiment: Experiment, on_existing: str) -> None:  # type: ignore[misc]
        # Arrow's own allocator retains half as much again as a segment needs.
        pa.set_memory_pool(pa.system_memory_pool())
        self._experiment = experiment
        self._on_existing = on_existing
        self._failure: MessagingError | None = None
        self._retrying: asyncio.Task[None] | None = None
        began = await self._begin()
        while not began and restarted():
            await asyncio.sleep(ACTOR_RECONNECT.first_s)
            began = await self._begin()
        if restarted() and self._failure is not None:
            # Messages wait until the cause is removed; meanwhile calls raise the error.
            logger.error("the event log cannot continue and retries: %s", self._failure)
            self._retrying = asyncio.create_task(self._retry(), name="ray_messaging log restart")
        tune_process()

    async def _retry(self) -> None:
        while self._failure is not None:
            await asyncio.sleep(ACTOR_START_RETRY.first_s)
            await self._begin()

    async def _begin(self) -> bool:
        """Start the host; keep an error for `ready`. Return False where another try may succeed."""
        host: LogHost | None = None
        try:
            host = LogHost(self._experiment, self._on_existing)
            await host.start()
        except MessagingError as error:
            self._failure = error
        except Exception as error:  # an unexpected error must not end the retries
            logger.exception("the event log of %s cannot start", self._experiment.exp_id)
            self._failure = MessagingError(f"the event log cannot start ({type(error).__name__}: {error})")
        else:
            self._host, self._failure = host, None
            return True
        if host is not None:
            await host.abandon()
        return not worth_a_retry(self._failure)

    async def ready(self) -> None:
        """Return once the log is being written; raise the error that prevents it."""
        if self._failure is not None:
            raise self._failure

    async def ask(self, what: str, arguments: dict[str, Any]) -> Any:  # noqa: ANN401 - each question has its own
        """Answer one of `eventlog.reading.query.QUESTIONS`."""
        await self.ready()
        return await self._host.ask(what, arguments)

    async def since(self, seen: Seen, arguments: dict[str, Any]) -> tuple[pa.Table, Seen]:
        """Return the next matching rows after a position, and the position after them."""
        await self.ready()
        return await self._host.since(seen, arguments)

    async def wait(self, position: int, timeout_s: float) -> bool:
        """Wait until there are rows after a position."""
        await self.ready()
        return await self._host.wait(position, timeout_s)

    async def blocked(self, cursor: int, seen: Seen | None, timeout_s: float) -> tuple[pa.Table, Seen] | MessagingError:
        """Return the blocked messages after the first `cursor` ones; wait for one.

        An error is returned, not raised: Ray would print it where the listener was closed meanwhile.
        """
        try:
            await self.ready()
            return await self._host.blocked(cursor, seen, timeout_s)
        except MessagingError as error:
            return error

    async def count_blocked(self) -> int:
        """Return the number of blocked messages so far."""
        await self.ready()
        return await self._host.count_blocked()

    async def rows(self) -> list[dict[str, Any]]:
        """Return the latest sends in the form of AgentSociety's log list."""
        await self.ready()
        return await self._host.rows()

    async def clear(self) -> None:
        """Empty the list of `rows`."""
        await self.ready()
        await self._host.clear()

    async def stats(self) -> dict[str, Any]:
        """Return rows, segments, lag and error."""
        if self._failure is None:
            return self._host.stats()
        return {"error": str(self._failure), "lost": getattr(self._failure, "lost", False)}

    async def health(self) -> Report:
        """Return a health report, at once and without a call to the server."""
        assert self._experiment.log_dir is not None
        return await asyncio.to_thread(log_report, await self.stats(), self._experiment.log_dir)

    async def close(self) -> None:
        """Write everything that was sent, and stop."""
        if self._retrying is not None:
            self._retrying.cancel()
            await asyncio.gather(self._retrying, return_exceptions=True)
        if self._failure is None:
            await asyncio.shield(self._host.close())
        elif self._retrying is not None:  # rows that the previous process had read are not written
            raise self._failure


def log_report(stats: dict[str, Any], path: str) -> Report:
    """Return the health report of the event log's actor."""
    error = str(stats.get("error") or "")
    remedy = _LOST_REMEDY if stats.get("lost") else ""
    loops = [] if error else [TaskHealth("writer", alive=True, busy=False, age_s=0.0)]
    return Report(time.time(), error=error, remedy=remedy, loops=loops, stats=stats, disk=Disk.of(path))
