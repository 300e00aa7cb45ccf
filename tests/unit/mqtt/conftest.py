"""Links to an MQTT broker, for the tests that need no messager."""

import asyncio
import uuid

import pytest
from support.mqtt_links import Relay, Watched


@pytest.fixture
def topic():
    return f"test/{uuid.uuid4().hex}"


@pytest.fixture
async def open_link():
    """Connect links; at the end they are closed, and none of their tasks may be left."""
    opened = []

    async def connect(config, **options):
        watched = Watched(config, options.pop("client_id", uuid.uuid4().hex), **options)
        opened.append(watched.link)
        await watched.link.connect()
        return watched

    yield connect
    for link in opened:
        await link.close()
        await link.close()
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("ray_messaging")]


@pytest.fixture
async def relayed():
    """Put relays before brokers."""
    relays = []

    async def start(config):
        relays.append(await Relay(config).start())
        return relays[-1]

    yield start
    for relay in relays:
        await relay.stop()
