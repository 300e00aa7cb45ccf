"""The event log of an experiment that talks over a broker: it is kept by another transport, which takes its notes."""

from collections.abc import Sequence

from ray_messaging.transports.base import FrameFate, FrameWrite, SendReply, SendRequest, SendStatus, Transport

_TRIES = 100  # of a directory that changes all the while


class SeparateLog:
    """Bring notes to the transport that keeps the log, under a name of its own there."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._sender = ""
        self._epoch = 0
        self._version = -1

    async def connect(self) -> None:
        """Reach its server."""
        await self._transport.connect()
        self._version = (await self._transport.load_directory(-1)).version

    async def close(self) -> None:
        """Let go of it."""
        await self._transport.close()

    async def begin(self, sender: str, *, keep_s: float) -> dict[str, int]:
        """Take a higher epoch there; return what it has of us by now."""
        self._sender = f"mqtt.{sender}"  # a messager there may have the same name
        state = await self._transport.take_sender_epoch(self._sender, keep_s=keep_s)
        self._epoch = state.epoch
        return state.last

    async def send(self, interceptor_epoch: int, parts: Sequence[FrameWrite]) -> SendReply:
        """Write notes; its directory is nothing to us."""
        reply = SendReply(SendStatus.STALE_DIRECTORY, [FrameFate.FULL] * len(parts))
        for _ in range(_TRIES):
            request = SendRequest(self._sender, self._epoch, self._version, interceptor_epoch, parts)
            repeated = reply.repeated
            reply = await self._transport.send(request)
            reply.repeated = reply.repeated or repeated
            if reply.status is not SendStatus.STALE_DIRECTORY:
                break
            self._version = (await self._transport.load_directory(self._version)).version
        else:
            reply.status = SendStatus.OK  # the notes wait, as for a log that is behind
        return reply
