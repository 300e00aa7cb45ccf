"""What health learns of a server by asking it."""

import asyncio

from ray_messaging.transports.server_probe import ask_server


async def place_of(config):
    """Return where the server is that answers health, in words."""
    facts = await asyncio.to_thread(ask_server, config)
    assert not facts.error
    return facts.where
