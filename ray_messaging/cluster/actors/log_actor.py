"""The actor that keeps the event log: the interceptor gave the writer a process of its own."""

import asyncio
import logging
from typing import Any

import pyarrow as pa

from ray_messaging.cluster.actors.health_reports import log_report
from ray_messaging.cluster.actors.log_host import LogHost
from ray_messaging.cluster.actors.restarts import restarted, worth_a_retry
from ray_messaging.cluster.handles.remote_log import Seen
from ray_messaging.cluster.spec import Experiment
from ray_messaging.common.backoff import ACTOR_RECONNECT, ACTOR_START_RETRY
from ray_messaging.common.process_tuning import tune_process
from ray_messaging.errors import MessagingError
from ray_messaging.observability.health.reports import Report

logger = logging.getLogger(__name__)


class LogActor:
    """Write the log, and answer questions about it; all of its calls may be repeated."""

    async def __init__(self, experiment: Experiment, on_existing: str) -> None:  # type: ignore[misc]
        # Arrow's own allocator keeps half as much again of what a segment took.
        pa.set_memory_pool(pa.system_memory_pool())
        self._experiment = experiment
        self._on_existing = on_existing
        self._failure: MessagingError | None = None
        self._trying: asyncio.Task[None] | None = None
        began = await self._begin()
        while not began and restarted():
            await asyncio.sleep(ACTOR_RECONNECT.first_s)
            began = await self._begin()
        if restarted() and self._failure is not None:
            # Messages wait until somebody has set this right, and whoever asks is told meanwhile.
            logger.error("the event log cannot go on, trying on: %s", self._failure)
            self._trying = asyncio.create_task(self._try_on(), name="ray_messaging log restart")
        tune_process()

    async def _try_on(self) -> None:
        while self._failure is not None:
            await asyncio.sleep(ACTOR_START_RETRY.first_s)
            await self._begin()

    async def _begin(self) -> bool:
        """Start; keep the reason of a failure for `ready`. False: it is worth another try."""
        host: LogHost | None = None
        try:
            host = LogHost(self._experiment, self._on_existing)
            await host.start()
        except MessagingError as error:
            self._failure = error
        except Exception as error:  # whoever tries on must not end by what nobody foresaw
            logger.exception("the event log of %s cannot start", self._experiment.exp_id)
            self._failure = MessagingError(f"the event log cannot start ({type(error).__name__}: {error})")
        else:
            self._host, self._failure = host, None
            return True
        if host is not None:
            await host.abandon()
        return not worth_a_retry(self._failure)

    async def ready(self) -> None:
        """Return once the log is written; raise why it is not."""
        if self._failure is not None:
            raise self._failure

    async def ask(self, what: str, arguments: dict[str, Any]) -> Any:  # noqa: ANN401 - each question has its own
        """Answer one of `eventlog.reading.query.QUESTIONS`."""
        await self.ready()
        return await self._host.ask(what, arguments)

    async def since(self, seen: Seen, arguments: dict[str, Any]) -> tuple[pa.Table, Seen]:
        """Return the next rows that match after what was seen, and what is seen with them."""
        await self.ready()
        return await self._host.since(seen, arguments)

    async def wait(self, position: int, timeout_s: float) -> bool:
        """Wait until there are rows after a position."""
        await self.ready()
        return await self._host.wait(position, timeout_s)

    async def blocked(self, cursor: int, seen: Seen | None, timeout_s: float) -> tuple[pa.Table, Seen] | MessagingError:
        """Return blocked messages after the first `cursor` of them; wait for one.

        An error is returned, not raised: Ray prints one that nobody takes, and a listener may be closed meanwhile.
        """
        try:
            await self.ready()
            return await self._host.blocked(cursor, seen, timeout_s)
        except MessagingError as error:
            return error

    async def count_blocked(self) -> int:
        """Return how many messages were blocked by now."""
        await self.ready()
        return await self._host.count_blocked()

    async def rows(self) -> list[dict[str, Any]]:
        """Return the latest sends in the form of AgentSociety's log list."""
        await self.ready()
        return await self._host.rows()

    async def clear(self) -> None:
        """Begin the list of `rows` anew."""
        await self.ready()
        await self._host.clear()

    async def stats(self) -> dict[str, Any]:
        """Return rows, segments, lag and what is wrong."""
        if self._failure is None:
            return self._host.stats()
        return {"error": str(self._failure), "lost": getattr(self._failure, "lost", False)}

    async def health(self) -> Report:
        """Say how it is doing, at once and without the server."""
        assert self._experiment.log_dir is not None
        return await asyncio.to_thread(log_report, await self.stats(), self._experiment.log_dir)

    async def close(self) -> None:
        """Write all that was sent, and leave."""
        if self._trying is not None:
            self._trying.cancel()
            await asyncio.gather(self._trying, return_exceptions=True)
        if self._failure is None:
            await asyncio.shield(self._host.close())
        elif self._trying is not None:  # what its predecessor had read is not written
            raise self._failure
