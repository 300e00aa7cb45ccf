"""The verdict lane: a real socket, a token, requests in order."""

import asyncio
import contextlib
import socket

import pytest

from ray_messaging.errors import FrameError
from ray_messaging.interception import lane as lane_module
from ray_messaging.interception.lane import LaneAddress, LaneClient, LaneServer

WAIT_S = 10


class Lane:
    def __init__(self):
        self.requests = []
        self.server = LaneServer(self.answer)

    def answer(self, request):
        self.requests.append(request)
        if request == b"garbage":
            raise FrameError("this is no valid frame")
        return b"answer to " + request


@pytest.fixture
async def lane():
    made = Lane()
    made.address = await made.server.start("127.0.0.1")
    yield made
    await made.server.close()


async def raw(lane):
    return await asyncio.open_connection(lane.address.host, lane.address.port)


def frame(data):
    return len(data).to_bytes(4, "little") + data


async def ended(reader):
    """Read until the server ends the connection; return what it said before."""
    try:
        async with asyncio.timeout(WAIT_S):
            return await reader.read()
    except ConnectionError:
        return b""


async def test_requests_are_answered(lane):
    client = await LaneClient.open(lane.address)
    for n in range(3):
        assert await client.ask(b"%d" % n) == b"answer to %d" % n
    assert await client.ask(b"") == b"answer to "
    large = b"x" * 5_000_000
    assert await client.ask(large) == b"answer to " + large
    client.close()


async def test_each_connection_has_its_answers_in_order(lane):
    clients = [await LaneClient.open(lane.address) for _ in range(5)]

    async def ask(k, client):
        return [await client.ask(b"%d-%d" % (k, n)) for n in range(20)]

    found = await asyncio.gather(*(ask(k, client) for k, client in enumerate(clients)))
    assert found == [[b"answer to %d-%d" % (k, n) for n in range(20)] for k in range(5)]
    for k in range(5):
        mine = [request for request in lane.requests if request.startswith(b"%d-" % k)]
        assert mine == [b"%d-%d" % (k, n) for n in range(20)]
    for client in clients:
        client.close()


async def test_requests_in_one_write_and_in_many(lane):
    reader, writer = await raw(lane)
    stream = frame(lane.address.token.encode()) + b"".join(frame(b"%d" % n) for n in range(5))
    writer.write(stream[:50])
    for at in range(50, len(stream)):
        writer.write(stream[at : at + 1])
        await writer.drain()
    assert await reader.readexactly(4) == frame(b"")
    for n in range(5):
        answer = b"answer to %d" % n
        assert await reader.readexactly(4 + len(answer)) == frame(answer)
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("token", [b"", b"wrong", b"x" * 128, "é".encode()], ids=["empty", "wrong", "long", "odd"])
async def test_a_wrong_token_is_refused(lane, token):
    reader, writer = await raw(lane)
    writer.write(frame(token) + frame(b"request"))
    assert await ended(reader) == b""
    assert lane.requests == []
    assert lane.server.refused == 1
    writer.transport.abort()


async def test_a_client_with_a_wrong_token(lane):
    with pytest.raises(OSError, match=r"cut|reset"):
        await LaneClient.open(lane.address._replace(token="wrong"))
    assert "token" not in repr(lane.address)
    assert lane.address.token not in repr(lane.address)


async def test_before_the_token_nothing_large_is_read(lane):
    reader, writer = await raw(lane)
    writer.write((129).to_bytes(4, "little"))
    assert await ended(reader) == b""
    assert lane.server.refused == 1
    writer.transport.abort()


async def test_a_request_above_the_limit(lane, monkeypatch):
    monkeypatch.setattr(lane_module, "FRAME_LIMIT", 1000)
    client = await LaneClient.open(lane.address)
    assert await client.ask(b"x" * 900)
    reader, writer = await raw(lane)
    writer.write(frame(lane.address.token.encode()) + (1001).to_bytes(4, "little"))
    assert await ended(reader) in (frame(b""), b"")
    assert lane.server.refused == 1
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


async def test_whoever_shows_no_token_in_time_is_dropped(lane, monkeypatch):
    monkeypatch.setattr(lane_module, "OPENING_S", 0.02)
    reader, writer = await raw(lane)
    assert await ended(reader) == b""
    assert lane.server.refused == 1
    assert not lane.server.connections
    writer.transport.abort()


async def test_too_many_connections(lane, monkeypatch):
    monkeypatch.setattr(lane_module, "CONNECTIONS", 1)
    client = await LaneClient.open(lane.address)
    reader, writer = await raw(lane)
    assert await ended(reader) == b""
    assert await client.ask(b"1") == b"answer to 1"
    writer.transport.abort()
    client.close()


async def test_a_cut_raises(lane):
    client = await LaneClient.open(lane.address)
    lane.server.answer = lambda _: lane_cut(lane)
    with pytest.raises(ConnectionError):
        await client.ask(b"1")
    with pytest.raises(ConnectionError):
        await client.ask(b"2")


def lane_cut(lane):
    for caller in list(lane.server.connections):
        caller.refuse("closing")
    return b""


async def test_a_closed_server_drops_its_callers(lane):
    client = await LaneClient.open(lane.address)
    await lane.server.close()
    with pytest.raises(ConnectionError):
        await client.ask(b"1")
    with pytest.raises(ConnectionError):
        await LaneClient.open(lane.address)


@contextlib.asynccontextmanager
async def server_that_says(surplus):
    """Serve a lane that takes any token, then says something and answers nothing."""
    done = asyncio.Event()

    async def serve(reader, writer):
        await reader.read(4 + 8)
        writer.write(frame(b"") + surplus)
        with contextlib.suppress(OSError):
            await reader.read()
        writer.transport.abort()
        done.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield LaneAddress("127.0.0.1", server.sockets[0].getsockname()[1], "12345678")
    await done.wait()
    server.close()
    await server.wait_closed()


async def test_a_cancelled_question_ends_the_connection():
    async with server_that_says(b"") as address:
        client = await LaneClient.open(address)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await client.ask(b"1")
        with pytest.raises(ConnectionError):
            await client.ask(b"2")


async def test_an_answer_nobody_asked_for_ends_the_connection():
    async with server_that_says(frame(b"surplus")) as address:
        client = await LaneClient.open(address)
        with pytest.raises(ConnectionError):
            async with asyncio.timeout(WAIT_S):
                await client.ask(b"1")


async def test_a_port_where_nobody_listens():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(ConnectionError):
        await LaneClient.open(LaneAddress("127.0.0.1", port, "token"))
