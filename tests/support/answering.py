"""Servers whose answers a test chooses."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial

HOST = "127.0.0.1"


@asynccontextmanager
async def answering(*answers, connections=None):
    """Serve for each function from what was asked to the answer (None: there is none); yield the servers' ports."""
    connections = set() if connections is None else connections

    async def serve(answer, reader, writer):
        connections.add(writer)
        with suppress(OSError):
            while data := await reader.read(65536):
                if (said := answer(data)) is not None:
                    writer.write(said)
        connections.discard(writer)
        writer.transport.abort()

    async with AsyncExitStack() as stack:
        servers = [await asyncio.start_server(partial(serve, answer), HOST, 0) for answer in answers]
        for server in servers:
            await stack.enter_async_context(server)
        yield [server.sockets[0].getsockname()[1] for server in servers]


def oks(data):
    """Answer each command with OK."""
    return b"+OK\r\n" * data.count(b"*")
