"""The lease of a mailbox, renewed as long as its messager lives."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from ray_messaging.common.task_health import TaskHealth
from ray_messaging.errors import Fenced, MessagingError, NotListening
from ray_messaging.receiving.lease_watch import LeaseWatch
from ray_messaging.transports.base import Transport

logger = logging.getLogger(__name__)

# The state of a nameless sender outlives it by this much, in seconds: longer than any retry.
KEEP_S = 86_400.0
# A process that stood still for longer than this, in seconds, may have a successor by now: it asks before it hands
# anything out. Whoever looks does so this often.
_STILL_S = 0.25
_LOOK_S = 0.1


class MailboxLease:
    """Renew the lease of a mailbox (`epoch` is its reader's, None before there is one), and keep the sender's state.

    Whoever renews its own watches those of others.

    `stop` is told why it cannot be renewed any more.
    """

    def __init__(
        self,
        transport: Transport,
        name: str,
        lease_s: float,
        epoch: Callable[[], int | None],
        stop: Callable[[MessagingError], Awaitable[None]],
        *,
        named: bool,
    ) -> None:
        self.renewed_at = time.monotonic()
        self._transport = transport
        self._name = name
        self._lease_s = lease_s
        self._epoch = epoch
        self._stop = stop
        self._keep_s = 0 if named else KEEP_S
        self._others = LeaseWatch(transport, name)
        self._looked_at = time.monotonic()
        self._stood_still = False

    def loop(self, task: "asyncio.Task[None]") -> TaskHealth:
        """Tell how the task that runs this is doing."""
        return TaskHealth("lease", not task.done(), True, time.monotonic() - self.renewed_at, limit_s=self._lease_s)

    async def run(self) -> None:
        """Renew it until it is taken over or removed."""
        while True:
            await self._pause()
            try:
                await self._renew()
                await self._others.look()
            except ConnectionError as error:
                logger.warning("cannot renew the lease of %s: %s", self._name, error)
                continue
            except MessagingError as error:
                await self._stop(error)
                return
            except Exception as error:
                logger.exception("the lease of %s is not renewed any more", self._name)
                await self._stop(
                    MessagingError(f"the lease failed ({type(error).__name__}: {error}): please report this")
                )
                return

    async def _pause(self) -> None:
        """Wait until it is time to renew; note meanwhile where this process stands still."""
        due = time.monotonic() + self._lease_s / 3
        while (left := due - time.monotonic()) > 0:
            await asyncio.sleep(min(left, _LOOK_S))
            self.look()

    def look(self) -> bool:
        """Tell whether this process stood still since the lease was renewed last: then `confirm` it."""
        now = time.monotonic()
        if now - self._looked_at > _STILL_S:
            self._stood_still = True
        self._looked_at = now
        return self._stood_still

    async def confirm(self) -> None:
        """Ask whether the mailbox is still ours, where this process stood still.

        What was read ahead may have been handed out, and committed, by a successor meanwhile.
        Raises: Fenced, NotListening, ConnectionFailed.
        """
        try:
            await self._renew()
        except (Fenced, NotListening) as error:
            await self._stop(error)
            raise

    async def _renew(self) -> None:
        epoch = self._epoch()
        mailbox = None if epoch is None else self._name
        there = await self._transport.renew(self._name, mailbox, epoch or 0, lease_s=self._lease_s, keep_s=self._keep_s)
        if not there:
            raise NotListening(
                f"mailbox {self._name!r} was removed, or this process stood still for longer than its lease of "
                f"{self._lease_s:g} s (then unread messages are among the dead letters), or the server lost it (was it "
                "flushed, restored or replaced?): open a new messager"
            )
        self.renewed_at, self._stood_still = time.monotonic(), False
