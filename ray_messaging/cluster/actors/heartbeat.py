"""While an interceptor lives it says so on the server, and looks whether that still has what it had confirmed."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from ray_messaging.cluster.ownership import BEAT_S
from ray_messaging.cluster.rule_store import RuleStore
from ray_messaging.errors import Fenced, MessagingError
from ray_messaging.interception.server.interceptor import Interceptor

logger = logging.getLogger(__name__)

_FAREWELL_S = 1.0


class Heartbeat:
    """Beat for an interceptor: have it write all anew where the server is behind it, and stop where it is fenced."""

    def __init__(self, store: RuleStore, interceptor: Interceptor) -> None:
        self._store = store
        self._interceptor = interceptor
        self._task = asyncio.create_task(self._run(), name="ray_messaging heartbeat")

    async def _run(self) -> None:
        while self._interceptor.fenced is None:
            await self._guard(self._look)
            await asyncio.sleep(BEAT_S)

    async def _look(self) -> None:
        if not await self._store.look(self._interceptor.epoch):
            await self._interceptor.renew()

    async def _guard(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Fenced as error:
            logger.error("the interceptor of %s judges no more: %s", self._interceptor.exp_id, error)  # noqa: TRY400
            self._interceptor.fence(error)
        except MessagingError as error:
            logger.info("the server does not say what it has: %s", error)
        except Exception:  # it goes on
            logger.exception("the interceptor's look at its server failed")

    async def close(self) -> None:
        """Beat no more, and say so where the server can be told at once."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        with suppress(MessagingError, TimeoutError):
            async with asyncio.timeout(_FAREWELL_S):
                await self._store.leave(self._interceptor.epoch)
