"""A subscription that ends before the server has confirmed it."""

import asyncio

import pytest

from ray_messaging import RedisConfig
from ray_messaging.addressing.channels import Keys, all_agents
from ray_messaging.errors import Closed
from ray_messaging.transports.connection.link import RedisLink
from ray_messaging.transports.ingress import RedisIngress


async def test_a_waiting_subscription_raises_closed():
    asked = asyncio.Event()

    async def never_answer(reader, writer):
        await reader.read(1)
        asked.set()
        await reader.read()  # until the client has gone
        writer.close()

    async with await asyncio.start_server(never_answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        link = RedisLink(RedisConfig(server="127.0.0.1", port=port), 1.0)
        ingress = RedisIngress(link, Keys("x"), all_agents("x"), lambda _: None)
        waiting = asyncio.create_task(ingress.subscribe(["news"], []))
        await asked.wait()
        await ingress.close()
        with pytest.raises(Closed):
            await waiting
        await link.close()
