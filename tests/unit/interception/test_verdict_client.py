"""The routes to an interceptor, with handles that look like Ray's."""

import asyncio
import logging
from unittest.mock import Mock

import pytest
from support.delegation import Method
from support.interceptors import Held
from support.interceptors import batch as batch_of
from support.lane_peers import frame, mute_lane
from support.patience import WAIT_S

from ray_messaging.errors import Closed, InterceptorUnavailable
from ray_messaging.interception.interceptor.interceptor import Interceptor
from ray_messaging.interception.interceptor.lane_server import LaneServer
from ray_messaging.interception.rules import BlackList, MaxLength, block
from ray_messaging.interception.verdict_client import ForeignVerdictClient, LocalVerdictClient, RemoteVerdictClient


class Actor:
    """A handle of our interceptor actor, by default with a lane."""

    def __init__(self, *rules):
        self.interceptor = Interceptor("x", rules, epoch=3)
        self.server = LaneServer(self.answer)
        self.lane, self.forward = Method(self._lane), Method(None)
        self.forward_batch = Method(lambda request, patient: self.interceptor.answer(request, patient=patient))
        self.address = None

    def answer(self, request, *, patient):
        return self.interceptor.answer(bytes(request), patient=patient)

    async def _lane(self):
        if self.address is None:
            self.address = await self.server.start("127.0.0.1")
        return self.address


@pytest.fixture
async def actor():
    made = Actor(BlackList([(1, 2)]))
    yield made
    await made.server.close()


@pytest.fixture
async def remote(actor):
    judge = RemoteVerdictClient(actor, 5.0)
    yield judge
    await judge.close()


def batch(pairs=((1, 2), (2, 1)), *, first=0):
    return batch_of([{"n": 1}] * len(pairs), pairs=pairs, first=first)


async def blocked(judge, *args, **options):
    asked = batch(*args, **options)
    return (await judge.judge(asked)).blocked


async def test_an_interceptor_of_this_process_counts_a_repeated_batch_once():
    interceptor = Interceptor("x", [BlackList([(1, 2)])])
    client = LocalVerdictClient(interceptor)
    asked = batch()
    verdict = await client.judge(asked)
    assert await client.judge(asked) is verdict
    assert (interceptor.judged, set(verdict.blocked)) == (2, {0})
    await client.judge(batch(first=2))
    assert interceptor.judged == 4


# -- ours on Ray ------------------------------------------------------------------------------------------------------


async def test_a_lane_is_used_until_it_is_cut_and_then_opened_anew(actor, remote):
    for first in (0, 2, 4):
        assert set(await blocked(remote, first=first)) == {0}
    assert (await remote.judge(batch(first=6))).epoch == 3
    assert len(actor.lane.calls) == 1
    for caller in list(actor.server.connections):
        caller.refuse("closing")
    assert set(await blocked(remote, first=8)) == {0}
    assert (remote.route, len(actor.lane.calls), actor.forward_batch.calls) == ("lane", 1, [])


async def test_a_lane_that_is_reached_again_needs_no_answer_of_ray(actor, remote):
    """After a cut of the network Ray may take long to reach the actor again."""
    assert set(await blocked(remote, first=0)) == {0}

    async def never():
        await asyncio.Event().wait()

    actor.lane = Method(never)
    for caller in list(actor.server.connections):
        caller.refuse("closing")
    async with asyncio.timeout(WAIT_S):
        assert set(await blocked(remote, first=2)) == {0}
    assert (remote.route, actor.lane.calls, actor.forward_batch.calls) == ("lane", [], [])


async def test_payloads_go_only_when_a_rule_asks(actor, remote):
    requests = []

    def answer(request, *, patient):
        requests.append(bytes(request))
        return actor.answer(request, patient=patient)

    actor.server.answer = answer
    await blocked(remote)
    assert b'{"n":1}' not in requests[0]
    actor.interceptor.rules.insert(MaxLength(5), 0)
    assert set(await blocked(remote, first=2)) == {0, 1}
    assert [b'{"n":1}' in request for request in requests[1:]] == [False, True]
    await blocked(remote, first=4)
    assert [b'{"n":1}' in request for request in requests[3:]] == [True]


async def test_a_lane_that_cannot_be_opened(actor, remote, caplog, unused_tcp_port):
    actor.lane.call = lambda: ("127.0.0.1", unused_tcp_port, "token")
    with caplog.at_level(logging.WARNING):
        for first in (0, 2):
            assert set(await blocked(remote, first=first)) == {0}
    assert remote.route == "ray"
    assert len(actor.forward_batch.calls) == 2
    assert len([record for record in caplog.records if "verdict lane" in record.message]) == 1
    assert len(actor.lane.calls) == 1  # it is not tried before each batch
    actor.lane.call = actor._lane
    remote._by_ray_until = 0.0
    assert set(await blocked(remote, first=4)) == {0}
    assert remote.route == "lane"


async def hang():
    await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("client", [RemoteVerdictClient, ForeignVerdictClient])
async def test_an_actor_that_does_not_answer(client):
    actor = Actor()
    actor.lane.call = actor.forward.call = lambda *_: hang()
    with pytest.raises(InterceptorUnavailable, match=r"0\.05 s"):
        await client(actor, 0.05).judge(batch())


async def test_the_error_keeps_the_actors_reason_when_the_last_attempt_is_cut_by_the_time():
    actor = Actor()
    silent = asyncio.Event()

    def answer():
        if len(actor.lane.calls) == 1:
            raise ValueError("no rules yet")
        return silent.wait()

    actor.lane.call = answer
    with pytest.raises(InterceptorUnavailable, match="no rules yet"):
        await RemoteVerdictClient(actor, 0.5).judge(batch())
    assert len(actor.lane.calls) == 2


class ActorDiedError(Exception):
    """Named as Ray's."""


async def test_an_actor_that_died_for_good_is_not_asked_again():
    actor = Actor()

    def die():
        raise ActorDiedError("killed")

    actor.lane.call = die
    with pytest.raises(InterceptorUnavailable):
        await RemoteVerdictClient(actor, 60.0).judge(batch())
    assert len(actor.lane.calls) == 1


async def test_an_actor_whose_ray_has_ended_is_not_asked_again():
    def refuse(**_):
        raise Closed("experiment 'x' has ended: no Ray runs in this process")

    actor = Actor()
    actor.lane.call = refuse
    actor.lost_server = Method(refuse)
    judge = RemoteVerdictClient(actor, 60.0, "x")
    with pytest.raises(Closed, match="no Ray runs"):
        await judge.judge(batch())
    assert len(actor.lane.calls) == 1
    assert "no Ray runs" in str(await judge.ended())


async def test_a_lane_that_opens_for_nobody_is_not_tried_before_each_batch(actor, remote, monkeypatch):
    monkeypatch.setattr("ray_messaging.interception.lane.OPENING_S", 0.2)
    async with mute_lane(b"") as address:
        actor.lane.call = lambda: address
        for first in range(0, 20, 2):
            assert set(await blocked(remote, first=first)) == {0}
    assert (remote.route, len(actor.lane.calls), len(actor.forward_batch.calls)) == ("ray", 1, 10)


async def test_a_lane_that_never_answers(actor):
    judge = RemoteVerdictClient(actor, 0.1)
    async with mute_lane(frame(b"")) as address:
        actor.lane.call = lambda: address
        with pytest.raises(InterceptorUnavailable):
            await judge.judge(batch())
        await judge.close()


# -- slow rules -------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["lane", "ray"])
async def slowly(request, actor, remote, unused_tcp_port):
    """Let messages wait for a slow rule, asked over the lane or by Ray call."""
    slow = Held("slow", block("slow"))
    actor.interceptor.rules.insert(slow)
    if request.param == "ray":
        actor.lane.call = lambda: ("127.0.0.1", unused_tcp_port, "token")
    asked = batch([(2, 1), (3, 1)])
    assert (await remote.judge(asked)).deferred == {0, 1}
    assert remote.route == request.param
    yield slow, asked
    slow.release()
    await actor.interceptor.close()


async def test_waiting_rows_delay_no_others_and_their_payloads_are_sent_once(actor, remote, slowly):
    slow, asked = slowly
    actor.interceptor.answer = Mock(side_effect=actor.interceptor.answer)
    waiting = asyncio.create_task(remote.wait(asked))
    await slow.called(2)
    assert set(await blocked(remote, [(1, 2)], first=2)) == {0}
    assert not waiting.done()
    slow.release()
    assert (await waiting).blocked == {0: ("slow", "slow"), 1: ("slow", "slow")}
    ((request,),) = [call.args for call in actor.interceptor.answer.call_args_list if call.kwargs["patient"]]
    assert b'{"n":1}' not in request


async def test_a_successor_gets_the_payloads_again(actor, remote, slowly):
    _, asked = slowly
    await actor.interceptor.close()
    actor.interceptor = Interceptor("x", [Held("slow", block("new"), is_open=True)], epoch=4)
    async with asyncio.timeout(WAIT_S):
        while (verdicts := await remote.wait(asked)).deferred:
            pass
    assert verdicts.blocked == {0: ("slow", "new"), 1: ("slow", "new")}
    assert verdicts.epoch == 4


async def test_a_lane_cut_while_rows_wait_is_opened_again(actor, remote):
    slow = Held("slow", block("slow"))
    actor.interceptor.rules.insert(slow)
    asked = batch([(2, 1)])
    await remote.judge(asked)
    waiting = asyncio.create_task(remote.wait(asked))
    await slow.called(1)
    assert await blocked(remote, [(1, 2)], first=5)  # the question before it has come
    for caller in list(actor.server.connections):
        caller.refuse("closing")
    slow.release()
    assert set((await asyncio.wait_for(waiting, WAIT_S)).blocked) == {0}
    await actor.interceptor.close()


async def test_patience_is_no_failure(actor):
    slow = Held("slow")
    actor.interceptor.rules.insert(slow)
    judge = RemoteVerdictClient(actor, 0.05)  # less than the time that a waiting question is kept without an answer
    asked = batch([(2, 1)])
    await judge.judge(asked)
    waiting = asyncio.create_task(judge.wait(asked))
    await slow.called(1)
    done, _ = await asyncio.wait({waiting}, timeout=0.2)
    assert not done
    slow.release()
    assert (await waiting).deferred == set()
    await judge.close()
    await actor.interceptor.close()


# -- foreign interceptors ----------------------------------------------------------------------------------------------


class Foreign:
    """A handle of an actor that only has `forward`."""

    def __init__(self, call):
        self.forward = Method(call)


async def test_forward_is_asked_where_both_ids_are_given():
    answers = {2: False, 3: True, 4: None, 5: 1, 6: ""}  # each counts by its truth value
    actor = Foreign(lambda from_id, to_id, payload: answers[to_id])
    pairs = [(1, 2), (None, 2), (1, None), ("ann", 3), (3, 4), (3, 5), (3, 6)]
    found = await blocked(ForeignVerdictClient(actor, 1.0), pairs)
    assert found == dict.fromkeys((0, 4, 6), ("forward", "the interceptor refused it"))
    # As AgentSociety's messager asks: with the payload as JSON text.
    assert actor.forward.calls == [(*pairs[row], '{"n": 1}') for row in (0, 3, 4, 5, 6)]


class RayTaskError(Exception):
    """Named as Ray's wrapper of an error in the user's code."""


class RayTaskErrorOfValueError(RayTaskError, ValueError):
    """As Ray makes one for each cause."""


@pytest.mark.parametrize(
    "kind", [RayTaskError, RayTaskErrorOfValueError, type("Mixed", (RayTaskErrorOfValueError,), {})]
)
async def test_a_forward_that_raises_blocks_at_once(kind):
    def crash(from_id, to_id, payload):
        if to_id == 2:
            raise kind("ray::Actor.forward() (pid=1)\n  File ...\nValueError: boom")
        return True

    actor = Foreign(crash)
    found = await blocked(ForeignVerdictClient(actor, 60.0))
    assert found == {0: ("forward", "the interceptor failed: ValueError: boom")}
    assert len(actor.forward.calls) == 2


async def test_a_forward_that_cannot_be_reached_is_asked_again():
    failures = iter([RuntimeError("unavailable")])

    def call(*_):
        for failure in failures:
            raise failure
        return True

    actor = Foreign(call)
    assert await blocked(ForeignVerdictClient(actor, 10.0)) == {}
    assert len(actor.forward.calls) == 3
