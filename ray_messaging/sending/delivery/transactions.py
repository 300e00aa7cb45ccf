"""A transaction's way to the server: judged as a whole, tried until it is taken as a whole, or given up."""

import asyncio
from collections.abc import Awaitable, Callable

from ray_messaging.common.limits import TRANSACTION_BYTES
from ray_messaging.config import MessagingConfig
from ray_messaging.errors import InterceptorUnavailable, MessagingError, PayloadTooLarge
from ray_messaging.interception.wire.verdicts import FOREIGN
from ray_messaging.sending import send_errors as refusals
from ray_messaging.sending.accumulation.pending_batch import TransactionBatch
from ray_messaging.sending.delivery.frame_router import OutboundFrame
from ray_messaging.sending.delivery.in_flight_batch import InFlightBatch
from ray_messaging.sending.delivery.transaction_sender import Concluder
from ray_messaging.transports.base import FrameFate, SendReply, SendStatus

# Has all of a posting judged (told True: by the interceptor's successor); returns the epoch of who passed it.
Decide = Callable[[InFlightBatch, bool], Awaitable[int]]

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.1


class Transacting:
    """Bring one transaction to its end; `turned` is told that it gets on, while it waits for others."""

    def __init__(
        self,
        shipper: Concluder,
        settings: MessagingConfig,
        bundle: TransactionBatch,
        posting: InFlightBatch | None,
        decide: Decide,
        turned: Callable[[], None],
    ) -> None:
        self._shipper = shipper
        self._settings = settings
        self._bundle = bundle
        self._posting = posting
        self._decide = decide
        self._turned = turned
        self._verdicts = FOREIGN
        self._crates: list[OutboundFrame] = []
        self._pause = _FIRST_PAUSE_S
        self._room_until = 0.0  # loop time
        self._judge_until: float | None = None

    async def run(self) -> None:
        """Conclude it, and tell whoever waits; without a conclusion only learn what the server has.

        Raises: what whoever waits was told, too.
        """
        try:
            await self._shipper.begin()
            await self._shipper.fence()
            if self._bundle.conclusion is not None:
                await self._conclude()
        except MessagingError as error:
            self._shipper.give_up(error)
            raise
        self._shipper.succeed()

    async def _conclude(self) -> None:
        if self._posting is not None:
            self._verdicts = await self._decide(self._posting, False)
        self._room_until = asyncio.get_running_loop().time() + self._settings.send_timeout_s
        self._cut()
        while (reply := await self._shipper.attempt(self._bundle, self._crates, self._verdicts)) is not None:
            await self._settle(reply)
            if self._shipper.stale:
                self._cut()

    def _cut(self) -> None:
        """Cut all of it by the directory as it is; raise PayloadTooLarge."""
        if self._posting is None:
            return
        self._crates = self._shipper.cut(self._posting, self._verdicts, self._room_until)
        volume = sum(crate.nbytes for crate in self._crates)
        if volume > TRANSACTION_BYTES:
            raise PayloadTooLarge(
                f"a transaction takes at most {TRANSACTION_BYTES:,} bytes on its way, and this one would take "
                f"{volume:,}, as each mailbox gets a copy: send fewer messages at a time, or references to the data",
                size=volume,
                limit=TRANSACTION_BYTES,
            )

    async def _settle(self, reply: SendReply) -> None:
        """Do what lets the next attempt pass; raise where nothing does."""
        if reply.status is SendStatus.READER_FENCED:
            assert self._bundle.conclusion is not None
            raise refusals.reader_fenced(self._bundle.conclusion)
        if reply.status is SendStatus.BEHIND:
            raise refusals.behind()
        if reply.status is SendStatus.UNJUDGED:
            raise refusals.unjudged()
        if reply.status is SendStatus.STALE_VERDICTS:
            await self._judge_again()
        elif reply.status is SendStatus.STALE_DIRECTORY or FrameFate.GONE in reply.fates:
            await self._shipper.reload()
        else:
            for crate, fate in zip(self._crates, reply.fates, strict=True):
                if fate is FrameFate.TOO_LARGE:
                    raise self._shipper.too_large(crate)
            await self._wait_for_room(reply)

    async def _wait_for_room(self, reply: SendReply) -> None:
        waiting = (FrameFate.FULL, FrameFate.LOG_FULL)
        full = [(crate, fate) for crate, fate in zip(self._crates, reply.fates, strict=True) if fate in waiting]
        if full and asyncio.get_running_loop().time() >= self._room_until:
            crate, fate = full[0]
            raise refusals.full(crate, log=fate is FrameFate.LOG_FULL)
        await self._rest()

    async def _judge_again(self) -> None:
        """Ask the interceptor's successor; wait until it is there."""
        now = asyncio.get_running_loop().time()
        self._judge_until = self._judge_until or now + self._settings.interceptor_timeout_s
        if now >= self._judge_until:
            raise InterceptorUnavailable(refusals.STALE)
        await self._rest()
        if self._posting is not None:
            self._verdicts = await self._decide(self._posting, True)
            self._cut()

    async def _rest(self) -> None:
        self._turned()
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_S)
