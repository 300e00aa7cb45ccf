"""Hostile callers of the verdict lane: without the token, too slow, too many, or not reading. Others are served."""

import asyncio
import contextlib
import subprocess
import sys

import pytest
from support.lane_peers import asked, ended, frame, opened
from support.patience import WAIT_S

from ray_messaging.interception.interceptor import lane_server as lane_module
from ray_messaging.interception.interceptor.lane_server import LaneServer
from ray_messaging.interception.lane import LaneClient

LARGE = b"x" * 2**18


@pytest.fixture
async def lane():
    server = LaneServer(lambda request, *, patient: LARGE if request == b"large" else b"answer")
    server.address = await server.start("127.0.0.1")
    yield server
    await server.close()


async def test_a_request_sent_too_slowly_ends_the_connection(lane, monkeypatch):
    monkeypatch.setattr(lane_module, "STALLED_S", 0.2)
    good = await LaneClient.open(lane.address)
    reader, writer = await opened(lane.address)

    async def drip():
        with contextlib.suppress(ConnectionError):
            for byte in (1000).to_bytes(4, "little") + bytes(1000):
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0.02)

    dripping = asyncio.create_task(drip())
    await ended(reader)
    dripping.cancel()
    await asyncio.gather(dripping, return_exceptions=True)
    assert (lane.refused, len(lane.connections), lane.held_bytes) == (1, 1, 0)
    assert await good.ask(b"") == b"answer"
    good.close()
    writer.transport.abort()


async def test_a_caller_silent_between_requests_stays_connected(lane):
    reader, writer = await opened(lane.address)
    (caller,) = lane.connections
    request = asked(b"small")
    for _ in range(2):
        writer.write(request[:7])
        async with asyncio.timeout(WAIT_S):
            while caller._timer is None:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0)
        writer.write(request[7:])
        assert await reader.readexactly(14) == frame(bytes(4) + b"answer")
        assert caller._timer is None
    assert (lane.refused, lane.held_bytes) == (0, 0)
    writer.transport.abort()


async def test_unread_answers_are_bounded(lane, monkeypatch):
    monkeypatch.setattr(lane_module, "STALLED_S", 0.5)
    good = await LaneClient.open(lane.address)
    reader, writer = await opened(lane.address)
    (bad,) = [caller for caller in lane.connections if caller.transport.get_extra_info("peername")[1] == port(writer)]
    reader._transport.pause_reading()
    largest = 0

    async def flood():
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(asked(b"large") * 10)
                await writer.drain()

    flooding = asyncio.create_task(flood())
    async with asyncio.timeout(WAIT_S):
        while lane.refused == 0:
            largest = max(largest, bad.transport.get_write_buffer_size())
            assert await good.ask(b"") == b"answer"
            await asyncio.sleep(0)
    flooding.cancel()
    await asyncio.gather(flooding, return_exceptions=True)
    assert largest <= 2**20 + len(LARGE) + 8
    assert bad not in lane.connections
    good.close()
    writer.transport.abort()


def port(writer):
    return writer.get_extra_info("sockname")[1]


async def test_partial_requests_are_bounded_over_all_callers(lane, monkeypatch):
    monkeypatch.setattr(lane_module, "HELD_BYTES", 10_000)
    good = await LaneClient.open(lane.address)
    (_, writer), (other_reader, other) = await opened(lane.address), await opened(lane.address)
    writer.write((2**20).to_bytes(4, "little") + bytes(8_000))
    async with asyncio.timeout(WAIT_S):
        while lane.held_bytes < 8_000:
            assert await good.ask(b"") == b"answer"
    other.write((2**20).to_bytes(4, "little") + bytes(8_000))
    await ended(other_reader)
    assert (lane.refused, lane.held_bytes) == (1, 8_004)
    assert await good.ask(b"") == b"answer"
    good.close()
    other.transport.abort()
    writer.transport.abort()


async def test_strangers_do_not_exclude_callers(lane, monkeypatch):
    monkeypatch.setattr(lane_module, "CONNECTIONS", 8)
    crowded = LaneServer(lane.answer)
    crowded.address = await crowded.start("127.0.0.1")
    strangers = [await asyncio.open_connection(crowded.address.host, crowded.address.port) for _ in range(50)]
    clients = [await LaneClient.open(crowded.address) for _ in range(8)]
    assert [await client.ask(b"") for client in clients] == [b"answer"] * 8
    assert len(crowded.connections) == 8
    assert crowded.refused == 50
    with pytest.raises(OSError, match=r"cut|reset|closed"):
        await LaneClient.open(crowded.address)
    for _, writer in strangers:
        writer.transport.abort()
    for client in clients:
        client.close()
    await crowded.close()


FLOODED = """
import asyncio, resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
from ray_messaging.interception.interceptor.lane_server import LaneServer
from ray_messaging.interception.lane import LaneClient

async def main():
    lane = LaneServer(lambda request, *, patient: b"answer")
    address = await lane.start("127.0.0.1")
    good = await LaneClient.open(address)
    print(address.port, flush=True)
    said = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(said), sys.stdin)
    told = asyncio.ensure_future(said.readline())
    while not told.done():
        assert await good.ask(b"") == b"answer"
        most = len(lane.connections)
        assert most <= 96, most
    open("/dev/null").close()  # a descriptor is left
    late = await LaneClient.open(address)
    assert await late.ask(b"") == b"answer"
    print("refused", lane.refused, flush=True)

if sys.argv[1] == "uvloop":
    import uvloop
    uvloop.run(main())
else:
    asyncio.run(main())
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_the_lane_survives_more_connections_than_file_descriptors(loop):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FLOODED, loop, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    number = int(await process.stdout.readline())
    strangers = await asyncio.gather(
        *(asyncio.open_connection("127.0.0.1", number) for _ in range(300)), return_exceptions=True
    )
    out, err = await asyncio.wait_for(process.communicate(b"enough\n"), WAIT_S)
    for stranger in strangers:
        if not isinstance(stranger, BaseException):
            stranger[1].transport.abort()
    assert process.returncode == 0, err.decode()
    assert int(out.split()[1]) > 20  # how many of the others the kernel hands on differs


SLOW_READER = """
import asyncio, uvloop
from ray_messaging.interception.interceptor.lane_server import LaneServer
from ray_messaging.interception.lane import LaneClient

async def main():
    lane = LaneServer(lambda request, *, patient: bytes(2**16))
    client = await LaneClient.open(await lane.start("127.0.0.1"))
    (caller,) = lane.connections
    client.transport.pause_reading()
    answers = [asyncio.ensure_future(client.ask(b"")) for _ in range(2_000)]
    while caller._unread is None:
        await asyncio.sleep(0)
    assert caller.transport.get_write_buffer_size() < 2**20 + 2**17
    client.transport.resume_reading()
    assert {len(answer) for answer in await asyncio.gather(*answers)} == {2**16}
    assert caller._unread is None and lane.refused == 0

uvloop.run(main())
"""


async def test_a_caller_that_reads_late_gets_all_answers():
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", SLOW_READER, stderr=subprocess.PIPE)
    _, err = await asyncio.wait_for(process.communicate(), WAIT_S)
    assert process.returncode == 0, err.decode()
