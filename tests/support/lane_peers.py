"""Peers of the verdict lane, by hand: callers that send any bytes, and a server that answers no question."""

import asyncio
import contextlib

from ray_messaging.interception.lane import JUDGE, LaneAddress
from support.patience import WAIT_S


def frame(data):
    return len(data).to_bytes(4, "little") + data


def asked(request, number=0, kind=JUDGE):
    """Build a request in its wire form: its number, its kind, then the question."""
    return frame(number.to_bytes(4, "little") + bytes([kind]) + request)


async def opened(address):
    """Open a connection, and send the token."""
    reader, writer = await asyncio.open_connection(address.host, address.port, limit=2**16)
    writer.write(frame(address.token.encode()))
    assert await reader.readexactly(4) == frame(b"")
    return reader, writer


async def ended(reader):
    """Wait until the server ends the connection; return the data before."""
    data = b""
    async with asyncio.timeout(WAIT_S):
        with contextlib.suppress(ConnectionError):
            while more := await reader.read(2**16):
                data += more
    return data


@contextlib.asynccontextmanager
async def mute_lane(said):
    """Serve a lane that takes any token, then says something, and answers nothing; give its address."""
    done = asyncio.Event()

    async def serve(reader, writer):
        with contextlib.suppress(OSError, EOFError):
            await reader.readexactly(int.from_bytes(await reader.readexactly(4), "little"))
            writer.write(said)
            await reader.read()
        writer.transport.abort()
        done.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield LaneAddress("127.0.0.1", server.sockets[0].getsockname()[1], "token")
        await done.wait()
