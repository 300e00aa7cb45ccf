"""A fake interceptor with invalid answers: nothing is sent, the sender gets an error, and can continue."""

import asyncio

import pytest
from support.delegation import Method
from support.patience import WAIT_S

from ray_messaging import Messager, MessagingConfig, Outgoing
from ray_messaging.errors import MessagingError
from ray_messaging.interception.interceptor.lane_server import LaneServer
from ray_messaging.interception.verdicts import FOREIGN, BatchVerdict

GOOD = BatchVerdict().encode(FOREIGN, wants_payload=False)


class Impostor:
    """The handle of a fake interceptor with a lane: each request gets `answer`."""

    def __init__(self):
        self.answer, self.asked = GOOD, 0
        self.server = LaneServer(self._answer)
        self.lane, self.forward_batch = Method(lambda **_: self.address), Method(self._answer)

    def _answer(self, *_, **__):
        self.asked += 1
        return self.answer


@pytest.fixture
async def impostor():
    made = Impostor()
    made.address = await made.server.start("127.0.0.1")
    yield made
    await made.server.close()


GARBAGE = {
    "nothing": b"",
    "no array": b"\xc0",
    "random": bytes(range(200, 256)),
    "not UTF-8": BatchVerdict({0: ("rule", "XY")}).encode(1, wants_payload=False).replace(b"XY", b"\xff\xfe"),
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
