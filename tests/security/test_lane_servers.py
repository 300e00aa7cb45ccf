"""A fake interceptor with invalid answers: nothing is sent, the sender gets an error, and can continue."""

import asyncio
import contextlib

import pytest
from support.patience import WAIT_S

from ray_messaging import Messager, MessagingConfig, Outgoing
from ray_messaging.errors import MessagingError
from ray_messaging.interception.verdicts import FOREIGN, BatchVerdict

GOOD = BatchVerdict().encode(FOREIGN, wants_payload=False)


class Remote:
    def __init__(self, answer):
        self.remote = answer


class Impostor:
    """The handle of a fake interceptor with a lane: each request gets `answer`, or its result."""

    def __init__(self):
        self.answer = GOOD
        self.asked = 0
        self.lane = Remote(self._lane)
        self.forward_batch = Remote(self._forward)

    async def _lane(self, **_):
        return (*self.server.sockets[0].getsockname(), "token")

    async def _forward(self, *_, **__):
        return self.answer

    async def serve(self, reader, writer):
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await self.read(reader)
            writer.write(bytes(4))
            while True:
                number = (await self.read(reader))[:4]
                self.asked += 1
                writer.write((4 + len(self.answer)).to_bytes(4, "little") + number + self.answer)
        writer.transport.abort()

    @staticmethod
    async def read(reader):
        return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "little"))


@pytest.fixture
async def impostor():
    made = Impostor()
    made.server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    yield made
    made.server.close()


GARBAGE = {
    "nothing": b"",
    "no array": b"\xc0",
    "random": bytes(range(200, 256)),
    "no UTF-8": BatchVerdict({0: ("rule", "XY")}).encode(1, wants_payload=False).replace(b"XY", b"\xff\xfe"),
    "deep": b"\x91" * 100_000,
    "a row too many": BatchVerdict({7: ("rule", "no")}).encode(FOREIGN, wants_payload=False),
    "half a row": GOOD[:-1] + b"\xc4\x03abc",
    "two lines": BatchVerdict(rewritten={0: ("rule", b"{}\n{}")}).encode(FOREIGN, wants_payload=False),
    "an epoch of 64 bits": BatchVerdict().encode(2**63, wants_payload=False),
    "an array without an end": b"\xdd\xff\xff\xff\xff",
    "never judged": b"\x92\xff\xc2",
}


@pytest.mark.parametrize("name", GARBAGE)
async def test_invalid_answers_of_an_interceptor_send_nothing(impostor, name, local):
    settings = MessagingConfig(interceptor_timeout_s=2.0)
    async with Messager(local, "exp", impostor, settings=settings) as sender, Messager(local, "exp") as receiver:
        await receiver.host_agents([2], ["agent-chat"])
        impostor.answer = GARBAGE[name]
        with pytest.raises(MessagingError):
            async with asyncio.timeout(WAIT_S):
                await sender.send_message(sender.get_agent_chat_channel(2), {"n": 1}, 1, 2)
        with pytest.raises(MessagingError):
            async with asyncio.timeout(WAIT_S):
                await sender.send_messages([Outgoing.to_agent(2, {"n": n}, from_id=1) for n in (1, 1)])
        assert list(await receiver.fetch_messages()) == []
        impostor.answer = GOOD
        assert await sender.send_message(sender.get_agent_chat_channel(2), {"n": 2}, 1, 2)
        assert [message.payload["n"] for message in await receiver.fetch_messages(timeout=60)] == [2]
    assert impostor.asked >= 3
