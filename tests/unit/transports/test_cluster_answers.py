"""Which node counts as the owner of a slot, where the nodes of a cluster say different things."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from redis.crc import key_slot

from ray_messaging.config import RedisConfig
from ray_messaging.transports.connection.cluster import ClusterNodes
from ray_messaging.transports.connection.discovery import NoPrimaryError, WrongSettingsError

HOST, HOME = "127.0.0.1", "rm:{town}:"
SLOT = key_slot(HOME.encode())
OURS, REST = f"{SLOT}-{SLOT}", f"{SLOT + 1}-16383"


def node(name, port, epoch, slots="", *, flags="master", host=HOST, primary="-"):
    return f"{name} {host}:{port}@1,, {flags} {primary} 0 0 {epoch} connected {slots}".rstrip()


class Nodes:
    """Fake nodes, each with a view of its own (None: it does not answer); views are filled in when ports are known."""

    def __init__(self, *views):
        self._views = views
        self.asked = [0] * len(views)

    async def __aenter__(self):
        self._stack = AsyncExitStack()
        self.ports = []
        for at in range(len(self._views)):
            server = await asyncio.start_server(self._answering(at), HOST, 0)
            await self._stack.enter_async_context(server)
            self.ports.append(server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_):
        await self._stack.aclose()

    def _answering(self, at):
        async def serve(reader, writer):
            try:
                while data := await reader.read(1000):
                    if b"NODES" not in data:
                        writer.write(b"+OK\r\n" * data.count(b"*"))
                        continue
                    self.asked[at] += 1
                    if self._views[at] is not None:
                        text = "\n".join(self._views[at](self.ports))
                        slots = b"*0\r\n"
                        writer.write(b"$%d\r\n%b\r\n%b" % (len(text), text.encode(), slots))
            finally:
                writer.close()

        return serve

    def discovery(self, *seeds):
        ports = [self.ports[seed] for seed in seeds] if seeds else self.ports
        return ClusterNodes(RedisConfig(cluster=[f"{HOST}:{port}" for port in ports]), HOME)


def view(myself, *nodes):
    """Return a view in which one of the nodes (name, port's place, epoch, slots) is the one that answers."""

    def fill(ports):
        return [
            node(name, ports[at], epoch, slots, flags="myself,master" if name == myself else "master")
            for name, at, epoch, slots in nodes
        ]

    return fill


async def test_the_highest_epoch_counts_although_a_cut_off_owner_still_claims_the_slot():
    old = view("a", ("a", 0, 1, OURS), ("b", 1, 2, REST))
    new = [view(name, ("a", 0, 1, ""), ("b", 1, 7, OURS)) for name in "bc"]
    async with Nodes(old, *new) as nodes:
        assert await nodes.discovery().primary() == (HOST, nodes.ports[1])


async def test_a_node_that_disclaims_the_slot_is_not_its_owner_whatever_others_have_heard():
    stale = view("c", ("a", 0, 9, OURS), ("b", 1, 8, ""))
    moved = [view(name, ("a", 0, 9, REST), ("b", 1, 8, OURS)) for name in "ab"]
    async with Nodes(*moved, stale) as nodes:
        assert await nodes.discovery().primary() == (HOST, nodes.ports[1])


async def test_nodes_that_do_not_agree_yet_name_none():
    async with Nodes(
        view("a", ("a", 0, 1, REST), ("b", 1, 2, OURS)), view("b", ("a", 0, 1, OURS), ("b", 1, 2, ""))
    ) as all_:
        with pytest.raises(NoPrimaryError, match="is changing its owner") as caught:
            await all_.discovery().primary()
        assert not isinstance(caught.value, WrongSettingsError)


async def test_named_nodes_are_asked_when_the_seeds_are_gone():
    whole = [view(name, ("a", 0, 1, REST), ("b", 1, 2, OURS)) for name in "ab"]
    async with Nodes(*whole) as nodes:
        discovery = nodes.discovery(0)
        assert await discovery.primary() == (HOST, nodes.ports[1])
        assert nodes.asked == [1, 0]
        nodes._views = (None, whole[1])
        assert await discovery.primary() == (HOST, nodes.ports[1])


async def test_an_owner_that_is_down_is_not_named():
    def down(ports):
        return [node("a", ports[0], 1, flags="myself,master"), node("b", 7, 2, OURS, flags="master,fail")]

    async with Nodes(down) as nodes:
        with pytest.raises(NoPrimaryError, match=rf"slot {SLOT}, {HOST}:7, is down, and no replica has"):
            await nodes.discovery().primary()


async def test_a_slot_on_its_way_is_still_its_owners_and_a_slot_of_nobody_is_named():
    def moving(ports):
        leaving = f"{SLOT} [{SLOT}->-b]"
        return [node("a", ports[0], 1, leaving, flags="myself,master"), node("b", 7, 2, f"[{SLOT}-<-a]")]

    async with Nodes(moving) as nodes:
        assert await nodes.discovery().primary() == (HOST, nodes.ports[0])
    async with Nodes(view("a", ("a", 0, 1, REST))) as nodes:
        with pytest.raises(WrongSettingsError, match=rf"has slot {SLOT}, .*redis-cli --cluster fix"):
            await nodes.discovery().primary()


@pytest.mark.long
async def test_silent_nodes_are_listed():
    async with Nodes(None, None) as nodes:
        with pytest.raises(NoPrimaryError, match=r"can be reached .*no \w+ in time.*no \w+ in time"):
            await nodes.discovery().primary()
