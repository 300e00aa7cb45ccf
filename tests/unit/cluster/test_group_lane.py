"""The connection of an event loop to a group's actor: who is slow is waited for, who is gone is given up."""

import asyncio
from functools import partial
from types import SimpleNamespace

import pytest
from ray.exceptions import ActorUnavailableError
from support.patience import WAIT_S

from ray_messaging import MessagingConfig, RedisConfig
from ray_messaging.cluster.actors.group_host import answer_request
from ray_messaging.cluster.handles.group.async_group import AsyncGroup, StepStamp
from ray_messaging.cluster.handles.group.group_lane import LoopConnection
from ray_messaging.cluster.lane_calls import AliveCall, RelayCall, receipts_of
from ray_messaging.cluster.spec import Experiment
from ray_messaging.errors import OutcomeUnknown
from ray_messaging.interception.interceptor.lane_server import LaneServer
from ray_messaging.receipt import Receipts


class SlowGroup:
    """A group that answers sends once it may, counts the questions for a sign of life, and may not answer these."""

    def __init__(self, *, lives=True):
        self.asked, self.may_answer = 0, asyncio.Event()
        self.signs, self.lives = 0, lives

    async def answer(self, call, _frames):
        if isinstance(call, AliveCall):
            self.signs += 1
            if self.signs == 3:
                self.may_answer.set()
            if not self.lives:
                await asyncio.Event().wait()
            return None
        self.asked += 1
        await self.may_answer.wait()
        return Receipts([])


@pytest.fixture(autouse=True)
def _quick_looks(monkeypatch):
    monkeypatch.setattr("ray_messaging.cluster.handles.group.group_lane.patience_s", lambda _size: 0.01)


async def test_calls_of_a_slow_actor_stay_on_the_lane():
    group = SlowGroup()
    server = LaneServer(partial(answer_request, group))
    connection = await LoopConnection.open(await server.start("127.0.0.1"))
    async with asyncio.timeout(WAIT_S):
        replies = await asyncio.gather(*(connection.ask(RelayCall("handle", n, 0)) for n in range(20)))
    assert all(len(receipts_of(reply.answer[0], [])) == 0 for reply in replies)
    assert group.signs >= 3
    assert (group.asked, connection.alive()) == (20, True)
    connection.close()
    await server.close()


async def test_an_actor_without_a_sign_of_life_is_given_up():
    group = SlowGroup(lives=False)
    server = LaneServer(partial(answer_request, group))
    connection = await LoopConnection.open(await server.start("127.0.0.1"))
    async with asyncio.timeout(WAIT_S):
        reply = await connection.ask(RelayCall("handle", 0, 0))
    assert (reply.begun, reply.answer, connection.alive(), group.signs) == (True, None, False, 1)
    await server.close()


async def test_a_handle_that_comes_while_the_group_closes_finds_its_socket_closed():
    """It then calls the group through Ray, which raises an error that says why the group is gone."""
    server = LaneServer(partial(answer_request, SlowGroup()))
    address = await server.start("127.0.0.1")
    await server.close()
    with pytest.raises(ConnectionRefusedError):
        await LoopConnection.open(await server.start("127.0.0.1"))
    assert await server.start("127.0.0.1") == address


async def test_a_send_to_a_group_whose_machine_is_lost_names_group_host_and_remedy():
    server = LaneServer(partial(answer_request, SlowGroup(lives=False)))
    address = await server.start("127.0.0.1")

    async def lane():
        return address

    async def answer(*_):
        raise ActorUnavailableError("its machine is lost", b"0" * 16)

    actor = SimpleNamespace(lane=SimpleNamespace(remote=lane), answer=SimpleNamespace(remote=answer))
    experiment = Experiment("town", "", MessagingConfig(), redis=RedisConfig(server="127.0.0.1"))
    west = AsyncGroup(experiment, "west", actor, StepStamp())
    with pytest.raises(OutcomeUnknown) as raised:
        async with asyncio.timeout(WAIT_S):
            await west.send(1, 2, {"n": 0})
    assert str(raised.value).startswith("group 'west' of experiment 'town' (at 127.0.0.1) went down before or during")
    assert str(raised.value).endswith("check whether the messages arrived before you send again")
    await server.close()
