"""Fixtures of the contract suites."""

import asyncio

import pytest
from support.layouts import (  # noqa: F401 - fixtures, and the hook that chooses the layouts
    news,
    opener,
    own_shards,
    processes,
    pytest_collection_modifyitems,
    server,
    transport,
    transports,
)
from support.stepped import begin_steps


@pytest.fixture
async def pair(messagers):
    """Open two groups: west hosts agents 1, 2 and 3, east 11, 12 and "ann"."""
    return await messagers(name="west", host=[1, 2, 3]), await messagers(name="east", host=[11, 12, "ann"])


@pytest.fixture
async def serve():
    """Return a function that serves in the background; it ends with the test."""
    serving = []

    def begin(messager, handler, **options):
        serving.append(asyncio.create_task(messager.serve(handler, **options)))
        return serving[-1]

    yield begin
    for task in serving:
        task.cancel()
    await asyncio.gather(*serving, return_exceptions=True)


@pytest.fixture
def stepped_groups(messagers):
    """Open groups of an experiment with steps, which share agents round robin."""

    async def open_groups(count, agents, **settings):
        setup = await messagers(name="setup")
        await begin_steps(setup, groups=count, **settings)
        return [await messagers(name=f"group{number}", host=range(number, agents, count)) for number in range(count)]

    return open_groups
