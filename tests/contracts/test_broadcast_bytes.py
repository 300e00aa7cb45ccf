"""The bytes of broadcasts on the wire, as the server counts them."""

import asyncio
from contextlib import AsyncExitStack

import numpy as np
import pytest
from support.contracts import WAIT_S
from support.servers import RedisProcess

from ray_messaging import Messager, MessagingConfig
from ray_messaging.audiences.building import build_edges
from ray_messaging.audiences.files import version_folder, write_edges
from ray_messaging.audiences.records import AudienceFacts, Kind, encode_facts
from ray_messaging.audiences.source import LocalFolder

GROUPS, AGENTS, HEARERS, TURNS = 4, 200_000, 100_000, 5


@pytest.fixture
def server(tmp_path):
    """Start a Valkey that serves this test alone."""
    process = RedisProcess(tmp_path, binary="valkey")
    yield process.start()
    process.kill()


def graph_from(sender, hearers):
    return build_edges([np.stack((np.full_like(hearers, sender), hearers), axis=1)])


@pytest.mark.long
async def test_100_000_hearers_take_few_more_bytes_than_one_in_each_group(server, exp_id, tmp_path):
    hosted = np.split(np.random.default_rng(5).permutation(AGENTS), GROUPS)  # no ranges: each group has some of all
    source, settings = LocalFolder(tmp_path / "audiences"), MessagingConfig(inbox_messages=2**20)
    client, payload = server.client(), {"text": "the market opens at nine, and closes at five"}

    def counted():
        stats = client.info("stats")
        return stats["total_net_input_bytes"] + stats["total_net_output_bytes"]

    async def taken(audience, each):
        """Return the bytes of a broadcast until all hearers have it, in and out, with those of two counts."""
        before = counted()
        receipts = await town.broadcast(AGENTS, audience, payload)
        assert receipts.counts()["delivered"] == len(receipts) == each * GROUPS
        for messager in messagers:
            left = each
            async with asyncio.timeout(WAIT_S):
                while left:
                    left -= len(await messager.fetch_messages(timeout=WAIT_S))
            await messager.ack()
        return counted() - before

    async with AsyncExitStack() as stack:
        messagers = []
        for name, agents in [("town", [AGENTS]), *((f"group{at}", part) for at, part in enumerate(hosted))]:
            messager = Messager(server.config, exp_id, name=name, settings=settings, audiences=source)
            messagers.append(await stack.enter_async_context(messager))
            await messager.host_agents(agents, ["agent-chat"])
        town = messagers.pop(0)
        for name, each in (("one", 1), ("many", HEARERS // GROUPS)):
            edges = graph_from(AGENTS, np.concatenate([part[:each] for part in hosted]))
            write_edges(version_folder(tmp_path / "audiences", name, 1), edges)
            facts = AudienceFacts(Kind.GRAPH, edges.pairs, edges.digest.hex())
            assert await town.engine.transport.set_audience(name, 1, encode_facts(facts)) == 0
        found, looks = {"one": [], "many": []}, -counted() + counted()
        for _ in range(TURNS):
            found["one"].append(await taken("one", 1))
            found["many"].append(await taken("many", HEARERS // GROUPS))
    few, many = (min(each) - looks for each in found.values())
    assert 0 < many <= 3 * few, (found, looks)
