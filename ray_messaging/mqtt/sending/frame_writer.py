"""One call of `send`: frames on their ways, publications on bare topics, notes to the log."""

import asyncio
from collections.abc import Sequence

from ray_messaging.mqtt.directory.control import Control
from ray_messaging.mqtt.directory.registry import Registry
from ray_messaging.mqtt.log_store import SeparateLog
from ray_messaging.mqtt.sending.bare_topics import BareTopics
from ray_messaging.mqtt.sending.senders import Senders
from ray_messaging.mqtt.wire.topics import topic_of_channel
from ray_messaging.transports.base import LOG, FrameFate, FrameWrite, Published, SendReply, SendRequest, SendStatus

BARE = ""  # the mailbox of what no mailbox owns


class FrameWriter:
    """Settle the shipments of calls; `takers` are those of the last publications on bare topics."""

    def __init__(
        self, exp_id: str, control: Control, registry: Registry, senders: Senders, companion: SeparateLog | None
    ) -> None:
        self.takers: list[int] = []
        self._cut_by = -1  # the directory's version by which this call's frames were cut
        self._exp_id = exp_id
        self._control = control
        self._registry = registry
        self._senders = senders
        self._companion = companion
        self._bare = BareTopics(control, senders.proof)

    async def send(self, request: SendRequest) -> SendReply:
        """Send what a call holds; raise ConnectionFailed where it stays unknown what became of it."""
        parts = request.shipments
        reply = SendReply(SendStatus.OK, [FrameFate.FULL] * len(parts))
        if any(part.mailbox == BARE and not self._is_written(part) for part in parts):
            # Who has begun to listen before this call is seen by it: what he wants must not go elsewhere.
            await self._control.insist(self._control.barrier)
        if request.directory_version != self._registry.version and any(part.mailbox != LOG for part in parts):
            reply.status = SendStatus.STALE_DIRECTORY
        self._cut_by = request.directory_version
        waiting = self._offer(parts, reply)
        for at, part in enumerate(parts):
            if part.mailbox == BARE:
                await self._publish(at, part, reply)
        await self._settle(parts, waiting, reply)
        await self._note(request, reply)
        return reply

    def _is_written(self, part: FrameWrite) -> bool:
        return part.seq <= self._senders.written.get(part.mailbox, 0)

    # -- frames ---------------------------------------------------------------------------------------------------

    def _offer(self, parts: Sequence[FrameWrite], reply: SendReply) -> "dict[int, asyncio.Future[int]]":
        """Put frames on their ways; return those of which only the broker can tell."""
        waiting: dict[int, asyncio.Future[int]] = {}
        refused: set[str] = set()
        self._senders.weigh()
        for at, part in enumerate(parts):
            if part.mailbox in (BARE, LOG):
                continue
            if self._is_written(part):
                reply.fates[at] = FrameFate.DUPLICATE
            elif reply.status is SendStatus.OK and part.mailbox not in refused:
                offered = self._senders.offer(part)
                if isinstance(offered, FrameFate):
                    self._refuse(at, part, offered, reply)
                    refused.add(part.mailbox)
                else:
                    waiting[at] = offered
        return waiting

    async def _settle(
        self, parts: Sequence[FrameWrite], waiting: "dict[int, asyncio.Future[int]]", reply: SendReply
    ) -> None:
        """Wait for what the broker says of frames."""
        if waiting:
            _, late = await asyncio.wait(waiting.values(), timeout=self._control.patience_s)
            if late:
                raise self._control.silent(len(late))
        refused: set[str] = set()
        for at, confirmed in waiting.items():
            part = parts[at]
            if part.mailbox in refused:
                continue
            fate = self._senders.settle(part, confirmed.result())
            if fate is not FrameFate.WRITTEN:
                self._refuse(at, part, fate, reply)
                refused.add(part.mailbox)
                continue
            reply.fates[at] = fate
            if part.publish and part.batch is not None:
                await self._bare.mirror(part.publish, part.batch, self._topics(part.publish))

    def _refuse(self, at: int, part: FrameWrite, fate: FrameFate, reply: SendReply) -> None:
        reply.fates[at] = fate
        # Smaller frames go, if it can be cut smaller.
        if fate is FrameFate.TOO_LARGE and part.rows > 1 and self._registry.version != self._cut_by:
            reply.fates[at], reply.status = FrameFate.FULL, SendStatus.STALE_DIRECTORY

    # -- bare topics, the log -------------------------------------------------------------------------------------

    async def _publish(self, at: int, part: FrameWrite, reply: SendReply) -> None:
        if self._is_written(part):
            reply.fates[at], reply.takers = FrameFate.DUPLICATE, self.takers
        elif reply.status is SendStatus.OK and part.batch is not None:
            self.takers = await self._bare.publish(part.publish, part.batch, self._topics(part.publish))
            reply.fates[at], reply.takers = FrameFate.WRITTEN, self.takers
            self._senders.written[BARE] = part.seq

    def _topics(self, publications: Sequence[Published]) -> list[str]:
        return [topic_of_channel(self._exp_id, channel) for channel, _ in publications]

    async def _note(self, request: SendRequest, reply: SendReply) -> None:
        notes = [at for at, part in enumerate(request.shipments) if part.mailbox == LOG]
        if not notes:
            return
        if self._companion is None:
            for at in notes:
                reply.fates[at] = FrameFate.WRITTEN
                self._senders.written[LOG] = request.shipments[at].seq
            return
        noted = await self._companion.send(request.interceptor_epoch, [request.shipments[at] for at in notes])
        for at, fate in zip(notes, noted.fates, strict=False):
            reply.fates[at] = fate
        reply.repeated = noted.repeated
        if noted.status is not SendStatus.OK:
            reply.status = noted.status
