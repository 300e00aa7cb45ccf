"""The event log of an experiment on MQTT, which another transport keeps."""

from collections.abc import Sequence

from ray_messaging.transports.transport import FrameFate, FrameWrite, SendReply, SendRequest, SendStatus, Transport

_MAX_TRIES = 100  # while the directory keeps changing


class SeparateLog:
    """Writer of log notes to another transport, under a sender name of its own there."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._sender = ""
        self._epoch = 0
        self._version = -1

    async def connect(self) -> None:
        """Connect to the log's server."""
        await self._transport.connect()
        self._version = (await self._transport.load_directory(-1)).version

    async def close(self) -> None:
        """Disconnect."""
        await self._transport.close()

    async def begin(self, sender: str, *, keep_s: float) -> dict[str, int]:
        """Take a higher epoch there; return the last seq written per mailbox."""
        self._sender = f"mqtt.{sender}"  # a messager there may have the same name
        state = await self._transport.take_sender_epoch(self._sender, keep_s=keep_s)
        self._epoch = state.epoch
        return state.last

    async def send(self, interceptor_epoch: int, parts: Sequence[FrameWrite]) -> SendReply:
        """Write notes; reload that transport's directory version as often as needed."""
        reply = SendReply(SendStatus.STALE_DIRECTORY, [FrameFate.FULL] * len(parts))
        for _ in range(_MAX_TRIES):
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
