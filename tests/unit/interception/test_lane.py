"""The verdict lane: a real socket, whole frames, a token, numbered requests, answers in any order."""

import asyncio
import socket
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.frames import receive
from support.interceptors import batch
from support.lane_peers import asked, ended, frame, mute_lane, opened
from support.patience import WAIT_S

from ray_messaging.errors import Fenced, FrameError
from ray_messaging.interception.interceptor import lane_server as lane_module
from ray_messaging.interception.interceptor.lane_server import LaneServer
from ray_messaging.interception.lane import WAIT, FrameProtocol, LaneClient
from ray_messaging.interception.verdicts import decode_verdicts
from ray_messaging.wire.frames import encode


class Peer(FrameProtocol):
    """The frames that have come; an empty one is refused."""

    def __init__(self):
        super().__init__(2**20)
        self.frames = []

    def frame_received(self, frame):
        self.frames.append(bytes(frame))
        if not frame:
            self.refuse("an empty frame")


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=6), st.lists(st.integers(1, 400), max_size=12))
def test_frames_come_whole_and_in_order_whatever_the_pieces(frames, cuts):
    peer, stream = Peer(), b"".join(map(frame, frames))
    for cut in (*cuts, len(stream)):
        receive(peer, stream[:cut])
        stream = stream[cut:]
    assert peer.frames == frames


def test_no_frame_is_handled_after_one_that_was_refused():
    peer = Peer()
    receive(peer, frame(b"first") + frame(b"") + frame(b"second"))
    assert peer.frames == [b"first", b""]


class Lane:
    def __init__(self):
        self.requests = []
        self.later = {}
        self.server = LaneServer(self.answer)

    def answer(self, request, *, patient):
        request = bytes(request)  # it is there during this call only
        self.requests.append(request)
        if request == b"garbage":
            raise FrameError("this is no valid frame")
        if patient:
            self.later[request] = asyncio.get_running_loop().create_future()
            return self.later[request]
        return b"answer to " + request


@pytest.fixture
async def lane():
    made = Lane()
    made.address = await made.server.start("127.0.0.1")
    yield made
    await made.server.close()


@pytest.mark.parametrize("turns", range(4))
async def test_a_connection_that_comes_while_the_server_closes_is_closed(turns):
    server = LaneServer(lambda request, *, patient: b"")
    address = await server.start("127.0.0.1")
    with socket.create_connection((address.host, address.port)) as caller:
        for _ in range(turns):  # of the event loop, which accepts the connection in one of them
            await asyncio.sleep(0)
        await server.close()
        caller.settimeout(10)
        with suppress(ConnectionResetError):
            assert await asyncio.to_thread(caller.recv, 1) == b""


async def test_each_connection_has_its_answers_in_order(lane):
    clients = [await LaneClient.open(lane.address) for _ in range(5)]
    questions = [[b"%d-%d" % (k, n) for n in range(20)] + [b"%d" % k * 5_000_000, b""] for k in range(5)]

    async def ask(k):
        return [await clients[k].ask(question) for question in questions[k]]

    found = await asyncio.gather(*map(ask, range(5)))
    assert found == [[b"answer to " + question for question in asked] for asked in questions]
    for k in range(5):
        assert [request for request in lane.requests if request.startswith(b"%d-" % k)] == questions[k][:20]
        clients[k].close()


REFUSED = {
    "an empty token": lambda token: frame(b"") + asked(b"request"),
    "a wrong token": lambda token: frame(b"wrong") + asked(b"request"),
    "a long token": lambda token: frame(b"x" * 128) + asked(b"request"),
    "an odd token": lambda token: frame("é".encode()) + asked(b"request"),
    "much before the token": lambda token: (129).to_bytes(4, "little"),
    "a request above the limit": lambda token: frame(token) + (1001).to_bytes(4, "little"),
    "an empty request": lambda token: frame(token) + frame(b""),
    "half a number": lambda token: frame(token) + frame(b"\0"),
    "no kind": lambda token: frame(token) + frame(b"\0\0\0\0"),
}


@pytest.mark.parametrize("sent", REFUSED)
async def test_what_is_no_request_ends_the_connection(lane, monkeypatch, sent):
    monkeypatch.setattr(lane_module, "FRAME_LIMIT", 1000)
    client = await LaneClient.open(lane.address)
    token = lane.address.token.encode()
    data = REFUSED[sent](token)
    reader, writer = await asyncio.open_connection(lane.address.host, lane.address.port)
    writer.write(data)
    assert await ended(reader) in ((frame(b""), b"") if data.startswith(frame(token)) else (b"",))
    assert (lane.requests, lane.server.refused) == ([], 1)
    assert await client.ask(b"x" * 900) == b"answer to " + b"x" * 900
    writer.transport.abort()
    client.close()


async def test_garbage_ends_the_connection_and_no_other(lane):
    good, bad = await LaneClient.open(lane.address), await LaneClient.open(lane.address)
    with pytest.raises(ConnectionError):
        await bad.ask(b"garbage")
    with pytest.raises(ConnectionError):
        await bad.ask(b"again")
    assert await good.ask(b"1") == b"answer to 1"
    good.close()


async def test_a_caller_without_a_token_in_time_is_dropped(lane, monkeypatch):
    monkeypatch.setattr(lane_module, "OPENING_S", 0.02)
    reader, writer = await asyncio.open_connection(lane.address.host, lane.address.port)
    assert await ended(reader) == b""
    assert lane.server.refused == 1
    assert not lane.server.connections
    writer.transport.abort()


async def test_a_closed_server_drops_its_callers(lane):
    client = await LaneClient.open(lane.address)
    await lane.server.close()
    with pytest.raises(ConnectionError):
        await client.ask(b"1")
    with pytest.raises(ConnectionError):
        await LaneClient.open(lane.address)


async def test_a_slow_answer_delays_no_other(lane):
    client = await LaneClient.open(lane.address)
    *slow, cancelled = [asyncio.create_task(client.ask(b"slow %d" % n, WAIT)) for n in range(4)]
    for n in range(50):
        assert await client.ask(b"%d" % n) == b"answer to %d" % n
    assert not any(task.done() for task in slow)
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    lane.later[b"slow 3"].set_result(b"too late")  # it passes by
    for n in (2, 0, 1):
        lane.later[b"slow %d" % n].set_result(b"late answer %d" % n)
    async with asyncio.timeout(WAIT_S):
        assert await asyncio.gather(*slow) == [b"late answer %d" % n for n in range(3)]
    client.close()


async def test_a_late_answer_that_fails_ends_the_connection(lane):
    client, other = await LaneClient.open(lane.address), await LaneClient.open(lane.address)
    slow = asyncio.create_task(client.ask(b"slow", WAIT))
    assert await client.ask(b"1")
    lane.later[b"slow"].set_exception(Fenced("somebody newer", name="interceptor", epoch=1))
    with pytest.raises(ConnectionError):
        await asyncio.wait_for(slow, WAIT_S)
    assert await other.ask(b"1") == b"answer to 1"
    other.close()


async def test_a_caller_that_leaves_cancels_its_questions(lane):
    client = await LaneClient.open(lane.address)
    slow = asyncio.create_task(client.ask(b"slow", WAIT))
    assert await client.ask(b"1")
    client.close()
    with pytest.raises(ConnectionError):
        await asyncio.wait_for(slow, WAIT_S)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(lane.later[b"slow"], WAIT_S)


async def test_too_many_requests_that_wait(lane, monkeypatch):
    monkeypatch.setattr(lane_module, "WAITING", 2)
    client = await LaneClient.open(lane.address)
    slow = [asyncio.create_task(client.ask(b"slow %d" % n, WAIT)) for n in range(2)]
    assert await client.ask(b"1") == b"answer to 1"
    more = encode(batch([{}, {}, {}]), with_payload=False)
    verdicts = decode_verdicts(await asyncio.wait_for(client.ask(more, WAIT), WAIT_S))
    assert verdicts.batch_verdict(3).deferred == {0, 1, 2}
    for n in range(5):
        assert await client.ask(b"%d" % n) == b"answer to %d" % n
    for n, task in enumerate(slow):
        lane.later[b"slow %d" % n].set_result(b"late")
        assert await asyncio.wait_for(task, WAIT_S) == b"late"
    assert (len(lane.requests), lane.server.refused) == (8, 0)
    client.close()


async def test_verdicts_that_are_being_kept_have_a_limit_too(lane, monkeypatch):
    monkeypatch.setattr(lane_module, "WAITING", 2)
    kept = asyncio.get_running_loop().create_future()
    lane.server.answer = lambda request, *, patient: kept
    client = await LaneClient.open(lane.address)
    for task in [asyncio.create_task(client.ask(b"%d" % n)) for n in range(3)]:
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(task, WAIT_S)
    assert lane.server.refused == 1


async def test_the_kind_of_a_request_travels(lane):
    reader, writer = await opened(lane.address)
    writer.write(asked(b"slow", 2**32 - 1, WAIT) + asked(b"1", 5))
    first = frame(b"\5\0\0\0answer to 1")
    assert await reader.readexactly(len(first)) == first
    lane.later[b"slow"].set_result(b"late")
    last = frame(b"\xff\xff\xff\xfflate")
    assert await reader.readexactly(len(last)) == last
    writer.transport.abort()


@pytest.mark.parametrize("surplus", [b"surplus", b"\x4d\0\0\0surplus", b"abc"], ids=["text", "number", "short"])
async def test_an_unrequested_answer_ends_the_connection(surplus):
    async with mute_lane(frame(b"") + frame(surplus)) as address:
        client = await LaneClient.open(address)
        with pytest.raises(ConnectionError):
            async with asyncio.timeout(WAIT_S):
                await client.ask(b"1")
        with pytest.raises(ConnectionError):
            await client.ask(b"2")
