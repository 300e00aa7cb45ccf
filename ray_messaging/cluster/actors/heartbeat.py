"""Heartbeat of an interceptor on the server, and the check that the server has lost no confirmed change."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from ray_messaging.cluster.rule_store import RuleStore
from ray_messaging.cluster.starting.ownership import BEAT_S
from ray_messaging.errors import Fenced, MessagingError
from ray_messaging.interception.server.interceptor import Interceptor

logger = logging.getLogger(__name__)

_END_TIMEOUT_S = 1.0


class Heartbeat:
    """Task that beats for an interceptor; rewrites its state where the server lost it, and stops where it is fenced."""

    def __init__(self, store: RuleStore, interceptor: Interceptor) -> None:
        self._store = store
        self._interceptor = interceptor
        self._task = asyncio.create_task(self._run(), name="ray_messaging heartbeat")

    async def _run(self) -> None:
        while self._interceptor.fenced is None:
            await self._guarded(self._beat)
            await asyncio.sleep(BEAT_S)

    async def _beat(self) -> None:
        if not await self._store.look(self._interceptor.epoch):
            await self._interceptor.renew()

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Fenced as error:
            logger.error("the interceptor of %s gives no more verdicts: %s", self._interceptor.exp_id, error)  # noqa: TRY400
            self._interceptor.fence(error)
        except MessagingError as error:
            logger.info("the interceptor's heartbeat did not reach the server: %s", error)
        except Exception:  # the heartbeat must go on
            logger.exception("the interceptor's heartbeat failed")

    async def close(self) -> None:
        """Stop, and note the end on the server if it answers at once."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        with suppress(MessagingError, TimeoutError):
            async with asyncio.timeout(_END_TIMEOUT_S):
                await self._store.leave(self._interceptor.epoch)
