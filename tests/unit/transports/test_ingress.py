"""A subscription that ends before the server has confirmed it."""

import asyncio

import pytest
from support.answering import HOST, answering

from ray_messaging import RedisConfig
from ray_messaging.addressing.server_keys import Keys
from ray_messaging.errors import Closed
from ray_messaging.transports.connection.link import RedisLink
from ray_messaging.transports.ingress import RedisIngress


async def test_a_waiting_subscription_raises_closed():
    asked = asyncio.Event()

    async with answering(lambda _: asked.set()) as [port]:
        link = RedisLink(RedisConfig(server=HOST, port=port), 1.0)
        ingress = RedisIngress(link, Keys("x"), lambda _: None)
        waiting = asyncio.create_task(ingress.subscribe(["news"], []))
        await asked.wait()
        await ingress.close()
        with pytest.raises(Closed):
            await waiting
        await link.close()
