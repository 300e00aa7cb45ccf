"""One call of `send`: frames to mailboxes, publications on topics of users, notes to the log."""

import asyncio
from collections.abc import Sequence

from ray_messaging.mqtt.connection.control_link import ControlLink
from ray_messaging.mqtt.directory.directory import MqttDirectory
from ray_messaging.mqtt.sending.mailbox_senders import MailboxSenders
from ray_messaging.mqtt.sending.separate_log import SeparateLog
from ray_messaging.mqtt.sending.user_topics import UserTopics
from ray_messaging.mqtt.wire.topics import topic_of_channel
from ray_messaging.transports.transport import LOG, FrameFate, FrameWrite, Published, SendReply, SendRequest, SendStatus

UNOWNED = ""  # the mailbox of publications that go to no mailbox


class FrameWriter:
    """Writer of whole calls; `takers` are the subscriber counts of the last publications on topics of users."""

    def __init__(
        self,
        exp_id: str,
        control: ControlLink,
        directory: MqttDirectory,
        senders: MailboxSenders,
        log: SeparateLog | None,
    ) -> None:
        self.takers: list[int] = []
        self._version = -1  # the directory's version by which this call's frames were built
        self._exp_id = exp_id
        self._control = control
        self._directory = directory
        self._senders = senders
        self._log = log
        self._user_topics = UserTopics(control, senders.sizes)

    async def send(self, request: SendRequest) -> SendReply:
        """Send a call's frames; raise ConnectionFailed if their fate stays unknown."""
        parts = request.writes
        reply = SendReply(SendStatus.OK, [FrameFate.FULL] * len(parts))
        if any(part.mailbox == UNOWNED and not self._senders.is_written(part) for part in parts):
            # A mailbox that subscribed before this call must be known, because it owns what it subscribed to.
            await self._control.retry(self._control.barrier)
        if request.directory_version != self._directory.version and any(part.mailbox != LOG for part in parts):
            reply.status = SendStatus.STALE_DIRECTORY
        self._version = request.directory_version
        results = self._offer(parts, reply)
        for at, part in enumerate(parts):
            if part.mailbox == UNOWNED:
                await self._publish(at, part, reply)
        await self._settle(parts, results, reply)
        await self._write_notes(request, reply)
        return reply

    # -- frames ---------------------------------------------------------------------------------------------------

    def _offer(self, parts: Sequence[FrameWrite], reply: SendReply) -> "dict[int, asyncio.Future[int]]":
        """Publish frames; return the futures of those that depend on the broker's answer."""
        results: dict[int, asyncio.Future[int]] = {}
        refused: set[str] = set()
        self._senders.count_held()
        for at, part in enumerate(parts):
            if part.mailbox in (UNOWNED, LOG):
                continue
            if self._senders.is_written(part):
                reply.fates[at] = FrameFate.DUPLICATE
            elif reply.status is SendStatus.OK and part.mailbox not in refused:
                offered = self._senders.offer(part)
                if isinstance(offered, FrameFate):
                    self._refuse(at, part, offered, reply)
                    refused.add(part.mailbox)
                else:
                    results[at] = offered
        return results

    async def _settle(
        self, parts: Sequence[FrameWrite], results: "dict[int, asyncio.Future[int]]", reply: SendReply
    ) -> None:
        """Await the broker's answers."""
        if results:
            _, late = await asyncio.wait(results.values(), timeout=self._control.timeout_s)
            if late:
                raise self._control.unconfirmed(len(late))
        refused: set[str] = set()
        for at, confirmed in results.items():
            part = parts[at]
            if part.mailbox in refused:
                continue
            fate = self._senders.fate_of(part, confirmed.result())
            if fate is not FrameFate.WRITTEN:
                self._refuse(at, part, fate, reply)
                refused.add(part.mailbox)
                continue
            reply.fates[at] = fate
            if part.publish and part.batch is not None:
                await self._user_topics.mirror(part.publish, part.batch, self._topics(part.publish))

    def _refuse(self, at: int, part: FrameWrite, fate: FrameFate, reply: SendReply) -> None:
        reply.fates[at] = fate
        # By a newer directory the caller builds smaller frames.
        if fate is FrameFate.TOO_LARGE and part.rows > 1 and self._directory.version != self._version:
            reply.fates[at], reply.status = FrameFate.FULL, SendStatus.STALE_DIRECTORY

    # -- topics of users, the log ---------------------------------------------------------------------------------

    async def _publish(self, at: int, part: FrameWrite, reply: SendReply) -> None:
        if self._senders.is_written(part):
            reply.fates[at], reply.takers = FrameFate.DUPLICATE, self.takers
        elif reply.status is SendStatus.OK and part.batch is not None:
            self.takers = await self._user_topics.publish(part.publish, part.batch, self._topics(part.publish))
            reply.fates[at], reply.takers = FrameFate.WRITTEN, self.takers
            self._senders.written[UNOWNED] = part.seq

    def _topics(self, publications: Sequence[Published]) -> list[str]:
        return [topic_of_channel(self._exp_id, channel) for channel, _ in publications]

    async def _write_notes(self, request: SendRequest, reply: SendReply) -> None:
        notes = [at for at, part in enumerate(request.writes) if part.mailbox == LOG]
        if not notes:
            return
        if self._log is None:
            for at in notes:
                reply.fates[at] = FrameFate.WRITTEN
                self._senders.written[LOG] = request.writes[at].seq
            return
        logged = await self._log.send(request.interceptor_epoch, [request.writes[at] for at in notes])
        for at, fate in zip(notes, logged.fates, strict=False):
            reply.fates[at] = fate
        reply.repeated = logged.repeated
        if logged.status is not SendStatus.OK:
            reply.status = logged.status
